"""Records inside a batch: their exact bytes, and every way a length can lie."""

import struct
import tracemalloc

import pytest

from penstock.records import record, varint
from penstock.records.batch import LOG_APPEND_TIME
from penstock.records.build import NewRecord, build_batch
from penstock.records.compression import Codec, CompressionError
from penstock.records.record import Record, RecordError, iterate, iterate_batch

LIMIT = 1 << 20


def framed(body: bytes) -> bytes:
    return varint.encode(len(body)) + body


def opened(body: bytes, count: int = 1) -> list[Record]:
    return list(iterate(framed(body), count))


def test_bytes_of_a_record() -> None:
    out = bytearray(b"before")
    record.encode(out, 1, -2, b"k", None, [("h", b"v"), ("n", None)])
    assert out == b"before" + bytes.fromhex("1c 00 03 02 02 6b 01 04 02 68 02 76 02 6e 01")
    assert list(iterate(out[6:], 1)) == [Record(1, -2, b"k", None, (("h", b"v"), ("n", None)))]


def test_empty_is_not_null() -> None:
    out = bytearray()
    record.encode(out, 0, 0, b"", b"", [("", b"")])
    record.encode(out, 1, 0, None, None, [("", None)])
    first, second = iterate(bytes(out), 2)
    assert (first.key, first.value, first.headers) == (b"", b"", (("", b""),))
    assert (second.key, second.value, second.headers) == (None, None, (("", None),))


@pytest.mark.parametrize("size", [63, 64, 8191, 8192, 1_048_575, 1_048_576])
def test_sizes_around_a_longer_length(size: int) -> None:
    out = bytearray()
    record.encode(out, size, size, bytes(size), bytes(size), [("n" * size, bytes(size))])
    assert list(iterate(out, 1)) == [
        Record(size, size, bytes(size), bytes(size), (("n" * size, bytes(size)),)),
    ]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "fewer than seven bytes"),
        (b"\x00\x00\x00\x01\x01", "no header count"),
        (b"\x00\x00\x00\x03\x01\x00", "key length -2"),
        (b"\x00\x00\x00\x01\x03\x00", "value length -2"),
        (b"\x00\x00\x00\x10\x01\x00", "key beyond the record"),
        (b"\x00\x00\x00\x01\x10\x00", "value beyond the record"),
        (b"\x00\x00\x00\xfe\xff\xff\xff\x0f\x01\x00", "key of 2 GiB"),
        (b"\x00\x00\x00\x01\xfe\xff\xff\xff\x0f\x00", "value of 2 GiB"),
        (b"\x00\x00\x00\x01\x01\x01", "header count -1"),
        (b"\x00\x00\x00\x01\x01\x04\x00\x00", "two headers, bytes for one"),
        (b"\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f", "two thousand million headers"),
        (b"\x00\x00\x00\x01\x01\x02\x01\x01", "header name null"),
        (b"\x00\x00\x00\x01\x01\x02\x00\x03", "header value length -2"),
        (b"\x00\x00\x00\x01\x01\x02\x10\x01", "header name beyond the record"),
        (b"\x00\x00\x00\x01\x01\x00\x00", "a byte after the headers"),
        (b"\x00" + b"\x80" * 10 + b"\x00\x00\x01\x01\x00", "timestamp of eleven bytes"),
        (b"\x00\x00" + b"\x80" * 5 + b"\x00\x01\x01\x00", "offset of six bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_body_that_lies(body: bytes, why: str) -> None:
    with pytest.raises(RecordError):
        opened(body)
    # The same with a sound record after it, so that what reaches beyond finds bytes there.
    sound = framed(b"\x00\x00\x00\x01\x01\x00")
    with pytest.raises(RecordError):
        list(iterate(framed(body) + sound * 40, 41))


@pytest.mark.parametrize(
    ("section", "count"),
    [
        (b"", 1),
        (b"", -1),
        (framed(b"\x00\x00\x00\x01\x01\x00"), 0),
        (framed(b"\x00\x00\x00\x01\x01\x00"), 2),
        (framed(b"\x00\x00\x00\x01\x01\x00"), 2**31 - 1),
        (framed(b"\x00\x00\x00\x01\x01\x00") + b"\x00", 1),
        (framed(b"\x00\x00\x00\x01\x01\x00" + bytes(8)), 2),
        (b"\x0e\x00\x00\x00\x01\x01\x00", 1),
        (b"\x01\x00\x00\x00\x01\x01\x00", 1),
        (b"\x80" * 7, 1),
        (b"\x80" * 5 + bytes(9), 1),
    ],
)
def test_a_section_that_lies(section: bytes, count: int) -> None:
    with pytest.raises(RecordError):
        list(iterate(section, count))


@pytest.mark.parametrize(
    ("section", "count", "words"),
    [
        (b"\x0e\x00\x00\x00\x01\x01\x00", 1, "record of 7 bytes, but 6 are left"),
        (b"\x01\x00\x00\x00\x01\x01\x00", 1, "record of -1 bytes, but 6 are left"),
        (framed(b"\x00\x00\x00\x01\x01\x00"), 2**31 - 1, "2147483647 records in 7 bytes"),
        (framed(b"\x00\x00\x00\x01\x01\x06\x00\x01"), 1, "3 headers in 2 bytes"),
    ],
)
def test_the_error_names_the_number(section: bytes, count: int, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        list(iterate(section, count))


def test_no_records() -> None:
    assert list(iterate(b"", 0)) == []


def test_records_before_the_broken_one_come_out() -> None:
    section = framed(b"\x00\x00\x00\x01\x02a\x00") + framed(b"\x00\x00\x02\x01\x10\x00")
    records = iterate(section, 2)
    assert next(records).value == b"a"
    with pytest.raises(RecordError):
        next(records)


def test_header_name_that_is_not_utf8_is_replaced() -> None:
    (one,) = opened(b"\x00\x00\x00\x01\x01\x02\x02\xff\x01")
    assert one.headers == (("\N{REPLACEMENT CHARACTER}", None),)


def test_number_of_headers_is_bounded() -> None:
    def section(count: int) -> bytes:
        return framed(b"\x00\x00\x00\x01\x01" + varint.encode(count) + b"\x00\x01" * count)

    (one,) = iterate(section(record.MAX_HEADERS), 1)
    assert len(one.headers) == record.MAX_HEADERS
    bomb = section(1_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match="headers"):
            list(iterate(bomb, 1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_iteration_is_lazy() -> None:
    section = framed(b"\x00\x00\x00\x01\x01\x00") * 20_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in iterate(section, 20_000)) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 17


ROWS = [NewRecord(b"k%d" % n, b"value %d" % n, [("h", b"%d" % n)], 1_700_000_000_000 + 100 * n) for n in range(5)]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_offsets_and_timestamps(codec: Codec, kind: type) -> None:
    batch = kind(build_batch(ROWS, codec=codec, base_offset=1000))
    assert [(offset, time, r.key, r.value, r.headers) for offset, time, r in iterate_batch(batch, LIMIT)] == [
        (1000 + n, row.timestamp_ms, row.key, row.value, tuple(row.headers)) for n, row in enumerate(ROWS)
    ]


def test_log_append_time() -> None:
    batch = bytearray(build_batch(ROWS))
    batch[22] |= LOG_APPEND_TIME
    struct.pack_into(">q", batch, 35, 42)  # maxTimestamp
    assert [time for _, time, _ in iterate_batch(batch, LIMIT)] == [42] * 5


def test_compacted_batch_keeps_its_gaps() -> None:
    section = bytearray()
    for delta in (1, 4, 7):
        record.encode(section, delta, 0, None, b"%d" % delta, ())
    batch = bytearray(build_batch(ROWS[:3], base_offset=10)[:61] + section)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, 9)  # lastOffsetDelta
    assert [offset for offset, _, _ in iterate_batch(batch, LIMIT)] == [11, 14, 17]


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (0, ">q", 2**63 - 2),  # baseOffset: the last offset would not fit
        (8, ">i", 0),
        (8, ">i", -1),
        (16, ">b", 1),  # magic
        (23, ">i", 3),  # lastOffsetDelta below the last record's
        (23, ">i", -1),
        (27, ">q", 2**63 - 1),  # baseTimestamp: the second record's would not fit
        (57, ">i", 4),  # recordCount
        (57, ">i", 6),
        (57, ">i", -1),
        (57, ">i", 2**31 - 1),
    ],
)
def test_a_header_that_lies(at: int, form: str, value: int) -> None:
    batch = bytearray(build_batch(ROWS))
    struct.pack_into(form, batch, at, value)
    with pytest.raises(RecordError):
        list(iterate_batch(batch, LIMIT))


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (-1, 0)])
def test_offsets_that_do_not_grow(deltas: tuple[int, int]) -> None:
    section = bytearray()
    for delta in deltas:
        record.encode(section, delta, 0, None, b"x", ())
    sound = build_batch(ROWS[:2], codec=Codec.NONE)
    batch = bytearray(sound[:61] + section)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(RecordError, match="offset delta"):
        list(iterate_batch(batch, LIMIT))


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_cut_or_prolonged(codec: Codec) -> None:
    batch = build_batch(ROWS, codec=codec)
    for size in range(len(batch)):
        with pytest.raises(RecordError):
            list(iterate_batch(batch[:size], LIMIT))
    with pytest.raises(RecordError):
        list(iterate_batch(batch + b"\x00", LIMIT))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec(codec: int) -> None:
    batch = bytearray(build_batch(ROWS))
    batch[22] |= codec
    with pytest.raises(CompressionError, match="unknown"):
        list(iterate_batch(batch, LIMIT))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_limit_of_a_compressed_batch(codec: Codec) -> None:
    batch = build_batch([(None, bytes(100_000), (), 0)], codec=codec)
    assert len(list(iterate_batch(batch, 100_100))) == 1
    with pytest.raises(CompressionError, match="more than"):
        list(iterate_batch(batch, 100_000))
