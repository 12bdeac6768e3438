"""What this broker does about each partition, by what the cluster has decided: lead, follow, or know who does.

One task goes through the partitions whose state has changed.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

from penstock.cluster import keys
from penstock.cluster.image import Image, TopicEntry
from penstock.cluster.replication.following import Following
from penstock.cluster.roles.handover import Handover
from penstock.cluster.roles.holdings import Holdings
from penstock.cluster.roles.mending import Mending
from penstock.cluster.roles.removal import Removal
from penstock.cluster.roles.standing import Standing
from penstock.cluster.roles.taking import Taking
from penstock.engine.attached import attach_all, use_config
from penstock.engine.engine import Engine
from penstock.engine.internal_settings import acting_settings, topic_config
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.topics import Topic
from penstock.ports.disk import Disk
from penstock.ports.metadata import MetadataStore
from penstock.storage.data_directory import DataDirectory


class Roles:
    """Args:
    following: what this broker follows of another, made when first needed; None if that broker is not there now.
    may_decide_alone: see `Partition`.
    followers_moved: told of partitions with a follower that could be in sync.
    woken: called when topics or roles have changed.
    accepts_older: the metadata store may be older than the logs here, and an operator has said so.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        image: Image,
        store: MetadataStore,
        disk: Disk,
        directory: DataDirectory,
        following: Callable[[int], Following | None],
        incarnation: Callable[[], int],
        may_decide_alone: Callable[[], bool],
        followers_moved: Callable[[Partition], None],
        woken: Callable[[], None],
        accepts_older: bool = False,
    ) -> None:
        self._engine = engine
        self._image = image
        self._may_decide_alone = may_decide_alone
        self._followers_moved = followers_moved
        self._woken = woken
        self._me = engine.node_id
        self._stopped = False
        self._busy = asyncio.Lock()
        self._holdings = holdings = Holdings(engine, image, store, disk, directory, incarnation)
        self._agenda = holdings.agenda
        self._standing = Standing(engine, following)
        self._handover = Handover(holdings)
        self._removal = Removal(holdings, self._standing, self._handover)
        self._taking = Taking(holdings, self._standing, self._handover, self._removal, accepts_older=accepts_older)
        self._mending = Mending(holdings, self._standing, self._handover, self._removal, self._taking)

    # --- being told

    def changed(self, changed: Collection[str]) -> None:
        """Keys of the image that are not as they were."""
        self._agenda.add(changed)
        if keys.admitted_key(self._me) in changed:
            self._agenda.add_everything()

    def look_at_everything(self) -> None:
        self._agenda.add_everything()

    def damaged(self, partition: Partition) -> None:
        """This replica, or one attached to it, lacks what it should have. If `offline`, nothing of it can be used."""
        self._mending.damaged(partition)

    def give_away(self, partition: Partition) -> None:
        """This broker has no room for it: another one should lead, and nobody wait for this one."""
        self._handover.give(partition.attached_to or partition)
        self._agenda.wake()

    def lock_of(self, partition: Partition) -> asyncio.Lock:
        return self._holdings.lock_of(partition)

    @property
    def set_aside(self) -> set[tuple[UUID, int]]:
        """Damaged replicas that are kept until theirs is in sync again."""
        return self._removal.set_aside

    def led(self) -> list[Partition]:
        """What this broker leads and others have replicas of."""
        return [
            partition
            for topic in self._engine.topics
            for partition in topic.partitions
            if partition.led is not None and len(partition.state.replicas) > 1
        ]

    async def stop(self) -> None:
        """Take no other roles any more, and follow nothing; returns when no step is under way."""
        self._stopped = True
        self._agenda.wake()
        async with self._busy:
            self._standing.follow_nothing()

    async def run(self) -> None:
        """Until `stop`."""
        while not self._stopped:
            await self._agenda.wait()
            async with self._busy:
                if not self._stopped:
                    changed = self._agenda.take()
                    with self._agenda.short_of_room():
                        await self.settle(changed)

    # --- doing

    async def settle(self, changed: set[str] | None) -> None:
        """Bring topics and roles in line with the image; `changed` limits it to what these keys are about."""
        touched = self._touched(changed)
        revision = self._engine.topics.revision
        await self._removal.remove_deleted()
        await self._removal.let_go()
        for entry in [self._image.topics[name] for name in sorted(self._image.topics)]:
            if touched is None or entry.record.topic_id in touched:
                await self._settle_topic(entry)
        if changed is None or any(key.startswith(keys.BROKERS) or key == keys.CONTROLLER for key in changed):
            await self._taking.follow_again()
            self._engine.topics.changed()
        await self._mending.mend_all()
        await self._removal.drop_leaving()
        await self._removal.drop_all_set_aside()
        await self._handover.give_all()
        if self._engine.topics.revision != revision:
            self._woken()

    def _touched(self, changed: set[str] | None) -> set[UUID] | None:
        if changed is None:
            return None
        touched = {keys.read_partition_key(key)[0] for key in changed if key.startswith(keys.PARTITIONS)}
        for key in changed:
            if key.startswith(keys.TOPICS):
                entry = self._image.topics.get(key.removeprefix(keys.TOPICS))
                if entry is not None:
                    touched.add(entry.record.topic_id)
        return touched

    async def _settle_topic(self, entry: TopicEntry) -> None:
        topic = self._engine.topics.get(entry.name)
        states = self._image.states.get(entry.record.topic_id, {})
        if topic is not None and topic.topic_id != entry.record.topic_id:
            return  # the one before is still to be removed
        is_new = topic is None
        if topic is None:
            config = topic_config(entry.name, entry.record.settings, self._engine.topic_defaults)
            topic = Topic(entry.name, entry.record.topic_id, config, [], queues=entry.record.queues)
        elif dict(topic.config.given) != dict(acting_settings(topic.name, entry.record.settings)):
            self._use_config(topic, entry.record.settings)
        if topic.queues != entry.record.queues:
            self._engine.topics.use_queues(topic, entry.record.queues)
        for index in range(len(topic.partitions), entry.record.partitions):
            if index not in states:
                break  # told of soon
            topic.partitions.append(self.new_partition(topic, index, states[index]))
        is_attached = attach_all(topic, entry.record.attached, self.new_attached)
        if is_new and topic.partitions:
            self._engine.topics.add(topic)
        elif is_attached:
            self._engine.topics.show_attached(topic)
        moved = [
            (partition, states[partition.index])
            for partition in topic.partitions
            if partition.index in states and self._is_news(partition, states[partition.index])
        ]
        if moved:
            with self._agenda.short_of_room():
                await self._taking.open(topic, [partition for partition, state in moved if self._me in state.replicas])
            await self._taking.take_roles(moved)
            self._engine.topics.changed()

    def use_defaults(self) -> None:
        """The defaults of topics are not what they were."""
        for topic in self._engine.topics:
            self._use_config(topic, topic.config.given)

    def _use_config(self, topic: Topic, settings: Mapping[str, str]) -> None:
        use_config(topic, topic_config(topic.name, settings, self._engine.topic_defaults))
        for each in topic.with_attached:
            for partition in each.partitions:
                if partition.log is not None:
                    self._engine.replicas.caretaker.call(partition.log)
        self._engine.topics.changed()

    def new_partition(self, topic: Topic, index: int, state: PartitionState) -> Partition:
        """One that has no role here yet."""
        unsettled = PartitionState(state.replicas, state.isr, NOBODY, state.leader_epoch)  # revision 0: all is news
        partition = self._made(topic, index, unsettled)
        partition.on_followers_moved = lambda: self._moved(partition)
        return partition

    def new_attached(self, holder: Topic, partition: Partition) -> Partition:
        """One to be attached to a partition, whose roles it will take."""
        attached = self._made(holder, partition.index, partition.state)
        attached.on_followers_moved = lambda: self._moved(partition)
        return attached

    def _moved(self, partition: Partition) -> None:
        """Followers have caught up that are not in sync."""
        self._followers_moved(partition)
        if partition in self._holdings.damaged:  # one of them may take its place
            self._agenda.wake()

    def _made(self, topic: Topic, index: int, state: PartitionState) -> Partition:
        engine = self._engine
        partition = Partition(
            topic.name,
            topic.topic_id,
            index,
            state,
            topic.config,
            engine.clock,
            self._me,
            engine.events,
            engine.elsewhere,
        )
        partition.may_decide_alone = self._may_decide_alone
        return partition

    def _is_news(self, partition: Partition, state: PartitionState) -> bool:
        if state.revision > partition.state.revision:
            return True
        if partition.offline is not None:
            return self._me in (*state.isr, *state.elr, state.leader)  # given up, and nobody could be told yet
        is_undone = partition.led is None and (partition.log is None or state.leader == self._me)
        is_undone = is_undone or partition.lacks_attached
        return self._me in state.replicas and is_undone
