"""Where single records lie in a batch, so that those which stay are copied as bytes and never encoded again.

`records.record` gives records as values; names of headers that are not UTF-8 do not survive that.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.records.record import MIN_RECORD_BYTES, RecordError
from penstock.records.varint import decode_varint, decode_varlong
from penstock.storage.compaction.pace import STEP_RECORDS


class Span(NamedTuple):
    """One record in a section: its length at `start`, attributes at `body`, the offset delta and the rest at `tail`."""

    start: int
    body: int
    tail: int
    stop: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def spans(
    section: bytes, count: int, last_offset_delta: int, give_way: Callable[[], None] = lambda: None
) -> Iterator[Span]:
    """The records of an uncompressed section.

    Args:
        give_way: called after every few records, see `Pace`.

    Raises:
        RecordError: while iterating: the bytes are not `count` records with rising offsets.
    """
    end, position, previous = len(section), 0, -1
    if not 0 <= count <= end // MIN_RECORD_BYTES:
        raise RecordError(f"{count} records in {end} bytes")
    try:
        for number in range(count):
            if number % STEP_RECORDS == 0:
                give_way()
            start = position
            size = section[position]
            if size < 0x80:
                size, position = size >> 1 ^ -(size & 1), position + 1
            else:
                size, position = decode_varint(section, position)
            if size < 0 or position + size > end:
                raise RecordError(f"record of {size} bytes, but {end - position} are left")
            span = _span(section, start, position, position + size)
            if not previous < span.offset_delta <= last_offset_delta:
                raise RecordError(
                    f"offset delta {span.offset_delta} after {previous}, in a batch up to {last_offset_delta}"
                )
            previous = span.offset_delta
            position += size
            yield span
    except RecordError:
        raise
    except (IndexError, ValueError) as error:
        raise RecordError(f"record at byte {position}: {error}") from error
    if position != end:
        raise RecordError(f"{end - position} bytes after the last record")


def _span(section: bytes, start: int, body: int, stop: int) -> Span:
    """The record in `section[start:stop]`; integers of one byte are read in place, as in `records.record`."""
    time = section[body + 1]
    if time < 0x80:
        time, tail = time >> 1 ^ -(time & 1), body + 2
    else:
        time, tail = decode_varlong(section, body + 1)
    delta = section[tail]
    if delta < 0x80:
        delta, at = delta >> 1 ^ -(delta & 1), tail + 1
    else:
        delta, at = decode_varint(section, tail)
    key: bytes | None = None
    size = section[at]
    if size < 0x80:
        size, at = size >> 1 ^ -(size & 1), at + 1
    else:
        size, at = decode_varint(section, at)
    if size >= 0:
        key = section[at : at + size]
        at += size
    value_size = section[at]
    if value_size < 0x80:
        value_size, at = value_size >> 1 ^ -(value_size & 1), at + 1
    else:
        value_size, at = decode_varint(section, at)
    if min(size, value_size) < -1 or at + max(value_size, 0) >= stop:  # the count of headers comes after it
        raise RecordError(f"key of {size} and value of {value_size} bytes in a record of {stop - body}")
    return Span(start, body, tail, stop, time, delta, key, value_size >= 0)
