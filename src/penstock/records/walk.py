"""Looks at every record of an uncompressed section without making an object of any: lengths, order, nothing left over.

`record.iterate` refuses what this refuses, and the other way round; besides, offset deltas are 0, 1, 2, ... here, as
only compaction leaves gaps, times fit in 64 bits, and the highest bit of a record's attributes is not set, which would
make readers lose their place that take them for a number (aiokafka, kafka-python).

Hot: it runs once for each record that is produced, in some 10 ns where it is compiled (`penstock.compiled`) and in 1 µs
where it is not. That is why numbers of one and two bytes are read in place, three times over: a function for it takes a
third longer. A record's fields are not held against its end one by one. The position only ever grows, so that it ends
exactly at the record's end proves that no field reached beyond it; until then a field may have read into the next
record, and past the end of the section an index raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.records.record import MAX_HEADERS, MIN_HEADER_BYTES, MIN_RECORD_BYTES, RecordError

if TYPE_CHECKING:
    from mypy_extensions import i64

_MAX_I64: Final = 0x7FFF_FFFF_FFFF_FFFF
_MIN_I64: Final = -0x7FFF_FFFF_FFFF_FFFF - 1
_NEAR: Final = 8192  # numbers of two bytes are from -8192 to 8191


def walk(section: bytes, count: i64, base_timestamp: i64 = 0) -> int:
    """Check that the section holds `count` whole records in order, and nothing else.

    Args:
        section: what follows the 61-byte batch header, decompressed.
        base_timestamp: what the records' times count from.

    Returns:
        How many of the records have no key.

    Raises:
        RecordError: it does not.
    """
    size: i64 = len(section)
    if count < 0 or count > size // MIN_RECORD_BYTES:
        raise RecordError(f"{count} records in {size} bytes")
    least_time: i64 = _MIN_I64
    largest_time: i64 = _MAX_I64
    if base_timestamp < 0:
        least_time -= base_timestamp
    else:
        largest_time -= base_timestamp
    if least_time > -_NEAR or largest_time < _NEAR:
        raise RecordError(f"base timestamp {base_timestamp} leaves records no room in 64 bits")
    try:
        return _walk(section, count, least_time, largest_time)
    except IndexError:
        raise RecordError("a record reaches beyond the end of its batch") from None


def _walk(data: bytes, count: i64, least_time: i64, largest_time: i64) -> int:  # noqa: C901 - see above
    end: i64 = len(data)
    position: i64 = 0
    keyless: i64 = 0
    number: i64
    more: i64
    for at in range(count):
        number = data[position]
        if number < 0x80:
            position += 1
        else:
            more = data[position + 1]
            if more < 0x80:
                number = number & 0x7F | more << 7
                position += 2
            else:
                number, position = _read_long(data, position, 32)
        if number & 1 or number >> 1 > end - position:
            raise RecordError(f"record {at} of {_signed(number)} bytes, but {end - position} are left")
        stop: i64 = position + (number >> 1)

        # Attributes: no bit has a meaning yet. Readers ignore them, but some in Python read them as a number.
        if data[position] >= 0x80:
            raise RecordError(f"record {at} has attributes {data[position]:#04x}")
        position += 1
        if data[position] < 0x80:
            position += 1  # so close to the base that it fits
        elif data[position + 1] < 0x80:
            position += 2
        else:
            number, position = _read_long(data, position, 64)
            number = _signed(number)
            if number < least_time or number > largest_time:
                raise RecordError(f"the timestamp of record {at} does not fit in 64 bits")

        number = at << 1
        if number < 0x80 and data[position] == number:
            position += 1
        elif number < 0x4000 and data[position] == number & 0x7F | 0x80 and data[position + 1] == number >> 7:
            position += 2
        else:
            number, position = _read_long(data, position, 32)
            if number != at << 1:
                raise RecordError(f"record {at} has offset delta {_signed(number)}")

        number = data[position]
        if number < 0x80:
            position += 1
        else:
            more = data[position + 1]
            if more < 0x80:
                number = number & 0x7F | more << 7
                position += 2
            else:
                number, position = _read_long(data, position, 32)
        if number & 1:
            if number != 1:
                raise RecordError(f"record {at} has a key of {_signed(number)} bytes")
            keyless += 1
        else:
            position += number >> 1

        number = data[position]
        if number < 0x80:
            position += 1
        else:
            more = data[position + 1]
            if more < 0x80:
                number = number & 0x7F | more << 7
                position += 2
            else:
                number, position = _read_long(data, position, 32)
        if number & 1:
            if number != 1:
                raise RecordError(f"record {at} has a value of {_signed(number)} bytes")
        else:
            position += number >> 1

        if data[position]:
            position = _walk_headers(data, position, stop)
        else:
            position += 1
        if position != stop:
            raise RecordError(f"record {at} says where it ends, but its fields are of another size")
    if position != end:
        raise RecordError(f"{end - position} bytes after the last record")
    return int(keyless)


def _walk_headers(data: bytes, position: i64, stop: i64) -> i64:
    """The position after the headers, whose number stands at `position`."""
    number: i64
    number, position = _read_long(data, position, 32)
    if number & 1 or number >> 1 > (stop - position) // MIN_HEADER_BYTES:
        raise RecordError(f"{_signed(number)} headers in {stop - position} bytes")
    count: i64 = number >> 1
    if count > MAX_HEADERS:
        raise RecordError(f"{count} headers are more than {MAX_HEADERS}")
    for _ in range(count):
        number, position = _read_long(data, position, 32)
        if number & 1:
            raise RecordError("header without a name" if number == 1 else f"header name of {_signed(number)} bytes")
        position += number >> 1
        number, position = _read_long(data, position, 32)
        if number & 1:
            if number != 1:
                raise RecordError(f"header value of {_signed(number)} bytes")
        else:
            position += number >> 1
    return position


def _read_long(data: bytes, position: i64, bits: i64) -> tuple[i64, i64]:
    """The number at `position`, its sign still in its lowest bit, and the position after it."""
    number: i64 = 0
    shift: i64 = 0
    while shift < bits:
        byte: i64 = data[position]
        position += 1
        if shift + 7 > bits and byte & 0x7F >= 1 << (bits - shift):
            break
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise RecordError(f"variable-length integer does not fit in {bits} bits")


def _signed(number: i64) -> i64:
    """From zigzag; the mask is for a number of 64 bits, which is negative when compiled."""
    return (number >> 1 & _MAX_I64) ^ -(number & 1)
