"""What a broker finds on its disk at its start: the replicas the cluster knows of are opened, or given to be mended.

Nothing is removed because the cluster does not know it, only what was being made and has nothing in it yet. What cannot
be read is left as it is, and named.
"""

from penstock.cluster.image import Image, TopicEntry
from penstock.cluster.replication.watermarks import load_watermarks, watermark_key
from penstock.cluster.roles.roles import Roles
from penstock.engine.attached import attach_all
from penstock.engine.engine import Engine
from penstock.engine.internal_settings import topic_config
from penstock.engine.partition import Partition
from penstock.engine.replicas import OPENED_AT_ONCE
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError, StartupError
from penstock.observe.logs import get_logger
from penstock.ports.disk import Disk
from penstock.storage.attached_names import attached_id, attached_name, split_name
from penstock.storage.data_directory import DataDirectory, PartitionDirectory
from penstock.storage.log.options import Flush
from penstock.storage.log.recovery import Recovered

log_ = get_logger("cluster")


class Opening:
    def __init__(self, engine: Engine, image: Image, disk: Disk, directory: DataDirectory, roles: Roles) -> None:
        self._engine = engine
        self._image = image
        self._disk = disk
        self._directory = directory
        self._roles = roles
        self._topics: dict[str, Topic] = {}
        self._watermarks: dict[str, int] = {}

    async def run(self, clean_ends: dict[str, int]) -> bool:
        """Open everything.

        Args:
            clean_ends: where each log ended at the last stop, if that was a clean one.

        Returns:
            Whether all of those logs are there.
        """
        await self._disk.run(self._directory.empty_removed)  # a removal that was cut short
        unreadable: dict[tuple[str, int], StartupError] = {}
        unfinished: list[str] = []
        on_disk = await self._disk.run(self._directory.partitions, unreadable, unfinished)
        if unfinished:  # their partitions may have moved on since, and nobody would finish or remove them
            await self._disk.run(self._directory.remove_unfinished, unfinished)
        self._watermarks = await self._disk.run(load_watermarks, self._disk, self._directory.path)
        mine = self._find(on_disk)
        for (name, index), error in unreadable.items():
            self._set_aside(name, index, error)
        for at in range(0, len(mine), OPENED_AT_ONCE):
            group = mine[at : at + OPENED_AT_ONCE]
            for partition, recovered in zip(group, await self._engine.replicas.recover(group, clean_ends), strict=True):
                self._open(partition, recovered)
        for partition in mine:
            self._miss_attached(partition)
        for topic in self._topics.values():
            self._engine.topics.add(topic)
        self._roles.set_aside.update(await self._disk.run(self._directory.set_aside_before))
        return not self._is_missing({partition.name for partition in mine}, clean_ends)

    def _find(self, on_disk: list[PartitionDirectory]) -> list[Partition]:
        """The partitions whose directories are here."""
        mine, strangers = [], []
        for found in on_disk:
            topic = self._topic(found.topic)
            if topic is None or topic.topic_id != found.topic_id:
                if not self._is_deleted(found):
                    strangers.append(found)
            elif found.partition < len(topic.partitions):
                mine.append(topic.partitions[found.partition])
        if strangers:
            log_.error(
                "the cluster knows nothing of some partitions here; they are left alone",
                directory=self._directory.path,
                partitions=len(strangers),
                topics=sorted({found.topic for found in strangers})[:5],
            )
        return mine

    def _is_deleted(self, found: PartitionDirectory) -> bool:
        split = split_name(found.topic)
        gone = self._image.deleted
        return found.topic_id in (gone if split is None else {attached_id(each, split[1]) for each in gone})

    def _set_aside(self, name: str, index: int, error: StartupError) -> None:
        """A directory that does not say whose it is. The cluster knows whose it should be."""
        topic = self._topic(name)
        if topic is None or index >= len(topic.partitions):
            log_.error("a partition here is left alone", directory=self._directory.path, error=str(error))
        else:
            self._damaged(topic.partitions[index], str(error))

    def _open(self, partition: Partition, recovered: Recovered | PenstockError) -> None:
        if isinstance(recovered, PenstockError):
            self._damaged(partition, str(recovered))
        elif recovered.damage and self._has_others(partition):
            self._damaged(partition, recovered.damage)
        elif self._is_old_copy(partition, recovered) and self._has_others(partition):
            self._damaged(partition, f"{partition.name} ends below what was committed: it is an old copy")
        else:
            log = self._engine.replicas.open(partition, recovered)
            saved = self._watermarks.get(watermark_key(partition), 0)
            # A log that ends below it is older, or has lost its tail: what it has there need not be committed.
            partition.hold(log, saved if saved <= log.end_offset else 0)
            log.follows = True
            if recovered.damage:
                log.damage = PenstockError(Code.CORRUPT_LOG, recovered.damage)
                self._roles.damaged(partition)

    def _miss_attached(self, partition: Partition) -> None:
        """What is attached to a replica that is here, and has no log: it was lost, or never made.

        Nobody can tell which, so others have to say what was in it. Where there are none, it is begun.
        """
        for attached in partition.attached:
            if attached.log is None and attached.offline is None and self._has_others(attached):
                self._damaged(attached, f"{attached.name} is missing beside {partition.name}")

    def _is_old_copy(self, partition: Partition, recovered: Recovered) -> bool:
        """Of what is attached to a partition: by how far that one's log goes, nobody would find it out."""
        if partition.attached_to is None or partition.config.log.flush is not Flush.COMMIT:
            return False
        return recovered.segments[-1].next_offset < self._watermarks.get(watermark_key(partition), 0)

    def _has_others(self, partition: Partition) -> bool:
        """Whether another broker may hold all of it. The only one that holds anything goes on with what is left."""
        state, data = partition.state, partition.attached_to or partition
        known = self._image.states.get(data.topic_id, {}).get(partition.index, state)
        return any(member != self._engine.node_id for member in (*known.isr, *known.elr, *known.last))

    def _damaged(self, partition: Partition, why: str) -> None:
        partition.offline = PenstockError(Code.CORRUPT_LOG, why)
        self._roles.damaged(partition)

    def _is_missing(self, found: set[str], clean_ends: dict[str, int]) -> bool:
        """Whether a log is gone that was here at the last stop."""
        gone = clean_ends.keys() - found
        missing = [
            f"{name}-{index}"
            for entry, index, state in self._image.partitions()
            for name in (entry.name, *(attached_name(entry.name, kind) for kind in entry.record.attached))
            if self._engine.node_id in state.replicas and f"{name}-{index}" in gone
        ]
        if missing:
            log_.error("logs are gone that were here at the last stop", count=len(missing), partitions=missing[:5])
        return bool(missing)

    def _topic(self, name: str) -> Topic | None:
        """A topic of the cluster with all its partitions, none of which has a role yet; or what is attached to one."""
        split = split_name(name)
        if split is not None:
            data = self._topic(split[0])
            return data.attached.get(split[1]) if data is not None else None
        entry = self._image.topics.get(name)
        if name not in self._topics and entry is not None:
            self._topics[name] = self._new_topic(entry)
        return self._topics.get(name)

    def _new_topic(self, entry: TopicEntry) -> Topic:
        config = topic_config(entry.name, entry.record.settings, self._engine.topic_defaults)
        topic = Topic(entry.name, entry.record.topic_id, config, [], queues=entry.record.queues)
        states = self._image.states.get(entry.record.topic_id, {})
        for index in range(entry.record.partitions):
            if index not in states:
                break
            topic.partitions.append(self._roles.new_partition(topic, index, states[index]))
        attach_all(topic, entry.record.attached, self._roles.new_attached)
        return topic
