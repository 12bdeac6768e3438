"""What the metadata store says should be in a data directory, as plain facts: storage does not know the store."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

from penstock.storage.attached_names import attached_id, attached_name


@dataclass(frozen=True, slots=True)
class TopicEntry:
    topic_id: UUID
    partitions: int
    leader_epoch: int
    settings: Mapping[str, str] = field(default_factory=dict)
    attached: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Kinds of logs attached to each partition, and the settings of each."""
    queues: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By group, what was set for a queue of the topic."""


@dataclass(frozen=True, slots=True)
class Intent:
    """A change of a topic that was under way: creating, growing or removing it."""

    deed: str
    topic: str
    topic_id: UUID
    first_partition: int = 0
    """Directories from this one on are undone by the next start."""

    @property
    def is_removal(self) -> bool:
        return self.deed == "removing"


@dataclass(frozen=True, slots=True)
class Catalogue:
    path: str
    cluster_id: str | None = None
    topics: Mapping[str, TopicEntry] = field(default_factory=dict)
    intents: tuple[Intent, ...] = ()
    next_producer_id: int = 0
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What is set for groups."""
    problem: str | None = None
    """Why the store cannot be used; the rest is then what could still be read of it."""
    exists: bool = True

    @property
    def held(self) -> Mapping[str, TopicEntry]:
        """Whatever has directories of its own: topics, and what is attached to them under its own names."""
        attached = {
            attached_name(name, kind): replace(
                entry, topic_id=attached_id(entry.topic_id, kind), settings=settings, attached={}, queues={}
            )
            for name, entry in self.topics.items()
            for kind, settings in entry.attached.items()
        }
        return {**self.topics, **attached}

    @property
    def is_lost(self) -> bool:
        return self.problem is not None or not self.exists or self.cluster_id is None
