"""One transactional id: the state of its transaction, the producer it belongs to, and what it becomes next.

                    add partitions                end                 markers written
    Empty ------------------------> Ongoing ------------> PrepareCommit ------------> CompleteCommit
      ^                               ^ |                                                   |
      | init                          | | end, time-out, another producer's init            |
      |                               | +-----------------> PrepareAbort -----------> CompleteAbort
      +-------------------------------+------------------------------------------------------+

A `Transaction` is a value; each change makes another one, and each one is exactly one record of the log. Whoever reads
the last record knows all there is to know, also who the producer was before its epoch rose: `predecessor`, by which a
repeated request is told from a stale one. Kafka keeps that in memory only and fences a producer that repeats a request
to a coordinator that was restarted in between.

Epochs rise by one: at every end a client of KIP-890 asks for, when a transaction is ended over its producer's head,
and at every init. Before they run out (16 bits) the producer gets a new id; epoch 32767 is for markers only, so that
the last producer can still be fenced.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from penstock.engine.coordination.schemas import Entry, Kind, NamedPartitions, TransactionValue

NONE = -1
LAST_EPOCH = 32_766
"""The last a producer may have."""
BUMPED_AT_END = 2
"""The client's version of transactions, from which the epoch rises at every end (KIP-890)."""

TopicPartition = tuple[str, int]


class State(IntEnum):
    """Kafka's numbers. Dead and PrepareEpochFence are never kept: nothing happens between two records here."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def shown(self) -> str:
        """Kafka's name of it."""
        return _NAMES[self]


_NAMES = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in State}
STATE_NAMES = frozenset(_NAMES.values())
_COMMITTED = (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
_ENDING = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
_ENDED = (*_ENDING, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


class ProducerIdentity(NamedTuple):
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Transaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NONE
    previous_producer_id: int = NONE
    """The producer's id before its epoch rose last, if it was the same producer; NONE if another took its place."""
    next_producer_id: int = NONE
    """The id it goes on with once the markers are written, if the epochs of this one have run out."""
    client_version: int = 0

    @property
    def identity(self) -> ProducerIdentity:
        """What the producer calls itself from now on."""
        if self.next_producer_id != NONE:
            return ProducerIdentity(self.next_producer_id, 0)
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def predecessor(self) -> ProducerIdentity | None:
        """What the same producer called itself before; it still does if the last answer was lost."""
        if self.previous_producer_id == NONE:
            return None
        return ProducerIdentity(
            self.previous_producer_id, self.producer_epoch - 1 if self.producer_epoch else LAST_EPOCH
        )

    def belongs_to(self, claimed: ProducerIdentity) -> bool:
        return claimed == self.identity and claimed.producer_epoch <= LAST_EPOCH

    @property
    def exhausted(self) -> bool:
        """No epoch is left for a producer after this one."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def ending(self) -> bool:
        """Decided, but markers are missing."""
        return self.state in _ENDING

    @property
    def ended(self) -> bool:
        return self.state in _ENDED

    @property
    def committed(self) -> bool:
        return self.state in _COMMITTED

    def initialized(
        self, now: int, timeout_ms: int, identity: ProducerIdentity, previous_producer_id: int
    ) -> "Transaction":
        return Transaction(self.transactional_id, *identity, timeout_ms, now, previous_producer_id=previous_producer_id)

    def extended(self, now: int, partitions: Iterable[TopicPartition]) -> "Transaction":
        """With more partitions; the first ones begin it."""
        started = self.started_ms if self.state is State.ONGOING else now
        return replace(
            self,
            state=State.ONGOING,
            partitions=self.partitions.union(partitions),
            started_ms=started,
            updated_ms=now,
        )

    def prepared(self, now: int, committed: bool, *, bump: bool, next_producer_id: int = NONE) -> "Transaction":
        """Decided; a bump fences whoever still has the epoch it was written with."""
        state = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
        if not bump:
            return replace(self, state=state, updated_ms=now, client_version=0)
        return replace(
            self,
            state=state,
            producer_epoch=self.producer_epoch + 1,
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            updated_ms=now,
            client_version=BUMPED_AT_END,
        )

    def completed(self, now: int) -> "Transaction":
        identity = self.identity
        return replace(
            self,
            state=State.COMPLETE_COMMIT if self.committed else State.COMPLETE_ABORT,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            next_producer_id=NONE,
            partitions=frozenset(),
            updated_ms=now,
        )

    def named_partitions(self) -> tuple[NamedPartitions, ...]:
        by_topic: dict[str, list[int]] = {}
        for topic, index in sorted(self.partitions):
            by_topic.setdefault(topic, []).append(index)
        return tuple(NamedPartitions(topic, tuple(indexes)) for topic, indexes in by_topic.items())

    def entry(self) -> Entry:
        value = TransactionValue(
            self.producer_id,
            self.producer_epoch,
            self.timeout_ms,
            self.state,
            None if self.state is State.EMPTY else self.named_partitions(),
            self.updated_ms,
            self.started_ms,
            self.previous_producer_id,
            self.next_producer_id,
            self.client_version,
        )
        return Entry(Kind.TRANSACTION, (self.transactional_id,), value)

    @classmethod
    def from_entry(cls, entry: Entry) -> "Transaction":
        value: TransactionValue = entry.value
        return cls(
            entry.key[0],
            value.producer_id,
            value.producer_epoch,
            value.transaction_timeout_ms,
            value.transaction_last_update_timestamp_ms,
            State(value.transaction_status),
            frozenset((topic, index) for topic, indexes in value.transaction_partitions or () for index in indexes),
            value.transaction_start_timestamp_ms,
            value.previous_producer_id,
            value.next_producer_id,
            value.client_transaction_version,
        )
