"""Groups and their offsets, as one subject may use them: the group comes first, then the topics."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.engine.access import THE_CLUSTER, Kind, NotAuthorised, Operation
from penstock.engine.coordination.schemas import TopicPartitions
from penstock.engine.groups.classic_requests import (
    ClassicDescription,
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from penstock.engine.groups.consumer_requests import (
    ConsumerDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    DescribedPartitions,
)
from penstock.engine.groups.group_config import DEAD_LETTER_TOPIC, GroupConfig
from penstock.engine.groups.group_configs import GroupConfigs
from penstock.engine.groups.groups import Groups
from penstock.engine.groups.machine import GroupListing
from penstock.engine.groups.offsets import (
    CommitRequest,
    FetchedOffsets,
    FetchRequest,
    Results,
    Spot,
    TransactionalCommit,
)
from penstock.engine.groups.share_requests import ShareDescription, ShareHeartbeat, ShareHeartbeatResult
from penstock.engine.partition import Partition
from penstock.engine.queues.share_offsets import ShareOffsets
from penstock.engine.topics import Topics

if TYPE_CHECKING:
    from penstock.engine.acting.acting import Verdicts


class ActingGroups:
    """All verbs raise PenstockError, first of all `NotAuthorised`. Those about many offsets tell it of each."""

    __slots__ = ("_configs", "_groups", "_rights", "_shares", "_topics")

    def __init__(
        self, groups: Groups, configs: GroupConfigs, topics: Topics, shares: ShareOffsets, rights: "Verdicts"
    ) -> None:
        self._groups = groups
        self._configs = configs
        self._topics = topics
        self._shares = shares
        self._rights = rights

    def check(self, operation: Operation, group_id: str) -> None:
        self._rights.check(operation, Kind.GROUP, group_id)

    async def coordinator(self, group_id: str) -> Partition:
        """The partition that the group lives in; whoever leads it coordinates the group."""
        self.check(Operation.DESCRIBE, group_id)
        return (await self._groups.shards.of(group_id)).partition

    # --- members

    async def join(self, request: JoinRequest) -> JoinResult:
        self.check(Operation.READ, request.group_id)
        result = await self._groups.join(request)
        self.check(Operation.READ, request.group_id)  # it may have waited long for others
        return result

    async def sync(self, request: SyncRequest) -> SyncResult:
        self.check(Operation.READ, request.group_id)
        result = await self._groups.sync(request)
        self.check(Operation.READ, request.group_id)  # likewise
        return result

    async def heartbeat(self, request: HeartbeatRequest) -> None:
        self.check(Operation.READ, request.group_id)
        await self._groups.heartbeat(request)

    async def leave(self, group_id: str, members: tuple[LeavingMember, ...]) -> tuple[LeaveResult, ...]:
        self.check(Operation.READ, group_id)
        return await self._groups.leave(group_id, members)

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        """One topic that is named and must not be seen refuses the whole; a regular expression matches the others.

        Who named a topic and has lost the right to it since is told no more that it has it.
        """
        self.check(Operation.READ, request.group_id)
        for name in request.subscribed_topic_names or ():
            self._rights.check(Operation.DESCRIBE, Kind.TOPIC, name)
        result = await self._groups.consumer_heartbeat(request, self._rights.sight)
        return result._replace(assignment=self._shown(result.assignment))

    async def share_heartbeat(self, request: ShareHeartbeat) -> ShareHeartbeatResult:
        """One topic that is named and must not be seen refuses the whole. Answered as `consumer_heartbeat` is."""
        self.check(Operation.READ, request.group_id)
        for name in request.subscribed_topic_names or ():
            self._rights.check(Operation.DESCRIBE, Kind.TOPIC, name)
        result = await self._groups.share_heartbeat(request)
        return result._replace(assignment=self._shown(result.assignment))

    def _shown(self, assignment: tuple[TopicPartitions, ...] | None) -> tuple[TopicPartitions, ...] | None:
        if assignment is None or self._rights.policy.is_open:
            return assignment
        return tuple(each for each in assignment if self._may_see(each.topic_id))

    def _may_see(self, topic_id: UUID) -> bool:
        topic = self._topics.get_by_id(topic_id)
        return topic is None or self._rights.may(Operation.DESCRIBE, Kind.TOPIC, topic.name)

    # --- offsets

    async def commit(self, request: CommitRequest) -> Results:
        self.check(Operation.READ, request.group_id)
        refused = self._refused(request.offsets, Operation.READ)
        if not refused:
            return await self._groups.commit(request)
        allowed = {spot: offset for spot, offset in request.offsets.items() if spot not in refused}
        done = await self._groups.commit(request._replace(offsets=allowed)) if allowed else {}
        return {**refused, **done}

    async def commit_in_transaction(self, request: TransactionalCommit, check: Callable[[], None]) -> Results:
        """Args:
        check: see `Groups.commit_in_transaction`; who has it may write in the transaction.
        """
        self.check(Operation.READ, request.group_id)
        refused = self._refused(request.offsets, Operation.READ)
        if not refused:
            return await self._groups.commit_in_transaction(request, check)
        allowed = {spot: offset for spot, offset in request.offsets.items() if spot not in refused}
        done = await self._groups.commit_in_transaction(request._replace(offsets=allowed), check) if allowed else {}
        return {**refused, **done}

    async def fetch(self, request: FetchRequest) -> FetchedOffsets:
        """Asked for all, topics that must not be seen are left out."""
        self.check(Operation.DESCRIBE, request.group_id)
        if request.partitions is None:
            fetched = await self._groups.fetch(request)
            hidden = self._refused(fetched, Operation.DESCRIBE)
            return {spot: value for spot, value in fetched.items() if spot not in hidden} if hidden else fetched
        refused = self._refused(request.partitions, Operation.DESCRIBE)
        if not refused:
            return await self._groups.fetch(request)
        allowed = tuple(spot for spot in request.partitions if spot not in refused)
        return {**refused, **await self._groups.fetch(request._replace(partitions=allowed))}

    async def delete_offsets(self, group_id: str, spots: Iterable[Spot]) -> Results:
        self.check(Operation.DELETE, group_id)
        asked = tuple(spots)
        refused = self._refused(asked, Operation.READ)
        if not refused:
            return await self._groups.delete_offsets(group_id, asked)
        allowed = [spot for spot in asked if spot not in refused]
        done = await self._groups.delete_offsets(group_id, allowed) if allowed else {}
        return {**refused, **done}

    def _refused(self, spots: Iterable[Spot], operation: Operation) -> dict[Spot, NotAuthorised]:
        rights = self._rights
        verdicts: dict[str, NotAuthorised | None] = {}
        refused: dict[Spot, NotAuthorised] = {}
        for spot in spots:
            name = spot[0]
            if name not in verdicts:
                may = rights.may(operation, Kind.TOPIC, name)
                verdicts[name] = None if may else rights.refuse(operation, Kind.TOPIC, name)
            if (error := verdicts[name]) is not None:
                refused[spot] = error
        return refused

    # --- administration

    async def describe_classic(self, group_id: str) -> ClassicDescription:
        self.check(Operation.DESCRIBE, group_id)
        return await self._groups.describe_classic(group_id)

    async def describe_consumer(self, group_id: str) -> ConsumerDescription:
        """One topic that must not be seen refuses the whole, as it would show in what members have."""
        self.check(Operation.DESCRIBE, group_id)
        found = await self._groups.describe_consumer(group_id)
        for member in found.members:
            self._check_seen(group_id, (*member.assignment, *member.target_assignment))
        return found

    async def describe_share(self, group_id: str) -> ShareDescription:
        """Refused as `describe_consumer` is."""
        self.check(Operation.DESCRIBE, group_id)
        found = await self._groups.describe_share(group_id)
        for member in found.members:
            self._check_seen(group_id, member.assignment)
        return found

    def _check_seen(self, group_id: str, topics: Iterable[DescribedPartitions]) -> None:
        rights = self._rights
        for topic in topics:
            if not rights.may(Operation.DESCRIBE, Kind.TOPIC, topic.topic_name):
                words = f"a topic that group {group_id!r} reads"
                raise rights.refuse(Operation.DESCRIBE, Kind.TOPIC, topic.topic_name, words)

    def config(self, group_id: str) -> GroupConfig:
        """What a group goes by, for who takes part in it."""
        self.check(Operation.READ, group_id)
        return self._configs.of(group_id)

    def settings(self, group_id: str) -> Mapping[str, str]:
        """What is set for a group, whether it is there or not."""
        self.check(Operation.DESCRIBE_CONFIGS, group_id)
        return self._configs.get(group_id)

    async def alter_settings(
        self,
        group_id: str,
        alter: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        validate_only: bool = False,
    ) -> None:
        """See `GroupConfigs.alter`. Who names a topic of dead letters must have the right to write there.

        The broker writes them by its own right.
        """
        self.check(Operation.ALTER_CONFIGS, group_id)

        def altered(before: Mapping[str, str]) -> Mapping[str, str]:
            after = alter(before)
            target = after.get(DEAD_LETTER_TOPIC)
            if target and target != before.get(DEAD_LETTER_TOPIC):
                self._rights.check(Operation.WRITE, Kind.TOPIC, target)
            return after

        await self._configs.alter(group_id, altered, validate_only=validate_only)

    def configured(self) -> list[str]:
        """The groups for which something is set, as far as they may be described."""
        may = self._rights.may
        return [group_id for group_id in self._configs.configured() if may(Operation.DESCRIBE, Kind.GROUP, group_id)]

    async def delete(self, group_id: str) -> None:
        self.check(Operation.DELETE, group_id)
        await self._shares.delete_group(group_id)

    async def list(self, states: frozenset[str], types: frozenset[str]) -> list[GroupListing]:
        """Those that may be described; all for who may describe the cluster."""
        listed = await self._groups.list(states, types)
        may = self._rights.may
        if may(Operation.DESCRIBE, Kind.CLUSTER, THE_CLUSTER.name):
            return listed
        return [group for group in listed if may(Operation.DESCRIBE, Kind.GROUP, group.group_id)]
