"""Who acts, and what it may: the one place where doors meet `access.decide`.

A session makes an `Acting` when it knows whom it speaks for, and reaches the engine through it. Verdicts are kept until
there is another policy, so a right that is taken away acts on connections that are open, too. Where everybody may do
everything nothing is kept and nothing is asked.
"""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.engine.access import (
    LONGEST_KEPT,
    THE_CLUSTER,
    Access,
    Kind,
    NotAuthorised,
    Operation,
    Policy,
    Resource,
    Subject,
)
from penstock.engine.acting.groups import ActingGroups
from penstock.engine.acting.queues import ActingQueues
from penstock.engine.acting.schedules import ActingSchedules
from penstock.engine.acting.shares import ActingShares
from penstock.engine.acting.topics import ActingTopics
from penstock.engine.acting.transactions import ActingTransactions
from penstock.engine.feed import Feed
from penstock.engine.gathering import Message as NewMessage
from penstock.engine.gathering import Told
from penstock.engine.partition import Partition
from penstock.engine.publishing import Appended, Durability, InTransaction, Publication
from penstock.engine.reading import Cursor, Ends, Message, find_ends
from penstock.errors import PenstockError
from penstock.ports.disk import Space

if TYPE_CHECKING:
    from penstock.engine.engine import Engine

_MOST_VERDICTS: Final = 4096
Scope = tuple[int, Subject | None]
"""Equal for two that may do the same: the rules' revision, and who it is where that makes a difference."""


class Sight(NamedTuple):
    """The topics that a subject may be told of; see `topic_patterns.Sight`. It outlives the connection."""

    access: Access
    subject: Subject

    @property
    def revision(self) -> int:
        return self.access.policy.revision

    @property
    def is_open(self) -> bool:
        return self.access.policy.is_open

    @property
    def likeness(self) -> Hashable:
        return self.access.likeness(self.subject)

    def may_see(self, name: str) -> bool:
        return self.access.decide(self.subject, Operation.DESCRIBE, Resource(Kind.TOPIC, name))


class Verdicts:
    """What one subject may do, as far as it was asked."""

    __slots__ = ("_access", "_kept", "_policy", "sight", "subject")

    def __init__(self, access: Access, subject: Subject) -> None:
        self.subject = subject
        self.sight = Sight(access, subject)
        self._access = access
        self._policy: Policy = access.policy
        self._kept: dict[tuple[Operation, Kind, str], bool] = {}

    @property
    def policy(self) -> Policy:
        """What is in force: another object, once it is otherwise."""
        return self._access.policy

    @property
    def scope(self) -> Scope:
        policy = self._access.policy
        return policy.revision, None if policy.is_open else self.subject

    def may(self, operation: Operation, kind: Kind, name: str) -> bool:
        """Hot path."""
        policy = self._access.policy
        if policy.is_open:
            return True
        if policy is not self._policy or len(self._kept) >= _MOST_VERDICTS:
            self._policy = policy
            self._kept.clear()
        asked = operation, kind, name
        verdict = self._kept.get(asked)
        if verdict is None:
            verdict = self._access.decide(self.subject, operation, Resource(kind, name))
            if len(name) <= LONGEST_KEPT:
                self._kept[asked] = verdict
        return verdict

    def check(self, operation: Operation, kind: Kind, name: str) -> None:
        """Raises `NotAuthorised`."""
        if not self.may(operation, kind, name):
            raise self.refuse(operation, kind, name)

    def refuse(self, operation: Operation, kind: Kind, name: str, words: str = "") -> NotAuthorised:
        """What to tell the subject, which may not; `words` are for what it has not named, and must not be told of."""
        return self._access.refuse(self.subject, operation, Resource(kind, name), words)

    def may_cluster(self, operation: Operation) -> bool:
        return self.may(operation, Kind.CLUSTER, THE_CLUSTER.name)

    def check_cluster(self, operation: Operation) -> None:
        """Raises `NotAuthorised`."""
        self.check(operation, Kind.CLUSTER, THE_CLUSTER.name)

    def may_any(self, operation: Operation, kind: Kind) -> bool:
        """Whether it may do that to anything of the kind."""
        return self._access.decide_any(self.subject, operation, kind)


class Acting:
    """Attributes:
    rights: for what is no verb of the engine: the cluster's operations, settings, figures.
    """

    __slots__ = ("_engine", "groups", "queues", "rights", "schedules", "shares", "topics", "transactions")

    def __init__(self, engine: "Engine", subject: Subject) -> None:
        self._engine = engine
        self.rights = rights = Verdicts(engine.access, subject)
        self.topics = ActingTopics(engine, rights)
        self.groups = ActingGroups(engine.groups, engine.group_configs, engine.topics, engine.share_offsets, rights)
        self.shares = ActingShares(engine, rights)
        self.queues = ActingQueues(engine, rights)
        self.schedules = ActingSchedules(engine, rights)
        self.transactions = ActingTransactions(engine, rights)

    @property
    def subject(self) -> Subject:
        return self.rights.subject

    @property
    def cluster_id(self) -> str:
        return self._engine.cluster_id

    async def disk_space(self) -> Space:
        self.rights.check_cluster(Operation.DESCRIBE)
        return await self._engine.disk_space()

    # --- for doors that publish message by message, or through any broker, and read records one by one

    def put(
        self, partition: Partition, message: NewMessage, durability: Durability, told: Told, timeout_s: float = 30.0
    ) -> None:
        """Publish a message at the end of this turn of the loop, wherever the partition is led; see `Gatherer.put`."""
        self._check_writable(partition)
        self._engine.gatherer.put(partition, message, durability, told, timeout_s, self.subject)

    async def publish(self, partition: Partition, batch: bytes, durability: Durability, timeout_s: float) -> Appended:
        """Publish a batch without a producer id, wherever the partition is led; see `Forwarding.publish`."""
        self._check_writable(partition)
        return await self._engine.forwarding.publish(partition, batch, durability, timeout_s, self.subject)

    def cursor(self, partition: Partition, offset: int, *, committed: bool = True) -> Cursor:
        """A reader's place, wherever the partition is led. It asks again before it gives anything."""
        check = self._readable(partition)
        check()
        return Cursor(partition, offset, committed=committed, subject=self.subject, check=check)

    async def find_ends(self, partition: Partition, timestamp: int | None = None, *, committed: bool = True) -> Ends:
        """Where a partition begins and ends, wherever it is led; see `reading.find_ends`."""
        self.rights.check(Operation.DESCRIBE, Kind.TOPIC, partition.topic)
        return await find_ends(partition, timestamp, committed=committed, subject=self.subject)

    def feed(
        self,
        partition: Partition,
        start: int,
        *,
        is_writable: Callable[[], bool],
        take: Callable[[Message], None],
        failed: Callable[[PenstockError], None],
        committed: bool = True,
    ) -> Feed:
        """Its records from a place on, for as long as they may be read; see `Feed`."""
        check = self._readable(partition)
        check()
        return Feed(
            self._engine.tails,
            partition,
            start,
            is_writable=is_writable,
            take=take,
            failed=failed,
            committed=committed,
            subject=self.subject,
            check=check,
        )

    def _readable(self, partition: Partition) -> Callable[[], None]:
        """What asks, whenever it is called, whether a partition may be read. It raises `NotAuthorised`."""
        return lambda: self.rights.check(Operation.READ, Kind.TOPIC, partition.topic)

    # --- publishing

    @property
    def is_crowded(self) -> bool:
        """Whether whoever has batches that wait should send no more for now."""
        return self._engine.publishing.is_crowded

    def begin(
        self,
        durability: Durability,
        timeout_s: float,
        done: Callable[[Publication], None],
        transaction: InTransaction | None = None,
    ) -> Publication:
        """A publication, to partitions found for writing, perhaps in a transaction that was found for it; see there."""
        return self._engine.publishing.begin(durability, timeout_s, done, transaction, self._check_writable)

    def _check_writable(self, partition: Partition) -> None:
        """Raises `NotAuthorised`."""
        self.rights.check(Operation.WRITE, Kind.TOPIC, partition.topic)
        partition.check_writers()
