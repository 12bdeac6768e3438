"""Every way in which the records of a batch can be wrong, and that what is right passes."""

import pytest

from penstock.records import record, varint
from penstock.records.batch import HEADER_BYTES
from penstock.records.build import build_batch
from penstock.records.record import MAX_HEADERS, RecordError
from penstock.records.walk import walk, walk_view

MAX_I64, MIN_I64 = (1 << 63) - 1, -1 << 63


def section(*bodies: bytes) -> bytes:
    return b"".join(varint.encode(len(body)) + body for body in bodies)


def encoded(offset_delta: int, timestamp_delta: int = 0) -> bytes:
    out = bytearray()
    record.encode(out, offset_delta, timestamp_delta, b"k", b"v", ())
    return bytes(out)


def test_it_counts_records_without_a_key() -> None:
    rows = [(None, b"a", (), 0), (b"", b"b", (), 0), (None, None, [("h", b"x"), ("n", None)], 0)]
    assert walk(build_batch(rows)[HEADER_BYTES:], 3) == 2


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 1_048_575, 1_048_576])
def test_numbers_of_one_two_and_more_bytes(size: int) -> None:
    rows = [(bytes(size), bytes(size), [("n" * size, bytes(size)), ("", None)], size)] * 2
    assert walk(build_batch(rows)[HEADER_BYTES:], 2, 5) == 0


@pytest.mark.parametrize("delta", [63, 64, 8191, 8192, -64, -65, -8192, -8193])
def test_times_of_one_two_and_three_bytes(delta: int) -> None:
    assert walk(encoded(0, delta), 1, 1_700_000_000_000) == 0


def test_a_number_may_have_more_bytes_than_it_needs() -> None:
    assert walk(section(b"\x00\x00\x80\x00\x81\x00\x81\x00\x80\x00"), 1) == 1


def test_as_many_records_as_need_three_bytes_to_count() -> None:
    assert walk(build_batch([(None, b"", (), 0)] * 9000)[HEADER_BYTES:], 9000) == 9000


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 2**31 - 1, 2**62])
def test_another_count_than_there_are_records(count: int) -> None:
    with pytest.raises(RecordError):
        walk(build_batch([(b"k", b"v", (), 0)] * 2)[HEADER_BYTES:], count)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00\x00\x01\x01",
        b"\x00\x00\x00\x03\x01\x00",
        b"\x00\x00\x00\x01\x03\x00",
        b"\x00\x00\x00\x10\x01\x00",
        b"\x00\x00\x00\x01\x10\x00",
        b"\x00\x00\x00\xfe\xff\xff\xff\x0f\x01\x00",
        b"\x00\x00\x00\x01\xfe\xff\xff\xff\x0f\x00",
        b"\x00\x00\x00\x01\x01\x01",
        b"\x00\x00\x00\x01\x01\x02",
        b"\x00\x00\x00\x01\x01\x02\x01\x01",
        b"\x00\x00\x00\x01\x01\x02\x00\x03",
        b"\x00\x00\x00\x01\x01\x02\x10\x01",
        b"\x00\x00\x00\x01\x01\x00\x00",
        b"\x00\x00\xff\xff\xff\xff\xff\xff\x01\x01\x01\x00",
        b"\x00" + b"\xff" * 10 + b"\x01\x00\x01\x01\x00",
        b"\x00" + b"\xff" * 9 + b"\x02\x00\x01\x01\x00",
        b"\x00\x00\x80\x80\x80\x80\x10\x01\x01\x00",
    ],
)
def test_a_record_whose_fields_do_not_fill_it(body: bytes) -> None:
    with pytest.raises(RecordError):
        walk(section(body), 1)


def test_a_field_may_not_reach_into_the_next_record() -> None:
    longer = b"\x00\x00\x00\x01\x12\x00"  # its value is nine bytes, most of them the next record's
    with pytest.raises(RecordError, match="record 0 says where it ends"):
        walk(section(longer, b"\x00\x00\x02\x01\x01\x00", b"\x00\x00\x04\x01\x01\x00"), 3)


def test_bytes_behind_the_last_record() -> None:
    with pytest.raises(RecordError, match="1 bytes after the last record"):
        walk(encoded(0) + b"\x00", 1)


@pytest.mark.parametrize("deltas", [(1, 2), (0, 0), (0, 2), (1, 0), (-1, 0), (0, 1 << 20)])
def test_offsets_out_of_order(deltas: tuple[int, int]) -> None:
    with pytest.raises(RecordError, match="has offset delta"):
        walk(b"".join(map(encoded, deltas)), 2)
    assert walk(encoded(0) + encoded(1), 2) == 0


@pytest.mark.parametrize(
    ("base", "delta", "fits"),
    [
        (0, MAX_I64, True),
        (0, MIN_I64, True),
        (1, MAX_I64, False),
        (-1, MIN_I64, False),
        (MAX_I64 - 20_000, 20_000, True),
        (MAX_I64 - 20_000, 20_001, False),
        (MIN_I64 + 20_000, -20_000, True),
        (MIN_I64 + 20_000, -20_001, False),
        (MAX_I64, 0, False),
        (MIN_I64, 0, False),
    ],
)
def test_times_fit_in_64_bits(base: int, delta: int, fits: bool) -> None:
    if fits:
        assert walk(encoded(0, delta), 1, base) == 0
        return
    with pytest.raises(RecordError, match="timestamp"):
        walk(encoded(0, delta), 1, base)


@pytest.mark.parametrize("attributes", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_attributes_are_of_one_byte_even_for_those_who_take_them_for_a_number(attributes: int) -> None:
    changed = bytearray(encoded(0))
    changed[1] = attributes
    if attributes < 0x80:
        assert walk(bytes(changed), 1) == 0
        return
    with pytest.raises(RecordError, match="record 0 has attributes 0x"):
        walk(bytes(changed), 1)


def test_more_headers_than_anybody_has() -> None:
    rows = [(None, None, [("", None)] * (MAX_HEADERS + 1), 0)]
    with pytest.raises(RecordError, match="65537 headers are more than 65536"):
        walk(build_batch(rows)[HEADER_BYTES:], 1)


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (2, 2), (0, 4), (-1, 0)])
def test_offsets_that_do_not_grow_up_to_the_last_one(deltas: tuple[int, ...]) -> None:
    with pytest.raises(RecordError, match="offset delta"):
        walk(b"".join(map(encoded, deltas)), 2, 0, 3)


def test_a_record_larger_than_a_piece_takes_a_larger_piece() -> None:
    rows = [(b"k", bytes(size), (), 0) for size in (10, 200_000, 10, 70_000, 65_000)]
    assert walk_view(memoryview(build_batch(rows)[HEADER_BYTES:]), 5) == 0


@pytest.mark.parametrize("window", [1, 5, 40, 100, 1000])
@pytest.mark.parametrize("harm", [b"\x00", b"\x0e\x00\x00\x08\x01\x01\x00\x00"])
def test_what_is_left_over_is_found_in_any_piece(window: int, harm: bytes) -> None:
    whole = build_batch([(None, bytes(30), (), 0)] * 4)[HEADER_BYTES:]
    assert walk_view(memoryview(whole), 4, window=window) == 4
    for changed in (whole + harm, harm + whole, whole[:-1]):
        with pytest.raises(RecordError):
            walk_view(memoryview(changed), 4, window=window)
