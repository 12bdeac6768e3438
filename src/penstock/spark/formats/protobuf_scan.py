"""Protobuf, all values at once: for each field in the order of their numbers one step over every row that has it next.

Writers put fields in that order, once each. A row that differs (order, unknown fields, a field twice, lists of many
elements) or is broken fails and is left to `protobuf`'s parser, so these steps must be right for what they take and
need not take all. Maps and groups are never taken. Encodings: Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from penstock.spark.formats.scanning import Cursor, collect, fixed_array, list_array, scatter


class Step(Protocol):
    """Reads one value of each row, the tag being read already."""

    def scan(self, cursor: Cursor) -> pa.Array:
        """An array with an element for each row of the cursor, which moves behind it."""


@dataclass(frozen=True, slots=True)
class Varint:
    """Whole numbers within `least` and `most`: the parser cuts bits off others, and booleans make 1 of them."""

    type: pa.DataType
    least: int
    most: int
    zigzag: bool = False

    def scan(self, cursor: Cursor) -> pa.Array:
        found = cursor.zigzag() if self.zigzag else cursor.varint().view(np.int64)
        cursor.fail((found < self.least) | (found > self.most))
        if pa.types.is_boolean(self.type):
            return pa.array(found == 1)
        return fixed_array(self.type, found.astype(self.type.to_pandas_dtype()))


@dataclass(frozen=True, slots=True)
class Unsigned:
    """uint64 and fixed64, as decimals."""

    type: pa.DataType
    fixed: bool

    def scan(self, cursor: Cursor) -> pa.Array:
        found = cursor.word() if self.fixed else cursor.varint()
        return fixed_array(self.type, np.stack([found, np.zeros_like(found)], axis=1))


@dataclass(frozen=True, slots=True)
class Fixed:
    """float, double, sfixed32, sfixed64, fixed32; the last is widened."""

    type: pa.DataType
    size: int

    def scan(self, cursor: Cursor) -> pa.Array:
        found = cursor.half() if self.size == 4 else cursor.word()
        return fixed_array(self.type, found.astype(np.int64) if self.type.bit_width != 8 * self.size else found)


@dataclass(frozen=True, slots=True)
class Bytes:
    """string, bytes."""

    text: bool

    def scan(self, cursor: Cursor) -> pa.Array:
        lengths = cursor.varint().view(np.int64)
        return cursor.texts(lengths) if self.text else cursor.slices(lengths)


@dataclass(frozen=True, slots=True)
class Symbol:
    """enum: the numbers that have a name, in order."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]

    def scan(self, cursor: Cursor) -> pa.Array:
        found = cursor.varint().view(np.int64)
        known = np.array(self.numbers, np.int64)
        places = np.minimum(np.searchsorted(known, found), len(known) - 1)
        cursor.fail(known[places] != found)
        return pa.array(self.names, pa.string()).take(pa.array(places))


@dataclass(frozen=True, slots=True)
class Tagged:
    """A field that is there or not; `default` where it is not, None being null."""

    tag: bytes
    step: Step
    default: object

    def scan(self, cursor: Cursor) -> pa.Array:
        present = cursor.begins(self.tag)
        if present.all():
            return self.step.scan(cursor)
        some = cursor.select(present)
        found = self.step.scan(some)
        cursor.merge(present, some)
        found = scatter(found, present)
        return found if self.default is None else found.fill_null(pa.scalar(self.default, found.type))


@dataclass(frozen=True, slots=True)
class Repeated:
    """A tag before each element."""

    tag: bytes
    type: pa.DataType
    step: Step

    def scan(self, cursor: Cursor) -> pa.Array:
        return list_array(self.type, collect(cursor, lambda rows, _: rows.begins(self.tag), self.step.scan))


@dataclass(frozen=True, slots=True)
class Packed:
    """One tag and the bytes of all elements."""

    tag: bytes
    type: pa.DataType
    step: Step

    def scan(self, cursor: Cursor) -> pa.Array:
        present = cursor.begins(self.tag)
        lengths = np.zeros(len(cursor), np.int64)
        some = cursor.select(present)
        lengths[present] = some.varint().view(np.int64)
        cursor.merge(present, some)
        inner = cursor.within(lengths)
        items = collect(inner, lambda rows, _: rows.left(), self.step.scan)
        inner.fail(inner.left())
        cursor.at = inner.at
        return list_array(self.type, items)


@dataclass(frozen=True, slots=True)
class Message:
    """Fields in the order of their numbers, where each goes in the type, and (`choices`) which exclude each other."""

    type: pa.DataType
    fields: tuple[Step, ...]
    places: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]

    def scan_rows(self, cursor: Cursor) -> list[pa.Array]:
        """The fields in all rows, which must hold nothing else."""
        found: list[pa.Array] = [None] * len(self.fields)
        for step, place in zip(self.fields, self.places, strict=True):
            found[place] = step.scan(cursor)
        for choice in self.choices:
            # Of a oneof's fields the parser keeps the last that was written.
            chosen = np.stack([np.asarray(found[place].is_valid()) for place in choice])
            cursor.fail(chosen.sum(axis=0) > 1)
        cursor.fail(cursor.left())
        return found

    def scan(self, cursor: Cursor) -> pa.Array:
        inner = cursor.within(cursor.varint().view(np.int64))
        found = self.scan_rows(inner)
        cursor.at = inner.at
        return pa.StructArray.from_arrays(found, fields=list(self.type))


@dataclass(frozen=True, slots=True)
class Moment:
    """google.protobuf.Timestamp: seconds and nanoseconds, cut to microseconds."""

    type: pa.DataType
    message: Message

    def scan(self, cursor: Cursor) -> pa.Array:
        inner = cursor.within(cursor.varint().view(np.int64))
        seconds, nanos = (part.to_numpy() for part in self.message.scan_rows(inner))
        cursor.at = inner.at
        limit = np.iinfo(np.int64).max // 2_000_000
        cursor.fail((seconds > limit) | (seconds < -limit))
        return fixed_array(self.type, seconds * 1_000_000 + nanos // 1000)


TIMESTAMP_TYPE = pa.timestamp("us", "UTC")
_INT32 = (-(1 << 31), (1 << 31) - 1)
_INT64 = (-(1 << 63), (1 << 63) - 1)


def moment() -> Moment:
    """The step of a google.protobuf.Timestamp."""
    seconds = Tagged(tag_of(1, 0), Varint(pa.int64(), *_INT64), 0)
    nanos = Tagged(tag_of(2, 0), Varint(pa.int32(), *_INT32), 0)
    return Moment(TIMESTAMP_TYPE, Message(pa.struct([]), (seconds, nanos), (0, 1), ()))


def scalar(kind: int, arrow: pa.DataType) -> tuple[int, Step]:
    """The wire type and the step of a scalar field's type, by its number in FieldDescriptorProto."""
    steps: dict[int, tuple[int, Step]] = {
        FieldDescriptorProto.TYPE_DOUBLE: (1, Fixed(arrow, 8)),
        FieldDescriptorProto.TYPE_FLOAT: (5, Fixed(arrow, 4)),
        FieldDescriptorProto.TYPE_INT64: (0, Varint(arrow, *_INT64)),
        FieldDescriptorProto.TYPE_SINT64: (0, Varint(arrow, *_INT64, zigzag=True)),
        FieldDescriptorProto.TYPE_SFIXED64: (1, Fixed(arrow, 8)),
        FieldDescriptorProto.TYPE_UINT64: (0, Unsigned(arrow, fixed=False)),
        FieldDescriptorProto.TYPE_FIXED64: (1, Unsigned(arrow, fixed=True)),
        FieldDescriptorProto.TYPE_INT32: (0, Varint(arrow, *_INT32)),
        FieldDescriptorProto.TYPE_SINT32: (0, Varint(arrow, *_INT32, zigzag=True)),
        FieldDescriptorProto.TYPE_SFIXED32: (5, Fixed(arrow, 4)),
        FieldDescriptorProto.TYPE_UINT32: (0, Varint(arrow, 0, (1 << 32) - 1)),
        FieldDescriptorProto.TYPE_FIXED32: (5, Fixed(arrow, 4)),
        FieldDescriptorProto.TYPE_BOOL: (0, Varint(arrow, 0, 1)),
        FieldDescriptorProto.TYPE_STRING: (2, Bytes(text=True)),
        FieldDescriptorProto.TYPE_BYTES: (2, Bytes(text=False)),
    }
    return steps[kind]


def tag_of(number: int, wire_type: int) -> bytes:
    """The bytes before a field's value."""
    left = number << 3 | wire_type
    tag = bytearray()
    while left > 0x7F:
        tag.append(left & 0x7F | 0x80)
        left >>= 7
    tag.append(left)
    return bytes(tag)
