"""The verbs every protocol calls: start and stop, topics, partitions, offsets by time, producer ids.

Order of steps is what makes a crash harmless. A topic is created, or grows, as: intent in the metadata store,
directories, then one transaction that replaces the intent by the topic. It is deleted as: one transaction that
replaces the topic by an intent, then the directories. Start-up finishes whatever intent it finds. So a directory
without a topic or an intent means that metadata was lost, and the broker refuses to start rather than guess.
"""

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from uuid import UUID

import orjson

from penstock.engine.caretaker import Caretaker
from penstock.engine.cleaner import Cleaner
from penstock.engine.coordination.internal_topics import DEFAULT_PARTITIONS, INTERNAL_TOPICS, SETTINGS
from penstock.engine.coordination.shard import Surroundings
from penstock.engine.groups.groups import Groups, GroupSettings
from penstock.engine.offset_lookup import Found, find_by_time, find_largest_time
from penstock.engine.opener import Opener
from penstock.engine.partition import Partition
from penstock.engine.producer_ids import ProducerIds
from penstock.engine.steady_clock import SteadyClock
from penstock.engine.topic_config import check_settings, make_config, tidy_settings
from penstock.engine.topics import CREATING, GROWING, REMOVING, TOPICS, Topic, TopicRecord, Topics, check_name
from penstock.engine.transactions.requests import TransactionLimits
from penstock.engine.transactions.transactions import Transactions
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk, Space, is_shortage
from penstock.ports.metadata import Entry, MetadataStore
from penstock.ports.randomness import Randomness, new_uuid
from penstock.storage.checked_file import save_all
from penstock.storage.compaction.process import Compactor, InlineCompaction
from penstock.storage.data_directory import DataDirectory, PartitionDirectory
from penstock.storage.log.commit import Committer
from penstock.storage.log.compacting import Compaction
from penstock.storage.log.log import Log, Shelf
from penstock.storage.log.options import Flush
from penstock.storage.log.recovery import Recovered, recover
from penstock.storage.log.segment import FilePool
from penstock.storage.log.upkeep import Upkeep
from penstock.tasks import Tasks

log_ = get_logger("engine")
MAX_PARTITIONS = 10_000
MAX_TOPIC_PARTITIONS = 10_000
_OPENED_AT_ONCE = 256


class Engine:
    """One broker's meaning. Everything outside comes through the ports.

    Args:
        fail: called once when the broker must stop rather than guess.
        defaults: the broker's own defaults for topic settings.
        internal_partitions: of each internal topic, when it is created.
        compactor: who compacts logs; on the disk's own threads if not given.
        compaction_bytes_per_second: what that may read and write; 0 is no limit.
    """

    def __init__(
        self,
        *,
        disk: Disk,
        clock: Clock,
        randomness: Randomness,
        store: MetadataStore,
        directory: DataDirectory,
        stats: Stats,
        fail: Callable[[BaseException], None],
        defaults: Mapping[str, str] | None = None,
        default_partitions: int = 6,
        upkeep_ms: int = 5000,
        internal_partitions: int = DEFAULT_PARTITIONS,
        group_settings: GroupSettings | None = None,
        transaction_limits: TransactionLimits | None = None,
        compactor: Compactor | None = None,
        compaction_bytes_per_second: int = 0,
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._randomness = randomness
        self._store = store
        self._directory = directory
        self._fail = fail
        self.topic_defaults = tidy_settings(defaults or {})
        self.default_partitions = default_partitions
        self.stats = stats
        self.topics = Topics()
        self.producer_ids = ProducerIds(store)
        self.cluster_id = ""
        self._tasks = Tasks(fail)
        self._committer = Committer(disk, clock, stats, fail)
        self._shelf = Shelf(disk, clock, stats, FilePool(disk), self._committer, self._tasks, fail)
        self._upkeep = Upkeep(self._shelf)
        self.opener = Opener(disk, self._tasks)
        self._internal_partitions = internal_partitions
        around = Surroundings(disk, SteadyClock(clock), self._committer, self._tasks)
        self.groups = Groups(around, self.topics, self.internal_topic, randomness, group_settings)
        self.transactions = Transactions(
            around, self.topics, self.internal_topic, self.producer_ids, self.groups.on_marker, transaction_limits
        )
        self._caretaker = Caretaker(self._upkeep, clock, self._open_logs, upkeep_ms)
        compaction = Compaction(self._shelf, compactor or InlineCompaction(disk), compaction_bytes_per_second)
        self._cleaner = Cleaner(compaction, self._caretaker.steady_now_ms, self._open_logs, upkeep_ms, self._compacted)
        self._changing = asyncio.Lock()
        self._emptying = asyncio.Lock()
        self._stopping = False

    # --- life

    async def start(self) -> None:
        """Load topics, recover their logs. Raises `StartupError` when going on would be a guess."""
        check_settings(self.topic_defaults)
        self._tasks.spawn(self._committer.run(), "group commit")
        await self._load_cluster_id()
        await self._finish_intents()
        on_disk = await self._disk.run(self._directory.partitions)
        entries = await self._store.list(TOPICS)
        records = {entry.key.removeprefix(TOPICS): TopicRecord.decode(entry.value) for entry in entries}
        self._check_owners(on_disk, records)
        clean = await self._disk.run(self._directory.take_clean_mark)
        if clean is None and records:
            records = {name: _next_epoch(record) for name, record in records.items()}
            await self._store.transact(put={TOPICS + name: record.encode() for name, record in records.items()})
        await self._open_topics(records, clean)
        self._tasks.spawn(self._caretaker.run(), "upkeep")
        self._tasks.spawn(self._cleaner.run(), "compaction")
        for shards in (self.groups.shards, self.transactions.shards):
            topic = self.topics.get(shards.topic)
            if topic is not None:
                shards.open(topic)
                self._tasks.spawn(shards.load(), f"load {topic.name}")

    async def stop(self) -> None:
        """Stop cleanly: everything synced, cards saved, the mark left behind."""
        self._stopping = True
        await asyncio.gather(self.groups.shards.close(), self.transactions.shards.close(), self._cleaner.stop())
        async with self._changing:  # what is being made is undone, and nothing new begins
            await self._stop()

    async def _stop(self) -> None:
        logs = [log for log, _ in self._open_logs()]
        for log in logs:
            log.closed = True
        contents: dict[str, bytes] = {}
        changed = [log for log in logs if log.active.size > log.active.checkpointed or log.unsealed]
        for taken in await asyncio.gather(*(self._upkeep.snapshot(log) for log in changed)):
            contents |= taken
        if contents:
            await self._disk.run(save_all, self._disk, contents)
        await self._tasks.cancel_all()
        ends = {f"{log.name}": log.end_offset for log in logs}
        await self._disk.run(self._directory.leave_clean_mark, ends)

    async def abandon(self) -> None:
        """Stop without a clean mark: the next start looks at everything."""
        await self._tasks.cancel_all()

    def _compacted(self, log: Log) -> None:
        """A coordinator's snapshot from before a compaction is of no use any more: take another."""
        for shards in (self.groups.shards, self.transactions.shards):
            for shard in shards:
                if shard.partition.log is log:
                    shard.save_soon()

    def _open_logs(self) -> list[tuple[Log, int]]:
        return [
            (partition.log, partition.log.settled_end)
            for topic in self.topics
            for partition in topic.partitions
            if partition.log is not None
        ]

    async def _load_cluster_id(self) -> None:
        entry = await self._store.get("cluster")
        if entry is None:
            made = orjson.dumps({"id": str(new_uuid(self._randomness))})
            on_disk = await self._disk.run(self._directory.partitions)
            if on_disk:
                raise self._directory.metadata_lost(on_disk)
            await self._store.transact(expect={"cluster": 0}, put={"cluster": made})
            entry = await self._store.get("cluster")
            assert entry is not None
        self.cluster_id = orjson.loads(entry.value)["id"]

    def _check_owners(self, on_disk: list[PartitionDirectory], records: Mapping[str, TopicRecord]) -> None:
        strangers = []
        for partition in on_disk:
            record = records.get(partition.topic)
            known = record is not None and record.topic_id == partition.topic_id
            if record is None or not known or partition.partition >= record.partitions:
                strangers.append(partition)
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
                if left and prefix == GROWING:
                    await self._disk.run(self._directory.remove_partitions, topic, topic_id, first)
                elif left:
                    await self._disk.run(self._directory.remove_topic, topic, topic_id)
                await self._store.transact(delete=[entry.key])
        await self._disk.run(self._directory.empty_removed)

    async def disk_space(self) -> Space:
        return await self._disk.run(self._disk.space, self._directory.path)

    # --- topics

    async def internal_topic(self, name: str) -> Topic:
        """One of the internal topics, created when it is first asked for. Raises PenstockError."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        try:
            return await self._create_topic(name, self._internal_partitions, SETTINGS)
        except PenstockError as error:
            topic = self.topics.get(name)
            if error.code is Code.TOPIC_EXISTS and topic is not None:
                return topic  # somebody else was quicker
            raise PenstockError(Code.COORDINATOR_NOT_AVAILABLE, f"cannot create {name}: {error}") from error

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        settings: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> Topic:
        """Create a topic; durable when this returns.

        Raises:
            PenstockError: INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG, LIMIT_EXCEEDED.
        """
        if name in INTERNAL_TOPICS:
            raise PenstockError(
                Code.INVALID_TOPIC, f"topic {name!r} is the broker's own; it is made when it is first needed"
            )
        return await self._create_topic(name, partitions, settings or {}, validate_only=validate_only)

    async def _create_topic(
        self, name: str, partitions: int, settings: Mapping[str, str], *, validate_only: bool = False
    ) -> Topic:
        check_name(name)
        if partitions == -1:
            partitions = self.default_partitions
        async with self._changing:
            self._check_running()
            if self.topics.get(name) is not None:
                raise PenstockError(Code.TOPIC_EXISTS, f"topic {name!r} exists already")
            self._check_count(name, partitions, 0)
            record = TopicRecord(new_uuid(self._randomness), partitions, tidy_settings(settings), 0)
            config = make_config(record.settings, self.topic_defaults)
            if validate_only:
                return Topic(name, record.topic_id, config, [])
            intent = orjson.dumps({"topic": name, "id": str(record.topic_id)})
            await self._store.transact(put={f"{CREATING}{record.topic_id}": intent})
            try:
                made = await self._disk.run(self._make_logs, name, record, 0)
                await self._store.transact(
                    expect={TOPICS + name: 0},
                    put={TOPICS + name: record.encode()},
                    delete=[f"{CREATING}{record.topic_id}"],
                )
            except (OSError, PenstockError) as error:
                remove = partial(self._directory.remove_topic, name, record.topic_id)
                raise await self._undo(
                    remove, f"{CREATING}{record.topic_id}", f"create topic {name!r}", error
                ) from error
            topic = Topic(name, record.topic_id, config, [])
            self._use_partitions(topic, record, made)
            self.topics.add(topic)
            return topic

    async def create_partitions(self, topic: Topic, count: int, *, validate_only: bool = False) -> None:
        """Grow a topic to `count` partitions; durable when this returns.

        Raises:
            PenstockError: UNKNOWN_TOPIC, INVALID_PARTITIONS, LIMIT_EXCEEDED, STORAGE_FULL.
        """
        async with self._changing:
            stored = await self._stored(topic)
            _check_own(topic, "cannot grow: what is in it is found by the number of its partitions")
            before = len(topic.partitions)
            self._check_count(topic.name, count, before)
            if validate_only:
                return
            record = replace(TopicRecord.decode(stored.value), partitions=count)
            key = f"{GROWING}{topic.topic_id}"
            intent = orjson.dumps({"topic": topic.name, "id": str(topic.topic_id), "partitions": before})
            await self._store.transact(put={key: intent})
            try:
                made = await self._disk.run(self._make_logs, topic.name, record, before)
                await self._store.transact(
                    expect={stored.key: stored.revision}, put={stored.key: record.encode()}, delete=[key]
                )
            except (OSError, PenstockError) as error:
                remove = partial(self._directory.remove_partitions, topic.name, topic.topic_id, before)
                raise await self._undo(remove, key, f"add partitions to {topic.name!r}", error) from error
            self._use_partitions(topic, record, made)
            self.topics.changed()

    async def alter_topic(
        self, topic: Topic, alter: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        """Change a topic's settings; durable, and acting, when this returns.

        Args:
            alter: makes the new settings of those the topic has been given; it may raise PenstockError.

        Raises:
            PenstockError: UNKNOWN_TOPIC, INVALID_CONFIG.
        """
        async with self._changing:
            stored = await self._stored(topic)
            record = TopicRecord.decode(stored.value)
            record = replace(record, settings=tidy_settings(alter(record.settings)))
            config = make_config(record.settings, self.topic_defaults)
            if validate_only or record.settings == topic.config.given:
                return
            await self._store.transact(expect={stored.key: stored.revision}, put={stored.key: record.encode()})
            topic.config = config
            for partition in topic.partitions:
                partition.use_config(config)
                if partition.log is not None:
                    self._caretaker.look_at(partition.log)
            if config.log.flush is not Flush.OS:  # what was left to the system until now keeps the new promise
                await asyncio.gather(*(self._committer.commit(part.log) for part in topic.partitions if part.log))

    async def _stored(self, topic: Topic) -> Entry:
        self._check_running()
        entry = await self._store.get(TOPICS + topic.name)
        if entry is None or self.topics.get_by_id(topic.topic_id) is None:
            raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {topic.name!r} is unknown")
        return entry

    def _check_running(self) -> None:
        if self._stopping:
            raise PenstockError(Code.NOT_AVAILABLE, "the broker stops")

    def _check_count(self, name: str, count: int, before: int) -> None:
        """Whether a topic of `before` partitions may have `count`."""
        if not before < count <= MAX_TOPIC_PARTITIONS:
            why = f"it has {before}, and can only grow; " if before else ""
            allowed = f"allowed: {before + 1} to {MAX_TOPIC_PARTITIONS}"
            raise PenstockError(Code.INVALID_PARTITIONS, f"{count} partitions for {name!r}: {why}{allowed}")
        if self.topics.partition_count + count - before > MAX_PARTITIONS:
            raise PenstockError(
                Code.LIMIT_EXCEEDED,
                f"{name!r} with {count} partitions would pass this broker's limit of {MAX_PARTITIONS}",
            )

    async def _undo(
        self, remove: Callable[[], None], intent: str, what: str, error: OSError | PenstockError
    ) -> PenstockError:
        """Take away what a creation made, so that nothing of it is found by the next one; the error to raise."""
        in_the_way = isinstance(error, OSError) and error.errno == errno.EEXIST  # then it is not ours to take away
        if isinstance(error, PenstockError) and error.code is Code.STORAGE_FAILED:
            self._fail(error)  # the store may have kept it or not: the next start knows
            return error
        try:
            if not in_the_way:
                await self._disk.run(remove)
            await self._store.transact(delete=[intent])
        except (OSError, PenstockError) as second:
            self._fail(second)  # the next start will do it
        else:
            self._tasks.spawn(self._empty_removed(), what)
        if isinstance(error, PenstockError):
            return error
        if is_shortage(error):
            return PenstockError(Code.STORAGE_FULL, f"cannot {what}: {error}")
        if not in_the_way:
            self._fail(error)
        return PenstockError(Code.STORAGE_FAILED, f"cannot {what}: {error}")

    def _use_partitions(self, topic: Topic, record: TopicRecord, made: list[Recovered]) -> None:
        """Open freshly made logs as the topic's next partitions."""
        for index, recovered in enumerate(made, len(topic.partitions)):
            partition = Partition(topic.name, topic.topic_id, index, record.leader_epoch, topic.config, self._clock)
            self._use_log(partition, recovered)
            topic.partitions.append(partition)

    def _make_logs(self, name: str, record: TopicRecord, first: int) -> list[Recovered]:
        """Directories and empty logs from partition `first` on, some hundred to a sync round."""
        config = make_config(record.settings, self.topic_defaults)
        made: list[Recovered] = []
        for at in range(first, record.partitions, _OPENED_AT_ONCE):
            if self._stopping:
                raise PenstockError(Code.NOT_AVAILABLE, f"the broker stops; topic {name!r} stays as it was")
            indexes = range(at, min(at + _OPENED_AT_ONCE, record.partitions))
            states = {}
            for path in self._directory.create_partitions(name, record.topic_id, indexes):
                recovered = recover(self._disk, path, config.log, self._clock.now_ms())
                recovered.state.epochs.note(record.leader_epoch, 0)
                states[f"{path}/state"] = recovered.state.encode()
                made.append(recovered)
            save_all(self._disk, states)
        return made

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic and its records. Raises PenstockError UNKNOWN_TOPIC if it is gone already."""
        async with self._changing:
            self._check_running()
            if self.topics.get_by_id(topic.topic_id) is None:
                raise PenstockError(Code.UNKNOWN_TOPIC, f"topic {topic.name!r} is unknown")
            _check_own(topic, "cannot be deleted: groups and transactions are kept in it")
            intent = orjson.dumps({"topic": topic.name, "id": str(topic.topic_id)})
            key = f"{REMOVING}{topic.topic_id}"
            await self._store.transact(put={key: intent}, delete=[TOPICS + topic.name])
            self.topics.remove(topic)
            gone = PenstockError(Code.UNKNOWN_TOPIC, f"topic {topic.name!r} was deleted")
            for partition in topic.partitions:
                if partition.log is not None:
                    partition.log.closed = True
                    await self._upkeep.quiesce(partition.log)
                partition.log, partition.offline = None, gone
                partition.waiters.abandon()
            try:
                await self._disk.run(self._directory.remove_topic, topic.name, topic.topic_id)
            except OSError as error:
                self._fail(error)  # the name is in the way of the next topic; the next start finishes this
                raise PenstockError(Code.STORAGE_FAILED, f"cannot remove topic {topic.name!r}: {error}") from error
            await self._store.transact(delete=[key])
        await self.groups.topic_deleted(topic.name)
        self._tasks.spawn(self._empty_removed(), f"remove {topic.name}")

    async def _empty_removed(self) -> None:
        async with self._emptying:
            await self._disk.run(self._directory.empty_removed)

    async def _open_topics(self, records: Mapping[str, TopicRecord], clean_ends: Mapping[str, int] | None) -> None:
        """Recover all logs, some hundred at a time: each group costs one thread hop and one sync round."""
        topics = []
        for name, record in records.items():
            topic = Topic(name, record.topic_id, make_config(record.settings, self.topic_defaults), [])
            for index in range(record.partitions):
                partition = Partition(name, record.topic_id, index, record.leader_epoch, topic.config, self._clock)
                topic.partitions.append(partition)
            topics.append(topic)
        partitions = [partition for topic in topics for partition in topic.partitions]
        for at in range(0, len(partitions), _OPENED_AT_ONCE):
            group = partitions[at : at + _OPENED_AT_ONCE]
            found = await self._disk.run(self._recover_logs, group, clean_ends or {})
            opened = []
            for partition, recovered in zip(group, found, strict=True):
                if isinstance(recovered, PenstockError):
                    partition.offline = recovered
                    where = f"{partition.topic}-{partition.index}"
                    log_.error("partition is offline", partition=where, error=str(recovered), help=recovered.help)
                    continue
                latest = recovered.state.epochs.latest
                if latest > partition.leader_epoch - (clean_ends is None):  # metadata from an older backup than the log
                    partition.leader_epoch = latest + 1
                opened.append((self._use_log(partition, recovered), partition.leader_epoch))
            await self._upkeep.begin_epochs(opened)
        for topic in topics:
            self.topics.add(topic)

    def _recover_logs(
        self, partitions: list[Partition], clean_ends: Mapping[str, int]
    ) -> list[Recovered | PenstockError]:
        found: list[Recovered | PenstockError] = []
        for partition in partitions:
            path = self._directory.log_path(partition.topic, partition.index)
            try:
                if not self._disk.exists(f"{path}/partition.meta"):
                    raise PenstockError(
                        Code.CORRUPT_LOG, f"{path} is missing", help="restore it from a replica or backup"
                    )
                clean_end = clean_ends.get(f"{partition.topic}-{partition.index}")
                found.append(recover(self._disk, path, partition.config.log, self._clock.now_ms(), clean_end))
            except PenstockError as error:
                found.append(error)
        return found

    def _use_log(self, partition: Partition, recovered: Recovered) -> Log:
        name = f"{partition.topic}-{partition.index}"
        for note in recovered.notes:
            log_.warning("recovery", partition=name, note=note)
        self.stats.recovered_bytes += recovered.scanned_bytes
        self.stats.cut_bytes += recovered.cut_bytes
        path = self._directory.log_path(partition.topic, partition.index)
        log = Log(name, path, partition.config.log, self._shelf, recovered.state, recovered.segments)
        log.on_rolled = lambda: self._caretaker.look_at(log)
        partition.use(log)
        if log.unsealed:
            self._caretaker.look_at(log)
        return log

    # --- offsets

    async def find_offset_by_time(self, partition: Partition, timestamp: int, *, committed: bool) -> Found | None:
        limit = partition.stable_offset if committed else partition.high_watermark
        return await self._disk.run(find_by_time, partition.opened(), timestamp, limit)

    async def find_largest_time(self, partition: Partition) -> Found | None:
        return await self._disk.run(find_largest_time, partition.opened(), partition.high_watermark)

    async def delete_records(self, partition: Partition, offset: int) -> int:
        """Move the log start up to `offset` (-1: the high watermark); returns where it is then."""
        log = partition.opened()
        if not partition.config.deletes:
            raise PenstockError(Code.NOT_ALLOWED, f"{log.name} is compacted: cleanup.policy has no delete")
        target = partition.high_watermark if offset == -1 else offset
        if not 0 <= target <= partition.high_watermark:
            raise PenstockError(
                Code.OFFSET_OUT_OF_RANGE,
                f"{log.name}: cannot delete up to {offset}; allowed: up to {partition.high_watermark}, or -1 for all",
            )
        try:
            await self._upkeep.delete_records(log, target)
        except OSError as error:
            if not is_shortage(error):
                self._fail(error)
            raise PenstockError(Code.STORAGE_FULL, f"cannot note the new start of {log.name}: {error}") from error
        return log.log_start


def _check_own(topic: Topic, why_not: str) -> None:
    if topic.name in INTERNAL_TOPICS:
        raise PenstockError(Code.NOT_ALLOWED, f"topic {topic.name!r} is the broker's own and {why_not}")


def _next_epoch(record: TopicRecord) -> TopicRecord:
    return replace(record, leader_epoch=record.leader_epoch + 1)
