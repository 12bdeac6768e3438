"""Topics, as one subject may use them.

A thing that must not be seen is refused before anybody looks whether it is there.
What is found was found for one operation, which the caller names; who only reads asks for READ.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.engine.access import Kind, Operation, Policy
from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.partition import Partition
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError

if TYPE_CHECKING:
    from penstock.engine.acting.acting import Verdicts
    from penstock.engine.engine import Engine
    from penstock.engine.offset_lookup import Found


class ActingTopics:
    """All verbs raise PenstockError, first of all `NotAuthorised`."""

    __slots__ = ("_counted", "_engine", "_rights", "_topics")

    def __init__(self, engine: "Engine", rights: "Verdicts") -> None:
        self._counted: tuple[Policy, int, int] | None = None
        """By which policy, in which revision of the topics, and how many."""
        self._engine = engine
        self._topics = engine.topics
        self._rights = rights

    # --- finding

    def partition(self, name: str, index: int, operation: Operation) -> Partition:
        """Hot path. Raises also UNKNOWN_TOPIC."""
        self._rights.check(operation, Kind.TOPIC, name)
        partition = self._topics.partition(name, index)
        if operation is Operation.WRITE:
            partition.check_writers()
        return partition

    def partition_by_id(self, topic_id: UUID, index: int, operation: Operation) -> Partition:
        """Hot path. Raises also UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC."""
        topic = self._topics.get_by_id(topic_id)
        if topic is not None:
            self._check_by_id(operation, topic)
        partition = self._topics.partition_by_id(topic_id, index)
        if operation is Operation.WRITE:
            partition.check_writers()
        return partition

    def replica_by_id(self, topic_id: UUID, index: int) -> Partition:
        """For a broker that follows it: also one that is attached to another. Hot path."""
        self._rights.check_cluster(Operation.CLUSTER_ACTION)
        return self._topics.replica_by_id(topic_id, index)

    def get(self, name: str, operation: Operation) -> Topic | None:
        self._rights.check(operation, Kind.TOPIC, name)
        return self._topics.get(name)

    def get_by_id(self, topic_id: UUID, operation: Operation) -> Topic | None:
        """None for an id that nobody has: an id cannot be guessed."""
        topic = self._topics.get_by_id(topic_id)
        if topic is not None:
            self._check_by_id(operation, topic)
        return topic

    def _check_by_id(self, operation: Operation, topic: Topic) -> None:
        """For who has named a topic by its id, and is refused it by that. Hot path."""
        if not self._rights.may(operation, Kind.TOPIC, topic.name):
            raise self._rights.refuse(operation, Kind.TOPIC, topic.name, f"topic {topic.topic_id}")

    def name_of(self, topic_id: UUID) -> str | None:
        """The name that a right is about. It is not for whoever asked."""
        topic = self._topics.get_by_id(topic_id)
        return None if topic is None else topic.name

    def id_of(self, name: str) -> UUID | None:
        """The id of a topic that may be shown."""
        topic = self._topics.get(name)
        return None if topic is None else topic.topic_id

    @property
    def revision(self) -> int:
        """Changes with every change of the set of all topics."""
        return self._topics.revision

    @property
    def partition_count(self) -> int:
        """Of the topics that may be described."""
        policy, revision = self._rights.policy, self._topics.revision
        if policy.is_open:
            return self._topics.partition_count
        if self._counted is None or self._counted[0] is not policy or self._counted[1] != revision:
            self._counted = policy, revision, sum(len(topic.partitions) for topic in self.visible())
        return self._counted[2]

    def visible(self) -> Iterator[Topic]:
        """All that may be described, in order."""
        may = self._rights.may
        return (topic for topic in self._topics if may(Operation.DESCRIBE, Kind.TOPIC, topic.name))

    def operations(self, name: str, asked: Collection[Operation]) -> Iterator[Operation]:
        """Which of them may be done to a topic."""
        return (each for each in asked if self._rights.may(each, Kind.TOPIC, name))

    # --- changing

    async def create(
        self,
        name: str,
        partitions: int = -1,
        settings: Mapping[str, str] | None = None,
        *,
        replication: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> Topic:
        self._may_create(name)
        return await self._engine.create_topic(
            name, partitions, settings, replication=replication, assignment=assignment, validate_only=validate_only
        )

    async def create_missing(self, name: str) -> Topic:
        """One that was asked for and is not there, with the defaults; the broker's own, too."""
        self._may_create(name)
        create = self._engine.internal_topic if name in INTERNAL_TOPICS else self._engine.create_topic
        return await create(name)

    def _may_create(self, name: str) -> None:
        if not self._rights.may_cluster(Operation.CREATE):
            self._rights.check(Operation.CREATE, Kind.TOPIC, name)

    def to_grow(self, name: str) -> Topic:
        """Raises also UNKNOWN_TOPIC."""
        topic = self.get(name, Operation.ALTER)
        if topic is None:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {name!r} is unknown")
        return topic

    async def create_partitions(
        self,
        topic: Topic,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Of one found `to_grow`."""
        self._rights.check(Operation.ALTER, Kind.TOPIC, topic.name)
        await self._engine.create_partitions(topic, count, assignment=assignment, validate_only=validate_only)

    async def alter(
        self, topic: Topic, alter: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        self._rights.check(Operation.ALTER_CONFIGS, Kind.TOPIC, topic.name)
        await self._engine.alter_topic(topic, alter, validate_only=validate_only)

    def to_delete(self, name: str | None, topic_id: UUID | None = None) -> Topic:
        """Whoever may see it is told first whether it is there. Raises also UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID."""
        known = name if name is not None or topic_id is None else self.name_of(topic_id)
        if known is None:
            raise PenstockError(Code.UNKNOWN_TOPIC_ID, f"topic {topic_id} is unknown")
        topic = self._topics.get(known)
        may_delete = self._rights.may_cluster(Operation.DELETE)
        if topic is None and (may_delete or self._rights.may(Operation.DESCRIBE, Kind.TOPIC, known)):
            raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {known} is unknown")
        if not may_delete and not self._rights.may(Operation.DELETE, Kind.TOPIC, known):
            words = "" if name is not None else f"topic {topic_id}"
            raise self._rights.refuse(Operation.DELETE, Kind.TOPIC, known, words)
        if topic is None:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {known} is unknown")
        return topic

    async def delete(self, topic: Topic) -> None:
        """One found `to_delete`."""
        self.to_delete(topic.name)
        await self._engine.delete_topic(topic)

    async def delete_records(self, name: str, index: int, offset: int) -> int:
        """Move the log start up to `offset`; returns where it is then."""
        return await self._engine.delete_records(self.partition(name, index, Operation.DELETE), offset)

    # --- offsets of a partition that was found

    async def find_offset_by_time(self, partition: Partition, timestamp: int, *, committed: bool) -> "Found | None":
        self._rights.check(Operation.DESCRIBE, Kind.TOPIC, partition.topic)
        return await self._engine.find_offset_by_time(partition, timestamp, committed=committed)

    async def find_largest_time(self, partition: Partition) -> "Found | None":
        self._rights.check(Operation.DESCRIBE, Kind.TOPIC, partition.topic)
        return await self._engine.find_largest_time(partition)
