"""What is due, by time, against a sorted list."""

import random

import pytest

from penstock.engine.queues.sorting.later import MOST_OFFSET, Later, Waiting


@pytest.mark.parametrize("seed", range(8))
def test_against_a_sorted_list(seed: int) -> None:
    chance, later, there = random.Random(seed), Later(), list[tuple[int, int]]()
    now, offset = 1_700_000_000_000, 0
    for _ in range(600):
        for _ in range(chance.choice((0, 1, 3, 40))):
            due = now + chance.choice((1, 5, 900, 1024, 4000, 90_000)) + chance.randrange(200)
            later.add(due, offset)
            there.append((due, offset))
            offset += 1
        assert later.count == len(there)
        expected = later.next_due()
        assert (expected is None) == (not there)
        assert expected is None or expected <= min(there)[0]
        now += chance.choice((0, 1, 60, 700, 5000))
        most = chance.choice((1, 5, 1000))
        there.sort()
        ready = [each for each in there if each[0] <= now][:most]
        assert later.pop_due(now, most) == [offset for _, offset in ready]
        del there[: len(ready)]
        after = Waiting(now + chance.choice((0, 500, 2000)), chance.randrange(offset + 1))
        expected_page = [each for each in there if each > after][:7]
        assert later.browse(after, 7) == expected_page


def test_those_of_a_moment_come_in_their_order() -> None:
    later = Later()
    for offset in (5, 3, 9, 1):
        later.add(1000, offset)
    assert later.pop_due(999, 10) == []
    assert later.pop_due(1000, 3) == [1, 3, 5]
    assert later.pop_due(1000, 3) == [9]
    assert later.next_due() is None


def test_who_asks_whenever_it_says_so_gets_each_at_its_moment_and_asks_seldom() -> None:
    chance, later = random.Random(5), Later()
    due = sorted(chance.randrange(1_000_000, 5_000_000) for _ in range(500))
    for offset, moment in enumerate(due):
        later.add(moment, offset)
    now, asked, found = 0, 0, list[tuple[int, int]]()
    while (at := later.next_due()) is not None:
        now, asked = max(now, at), asked + 1
        found += [(now, offset) for offset in later.pop_due(now, 100)]
    assert found == [(moment, offset) for offset, moment in enumerate(due)]
    assert asked < 4 * len(due)


def test_very_many_at_a_time_come_in_parts_and_none_is_early() -> None:
    later, count = Later(), 60_000
    for offset in range(count):
        later.add(1_000_000 + offset % 7, offset)
    assert later.pop_due(999_999, 10) == []
    found: list[int] = []
    for _ in range(20):
        found += later.pop_due(1_000_006, 20_000)
    assert sorted(found) == list(range(count))
    assert later.next_due() is None


def test_what_is_added_behind_all_others_that_wait_is_found_whatever_its_offset() -> None:
    later = Later()
    later.add(2_000_000, MOST_OFFSET + 5)
    later.add(2_000_000, MOST_OFFSET)
    assert later.browse(Waiting(0, 0), 10) == [(2_000_000, MOST_OFFSET), (2_000_000, MOST_OFFSET + 5)]
    assert later.pop_due(1_999_999, 10) == []
    assert later.pop_due(2_000_000, 10) == [MOST_OFFSET, MOST_OFFSET + 5]


def test_what_is_added_below_the_bucket_that_is_open_comes_first() -> None:
    later = Later()
    later.add(5000, 1)
    assert later.pop_due(4200, 10) == []
    later.add(10, 2)
    later.add(5001, 3)
    later.add(7000, 4)
    assert later.pop_due(8000, 10) == [2, 1, 3, 4]


def test_an_entry_takes_some_eight_bytes() -> None:
    import tracemalloc

    later = Later()
    tracemalloc.start()
    for offset in range(100_000):
        later.add(1_700_000_000_000 + 10 * offset, offset)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 20 * 100_000
