"""Record batches to one Arrow record batch with the columns of Spark's Kafka connector.

A few steps over all batches of a chunk: open the compressed ones, find where records start, read the fields of all
records at once, copy keys, values and headers out. What comes out shares no memory with what went in.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.records.batch import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME, MAGIC, PREFIX_BYTES, Header
from penstock.records.compression import Codec, decompress
from penstock.records.record import MIN_RECORD_BYTES, RecordError
from penstock.spark.arrow.chain import record_starts
from penstock.spark.arrow.data import Data, Integers
from penstock.spark.arrow.fields import Fields, Headers, Spans, decode_fields

CANONICAL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER_TYPE)),
}
LARGEST_BYTES = (1 << 31) - 1
"""Arrow's offsets have 32 bits."""

_MOST_MS = ((1 << 63) - 1) // 1000


class Place(NamedTuple):
    """One whole batch in some data; its checksum is right and its records are for users to see."""

    position: int
    header: Header


class _Batches(NamedTuple):
    """Some batches, a number of each in each array."""

    positions: Integers
    sizes: Integers
    attributes: Integers
    base_offsets: Integers
    last_deltas: Integers
    base_timestamps: Integers
    max_timestamps: Integers
    counts: Integers

    def select(self, keep: NDArray[np.bool_]) -> "_Batches":
        return _Batches(*(column[keep] for column in self))


class _Rows(NamedTuple):
    fields: Fields
    offsets: Integers
    timestamps: Integers
    append_times: NDArray[np.bool_]


def decode(
    data: memoryview,
    places: Sequence[Place],
    wanted: Sequence[str],
    *,
    topic: str,
    partition: int,
    first: int,
    end: int,
    limit: int,
) -> pa.RecordBatch:
    """The rows with `first <= offset < end` of all the places, in order.

    A batch whose offsets all lie outside is not opened. A timestamp whose microseconds need more than 64 bits (some
    290,000 years from now or ago) is null; any other, negative ones included, is what the record says.

    Args:
        data: where the batches lie.
        places: the batches, in the order in which they lie; nothing is looked for between them.
        wanted: columns out of `CANONICAL`, which come in this order.
        topic: what the column `topic` says.
        partition: what the column `partition` says.
        first: the lowest offset wanted.
        end: the offset after the highest one wanted.
        limit: the most bytes each compressed batch may decompress to.

    Raises:
        RecordError: a batch reaches beyond the data, its records contradict its header, or there are more than 2 GiB.
        CompressionError: corrupt data, or more than `limit` bytes of it.
    """
    view = data.cast("B")
    if len(view) > LARGEST_BYTES:
        raise RecordError(f"{len(view)} bytes at once; decode at most {LARGEST_BYTES}, fewer batches at a time")
    batches = _check(len(view), places)
    batches = batches.select((batches.base_offsets < end) & (batches.base_offsets + batches.last_deltas >= first))
    view, starts, ends = _open(view, batches, limit)
    opened = Data(view)
    rows = _decode_rows(opened, starts, ends, batches)
    keep = (rows.offsets >= first) & (rows.offsets < end)
    if not keep.all():
        rows = _select(rows, keep)
    return pa.RecordBatch.from_arrays(
        [_column(name, opened, rows, topic, partition) for name in wanted],
        schema=pa.schema([(name, TYPES[name]) for name in wanted]),
    )


def _check(size: int, places: Sequence[Place]) -> _Batches:
    """The batches: inside the data, one after the other, and with offsets that can be."""
    positions = np.array([place.position for place in places], np.int64)
    table = np.array([place.header for place in places], np.int64).reshape(-1, len(Header._fields))
    columns = dict(zip(Header._fields, table.T, strict=True))
    sizes = columns["batch_length"] + PREFIX_BYTES
    base_offsets, last_deltas = columns["base_offset"], columns["last_offset_delta"]
    outside = (sizes < HEADER_BYTES) | (positions < 0) | (positions > size - sizes)
    overlapping = np.zeros(positions.size, np.bool_)
    overlapping[1:] = positions[1:] < (positions + sizes)[:-1]
    for wrong, why in (
        (columns["magic"] != MAGIC, f"is not of format {MAGIC}"),
        (outside, f"is not whole in data of {size} bytes"),
        (overlapping, "starts before the end of the one before it"),
        ((last_deltas < 0) | (base_offsets + last_deltas < base_offsets), "has a last offset delta that cannot be"),
    ):
        if wrong.any():
            raise RecordError(f"the batch at {positions[wrong][0]} {why}: {places[int(wrong.argmax())].header}")
    return _Batches(
        positions,
        sizes,
        columns["attributes"],
        base_offsets,
        last_deltas,
        columns["base_timestamp"],
        columns["max_timestamp"],
        columns["record_count"],
    )


def _open(data: memoryview, batches: _Batches, limit: int) -> tuple[memoryview, Integers, Integers]:
    """The sections of records: in the data itself, or side by side in a new one if any batch is compressed.

    Returns:
        The data that holds them, and where each section starts and ends in it.
    """
    starts, ends = batches.positions + HEADER_BYTES, batches.positions + batches.sizes
    codecs = batches.attributes & CODEC_MASK
    if not codecs.any():
        return data, starts, ends
    pieces: list[memoryview | bytes] = []
    total = 0
    for start, end, codec in zip(starts.tolist(), ends.tolist(), codecs.tolist(), strict=True):
        piece = data[start:end] if codec == Codec.NONE else decompress(codec, data[start:end], limit)
        pieces.append(piece)
        total += len(piece)
        if total > LARGEST_BYTES:
            raise RecordError(f"batches decompress to more than {LARGEST_BYTES} bytes; decode fewer at a time")
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    ends = np.cumsum(sizes)
    return memoryview(b"".join(pieces)), ends - sizes, ends


def _decode_rows(data: Data, starts: Integers, ends: Integers, batches: _Batches) -> _Rows:
    counts = batches.counts
    wrong = (counts < 0) | (counts > (ends - starts) // MIN_RECORD_BYTES) | ((counts == 0) & (starts != ends))
    if wrong.any():
        raise RecordError(f"{counts[wrong][0]} records in {(ends - starts)[wrong][0]} bytes")
    row_starts = record_starts(data, starts, ends, counts)
    last_rows = np.cumsum(counts)[counts > 0] - 1
    row_ends = np.roll(row_starts, -1)
    row_ends[last_rows] = ends[counts > 0]
    fields = decode_fields(data, row_starts, row_ends)
    _check_offsets(fields.offset_deltas, last_rows, batches)
    append_times = np.repeat(batches.attributes & LOG_APPEND_TIME != 0, counts)
    return _Rows(
        fields,
        fields.offset_deltas + np.repeat(batches.base_offsets, counts),
        _timestamps(fields.timestamp_deltas, append_times, batches),
        append_times,
    )


def _check_offsets(deltas: Integers, last_rows: Integers, batches: _Batches) -> None:
    """In each batch the first is not negative, each is above the one before, the last within what the batch says."""
    ascending = deltas[1:] > deltas[:-1]
    ascending[last_rows[:-1]] = deltas[last_rows[:-1] + 1] >= 0
    if (
        not ascending.all()
        or (deltas[:1] < 0).any()
        or (deltas[last_rows] > batches.last_deltas[batches.counts > 0]).any()
    ):
        raise RecordError("the offset deltas of a batch do not ascend, or lead beyond its last one")


def _timestamps(deltas: Integers, append_times: NDArray[np.bool_], batches: _Batches) -> Integers:
    bases = np.repeat(
        np.where(batches.attributes & LOG_APPEND_TIME, batches.max_timestamps, batches.base_timestamps), batches.counts
    )
    if append_times.any():
        deltas = np.where(append_times, 0, deltas)
    timestamps = bases + deltas
    if ((bases ^ timestamps) & (deltas ^ timestamps) < 0).any():
        raise RecordError("a timestamp does not fit in 64 bits")
    return timestamps


def _select(rows: _Rows, keep: NDArray[np.bool_]) -> _Rows:
    fields = rows.fields
    selected = Fields(
        fields.timestamp_deltas[keep],
        fields.offset_deltas[keep],
        fields.keys.select(keep),
        fields.values.select(keep),
        fields.headers.select(keep),
    )
    return _Rows(selected, rows.offsets[keep], rows.timestamps[keep], rows.append_times[keep])


def _column(name: str, data: Data, rows: _Rows, topic: str, partition: int) -> pa.Array:
    count = rows.offsets.size
    match name:
        case "key":
            return _copy(data, rows.fields.keys)
        case "value":
            return _copy(data, rows.fields.values)
        case "topic":
            if count * len(topic.encode()) > LARGEST_BYTES:
                raise RecordError(f"{count} times the name of topic {topic} is beyond 2 GiB; decode fewer at a time")
            return pa.repeat(pa.scalar(topic, pa.string()), count)
        case "partition":
            return pa.array(np.full(count, partition, np.int32))
        case "offset":
            return pa.array(rows.offsets)
        case "timestamp":
            return _microseconds(rows.timestamps)
        case "timestampType":
            return pa.array(rows.append_times.astype(np.int32))
        case "headers":
            return _header_lists(data, rows.fields.headers)
    raise ValueError(f"no column {name!r}; there are {', '.join(CANONICAL)}")


def _copy(data: Data, spans: Spans) -> pa.Array:
    """The spans as an array of their own.

    One array lies over all the data; its odd elements are the spans, its even ones what is between. A choice that
    empties the even ones leaves the spans' bytes side by side, and is faster than taking the odd ones.
    """
    count = spans.sizes.size
    present = spans.sizes >= 0
    if not present.any():
        return pa.nulls(count, pa.binary())
    bounds = np.zeros(2 * count + 1, np.int32)
    bounds[1::2] = spans.starts
    bounds[2::2] = spans.ends
    chosen = pc.if_else(
        pa.Array.from_buffers(pa.bool_(), 2 * count, [None, pa.py_buffer(b"\xaa" * (count // 4 + 1))]),
        pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data.view)]),
        pa.scalar(b"", pa.binary()),
    )
    _, chosen_bounds, piece = chosen.buffers()
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    bounds = np.frombuffer(chosen_bounds, np.int32)[: 2 * count + 1 : 2].copy()
    return pa.Array.from_buffers(pa.binary(), count, [validity, pa.py_buffer(bounds), piece])


def _microseconds(timestamps: Integers) -> pa.Array:
    mask = None
    if timestamps.size and not -_MOST_MS <= timestamps.min() <= timestamps.max() <= _MOST_MS:
        mask = (timestamps < -_MOST_MS) | (timestamps > _MOST_MS)
    return pa.array(timestamps * 1000, pa.int64(), mask=mask).view(TYPES["timestamp"])


def _header_lists(data: Data, headers: Headers) -> pa.Array:
    names = _copy(data, headers.names)
    try:
        keys = names.cast(pa.string())
    except pa.ArrowInvalid:  # as Kafka's own client does
        keys = pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
    pairs = pa.StructArray.from_arrays([keys, _copy(data, headers.values)], fields=list(HEADER_TYPE))
    bounds = np.zeros(headers.counts.size + 1, np.int32)
    np.cumsum(headers.counts, out=bounds[1:])
    none = pa.array(headers.counts == 0)  # null, as in Spark's connector
    return pa.ListArray.from_arrays(pa.array(bounds), pairs, type=TYPES["headers"], mask=none)
