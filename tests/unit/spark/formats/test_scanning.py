"""Steps over many rows at once, against plain Python over one."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.formats.scanning import MAX_ITEMS, Buffer, collect, list_array, scatter


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def buffer(*rows: bytes) -> Buffer:
    return Buffer(pa.array(rows, pa.binary()))


_numbers = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 63).map(lambda bits: 1 << bits), st.integers(0, 300))


@settings(deadline=None)
@given(st.lists(_numbers, min_size=1, max_size=20), st.binary(max_size=3))
def test_varints_of_all_lengths(numbers: list[int], behind: bytes) -> None:
    held = buffer(*(varint(number) + behind for number in numbers))
    cursor = held.cursor()
    assert cursor.varint().tolist() == numbers
    assert (cursor.ends - cursor.at).tolist() == [len(behind)] * len(numbers)
    assert not held.failed.any()


@settings(deadline=None)
@given(st.lists(_numbers, min_size=1, max_size=10), st.integers(0, 9))
def test_a_varint_cut_short_fails_its_row_only(numbers: list[int], row: int) -> None:
    row %= len(numbers)
    rows = [varint(number) for number in numbers]
    rows[row] = rows[row][:-1]
    held = buffer(*rows)
    found = held.cursor().varint().tolist()
    assert held.failed.tolist() == [index == row for index in range(len(rows))]
    assert [found[index] for index in range(len(rows)) if index != row] == numbers[:row] + numbers[row + 1 :]


@pytest.mark.parametrize("row", [b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x00", b"\xff" * 30, b""])
def test_a_varint_beyond_64_bits_fails(row: bytes) -> None:
    held = buffer(b"\x05", row, b"\x06")
    assert held.cursor().varint().tolist()[::2] == [5, 6]
    assert held.failed.tolist() == [False, True, False]


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_zigzag(numbers: list[int]) -> None:
    held = buffer(*(varint(((number << 1) ^ (number >> 63)) & (2**64 - 1)) for number in numbers))
    assert held.cursor().zigzag().tolist() == numbers


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1), st.integers(0, 5))
def test_slices_of_a_part_of_an_array(rows: list[bytes], first: int) -> None:
    values = pa.array([b"before"] * first + rows + [b"behind"], pa.binary())[first : first + len(rows)]
    held = Buffer(values)
    cursor = held.cursor()
    halves = np.array([len(row) // 2 for row in rows])
    assert cursor.slices(halves).to_pylist() == [row[: len(row) // 2] for row in rows]
    assert cursor.slices(cursor.ends - cursor.at).to_pylist() == [row[len(row) // 2 :] for row in rows]
    assert not held.failed.any() and not cursor.left().any()


@pytest.mark.parametrize("length", [-1, 3, 2**31, 2**62, -(2**63)])
def test_a_slice_beyond_its_row_fails(length: int) -> None:
    held = buffer(b"aa", b"bb", b"cc")
    found = held.cursor().slices(np.array([2, length, 1]))
    assert (found[0].as_py(), found[2].as_py()) == (b"aa", b"c")
    assert held.failed.tolist() == [False, True, False]


def test_texts_must_be_utf8() -> None:
    held = buffer("é".encode(), b"\xc3", b"\xa9", b"ok")
    found = held.cursor().texts(np.array([2, 1, 1, 2]))
    assert found.type == pa.string() and (found[0].as_py(), found[3].as_py()) == ("é", "ok")
    assert held.failed.tolist() == [False, True, True, False]


def test_a_row_that_failed_stays_failed_and_reads_no_other() -> None:
    held = buffer(b"\x01", b"\x02\x03")
    cursor = held.cursor()
    cursor.word()
    cursor.byte()
    assert cursor.at.tolist() == [1, 3]
    assert held.failed.all()


def test_rows_confined_to_a_part_and_back() -> None:
    held = buffer(b"ab-", b"c--")
    cursor = held.cursor()
    inner = cursor.within(np.array([2, 1]))
    assert inner.slices(inner.ends - inner.at).to_pylist() == [b"ab", b"c"]
    cursor.at = inner.at
    assert cursor.begins(b"-").all()
    assert cursor.left().tolist() == [False, True]


def test_a_tag_does_not_reach_into_the_next_row() -> None:
    cursor = buffer(b"a", b"bc", b"", b"ab").cursor()
    assert cursor.begins(b"ab").tolist() == [False, False, False, True]
    assert cursor.at.tolist() == [0, 1, 3, 5]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 127), max_size=5), min_size=1))
def test_lists_keep_their_rows_and_order(lists: list[list[int]]) -> None:
    held = buffer(*map(bytes, lists))
    items = collect(held.cursor(), lambda cursor, _: cursor.left(), lambda cursor: pa.array(cursor.byte()))
    assert list_array(pa.list_(pa.uint8()), items).to_pylist() == lists


def test_a_list_too_long_is_left_where_it_was_given_up() -> None:
    held = buffer(bytes(MAX_ITEMS), bytes(MAX_ITEMS + 2))
    cursor = held.cursor()
    collect(cursor, lambda rows, _: rows.left(), lambda rows: pa.array(rows.byte()))
    assert cursor.left().tolist() == [False, True]


def test_scatter() -> None:
    assert scatter(pa.array([5, 6]), np.array([False, True, True, False])).to_pylist() == [None, 5, 6, None]
    assert scatter(pa.array([], pa.int64()), np.array([False])).to_pylist() == [None]
