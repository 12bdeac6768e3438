"""A segment's card: finds batches by offset and time as a plain list would, and is never trusted when damaged."""

from array import array

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.checked_file import DamagedFile
from penstock.storage.log import card as cards
from penstock.storage.log.card import BLOCK_BYTES, Card, block_sums

batches = st.lists(st.tuples(st.integers(1, 5), st.integers(61, 9000), st.integers(-1, 50)), min_size=1, max_size=40)


def fill(given_batches: list[tuple[int, int, int]], interval: int, base: int = 1000) -> tuple[Card, list[list[int]]]:
    """The card, and [base offset, position, largest time before it, its own time] of each batch."""
    card, rows, largest = Card(base), [], -1
    offset = base
    for count, size, timestamp in given_batches:
        rows.append([offset, card.size, largest, timestamp])
        card.add(offset, offset + count, size, timestamp, interval)
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
    card.sums = array("I", [1, 2, 0xFFFFFFFF])
    again = cards.decode(card.encode(), "x")
    for name in Card.__slots__:
        assert getattr(again, name) == getattr(card, name), name
    # It goes on being written as if nothing had happened.
    for one in (card, again):
        one.add(card.next_offset, card.next_offset + 1, 100, 7, interval)
    assert list(again.positions) == list(card.positions)
    assert rows


def test_every_flipped_bit_is_found() -> None:
    card, _ = fill([(2, 100, 5), (1, 5000, 6), (3, 70, 2)], 100)
    card.sums = array("I", [7, 8])
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


def test_block_sums_cover_every_byte_and_known_blocks_are_not_read_again() -> None:
    data = bytes(range(256)) * 800  # 3.125 blocks
    reads = []

    def read(size: int, position: int) -> bytes:
        reads.append((position, size))
        return data[position : position + size]

    whole = block_sums(read, len(data), array("I"), 0)
    assert list(whole) == [crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    reads.clear()
    known = block_sums(read, 2 * BLOCK_BYTES + 100, array("I"), 0)
    reads.clear()
    assert block_sums(read, len(data), known, 2 * BLOCK_BYTES + 100) == whole
    assert [position for position, _ in reads] == [2 * BLOCK_BYTES, 3 * BLOCK_BYTES]
