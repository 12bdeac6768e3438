"""The fields of many records at once: numpy reads a field of every record before the next field.

Positions only ever grow, so that a record's fields end exactly where the record does proves that none of them reached
beyond it. Until then a field may have been read from the next record, or as zeros after the end of the data.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.records import varint
from penstock.records.record import MAX_HEADERS, RecordError
from penstock.spark.arrow.data import Data, Integers

_BLOCK = 8192
"""Records at a time: numpy's calls cost little by the record, and what they write stays in the processor's cache."""
_FEW = 32
"""Below this many records, a header of each is read faster by Python than by numpy."""

_U64 = np.uint64
_MORE = _U64(0x8080808080808080)
_FOUR_BYTES, _FIVE_BYTES = 1 << 31, 1 << 39
"""The bit whose absence in a word's byte ends an integer of that many bytes."""


class Spans(NamedTuple):
    """Pieces of the data; a size of -1 is null."""

    starts: Integers
    sizes: Integers

    @property
    def ends(self) -> Integers:
        return self.starts + np.maximum(self.sizes, 0)

    def select(self, keep: NDArray[np.bool_]) -> "Spans":
        return Spans(self.starts[keep], self.sizes[keep])


class Headers(NamedTuple):
    """How many each record has, and the names and values of all, record after record."""

    counts: Integers
    names: Spans
    values: Spans

    def select(self, keep: NDArray[np.bool_]) -> "Headers":
        kept = np.repeat(keep, self.counts)
        return Headers(self.counts[keep], self.names.select(kept), self.values.select(kept))


class Fields(NamedTuple):
    timestamp_deltas: Integers
    offset_deltas: Integers
    keys: Spans
    values: Spans
    headers: Headers


def decode_fields(data: Data, starts: Integers, ends: Integers) -> Fields:
    """The fields of the records that lie in `data` between `starts` and `ends`, lengths included.

    Raises:
        RecordError: a number or length is not one, or the fields do not fill their record.
    """
    blocks = [
        _decode_block(data, starts[first : first + _BLOCK], ends[first : first + _BLOCK])
        for first in range(0, max(starts.size, 1), _BLOCK)
    ]
    if len(blocks) == 1:
        return blocks[0]
    timestamp_deltas, offset_deltas, keys, values, headers = zip(*blocks, strict=True)
    counts, names, header_values = zip(*headers, strict=True)
    return Fields(
        np.concatenate(timestamp_deltas),
        np.concatenate(offset_deltas),
        _join(keys),
        _join(values),
        Headers(np.concatenate(counts), _join(names), _join(header_values)),
    )


def _join(parts: Sequence[Spans]) -> Spans:
    starts, sizes = zip(*parts, strict=True)
    return Spans(np.concatenate(starts), np.concatenate(sizes))


def _decode_block(data: Data, starts: Integers, ends: Integers) -> Fields:
    sizes, at = decode_varints(data, starts, 32)
    if (at + sizes != ends).any():
        raise RecordError("a record's length leads elsewhere than to the next record")
    timestamp_deltas, at = decode_varints(data, at + 1, 64)
    offset_deltas, at = decode_varints(data, at, 32)
    keys, at = _decode_spans(data, at)
    values, at = _decode_spans(data, at)
    headers, at = _decode_headers(data, at, ends)
    if (at != ends).any():
        raise RecordError("a record's fields are of another size than the record")
    return Fields(timestamp_deltas, offset_deltas, keys, values, headers)


def decode_varints(data: Data, at: Integers, bits: int) -> tuple[Integers, Integers]:
    """The zigzag integers of 32 or 64 bits at these positions.

    Returns:
        The values, and the positions after them.

    Raises:
        RecordError: one is longer than its number of bits allows, or starts beyond the end of the data.
    """
    if not at.size:
        return at, at
    small = data.small(at)
    if small is not None:
        return ((small >> 1).view(np.int8) ^ -(small & 1).view(np.int8)).astype(np.int64), at + 1
    word = data.words(at)
    last = ~word & _MORE
    last &= ~last + _U64(1)  # the lowest bit, which is in the byte that ends the integer
    if not last.all():
        return _decode_long(data, at, bits, last == 0)
    below = last - _U64(1)
    after = at + 1
    after += np.bitwise_count(below) >> 3
    word &= below
    raw = word & _U64(0x7F)
    longest = int(last.max())
    for group in range(1, longest.bit_length() // 8):
        raw |= word >> _U64(group) & _U64(0x7F << 7 * group)
    if bits == 32 and longest > _FOUR_BYTES and (longest > _FIVE_BYTES or int(raw.max()) >> 32):
        raise RecordError("variable-length integer does not fit in 32 bits")
    return (raw >> _U64(1)).view(np.int64) ^ -(raw & _U64(1)).view(np.int64), after


def _decode_long(data: Data, at: Integers, bits: int, long: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """As `decode_varints`, where some integers have more than eight bytes."""
    if bits == 32:
        raise RecordError("variable-length integer is longer than 5 bytes")
    values, after = at.copy(), at.copy()
    values[~long], after[~long] = decode_varints(data, at[~long], bits)
    for row in np.flatnonzero(long).tolist():
        position = int(at[row])
        piece = bytes(data.view[position : position + varint.MAX_VARLONG_BYTES])
        try:
            values[row], size = varint.decode_varlong(piece, 0)
        except (IndexError, ValueError) as error:
            raise RecordError(f"a record's timestamp: {error}") from error
        after[row] += size
    return values, after


def _decode_spans(data: Data, at: Integers) -> tuple[Spans, Integers]:
    sizes, at = decode_varints(data, at, 32)
    if sizes.size and sizes.min() < -1:
        raise RecordError(f"length of {sizes.min()}")
    spans = Spans(at, sizes)
    return spans, spans.ends


def _decode_headers(data: Data, at: Integers, ends: Integers) -> tuple[Headers, Integers]:
    """The headers of all records, and the positions after them."""
    counts, at = decode_varints(data, at, 32)
    if not counts.any():
        return Headers(counts, Spans(_NONE, _NONE), Spans(_NONE, _NONE)), at
    if ((counts < 0) | (2 * counts > ends - at)).any():  # a header has two lengths
        raise RecordError("a record has more headers than bytes for them")
    if counts.max() > MAX_HEADERS:
        raise RecordError(f"{counts.max()} headers are more than {MAX_HEADERS}")
    slots = np.cumsum(counts) - counts
    found = np.empty((4, int(counts.sum())), np.int64)
    names, values = Spans(*found[:2]), Spans(*found[2:])
    rows, done = np.flatnonzero(counts), 0
    while rows.size >= _FEW:
        slot = slots[rows] + done
        (names.starts[slot], names.sizes[slot]), after = _decode_spans(data, at[rows])
        (values.starts[slot], values.sizes[slot]), at[rows] = _decode_spans(data, after)
        done += 1
        rows = rows[counts[rows] > done]
    for row in rows.tolist():
        first, stop = int(slots[row]) + done, int(slots[row] + counts[row])
        found[:, first:stop], at[row] = _walk_headers(data, int(at[row]), int(ends[row]), stop - first)
    if names.sizes.min() < 0:
        raise RecordError("header without a name")
    return Headers(counts, names, values), at


def _walk_headers(data: Data, start: int, end: int, count: int) -> tuple[Integers, int]:
    """Starts and sizes of names and of values of some headers of one record, and the position after them."""
    record = bytes(data.view[start:end])
    found = array("q")
    position = 0
    try:
        for _ in range(2 * count):
            size, position = varint.decode_varint(record, position)
            if size < -1:
                raise RecordError(f"length of {size}")
            found.extend((start + position, size))
            position += max(size, 0)
    except RecordError:
        raise
    except (IndexError, ValueError) as error:
        raise RecordError(f"a record's headers: {error}") from error
    return np.frombuffer(found, np.int64).reshape(-1, 4).T, start + position


_NONE = np.zeros(0, np.int64)
