"""Who owned what when, and gaps in the flow."""

import pytest
from bench.timeline import Change, longest_gap_s, ownership, unmoved, whole_from


def told(at_s: float, member: int, kind: str, *partitions: int) -> Change:
    return Change(at_s, member, kind, frozenset(partitions))  # type: ignore[arg-type]


HANDED_ON = [
    told(1, 0, "assigned", 0, 1),
    told(2, 1, "joins"),
    told(3, 0, "revoked", 1),
    told(4, 1, "assigned", 1),
]


def test_whole_from_the_last_change_of_hands() -> None:
    assert whole_from(HANDED_ON, partitions=2, members=2) == 4


def test_changes_of_nothing_do_not_count() -> None:
    assert whole_from([*HANDED_ON, told(5, 0, "assigned"), told(6, 2, "joins")], partitions=2, members=2) == 4


@pytest.mark.parametrize(
    ("changes", "partitions", "members"),
    [
        (HANDED_ON[:3], 2, 1),  # 1 belongs to nobody
        (HANDED_ON, 3, 2),  # 2 belongs to nobody
        (HANDED_ON, 2, 3),  # a member has nothing
        ([*HANDED_ON, told(5, 1, "lost", 1)], 2, 2),
        ([*HANDED_ON, told(5, 0, "assigned", 1)], 2, 2),  # 1 belongs to two
    ],
)
def test_not_whole(changes: list[Change], partitions: int, members: int) -> None:
    assert whole_from(changes, partitions, members) is None


def test_a_partition_given_before_it_was_taken_is_owned_twice() -> None:
    early = [told(1, 0, "assigned", 0, 1), told(2, 1, "assigned", 1), told(3, 0, "revoked", 1)]
    assert ownership(early).twice == {1}
    assert ownership(HANDED_ON).twice == set()
    assert ownership(early).is_whole(2, 2)  # in the end it is as it should be


def test_changes_count_by_their_time_not_by_their_arrival() -> None:
    assert ownership(reversed(HANDED_ON)).owners == {0: {0}, 1: {1}}


def test_unmoved_stay_with_their_member() -> None:
    assert unmoved(ownership(HANDED_ON, until_s=2), ownership(HANDED_ON)) == {0}


def test_gap_is_the_longest_of_any_partition_within_the_span() -> None:
    arrivals = {0: [0.0, 1.0, 1.5, 2.0, 9.0], 1: [0.9, 1.2, 1.9]}
    assert longest_gap_s(arrivals, 1.0, 2.0) == pytest.approx(0.7)


def test_a_partition_that_brings_nothing_is_a_gap_as_long_as_the_span() -> None:
    assert longest_gap_s({0: [], 1: [1.5]}, 1.0, 3.0) == 2.0
