"""Bugs planted in queues; see `planted.py`."""

from collections.abc import Sequence
from typing import Any

from penstock.engine.forwarding import Forwarding
from penstock.engine.partition import Partition
from penstock.engine.queues import entries, verdicts
from penstock.engine.queues.burials import Burials
from penstock.engine.queues.group import Group
from penstock.engine.queues.leases import Leases
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.queues import Queues
from penstock.engine.queues.verdicts import By, Change
from penstock.engine.queues.window import Window
from penstock.storage.log.needs import Needed
from tests.simulation.planted import Planted, _instead

_replay, _add = Group.replay, Leases.add


async def _settle_at_once(self: Queues, partition: Partition, group: str, by: By, changes: Sequence[Change]) -> None:
    self.settle_soon(partition, group, by, changes)


def _replay_without_acks(self: Group, value: entries.Value) -> None:
    if not (isinstance(value, entries.Settled) and value.how is entries.How.ACKED):
        _replay(self, value)


def _add_for_less(
    self: Leases, lease_id: int, consumer: str, began: int, deadline: int, *more: Any, **known: Any
) -> Any:
    lease = _add(self, lease_id, consumer, began, deadline, *more, **known)
    self._deadlines.set((self._group, lease.slot), began + (deadline - began) // 4)
    return lease


async def _publish_without_number(self: Forwarding, partition: Partition, batch: bytes, *more: Any) -> Any:
    plain = bytearray(batch)
    plain[43:57] = b"\xff" * 14
    from penstock.records.stamp import stamp_producer

    return await self.publish(partition, stamp_producer(bytes(plain), -1, -1), *more)


async def _publish_nothing(self: Forwarding, *_: Any) -> None:
    return None


async def _bury_anew(self: Burials, shard: Any, messages: Any) -> None:
    if messages.begun is not None:
        await shard.ask(lambda machine, now, to: machine.forget_burial(now, to, messages.group))
        return
    await _bury(self, shard, messages)


_bury = Burials._bury

PLANTED_QUEUES: dict[str, Planted] = {
    "ack_told_before_it_is_safe": Planted(
        "a verdict is told when it is appended, whatever becomes of that", _instead(Queues, "settle", _settle_at_once)
    ),
    "acks_lost_at_failover": Planted(
        "whoever leads next does not read what was acknowledged", _instead(Group, "replay", _replay_without_acks)
    ),
    "attempt_not_counted": Planted("a failed attempt does not count", _instead(Window, "failed", lambda *_: None)),
    "any_receipt_will_do": Planted("receipts are not compared", _instead(verdicts, "is_by", lambda lease, by: True)),
    "lease_ends_early": Planted(
        "a lease ends before the consumer was told it would", _instead(Leases, "add", _add_for_less)
    ),
    "letter_without_a_number": Planted(
        "a dead letter is written without a number by which it is known again",
        _instead(Forwarding, "publish_again", _publish_without_number),
    ),
    "settled_before_the_letter": Planted(
        "a message is settled although its dead letter was not written",
        _instead(Forwarding, "publish_again", _publish_nothing),
    ),
    "burial_begun_anew": Planted(
        "whoever finds a burial that was begun begins another one", _instead(Burials, "_bury", _bury_anew)
    ),
    "queues_need_nothing": Planted(
        "retention removes what a queue has not settled", _instead(LedgerMachine, "floor", lambda self: None)
    ),
    "thinned_to_nothing": Planted(
        "thinning leaves nothing of what a queue has not settled",
        _instead(LedgerMachine, "needed", lambda self, first, last: Needed((), last)),
    ),
    "saved_without_what_is_delayed": Planted(
        "the saved state of a ledger does not say what is delayed", _instead(Group, "_saved_due", lambda self: iter(()))
    ),
}
