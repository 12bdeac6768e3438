"""Arrow columns to record sections, and a section to a whole batch, with no object per record.

All numbers of all records (lengths, deltas, counts) are written side by side into one buffer; keys, values and headers
already lie side by side in theirs. `_weave` puts one buffer's pieces between another's, which is one pass in C++.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from numpy.typing import NDArray

from penstock.records import varint
from penstock.records.batch import BATCH_HEADER, HEADER_BYTES, MAGIC, PREFIX_BYTES, TRANSACTIONAL
from penstock.records.compression import Codec, compress
from penstock.records.record import MAX_HEADERS, MIN_RECORD_BYTES
from penstock.spark.arrow.data import Integers
from penstock.spark.arrow.decode import TYPES

Numbers = NDArray[np.int32]

_CRC = Struct(">I")
_CRC_AT = 17
_CRC_END = _CRC_AT + _CRC.size

_LARGEST_BYTES = (1 << 31) - 1
"""Arrow's offsets and a batch's length have 32 bits."""
_LARGEST_RECORD_BYTES = _LARGEST_BYTES - 2 * HEADER_BYTES

_WOVEN_BYTES = 4 << 20
"""Sections built in one go: enough rows to make numpy's calls cheap, few enough to stay in the processor's cache."""


class Section(NamedTuple):
    """The records of one batch, as they go behind its header."""

    body: bytes | memoryview
    count: int  # type: ignore[assignment]  # a tuple's own `count` is nothing anybody asks of a section
    base_timestamp: int
    max_timestamp: int
    codec: int


class _Pieces(NamedTuple):
    """Bytes that lie side by side: piece i is `data[bounds[i]:bounds[i + 1]]`."""

    data: pa.Buffer
    bounds: NDArray[np.int32]

    def rows(self, start: int, stop: int) -> "_Pieces":
        return _Pieces(self.data, self.bounds[start : stop + 1])


class _Column(NamedTuple):
    """What goes into each row's record: some bytes, and the number before them (their size, -1 for null; a count)."""

    pieces: _Pieces
    numbers: Numbers

    def rows(self, start: int, stop: int) -> "_Column":
        return _Column(self.pieces.rows(start, stop), self.numbers[start:stop])


def encode(
    keys: pa.Array | None,
    values: pa.Array,
    headers: pa.Array | None,
    timestamp_ms: int,
    *,
    codec: int,
    max_bytes: int,
) -> Iterator[Section]:
    """The rows as sections of records, in order; nothing is built before it is asked for.

    Args:
        keys: `binary`; None and null are records without a key.
        values: `binary`; null is a record without a value.
        headers: `list<struct<key: string, value: binary>>`; None and null are records without headers.
        timestamp_ms: the time of every record.
        codec: one of `penstock.records.compression.Codec`.
        max_bytes: the most bytes of a batch before compression, its header included; a larger record comes alone.

    Raises:
        ValueError: a header without a name, a record with more headers than can be read back, no such codec.
        TypeError: columns of another type or length.
    """
    count = len(values)
    columns = (
        _bytes_column(pa.nulls(count, pa.binary()) if keys is None else keys, count, "keys"),
        _bytes_column(values, count, "values"),
        _header_column(pa.nulls(count, TYPES["headers"]) if headers is None else headers, count),
    )
    body_bytes = _body_bytes(columns)
    ends = np.cumsum(_most_bytes(body_bytes, max_bytes))
    for cuts in _groups(ends, min(max_bytes - HEADER_BYTES, _LARGEST_RECORD_BYTES)):
        start, stop = cuts[0], cuts[-1]
        firsts = np.array(cuts, np.int64) - start
        woven, starts = _weave_records(firsts, body_bytes[start:stop], [column.rows(start, stop) for column in columns])
        view = memoryview(woven)
        for first, last in pairwise(firsts.tolist()):
            body: bytes | memoryview = view[starts[first] : starts[last]]
            if codec != Codec.NONE:
                body = compress(codec, body)
            yield Section(body, last - first, timestamp_ms, timestamp_ms, codec)


def seal(section: Section, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> bytes:
    """The whole batch with its checksum; its base offset is 0, which the broker replaces."""
    header = bytearray(HEADER_BYTES)
    BATCH_HEADER.pack_into(
        header,
        0,
        0,
        HEADER_BYTES - PREFIX_BYTES + len(section.body),
        -1,
        MAGIC,
        0,
        section.codec | (TRANSACTIONAL if transactional else 0),
        section.count - 1,
        section.base_timestamp,
        section.max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        section.count,
    )
    _CRC.pack_into(header, _CRC_AT, crc32c(section.body, crc32c(memoryview(header)[_CRC_END:])))
    return b"".join((header, section.body))


def _bytes_column(array: pa.Array, count: int, name: str) -> _Column:
    if len(array) != count or array.type != pa.binary():
        raise TypeError(f"{name}: {len(array)} of type {array.type}, not {count} of type binary")
    null = np.asarray(array.is_null()) if array.null_count else None
    pieces = _pieces(array)
    sizes = np.diff(pieces.bounds)
    if null is not None:
        if sizes[null].any():  # Arrow lets a null have bytes of its own
            pieces = _pieces(array.fill_null(b""))
        sizes[null] = -1
    return _Column(pieces, sizes)


def _pieces(array: pa.Array) -> _Pieces:
    _, bounds, data = array.buffers()
    if bounds is None or not len(array):
        return _Pieces(_NO_BYTES, np.zeros(len(array) + 1, np.int32))
    return _Pieces(data or _NO_BYTES, np.frombuffer(bounds, np.int32)[array.offset : array.offset + len(array) + 1])


def _header_column(array: pa.Array, count: int) -> _Column:
    """All headers of a row as one piece, and their number."""
    if len(array) != count or not _holds_headers(array.type):
        raise TypeError(f"headers: {len(array)} of type {array.type}, not {count} of type {TYPES['headers']}")
    counts = np.asarray(array.value_lengths().fill_null(0))
    if not counts.any():
        return _Column(_Pieces(_NO_BYTES, np.zeros(count + 1, np.int32)), counts)
    if counts.max() > MAX_HEADERS:
        raise ValueError(f"row {counts.argmax()} has {counts.max()} headers; a record may have {MAX_HEADERS}")
    flat = array.flatten()
    names, values = flat.flatten()
    if names.null_count:
        row = np.searchsorted(np.cumsum(counts), np.flatnonzero(np.asarray(names.is_null()))[0], "right")
        raise ValueError(f"row {row} has a header without a name; give it a key, or leave it out")
    name_column = _bytes_column(names.cast(pa.binary()), len(flat), "header names")
    value_column = _bytes_column(values, len(flat), "header values")
    data, starts = _weave_rows([], [name_column, value_column])
    firsts = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    return _Column(_Pieces(data, starts[firsts].astype(np.int32)), counts)


def _holds_headers(kind: pa.DataType) -> bool:
    """Whether it is a list of names and values; which of them may be null does not matter."""
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    return [(field.name, field.type) for field in kind.value_type] == [("key", pa.string()), ("value", pa.binary())]


def _body_bytes(columns: Sequence[_Column]) -> Integers:
    """What keys, values and headers take in each record, with the numbers before them."""
    sizes = np.zeros(columns[0].numbers.size, np.int64)
    for pieces, numbers in columns:
        sizes += np.diff(pieces.bounds)
        sizes += _widths(_zigzag(numbers))
    return sizes


def _most_bytes(body_bytes: Integers, max_bytes: int) -> Integers:
    """What each record takes at most: how long its offset is depends on where in its section it will be."""
    sizes = body_bytes + (2 + len(varint.encode(max(max_bytes, 0) // MIN_RECORD_BYTES)))
    if sizes.max(initial=0) > _LARGEST_RECORD_BYTES:
        raise ValueError(f"row {sizes.argmax()} makes a record of {sizes.max()} bytes; a batch holds 2 GiB at most")
    sizes += _widths(_zigzag(sizes.astype(np.int32)))
    return sizes


def _groups(ends: Integers, room_bytes: int) -> Iterator[list[int]]:
    """The rows at which sections start, as many sections at a time as are built at once, and the row after them.

    Args:
        ends: the bytes of all records up to and with each row's.
        room_bytes: what a section has for its records.
    """
    cuts = [0]
    before = group_before = 0
    while (start := cuts[-1]) < ends.size:
        stop = max(int(np.searchsorted(ends, before + room_bytes, "right")), start + 1)
        after = int(ends[stop - 1])
        if len(cuts) > 1 and after - group_before > _WOVEN_BYTES:
            yield cuts
            cuts, group_before = [start], before
        cuts.append(stop)
        before = after
    if len(cuts) > 1:
        yield cuts


def _weave_records(firsts: Integers, body_bytes: Integers, columns: Sequence[_Column]) -> tuple[pa.Buffer, Integers]:
    """Records of the sections that start at the rows `firsts`, the last of which is the number of rows."""
    offset_deltas = np.arange(firsts[-1], dtype=np.int32)
    offset_deltas -= np.repeat(firsts[:-1].astype(np.int32), np.diff(firsts))
    lengths = body_bytes.astype(np.int32) + 2
    lengths += _widths(_zigzag(offset_deltas))
    zeros = np.zeros(offset_deltas.size, np.int32)  # attributes; timestamp deltas, as all records have the batch's time
    return _weave_rows([lengths, zeros, zeros, offset_deltas], columns)


def _weave_rows(heads: Sequence[Numbers], columns: Sequence[_Column]) -> tuple[pa.Buffer, Integers]:
    """For each row its heads, then for each column its number and its bytes.

    Returns:
        All rows side by side, and where each starts and the last one ends.
    """
    numbers = [*heads, *(column.numbers for column in columns)]
    data, ends = _lay_numbers(numbers)
    cuts = ends[len(heads) :]
    starts = np.append(0, ends[-1])
    for at, (pieces, _) in enumerate(columns):
        inserted = pieces.bounds - pieces.bounds[0]
        if not inserted[-1]:
            continue
        if starts[-1] + inserted[-1] > _LARGEST_BYTES:
            raise ValueError(f"{inserted.size - 1} rows or headers at once have more than 2 GiB; encode fewer")
        bounds = np.concatenate(([0], cuts[at], starts[-1:]))
        data = _weave(_Pieces(data, bounds.astype(np.int32)), pieces)
        starts += inserted
        for cut in cuts[at + 1 :]:
            cut += inserted[1:]
    return data, starts


def _lay_numbers(numbers: Sequence[Numbers]) -> tuple[pa.Buffer, list[Integers]]:
    """The n-th number of each list as varints side by side, row after row; and where in each row each number ends.

    Every number gets as many bytes as the longest of its list needs, in a table; what a shorter one leaves unused is
    not taken out of it.
    """
    raws = [_zigzag(number) for number in numbers]
    widths = [_widths(raw) for raw in raws]
    ends = list(accumulate(widths, np.add))
    places = [(raw, width, at) for raw, width in zip(raws, widths, strict=True) for at in range(int(width.max()))]
    table = np.empty((raws[0].size, len(places)), np.uint8)
    used = np.empty(table.shape, np.bool_)
    for place, (raw, width, at) in enumerate(places):
        byte = (raw >> 7 * at).astype(np.uint8)
        more = width > at + 1
        table[:, place] = byte & 0x7F | more.view(np.uint8) << 7
        used[:, place] = width > at
    after = np.cumsum(ends[-1], dtype=np.int64)
    before = after - ends[-1]
    return pa.py_buffer(np.compress(used.reshape(-1), table.reshape(-1))), [before + end for end in ends]


def _zigzag(numbers: Numbers) -> NDArray[np.uint32]:
    return (numbers << 1 ^ numbers >> 31).view(np.uint32)


def _widths(raw: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Bytes of each as a varint."""
    widths = np.ones(raw.size, np.uint8)
    largest = int(raw.max(initial=0))
    for shift in range(7, largest.bit_length(), 7):
        widths += raw >= 1 << shift
    return widths


def _weave(outer: _Pieces, inner: _Pieces) -> pa.Buffer:
    """outer[0] inner[0] outer[1] inner[1] … outer[n].

    Two arrays of the same length, each with empty elements where the other has pieces, and one choice between them.
    """
    count = inner.bounds.size * 2 - 1
    choice = pa.py_buffer(b"\x55" * (count // 8 + 1))
    chosen = pc.if_else(
        pa.Array.from_buffers(pa.bool_(), count, [None, choice]),
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(np.repeat(outer.bounds, 2)[1:-1]), outer.data]),
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(np.repeat(inner.bounds, 2)), inner.data]),
    )
    return chosen.buffers()[2]


_NO_BYTES = pa.py_buffer(b"")
