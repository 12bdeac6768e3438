"""Hand-made histories of moves: who is not waited for, and who must be."""

from dataclasses import replace

import pytest

from penstock.engine.partition_state import PartitionState
from tests.simulation.moves import Moves

KEY = "partitions/t/000000"
MOVING = PartitionState((4, 2, 3, 1), (4, 3, 1), 4, 3, revision=10, target=(4, 2, 3), origin=(2, 4, 1))


class History:
    """Four brokers that are there from revisions 1 to 4 on."""

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.moves = Moves(self.live.__contains__)
        for broker_id in (1, 2, 3, 4):
            self.come(broker_id, at=broker_id)

    def come(self, broker_id: int, at: int) -> None:
        self.live.add(broker_id)
        self.moves.broker_changed(broker_id, at)

    def go(self, broker_id: int, at: int) -> None:
        self.live.discard(broker_id)
        self.moves.broker_changed(broker_id, at)

    def move(self, before: PartitionState = MOVING) -> None:
        assert self.moves.partition_changed(KEY, before) is None

    def end(self, before: PartitionState = MOVING) -> str | None:
        return self.moves.partition_changed(KEY, replace(before.arrived().led_by(4), revision=20))


def test_all_are_in_sync() -> None:
    history = History()
    before = replace(MOVING, isr=(4, 2, 3, 1))
    history.move(before)
    assert history.end(before) is None


def test_who_stays_and_is_there_is_waited_for() -> None:
    history = History()
    history.move()
    assert history.end() == "000000 has moved to [4, 2, 3], in sync are [4, 3] of them"


def test_who_stays_and_is_away_is_not_waited_for() -> None:
    history = History()
    history.go(2, at=5)
    history.move()
    assert history.end() is None


@pytest.mark.parametrize("gone_at", [5, 11])
def test_who_came_while_it_was_decided_need_not_have_been_seen(gone_at: int) -> None:
    history = History()
    if gone_at < MOVING.revision:
        history.go(2, at=gone_at)
    history.move()
    if gone_at > MOVING.revision:
        history.go(2, at=gone_at)
    history.come(2, at=12)
    assert history.end() is None


def test_who_came_before_it_was_decided_is_waited_for() -> None:
    history = History()
    history.go(2, at=5)
    history.come(2, at=6)
    history.come(2, at=11)  # says something else of itself
    history.move()
    assert history.end() is not None


def test_who_is_new_is_waited_for_although_it_is_away() -> None:
    history = History()
    history.go(3, at=5)
    before = replace(MOVING, isr=(4, 2, 1))
    history.move(before)
    assert history.end(before) is not None


def test_one_that_is_taken_back_ends_sooner() -> None:
    history = History()
    before = replace(MOVING, target=MOVING.origin, isr=(4, 1))
    history.move(before)
    assert history.end(before) is None
