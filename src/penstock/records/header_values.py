"""What a header of one name says, record by record, without making an object of what is not asked for.

For sections that were looked at (`records.walk`), or that were written here. Hot where a topic wants to know: it runs
once for each record that is produced there, which is why it is compiled (`penstock.compiled`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.records.record import MIN_RECORD_BYTES, RecordError

if TYPE_CHECKING:
    from mypy_extensions import i64


def header_values(section: bytes, count: i64, name: bytes) -> list[tuple[int, bytes]]:
    """The offset deltas of the records that have the header, and its value in each; of several the last one counts.

    A header without a value, and none at all, are the same.

    Args:
        section: what follows the 61-byte batch header, decompressed.
        count: how many records it holds.

    Raises:
        RecordError: it holds something else.
    """
    if count < 0 or count > len(section) // MIN_RECORD_BYTES:
        raise RecordError(f"{count} records in {len(section)} bytes")
    try:
        return _header_values(section, count, name)
    except IndexError:
        raise RecordError("a record reaches beyond the end of its batch") from None


def _header_values(data: bytes, count: i64, name: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    position: i64 = 0
    size: i64
    delta: i64
    headers: i64
    for _ in range(count):
        size, position = _read(data, position)
        if size & 1:
            raise RecordError("a record of less than no bytes")
        stop: i64 = position + (size >> 1)
        position = _behind(data, position + 1)
        delta, position = _read(data, position)
        for _ in range(2):  # key and value
            size, position = _read(data, position)
            if not size & 1:
                position += size >> 1
        headers, position = _read(data, position)
        if headers:
            value = _last_value(data, position, headers >> 1, name)
            if value is not None:
                found.append((delta >> 1, value))
        position = stop
    return found


def _last_value(data: bytes, position: i64, count: i64, name: bytes) -> bytes | None:
    wanted: i64 = len(name)
    value: bytes | None = None
    size: i64
    for _ in range(count):
        size, position = _read(data, position)
        size >>= 1
        is_it = size == wanted and data[position : position + size] == name
        position += size
        size, position = _read(data, position)
        if size & 1:
            if is_it:
                value = None
            continue
        size >>= 1
        if is_it:
            value = data[position : position + size]
        position += size
    return value


def _behind(data: bytes, position: i64) -> i64:
    """The position behind a number."""
    while data[position] >= 0x80:
        position += 1
    return position + 1


def _read(data: bytes, position: i64) -> tuple[i64, i64]:
    """The number of at most 32 bits at a position, its sign still in its lowest bit, and the position behind it."""
    number: i64 = data[position]
    position += 1
    if number < 0x80:
        return number, position
    number &= 0x7F
    shift: i64 = 7
    while shift < 35:
        byte: i64 = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise RecordError("variable-length integer does not fit in 32 bits")
