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
_LENGTH_BYTES: Final = 5  # the longest number of 32 bits
WINDOW_BYTES: Final = 64 * 1024  # a fraction of the cache that each core has for itself


def walk(section: bytes, count: i64, base_timestamp: i64 = 0, last_delta: i64 = -1) -> int:
    """Check that the section holds `count` whole records in order, and nothing else.

    Args:
        section: what follows the 61-byte batch header, decompressed.
        base_timestamp: what the records' times count from.
        last_delta: of a batch that may have been compacted: offset deltas grow up to it, and some may be missing.

    Returns:
        How many of the records have no key.

    Raises:
        RecordError: it does not.
    """
    walker = _Walker(len(section), count, base_timestamp, last_delta)
    walker.take(section, 0)
    return int(walker.keyless)


def walk_view(
    section: memoryview, count: i64, base_timestamp: i64 = 0, last_delta: i64 = -1, window: i64 = WINDOW_BYTES
) -> int:
    """As `walk`, for what is not `bytes`: it is copied piece by piece, each to where the piece before was.

    A copy of the whole would push the batch out of the processor's cache just before it is written to its file.
    """
    size: i64 = len(section)
    walker = _Walker(size, count, base_timestamp, last_delta)
    start: i64 = 0
    while True:
        stop: i64 = min(start + max(walker.wanted, window), size)
        walker.take(bytes(section[start:stop]), size - stop)
        if stop == size:
            return int(walker.keyless)
        start += walker.position


class _Walker:
    """A walk through one section, in one piece or several."""

    __slots__ = ("at", "count", "expected", "keyless", "largest_time", "last_delta", "least_time", "position", "wanted")

    def __init__(self, size: i64, count: i64, base_timestamp: i64, last_delta: i64) -> None:
        if count < 0 or count > size // MIN_RECORD_BYTES:
            raise RecordError(f"{count} records in {size} bytes")
        self.least_time: i64 = _MIN_I64
        self.largest_time: i64 = _MAX_I64
        if base_timestamp < 0:
            self.least_time -= base_timestamp
        else:
            self.largest_time -= base_timestamp
        if self.least_time > -_NEAR or self.largest_time < _NEAR:
            raise RecordError(f"base timestamp {base_timestamp} leaves records no room in 64 bits")
        self.count: i64 = count
        self.last_delta: i64 = last_delta
        self.at: i64 = 0
        self.expected: i64 = 0
        self.keyless: i64 = 0
        self.position: i64 = 0
        """Where the record starts, in the last piece, that reaches beyond it; the next piece starts there."""
        self.wanted: i64 = 0
        """Bytes that the next piece needs to have."""

    def take(self, data: bytes, more: i64) -> None:
        """Look at the records of the next piece. Raises RecordError.

        Args:
            more: how many bytes of the section follow.
        """
        try:
            self._take(data, more)
        except IndexError:
            raise RecordError("a record reaches beyond the end of its batch") from None

    def _take(self, data: bytes, more: i64) -> None:  # noqa: C901 - see above
        end: i64 = len(data)
        least_time: i64 = self.least_time
        largest_time: i64 = self.largest_time
        expected: i64 = self.expected
        keyless: i64 = self.keyless
        position: i64 = 0
        start: i64
        number: i64
        second: i64
        for at in range(self.at, self.count):
            start = position
            if more and end - position < _LENGTH_BYTES:
                self._pause(at, expected, keyless, start, _LENGTH_BYTES)
                return
            number = data[position]
            if number < 0x80:
                position += 1
            else:
                second = data[position + 1]
                if second < 0x80:
                    number = number & 0x7F | second << 7
                    position += 2
                else:
                    number, position = _read_long(data, position, 32)
            if number & 1 or number >> 1 > end - position:
                if number & 1 or number >> 1 > end - position + more:
                    raise RecordError(f"record {at} of {_signed(number)} bytes, but {end - position + more} are left")
                self._pause(at, expected, keyless, start, _LENGTH_BYTES + (number >> 1))
                return
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

            number = expected << 1
            if number < 0x80 and data[position] == number:
                position += 1
            elif number < 0x4000 and data[position] == number & 0x7F | 0x80 and data[position + 1] == number >> 7:
                position += 2
            else:
                number, position = _read_long(data, position, 32)
                if number != expected << 1:
                    if number & 1 or number >> 1 < expected or number >> 1 > self.last_delta:
                        raise RecordError(f"record {at} has offset delta {_signed(number)}")
                    expected = number >> 1
            expected += 1

            number = data[position]
            if number < 0x80:
                position += 1
            else:
                second = data[position + 1]
                if second < 0x80:
                    number = number & 0x7F | second << 7
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
                second = data[position + 1]
                if second < 0x80:
                    number = number & 0x7F | second << 7
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
        if 0 <= self.last_delta < expected - 1:
            raise RecordError(f"offset delta {expected - 1} is beyond the batch's last, {self.last_delta}")
        if position != end or more:
            raise RecordError(f"{end - position + more} bytes after the last record")
        self.keyless = keyless

    def _pause(self, at: i64, expected: i64, keyless: i64, position: i64, wanted: i64) -> None:
        self.at, self.expected, self.keyless, self.position, self.wanted = at, expected, keyless, position, wanted


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
