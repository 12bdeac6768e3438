"""The partition of a key is the one that `records.partitioning` chooses, which clients judge."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.partitioning import murmur2 as murmur2_of_one
from penstock.records.partitioning import new_partitioner
from penstock.spark.arrow.partitioner import choose_partitions, murmur2


def signed(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=60), st.integers(1, 1000))
def test_partitions_of_any_keys(keys: list[bytes], count: int) -> None:
    chooser = new_partitioner("murmur2", random.Random(1))
    found = choose_partitions(pa.array(keys, pa.binary()), None, count, 0)
    assert found.tolist() == [chooser.choose(key, count) for key in keys]


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=40) | st.integers(0, 999).map(bytes), max_size=60), st.integers(0, 5))
def test_hashes_of_any_keys(keys: list[bytes | None], cut: int) -> None:
    found = murmur2(pa.array(keys, pa.binary())[cut:])
    assert found.dtype == "int32"
    assert found.tolist() == [0 if key is None else signed(murmur2_of_one(key)) for key in keys[cut:]]


def test_a_partition_named_wins_over_the_key_and_the_key_over_the_sticky_one() -> None:
    keys = pa.array([b"abc", b"abc", None, None, b""], pa.binary())
    chosen = pa.array([None, 4, 0, None, None], pa.int32())
    assert choose_partitions(keys, chosen, 5, 3).tolist() == [
        479470107 % 5,
        4,
        0,
        3,
        (signed(murmur2_of_one(b"")) & 0x7FFFFFFF) % 5,
    ]


def test_negative_hashes_lose_their_sign_not_their_bits() -> None:
    assert choose_partitions(pa.array([b"21"], pa.binary()), None, 1000, 0).tolist() == [
        (-973932308 & 0x7FFFFFFF) % 1000
    ]


def test_columns_left_out() -> None:
    keys = pa.array([b"abc", None], pa.binary())
    assert choose_partitions(keys, None, 7, 2).tolist() == [479470107 % 7, 2]
    assert choose_partitions(None, pa.array([1, None], pa.int32()), 7, 2).tolist() == [1, 2]
    assert choose_partitions(pa.nulls(2, pa.binary()), pa.nulls(2, pa.int32()), 7, 2).tolist() == [2, 2]
    assert choose_partitions(pa.nulls(0, pa.binary()), None, 7, 2).tolist() == []
    assert choose_partitions(keys, None, 7, 2).dtype == "int32"
    with pytest.raises(ValueError, match="neither keys nor partitions"):
        choose_partitions(None, None, 7, 2)


@pytest.mark.parametrize("wrong", [-1, 3, 4, (1 << 31) - 1])
def test_a_partition_the_topic_has_not_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"partition {wrong} is asked for; the topic has 0 to 2"):
        choose_partitions(None, pa.array([None, 2, wrong], pa.int32()), 3, 0)


def test_a_null_partition_is_not_one_out_of_range() -> None:
    hidden = pa.Array.from_buffers(pa.int32(), 1, [pa.py_buffer(b"\x00"), pa.py_buffer(b"\xff\xff\xff\x7f")])
    assert choose_partitions(None, hidden, 3, 1).tolist() == [1]
    assert choose_partitions(None, pa.array([2, None], pa.int32()), 3, 1).tolist() == [2, 1]


def test_keys_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="string"):
        murmur2(pa.array(["a"]))
