"""What a consumer group remembers: the records it has written, the last of each key, and what follows from them.

The group changes it only by writing records, so what it is after a restart is what it was before.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from uuid import UUID

from penstock.engine.coordination.schemas import (
    ConsumerGroupValue,
    ConsumerMemberValue,
    CurrentValue,
    Entry,
    Kind,
    RegexValue,
    TargetEpochValue,
    TargetValue,
)
from penstock.engine.groups.assignors import Assignment
from penstock.engine.groups.consumer_requests import size_bytes
from penstock.engine.groups.name_lists import NameLists
from penstock.engine.groups.reconciliation import STABLE
from penstock.engine.groups.steps import entries_of, entry_of, put

_NEW = CurrentValue(0, 0, STABLE, (), ())


class ConsumerState:
    member_kinds = (Kind.CONSUMER_CURRENT, Kind.CONSUMER_TARGET, Kind.CONSUMER_MEMBER)

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group: ConsumerGroupValue | None = None
        self.target_epoch: int | None = None
        self.members: dict[str, ConsumerMemberValue] = {}
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, RegexValue] = {}
        self.instances: dict[str, str] = {}
        """Which member a static member's instance id stands for."""
        self.size_bytes = 0
        """Of what all members say of themselves."""
        self._currents: dict[str, CurrentValue] = {}
        self._names = NameLists()
        self._owners: dict[UUID, dict[int, str]] | None = None

    @property
    def epoch(self) -> int:
        return self.group.epoch if self.group is not None else 0

    @property
    def metadata_hash(self) -> int:
        return self.group.metadata_hash if self.group is not None else 0

    @property
    def is_blank(self) -> bool:
        kept = (self.members, self.regexes, self.targets, self._currents)
        return self.group is None and self.target_epoch is None and not any(kept)

    def current(self, member_id: str) -> CurrentValue:
        return self._currents.get(member_id, _NEW)

    def free_of(self, topic_id: UUID, partitions: set[int], member_id: str) -> set[int]:
        """Those nobody else has; who has been told to let go of one has it until it says that it did."""
        if self._owners is None:  # only now: a compacted log may be between two truths until it is read to its end
            self._owners = {}
            for owner, current in self._currents.items():
                self._own(owner, current)
        owners = self._owners.get(topic_id)
        if not owners:
            return partitions
        return {number for number in partitions if owners.get(number, member_id) == member_id}

    def _own(self, member_id: str, current: CurrentValue) -> None:
        assert self._owners is not None
        for topic_id, numbers in _all_of(current):
            self._owners.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member_id))

    def _disown(self, member_id: str, current: CurrentValue) -> None:
        assert self._owners is not None
        for topic_id, numbers in _all_of(current):
            owners = self._owners.get(topic_id, {})
            for number in numbers:
                if owners.get(number) == member_id:
                    del owners[number]
            if not owners:
                self._owners.pop(topic_id, None)

    def apply(self, entry: Entry) -> None:
        kind, value = entry.kind, entry.value
        if kind is Kind.CONSUMER_GROUP:
            self.group = value
        elif kind is Kind.CONSUMER_TARGET_EPOCH:
            self.target_epoch = None if value is None else value.assignment_epoch
        elif kind is Kind.CONSUMER_MEMBER:
            self._put_member(entry.key[1], value)
        elif kind is Kind.CONSUMER_TARGET:
            put(self.targets, entry.key[1], None if value is None else value.topic_partitions)
        elif kind is Kind.CONSUMER_CURRENT:
            self._put_current(entry.key[1], value)
        elif kind is Kind.CONSUMER_REGEX:
            put(self.regexes, entry.key[1], value)
        else:
            raise AssertionError(f"{kind.name} is no record of a consumer group")

    def _put_member(self, member_id: str, value: ConsumerMemberValue | None) -> None:
        before = self.members.get(member_id)
        if value is not None:
            value = value._replace(subscribed_topic_names=self._names.take(value.subscribed_topic_names))
        if before is not None:
            self._names.give_back(before.subscribed_topic_names)
            self.size_bytes -= size_bytes(before)
            if before.instance_id is not None and self.instances.get(before.instance_id) == member_id:
                del self.instances[before.instance_id]
        if value is not None:
            self.size_bytes += size_bytes(value)
            if value.instance_id is not None:
                self.instances[value.instance_id] = member_id
        put(self.members, member_id, value)

    def _put_current(self, member_id: str, value: CurrentValue | None) -> None:
        if self._owners is not None:
            self._disown(member_id, self.current(member_id))
            if value is not None:
                self._own(member_id, value)
        put(self._currents, member_id, value)

    def entries(self) -> Iterator[Entry]:
        """What it is now, to be taken at leisure: changes made meanwhile are not in it."""
        epoch = None if self.target_epoch is None else TargetEpochValue(self.target_epoch)
        one_by_one = (
            entries_of(Kind.CONSUMER_MEMBER, self.group_id, self.members.copy()),
            entries_of(Kind.CONSUMER_REGEX, self.group_id, self.regexes.copy()),
            entry_of(Kind.CONSUMER_GROUP, self.group_id, self.group),
            entries_of(Kind.CONSUMER_TARGET, self.group_id, self.targets.copy(), TargetValue),
            entry_of(Kind.CONSUMER_TARGET_EPOCH, self.group_id, epoch),
            entries_of(Kind.CONSUMER_CURRENT, self.group_id, self._currents.copy()),
        )
        return chain.from_iterable(one_by_one)


def _all_of(current: CurrentValue) -> Iterable[tuple[UUID, tuple[int, ...]]]:
    yield from current.assigned_partitions
    yield from current.partitions_pending_revocation
