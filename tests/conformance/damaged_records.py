"""Records that are wrong, each as one small function: what stands behind the header of a batch, before compression."""

import random
from collections.abc import Callable
from typing import NamedTuple

from penstock.records.varint import encode

MAX_I32, MAX_I64 = (1 << 31) - 1, (1 << 63) - 1
MINUS_ONE, MINUS_TWO = b"\x01", b"\x03"
ENDLESS = b"\xff" * 12


class Section(NamedTuple):
    """Records and what the header says of them."""

    records: bytes
    count: int = 3  # type: ignore[assignment]
    last_offset_delta: int | None = None
    """None: one less than the count."""


def record(
    at: int,
    *,
    size: bytes | int = 0,
    attributes: bytes = b"\x00",
    time: bytes = b"\x00",
    place: bytes | None = None,
    key: bytes = b"\x02k",
    value: bytes = b"\x02v",
    headers: bytes = b"\x00",
) -> bytes:
    """A record out of its encoded fields; a number for `size` is added to the right one, bytes stand in its place."""
    body = attributes + time + (encode(at) if place is None else place) + key + value + headers
    return (size if isinstance(size, bytes) else encode(len(body) + size)) + body


def around(damaged: bytes) -> Section:
    """A damaged record between good ones."""
    return Section(record(0) + damaged + record(2))


GOOD = record(0) + record(1) + record(2)

SHAPES: dict[str, Callable[[], Section]] = {
    # the count
    "a count too small by one": lambda: Section(GOOD, 2),
    "three records under a header of one": lambda: Section(GOOD, 1),
    "a count too large by one": lambda: Section(GOOD, 4),
    "two thousand million records": lambda: Section(GOOD, MAX_I32),
    "a count of zero": lambda: Section(GOOD, 0),
    "a negative count": lambda: Section(GOOD, -1),
    "a last offset before the count": lambda: Section(GOOD, 3, 1),
    "a last offset beyond the count": lambda: Section(GOOD, 3, 1000),
    "no bytes for one record": lambda: Section(b"", 1),
    # the length of a record
    "a record too long by one": lambda: around(record(1, size=1)),
    "a record too short by one": lambda: around(record(1, size=-1)),
    "a record of no bytes": lambda: around(record(1, size=b"\x00")),
    "a record of -1 bytes": lambda: around(record(1, size=MINUS_ONE)),
    "a record of -2000 bytes": lambda: around(record(1, size=encode(-2000))),
    "a record of two gigabytes": lambda: around(record(1, size=encode(MAX_I32))),
    "a record of more than 32 bits": lambda: around(record(1, size=b"\x80\x80\x80\x80\x80\x01")),
    "a record's length that never ends": lambda: around(record(1, size=ENDLESS)),
    "a last record beyond the end": lambda: Section(record(0) + record(1) + record(2, size=40)),
    "a last record cut short": lambda: Section(GOOD[:-1]),
    "a batch cut in its second record": lambda: Section(record(0) + record(1)[:4]),
    # attributes
    "attributes that read as a number are of two bytes": lambda: around(record(1, attributes=b"\x80")),
    # time
    "a time of more than 64 bits": lambda: around(record(1, time=b"\xff" * 9 + b"\x02")),
    "a time that never ends": lambda: around(record(1, time=ENDLESS)),
    "a time beyond 64 bits once it is added": lambda: around(record(1, time=encode(MAX_I64))),
    # the place
    "offsets from one on": lambda: Section(record(1) + record(2) + record(3)),
    "an offset twice": lambda: Section(record(0) + record(0) + record(1)),
    "all offsets the same": lambda: Section(record(0) * 3),
    "offsets that descend": lambda: Section(record(2) + record(1) + record(0)),
    "a gap between offsets": lambda: Section(record(0) + record(1) + record(3)),
    "a gap and a last offset that agrees": lambda: Section(record(0) + record(2) + record(4), 3, 4),
    "an offset of -1": lambda: Section(record(-1) + record(0) + record(1)),
    "the largest offset there is": lambda: around(record(1, place=encode(MAX_I32))),
    "an offset of more than 32 bits": lambda: around(record(1, place=b"\x82\x80\x80\x80\x10")),
    "an offset that never ends": lambda: around(record(1, place=ENDLESS)),
    # key and value
    "a key of -2 bytes": lambda: around(record(1, key=MINUS_TWO)),
    "a value of -2 bytes": lambda: around(record(1, value=MINUS_TWO)),
    "a key that never ends": lambda: around(record(1, key=ENDLESS)),
    "a value that never ends": lambda: around(record(1, value=ENDLESS)),
    "a key of two gigabytes": lambda: around(record(1, key=encode(MAX_I32))),
    "a value of two gigabytes": lambda: around(record(1, value=encode(MAX_I32))),
    "a key that reaches into the next record": lambda: around(record(1, key=encode(9))),
    "a value that reaches into the next record": lambda: around(record(1, value=encode(11) + b"v")),
    "a value that takes in the next record whole": lambda: Section(record(0, value=encode(13) + b"v") + GOOD[9:]),
    "a value that leaves bytes over": lambda: around(record(1, value=b"\x02vv")),
    # headers
    "-1 headers": lambda: around(record(1, headers=MINUS_ONE)),
    "two thousand million headers": lambda: around(record(1, headers=encode(MAX_I32))),
    "a count of headers that never ends": lambda: around(record(1, headers=ENDLESS)),
    "one header that is not there": lambda: around(record(1, headers=b"\x02")),
    "two headers of which one is there": lambda: around(record(1, headers=b"\x04\x02h\x02x")),
    "no headers of which one is there": lambda: around(record(1, headers=b"\x00\x02h\x02x")),
    "a header without a name": lambda: around(record(1, headers=b"\x02\x01\x02x")),
    "a header name of -2 bytes": lambda: around(record(1, headers=b"\x02\x03\x02x")),
    "a header value of -2 bytes": lambda: around(record(1, headers=b"\x02\x02h\x03")),
    "a header that reaches into the next record": lambda: around(record(1, headers=b"\x02\x02h\x08x")),
    "a header name of two gigabytes": lambda: around(record(1, headers=b"\x02" + encode(MAX_I32) + b"h\x02x")),
    "more headers than anybody has": lambda: around(record(1, headers=encode(65_537) + b"\x00\x01" * 65_537)),
    # no records at all
    "a byte behind the last record": lambda: Section(GOOD + b"\x00"),
    "zeros behind the last record": lambda: Section(GOOD + bytes(100)),
    "zeros": lambda: Section(bytes(60)),
    "ones": lambda: Section(b"\xff" * 60),
    "text": lambda: Section(b"this was never a record of anything, and still it came"),
    "garbage": lambda: Section(random.Random(1).randbytes(500)),
    "a little garbage": lambda: Section(random.Random(2).randbytes(21)),
    "a lot of garbage": lambda: Section(random.Random(3).randbytes(100_000), 900),
    "a batch inside a batch": lambda: Section(bytes(12) + bytes(61) + GOOD),
}
