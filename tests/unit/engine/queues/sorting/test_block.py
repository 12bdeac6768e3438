"""Where each strand is in 65,536 offsets, against a plain list of the strands."""

import random
from collections.abc import Iterator

import pytest

from penstock.engine.queues.sorting.block import PLAIN, SIZE, Block, everywhere

LATER = -1
"""In no strand: it comes into one when it is due."""


def values(block: Block, strand: int) -> list[int]:
    found = block.positions(strand)
    return list(found.values[found.begin : found.end])


def steps(chance: random.Random, plain: int, total: int) -> Iterator[tuple[str, int]]:
    left = total - plain
    while left:
        if chance.random() < 0.2:
            count = min(left, chance.choice((1, 10, 900)))
            yield "plain", count
        else:
            count = 1
            yield ("later" if chance.random() < 0.1 else "one"), chance.choice((PLAIN, 1, 2, 7, 40_000))
        left -= count


@pytest.mark.parametrize("total", [3000, SIZE - 1, SIZE])
@pytest.mark.parametrize("plain", [0, 500])
def test_against_a_plain_list(total: int, plain: int) -> None:
    block, which, homes = Block(plain), [PLAIN] * plain, [PLAIN] * plain
    for what, number in steps(random.Random(total + plain), plain, total):
        if what == "plain":
            block.add_plain(number)
            which += [PLAIN] * number
            homes += [PLAIN] * number
            continue
        is_first = number not in homes
        assert block.add(number, is_later=what == "later") == (is_first and what == "one")
        which.append(number)
        homes.append(LATER if what == "later" else number)
    assert block.count == total
    assert block.is_full == (total == SIZE)
    for strand in (PLAIN, 1, 2, 3, 7, 40_000, 50_000):
        assert values(block, strand) == [at for at, of in enumerate(homes) if of == strand]
    assert sorted(block.strands) == sorted(set(homes) - {LATER})
    assert [block.which(at) for at in range(total)] == which
    assert list(block.which_in(100, 200) or ()) == which[100:200]


def test_places_stay_the_same_when_a_block_is_full() -> None:
    block = Block(0)
    for at in range(SIZE - 1):
        block.add(at % 3 + 1, is_later=False)
    open_ones = {strand: values(block, strand) for strand in (1, 2, 3)}
    block.add(9, is_later=False)
    assert block.is_full
    assert {strand: values(block, strand) for strand in (1, 2, 3)} == open_ones
    assert values(block, 9) == [SIZE - 1]
    assert values(block, PLAIN) == []


def test_a_block_in_which_nothing_says_anything() -> None:
    block = Block(10)
    block.add_plain(5)
    assert block.which_in(0, 15) is None
    assert values(block, PLAIN) == list(range(15))
    assert values(block, 1) == []
    found = everywhere(15)
    assert list(found.values[found.begin : found.end]) == list(range(15))


def test_keys_have_slots_whenever_the_first_comes() -> None:
    block = Block(3)
    block.add(PLAIN, is_later=False)
    assert block.slots is None
    block.add(PLAIN, is_later=False)
    block.set_slot(4, 77)
    block.add_plain(2)
    block.add(1, is_later=True)
    block.set_slot(7, 0xFFFFFFFF)
    assert block.slots is not None
    assert list(block.slots) == [0, 0, 0, 0, 77, 0, 0, 0xFFFFFFFF]
