"""Replicas that lack what they should have: out of every set in which they count, then made anew from their leaders."""

from penstock.cluster.roles.handover import Handover
from penstock.cluster.roles.holdings import Holdings
from penstock.cluster.roles.removal import Removal
from penstock.cluster.roles.standing import Standing
from penstock.cluster.roles.taking import Taking
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger

log_ = get_logger("cluster")


class Mending:
    def __init__(
        self, holdings: Holdings, standing: Standing, handover: Handover, removal: Removal, taking: Taking
    ) -> None:
        self._holdings = holdings
        self._standing = standing
        self._handover = handover
        self._removal = removal
        self._taking = taking
        self._me = holdings.me

    def damaged(self, partition: Partition) -> None:
        """This replica lacks what it should have. If it is `offline`, nothing of it can be used.

        What is damaged of what is attached to a partition is mended with it: together they give up their place.
        """
        damaged, owner = self._holdings.damaged, partition.attached_to or partition
        if owner not in damaged or not partition.is_damaged:
            log_.error("replica is damaged", partition=partition.name, error=str(_why(partition)))
            partition.is_damaged = True
            damaged[owner] = None
            self._holdings.agenda.wake()

    async def mend_all(self) -> None:
        for partition in [*self._holdings.damaged]:
            with self._holdings.agenda.short_of_room():
                async with self._holdings.lock_of(partition):
                    await self._mend(partition)

    async def _mend(self, partition: Partition) -> None:
        """Out of every set that lets a damaged replica count, then anew from whoever leads.

        While it leads and nobody else could, it goes on with what is left of it.
        """
        topic = self._holdings.engine.topics.get(partition.topic)
        state = self._holdings.decided(partition)
        if topic is None or topic.topic_id != partition.topic_id or state is None:
            self._holdings.damaged.pop(partition, None)
            return
        if self._me not in state.replicas:
            await self._removal.drop_if_safe(partition, state)  # until then it may have to hold the partition again
            return
        live = self._holdings.image.live()
        counts = self._me in (*state.isr, *state.elr) or state.leader == self._me
        if partition.offline is None:
            others = [member for member in (*state.isr, *state.elr) if member in live and member != self._me]
            others = others or _heirs(partition, [member for member in state.last if member in live])
            if not others or (counts and not await self._handover.resign(partition, state)):
                return
            partition.offline = next(why for each in partition.together if (why := _why(each)) is not None)
            self._standing.stand_down(partition, state)
            if counts:
                return
        if counts:
            await self._handover.resign(partition, state)
        elif state.leader == NOBODY and self._me in state.last:
            await self._handover.report_damaged(partition)
        elif state.leader in live and not self._handover.has_resigned(partition, state):
            await self._handover.resign(partition, state)
        elif state.leader in live:
            await self._make_anew(topic, partition, state)

    async def _make_anew(self, topic: Topic, partition: Partition, state: PartitionState) -> None:
        """What is damaged of a partition and what is attached to it; the rest follows on from where it is."""
        why = partition.offline or PenstockError(Code.CORRUPT_LOG, f"{partition.name} is damaged")
        replicas, holdings = self._holdings.engine.replicas, self._holdings
        self._standing.stand_down(partition, state)
        broken = [each for each in partition.together if each.is_damaged]
        for each in broken:
            await replicas.close(each, why)
            await holdings.disk.run(holdings.directory.set_aside, each.topic, each.topic_id, each.index)
            await replicas.empty_removed()
            self._removal.set_aside.add((each.topic_id, each.index))
        holdings.damaged.pop(partition, None)
        self._handover.made_anew(partition)
        partition.offline = None
        for each in broken:
            each.hold_nothing()
            log_.warning("makes a damaged replica anew", partition=each.name, leader=state.leader)
        for holder in topic.with_attached:
            await self._taking.make(holder, [each for each in broken if each.topic_id == holder.topic_id])
        await self._taking.become_follower(partition, state)


def _heirs(partition: Partition, doubtful: list[int]) -> list[int]:
    """Those who started uncleanly and have all records that are led here, when what is attached here cannot be used.

    Nothing was acknowledged without them. One of them can lead both, where this broker could only lead the records, and
    nobody would ever be in sync with it.
    """
    if partition.led is None or all(each.offline is None for each in partition.attached):
        return []
    followers = map(partition.leadership.follower, doubtful)
    return [each.broker_id for each in followers if each is not None and each.end >= partition.end_offset]


def _why(partition: Partition) -> PenstockError | None:
    return partition.offline or (partition.log.damage if partition.log is not None else None)
