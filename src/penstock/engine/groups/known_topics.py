"""The topics that groups know of, and what follows from them for a group the broker divides partitions in."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.engine.groups.assignors import Assignment
from penstock.engine.groups.consumer_requests import DescribedPartitions
from penstock.engine.groups.topic_patterns import TopicNames


class TopicInfo(NamedTuple):
    name: str
    topic_id: UUID
    partitions: int


class TopicView(TopicNames, Protocol):
    """The topics there are."""

    def get(self, name: str) -> TopicInfo | None: ...

    def get_by_id(self, topic_id: UUID) -> TopicInfo | None: ...


def find(names: Iterable[str], topics: TopicView) -> list[TopicInfo]:
    """Those that are there, in the order of names."""
    return [info for name in sorted(names) if (info := topics.get(name)) is not None]


def hash_of(found: Iterable[TopicInfo]) -> int:
    """Another number when one of the topics comes, goes or grows; the same in every process; 0 without any."""
    digest, is_empty = blake2b(digest_size=8), True
    for name, topic_id, partitions in found:
        is_empty = False
        digest.update(b"%s\0%s%d\0" % (name.encode(), topic_id.bytes, partitions))
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)


def named(assignment: Assignment, topics: TopicView) -> tuple[DescribedPartitions, ...]:
    """Without topics that have been deleted: they have no name any more."""
    infos = ((topics.get_by_id(topic_id), topic_id, numbers) for topic_id, numbers in assignment)
    return tuple(
        DescribedPartitions(topic_id, info.name, numbers) for info, topic_id, numbers in infos if info is not None
    )
