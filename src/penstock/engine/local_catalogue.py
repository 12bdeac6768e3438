"""Topics of a broker on its own: records in the metadata store, directories on the disk, in an order that lets a crash
strike anywhere.

A topic is created, or grows, as: intent in the metadata store, directories, then one transaction that replaces the
intent by the topic. It is deleted as: one transaction that replaces the topic by an intent, then the directories.
What is attached to its partitions has directories and intents of its own, in the same transactions.
Start-up finishes whatever intent it finds, and so does `unfinished` where a shortage was in the way. So a directory
without a topic or an intent means that metadata was lost, and the broker refuses to start rather than guess.
"""

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

import orjson

from penstock.engine.attached import attach_all, attached_topic, use_config
from penstock.engine.catalogue import NewTopic
from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.coordination.registry import REGISTERED
from penstock.engine.elsewhere import Elsewhere
from penstock.engine.end_keeper import EndKeeper
from penstock.engine.internal_settings import altered_settings, topic_config
from penstock.engine.partition import Partition
from penstock.engine.partition_events import PartitionEvents
from penstock.engine.partition_state import PartitionState, alone
from penstock.engine.replicas import OPENED_AT_ONCE, Replicas
from penstock.engine.settings import EngineSettings, Ports
from penstock.engine.topic_names import check_name
from penstock.engine.topics import (
    CREATING,
    GROWING,
    MAX_PARTITIONS,
    REMOVING,
    TOPICS,
    QueueSettings,
    Topic,
    TopicRecord,
    Topics,
    altered_queues,
    check_count,
    check_own,
)
from penstock.engine.unfinished import Unfinished
from penstock.errors import Code, PenstockError
from penstock.ports.disk import is_shortage
from penstock.ports.metadata import Entry
from penstock.ports.randomness import new_uuid
from penstock.storage.attached_names import attached_id, split_name
from penstock.storage.data_directory import DataDirectory, PartitionDirectory
from penstock.storage.log.commit import Committer
from penstock.storage.log.log import Log
from penstock.storage.log.options import Flush
from penstock.storage.log.recovery import Recovered
from penstock.tasks import Tasks


class _Begun(NamedTuple):
    """What a creation has begun to make, and how to take it away."""

    topic: str
    remove: Callable[[], None]
    intent: str


class LocalCatalogue:
    """See the module's text; the verbs are those of `catalogue.Catalogue`.

    Args:
        defaults: the broker's own defaults for topic settings.
        events: told of every topic that is gone, and by its partitions what becomes of them.
        elsewhere: for partitions that another broker leads.
    """

    def __init__(
        self,
        ports: Ports,
        directory: DataDirectory,
        topics: Topics,
        replicas: Replicas,
        committer: Committer,
        tasks: Tasks,
        ends: EndKeeper,
        events: PartitionEvents,
        elsewhere: Elsewhere,
        fail: Callable[[BaseException], None],
        settings: EngineSettings,
    ) -> None:
        self._disk, self._clock, self._randomness, self._store = ports
        self._directory = directory
        self._topics = topics
        self._replicas = replicas
        self._committer = committer
        self._tasks = tasks
        self._ends = ends
        self._events = events
        self._elsewhere = elsewhere
        self._fail = fail
        self._defaults = settings.defaults
        self._default_partitions = settings.default_partitions
        self._internal_partitions = settings.internal_partitions
        self._node_id = settings.node_id
        self._changing = asyncio.Lock()
        self._unfinished = Unfinished(self._store, self._disk, tasks, self._changing, fail)
        self._stopping = False

    # --- life

    async def load(self) -> str:
        """Finish what a crash cut short, open every topic; the cluster's id. Raises `StartupError`."""
        cluster_id = await self._load_cluster_id()
        await self._finish_intents()
        on_disk = await self._disk.run(self._directory.partitions)
        entries = await self._store.list(TOPICS)
        records = {entry.key.removeprefix(TOPICS): TopicRecord.decode(entry.value) for entry in entries}
        self._check_owners(on_disk, records)
        clean = await self._disk.run(self._directory.take_clean_mark)
        if clean is None and records:
            records = {name: _next_epoch(record) for name, record in records.items()}
            await self._store.transact(put={TOPICS + name: record.encode() for name, record in records.items()})
        await self._ends.load()
        await self._open_topics(records, clean)
        self._tasks.spawn(self._ends.run(), "keep the ends of logs")
        return cluster_id

    def refuse(self) -> None:
        """Begin nothing any more."""
        self._stopping = True

    async def stop(self) -> None:
        """Return when nothing is under way."""
        async with self._changing:  # what is being made is undone
            return

    async def _load_cluster_id(self) -> str:
        entry = await self._store.get("cluster")
        if entry is None:
            made = orjson.dumps({"id": str(new_uuid(self._randomness))})
            on_disk = await self._disk.run(self._directory.partitions)
            if on_disk:
                raise self._directory.metadata_lost(on_disk)
            await self._store.transact(expect={"cluster": 0}, put={"cluster": made})
            entry = await self._store.get("cluster")
            assert entry is not None
        cluster_id: str = orjson.loads(entry.value)["id"]
        return cluster_id

    def _check_owners(self, on_disk: list[PartitionDirectory], records: Mapping[str, TopicRecord]) -> None:
        strangers = [partition for partition in on_disk if not _is_known(partition, records)]
        if strangers:
            raise self._directory.metadata_lost(strangers)

    async def _finish_intents(self) -> None:
        """Undo creations and finish deletions that a crash cut short."""
        for prefix in (CREATING, GROWING, REMOVING):
            for entry in await self._store.list(prefix):
                intent = orjson.loads(entry.value)
                topic, topic_id, first = intent["topic"], UUID(intent["id"]), intent.get("partitions", 0)
                left = [
                    partition
                    for partition in await self._disk.run(self._directory.partitions)
                    if (partition.topic, partition.topic_id) == (topic, topic_id) and partition.partition >= first
                ]
                if prefix != REMOVING:
                    # Nobody could write before the creation was complete. Records mean that this metadata is older
                    # than the logs, as a restored backup would be.
                    used = await self._disk.run(self._directory.with_records, left)
                    if used:
                        raise self._directory.metadata_lost(used)
                if prefix == GROWING:
                    await self._disk.run(self._directory.remove_partitions, topic, topic_id, first)
                elif left:
                    await self._disk.run(self._directory.remove_topic, topic, topic_id)
                await self._disk.run(self._directory.sync_removals)  # what another run took out of sight, too
                await self._store.transact(delete=[entry.key])
        await self._disk.run(self._directory.empty_removed)

    async def _open_topics(self, records: Mapping[str, TopicRecord], clean_ends: Mapping[str, int] | None) -> None:
        """Recover all logs, some hundred at a time: each group costs one thread hop and one sync round."""
        topics = []
        for name, record in records.items():
            config = topic_config(name, record.settings, self._defaults)
            topic = Topic(name, record.topic_id, config, [], queues=record.queues)
            topic.partitions += [self._partition(topic, index, record) for index in range(record.partitions)]
            attach_all(topic, record.attached, self._attached)
            topics.append(topic)
        partitions = [partition for topic in topics for partition in topic.partitions]
        for at in range(0, len(partitions), OPENED_AT_ONCE):
            group = [each for partition in partitions[at : at + OPENED_AT_ONCE] for each in partition.together]
            ends = {each.name: max((clean_ends or {}).get(each.name, 0), self._ends.end_of(each)) for each in group}
            found = dict(zip(group, await self._replicas.recover(group, ends), strict=True))
            opened = [self._open(partition, found, clean_ends) for partition in partitions[at : at + OPENED_AT_ONCE]]
            await self._replicas.begin_epochs([each for several in opened for each in several])
        for topic in topics:
            self._topics.add(topic)

    def _open(
        self,
        partition: Partition,
        found: Mapping[Partition, Recovered | PenstockError],
        clean_ends: Mapping[str, int] | None,
    ) -> list[tuple[Log, int]]:
        """Lead a partition, and what is attached to it; the logs that are open, and the epoch to begin in them.

        What is attached can do without its data as little as the other way round can be had: records are served.
        """
        recovered = {each: log for each in partition.together if not isinstance(log := found[each], PenstockError)}
        if partition not in recovered:
            for attached in partition.attached:
                attached.offline = attached.offline or partition.offline
            return []
        latest = max(each.state.epochs.latest for each in recovered.values())
        if latest > partition.leader_epoch - (clean_ends is None):  # metadata from an older backup than the log
            partition.state = alone(self._node_id, latest + 1)
        logs = {each: self._replicas.open(each, log) for each, log in recovered.items()}
        for attached in partition.attached:
            if attached in logs:
                attached.hold(logs[attached], logs[attached].visible_end)
        partition.use(logs[partition])
        return [(log, partition.leader_epoch) for log in logs.values()]

    def _partition(self, topic: Topic, index: int, record: TopicRecord) -> Partition:
        return self._with_state(topic, index, alone(self._node_id, record.leader_epoch))

    def _attached(self, holder: Topic, partition: Partition) -> Partition:
        return self._with_state(holder, partition.index, partition.state)

    def _with_state(self, topic: Topic, index: int, state: PartitionState) -> Partition:
        return Partition(
            topic.name,
            topic.topic_id,
            index,
            state,
            topic.config,
            self._clock,
            self._node_id,
            self._events,
            self._elsewhere,
        )

    # --- topics

    async def create_topic(self, new: NewTopic, *, validate_only: bool = False) -> Topic:
        check_name(new.name)
        partitions = self._count(new)
        async with self._changing:
            self._check_running()
            if self._topics.get(new.name) is not None:
                raise PenstockError(Code.TOPIC_EXISTS, f"topic {new.name!r} exists already")
            self._check_count(new.name, partitions, 0)
            settings = altered_settings(new.name, {}, lambda _: new.settings or {})
            record = TopicRecord(new_uuid(self._randomness), partitions, settings, 0)
            topic = Topic(new.name, record.topic_id, topic_config(new.name, record.settings, self._defaults), [])
            if validate_only:
                return topic
            await self._unfinished.finish(new.name)
            await self._store.transact(put={f"{CREATING}{record.topic_id}": _intent(topic)})
            try:
                made = await self._make_logs(topic, record, 0)
                await self._store.transact(
                    expect={TOPICS + new.name: 0},
                    put={TOPICS + new.name: record.encode()},
                    delete=[f"{CREATING}{record.topic_id}"],
                )
            except (OSError, PenstockError) as error:
                remove = partial(self._directory.remove_topic, new.name, record.topic_id)
                begun = _Begun(new.name, remove, f"{CREATING}{record.topic_id}")
                raise await self._undo([begun], f"create topic {new.name!r}", error) from error
            self._use_partitions(topic, record, made)
            self._topics.add(topic)
            return topic

    async def internal_topic(self, name: str) -> Topic:
        try:
            return await self.create_topic(NewTopic(name, self._internal_partitions, -1, REGISTERED[name].settings))
        except PenstockError as error:
            topic = self._topics.get(name)
            if error.code is Code.TOPIC_EXISTS and topic is not None:
                return topic  # somebody else was quicker
            raise PenstockError(Code.COORDINATOR_NOT_AVAILABLE, f"cannot create {name}: {error}") from error

    def _count(self, new: NewTopic) -> int:
        """How many partitions are asked for; each has one replica, here."""
        if new.assignment is not None:
            self._check_assignment(new.name, new.assignment, Code.INVALID_REPLICATION)
            return len(new.assignment)
        if new.replication not in (-1, 1):
            raise PenstockError(
                Code.INVALID_REPLICATION, f"replication factor {new.replication} for {new.name!r}; there is 1 broker"
            )
        return self._default_partitions if new.partitions == -1 else new.partitions

    def _check_assignment(self, name: str, assignment: Sequence[Sequence[int]], code: Code) -> None:
        for replicas in assignment:
            if tuple(replicas) != (self._node_id,):
                raise PenstockError(
                    code, f"a partition of {name!r} assigned to brokers {list(replicas)}; there is only {self._node_id}"
                )

    async def create_partitions(
        self,
        topic: Topic,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        async with self._changing:
            stored = await self._stored(topic)
            check_own(topic.name, "cannot grow: what is in it is found by the number of its partitions")
            before = len(topic.partitions)
            if assignment is not None:
                self._check_assignment(topic.name, assignment, Code.INVALID_ASSIGNMENT)
            self._check_count(topic.name, count, before)
            if validate_only:
                return
            record = replace(TopicRecord.decode(stored.value), partitions=count)
            growing = topic.with_attached
            for each in growing:
                await self._unfinished.finish(each.name)
            intents = {f"{GROWING}{each.topic_id}": _intent(each, before) for each in growing}
            await self._store.transact(put=intents)
            try:
                made = [await self._make_logs(each, record, before) for each in growing]
                await self._store.transact(
                    expect={stored.key: stored.revision}, put={stored.key: record.encode()}, delete=list(intents)
                )
            except (OSError, PenstockError) as error:
                begun = [
                    _Begun(each.name, partial(self._directory.remove_partitions, each.name, each.topic_id, before), key)
                    for each, key in zip(growing, intents, strict=True)
                ]
                raise await self._undo(begun, f"add partitions to {topic.name!r}", error) from error
            self._use_partitions(topic, record, made[0])
            attach_all(topic, record.attached, self._attached)
            for holder, logs in zip(growing[1:], made[1:], strict=True):
                for attached, recovered in zip(holder.partitions[before:], logs, strict=True):
                    attached.use(self._replicas.open(attached, recovered))
            self._topics.changed()

    async def attach(self, topic: Topic, kind: str, settings: Mapping[str, str]) -> None:
        async with self._changing:
            if kind in topic.attached:
                return
            stored = await self._stored(topic)
            record = TopicRecord.decode(stored.value)
            holder = attached_topic(topic, kind, settings)
            await self._unfinished.finish(holder.name)
            key = f"{CREATING}{holder.topic_id}"
            await self._store.transact(put={key: _intent(holder)})
            record = replace(record, attached={**record.attached, kind: dict(settings)})
            try:
                made = await self._make_logs(holder, record, 0, [each.leader_epoch for each in topic.partitions])
                await self._store.transact(
                    expect={stored.key: stored.revision}, put={stored.key: record.encode()}, delete=[key]
                )
            except (OSError, PenstockError) as error:
                remove = partial(self._directory.remove_topic, holder.name, holder.topic_id)
                begun = _Begun(holder.name, remove, key)
                raise await self._undo([begun], f"attach {holder.name!r}", error) from error
            attach_all(topic, {kind: settings}, self._attached)
            for attached, recovered in zip(topic.attached[kind].partitions, made, strict=True):
                data = attached.attached_to
                if data is not None and data.led is None:
                    attached.offline = data.offline
                else:
                    attached.use(self._replicas.open(attached, recovered))
            self._topics.show_attached(topic)

    async def alter_topic(
        self, topic: Topic, alter: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        async with self._changing:
            stored = await self._stored(topic)
            record = TopicRecord.decode(stored.value)
            record = replace(record, settings=altered_settings(topic.name, record.settings, alter))
            config = topic_config(topic.name, record.settings, self._defaults)
            if validate_only or record.settings == topic.config.given:
                return
            await self._store.transact(expect={stored.key: stored.revision}, put={stored.key: record.encode()})
            use_config(topic, config)
            logs = [part.log for each in topic.with_attached for part in each.partitions if part.log is not None]
            for log in logs:
                self._replicas.caretaker.call(log)
            if config.log.flush is not Flush.OS:  # what was left to the system until now keeps the new promise
                await asyncio.gather(*map(self._committer.commit, logs))

    async def alter_queues(self, topic: Topic, alter: Callable[[QueueSettings], QueueSettings]) -> None:
        async with self._changing:
            stored = await self._stored(topic)
            record = TopicRecord.decode(stored.value)
            queues = altered_queues(topic.name, record.queues, alter)
            if queues == record.queues:
                return
            value = replace(record, queues=queues).encode()
            await self._store.transact(expect={stored.key: stored.revision}, put={stored.key: value})
            self._topics.use_queues(topic, queues)

    async def delete_topic(self, topic: Topic) -> None:
        async with self._changing:
            self._check_running()
            if self._topics.get_by_id(topic.topic_id) is None:
                raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {topic.name!r} is unknown")
            check_own(topic.name, "cannot be deleted: groups and transactions are kept in it")
            going = topic.with_attached
            await self._store.transact(
                put={f"{REMOVING}{each.topic_id}": _intent(each) for each in going}, delete=[TOPICS + topic.name]
            )
            self._topics.remove(topic)
            gone = PenstockError(Code.UNKNOWN_TOPIC, f"topic {topic.name!r} was deleted")
            for partition in topic.partitions:
                for one in partition.together:
                    await self._replicas.close(one, gone)
            try:
                for each in going:
                    remove = partial(self._directory.remove_topic, each.name, each.topic_id)
                    await self._unfinished.remove(each.name, remove, f"{REMOVING}{each.topic_id}")
            except OSError as error:
                self._fail(error)  # the name is in the way of the next topic; the next start finishes this
                raise PenstockError(Code.STORAGE_FAILED, f"cannot remove topic {topic.name!r}: {error}") from error
        await self._events.deleted(topic)
        self._tasks.spawn(self._replicas.empty_removed(), f"remove {topic.name}")

    # --- steps

    async def _stored(self, topic: Topic) -> Entry:
        self._check_running()
        entry = await self._store.get(TOPICS + topic.name)
        if entry is None or self._topics.get_by_id(topic.topic_id) is None:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {topic.name!r} is unknown")
        return entry

    def _check_running(self) -> None:
        if self._stopping:
            raise PenstockError(Code.NOT_AVAILABLE, "the broker stops")

    def _check_count(self, name: str, count: int, before: int) -> None:
        check_count(name, count, before)
        if name in INTERNAL_TOPICS:
            return
        if self._topics.counted_partitions + count - before > MAX_PARTITIONS:
            raise PenstockError(
                Code.LIMIT_EXCEEDED,
                f"{name!r} with {count} partitions would pass this broker's limit of {MAX_PARTITIONS}",
            )

    async def _make_logs(
        self, topic: Topic, record: TopicRecord, first: int, epochs: Sequence[int] = ()
    ) -> list[Recovered]:
        """Empty logs for a topic's partitions from `first` on.

        Args:
            epochs: of partitions that are led already, if theirs need not be the record's.
        """
        made: list[Recovered] = []
        for epoch, indexes in groupby(
            range(first, record.partitions), lambda index: epochs[index] if epochs else record.leader_epoch
        ):
            made += await self._disk.run(
                self._replicas.make,
                topic.name,
                topic.topic_id,
                list(indexes),
                topic.config,
                epoch,
                lambda: self._stopping,
            )
        return made

    def _use_partitions(self, topic: Topic, record: TopicRecord, made: list[Recovered]) -> None:
        """Open freshly made logs as the topic's next partitions."""
        for index, recovered in enumerate(made, len(topic.partitions)):
            partition = self._partition(topic, index, record)
            partition.use(self._replicas.open(partition, recovered))
            topic.partitions.append(partition)

    async def _undo(self, begun: Sequence[_Begun], what: str, error: OSError | PenstockError) -> PenstockError:
        """Take away what a creation made, so that nothing of it is found by the next one; the error to raise."""
        in_the_way = isinstance(error, OSError) and error.errno == errno.EEXIST  # then it is not ours to take away
        if isinstance(error, PenstockError) and error.code is Code.STORAGE_FAILED:
            self._fail(error)  # the store may have kept it or not: the next start knows
            return error
        try:
            for each in begun:  # of several, some are not in the way; what takes those away looks whose they are
                remove = _nothing if in_the_way and len(begun) == 1 else each.remove
                await self._unfinished.remove(each.topic, remove, each.intent)
        except (OSError, PenstockError) as second:
            self._fail(second)  # the next start will do it
        else:
            self._tasks.spawn(self._replicas.empty_removed(), what)
        if isinstance(error, PenstockError):
            return error
        if is_shortage(error):
            return PenstockError(Code.STORAGE_FULL, f"cannot {what}: {error}")
        if not in_the_way:
            self._fail(error)
        return PenstockError(Code.STORAGE_FAILED, f"cannot {what}: {error}")


def _nothing() -> None:
    return None


def _is_known(partition: PartitionDirectory, records: Mapping[str, TopicRecord]) -> bool:
    topic, kind = split_name(partition.topic) or (partition.topic, "")
    record = records.get(topic)
    if record is None or partition.partition >= record.partitions or (kind and kind not in record.attached):
        return False
    return partition.topic_id == (attached_id(record.topic_id, kind) if kind else record.topic_id)


def _intent(topic: Topic, partitions: int | None = None) -> bytes:
    """What is about to be done to a topic; if it grows, to those of its partitions that come behind so many."""
    grows = {} if partitions is None else {"partitions": partitions}
    return orjson.dumps({"topic": topic.name, "id": str(topic.topic_id), **grows})


def _next_epoch(record: TopicRecord) -> TopicRecord:
    return replace(record, leader_epoch=record.leader_epoch + 1)
