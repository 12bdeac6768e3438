"""Topics as the metadata store has them: name, id, partitions, settings, leader epoch."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import orjson

from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.partition import Partition
from penstock.engine.topic_config import TopicConfig
from penstock.errors import Code, PenstockError
from penstock.storage.attached_names import split_name

TOPICS = "topics/"
CREATING = "creating/"
REMOVING = "removing/"
GROWING = "growing/"
MAX_PARTITIONS = 10_000
"""Of one broker. The broker's own topics do not count and are never refused: without them nobody gets a group."""
MAX_TOPIC_PARTITIONS = 10_000
MAX_QUEUES = 1_000
"""Of one topic: all its groups, with their settings, are in its record."""
MAX_QUEUES_BYTES = 100_000
QueueSettings = Mapping[str, Mapping[str, str]]
"""By group, what was set for the queue that it makes of a topic."""


def check_count(name: str, count: int, before: int) -> None:
    """Whether a topic of `before` partitions may have `count`. Raises PenstockError INVALID_PARTITIONS."""
    if not before < count <= MAX_TOPIC_PARTITIONS:
        why = f"it has {before}, and can only grow; " if before else ""
        allowed = f"allowed: {before + 1} to {MAX_TOPIC_PARTITIONS}"
        raise PenstockError(Code.INVALID_PARTITIONS, f"{count} partitions for {name!r}: {why}{allowed}")


def altered_queues(name: str, stored: QueueSettings, alter: Callable[[QueueSettings], QueueSettings]) -> QueueSettings:
    """The queues of a topic after a change, as they are kept. Raises PenstockError LIMIT_EXCEEDED."""
    altered = _plain(alter(stored))
    if len(altered) > MAX_QUEUES and len(altered) > len(stored):
        raise PenstockError(
            Code.LIMIT_EXCEEDED,
            f"{len(altered)} queues of topic {name!r}; allowed: {MAX_QUEUES}",
            help="delete queues that nobody uses, or make another topic",
        )
    size = len(orjson.dumps(altered))
    if size > MAX_QUEUES_BYTES and size > len(orjson.dumps(_plain(stored))):
        raise PenstockError(
            Code.LIMIT_EXCEEDED,
            f"the queues of topic {name!r} and their settings would take {size} bytes; allowed: {MAX_QUEUES_BYTES}",
            help="unset what is as its default, delete queues that nobody uses, or make another topic",
        )
    return altered


def _plain(named: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """As it is written down."""
    return {name: dict(settings) for name, settings in named.items()}


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """What is stored under `topics/{name}`."""

    topic_id: UUID
    partitions: int
    settings: Mapping[str, str]
    leader_epoch: int
    attached: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """What is attached to each partition: kinds of logs, and the settings of each (`attached.py`)."""
    queues: QueueSettings = field(default_factory=dict, hash=False)

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                "id": str(self.topic_id),
                "partitions": self.partitions,
                "settings": dict(self.settings),
                "leader_epoch": self.leader_epoch,
                **({"attached": _plain(self.attached)} if self.attached else {}),
                **({"queues": _plain(self.queues)} if self.queues else {}),
            }
        )

    @classmethod
    def decode(cls, value: bytes) -> "TopicRecord":
        fields = orjson.loads(value)
        return cls(
            UUID(fields["id"]),
            fields["partitions"],
            fields["settings"],
            fields["leader_epoch"],
            fields.get("attached", {}),
            fields.get("queues", {}),
        )


@dataclass(slots=True)
class Topic:
    name: str
    topic_id: UUID
    config: TopicConfig
    partitions: list[Partition]
    attached: "dict[str, Topic]" = field(default_factory=dict)
    """By kind: what holds the logs attached to `partitions`, each at the index of its own."""
    queues: QueueSettings = field(default_factory=dict)

    @property
    def with_attached(self) -> "tuple[Topic, ...]":
        return (self, *self.attached.values())


def check_own(name: str, why_not: str) -> None:
    """Raises PenstockError NOT_ALLOWED for a topic of the broker's own."""
    if name in INTERNAL_TOPICS:
        raise PenstockError(Code.NOT_ALLOWED, f"topic {name!r} is the broker's own and {why_not}")


class Topics:
    """The topics this broker knows, by name and by id. `revision` changes with every change of the set."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._attached_by_id: dict[UUID, Topic] = {}
        self.revision = 0
        self.on_queues: Callable[[Topic], None] = _nobody
        """Called when a topic is there, and when it has other queues than before."""

    def __iter__(self) -> Iterator[Topic]:
        return iter(sorted(self._by_name.values(), key=lambda topic: topic.name))

    def __len__(self) -> int:
        return len(self._by_name)

    def all_partitions(self) -> Iterator[Partition]:
        """Those of all topics, and what is attached to them, which no client may see."""
        for topic in self:
            for each in topic.with_attached:
                yield from each.partitions

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self._by_name.values())

    @property
    def counted_partitions(self) -> int:
        """Those that count towards `MAX_PARTITIONS`."""
        return sum(len(topic.partitions) for name, topic in self._by_name.items() if name not in INTERNAL_TOPICS)

    def add(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self.show_attached(topic)
        self.on_queues(topic)

    def show_attached(self, topic: Topic) -> None:
        """Followers may ask for what is attached to a topic that is here."""
        self._attached_by_id.update({holder.topic_id: holder for holder in topic.attached.values()})
        self.revision += 1

    def remove(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        for holder in topic.attached.values():
            self._attached_by_id.pop(holder.topic_id, None)
        self.revision += 1

    def changed(self) -> None:
        """A topic has more partitions than before, or others lead or follow some partitions."""
        self.revision += 1

    def use_queues(self, topic: Topic, queues: QueueSettings) -> None:
        """A topic has other queues than before."""
        topic.queues = queues
        self.revision += 1
        self.on_queues(topic)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def get_by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def partition(self, name: str, index: int) -> Partition:
        """Raises PenstockError UNKNOWN_TOPIC. Hot path."""
        topic = self._by_name.get(name)
        if topic is not None and 0 <= index < len(topic.partitions):
            return topic.partitions[index]
        raise PenstockError(Code.UNKNOWN_TOPIC, f"no partition {index} of topic {name!r} here")

    def place(self, name: str, index: int) -> Partition:
        """As `partition`, for transactions: they may have a part in what is attached, too. Raises UNKNOWN_TOPIC."""
        named = split_name(name)
        topic = None if named is None else self._by_name.get(named[0])
        if named is None or topic is None or named[1] not in topic.attached:
            return self.partition(name, index)
        partitions = topic.attached[named[1]].partitions
        if 0 <= index < len(partitions):
            return partitions[index]
        raise PenstockError(Code.UNKNOWN_TOPIC, f"no partition {index} of {name!r} here")

    def partition_by_id(self, topic_id: UUID, index: int) -> Partition:
        """Raises PenstockError UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC. Hot path."""
        topic = self._by_id.get(topic_id)
        if topic is not None and 0 <= index < len(topic.partitions):
            return topic.partitions[index]
        raise _unknown(topic, topic_id, index)

    def get_with_attached(self, topic_id: UUID) -> Topic | None:
        """A topic, or what holds the logs of a kind attached to one."""
        return self._by_id.get(topic_id) or self._attached_by_id.get(topic_id)

    def replica_by_id(self, topic_id: UUID, index: int) -> Partition:
        """As `partition_by_id`, for brokers: they may ask for what is attached, too. Hot path."""
        topic = self._by_id.get(topic_id) or self._attached_by_id.get(topic_id)
        if topic is not None and 0 <= index < len(topic.partitions):
            return topic.partitions[index]
        raise _unknown(topic, topic_id, index)


def _unknown(topic: Topic | None, topic_id: UUID, index: int) -> PenstockError:
    if topic is None:
        return PenstockError(Code.UNKNOWN_TOPIC_ID, f"no topic with id {topic_id} here")
    return PenstockError(Code.UNKNOWN_TOPIC, f"no partition {index} of topic {topic.name!r} here")


def _nobody(topic: Topic) -> None:
    return None
