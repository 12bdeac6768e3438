"""How ranges of offsets are cut, and shares given out."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.read.ranges import Range, admit, split

ID = uuid.UUID(int=7)


def a_range(start: int, end: int, partition: int = 0) -> Range:
    return Range("orders", ID, partition, start, end)


def test_enough_ranges_stay_as_they_are() -> None:
    ranges = [a_range(0, 10, 0), a_range(5, 6, 1)]
    assert split(ranges) == ranges
    assert split(ranges, at_least=2) == ranges


def test_a_long_range_gets_more_pieces_than_a_short_one() -> None:
    cut = split([a_range(0, 90, 0), a_range(0, 10, 1)], at_least=10)
    assert [each.partition for each in cut].count(0) == 9
    assert len(cut) == 10


def test_no_range_is_longer_than_asked() -> None:
    assert [(each.start, each.end) for each in split([a_range(100, 110)], at_most_rows=4)] == [
        (100, 103),
        (103, 106),
        (106, 110),
    ]


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=8),
    at_least=st.one_of(st.none(), st.integers(1, 40)),
    at_most=st.one_of(st.none(), st.integers(1, 100)),
)
def test_pieces_are_the_whole_without_gap_or_overlap(
    sizes: list[int], at_least: int | None, at_most: int | None
) -> None:
    ranges = [a_range(100 * number, 100 * number + size, number) for number, size in enumerate(sizes)]
    cut = split(ranges, at_least=at_least, at_most_rows=at_most)
    offsets = [(each.partition, offset) for each in cut for offset in range(each.start, each.end)]
    assert offsets == [(each.partition, offset) for each in ranges for offset in range(each.start, each.end)]
    assert all(each.start < each.end for each in cut)
    assert len(cut) >= min(at_least or 0, sum(sizes))
    assert at_most is None or all(each.end - each.start <= at_most for each in cut)


@given(available=st.lists(st.integers(0, 1000), max_size=8), limit=st.integers(1, 3000))
def test_shares_reach_the_limit_and_starve_nobody(available: list[int], limit: int) -> None:
    counts = {("orders", number): count for number, count in enumerate(available)}
    shares = admit(counts, limit)
    assert min(limit, sum(available)) <= sum(shares.values()) <= min(limit + len(available), sum(available))
    assert all(min(1, count) <= shares[key] <= count for key, count in counts.items())


@pytest.mark.parametrize(("available", "limit", "shares"), [([100, 300], 40, [10, 30]), ([5, 1, 9], 3, [1, 1, 1])])
def test_shares_go_by_what_there_is(available: list[int], limit: int, shares: list[int]) -> None:
    assert list(admit({("orders", number): count for number, count in enumerate(available)}, limit).values()) == shares
