"""Avro, all values at once: for each field of the schema one step over every row, instead of every field for each row.

Takes all types but maps, whose keys may come twice. Rows that fail a step (broken ones, and rarer forms: decimals
beyond 64 bits, long arrays) are left to `avro`'s reader, so these steps must be right for what they take and need
not take all. Encodings: Avro specification, "Binary Encoding".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.spark.formats.scanning import MAX_ITEMS, Cursor, Mask, collect, fixed_array, list_array, scatter


class Step(Protocol):
    """Reads one value of each row."""

    def scan(self, cursor: Cursor) -> pa.Array:
        """An array with an element for each row of the cursor, which moves behind it."""


@dataclass(frozen=True, slots=True)
class Boolean:
    def scan(self, cursor: Cursor) -> pa.Array:
        found = cursor.byte()
        cursor.fail(found > 1)
        return pa.array(found == 1)


@dataclass(frozen=True, slots=True)
class Whole:
    """int, long, and the dates and times kept in them."""

    type: pa.DataType
    factor: int = 1

    def scan(self, cursor: Cursor) -> pa.Array:
        found = cursor.zigzag()
        if self.type.bit_width == 32:
            narrow = found.astype(np.int32)
            cursor.fail(narrow != found)
            return fixed_array(self.type, narrow)
        if self.factor != 1:
            limit = np.iinfo(np.int64).max // self.factor
            cursor.fail((found > limit) | (found < -limit))
            found = found * self.factor
        return fixed_array(self.type, found)


@dataclass(frozen=True, slots=True)
class Fraction:
    """float, double."""

    type: pa.DataType

    def scan(self, cursor: Cursor) -> pa.Array:
        return fixed_array(self.type, cursor.half() if self.type.bit_width == 32 else cursor.word())


@dataclass(frozen=True, slots=True)
class Bytes:
    """string, bytes; `size` for fixed."""

    text: bool = False
    size: int | None = None

    def scan(self, cursor: Cursor) -> pa.Array:
        lengths = cursor.zigzag() if self.size is None else np.full(len(cursor), self.size, np.int64)
        return cursor.texts(lengths) if self.text else cursor.slices(lengths)


@dataclass(frozen=True, slots=True)
class Symbol:
    """enum."""

    symbols: tuple[str, ...]

    def scan(self, cursor: Cursor) -> pa.Array:
        found = cursor.zigzag()
        bad = (found < 0) | (found >= len(self.symbols))
        cursor.fail(bad)
        return pa.array(self.symbols, pa.string()).take(pa.array(np.where(bad, 0, found)))


@dataclass(frozen=True, slots=True)
class Decimal:
    """decimal on bytes or fixed, up to 64 bits: a big-endian number in two's complement."""

    type: pa.DataType
    size: int | None = None

    def scan(self, cursor: Cursor) -> pa.Array:
        lengths = cursor.zigzag() if self.size is None else np.full(len(cursor), self.size, np.int64)
        bad = (lengths < 1) | (lengths > 8)
        lengths = np.where(bad, 1, lengths)
        heads = cursor.peek_word().byteswap().view(np.int64)
        cursor.skip(lengths)
        cursor.fail(bad)
        found = heads >> (64 - 8 * lengths)
        if self.type.precision < 19:
            limit = 10**self.type.precision
            cursor.fail((found >= limit) | (found <= -limit))
        return fixed_array(self.type, np.stack([found, found >> 63], axis=1))


@dataclass(frozen=True, slots=True)
class Nullable:
    """A union of null and one other type."""

    inner: Step
    null_branch: int

    def scan(self, cursor: Cursor) -> pa.Array:
        branches = cursor.byte()
        present: Mask = branches == 2 * (1 - self.null_branch)
        cursor.fail(~present & (branches != 2 * self.null_branch))
        if present.all():
            return self.inner.scan(cursor)
        chosen = cursor.select(present)
        found = self.inner.scan(chosen)
        cursor.merge(present, chosen)
        return scatter(found, present)


@dataclass(frozen=True, slots=True)
class Items:
    """array, in one block of a few elements."""

    type: pa.DataType
    item: Step

    def scan(self, cursor: Cursor) -> pa.Array:
        counts = cursor.zigzag()
        bad = (counts < 0) | (counts > MAX_ITEMS)
        cursor.fail(bad)
        counts = np.where(bad, 0, counts)
        items = collect(cursor, lambda _, number: counts > number, self.item.scan)
        filled = counts > 0
        if filled.any():
            ended = cursor.select(filled)
            ended.fail(ended.byte() != 0)
            cursor.merge(filled, ended)
        return list_array(self.type, items)


@dataclass(frozen=True, slots=True)
class Parts:
    """record."""

    type: pa.DataType
    steps: tuple[Step, ...]

    def scan(self, cursor: Cursor) -> pa.Array:
        return pa.StructArray.from_arrays([step.scan(cursor) for step in self.steps], fields=list(self.type))

    def scan_rows(self, cursor: Cursor) -> list[pa.Array]:
        """The fields in all rows, which must hold nothing else."""
        found = [step.scan(cursor) for step in self.steps]
        cursor.fail(cursor.left())
        return found
