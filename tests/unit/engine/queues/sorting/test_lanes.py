"""Whose turn it is among priorities: shares, the highest first, and nobody waits for ever."""

import random

import pytest

from penstock.engine.queues.sorting.lanes import LANES_COUNT, STARVED_MS, WEIGHTS, LaneOrder, Lanes

ALL = [True] * LANES_COUNT
COUNT = 10_000


def give(lanes: Lanes, now: int, waiting: list[bool], room: int) -> list[int]:
    """An answer with so many messages: how many of each lane."""
    given = [0] * LANES_COUNT
    while room and (turn := lanes.next(now, waiting)) is not None:
        count = min(room, turn.most)
        lanes.served(now, turn.lane, count)
        given[turn.lane] += count
        room -= count
    return given


def give_on(lanes: Lanes, waiting: list[bool], sizes: random.Random, now: int = 0) -> list[int]:
    total = [0] * LANES_COUNT
    while sum(total) < COUNT:
        room = min(sizes.choice((1, 2, 7, 50, 333)), COUNT - sum(total))
        total = [one + more for one, more in zip(total, give(lanes, now, waiting, room), strict=True)]
    return total


@pytest.mark.parametrize("seed", range(5))
def test_each_has_its_share_however_large_the_answers_are(seed: int) -> None:
    given = give_on(Lanes(LaneOrder.WEIGHTED), ALL, random.Random(seed))
    for count, weight in zip(given, WEIGHTS, strict=True):
        assert count == pytest.approx(COUNT * weight / sum(WEIGHTS), rel=0.05)


def test_what_some_do_not_need_is_for_the_others_in_their_proportions() -> None:
    waiting = [False, True, False, True, True]
    given = give_on(Lanes(LaneOrder.WEIGHTED), waiting, random.Random(1))
    of_all = sum(weight for weight, waits in zip(WEIGHTS, waiting, strict=True) if waits)
    for count, weight, waits in zip(given, WEIGHTS, waiting, strict=True):
        assert count == pytest.approx(COUNT * weight * waits / of_all, rel=0.05)


def test_a_lane_that_ran_empty_keeps_nothing_of_its_turn() -> None:
    lanes = Lanes(LaneOrder.WEIGHTED)
    assert give(lanes, 0, ALL, 10) == [10, 0, 0, 0, 0]
    without = [False, *ALL[1:]]
    assert give(lanes, 0, without, 50) == [0, 25, 15, 7, 3]
    assert give(lanes, 0, ALL, 100) == list(WEIGHTS)


def test_strict_gives_the_highest_that_has_any() -> None:
    lanes = Lanes(LaneOrder.STRICT)
    assert give(lanes, 0, ALL, 1000) == [1000, 0, 0, 0, 0]
    assert give(lanes, 0, [False, False, True, False, True], 1000) == [0, 0, 1000, 0, 0]


@pytest.mark.parametrize("order", LaneOrder)
def test_nothing_waits_in_an_empty_queue(order: LaneOrder) -> None:
    assert Lanes(order).next(0, [False] * LANES_COUNT) is None


def test_who_waited_for_long_has_one_turn_and_waits_again() -> None:
    lanes = Lanes(LaneOrder.STRICT)
    give(lanes, 0, ALL, 10)
    assert give(lanes, STARVED_MS - 1, ALL, 100) == [100, 0, 0, 0, 0]
    assert give(lanes, STARVED_MS, ALL, 100) == [
        100 - 3 - 7 - 15 - 25,
        25,
        15,
        7,
        3,
    ]  # of the highest what is left of the answer
    assert give(lanes, STARVED_MS + 1, ALL, 100) == [100, 0, 0, 0, 0]
    assert give(lanes, 2 * STARVED_MS - 1, ALL, 100) == [100, 0, 0, 0, 0]
    assert give(lanes, 2 * STARVED_MS, ALL, 100) == [50, 25, 15, 7, 3]


def test_a_boost_takes_nothing_from_the_shares() -> None:
    lanes = Lanes(LaneOrder.WEIGHTED)
    given = [0] * LANES_COUNT
    waiting = [True, False, False, False, True]
    for now in range(0, 20 * STARVED_MS, STARVED_MS):  # the lowest would be next only after the highest's fifty
        given = [one + more for one, more in zip(given, give(lanes, now, waiting, 10), strict=True)]
    assert given == [143, 0, 0, 0, 57]  # 19 times 3 of 190, and what is left as ever


def test_the_lowest_of_those_that_waited_for_long_comes_first() -> None:
    lanes = Lanes(LaneOrder.STRICT)
    give(lanes, 0, ALL, 1)
    assert give(lanes, STARVED_MS, ALL, 4) == [0, 0, 0, 1, 3]
    assert give(lanes, STARVED_MS, ALL, 16) == [0, 1, 15, 0, 0]


def test_who_had_nothing_meanwhile_has_not_waited() -> None:
    lanes = Lanes(LaneOrder.STRICT)
    highest, both = [True, False, False, False, False], [True, False, False, False, True]
    give(lanes, 0, both, 1)
    give(lanes, STARVED_MS - 1, highest, 1)
    assert give(lanes, STARVED_MS, both, 10) == [10, 0, 0, 0, 0]


def test_a_clock_that_goes_back_makes_nobody_wait_longer() -> None:
    lanes = Lanes(LaneOrder.STRICT)
    give(lanes, 10 * STARVED_MS, ALL, 1)
    give(lanes, 0, ALL, 1)
    assert give(lanes, STARVED_MS, ALL, 3) == [0, 0, 0, 0, 3]
