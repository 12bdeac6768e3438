"""A segment's card: finds batches by offset and time as a plain list would, and is never trusted when damaged."""

import random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.checked_file import DamagedFile
from penstock.storage.log import card as cards
from penstock.storage.log.card import BLOCK_BYTES, Card

batches = st.lists(st.tuples(st.integers(1, 5), st.integers(61, 9000), st.integers(-1, 50)), min_size=1, max_size=40)


def fill(given_batches: list[tuple[int, int, int]], interval: int, base: int = 1000) -> tuple[Card, list[list[int]]]:
    """The card, and [base offset, position, largest time before it, its own time] of each batch."""
    card, rows, largest = Card(base), [], -1
    offset = base
    for count, size, timestamp in given_batches:
        rows.append([offset, card.size, largest, timestamp])
        card.add(offset, offset + count, memoryview(bytes(size)), timestamp, interval)
        offset += count
        largest = max(largest, timestamp)
    return card, rows


@given(batches, st.sampled_from([0, 100, 4096]), st.integers(0, 200))
def test_walking_from_the_index_meets_the_offset(
    given_batches: list[tuple[int, int, int]], interval: int, ahead: int
) -> None:
    card, rows = fill(given_batches, interval)
    offset = 1000 + ahead
    start = card.position_before(offset)
    starts = [row[1] for row in rows]
    assert start in starts
    wanted = [row[1] for row in rows if row[0] <= offset][-1]
    assert start <= wanted
    # Never farther back than one index step and one batch.
    assert wanted - start < max(interval, 1) + 9000


@given(batches, st.sampled_from([0, 100, 4096]), st.integers(-1, 60))
def test_nothing_before_the_position_by_time_is_late_enough(
    given_batches: list[tuple[int, int, int]], interval: int, timestamp: int
) -> None:
    card, rows = fill(given_batches, interval)
    start = card.position_before_time(timestamp)
    assert all(row[3] < timestamp for row in rows if row[1] < start)


@given(batches, st.sampled_from([0, 100, 4096]))
def test_a_saved_card_is_the_same_card(given_batches: list[tuple[int, int, int]], interval: int) -> None:
    card, rows = fill(given_batches, interval)
    again = cards.decode(card.encode(), "x")
    for name in Card.__slots__:
        assert getattr(again, name) == getattr(card, name), name
    # It goes on being written as if nothing had happened.
    for one in (card, again):
        one.add(one.next_offset, one.next_offset + 1, memoryview(bytes(100)), 7, interval)
    assert list(again.positions) == list(card.positions)
    assert rows


def test_every_flipped_bit_is_found() -> None:
    card, _ = fill([(2, 100, 5), (1, 5000, 6), (3, 70, 2)], 100)
    data = card.encode()
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(DamagedFile):
                cards.decode(bytes(damaged), "x")
    for size in range(len(data)):
        with pytest.raises(DamagedFile):
            cards.decode(data[:size], "x")


@given(st.lists(st.integers(61, 150_000), min_size=1, max_size=8), st.integers(0, 7))
def test_block_sums_cover_every_byte_however_batches_fall_and_whenever_saved(sizes: list[int], saved: int) -> None:
    data = random.Random(len(sizes)).randbytes(sum(sizes))
    card, position = Card(0), 0
    for number, size in enumerate(sizes):
        card.add(number, number + 1, memoryview(data)[position : position + size], 0, 4096)
        position += size
        assert list(card.sums) == [
            crc32c(data[at : min(at + BLOCK_BYTES, position)]) for at in range(0, position, BLOCK_BYTES)
        ]
        if number == saved:
            card = cards.decode(card.encode(), "x")
