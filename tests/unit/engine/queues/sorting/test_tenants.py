"""Whose turn it is among tenants: who has the fewest messages out for its weight, and nobody waits for the others."""

import pytest

from penstock.engine.queues.answers import Want
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.settings import QUEUE_RULES, OnFull, QueueRules
from penstock.engine.queues.sorting.marks import Said
from penstock.engine.queues.sorting.tenants import Tenants, TurnOf
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind

NAMES = ["", "a", "b", "c"]
FREE = QUEUE_RULES._replace(max_unacked=1 << 30, max_unacked_consumer=1 << 30)


class Lane:
    """Strand 10 + n is of tenant n."""

    def __init__(self, weights: dict[str, float] | None = None, names: list[str] = NAMES) -> None:
        self.tenants = Tenants(weights or {}, names)
        self.turn = TurnOf(self.tenants)

    def wait(self, *tenants: int) -> None:
        for tenant in tenants:
            self.turn.add(10 + tenant, tenant)

    def give(self) -> int:
        """The tenant who gets a message out."""
        strand = self.turn.first()
        assert strand is not None
        self.turn.took(strand, 1)
        self.tenants.more(strand - 10, 1)
        return strand - 10

    def settle(self, tenant: int, count: int = 1) -> None:
        self.tenants.less(tenant, count)
        self.turn.lighter(tenant)

    def give_and_settle(self) -> int:
        tenant = self.give()
        self.settle(tenant)
        return tenant


def test_nobody_waits_nobody_has_a_turn() -> None:
    lane = Lane()
    assert lane.turn.first() is None
    lane.wait(1)
    lane.turn.remove(11)
    assert lane.turn.first() is None
    assert len(lane.turn) == 0


@pytest.mark.parametrize("is_settled_at_once", [True, False])
def test_a_quiet_tenant_is_next_beside_a_hundred_times_noisier_one(is_settled_at_once: bool) -> None:
    lane = Lane()
    lane.wait(1)
    for _ in range(50):
        for _ in range(100):
            assert lane.give() == 1
            if is_settled_at_once:
                lane.settle(1)
        lane.wait(2)
        assert 2 in (lane.give(), lane.give())  # one turn of the other's, at most
        lane.settle(2)
        lane.turn.remove(12)


@pytest.mark.parametrize("is_settled_at_once", [True, False])
@pytest.mark.parametrize("weights", [{}, {"a": 4.0, "b": 0.5}, {"c": 100.0}, {"a": 0.01, "": 3.0}])
def test_each_has_its_share_by_weight(weights: dict[str, float], is_settled_at_once: bool) -> None:
    lane = Lane(weights)
    lane.wait(0, 1, 2, 3)
    given = [0, 0, 0, 0]
    for _ in range(10_000):
        given[lane.give_and_settle() if is_settled_at_once else lane.give()] += 1
    of_all = sum(weights.get(name, 1.0) for name in NAMES)
    for count, name in zip(given, NAMES, strict=True):
        assert count == pytest.approx(10_000 * weights.get(name, 1.0) / of_all, rel=0.05, abs=2)


def test_who_has_the_fewest_out_is_next() -> None:
    lane = Lane()
    lane.wait(1)
    assert [lane.give() for _ in range(5)] == [1] * 5
    lane.wait(2)
    assert [lane.give() for _ in range(5)] == [2] * 5
    lane.settle(1, 3)
    assert [lane.give() for _ in range(3)] == [1] * 3


def test_what_was_settled_while_a_tenant_waited_alone_is_known_when_others_come() -> None:
    lane = Lane()
    lane.wait(1)
    assert [lane.give() for _ in range(100)] == [1] * 100
    lane.settle(1, 100)
    lane.wait(2)
    given = [lane.give_and_settle() for _ in range(10)]
    assert given.count(1) == given.count(2) == 5


def test_who_comes_late_or_again_makes_up_for_nothing() -> None:
    lane = Lane()
    lane.wait(1)
    for _ in range(1000):
        lane.give_and_settle()
    lane.wait(2)
    given = [lane.give_and_settle() for _ in range(100)]
    assert given.count(1) == 50
    lane.turn.remove(12)
    for _ in range(1000):
        lane.give_and_settle()
    lane.wait(2)
    given = [lane.give_and_settle() for _ in range(100)]
    assert given.count(1) == 50


def test_many_turns_keep_little_in_memory() -> None:
    lane = Lane()
    lane.wait(1, 2, 3)
    for _ in range(10_000):
        lane.give_and_settle()
    assert len(lane.turn._heap) < 200


# --- in a ledger


class Ledger:
    def __init__(self, rules: QueueRules = FREE) -> None:
        self.machine = LedgerMachine(
            lambda name: rules,
            tuple,
            iter(range(1, 1 << 62)).__next__,
            lambda: 0.0,
            made=lambda: ("q",),
        )
        self.machine.open(0, 0, "q", 0)
        self.machine.look_from(0)
        self.said: list[Said] = []

    def send(self, count: int, tenant: str, priority: int | None = None) -> None:
        begin = len(self.said)
        self.said += [Said(offset, priority, tenant) for offset in range(begin, begin + count)]
        self.machine.looked(0, len(self.said) - 1, self.said[begin:], 0)

    def lease(self, most: int, lane: int | None = None) -> tuple[int, list[int]]:
        given, _ = self.machine.lease(0, Want("q", "c", most, lane=lane), len(self.said))
        return given.lease_id, [offset for run in given.ranges for offset in range(run.first, run.last + 1)]

    def tenant(self, lane: int | None = None, *, acks: bool) -> str:
        """Whose message is next."""
        lease_id, (offset,) = self.lease(1, lane)
        if acks:
            self.ack(lease_id, [offset])
        return self.said[offset].tenant or ""

    def ack(self, lease_id: int, offsets: list[int]) -> None:
        changes = [Change(offset, offset, Verdict(VerdictKind.ACK)) for offset in offsets]
        assert self.machine.settle(0, 0, "q", Receipt(lease_id), changes).records


def test_what_a_tenant_had_out_in_another_lane_is_known_when_it_is_settled() -> None:
    ledger = Ledger()
    ledger.send(50, "a", 9)
    ledger.send(50, "a")
    ledger.send(50, "b")
    lease_id, offsets = ledger.lease(50, lane=0)
    assert ledger.tenant(2, acks=True) == "b"
    assert ledger.tenant(2, acks=True) == "b"
    ledger.ack(lease_id, offsets)
    following = [ledger.tenant(2, acks=True) for _ in range(10)]
    assert following.count("a") in (5, 6)


def test_what_was_dropped_counts_for_nobody() -> None:
    ledger = Ledger(FREE._replace(on_full=OnFull.DROP_OLDEST))
    ledger.send(50, "a")
    ledger.send(50, "b")
    ledger.tenant(acks=True)
    ledger.tenant(acks=True)
    ledger.machine.overflow(0, "q", 40, 100)
    ledger.send(50, "c")
    following = [ledger.tenant(acks=True) for _ in range(9)]
    assert [following.count(name) for name in "abc"] == [3, 3, 3]
