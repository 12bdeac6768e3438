"""Numbers and slices read at many places of a buffer at once.

A `Cursor` holds, for each of many rows, where its next byte is. One step moves all rows: read a number, skip a
slice. A row that would leave its own bytes, or holds something the step does not take, fails: it is marked, stands
at its end from then on, and what the step returns for it means nothing. The rows that fail are for a slower and
more patient reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.spark.formats.arrays import error_texts, spread
from penstock.spark.formats.fields import Decoded

PAD = 16
"""Zero bytes behind the data: a word may be read at any place up to the end."""

MAX_ITEMS = 64
"""Elements of one list: each is a step over all rows that have it, and a longer list would make every row wait."""

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_TOP_BITS = np.uint64(0x8080808080808080)
_SQUEEZE = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
"""Takes the top bit out of each byte of a word, two bytes, four and eight at a time."""


class Buffer:
    """The bytes of all rows, in order, and which rows have failed."""

    def __init__(self, values: pa.BinaryArray) -> None:
        """`values` has no nulls."""
        _, offsets, data = values.buffers()
        edges = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
        size = int(edges[-1] - edges[0])
        self.bytes = np.zeros(size + PAD, np.uint8)
        if size:
            self.bytes[:size] = np.frombuffer(data, np.uint8, size, int(edges[0]))
        self.words: Words = np.ndarray((size + PAD - 7,), np.dtype("<u8"), self.bytes, strides=(1,))
        self.halves: npt.NDArray[np.uint32] = np.ndarray((size + PAD - 3,), np.dtype("<u4"), self.bytes, strides=(1,))
        self.arrow = pa.py_buffer(self.bytes)
        edges -= edges[0]
        self.starts, self.ends = edges[:-1], edges[1:]
        self.failed: Mask = np.zeros(len(values), np.bool_)

    def cursor(self) -> Cursor:
        """All rows, each at its beginning."""
        return Cursor(self, np.arange(len(self.ends)), self.starts.copy(), self.ends)


class Cursor:
    """Some rows of a buffer, in order, each at a place within its bytes."""

    def __init__(self, buffer: Buffer, rows: Ints, at: Ints, ends: Ints) -> None:
        self._buffer = buffer
        self._rows = rows
        self.at = at
        self.ends = ends

    def __len__(self) -> int:
        return len(self._rows)

    def select(self, chosen: Mask) -> Cursor:
        """The chosen rows on their own; `merge` brings them back."""
        return Cursor(self._buffer, self._rows[chosen], self.at[chosen], self.ends[chosen])

    def within(self, lengths: Ints) -> Cursor:
        """The same rows, confined to the next `lengths` bytes each; `at` goes on from where the result ends up."""
        bad = (lengths < 0) | (lengths > self.ends - self.at)
        if bad.any():
            lengths = np.where(bad, 0, lengths)
            self.fail(bad)
        return Cursor(self._buffer, self._rows, self.at.copy(), self.at + lengths)

    def begins(self, tag: bytes) -> Mask:
        """Which rows have these bytes (at most eight) next; those move behind them."""
        size = len(tag)
        mask = np.uint64((1 << (8 * size)) - 1)
        found: Mask = (self._buffer.words[self.at] & mask) == np.uint64(int.from_bytes(tag, "little"))
        found &= self.ends - self.at >= size
        self.at = self.at + found * size
        return found

    def left(self) -> Mask:
        """Which rows have bytes left."""
        return self.at < self.ends

    def merge(self, chosen: Mask, moved: Cursor) -> None:
        """Puts the chosen rows where they moved to."""
        self.at[chosen] = moved.at

    def fail(self, bad: Mask) -> None:
        """Gives up the rows in `bad`."""
        if bad.any():
            self._buffer.failed[self._rows[bad]] = True
            self.at[bad] = self.ends[bad]

    def _move(self, distance: Ints | int) -> None:
        self.at = self.at + distance
        self.fail(self.at > self.ends)

    def byte(self) -> npt.NDArray[np.uint8]:
        """The next byte of each row."""
        found = self._buffer.bytes[self.at]
        self._move(1)
        return found

    def word(self) -> Words:
        """The next eight bytes of each row, least first."""
        found = self._buffer.words[self.at]
        self._move(8)
        return found

    def peek_word(self) -> Words:
        """Eight bytes at each row's place, those of the next rows behind its own."""
        return self._buffer.words[self.at]

    def skip(self, lengths: Ints) -> None:
        """Moves on; a row without so many bytes left fails."""
        self._move(lengths)

    def half(self) -> npt.NDArray[np.uint32]:
        """The next four bytes of each row, least first."""
        found = self._buffer.halves[self.at]
        self._move(4)
        return found

    def varint(self) -> Words:
        """A number of 1 to 10 bytes, seven bits in each, least first; what is longer fails."""
        first = self._buffer.bytes[self.at]
        if not (first & 0x80).any():
            self._move(1)
            return first.astype(np.uint64)
        words = self._buffer.words[self.at]
        stops = ~words & _TOP_BITS
        below = (stops & (~stops + np.uint64(1))) - np.uint64(1)
        sizes = (np.bitwise_count(below) >> 3).astype(np.int64) + 1
        numbers = words & below & ~_TOP_BITS
        for low, high, shift in _SQUEEZE:
            numbers = (numbers & low) | ((numbers & high) >> shift)
        long = stops == 0
        if long.any():
            self._finish_long(numbers, sizes, long)
        self._move(sizes)
        return numbers

    def _finish_long(self, numbers: Words, sizes: Ints, long: Mask) -> None:
        at = self.at[long]
        ninth, tenth = (
            self._buffer.bytes[np.minimum(at + n, len(self._buffer.bytes) - 1)].astype(np.uint64) for n in (8, 9)
        )
        ten = ninth >= 0x80
        numbers[long] |= ((ninth & np.uint64(0x7F)) << np.uint64(56)) | np.where(
            ten, tenth << np.uint64(63), np.uint64(0)
        )
        sizes[long] = np.where(ten, 10, 9)
        too_long = np.zeros(len(self), np.bool_)
        too_long[long] = ten & (tenth > 1)
        # A size no row has bytes for: `_move` fails these with the rest.
        sizes[too_long] = np.iinfo(np.int32).max

    def zigzag(self) -> Ints:
        """A signed number: 0, -1, 1, -2, ... by its varint."""
        numbers = self.varint()
        return (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)

    def slices(self, lengths: Ints) -> pa.BinaryArray:
        """The next `lengths` bytes of each row; a negative length, or one beyond the row, fails."""
        bad = (lengths < 0) | (lengths > self.ends - self.at)
        if bad.any():
            lengths = np.where(bad, 0, lengths)
            self.fail(bad)
        # Every second slice of the buffer is a row's, the others are what lies between: `take` copies the former.
        edges = np.empty(2 * len(self), np.int32)
        edges[0::2] = self.at
        edges[1::2] = self.at + lengths
        self.at = self.at + lengths
        if not len(self):
            return pa.array([], pa.binary())
        both = pa.Array.from_buffers(pa.binary(), 2 * len(self) - 1, [None, pa.py_buffer(edges), self._buffer.arrow])
        return both.take(pa.array(np.arange(0, 2 * len(self), 2)))

    def texts(self, lengths: Ints) -> pa.StringArray:
        """Slices that must be UTF-8; others fail."""
        found = self.slices(lengths)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            valid = np.fromiter((_is_text(value) for value in found.to_pylist()), np.bool_, len(found))
        self.fail(~valid)
        return pa.array([value if good else b"" for value, good in zip(found.to_pylist(), valid, strict=True)]).cast(
            pa.string()
        )


class Items(NamedTuple):
    """The elements of all rows' lists, row by row, and how many each has."""

    values: pa.Array
    counts: Ints


def collect(cursor: Cursor, more: Callable[[Cursor, int], Mask], scan: Callable[[Cursor], pa.Array]) -> Items:
    """Lists, element by element.

    Args:
        cursor: where the lists' elements begin; moves behind them.
        more: which rows have an element of that number next.
        scan: reads one.
    """
    counts = np.zeros(len(cursor), np.int64)
    found: list[pa.Array] = []
    owners: list[Ints] = []
    for number in range(MAX_ITEMS):
        chosen = more(cursor, number)
        if not chosen.any():
            break
        some = cursor.select(chosen)
        found.append(scan(some))
        cursor.merge(chosen, some)
        owners.append(np.flatnonzero(chosen))
        counts += chosen
    if not found:
        return Items(scan(cursor.select(np.zeros(len(cursor), np.bool_))), counts)
    order = np.argsort(np.concatenate(owners), kind="stable")
    return Items(pa.concat_arrays(found).take(pa.array(order)), counts)


def list_array(kind: pa.DataType, items: Items) -> pa.ListArray:
    """One list for each row."""
    edges = np.zeros(len(items.counts) + 1, np.int32)
    np.cumsum(items.counts, out=edges[1:])
    return pa.ListArray.from_arrays(pa.array(edges), items.values, type=kind)


def scatter(found: pa.Array, present: Mask) -> pa.Array:
    """Elements at the rows that are present, null at the others."""
    return found.take(pa.array(np.maximum(np.cumsum(present) - 1, 0), mask=~present))


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def fixed_array(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    """Numbers whose memory is already what the type wants."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def decode_quickly(
    values: pa.BinaryArray, scan: Callable[[Cursor], list[pa.Array]], decode_slowly: Callable[[pa.BinaryArray], Decoded]
) -> Decoded:
    """All values by `scan`, but those that fail it by `decode_slowly`, put together in their order."""
    here = np.flatnonzero(values.is_valid())
    buffer = Buffer(values if len(here) == len(values) else values.take(pa.array(here)))
    found = scan(buffer.cursor())
    failed = buffer.failed
    if not failed.any():
        return spread(found, here, len(values)), error_texts({}, len(values))
    left = here[failed]
    slow, errors = decode_slowly(values.take(pa.array(left)))
    both = [pa.concat_arrays([quick.filter(pa.array(~failed)), rest]) for quick, rest in zip(found, slow, strict=True)]
    reasons = {int(place): text for place, text in zip(left, errors.to_pylist(), strict=True) if text is not None}
    return spread(both, np.concatenate([here[~failed], left]), len(values)), error_texts(reasons, len(values))
