"""Which keys wait for which message, against plain lists of what each key has."""

import random

import pytest

from penstock.engine.queues.sorting.keys import MOST_ASIDE, Keys


def test_one_of_a_key_at_a_time_and_others_at_once() -> None:
    keys = Keys()
    assert keys.take(7, 0)
    assert keys.take(8, 1)
    assert not keys.take(7, 2)
    assert not keys.take(7, 3)
    assert keys.settled(7, 0) == 2
    assert keys.settled(7, 2) == 3
    assert keys.settled(7, 3) is None
    assert keys.take(7, 4)


def test_what_came_back_has_its_key_still() -> None:
    keys = Keys()
    assert keys.take(7, 5)
    assert not keys.take(7, 6)
    assert keys.take(7, 5)
    assert keys.count_aside == 1


def test_what_does_not_have_the_key_frees_nothing() -> None:
    keys = Keys()
    keys.take(7, 5)
    keys.take(7, 6)
    assert keys.settled(7, 6) is None
    assert keys.settled(9, 5) is None
    assert keys.settled(7, 5) == 6


def test_what_was_set_aside_out_of_order_comes_up_in_order() -> None:
    keys = Keys()
    keys.take(7, 10)
    for offset in (40, 12, 31, 11):
        assert not keys.take(7, offset)
    came = [keys.settled(7, 10)]
    while came[-1] is not None:
        came.append(keys.settled(7, came[-1]))
    assert came == [11, 12, 31, 40, None]


def test_it_is_crowded_when_a_million_are_set_aside() -> None:
    keys = Keys()
    keys.take(7, 0)
    keys.count_aside = MOST_ASIDE - 1
    assert not keys.is_crowded
    keys.take(7, 1)
    assert keys.is_crowded
    keys.settled(7, 0)
    assert not keys.is_crowded


def test_what_lies_below_is_found_with_its_keys() -> None:
    keys = Keys()
    for slot, offset in ((1, 3), (2, 4), (3, 9)):
        keys.take(slot, offset)
    assert sorted(keys.owned_below(9)) == [(1, 3), (2, 4)]
    assert keys.owned_below(3) == []


@pytest.mark.parametrize("seed", range(5))
def test_against_plain_lists(seed: int) -> None:
    chance, keys = random.Random(seed), Keys()
    out: dict[int, int] = {}
    aside: dict[int, list[int]] = {}
    for offset in range(3000):
        slot = chance.randrange(1, 20)
        assert keys.take(slot, offset) == (slot not in out)
        if slot in out:
            aside.setdefault(slot, []).append(offset)
        else:
            out[slot] = offset
        if out and chance.random() < 0.6:
            slot = chance.choice(sorted(out))
            expected = aside[slot].pop(0) if aside.get(slot) else None
            assert keys.settled(slot, out.pop(slot)) == expected
            if expected is not None:
                out[slot] = expected
        assert keys.count_aside == sum(map(len, aside.values()))
