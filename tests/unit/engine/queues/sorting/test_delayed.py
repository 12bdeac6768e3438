"""A queue in which every message waits: nothing is early, nothing is much too late, and little is kept of it."""

import random

import pytest

from penstock.engine.queues.sorting.delayed import Ripening

DELAY_MS = 30_000
GRAIN_MS = 10


@pytest.mark.parametrize("seed", range(6))
def test_never_early_and_late_by_no_more_than_the_grain(seed: int) -> None:
    chance, ripening = random.Random(seed), Ripening(DELAY_MS, 0)
    now, published = 1_000_003, list[int]()
    for _ in range(2000):
        if count := chance.choice((0, 0, 1, 20)):
            published += [now] * count
            ripening.add(len(published), now)
        now += chance.choice((0, 1, 3, 10, 400, 31_000))
        ripening.ripen(now)
        end = min(ripening.end, len(published))
        assert all(at + DELAY_MS <= now for at in published[:end])
        assert all(at + DELAY_MS + GRAIN_MS > now for at in published[end:])
        assert (ripening.next() is None) == (end == len(published))


def test_it_tells_whether_anything_has_become_ripe_and_when_to_ask_again() -> None:
    ripening = Ripening(100, 5)
    ripening.add(8, 1000)
    assert ripening.next() == 1100
    assert not ripening.ripen(1099)
    assert ripening.end == 5
    assert ripening.ripen(1100)
    assert not ripening.ripen(1101)
    assert ripening.next() is None


def test_a_moment_between_two_grains_is_rounded_up() -> None:
    ripening = Ripening(100, 0)
    ripening.add(1, 1001)
    assert ripening.next() == 1110


def test_what_was_published_before_by_its_own_clock_waits_for_what_lies_before_it() -> None:
    ripening = Ripening(100, 0)
    ripening.add(1, 5000)
    ripening.add(2, 1000)
    assert not ripening.ripen(5090)
    assert ripening.ripen(5100)
    assert ripening.next() is None


def test_those_of_a_moment_are_kept_as_one() -> None:
    ripening = Ripening(DELAY_MS, 0)
    for end in range(1, 100_000):
        ripening.add(end, 1000)
    assert len(ripening._waiting) == 1


@pytest.mark.parametrize("gap_ms", [10, 50, 1000])
def test_memory_is_bounded_and_then_it_is_late_by_a_ten_thousandth(gap_ms: int) -> None:
    count = 120_000
    delay_ms = count * gap_ms * 2
    ripening = Ripening(delay_ms, 0)
    for at in range(count):
        ripening.add(at + 1, at * gap_ms)
        assert len(ripening._waiting) <= 50_000
    late = check_lateness(ripening, [at * gap_ms for at in range(count)], delay_ms)
    assert late <= delay_ms / 10_000


@pytest.mark.parametrize("before", [30_000, 30_001])
def test_a_pause_makes_nobody_late_who_came_before_it(before: int) -> None:
    day_ms = 86_400_000
    published = [10 * at for at in range(before)] + [day_ms + 10 * at for at in range(30_000)]
    ripening = Ripening(2 * day_ms, 0)
    for at, when in enumerate(published):
        ripening.add(at + 1, when)
    assert check_lateness(ripening, published, 2 * day_ms) <= 2 * day_ms / 10_000


def check_lateness(ripening: Ripening, published: list[int], delay_ms: int) -> int:
    """The longest that anything is late."""
    late, done = 0, 0
    while (at := ripening.next()) is not None:
        ripening.ripen(at)
        end = min(ripening.end, len(published))
        assert published[end - 1] + delay_ms <= at
        late = max(late, at - published[done] - delay_ms)
        done = end
    assert done == len(published)
    return late
