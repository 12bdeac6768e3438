"""What this broker does about each partition, by what the cluster has decided: lead, follow, or know who does.

One task goes through the partitions whose state has changed. Whatever a role needs on the disk first (a directory, the
epoch on record, no epochs without records) is done for all of them together, then each takes its role at once.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from uuid import UUID

from penstock.cluster import keys
from penstock.cluster.image import DeletedTopic, End, Image, TopicEntry
from penstock.cluster.replication.following import Following
from penstock.engine.engine import Engine
from penstock.engine.internal_settings import acting_settings, topic_config
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.engine.replicas import OPENED_AT_ONCE
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.disk import Disk, is_shortage
from penstock.ports.metadata import MetadataConflict, MetadataStore, MetadataUnavailable
from penstock.storage.data_directory import DataDirectory
from penstock.storage.log.log import Log

log_ = get_logger("cluster")
_PAUSE_S = 0.5
_GIVEN_FOR_S = 10.0
"""A partition that was given away for want of room is not given away again so soon: others may have no more of it."""
_FAR = 100_000
"""Epochs that the decisions which an old store has forgotten cannot have come to."""


class Roles:
    """Args:
    following: what this broker follows of another, made when first needed; None if that broker is not there now.
    may_decide_alone: see `Partition`.
    followers_moved: told of partitions with a follower that could be in sync.
    led_no_more: told of partitions another broker leads from now on.
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
        led_no_more: Callable[[Partition], None],
        woken: Callable[[], None],
        accepts_older: bool = False,
    ) -> None:
        self._engine = engine
        self._image = image
        self._store = store
        self._disk = disk
        self._directory = directory
        self._following = following
        self._incarnation = incarnation
        self._may_decide_alone = may_decide_alone
        self._followers_moved = followers_moved
        self._led_no_more = led_no_more
        self._woken = woken
        self._accepts_older = accepts_older
        self._me = engine.node_id
        self._wake = asyncio.Event()
        self._dirty: set[str] = set()
        self._all_dirty = True
        self._stopped = False
        self._busy = asyncio.Lock()
        self._locks: dict[Partition, asyncio.Lock] = {}
        self._followed: dict[Partition, Following] = {}
        self._reported: dict[Partition, End] = {}
        self._damaged: dict[Partition, None] = {}
        self._leaving: dict[Partition, None] = {}  # in their order, so that a run can be repeated
        """Replicas that are none any more, and whose files are to go; and those that were begun and may become so."""
        self._giving: dict[Partition, None] = {}
        self._given_at: dict[Partition, float] = {}
        self._raised: set[Partition] = set()
        """Whose epoch is later than any that an old store has forgotten."""
        self._resigned: dict[Partition, int] = {}
        """The epoch that began when this broker gave up a replica it could not use."""
        self.set_aside: set[tuple[UUID, int]] = set()
        """Damaged replicas that are kept until theirs is in sync again."""

    # --- being told

    def changed(self, changed: Iterable[str]) -> None:
        """Keys of the image that are not as they were."""
        self._dirty.update(changed)
        if keys.admitted_key(self._me) in self._dirty:
            self._all_dirty = True
        self._wake.set()

    def look_at_everything(self) -> None:
        self._all_dirty = True
        self._wake.set()

    def _look_again_at(self, key: str) -> None:
        """What could not be done now is tried again in a moment, news or not."""
        self._dirty.add(key)
        asyncio.get_running_loop().call_later(_PAUSE_S, self._wake.set)

    def damaged(self, partition: Partition) -> None:
        """This replica lacks what it should have. If it is `offline`, nothing of it can be used."""
        if partition not in self._damaged:
            why = str(partition.offline or (partition.log.damage if partition.log is not None else None))
            log_.error("replica is damaged", partition=partition.name, error=why)
            partition.is_damaged = True
            self._damaged[partition] = None
            self._wake.set()

    def give_away(self, partition: Partition) -> None:
        """This broker has no room for it: another one should lead, and nobody wait for this one."""
        self._giving[partition] = None
        self._wake.set()

    def lock_of(self, partition: Partition) -> asyncio.Lock:
        return self._locks.setdefault(partition, asyncio.Lock())

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
        self._wake.set()
        async with self._busy:
            for partition, following in self._followed.items():
                following.remove(partition)
            self._followed = {}

    async def run(self) -> None:
        """Until `stop`."""
        while not self._stopped:
            await self._wake.wait()
            self._wake.clear()
            async with self._busy:
                await self._look()

    async def _look(self) -> None:
        if not self._stopped:
            dirty, self._dirty = self._dirty, set()
            everything, self._all_dirty = self._all_dirty, False
            with self._short_of_room():
                await self.settle(None if everything else dirty)

    @contextmanager
    def _short_of_room(self) -> Iterator[None]:
        """What there is no room for is tried again in a moment, and what comes after it goes on."""
        try:
            yield
        except OSError as error:
            if not is_shortage(error):
                raise
            log_.limited("room").error("no room to take on a partition", error=str(error))
            self._all_dirty = True
            asyncio.get_running_loop().call_later(_PAUSE_S, self._wake.set)

    # --- doing

    async def settle(self, changed: set[str] | None) -> None:
        """Bring topics and roles in line with the image; `changed` limits it to what these keys are about."""
        touched = self._touched(changed)
        revision = self._engine.topics.revision
        for topic_id, deleted in [*self._image.deleted.items()]:
            await self._remove(topic_id, deleted)
        await self._let_go()
        for entry in [self._image.topics[name] for name in sorted(self._image.topics)]:
            if touched is None or entry.record.topic_id in touched:
                await self._settle_topic(entry)
        if changed is None or any(key.startswith(keys.BROKERS) or key == keys.CONTROLLER for key in changed):
            await self._follow_again()
            self._engine.topics.changed()
        for partition in [*self._damaged]:
            with self._short_of_room():
                async with self.lock_of(partition):
                    await self._mend(partition)
        await self._drop_leaving()
        for topic_id, index in sorted(self.set_aside):
            topic = self._engine.topics.get_by_id(topic_id)
            state = self._image.states.get(topic_id, {}).get(index)
            if topic is None or state is None or index >= len(topic.partitions) or self._me not in state.isr:
                continue
            with self._short_of_room():
                await self._drop_set_aside(topic.partitions[index])
        while self._giving:
            partition = self._giving.popitem()[0]
            async with self.lock_of(partition):
                await self._give_away(partition)
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
            topic = Topic(entry.name, entry.record.topic_id, config, [])
        elif dict(topic.config.given) != dict(acting_settings(topic.name, entry.record.settings)):
            self._use_config(topic, entry.record.settings)
        for index in range(len(topic.partitions), entry.record.partitions):
            if index not in states:
                break  # told of soon
            topic.partitions.append(self.new_partition(topic, index, states[index]))
        if is_new and topic.partitions:
            self._engine.topics.add(topic)
        moved = [
            (partition, states[partition.index])
            for partition in topic.partitions
            if partition.index in states and self._is_news(partition, states[partition.index])
        ]
        if moved:
            with self._short_of_room():
                await self._open(topic, [partition for partition, state in moved if self._me in state.replicas])
            await self._take_roles(moved)
            self._engine.topics.changed()

    def use_defaults(self) -> None:
        """The defaults of topics are not what they were."""
        for topic in self._engine.topics:
            self._use_config(topic, topic.config.given)

    def _use_config(self, topic: Topic, settings: Mapping[str, str]) -> None:
        topic.config = topic_config(topic.name, settings, self._engine.topic_defaults)
        for partition in topic.partitions:
            partition.use_config(topic.config)
            if partition.log is not None:
                self._engine.replicas.caretaker.look_at(partition.log)
        self._engine.topics.changed()

    def new_partition(self, topic: Topic, index: int, state: PartitionState) -> Partition:
        """One that has no role here yet."""
        unsettled = PartitionState(state.replicas, state.isr, NOBODY, state.leader_epoch)  # revision 0: all is news
        partition = Partition(topic.name, topic.topic_id, index, unsettled, topic.config, self._engine.clock, self._me)
        partition.may_decide_alone = self._may_decide_alone
        partition.on_followers_moved = lambda: self._followers_moved(partition)
        return partition

    def _is_news(self, partition: Partition, state: PartitionState) -> bool:
        if state.revision > partition.state.revision:
            return True
        if partition.offline is not None:
            return self._me in (*state.isr, *state.elr, state.leader)  # given up, and nobody could be told yet
        is_undone = partition.led is None and (partition.log is None or state.leader == self._me)
        return self._me in state.replicas and is_undone

    async def _open(self, topic: Topic, partitions: list[Partition]) -> None:
        """Logs for replicas that are new here."""
        async with AsyncExitStack() as held:
            missing = []
            for partition in partitions:
                if partition.log is None and partition.offline is None:
                    await held.enter_async_context(self.lock_of(partition))  # its log may be being replaced
                    if partition.log is None and partition.offline is None:
                        missing.append(partition)
            if missing:
                await self._make(topic, missing)

    async def _make(self, topic: Topic, missing: list[Partition]) -> None:
        # Until there is a log: if a shortage is in the way, the partition may move on with its directory half made.
        self._leaving.update(dict.fromkeys(missing))
        try:
            made = await self._disk.run(
                self._engine.replicas.make,
                topic.name,
                topic.topic_id,
                [partition.index for partition in missing],
                topic.config,
                None,
                lambda: False,
            )
        except FileExistsError as error:
            for partition in missing:
                partition.offline = PenstockError(
                    Code.CORRUPT_LOG, f"{partition.name}: {error}", help="move that directory away, and start again"
                )
            log_.error("another topic's records are in the way", topic=topic.name, error=str(error))
            return
        for partition, recovered in zip(missing, made, strict=True):
            partition.hold(self._engine.replicas.open(partition, recovered), 0)
            self._leaving.pop(partition, None)

    async def _take_roles(self, moved: list[tuple[Partition, PartitionState]]) -> None:
        leading: list[tuple[Partition, PartitionState, Log]] = []
        for partition, state in moved:
            with self._short_of_room():
                async with self.lock_of(partition):
                    log = await self._prepare(partition, state)
                    if log is not None:
                        leading.append((partition, state, log))
                    if partition.offline is not None and self._me in (*state.isr, *state.elr, state.leader):
                        await self._resign(partition, state)
        for at in range(0, len(leading), OPENED_AT_ONCE):
            group = leading[at : at + OPENED_AT_ONCE]
            self._giving.update({partition: None for partition, _, _ in group})  # unless there is room for the epoch
            with self._short_of_room():
                await self._engine.replicas.begin_epochs([(log, state.leader_epoch) for _, state, log in group])
                self._lead([(partition, state) for partition, state, _ in group])

    def _lead(self, group: list[tuple[Partition, PartitionState]]) -> None:
        """Lead partitions whose epochs are on record."""
        for partition, state in group:
            self._giving.pop(partition, None)
            if not self._is_latest(partition, state):
                continue  # taken away while the epoch was put on record; the news is here already
            partition.lead(state)
            self._engine.stats.leaderships_taken += 1
            log_.info("leads", partition=partition.name, epoch=state.leader_epoch, isr=list(state.isr))
            shard = self._engine.shard_of(partition)
            if shard is not None:
                shard.gained()

    def _is_latest(self, partition: Partition, state: PartitionState) -> bool:
        """Whether a state that names us is still so, as far as is known, and about this life of ours.

        One from before this broker was admitted may be about an earlier life. The controller takes it back first; but
        we may have waited for the disk since we read it.
        """
        known = self._image.states.get(partition.topic_id, {}).get(partition.index)
        is_so = known is not None and (known.leader, known.leader_epoch) == (state.leader, state.leader_epoch)
        return is_so and self._image.admitted.get(self._me) == self._incarnation()

    async def _may_lead(self, partition: Partition, state: PartitionState, log: Log) -> bool:
        latest = log.state.epochs.latest
        if self._accepts_older and partition not in self._raised:
            await self._raise_epoch(partition, state, max(latest, state.leader_epoch) + _FAR)
            return False
        if latest < state.leader_epoch:
            return True
        partition.offline = PenstockError(
            Code.CORRUPT_LOG,
            f"{partition.name} has records of epoch {latest}, the cluster says it is in epoch {state.leader_epoch}",
            help="the metadata store is older than this log: restore it from a later copy",
        )
        log_.error("partition is offline", partition=partition.name, error=str(partition.offline))
        return False

    async def _raise_epoch(self, partition: Partition, state: PartitionState, epoch: int) -> None:
        """An operator has taken an older store for good: the epochs that any log has seen are over as well.

        Which those are only the brokers know that led in them, and they may come later. If one of them had led in an
        epoch by the number of this one, their records would be taken for the same.
        """
        key = keys.partition_key(partition.topic_id, partition.index)
        log_.warning("goes on in a later epoch than the store's", partition=partition.name, epoch=epoch)
        try:
            after = replace(state, leader_epoch=epoch)
            await self._store.transact(expect={key: state.revision}, put={key: after.encode()})
            self._raised.add(partition)
        except (MetadataConflict, MetadataUnavailable):
            self._look_again_at(key)

    async def _prepare(self, partition: Partition, state: PartitionState) -> Log | None:
        """Take any role but a new leader's, which needs its epoch on record first: then the log to lead with."""
        is_leader = state.leader == self._me
        if partition.offline is not None:
            await self._stand_down(partition, state)
        elif is_leader and partition.led is not None and state.leader_epoch == partition.leader_epoch:
            partition.use_state(state)
        elif is_leader:
            log = await self._stand_down(partition, state)
            if log is not None and self._is_latest(partition, state) and await self._may_lead(partition, state, log):
                return log
        else:
            await self._become_follower(partition, state)
        return None

    async def _resign(self, partition: Partition, state: PartitionState) -> bool:
        """This replica cannot be used: say so, that others lead. Whether that is done.

        In the epoch that begins with it, no leader has heard how far this replica was; so none takes it for in sync.
        """
        resigned = state.without({self._me}).led_by(NOBODY if state.leader == self._me else state.leader)
        key = keys.partition_key(partition.topic_id, partition.index)
        try:
            await self._store.transact(expect={key: state.revision}, put={key: resigned.encode()})
            self._resigned[partition] = resigned.leader_epoch
            log_.error("gives a partition up that it cannot use", partition=partition.name)
        except (MetadataConflict, MetadataUnavailable) as error:
            log_.limited("resign").warning("not given up yet", partition=partition.name, error=str(error))
            self._look_again_at(key)
            return False
        return True

    async def _stand_down(self, partition: Partition, state: PartitionState) -> Log | None:
        """Neither lead nor follow; the log, if there is one."""
        following = self._followed.pop(partition, None)
        if following is not None:
            following.remove(partition)
        was_led = partition.led is not None
        if was_led:
            self._engine.stats.leaderships_lost += 1
            shard = self._engine.shard_of(partition)
            if shard is not None:
                shard.lost()
            self._led_no_more(partition)
        partition.follow(state)
        return partition.log

    async def _become_follower(self, partition: Partition, state: PartitionState) -> None:
        is_followed = partition in self._followed and partition.leader_epoch == state.leader_epoch
        if is_followed and self._me in state.replicas:
            partition.use_state(state)
            return
        was_led = partition.led is not None
        log = await self._stand_down(partition, state)
        if was_led:
            log_.info("leads no more", partition=partition.name, epoch=state.leader_epoch, leader=state.leader)
        if log is None:
            return
        if self._me not in state.replicas:
            await self._drop_if_safe(partition, state)
            return
        await self._engine.replicas.forget_empty_epochs(log)
        if state.leader != NOBODY:
            self._follow(partition)
        elif self._me in state.last:
            await self._report(partition, log)

    def _follow(self, partition: Partition) -> None:
        following = self._following(partition.state.leader)
        if following is not None:
            self._followed[partition] = following
            following.add(partition)

    async def _follow_again(self) -> None:
        """Brokers have come or gone: follow what could not be followed, and those that listen elsewhere now."""
        for topic in self._engine.topics:
            for partition in topic.partitions:
                if partition.log is None or partition.led is not None:
                    continue
                if self._me not in partition.state.replicas:
                    async with self.lock_of(partition):
                        await self._drop_if_safe(partition, partition.state)
                    continue
                if partition.offline is not None:
                    continue
                following = self._followed.get(partition)
                wanted = self._following(partition.state.leader) if partition.state.leader != NOBODY else None
                if following is not wanted:
                    if following is not None:
                        following.remove(partition)
                        del self._followed[partition]
                    if wanted is not None and partition.state.leader != self._me:
                        await self._follow_late(partition)
                if partition.state.leader == NOBODY and self._me in partition.state.last:
                    await self._report(partition, partition.log)

    async def _follow_late(self, partition: Partition) -> None:
        with self._short_of_room():
            async with self.lock_of(partition):
                if partition.log is not None and partition.led is None:
                    await self._engine.replicas.forget_empty_epochs(partition.log)
                    self._follow(partition)

    async def _report(self, partition: Partition, log: Log) -> None:
        """Nobody clean is left: say how far this log goes."""
        await self._tell_end(
            partition, End(self._incarnation(), log.state.epochs.at(log.end_offset - 1), log.end_offset)
        )

    async def _tell_end(self, partition: Partition, end: End) -> None:
        if self._reported.get(partition) == end:
            return
        key = keys.end_key(partition.topic_id, partition.index, self._me)
        try:
            await self._store.transact(put={key: end.encode()})
            self._reported[partition] = end
        except MetadataUnavailable as error:
            log_.limited("report").warning("end of a log not reported", partition=partition.name, error=str(error))
            self.look_at_everything()
            await asyncio.sleep(_PAUSE_S)

    # --- moving away

    async def _give_away(self, partition: Partition) -> None:
        """Let another broker in sync lead; out of those in sync, if enough of them stay."""
        state = self._image.states.get(partition.topic_id, {}).get(partition.index)
        if partition.log is None or state is None or self._me not in state.isr:
            return
        now = self._engine.clock.monotonic()
        if now - self._given_at.get(partition, -_GIVEN_FOR_S) < _GIVEN_FOR_S:
            return
        partition.log.out_of_room = False
        live = self._image.live()
        others = [each for each in state.isr if each in live and each != self._me and not live[each].leaving]
        least = partition.config.least_in_sync(state.width)
        after = state.led_by(others[0]) if others and state.leader == self._me else state
        if state.leader != self._me and len(state.isr) > least:
            after = state.with_isr(set(state.isr) - {self._me}, least)
        if after is state:
            return
        log_.limited("no room").error(
            "no room for a partition", partition=partition.name, leader=after.leader, isr=list(after.isr)
        )
        key = keys.partition_key(partition.topic_id, partition.index)
        with suppress(MetadataConflict, MetadataUnavailable):  # tried again when the next append finds no room
            await self._store.transact(expect={key: state.revision}, put={key: after.encode()})
            self._given_at[partition] = now

    async def _drop_leaving(self) -> None:
        for partition in [*self._leaving]:
            with self._short_of_room():
                async with self.lock_of(partition):
                    if self._me not in partition.state.replicas:
                        await self._drop_if_safe(partition, partition.state)
                    elif partition.log is not None:
                        self._leaving.pop(partition, None)  # it has come back, with what was left of it

    async def _drop_if_safe(self, partition: Partition, state: PartitionState) -> None:
        """Remove a replica that is none any more, if all who hold the partition now are in sync."""
        holds = partition.log is not None or partition in self._damaged or partition in self._leaving
        if not holds or state.leader not in self._image.live() or set(state.isr) != set(state.replicas):
            return
        gone = PenstockError(Code.NOT_LEADER, f"{partition.name} has moved to brokers {list(state.replicas)}")
        await self._engine.replicas.close(partition, gone)
        partition.hold_nothing()
        self._damaged.pop(partition, None)
        self._leaving[partition] = None  # until it is done: a shortage may be in the way
        await self._disk.run(self._directory.remove_partition, partition.topic, partition.topic_id, partition.index)
        self._leaving.pop(partition, None)
        await self._engine.replicas.empty_removed()
        log_.info("removes a replica that has moved away", partition=partition.name, to=list(state.replicas))
        if (partition.topic_id, partition.index) in self.set_aside:
            await self._drop_set_aside(partition)

    # --- mending

    async def _mend(self, partition: Partition) -> None:
        """Out of every set that lets a damaged replica count, then anew from whoever leads.

        While it leads and nobody else could, it goes on with what is left of it.
        """
        topic = self._engine.topics.get(partition.topic)
        state = self._image.states.get(partition.topic_id, {}).get(partition.index)
        if topic is None or topic.topic_id != partition.topic_id or state is None:
            self._damaged.pop(partition, None)
            return
        if self._me not in state.replicas:
            await self._drop_if_safe(partition, state)  # until then it may have to hold the partition again
            return
        live = self._image.live()
        counts = self._me in (*state.isr, *state.elr) or state.leader == self._me
        if partition.offline is None:
            others = [member for member in (*state.isr, *state.elr) if member in live and member != self._me]
            if not others or (counts and not await self._resign(partition, state)):
                return
            partition.offline = partition.opened().damage
            await self._stand_down(partition, state)
            if counts:
                return
        if counts:
            await self._resign(partition, state)
        elif state.leader == NOBODY and self._me in state.last:
            await self._tell_end(partition, End.damaged(self._incarnation()))
        elif state.leader in live and self._resigned.get(partition, state.leader_epoch + 1) > state.leader_epoch:
            await self._resign(partition, state)
        elif state.leader in live:
            await self._make_anew(topic, partition, state)

    async def _make_anew(self, topic: Topic, partition: Partition, state: PartitionState) -> None:
        why = partition.offline or PenstockError(Code.CORRUPT_LOG, f"{partition.name} is damaged")
        await self._stand_down(partition, state)
        await self._engine.replicas.close(partition, why)
        await self._disk.run(self._directory.set_aside, topic.name, topic.topic_id, partition.index)
        await self._engine.replicas.empty_removed()
        self.set_aside.add((topic.topic_id, partition.index))
        self._damaged.pop(partition, None)
        self._resigned.pop(partition, None)
        partition.hold_nothing()
        log_.warning("makes a damaged replica anew", partition=partition.name, leader=state.leader)
        await self._make(topic, [partition])
        await self._become_follower(partition, state)

    async def _drop_set_aside(self, partition: Partition) -> None:
        """All who hold the partition are in sync: what is left of a damaged replica is not needed any more."""
        await self._disk.run(self._directory.drop_set_aside, partition.topic_id, partition.index)
        self.set_aside.discard((partition.topic_id, partition.index))
        self._engine.stats.mended_replicas += 1
        await self._engine.replicas.empty_removed()
        log_.info("a damaged replica is not needed any more", partition=partition.name)

    # --- going

    async def _let_go(self) -> None:
        """Topics that are there no more, whether this broker was told of their deletion or not; files stay."""
        there = {entry.record.topic_id for entry in self._image.topics.values()}
        for topic in [topic for topic in self._engine.topics if topic.topic_id not in there]:
            self._engine.topics.remove(topic)
            gone = PenstockError(Code.UNKNOWN_TOPIC, f"topic {topic.name!r} was deleted")
            for partition in topic.partitions:
                async with self.lock_of(partition):
                    await self._stand_down(partition, partition.state)
                    await self._engine.replicas.close(partition, gone)
                self._locks.pop(partition, None)
                self._reported.pop(partition, None)
                self._given_at.pop(partition, None)
                self._raised.discard(partition)
                self._leaving.pop(partition, None)
            await self._engine.groups.topic_deleted(topic.name)

    async def _remove(self, topic_id: UUID, deleted: DeletedTopic) -> None:
        """A topic was deleted: let go of it, remove its files, and say so."""
        await self._let_go()
        if self._me not in deleted.waiting:
            return
        await self._disk.run(self._directory.remove_owned, deleted.topic, topic_id)
        await self._engine.replicas.empty_removed()
        waiting = tuple(broker_id for broker_id in deleted.waiting if broker_id != self._me)
        key = f"{keys.DELETED}{topic_id}"
        try:
            if waiting:
                left = DeletedTopic(deleted.topic, waiting)
                await self._store.transact(expect={key: deleted.revision}, put={key: left.encode()})
            else:
                await self._store.transact(expect={key: deleted.revision}, delete=[key])
        except (MetadataConflict, MetadataUnavailable):
            self._look_again_at(key)
