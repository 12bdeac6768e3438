"""Who has what of one group's messages in one partition, and until when.

A lease is some offsets that one consumer got together, under an id that its receipts carry. It has a slot, by which an
offset finds it; the slot is of this process alone, the id is in the ledger. When a part of a lease is renewed, or is
acknowledged in a transaction, that part gets a slot and a deadline of its own, under the same id.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.engine.coordination.deadlines import Deadlines
from penstock.engine.queues.window import Run

ABORTED: Final = -1
"""In place of a producer: its transaction has aborted, and what follows is for the next tick to say."""


class Lease:
    """Attributes:
    count: offsets it still has.
    runs: what it had when it was given; some of that may be settled.
    producer: in whose transaction all of it is acknowledged, if in any, or `ABORTED`; see `pending.py`.
    """

    __slots__ = ("began", "consumer", "count", "deadline", "is_bound", "lease_id", "producer", "runs", "slot")

    def __init__(
        self,
        lease_id: int,
        slot: int,
        consumer: str,
        began: int,
        deadline: int,
        is_bound: bool,
        runs: Iterable[Run],
    ) -> None:
        self.lease_id = lease_id
        self.slot = slot
        self.consumer = consumer
        self.began = began
        self.deadline = deadline
        self.is_bound = is_bound
        self.runs = tuple(runs)
        self.count = sum(run.size for run in self.runs)
        self.producer: int | None = None

    @property
    def is_pending(self) -> bool:
        """Whether a transaction decides over it: its time does not end it, nor does its consumer."""
        return self.producer is not None and self.producer != ABORTED


class Leases:
    """Args:
    group: the number of theirs.
    deadlines: of all groups of the ledger, by group and slot.
    """

    def __init__(self, group: int, deadlines: Deadlines[tuple[int, int]]) -> None:
        self._group = group
        self._deadlines = deadlines
        self._by_slot: dict[int, Lease] = {}
        self._by_id: dict[int, list[Lease]] = {}
        self._by_consumer: dict[str, dict[int, Lease]] = {}
        self._held: dict[str, int] = {}
        self._free: list[int] = []
        self.count = 0
        """Offsets that are leased."""
        self.pending = 0
        """Those of them that are acknowledged in a transaction which has not ended."""

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_slot.values()))

    def add(
        self,
        lease_id: int,
        consumer: str,
        began: int,
        deadline: int,
        runs: Iterable[Run],
        *,
        is_bound: bool,
    ) -> Lease:
        slot = self._free.pop() if self._free else len(self._by_slot) + 1  # 0 is nobody's
        lease = Lease(lease_id, slot, consumer, began, deadline, is_bound, runs)
        self._by_slot[slot] = lease
        self._by_id.setdefault(lease_id, []).append(lease)
        self._by_consumer.setdefault(consumer, {})[slot] = lease
        self._deadlines.set((self._group, slot), deadline)
        self._held[consumer] = self._held.get(consumer, 0) + lease.count
        self.count += lease.count
        return lease

    def in_slot(self, slot: int) -> Lease | None:
        return self._by_slot.get(slot)

    def of_id(self, lease_id: int) -> list[Lease]:
        return self._by_id.get(lease_id, [])

    def of_consumer(self, consumer: str) -> list[Lease]:
        """Those that are still its own to give back."""
        return [lease for lease in self._by_consumer.get(consumer, {}).values() if not lease.is_pending]

    def held_by(self, consumer: str) -> int:
        """Offsets that one consumer has."""
        return self._held.get(consumer, 0)

    def less(self, slot: int, count: int) -> None:
        """So many of its offsets are not leased any more."""
        lease = self._by_slot.get(slot)
        if lease is None:
            return
        lease.count -= count
        self.count -= count
        self.pending -= count if lease.is_pending else 0
        self._held[lease.consumer] -= count
        if lease.count <= 0:
            self._remove(lease)

    def set_count(self, lease: Lease, count: int) -> None:
        """As it was found to be."""
        self.less(lease.slot, lease.count - count)

    def renew(self, lease: Lease, deadline: int) -> None:
        """Its consumer has it until then; what was said of an aborted transaction is over."""
        if lease.producer == ABORTED:
            lease.producer = None
        self.shift(lease, deadline)

    def shift(self, lease: Lease, deadline: int) -> None:
        """It ends then, if nothing else has it."""
        lease.deadline = deadline
        self._set_timer(lease)

    def hold(self, lease: Lease, producer: int | None) -> None:
        """All of it is acknowledged in a producer's transaction, or is so no more."""
        self.pending -= lease.count if lease.is_pending else 0
        lease.producer = producer
        self.pending += lease.count if lease.is_pending else 0
        self._set_timer(lease)

    def _set_timer(self, lease: Lease) -> None:
        at = None if lease.is_pending else 0 if lease.producer == ABORTED else lease.deadline
        self._deadlines.set((self._group, lease.slot), at)

    def clear(self) -> None:
        for lease in self:
            self.less(lease.slot, lease.count)

    def _remove(self, lease: Lease) -> None:
        del self._by_slot[lease.slot]
        self._free.append(lease.slot)
        alike = self._by_id[lease.lease_id]
        alike.remove(lease)
        if not alike:
            del self._by_id[lease.lease_id]
        theirs = self._by_consumer[lease.consumer]
        del theirs[lease.slot]
        if not theirs:
            del self._by_consumer[lease.consumer], self._held[lease.consumer]
        self._deadlines.set((self._group, lease.slot), None)
