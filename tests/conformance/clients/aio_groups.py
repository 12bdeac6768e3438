"""aiokafka's consumers as members of groups, each on an event loop of its own, and its admin side of groups."""

import asyncio
import io
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from .aio import run
from .client import DEADLINE_S, NO_MATCH, ClientError
from .groups import (
    HEARTBEAT_MS,
    POLL_S,
    SESSION_MS,
    Committed,
    Described,
    GroupAdmin,
    Listing,
    Options,
    Place,
    PolledMember,
    Seen,
)

T = TypeVar("T")
ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}


class AioMember(PolledMember):
    def __init__(self, bootstrap: str, options: Options, *, assignor: str = "roundrobin") -> None:
        self._assignor = ASSIGNORS[assignor]
        super().__init__(bootstrap, options)

    def _await(self, work: Coroutine[None, None, T]) -> T:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, DEADLINE_S))
        except KafkaError as failure:
            raise ClientError(getattr(failure, "errno", NO_MATCH), repr(failure)) from failure

    def _open(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._await(self._start())

    async def _start(self) -> None:
        options = self.options
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=options.group,
            client_id=options.client_id,
            group_instance_id=options.instance,
            enable_auto_commit=options.auto_commit_ms is not None,
            auto_commit_interval_ms=options.auto_commit_ms or 5000,
            auto_offset_reset=options.reset,
            isolation_level=options.isolation,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
            metadata_max_age_ms=1000,
            partition_assignment_strategy=[self._assignor],
        )
        if options.places:
            await self._consumer.start()
            places = [TopicPartition(*each) for each in options.places]
            self._consumer.assign(places)
            await self._consumer.seek_to_beginning(*places)
            return
        if options.pattern is not None:
            self._consumer.subscribe(pattern=options.pattern, listener=_Listener(self))
        else:
            self._consumer.subscribe(options.topics, listener=_Listener(self))
        await self._consumer.start()

    def _poll(self) -> None:
        for place, records in self._await(self._consumer.getmany(timeout_ms=int(POLL_S * 1000))).items():
            self._received += [Seen(tuple(place), each.offset, each.value) for each in records]
        self._assigned = frozenset(map(tuple, self._consumer.assignment()))

    def _close(self) -> None:
        self._await(self._consumer.stop())
        self._loop.close()

    def _commit(self, offsets: Mapping[Place, Committed] | None) -> None:
        wanted = offsets and {
            TopicPartition(*place): OffsetAndMetadata(each.offset, each.metadata) for place, each in offsets.items()
        }
        self._await(self._consumer.commit(wanted))

    def _committed(self, places: list[Place]) -> dict[Place, Committed]:
        # Its consumers do not hand out metadata; its admin side does.
        found = {each: self._await(self._consumer.committed(TopicPartition(*each))) for each in places}
        return {place: Committed(offset) for place, offset in found.items() if offset is not None}

    def _seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place), offset)

    def group_metadata(self) -> object:
        """What a transactional producer needs to commit this member's offsets: no more than the group's name."""
        return self.options.group


class _Listener(ConsumerRebalanceListener):
    def __init__(self, member: AioMember) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member._note("assigned", map(tuple, assigned))

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._member._note("revoked", map(tuple, revoked))


class AioGroupAdmin(GroupAdmin):
    name = "aiokafka"
    can_change_offsets = False
    can_delete_offsets = False
    new_protocol = False

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def groups(self) -> dict[str, Listing]:
        async def work() -> dict[str, Listing]:
            async with self._admin() as admin:
                return {each[0]: Listing(None, None, each[1]) for each in await admin.list_consumer_groups()}

        return run(work())

    def describe(self, group: str) -> Described:
        async def work() -> Described:
            async with self._admin() as admin:
                (answer,) = await admin.describe_consumer_groups([group])
            code, _group, state, _type, assignor, members, *_ = answer.groups[0]
            if code:
                raise ClientError(code, group)
            return Described(state, assignor, tuple(_member(each) for each in members))

        return run(work())

    def offsets(self, group: str, *places: Place) -> dict[Place, Committed]:
        async def work() -> dict[Place, Committed]:
            wanted = [TopicPartition(*each) for each in places] or None
            async with self._admin() as admin:
                found = await admin.list_consumer_group_offsets(group, partitions=wanted)
            return {
                tuple(place): Committed(each.offset, each.metadata) for place, each in found.items() if each.offset >= 0
            }

        return run(work())

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()


def _member(found: Any) -> tuple[str, str | None, frozenset[Place]]:
    # Version 4 and later put the instance after the member's id; the last field is the assignment.
    client_id = found[2] if len(found) == 6 else found[1]
    instance = found[1] if len(found) == 6 else None
    if not found[-1]:
        return client_id, instance, frozenset()
    assignment = ConsumerProtocolMemberAssignment.decode(io.BytesIO(found[-1]))
    places = frozenset((topic, index) for topic, indexes in assignment.assignment for index in indexes)
    return client_id, instance, places
