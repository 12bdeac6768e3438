"""Bugs planted in acknowledgements that are part of transactions; see `planted.py`."""

from collections.abc import Sequence
from typing import Any

from penstock.engine.queues import entries, machine, verdicts
from penstock.engine.queues.group import Group
from penstock.engine.queues.leases import Lease, Leases
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.verdicts import Ack
from penstock.engine.transactions.requests import AddPartitions
from penstock.engine.transactions.transactions import Admissions, Settled, Transactions
from tests.simulation.planted import Planted, _both, _instead

_settled_in = verdicts.settled_in
_hold, _replay = Leases.hold, Group.replay


def _settled_at_once(group: Group, producer_id: int, acks: Sequence[Ack]) -> list[entries.Value]:
    return [
        entries.Settled(entries.How.ACKED, value.runs) if isinstance(value, entries.SettledIn) else value
        for value in _settled_in(group, producer_id, acks)
    ]


def _hold_and_go_on(self: Leases, lease: Lease, producer: int | None) -> None:
    _hold(self, lease, producer)
    if lease.is_pending:
        self._deadlines.set((self._group, lease.slot), lease.deadline)


def _no_marker(self: LedgerMachine, producer_id: int, *, committed: bool) -> None:
    return None


def _marker_of_commits_alone(self: LedgerMachine, producer_id: int, *, committed: bool) -> None:
    for group in self.groups:
        group.decide(producer_id, committed=True)


def _check_no_ledger(self: Admissions, place: Any) -> None:
    if "~" not in place[0]:
        _check(self, place)


async def _settled_without_asking(self: Transactions, request: AddPartitions) -> Settled:
    if any("~" in topic for topic, _ in request.partitions):
        return Settled(dict.fromkeys(request.partitions), False)
    return await _settled(self, request)


_check, _settled = Admissions.check, Transactions._settled


def _replay_without_transactions(self: Group, value: entries.Value) -> None:
    if not isinstance(value, entries.SettledIn):
        _replay(self, value)


PLANTED_TRANSFORMERS: dict[str, Planted] = {
    "acked_before_the_commit": Planted(
        "what is acknowledged in a transaction is settled at once", _instead(machine, "settled_in", _settled_at_once)
    ),
    "abort_settles": Planted(
        "whatever ends a transaction settles what is acknowledged in it",
        _instead(LedgerMachine, "marker", _marker_of_commits_alone),
    ),
    "markers_pass_ledgers_by": Planted(
        "a marker in its log says nothing to a ledger",
        _instead(LedgerMachine, "marker", _no_marker),
    ),
    "lease_ends_in_a_transaction": Planted(
        "a lease ends by its time though a transaction has its messages", _instead(Leases, "hold", _hold_and_go_on)
    ),
    "ledger_outside_the_transaction": Planted(
        "the coordinator is not told that a ledger is part of a transaction",
        _both(
            _instead(Transactions, "_settled", _settled_without_asking),
            _instead(Admissions, "check", _check_no_ledger),
        ),
    ),
    "late_acks_taken": Planted(
        "a ledger takes what comes when its transaction has ended", _instead(Admissions, "check", _check_no_ledger)
    ),
    "acks_in_transactions_lost_at_failover": Planted(
        "whoever leads next does not read what is acknowledged in transactions",
        _instead(Group, "replay", _replay_without_transactions),
    ),
}
