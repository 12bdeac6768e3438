"""The single records inside a batch v2: encoding them, and iterating over them with every length checked.

A record is: length, attributes (one unused byte), timestamp delta, offset delta, key, value, headers; every
number is a zigzag varint and a length of -1 is null.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import Buffer

from penstock.records import varint
from penstock.records.batch import BATCH_HEADER, CODEC_MASK, LOG_APPEND_TIME, MAGIC, PREFIX_BYTES
from penstock.records.compression import Codec, decompress

MIN_RECORD_BYTES = 7  # seven one-byte fields
MIN_HEADER_BYTES = 2
# Two bytes on the wire become some hundred in memory; no application has this many, a bomb has millions.
MAX_HEADERS = 65_536

_MAX_I64 = (1 << 63) - 1
_MIN_I64 = -1 << 63

Headers = tuple[tuple[str, bytes | None], ...]


class RecordError(ValueError):
    """The bytes are not records: a length points outside, a count is impossible, something is left over."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record, its place and time relative to its batch."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def encode(
    out: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> None:
    """Append one record to `out`; key and value are copied once, into it."""
    number = varint.encode
    head = b"\x00" + number(timestamp_delta) + number(offset_delta)
    key_size = _NULL if key is None else number(len(key))
    value_size = _NULL if value is None else number(len(value))
    tail = _encode_headers(headers) if headers else _NO_HEADERS
    key, value = key or b"", value or b""
    out += number(len(head) + len(key_size) + len(key) + len(value_size) + len(value) + len(tail))
    out += head
    out += key_size
    out += key
    out += value_size
    out += value
    out += tail


def iterate(records_section: Buffer, count: int) -> Iterator[Record]:
    """The records of an uncompressed section, lazily; anything but `bytes` is copied once, whole.

    Args:
        records_section: what follows the 61-byte batch header, decompressed.
        count: how many records it must hold, no more and no fewer.

    Raises:
        RecordError: while iterating: a record is not whole, or bytes are left after the last.
    """
    return _iterate(records_section if isinstance(records_section, bytes) else bytes(records_section), 0, count)


def iterate_batch(batch: Buffer, limit: int) -> Iterator[tuple[int, int, Record]]:
    """Offset, timestamp and record of everything in one whole batch, lazily. The CRC is not looked at.

    Control batches are iterated too: whoever asks for records of users leaves them out beforehand.

    Args:
        batch: header and records, nothing after them.
        limit: the most bytes a compressed batch may decompress to.

    Raises:
        RecordError: while iterating: not one whole batch v2, or its records contradict its header.
        CompressionError: while iterating: corrupt data, or more than `limit` bytes of it.
    """
    view = memoryview(batch).cast("B")
    if len(view) < BATCH_HEADER.size:
        raise RecordError(f"{len(view)} bytes are fewer than a batch header")
    (
        base_offset,
        length,
        _,
        magic,
        _,
        attributes,
        last_delta,
        base_timestamp,
        max_timestamp,
        _,
        _,
        _,
        count,
    ) = BATCH_HEADER.unpack_from(view)
    if magic != MAGIC:
        raise RecordError(f"batch format {magic}, not {MAGIC}")
    if length != len(view) - PREFIX_BYTES:
        raise RecordError(f"batch says {length} bytes follow its length, but {len(view) - PREFIX_BYTES} do")
    if not 0 <= last_delta <= _MAX_I64 - base_offset:
        raise RecordError(f"last offset delta {last_delta} after base offset {base_offset}")
    codec = attributes & CODEC_MASK
    if codec != Codec.NONE:
        records = _iterate(decompress(codec, view[BATCH_HEADER.size :], limit), 0, count)
    else:
        records = _iterate(batch if isinstance(batch, bytes) else bytes(view), BATCH_HEADER.size, count)
    append_time = max_timestamp if attributes & LOG_APPEND_TIME else None
    previous = -1
    for record in records:
        delta = record.offset_delta
        if not previous < delta <= last_delta:
            raise RecordError(f"offset delta {delta} after {previous}, in a batch up to {last_delta}")
        previous = delta
        timestamp = append_time
        if timestamp is None:
            timestamp = base_timestamp + record.timestamp_delta
            if not _MIN_I64 <= timestamp <= _MAX_I64:
                raise RecordError(f"timestamp {timestamp} does not fit in 64 bits")
        yield base_offset + delta, timestamp, record


def _iterate(data: bytes, position: int, count: int) -> Iterator[Record]:
    end = len(data)
    if not 0 <= count <= (end - position) // MIN_RECORD_BYTES:
        raise RecordError(f"{count} records in {end - position} bytes")
    for _ in range(count):
        if position >= end:
            raise RecordError("fewer records than the batch says")
        size = data[position]
        if size < 0x80:
            size = size >> 1 ^ -(size & 1)
            position += 1
        else:
            size, position = _decode_size(data, position)
        stop = position + size
        if size < 0 or stop > end:
            raise RecordError(f"record of {size} bytes, but {end - position} are left")
        yield _decode(data, position, stop)
        position = stop
    if position != end:
        raise RecordError(f"{end - position} bytes after the last record")


def _decode_size(data: bytes, position: int) -> tuple[int, int]:
    try:
        return varint.decode_varint(data, position)
    except (IndexError, ValueError) as error:
        raise RecordError(f"record length: {error}") from error


def _decode(data: bytes, position: int, stop: int) -> Record:
    """The record whose fields fill `data[position:stop]`.

    The position only ever grows, so that it ends exactly at `stop` proves that no field reached beyond it.
    Until then a field may have read into the next record; past the end of `data` an index raises.
    """
    start = position
    try:
        position += 1  # attributes: no bit has a meaning yet, readers ignore them
        timestamp_delta = data[position]
        if timestamp_delta < 0x80:
            timestamp_delta = timestamp_delta >> 1 ^ -(timestamp_delta & 1)
            position += 1
        else:
            timestamp_delta, position = varint.decode_varlong(data, position)
        offset_delta = data[position]
        if offset_delta < 0x80:
            offset_delta = offset_delta >> 1 ^ -(offset_delta & 1)
            position += 1
        else:
            offset_delta, position = varint.decode_varint(data, position)
        # An even byte below 0x80 is a length of 0..63; null and longer ones go the general way.
        size = data[position]
        key: bytes | None
        if size & 0x81:
            key, position = _decode_nullable(data, position)
        else:
            position += 1 + (size >> 1)
            key = data[position - (size >> 1) : position]
        size = data[position]
        value: bytes | None
        if size & 0x81:
            value, position = _decode_nullable(data, position)
        else:
            position += 1 + (size >> 1)
            value = data[position - (size >> 1) : position]
        headers: Headers = ()
        if data[position]:
            headers, position = _decode_headers(data, position, stop)
        else:
            position += 1
    except IndexError:
        position = len(data) + 1
    except RecordError:
        raise
    except ValueError as error:
        raise RecordError(str(error)) from error
    if position != stop:
        raise RecordError(f"record of {stop - start} bytes, but its fields are of another size")
    return Record(offset_delta, timestamp_delta, key, value, headers)


def _decode_nullable(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = varint.decode_varint(data, position)
    if size < 0:
        if size != -1:
            raise RecordError(f"length of {size}")
        return None, position
    return data[position : position + size], position + size


def _decode_headers(data: bytes, position: int, stop: int) -> tuple[Headers, int]:
    count, position = varint.decode_varint(data, position)
    if not 0 <= count <= (stop - position) // MIN_HEADER_BYTES:
        raise RecordError(f"{count} headers in {stop - position} bytes")
    if count > MAX_HEADERS:
        raise RecordError(f"{count} headers are more than {MAX_HEADERS}")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _decode_nullable(data, position)
        if name is None:
            raise RecordError("header without a name")
        value, position = _decode_nullable(data, position)
        # Kafka's own client replaces what is not UTF-8; the record stays readable.
        headers.append((name.decode("utf-8", "replace"), value))
    return tuple(headers), position


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    out = bytearray(varint.encode(len(headers)))
    for name, value in headers:
        name_bytes = name.encode()
        out += varint.encode(len(name_bytes))
        out += name_bytes
        if value is None:
            out += _NULL
        else:
            out += varint.encode(len(value))
            out += value
    return bytes(out)


_NULL = varint.encode(-1)
_NO_HEADERS = varint.encode(0)
