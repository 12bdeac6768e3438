"""How topics come to be, change and go, as the doors ask for it: on one broker, or in a cluster.

`engine/local_catalogue.py` is that of a broker on its own; `cluster/catalogue.py` is that of a cluster.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.engine.topics import QueueSettings, Topic


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    partitions: int = -1
    """-1: as many as the broker's default says."""
    replication: int = -1
    """Replicas of each partition; -1: as many as the default says, or as there are brokers."""
    settings: Mapping[str, str] | None = None
    assignment: Sequence[Sequence[int]] | None = None
    """Which brokers hold each partition, the leader first, if the caller chooses; `partitions` is -1 then."""


class Catalogue(Protocol):
    """Every verb raises PenstockError, and is durable and in effect on this broker when it returns."""

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        """INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION, INVALID_ASSIGNMENT, INVALID_CONFIG,
        LIMIT_EXCEEDED, STORAGE_FULL."""
        ...

    async def internal_topic(self, name: str) -> Topic:
        """One of the internal topics, created if it is not there. COORDINATOR_NOT_AVAILABLE."""
        ...

    async def create_partitions(
        self,
        topic: Topic,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to `count` partitions. UNKNOWN_TOPIC, INVALID_PARTITIONS, LIMIT_EXCEEDED, STORAGE_FULL."""
        ...

    async def alter_topic(
        self, topic: Topic, alter: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Change a topic's settings: `alter` makes the new ones of those the topic has been given."""
        ...

    async def attach(self, topic: Topic, kind: str, settings: Mapping[str, str]) -> None:
        """Attach a log of a kind to every partition of a topic; nothing if it has them. See `attached.py`.

        UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_CONFIG, STORAGE_FULL, NOT_AVAILABLE.
        """
        ...

    async def alter_queues(self, topic: Topic, alter: Callable[[QueueSettings], QueueSettings]) -> None:
        """Change which queues a topic has and what is set for them; `alter` makes the new ones of those there are.

        It may be called several times, and what it raises is raised. What is set means nothing here. Attach first what
        the queues are kept in: an earlier release knows no queues, and would drop them, but refuses a topic with that.

        UNKNOWN_TOPIC, LIMIT_EXCEEDED, NOT_AVAILABLE.
        """
        ...

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and its records. UNKNOWN_TOPIC if it is gone already."""
        ...
