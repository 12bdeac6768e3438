"""One active consumer: who may have messages, and until when."""

import pytest

from penstock.engine.coordination.deadlines import Deadlines
from penstock.engine.queues.answers import Want
from penstock.engine.queues.leases import Lease, Leases
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.settings import QUEUE_RULES
from penstock.engine.queues.single_active import ActiveConsumer
from penstock.engine.queues.window import Run

PATIENCE_MS = 1000


class Place:
    def __init__(self) -> None:
        self.active = ActiveConsumer()
        self.leases = Leases(1, Deadlines())

    def may(self, consumer: str, now: int) -> bool:
        return self.active.may_have(consumer, self.leases, now, PATIENCE_MS)

    def give(self, consumer: str, count: int = 1) -> Lease:
        return self.leases.add(1, consumer, 0, 1 << 40, [Run(0, count - 1)], is_bound=False)

    def settle(self, lease: Lease) -> None:
        self.leases.less(lease.slot, lease.count)


@pytest.fixture(name="place")
def _place() -> Place:
    return Place()


def test_whoever_asks_first_is_the_one(place: Place) -> None:
    assert place.may("anna", 0)
    assert not place.may("bert", 0)
    assert place.may("anna", 500)


def test_it_is_as_long_as_it_asks(place: Place) -> None:
    for now in range(0, 10_000, PATIENCE_MS - 1):
        assert place.may("anna", now)
        assert not place.may("bert", now + PATIENCE_MS - 1)
    assert place.may("bert", 20_000)
    assert not place.may("anna", 20_000)


def test_it_is_as_long_as_it_has_anything(place: Place) -> None:
    assert place.may("anna", 0)
    lease = place.give("anna")
    assert not place.may("bert", 50 * PATIENCE_MS)
    assert place.may("anna", 50 * PATIENCE_MS)
    place.settle(lease)
    assert place.may("bert", 60 * PATIENCE_MS)


def test_asking_in_vain_keeps_nobody_active(place: Place) -> None:
    assert place.may("anna", 0)
    assert not place.may("bert", PATIENCE_MS - 1)
    assert place.may("carl", PATIENCE_MS)


def test_who_has_left_is_followed_at_once(place: Place) -> None:
    assert place.may("anna", 0)
    assert not place.active.left("bert")
    assert not place.may("bert", 1)
    assert place.active.left("anna")
    assert place.may("bert", 1)


def test_the_next_one_gets_nothing_while_others_have_messages(place: Place) -> None:
    lease = place.give("anna")  # by the broker that led before
    assert not place.may("bert", 0)
    assert not place.may("anna", 1)
    place.settle(lease)
    assert place.may("bert", 2)


def test_a_clock_that_goes_back_keeps_nobody_active(place: Place) -> None:
    assert place.may("anna", 50_000)
    assert place.may("bert", 10)


def test_who_waits_is_woken_when_the_active_one_leaves_with_nothing() -> None:
    rules = QUEUE_RULES._replace(single_active=True)
    machine = LedgerMachine(lambda name: rules, tuple, iter(range(1, 99)).__next__, lambda: 0.0)
    machine.open(0, 0, "q", 0)
    machine.lease(0, Want("q", "anna", 1), 0)
    machine.stirred.clear()
    machine.leave(1, 0, "q", "bert", graceful=True)
    assert not machine.stirred
    machine.leave(1, 0, "q", "anna", graceful=True)
    assert machine.stirred == {"q"}
