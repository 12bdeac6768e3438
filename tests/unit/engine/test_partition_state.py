"""A partition's state on its way to other brokers: who holds it meanwhile, when it has arrived, and the way back."""

import orjson
import pytest

from penstock.engine.partition_state import NOBODY, PartitionState

SETTLED = PartitionState((1, 2, 3), (1, 2, 3), 1, 4, revision=9)


def test_a_move_has_old_and_new_replicas_the_new_ones_first() -> None:
    moving = SETTLED.move_to((4, 2, 5))
    assert moving.replicas == (4, 2, 5, 1, 3)
    assert (moving.target, moving.origin) == ((4, 2, 5), (1, 2, 3))
    assert (moving.isr, moving.leader, moving.leader_epoch, moving.revision) == ((1, 2, 3), 1, 4, 9)


def test_a_move_that_is_sent_elsewhere_remembers_where_it_came_from() -> None:
    moving = SETTLED.move_to((4, 5, 6)).with_isr((1, 2, 3, 4), 2).move_to((7, 1, 2))
    assert moving.origin == (1, 2, 3)
    assert moving.target == (7, 1, 2)
    assert moving.replicas == (7, 1, 2, 4, 5, 6, 3), "who holds some of it was forgotten before the move ends"
    assert set(moving.isr) == {1, 2, 3, 4}


def test_the_least_number_in_sync_goes_by_the_replicas_before_the_move() -> None:
    assert SETTLED.width == 3
    assert SETTLED.move_to((4, 5, 6)).width == 3
    assert SETTLED.move_to((4,)).width == 3
    assert SETTLED.move_to((4,)).with_isr((4, 1, 2, 3), 2).arrived().width == 1


@pytest.mark.parametrize(
    ("isr", "is_there"),
    [((1, 2, 3), False), ((1, 2, 3, 4), False), ((4, 5), False), ((4, 5, 6), True), ((1, 4, 5, 6), True)],
)
def test_it_has_arrived_when_all_of_the_target_are_in_sync(isr: tuple[int, ...], is_there: bool) -> None:
    moving = SETTLED.move_to((4, 5, 6)).with_isr(isr, 2)
    assert moving.is_arrived(2) is is_there


def test_taken_back_it_has_arrived_when_enough_are_in_sync() -> None:
    """Some of those it came from may have been gone before."""
    back = SETTLED.move_to((4, 5, 6)).with_isr((1, 4), 2).move_to((1, 2, 3))
    assert not back.is_arrived(2)
    assert back.with_isr((1, 2, 4), 2).is_arrived(2)
    assert not back.with_isr((4, 5, 6), 2).is_arrived(1), "nobody of those it goes back to is in sync"


@pytest.mark.parametrize(
    ("isr", "is_there"),
    [((2,), False), ((2, 4), True), ((1, 2), False), ((2, 3), False)],
    ids=["nobody new", "all who can", "the new one is missing", "one has come back, the new one is missing"],
)
def test_those_who_held_it_before_and_are_away_are_not_waited_for(isr: tuple[int, ...], is_there: bool) -> None:
    """Brokers 1 and 3 are lost: 1 can be replaced by 4 although 3 stays."""
    moving = SETTLED.move_to((4, 2, 3)).with_isr(isr, 2)
    assert moving.is_arrived(2, absent=(3,)) is is_there
    assert not moving.is_arrived(2), "without a word of who is away all are waited for"


def test_one_that_is_new_is_waited_for_though_it_is_away() -> None:
    moving = SETTLED.move_to((4, 5, 3)).with_isr((3, 4, 1, 2), 2)
    assert not moving.is_arrived(2, absent=(5,))


def test_it_has_not_arrived_while_others_may_hold_what_was_acknowledged() -> None:
    moving = PartitionState((4, 1, 2), (4,), 4, 7, elr=(1,), target=(4,), origin=(1, 2))
    assert not moving.is_arrived(1)
    assert not PartitionState((4, 1, 2), (4,), 4, 7, last=(1,), target=(4,), origin=(1, 2)).is_arrived(1)
    assert PartitionState((4, 1, 2), (4,), 4, 7, target=(4,), origin=(1, 2)).is_arrived(1)


def test_what_has_arrived_is_held_by_the_target_alone() -> None:
    moving = SETTLED.move_to((4, 2, 5)).with_isr((1, 2, 4, 5), 2)
    settled = moving.arrived()
    assert (settled.replicas, settled.isr) == ((4, 2, 5), (4, 2, 5))
    assert (settled.target, settled.origin) == ((), ())
    assert (settled.leader, settled.leader_epoch) == (1, 4), "who leads then is for an election"


@pytest.mark.parametrize(
    "state",
    [
        SETTLED,
        SETTLED.move_to((4, 5)),
        PartitionState((1,), (), NOBODY, 3, elr=(1,), forced_epoch=0, revision=9),
    ],
)
def test_it_is_read_as_it_was_written(state: PartitionState) -> None:
    assert PartitionState.decode(state.encode(), 9) == state


def test_a_partition_that_does_not_move_is_written_as_it_always_was() -> None:
    """Brokers of an earlier version read it, and it costs no room."""
    assert set(orjson.loads(SETTLED.encode())) == {"replicas", "isr", "leader", "leader_epoch", "elr", "last"}
