"""Where a share group begins to read a partition: at its end, its beginning or a moment, as the group's settings say.

The group's coordinator knows which partitions the group was given, and when. What a topic has from the start begins
where the settings say when it is first read; partitions that it gets later begin at their first record, of which the
group is to miss nothing.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import UUID

from penstock.engine.groups.group_config import OffsetReset
from penstock.engine.groups.group_configs import GroupConfigs
from penstock.engine.groups.groups import Groups
from penstock.engine.groups.share_requests import ShareStart
from penstock.engine.offset_lookup import Found
from penstock.engine.partition import Partition
from penstock.engine.queues.queues import Queues
from penstock.errors import Code, PenstockError
from penstock.ports.clock import Clock

FindByTime = Callable[[Partition, int], Awaitable[Found | None]]


class OtherCoordinators(Protocol):
    async def share_start(self, broker_id: int, group: str, topic_id: UUID, partition: int) -> ShareStart | None:
        """As `Groups.share_start` of another broker. Raises PenstockError, NOT_AVAILABLE if there was no answer."""
        ...


class NobodyElse:
    """A broker on its own coordinates all groups."""

    async def share_start(self, broker_id: int, group: str, topic_id: UUID, partition: int) -> ShareStart | None:
        raise PenstockError(Code.NOT_AVAILABLE, f"broker {broker_id} is not known here")


def within(partition: Partition, offset: int) -> int:
    """The nearest offset from which on there are records, or will be."""
    end = partition.high_watermark if partition.is_settled else offset
    return max(min(offset, end), partition.log_start)


class Sharing:
    """Of one broker.

    Args:
        find: the first record at or after a moment.

    Attributes:
        other_coordinators: replaced by those of a cluster, before the start.
    """

    def __init__(self, queues: Queues, groups: Groups, configs: GroupConfigs, clock: Clock, find: FindByTime) -> None:
        self._queues = queues
        self._groups = groups
        self._configs = configs
        self._clock = clock
        self._find_by_time = find
        self.other_coordinators: OtherCoordinators = NobodyElse()

    async def open(self, partition: Partition, group: str) -> None:
        """Have a group begin to read a partition; nothing if it does.

        Raises:
            PenstockError: UNKNOWN_QUEUE if the group was never given it; COORDINATOR_LOADING while it is deleted.
        """
        before = self._queues.sight(partition)
        given = await self._start_of(partition, group)
        if given is None:
            raise PenstockError(
                Code.UNKNOWN_QUEUE,
                f"share group {group!r} was never given {partition.name}",
                help="join the group and subscribe to the topic first",
            )
        start = given.offset
        if start is None:
            start = await self._find(partition, self._configs.of(group).offset_reset)
        await self._queues.open_shared(partition, group, within(partition, start), given.state_epoch, before)

    async def _start_of(self, partition: Partition, group: str) -> ShareStart | None:
        """What the coordinator of the group says, whichever broker that is."""
        coordinator = (await self._groups.shards.of(group)).partition
        if not coordinator.is_elsewhere:
            return await self._groups.share_start(group, partition.topic_id, partition.index)
        return await self.other_coordinators.share_start(
            coordinator.state.leader, group, partition.topic_id, partition.index
        )

    async def _find(self, partition: Partition, reset: OffsetReset) -> int:
        if reset.where == "earliest":
            return partition.log_start
        if reset.where == "by_duration":
            found = await self._find_by_time(partition, self._clock.now_ms() - reset.back_ms)
            if found is not None:
                return found.offset
        return partition.high_watermark
