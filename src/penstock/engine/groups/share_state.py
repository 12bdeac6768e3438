"""What a share group remembers: the records it has written, the last of each key, and what follows from them.

The group changes it only by writing records, so what it is after a restart is what it was before.

A group also remembers which partitions it has ever been given, as Kafka does, with its epoch at the time. How a
partition begins depends on it (`ShareStart`), and so does what there is to forget when the group is deleted. Kafka's
schema has no room for when a partition was first given; that stands in a tagged field of our own, which Kafka skips.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from uuid import UUID

from penstock.engine.coordination.schemas import (
    Beginning,
    BegunTopic,
    Entry,
    Kind,
    ShareCurrentValue,
    ShareGroupValue,
    ShareMemberValue,
    ShareStateValue,
    TargetEpochValue,
    TargetValue,
)
from penstock.engine.groups.assignors import Assignment
from penstock.engine.groups.known_topics import TopicInfo
from penstock.engine.groups.name_lists import NameLists
from penstock.engine.groups.reconciliation import STABLE
from penstock.engine.groups.share_requests import ShareStart, begun_bytes, member_bytes
from penstock.engine.groups.steps import entries_of, entry_of, put

_NEW = ShareCurrentValue(0, 0, STABLE, ())
OPEN = -1
"""A start that is still to be found out, as Kafka has it."""


class ShareState:
    member_kinds = (Kind.SHARE_CURRENT, Kind.SHARE_TARGET, Kind.SHARE_MEMBER)

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group: ShareGroupValue | None = None
        self.target_epoch: int | None = None
        self.members: dict[str, ShareMemberValue] = {}
        self.targets: dict[str, Assignment] = {}
        self.begun: dict[UUID, BegunTopic] = {}
        """The topics the group has been given, until they are deleted."""
        self.size_bytes = 0
        """Of what all members say of themselves, and of those topics."""
        self._currents: dict[str, ShareCurrentValue] = {}
        self._names = NameLists()

    @property
    def epoch(self) -> int:
        return self.group.epoch if self.group is not None else 0

    @property
    def metadata_hash(self) -> int:
        return self.group.metadata_hash if self.group is not None else 0

    @property
    def is_blank(self) -> bool:
        kept = (self.members, self.targets, self._currents, self.begun)
        return self.group is None and self.target_epoch is None and not any(kept)

    def current(self, member_id: str) -> ShareCurrentValue:
        return self._currents.get(member_id, _NEW)

    def start_of(self, topic_id: UUID, partition: int) -> ShareStart | None:
        """How a partition begins; None for one that the group has never been given."""
        topic = self.begun.get(topic_id)
        if topic is None or partition not in topic.partitions:
            return None
        for state_epoch, start, partitions in reversed(topic.beginnings):
            if partition in partitions:
                return ShareStart(state_epoch, None if start == OPEN else start)
        return ShareStart(self.epoch, None)  # of a log that did not say it

    def unbegun(self, found: Iterable[TopicInfo]) -> list[BegunTopic]:
        """Those topics that the group has not been given yet, or not all partitions of, as they will be remembered
        when it is given them; by the epoch it has now."""
        new = []
        for name, topic_id, count in found:
            before = self.begun.get(topic_id) or BegunTopic(topic_id, name, ())
            if len(before.partitions) >= count:
                continue
            missing = tuple(sorted(set(range(count)).difference(before.partitions)))
            beginning = Beginning(self.epoch, 0 if before.partitions else OPEN, missing)
            partitions = tuple(sorted((*before.partitions, *missing)))
            new.append(BegunTopic(topic_id, name, partitions, (*before.beginnings, beginning)))
        return new

    def restarted(self, topic: TopicInfo, starts: Mapping[int, int], epoch: int) -> BegunTopic:
        """A topic as it will be remembered when partitions of it begin anew, each at an offset or at `OPEN`."""
        before = self.begun.get(topic.topic_id) or BegunTopic(topic.topic_id, topic.name, ())
        left = []
        for each in before.beginnings:
            rest = tuple(partition for partition in each.partitions if partition not in starts)
            if rest:
                left.append(each._replace(partitions=rest))
        together: dict[int, list[int]] = {}
        for partition, start in sorted(starts.items()):
            together.setdefault(start, []).append(partition)
        new = [Beginning(epoch, start, tuple(partitions)) for start, partitions in together.items()]
        partitions = tuple(sorted({*before.partitions, *starts}))
        return BegunTopic(topic.topic_id, topic.name, partitions, (*left, *new))

    def apply(self, entry: Entry) -> None:
        kind, value = entry.kind, entry.value
        if kind is Kind.SHARE_GROUP:
            self.group = value
        elif kind is Kind.SHARE_TARGET_EPOCH:
            self.target_epoch = None if value is None else value.assignment_epoch
        elif kind is Kind.SHARE_MEMBER:
            self._put_member(entry.key[1], value)
        elif kind is Kind.SHARE_TARGET:
            put(self.targets, entry.key[1], None if value is None else value.topic_partitions)
        elif kind is Kind.SHARE_CURRENT:
            put(self._currents, entry.key[1], value)
        elif kind is Kind.SHARE_STATE:
            self._put_begun(() if value is None else value.initialized_topics)
        else:
            raise AssertionError(f"{kind.name} is no record of a share group")

    def _put_member(self, member_id: str, value: ShareMemberValue | None) -> None:
        before = self.members.get(member_id)
        if value is not None:
            value = value._replace(subscribed_topic_names=self._names.take(value.subscribed_topic_names))
            self.size_bytes += member_bytes(value)
        if before is not None:
            self._names.give_back(before.subscribed_topic_names)
            self.size_bytes -= member_bytes(before)
        put(self.members, member_id, value)

    def _put_begun(self, topics: Iterable[BegunTopic]) -> None:
        self.size_bytes -= sum(map(begun_bytes, self.begun.values()))
        self.begun = {topic.topic_id: topic for topic in topics}
        self.size_bytes += sum(map(begun_bytes, self.begun.values()))

    def entries(self) -> Iterator[Entry]:
        """What it is now, to be taken at leisure: changes made meanwhile are not in it."""
        epoch = None if self.target_epoch is None else TargetEpochValue(self.target_epoch)
        one_by_one = (
            entries_of(Kind.SHARE_MEMBER, self.group_id, self.members.copy()),
            entry_of(Kind.SHARE_GROUP, self.group_id, self.group),
            entry_of(Kind.SHARE_STATE, self.group_id, state_value(self.begun.values())),
            entries_of(Kind.SHARE_TARGET, self.group_id, self.targets.copy(), TargetValue),
            entry_of(Kind.SHARE_TARGET_EPOCH, self.group_id, epoch),
            entries_of(Kind.SHARE_CURRENT, self.group_id, self._currents.copy()),
        )
        return chain.from_iterable(one_by_one)


def state_value(begun: Iterable[BegunTopic]) -> ShareStateValue | None:
    topics = tuple(sorted(begun, key=lambda topic: topic.topic_id.int))
    return ShareStateValue((), topics, ()) if topics else None
