"""Message bodies, driven by the schemas of `kio` (generated from Kafka's own definitions), bounded in memory.

`decode` gives a `Message` with the fields of that version; `encode` takes a mapping with the fields of any version and
writes those the version has. Times are plain milliseconds. kio's own reader is not used on what a peer sends: it
allocates an array by the count the peer claims, and a forged count ends the process (docs/adr/0004). Here a count is
checked against the bytes that are left and against a limit per request. kio's reader and writer are the oracle in
tests/property/test_messages.py.
"""

import importlib
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from functools import cache
from itertools import groupby
from struct import Struct, pack
from struct import error as StructError  # noqa: N812
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, cast, get_args, get_origin
from uuid import UUID

from penstock.net.session import PeerError
from penstock.protocols.kafka_wire import broker_words, penstock_verb
from penstock.protocols.kafka_wire.codec import encode_uvarint, read_uvarint

MAX_ELEMENTS = 20_000  # array elements in one request: twice the partitions of a broker, 15 to 40 ms of decoding
ELEMENTS_AT_ONCE = 500  # about a millisecond

Pause = Callable[[], Awaitable[None]]

_NUMBERS = {
    "int8": Struct(">b"),
    "int16": Struct(">h"),
    "uint16": Struct(">H"),
    "int32": Struct(">i"),
    "int64": Struct(">q"),
    "float64": Struct(">d"),
    "timedelta_i32": Struct(">i"),
    "timedelta_i64": Struct(">q"),
    "datetime_i64": Struct(">q"),
    "error_code": Struct(">h"),
}
_RUNNING = {kind: number.format[1:] for kind, number in _NUMBERS.items()} | {"bool": "?"}
_I16, _I32 = _NUMBERS["int16"], _NUMBERS["int32"]
_ZERO_UUID = UUID(int=0)


class Message:
    """Decoded fields as attributes; `get` for fields that only some versions have."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__ = values

    def __getattr__(self, name: str) -> Any:  # only reached when the field is missing
        raise AttributeError(f"this version has no field {name!r}")

    def get(self, name: str, default: Any = None) -> Any:
        return self.__dict__.get(name, default)

    def __repr__(self) -> str:
        return f"Message({self.__dict__!r})"


class Schema(NamedTuple):
    flexible: bool
    fields: tuple["Field", ...]
    tagged: dict[int, "Field"]
    parts: tuple["Run | Field", ...]
    """The fields, neighbouring numbers as one."""
    absent: dict[str, object]
    """Tagged fields as they are when they are not there."""
    is_deep: bool
    """Whether its elements may have many of their own."""
    row: Struct | None
    """All of it, if it is one run of numbers; where it is flexible, with the count of tagged fields behind."""


class Run(NamedTuple):
    """Numbers that follow one another: read and written at once, which is most of what a long array costs."""

    names: tuple[str, ...]
    defaults: tuple[object, ...]
    struct: Struct


class Field(NamedTuple):
    name: str
    kind: str
    """A kafka type, or "entity"."""
    array: bool
    nullable: bool
    default: object
    entity: Schema | None
    tag: int | None


@contextmanager
def _no_hypothesis() -> Iterator[None]:
    """kio registers test strategies, at half a second's cost, when hypothesis can be imported."""
    before = sys.modules.get("hypothesis", MISSING)
    if before is MISSING:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is MISSING:
            del sys.modules["hypothesis"]


@cache
def schema_of(api: str, version: int, direction: str) -> Schema:
    """The schema of `direction` ("request" or "response") of an API in one version."""
    if api == penstock_verb.API.name:
        return _compile(penstock_verb.SHAPES[direction])
    with _no_hypothesis():
        module = importlib.import_module(f"kio.schema.{api}.v{version}.{direction}")
    name = "".join(word.capitalize() for word in api.split("_")) + direction.capitalize()
    return _compile(getattr(module, name))


def element_of(schema: Schema, array: str) -> Schema:
    """The schema of the elements of an array field."""
    entity = next(field.entity for field in schema.fields if field.name == array)
    assert entity is not None
    return entity


@cache
def _compile(entity: type) -> Schema:
    flexible: bool = entity.__flexible__  # type: ignore[attr-defined]
    plain, tagged = [], {}
    for field in fields(entity):
        made = _compile_field(field)
        if made.tag is None:
            plain.append(made)
        else:
            tagged[made.tag] = made
    absent = {field.name: field.default for field in tagged.values()}
    parts = tuple(_parts(plain))
    row = None
    if len(parts) == 1 and isinstance(parts[0], Run) and not tagged:
        row = Struct(parts[0].struct.format + "B") if flexible else parts[0].struct
    if flexible and entity.__name__ in _WITH_WORD:
        tagged[broker_words.TAG] = _WORD
    is_deep = any(field.array and field.entity is not None for field in plain)
    return Schema(flexible, tuple(plain), tagged, parts, absent, is_deep, row)


def _parts(plain: list[Field]) -> Iterator[Run | Field]:
    for is_number, some in groupby(plain, key=lambda field: field.kind in _RUNNING and not field.array):
        if is_number:
            run = list(some)
            struct = Struct(">" + "".join(_RUNNING[field.kind] for field in run))
            yield Run(tuple(field.name for field in run), tuple(field.default for field in run), struct)
        else:
            yield from some


def _compile_field(field: Any) -> Field:
    kind, nullable, array = field.type, False, False
    if get_origin(kind) in (UnionType, Union):
        nullable = True
        kind = next(option for option in get_args(kind) if option is not NoneType)
    if get_origin(kind) is tuple:
        array = True
        kind = get_args(kind)[0]
        if get_origin(kind) in (UnionType, Union):
            kind = next(option for option in get_args(kind) if option is not NoneType)
    entity = _compile(cast(type, kind)) if is_dataclass(kind) else None
    name = "entity" if entity else field.metadata["kafka_type"]
    default = field.default
    if default is MISSING:
        default = () if array else _IMPLICIT.get(name)
    if isinstance(default, timedelta):
        default = int(default.total_seconds() * 1000)
    return Field(field.name, name, array, nullable, default, entity, field.metadata.get("tag"))


_WITH_WORD = (
    "AddPartitionsToTxnPartitionResult",
    "TxnOffsetCommitResponsePartition",
    "WritableTxnMarkerPartitionResult",
)
_WORD = Field("word", "string", array=False, nullable=False, default="", entity=None, tag=broker_words.TAG)
"""What brokers tell each other beside an error (`broker_words`), which kio's schemas do not know."""

_IMPLICIT: dict[str, object] = {
    "string": "",
    "bytes": b"",
    "bool": False,
    "uuid": _ZERO_UUID,
} | dict.fromkeys(_NUMBERS, 0)


# --- decoding


class _Reader:
    __slots__ = ("_at_once", "_data", "_elements", "_max_elements", "end", "position")

    def __init__(self, data: memoryview, position: int, max_elements: int) -> None:
        self._data = data
        self.position = position
        self.end = len(data)
        self._max_elements = self._elements = max_elements
        self._at_once = ELEMENTS_AT_ONCE

    def message(self, schema: Schema) -> Message:
        values: dict[str, Any] = {}
        for part in schema.parts:
            if isinstance(part, Run):
                values.update(zip(part.names, self._numbers(part.struct), strict=True))
            elif part.kind == "string" and not part.array:
                values[part.name] = self._string(part, schema.flexible)
            else:
                values[part.name] = self.field(part, schema.flexible)
        return self._ended(schema, values)

    async def message_in_steps(self, schema: Schema, pause: Pause) -> Message:
        values: dict[str, Any] = {}
        for part in schema.parts:
            if isinstance(part, Run):
                values.update(zip(part.names, self._numbers(part.struct), strict=True))
            elif part.array and part.kind not in _NUMBERS:
                values[part.name] = await self._array_in_steps(part, schema.flexible, pause)
            else:
                values[part.name] = self.field(part, schema.flexible)
        return self._ended(schema, values)

    async def _array_in_steps(self, field: Field, flexible: bool, pause: Pause) -> tuple[Any, ...] | None:
        left = self._array_size(field, flexible)
        if left is None:
            return None
        found: list[Any] = []
        is_deep = field.entity is not None and field.entity.is_deep
        while left:
            some = 1 if is_deep else min(left, self._at_once)
            if field.entity is None:
                found += [self._value(field, flexible) for _ in range(some)]
            elif is_deep:
                found.append(await self.message_in_steps(field.entity, pause))
            else:
                found += self._entities(field.entity, some)
            left -= some
            self._at_once -= some
            if self._at_once <= 0:
                self._at_once = ELEMENTS_AT_ONCE
                await pause()
        return tuple(found)

    def _ended(self, schema: Schema, values: dict[str, Any]) -> Message:
        """The message, when what may be behind its fields is read, too."""
        if schema.flexible:
            values |= schema.absent
            if self.position < self.end and not self._data[self.position]:
                self.position += 1  # none, as nearly always
            else:
                self._tags(schema, values)
        return Message(values)

    def _tags(self, schema: Schema, values: dict[str, Any]) -> None:
        for _ in range(self._count(self.uvarint())):
            tag, size = self.uvarint(), self.uvarint()
            stop = self.position + size
            if stop > self.end:
                raise PeerError("a tagged field reaches past the request")
            field = schema.tagged.get(tag)
            if field is not None:
                values[field.name] = self.field(field, True)
                if self.position > stop:
                    raise PeerError(f"tagged field {field.name} is longer than it says")
            self.position = stop

    def field(self, field: Field, flexible: bool) -> Any:
        if not field.array:
            return self._value(field, flexible)
        count = self._array_size(field, flexible)
        if count is None:
            return None
        if field.entity is not None:
            return self._entities(field.entity, count)
        if field.kind in _NUMBERS:
            return self._numbers(Struct(f">{count}{_RUNNING[field.kind]}"))
        return tuple([self._value(field, flexible) for _ in range(count)])

    def _array_size(self, field: Field, flexible: bool) -> int | None:
        count = self.uvarint() - 1 if flexible else self.number(_I32)
        if count < 0:
            if count == -1 and field.nullable:
                return None
            raise PeerError(f"field {field.name} has {count} elements")
        return self._count(count)

    def _entities(self, schema: Schema, count: int) -> tuple[Message, ...]:
        return self._rows(schema, count) or tuple([self.message(schema) for _ in range(count)])

    def _rows(self, schema: Schema, count: int) -> tuple[Message, ...]:
        """Elements that are nothing but numbers and have no tagged fields, all at once; none if they are not such."""
        if schema.row is None:
            return ()
        stop = self.position + count * schema.row.size
        if stop > self.end:
            return ()
        (run,) = schema.parts
        assert isinstance(run, Run)
        rows = list(schema.row.iter_unpack(self._data[self.position : stop]))
        if schema.flexible and any(row[-1] for row in rows):
            return ()
        self.position = stop
        return tuple([Message(dict(zip(run.names, row, strict=False))) for row in rows])

    def _count(self, count: int) -> int:
        if count > self.end - self.position:
            raise PeerError(f"{count} elements claimed, {self.end - self.position} bytes left")
        self._elements -= count
        if self._elements < 0:
            raise PeerError(f"more than {self._max_elements} elements in one message")
        return count

    def _value(self, field: Field, flexible: bool) -> Any:
        kind = field.kind
        number = _NUMBERS.get(kind)
        if number is not None:
            return self.number(number)
        if kind == "string":
            return self._string(field, flexible)
        if kind == "entity":
            assert field.entity is not None
            if field.nullable and not field.array and self.number(_NUMBERS["int8"]) < 0:
                return None
            return self.message(field.entity)
        if kind == "uuid":
            value = int.from_bytes(self.take(16), "big")
            return UUID(int=value) if value else _ZERO_UUID
        if kind == "bool":
            return self.take(1) != b"\0"
        assert kind in ("bytes", "records"), kind
        size = self.uvarint() - 1 if flexible else self.number(_I32)
        return self._sized(size, field)

    def _string(self, field: Field, flexible: bool) -> str | None:
        size = self.uvarint() - 1 if flexible else self.number(_I16)
        if size < 0:
            self._sized(size, field)
            return None
        stop = self.position + size
        if stop > self.end:
            raise PeerError(f"{size} bytes claimed, {self.end - self.position} left")
        try:
            text = str(self._data[self.position : stop], "utf-8")
        except UnicodeDecodeError:
            raise PeerError(f"field {field.name} is not UTF-8") from None
        self.position = stop
        return text

    def _sized(self, size: int, field: Field) -> bytes | None:
        if size >= 0:
            return self.take(size)
        if size == -1 and field.nullable:
            return None
        raise PeerError(f"field {field.name} has length {size}")

    def number(self, struct: Struct) -> Any:
        return self._numbers(struct)[0]

    def _numbers(self, struct: Struct) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from(self._data, self.position)
        except StructError:
            raise PeerError("the request ends inside a number") from None
        self.position += struct.size
        return values

    def uvarint(self) -> int:
        if self.position < self.end and (byte := self._data[self.position]) < 0x80:  # as nearly all are
            self.position += 1
            return byte
        value, self.position = read_uvarint(self._data, self.position)
        return value

    def take(self, size: int) -> bytes:
        stop = self.position + size
        if stop > self.end:
            raise PeerError(f"{size} bytes claimed, {self.end - self.position} left")
        data = bytes(self._data[self.position : stop])
        self.position = stop
        return data


def decode(schema: Schema, data: memoryview, position: int = 0, *, max_elements: int = MAX_ELEMENTS) -> Message:
    """A message body. Raises `PeerError`. Bytes behind the message are ignored, as Kafka does."""
    return _Reader(data, position, max_elements).message(schema)


async def decode_in_steps(schema: Schema, data: memoryview, pause: Pause) -> Message:
    """The same of a message with many elements, with pauses. The data has to stay: not the view a session is handed."""
    return await _Reader(data, 0, MAX_ELEMENTS).message_in_steps(schema, pause)


# --- encoding


def encode(schema: Schema, values: Mapping[str, Any]) -> bytes:
    """A message body from the fields of any version; missing ones get their default.

    An element of an array may be bytes that `element_of` that array encoded: a long answer is made piece by piece.
    """
    out = bytearray()
    _encode_message(out, schema, values)
    return bytes(out)


def _encode_message(out: bytearray, schema: Schema, values: Mapping[str, Any]) -> None:
    for part in schema.parts:
        if isinstance(part, Run):
            out += part.struct.pack(*map(values.get, part.names, part.defaults))
        else:
            _encode_field(out, part, values.get(part.name, part.default), schema.flexible)
    if not schema.flexible:
        return
    if not schema.tagged:
        out += b"\0"
        return
    present = [
        (tag, field)
        for tag, field in sorted(schema.tagged.items())
        if values.get(field.name, field.default) != field.default
    ]
    out += encode_uvarint(len(present))
    for tag, field in present:
        body = bytearray()
        _encode_field(body, field, values[field.name], True)
        out += encode_uvarint(tag) + encode_uvarint(len(body)) + body


def _encode_field(out: bytearray, field: Field, value: Any, flexible: bool) -> None:
    if not field.array:
        _encode_value(out, field, value, flexible)
        return
    if value is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
        return
    out += encode_uvarint(len(value) + 1) if flexible else _I32.pack(len(value))
    if field.kind in _NUMBERS:
        out += pack(f">{len(value)}{_RUNNING[field.kind]}", *value)
        return
    for element in value:
        _encode_value(out, field, element, flexible)


def _encode_value(out: bytearray, field: Field, value: Any, flexible: bool) -> None:
    kind = field.kind
    if kind == "entity":
        assert field.entity is not None
        if isinstance(value, bytes):  # encoded already
            out += value
            return
        if field.nullable and not field.array:
            out += b"\xff" if value is None else b"\x01"
            if value is None:
                return
        _encode_message(out, field.entity, value)
    elif kind == "uuid":
        out += (value or _ZERO_UUID).bytes
    elif kind in _RUNNING:
        out += pack(f">{_RUNNING[kind]}", value)
    elif value is None:
        out += b"\0" if flexible else (_I16.pack(-1) if kind == "string" else _I32.pack(-1))
    else:
        data = value.encode() if kind == "string" else value
        if flexible:
            out += encode_uvarint(len(data) + 1)
        else:
            out += (_I16 if kind == "string" else _I32).pack(len(data))
        out += data
