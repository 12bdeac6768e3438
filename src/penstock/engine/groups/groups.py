"""Groups as the doors see them: asks the shard a group lives in. All verbs raise PenstockError."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from penstock.engine.coordination.coordinators import Coordinators
from penstock.engine.coordination.outcome import Outcome, Token
from penstock.engine.coordination.registry import GROUPS
from penstock.engine.coordination.schemas import BegunTopic
from penstock.engine.coordination.shard import InTransaction, Shard, Step
from penstock.engine.groups.classic_requests import (
    ClassicDescription,
    GroupLimits,
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
    ConsumerLimits,
    LimitsOf,
)
from penstock.engine.groups.group_configs import LONGEST_GROUP_ID
from penstock.engine.groups.known_topics import TopicInfo
from penstock.engine.groups.machine import RECORDS_PER_STEP, GroupListing, GroupMachine
from penstock.engine.groups.member_room import MemberRoom, Share
from penstock.engine.groups.offsets import (
    CommitRequest,
    FetchedOffsets,
    FetchRequest,
    NewOffset,
    Results,
    Spot,
    TransactionalCommit,
)
from penstock.engine.groups.retention import RETENTION_MS
from penstock.engine.groups.share import TimesOf
from penstock.engine.groups.share_requests import (
    LostMember,
    ShareDescription,
    ShareHeartbeat,
    ShareHeartbeatResult,
    ShareLimits,
    ShareStart,
    ShareTimes,
)
from penstock.engine.groups.topic_patterns import Sight
from penstock.engine.groups.topic_view import EngineTopics
from penstock.engine.partition import Partition
from penstock.engine.topics import Topics
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.randomness import Randomness, new_uuid
from penstock.turns import Turns

log_ = get_logger("groups")

T = TypeVar("T")
Offered = Mapping[Spot, NewOffset]


class GroupSettings(NamedTuple):
    classic: GroupLimits = GroupLimits()
    consumer: ConsumerLimits = ConsumerLimits()
    offsets_retention_ms: int = RETENTION_MS
    consumer_limits_of: LimitsOf | None = None
    """By the id of a group of the consumer protocol, if not all of them go by the same."""
    share: ShareLimits = ShareLimits()
    share_times_of: TimesOf = lambda group_id: ShareTimes()
    """By the id of a share group."""


class Groups:
    def __init__(
        self,
        coordinators: Coordinators,
        topics: Topics,
        turns: Turns,
        randomness: Randomness,
        settings: GroupSettings | None = None,
    ) -> None:
        self._turns = turns
        self._settings = settings or GroupSettings()
        self._view = EngineTopics(topics)
        self._randomness = randomness
        self._room = MemberRoom()
        self.members_lost: Callable[[Sequence[LostMember]], None] = _nothing
        """Told of members of share groups that were given up, once that is durable. Given by whoever knows ledgers."""
        self.shards = coordinators.register(GROUPS, self._machines, self._duties, self.topic_deleted)

    def _machines(self, partition: Partition) -> Callable[[int], GroupMachine]:
        return partial(self._make_machine, self._room.share())

    def _duties(self, shard: Shard[GroupMachine], machine: GroupMachine) -> Callable[[], None] | None:
        lost = machine.take_lost()
        return partial(self._tell_lost, lost) if lost else None

    def _tell_lost(self, lost: Sequence[LostMember]) -> None:
        self.members_lost(lost)

    def _make_machine(self, room: Share, now: int) -> GroupMachine:
        settings = self._settings
        return GroupMachine(
            now,
            new_id=lambda: str(new_uuid(self._randomness)),
            topics=self._view,
            classic_limits=settings.classic,
            consumer_limits=settings.consumer,
            consumer_limits_of=settings.consumer_limits_of,
            share_limits=settings.share,
            share_times_of=settings.share_times_of,
            retention_ms=settings.offsets_retention_ms,
            room=room,
        )

    async def _ask(self, group_id: str, step: Step[GroupMachine], written_in: InTransaction | None = None) -> Any:
        if len(group_id) > LONGEST_GROUP_ID:
            raise PenstockError(
                Code.INVALID_GROUP_ID, f"a group id of {len(group_id)} characters; allowed: {LONGEST_GROUP_ID}"
            )
        return await (await self.shards.of(group_id)).ask(step, written_in)

    # --- members

    async def join(self, request: JoinRequest) -> JoinResult:
        result: JoinResult = await self._ask(request.group_id, lambda m, now, token: m.join(now, token, request))
        return result

    async def sync(self, request: SyncRequest) -> SyncResult:
        result: SyncResult = await self._ask(request.group_id, lambda m, now, token: m.sync(now, token, request))
        return result

    async def heartbeat(self, request: HeartbeatRequest) -> None:
        await self._ask(request.group_id, lambda m, now, token: m.heartbeat(now, token, request))

    async def leave(self, group_id: str, members: tuple[LeavingMember, ...]) -> tuple[LeaveResult, ...]:
        result: tuple[LeaveResult, ...] = await self._ask(
            group_id, lambda m, now, token: m.leave(now, token, group_id, members)
        )
        return result

    async def consumer_heartbeat(self, request: ConsumerHeartbeat, sight: Sight) -> ConsumerHeartbeatResult:
        """Args:
        sight: the topics that who sends it may be told of. It is asked again later, for as long as the member is there.
        """
        result: ConsumerHeartbeatResult = await self._ask(
            request.group_id, lambda m, now, token: m.consumer_heartbeat(now, token, request, sight)
        )
        return result

    async def share_heartbeat(self, request: ShareHeartbeat) -> ShareHeartbeatResult:
        result: ShareHeartbeatResult = await self._ask(
            request.group_id, lambda m, now, token: m.share_heartbeat(now, token, request)
        )
        return result

    async def share_start(self, group_id: str, topic_id: UUID, partition: int) -> ShareStart | None:
        """How a partition begins in a share group; None if it was never given to the group."""
        result: ShareStart | None = await self._ask(
            group_id, lambda m, now, token: m.share_start(now, token, group_id, topic_id, partition)
        )
        return result

    async def share_topics(self, group_id: str) -> tuple[BegunTopic, ...]:
        """The topics whose partitions a share group was ever given, as far as they are there."""
        result: tuple[BegunTopic, ...] = await self._ask(
            group_id, lambda m, now, token: m.share_topics(now, token, group_id)
        )
        return result

    async def restart_share(self, group_id: str, starts: Mapping[TopicInfo, Mapping[int, int]]) -> int:
        """Have partitions begin anew in a share group without members: the group's epoch then.

        Args:
            starts: of each partition an offset, or `share_state.OPEN`.
        """
        epoch: int = await self._ask(group_id, lambda m, now, token: m.restart_share(now, token, group_id, starts))
        return epoch

    async def forget_share_topics(self, group_id: str, topic_ids: Collection[UUID]) -> int:
        """Have it be as if topics had never been given to a share group without members: the group's epoch then."""
        epoch: int = await self._ask(
            group_id, lambda m, now, token: m.forget_share_topics(now, token, group_id, topic_ids)
        )
        return epoch

    async def begin_forgetting(self, group_id: str, owner: object) -> tuple[int, tuple[BegunTopic, ...]] | None:
        """Keep a share group without members from everybody: its epoch, and what it was given. None: no share group.

        It is so until `end_forgetting` or `delete_forgotten` of the same owner.
        """
        found: tuple[int, tuple[BegunTopic, ...]] | None = await self._ask(
            group_id, lambda m, now, token: m.begin_forgetting(now, token, group_id, owner)
        )
        return found

    async def end_forgetting(self, group_id: str, owner: object) -> None:
        shard = await self.shards.of(group_id)
        shard.step(lambda machine, now: machine.end_forgetting(group_id, owner))

    async def delete_forgotten(self, group_id: str, owner: object) -> None:
        await self._ask(group_id, lambda m, now, token: m.delete_forgotten(now, token, group_id, owner))

    # --- offsets

    async def commit(self, request: CommitRequest) -> Results:
        def ask(offsets: Offered) -> Awaitable[Results]:
            part = request._replace(offsets=offsets)
            return self._ask(part.group_id, lambda m, now, token: m.commit(now, token, part))

        return await _in_parts(request.offsets, ask)

    async def commit_in_transaction(self, request: TransactionalCommit, check: Callable[[], None]) -> Results:
        """Args:
        check: raises PenstockError if the transaction has ended meanwhile; made when nothing can come in between.
        """

        identity = InTransaction(request.producer_id, request.producer_epoch)

        def ask(offsets: Offered) -> Awaitable[Results]:
            def step(machine: GroupMachine, now: int, token: Token) -> Outcome:
                check()
                return machine.commit_in_transaction(now, token, request._replace(offsets=offsets))

            return self._ask(request.group_id, step, identity)

        return await _in_parts(request.offsets, ask)

    async def fetch(self, request: FetchRequest) -> FetchedOffsets:
        result: FetchedOffsets = await self._ask(request.group_id, lambda m, now, token: m.fetch(now, token, request))
        return result

    async def delete_offsets(self, group_id: str, spots: Iterable[Spot]) -> Results:
        def ask(part: Mapping[Spot, None]) -> Awaitable[Results]:
            return self._ask(group_id, lambda m, now, token: m.delete_offsets(now, token, group_id, part))

        return await _in_parts(dict.fromkeys(spots), ask)

    async def topic_deleted(self, name: str) -> None:
        """Forget what groups remember of a topic that is gone; a shard that cannot do it now keeps it."""
        for shard in self.shards:
            try:
                unlooked = (await shard.machine()).groups_with_topics()
                while unlooked:
                    await _forget_some(shard, name, unlooked)
            except PenstockError as error:
                log_.warning("groups remember a deleted topic", topic=name, error=str(error), help=error.help)

    # --- administration

    async def describe_classic(self, group_id: str) -> ClassicDescription:
        result: ClassicDescription = await self._ask(
            group_id, lambda m, now, token: m.describe_classic(now, token, group_id)
        )
        return result

    async def describe_consumer(self, group_id: str) -> ConsumerDescription:
        result: ConsumerDescription = await self._ask(
            group_id, lambda m, now, token: m.describe_consumer(now, token, group_id)
        )
        return result

    async def describe_share(self, group_id: str) -> ShareDescription:
        result: ShareDescription = await self._ask(
            group_id, lambda m, now, token: m.describe_share(now, token, group_id)
        )
        return result

    async def delete(self, group_id: str) -> None:
        await self._ask(group_id, lambda m, now, token: m.delete(now, token, group_id))

    async def list(self, states: frozenset[str], types: frozenset[str]) -> list[GroupListing]:
        found: list[GroupListing] = []
        for shard in self.shards:
            await self._turns.next()
            found += await shard.ask(lambda m, now, token: m.list_groups(now, token, states, types))
        return found


def _nothing(lost: Sequence[LostMember]) -> None:
    return None


async def _in_parts(whole: Mapping[Spot, T], ask: Callable[[Mapping[Spot, T]], Awaitable[Results]]) -> Results:
    """Ask for so much at a time that others need not wait long; what comes behind an error shares it.

    Nobody is promised that partitions are changed together: each has a result of its own.
    """
    if len(whole) <= RECORDS_PER_STEP:
        return await ask(whole)
    results: dict[Spot, PenstockError | None] = {}
    rest = iter(whole.items())
    while part := dict(islice(rest, RECORDS_PER_STEP)):
        try:
            results |= await ask(part)
        except PenstockError as error:
            if not results:
                raise
            return results | dict.fromkeys((*part, *(spot for spot, _ in rest)), error)
        await asyncio.sleep(0)  # an answer may be there at once
    return results


async def _forget_some(shard: Shard[GroupMachine], topic: str, unlooked: list[str]) -> None:
    """One step for some of the groups; others had their turn meanwhile. Raises PenstockError."""
    machine = await shard.machine()
    shard.step(lambda machine, now: machine.topic_deleted(topic, unlooked))
    shard.end_turn()
    if shard.loaded is not machine:  # nothing was written, and trying again at once would not help
        raise PenstockError(
            Code.COORDINATOR_NOT_AVAILABLE, f"{shard.partition.topic}-{shard.partition.index} cannot be written"
        )
    await asyncio.sleep(0)
