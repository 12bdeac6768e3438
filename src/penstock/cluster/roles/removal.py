"""What is here and should be no more: replicas that have moved away, topics that were deleted, what was damaged."""

from uuid import UUID

from penstock.cluster import keys
from penstock.cluster.image import DeletedTopic
from penstock.cluster.roles.handover import Handover
from penstock.cluster.roles.holdings import Holdings
from penstock.cluster.roles.standing import Standing
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.metadata import MetadataConflict, MetadataUnavailable

log_ = get_logger("cluster")


class Removal:
    def __init__(self, holdings: Holdings, standing: Standing, handover: Handover) -> None:
        self._holdings = holdings
        self._standing = standing
        self._handover = handover
        self._me = holdings.me
        self._engine = holdings.engine
        self.set_aside: set[tuple[UUID, int]] = set()
        """Damaged replicas that are kept until theirs is in sync again."""

    # --- replicas

    async def drop_leaving(self) -> None:
        leaving = self._holdings.leaving
        for partition in [*leaving]:
            with self._holdings.agenda.short_of_room():
                async with self._holdings.lock_of(partition):
                    if self._me not in partition.state.replicas:
                        await self.drop_if_safe(partition, partition.state)
                    elif partition.log is not None:
                        leaving.pop(partition, None)  # it has come back, with what was left of it

    async def drop_if_safe(self, partition: Partition, state: PartitionState) -> None:
        """Remove a replica that is none any more, if all who hold the partition now are in sync."""
        damaged, leaving = self._holdings.damaged, self._holdings.leaving
        together = partition.together
        holds = partition.has_any_log or partition in damaged or partition in leaving
        if not holds or state.leader not in self._holdings.image.live() or set(state.isr) != set(state.replicas):
            return
        gone = PenstockError(Code.NOT_LEADER, f"{partition.name} has moved to brokers {list(state.replicas)}")
        broken = [each for each in together if each.is_damaged]
        for each in together:
            await self._engine.replicas.close(each, gone)
            each.hold_nothing()
        self._engine.events.moved_away(partition)
        damaged.pop(partition, None)
        leaving[partition] = None  # until it is done: a shortage may be in the way
        directory = self._holdings.directory
        for each in together:
            if each in broken:  # it may not even say whose it is, and would be in the way of the next one for good
                await self._holdings.disk.run(directory.set_aside, each.topic, each.topic_id, each.index)
                self.set_aside.add((each.topic_id, each.index))
            else:
                await self._holdings.disk.run(directory.remove_partition, each.topic, each.topic_id, each.index)
        leaving.pop(partition, None)
        await self._engine.replicas.empty_removed()
        log_.info("removes a replica that has moved away", partition=partition.name, to=list(state.replicas))
        for each in together:
            if (each.topic_id, each.index) in self.set_aside:
                await self._drop_set_aside(each)

    # --- what was damaged

    async def drop_all_set_aside(self) -> None:
        for topic_id, index in sorted(self.set_aside):
            topic = self._engine.topics.get_with_attached(topic_id)
            if topic is None or index >= len(topic.partitions):
                continue
            state = self._holdings.decided(topic.partitions[index])
            if state is None or self._me not in state.isr:
                continue
            with self._holdings.agenda.short_of_room():
                await self._drop_set_aside(topic.partitions[index])

    async def _drop_set_aside(self, partition: Partition) -> None:
        """All who hold the partition are in sync: what is left of a damaged replica is not needed any more."""
        await self._holdings.disk.run(self._holdings.directory.drop_set_aside, partition.topic_id, partition.index)
        self.set_aside.discard((partition.topic_id, partition.index))
        self._engine.stats.mended_replicas += 1
        await self._engine.replicas.empty_removed()
        log_.info("a damaged replica is not needed any more", partition=partition.name)

    # --- topics

    async def let_go(self) -> None:
        """Topics that are there no more, whether this broker was told of their deletion or not; files stay."""
        there = {entry.record.topic_id for entry in self._holdings.image.topics.values()}
        for topic in [topic for topic in self._engine.topics if topic.topic_id not in there]:
            self._engine.topics.remove(topic)
            gone = PenstockError(Code.UNKNOWN_TOPIC, f"topic {topic.name!r} was deleted")
            for partition in topic.partitions:
                async with self._holdings.lock_of(partition):
                    self._standing.stand_down(partition, partition.state)
                    for each in partition.together:
                        await self._engine.replicas.close(each, gone)
                self._holdings.forget(partition)
                self._handover.forget(partition)
            await self._engine.events.deleted(topic)

    async def remove_deleted(self) -> None:
        for topic_id, deleted in [*self._holdings.image.deleted.items()]:
            await self._remove(topic_id, deleted)

    async def _remove(self, topic_id: UUID, deleted: DeletedTopic) -> None:
        """A topic was deleted: let go of it, remove its files, and say so."""
        await self.let_go()
        if self._me not in deleted.waiting:
            return
        await self._holdings.disk.run(self._holdings.directory.remove_owned, deleted.topic, topic_id)
        await self._engine.replicas.empty_removed()
        waiting = tuple(broker_id for broker_id in deleted.waiting if broker_id != self._me)
        key, store = f"{keys.DELETED}{topic_id}", self._holdings.store
        try:
            if waiting:
                left = DeletedTopic(deleted.topic, waiting)
                await store.transact(expect={key: deleted.revision}, put={key: left.encode()})
            else:
                await store.transact(expect={key: deleted.revision}, delete=[key])
        except (MetadataConflict, MetadataUnavailable):
            self._holdings.agenda.add_again(key)
