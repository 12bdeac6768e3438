"""The verbs every protocol calls: start and stop, topics, partitions, offsets by time, producer ids.

How topics come and go is the catalogue's: `local_catalogue` on a broker of its own, `cluster/catalogue` in a cluster.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from penstock.engine.access import Access, Subject
from penstock.engine.acting.acting import Acting
from penstock.engine.catalogue import Catalogue, NewTopic
from penstock.engine.cleaner import Cleaner
from penstock.engine.coordination.coordinators import Coordinators
from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.coordination.registry import Attachment
from penstock.engine.coordination.shard import Surroundings
from penstock.engine.elsewhere import Elsewhere
from penstock.engine.end_keeper import EndKeeper
from penstock.engine.forwarding import Forwarding
from penstock.engine.gathering import Gatherer
from penstock.engine.groups.group_configs import GroupConfigs
from penstock.engine.groups.groups import Groups
from penstock.engine.local_catalogue import LocalCatalogue
from penstock.engine.needs import logs_with_needs
from penstock.engine.offset_lookup import Found, find_by_time, find_largest_time
from penstock.engine.once.once import Around
from penstock.engine.once.windows import Windows
from penstock.engine.opener import Opener
from penstock.engine.partition import Partition
from penstock.engine.partition_events import PartitionEvents
from penstock.engine.producer_ids import ProducerIds
from penstock.engine.publishing import Publishing
from penstock.engine.queues.burials import Burials
from penstock.engine.queues.queues import Queues
from penstock.engine.queues.receiving import Receiving
from penstock.engine.queues.saving import Saving
from penstock.engine.queues.schedules.firing import Firing
from penstock.engine.queues.schedules.schedules import Schedules
from penstock.engine.queues.schedules.zones import Zones
from penstock.engine.queues.share_ledgers import ShareLedgers
from penstock.engine.queues.share_offsets import ShareOffsets
from penstock.engine.queues.sharing import Sharing
from penstock.engine.queues.tally import Tally
from penstock.engine.queues.transactional_acks import TransactionalAcks
from penstock.engine.replicas import Replicas
from penstock.engine.scrubber import Scrubber
from penstock.engine.settings import EngineSettings, Ports
from penstock.engine.steady_clock import SteadyClock
from penstock.engine.tails import Tails
from penstock.engine.topic_config import WRITTEN_BY, check_settings, tidy_settings
from penstock.engine.topics import QueueSettings, Topic, Topics, check_own
from penstock.engine.transactions.transactions import Transactions
from penstock.errors import Code, PenstockError
from penstock.observe.stats import Stats
from penstock.ports.disk import Space, is_shortage
from penstock.storage.checked_file import save_all
from penstock.storage.compaction.process import Compactor, InlineCompaction
from penstock.storage.data_directory import DataDirectory
from penstock.storage.log.commit import Committer
from penstock.storage.log.log import Shelf
from penstock.storage.log.rewriting import Rewriting
from penstock.storage.log.segment import FilePool
from penstock.storage.log.upkeep import Upkeep
from penstock.tasks import Tasks
from penstock.turns import Turns

_DEAD_LETTERS_KEPT_MS: Final = 14 * 86_400_000
_DEATH_HEADERS_BYTES: Final = 64 * 1024


class Engine:
    """One broker's meaning. Everything outside comes through the ports.

    Args:
        fail: called once when the broker must stop rather than guess.
        compactor: who compacts and thins logs; on the disk's own threads if not given.
    """

    def __init__(
        self,
        ports: Ports,
        directory: DataDirectory,
        stats: Stats,
        fail: Callable[[BaseException], None],
        settings: EngineSettings | None = None,
        compactor: Compactor | None = None,
    ) -> None:
        settings = settings or EngineSettings()
        disk, clock, randomness, store = ports
        self._disk = disk
        self.clock = clock
        self.node_id = settings.node_id
        self._directory = directory
        self._fail = fail
        self.topic_defaults = tidy_settings(settings.defaults)
        self.default_partitions = settings.default_partitions
        self.stats = stats
        self.access = Access(denials=stats.denials)
        """Who may do what."""
        self.topics = Topics()
        self.producer_ids = ProducerIds(store)
        self.cluster_id = ""
        self._tasks = Tasks(fail)
        self.committer = Committer(disk, clock, stats, fail)
        shelf = Shelf(disk, clock, stats, FilePool(disk, settings.segment_files), self.committer, self._tasks, fail)
        self._upkeep = Upkeep(shelf)
        self.replicas = Replicas(shelf, self._upkeep, directory, self.topics, settings.upkeep_ms)
        self.opener = Opener(disk, self._tasks)
        self.turns = Turns()
        """For whoever asks for much and can wait."""
        around = Surroundings(disk, SteadyClock(clock), self.committer, self._tasks, self.turns)
        self.events = PartitionEvents()
        """What becomes of the partitions here, for who wants to hear it."""
        self.coordinators = Coordinators(around, self.topics, self.internal_topic)
        self.events.subscribe(self.coordinators)
        self.group_configs = GroupConfigs(store, settings.groups.consumer)
        """What is set for groups."""
        of_groups = settings.groups._replace(
            consumer_limits_of=self.group_configs.consumer_limits, share_times_of=self.group_configs.share_times
        )
        self.groups = Groups(self.coordinators, self.topics, self.turns, randomness, of_groups)
        self.transactions = Transactions(
            self.coordinators,
            around,
            self.topics,
            self.internal_topic,
            self.producer_ids,
            self.coordinators.before_marker,
            self.coordinators.on_marker,
            settings.transactions,
            stats=stats,
        )
        self.publishing = Publishing(self.opener, self.transactions)
        self.tails = Tails()
        self.elsewhere = Elsewhere(self.topics, self.access, disk)
        self.forwarding = Forwarding(self.publishing, self.topics, self.producer_ids, self.access)
        saving = Saving(self._tasks, self.turns, self._upkeep.delete_records, settings.ledger_entries)
        self.queues = Queues(
            self.coordinators,
            self.topics,
            randomness,
            self.attach,
            saving,
            self.group_configs.of,
            Tally(stats),
            around.clock,
            self._tasks,
            self.turns,
        )
        ids = Around(clock, around.clock, disk, asyncio.Lock())
        self.windows = Windows(self.topics, self.queues.rulebook.window_of, ids, self._tasks, self.turns, stats)
        """Where duplicates are dropped."""
        self.events.subscribe(self.windows)
        self.topics.on_queues = self.windows.use_queues
        self.queues.burials = Burials(
            self.topics,
            self.queues.rulebook,
            self.forwarding,
            self.producer_ids,
            self._dead_letter_topic,
            clock,
            self._tasks,
            self.queues.tally,
        )
        self.transactional_acks = TransactionalAcks(self.queues, self.topics, self.transactions)
        zones = Zones(disk)
        firing = Firing(
            self.topics,
            self.queues.rulebook,
            self.forwarding,
            self.producer_ids,
            zones,
            clock,
            self._tasks,
            self.turns,
            self.queues.tally,
        )
        self.schedules = Schedules(self.coordinators, self.topics, self.attach, clock, zones, firing)
        self.receiving = Receiving(self.queues, clock)
        find = partial(self.find_offset_by_time, committed=False)
        self.sharing = Sharing(self.queues, self.groups, self.group_configs, clock, find)
        self.share_ledgers = ShareLedgers(self.queues, self.topics)
        self.share_offsets = ShareOffsets(
            self.groups, self.topics, self.queues.rulebook, self.share_ledgers, self._tasks
        )
        self.groups.members_lost = self.share_offsets.members_lost
        self.gatherer = Gatherer(self.publishing, self.forwarding, clock, self._tasks)
        self._ends = EndKeeper(
            disk, clock, stats, self.committer, self.topics, directory.metadata_path, settings.ends_behind_s
        )
        self._local = LocalCatalogue(
            ports,
            directory,
            self.topics,
            self.replicas,
            self.committer,
            self._tasks,
            self._ends,
            self.events,
            self.elsewhere,
            fail,
            replace(settings, defaults=self.topic_defaults),
        )
        self.catalogue: Catalogue = self._local
        """Replaced by that of a cluster, before the start."""
        caretaker = self.replicas.caretaker
        self._cleaner = Cleaner(
            Rewriting(shelf, compactor or InlineCompaction(disk), settings.compaction_bytes_per_second),
            caretaker.steady_now_ms,
            lambda: logs_with_needs(self.topics.all_partitions()),
            settings.upkeep_ms,
            settings.thin_every_ms,
            self.coordinators.compacted,
        )

        self._scrubber = Scrubber(
            disk, clock, stats, self.replicas.open_logs, settings.scrub_s, settings.scrub_bytes_per_second
        )

    def acting_as(self, subject: Subject) -> Acting:
        """The engine as somebody may use it: what doors go by."""
        return Acting(self, subject)

    # --- life

    async def start(self, load: Callable[[], Awaitable[str]] | None = None) -> None:
        """Load topics, recover their logs. Raises `StartupError` when going on would be a guess.

        Args:
            load: opens the topics and gives the cluster's id; those of a broker on its own if not given.
        """
        check_settings(self.topic_defaults)
        self._tasks.spawn(self.committer.run(), "group commit")
        self.cluster_id = await (load or self._local.load)()
        await self.group_configs.load()
        self._tasks.spawn(self.replicas.caretaker.run(), "upkeep")
        self._tasks.spawn(self._cleaner.run(), "compaction")
        self._tasks.spawn(self._scrubber.run(), "look for rot")
        self.coordinators.start()

    async def stop(self, incarnation: int = 0) -> None:
        """Stop cleanly: everything synced, cards saved, the mark left behind."""
        self._local.refuse()
        await asyncio.gather(self.coordinators.close(), self._cleaner.stop())
        await self._local.stop()
        logs = [log for log, _ in self.replicas.open_logs()]
        for log in logs:
            log.closed = True
        contents: dict[str, bytes] = {}
        changed = [log for log in logs if log.active.size > log.active.checkpointed or log.unsealed]
        for taken in await asyncio.gather(*(self._upkeep.snapshot(log) for log in changed)):
            contents |= taken
        if contents:
            await self._disk.run(save_all, self._disk, contents)
        await self._ends.close()
        await self._tasks.cancel_all()
        ends = {f"{log.name}": log.end_offset for log in logs}
        await self._disk.run(self._directory.leave_clean_mark, ends, incarnation)

    async def abandon(self) -> None:
        """Stop without a clean mark: the next start looks at everything."""
        await self._tasks.cancel_all()

    async def disk_space(self) -> Space:
        return await self._disk.run(self._disk.space, self._directory.path)

    # --- topics; all raise PenstockError, see `catalogue.Catalogue`

    async def internal_topic(self, name: str) -> Topic:
        """One of the internal topics, created when it is first asked for."""
        return self.topics.get(name) or await self.catalogue.internal_topic(name)

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        settings: Mapping[str, str] | None = None,
        *,
        replication: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> Topic:
        if name in INTERNAL_TOPICS:
            raise PenstockError(
                Code.INVALID_TOPIC, f"topic {name!r} is the broker's own; it is made when it is first needed"
            )
        new = NewTopic(name, partitions, replication, settings, assignment)
        return await self.catalogue.create_topic(new, validate_only=validate_only)

    async def create_partitions(
        self,
        topic: Topic,
        count: int,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        await self.catalogue.create_partitions(topic, count, assignment=assignment, validate_only=validate_only)

    async def alter_topic(
        self, topic: Topic, alter: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool = False
    ) -> None:
        await self.catalogue.alter_topic(topic, alter, validate_only=validate_only)

    async def attach(self, topic: Topic, attachment: Attachment) -> None:
        """Have a coordinator of this kind beside every partition of a topic; at once if it is there."""
        if attachment.kind not in topic.attached:
            check_own(topic.name, "cannot have anything attached to it")
            await self.catalogue.attach(topic, attachment.kind, attachment.settings)

    async def alter_queues(self, topic: Topic, alter: Callable[[QueueSettings], QueueSettings]) -> None:
        check_own(topic.name, "cannot have queues")
        await self.catalogue.alter_queues(topic, alter)
        for partition in topic.partitions:
            self.queues.look_ahead(partition)

    async def _dead_letter_topic(self, name: str, source: Topic) -> Topic:
        """The topic of dead letters of another one, made if it is not there."""
        largest = source.config.max_message_bytes + _DEATH_HEADERS_BYTES
        settings = {
            "retention.ms": str(_DEAD_LETTERS_KEPT_MS),
            "max.message.bytes": str(largest),
            WRITTEN_BY: "broker",
        }
        try:
            return self.topics.get(name) or await self.create_topic(name, len(source.partitions), settings)
        except PenstockError as error:
            topic = self.topics.get(name)
            if error.code is Code.TOPIC_EXISTS and topic is not None:
                return topic  # another ledger was quicker
            raise

    async def delete_topic(self, topic: Topic) -> None:
        await self.catalogue.delete_topic(topic)

    # --- offsets

    async def find_offset_by_time(self, partition: Partition, timestamp: int, *, committed: bool) -> Found | None:
        limit = partition.stable_offset if committed else partition.high_watermark
        return await self._disk.run(find_by_time, partition.leading(), timestamp, limit)

    async def find_largest_time(self, partition: Partition) -> Found | None:
        return await self._disk.run(find_largest_time, partition.leading(), partition.high_watermark)

    async def delete_records(self, partition: Partition, offset: int) -> int:
        """Move the log start up to `offset` (-1: the high watermark); returns where it is then."""
        check_own(partition.topic, "keeps its records: groups and transactions are made of them")
        log = partition.leading()
        if not partition.config.deletes:
            raise PenstockError(Code.NOT_ALLOWED, f"{log.name} is compacted: cleanup.policy has no delete")
        if (offset == -1 or offset > partition.high_watermark) and not partition.is_settled:
            raise partition.not_settled()  # it may be no more than the leader before has told
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
