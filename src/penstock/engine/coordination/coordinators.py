"""All coordinators of one broker: by the internal topics they live in, or by the kind that is attached to partitions.

They hear from the partitions which of them this broker leads: a coordinator lives where its partition is led.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from penstock.engine.coordination.attached_shards import AttachedShards
from penstock.engine.coordination.registry import Attachment, Registration
from penstock.engine.coordination.shard import Duties, M, Need, Shard, Surroundings
from penstock.engine.coordination.shards import Shards, TopicMaker
from penstock.engine.partition import Partition
from penstock.engine.partition_events import PartitionSubscriber
from penstock.engine.topics import Topic, Topics
from penstock.storage.attached_names import split_name
from penstock.storage.log.log import Log


class Coordinators(PartitionSubscriber):
    """Args:
    make_topic: makes an internal topic that is not there yet.
    """

    def __init__(self, around: Surroundings, topics: Topics, make_topic: TopicMaker) -> None:
        self._around = around
        self._topics = topics
        self._make_topic = make_topic
        self._by_topic: dict[str, Shards[Any]] = {}
        self._by_kind: dict[str, AttachedShards[Any]] = {}
        self._forget_topic: list[Callable[[str], Awaitable[None]]] = []
        self._has_started = False

    def register(
        self,
        registration: Registration,
        machines: Callable[[Partition], Callable[[int], M]],
        duties: Duties[M] | None = None,
        forget_topic: Callable[[str], Awaitable[None]] | None = None,
    ) -> Shards[M]:
        """Run a coordinator: its shards, which are made when its topic is there.

        Args:
            machines: what makes the machines of a partition, one at a time, each empty and told the time.
            duties: see `Shard`.
            forget_topic: told the name of every topic that is gone.
        """

        def make_shard(partition: Partition) -> Shard[M]:
            return Shard(partition, self._around, machines(partition), registration.codec, duties)

        shards = Shards(registration.topic, self._make_topic, make_shard)
        self._by_topic[registration.topic] = shards
        if forget_topic is not None:
            self._forget_topic.append(forget_topic)
        return shards

    def register_attached(
        self,
        attachment: Attachment,
        machines: Callable[[Partition], Callable[[int], M]],
        floor: Callable[[M], int | None],
        duties: Duties[M] | None = None,
        need: Need[M] | None = None,
    ) -> AttachedShards[M]:
        """Run a coordinator beside the partitions it is attached to; before the start of the broker.

        Args:
            machines: as in `register`, of the partition that holds their records; `attached_to` is what they are about.
            floor: the lowest offset of the data that a machine still needs, None for nothing; see `Log.floors`.
            duties: see `Shard`.
            need: which offsets it needs above that; without it all are.
        """

        def make_shard(partition: Partition) -> Shard[M]:
            return Shard(partition, self._around, machines(partition), attachment.codec, duties, floor, need)

        shards = self._by_kind[attachment.kind] = AttachedShards(attachment.kind, make_shard)
        return shards

    def __iter__(self) -> Iterator[Shards[Any]]:
        return iter(self._by_topic.values())

    async def close(self) -> None:
        await asyncio.gather(*(shards.close() for shards in self._all()))

    def _all(self) -> "list[Shards[Any] | AttachedShards[Any]]":
        return [*self._by_topic.values(), *self._by_kind.values()]

    def start(self) -> None:
        """Load those whose topics are there."""
        self._has_started = True
        for attached in self._by_kind.values():
            self._around.tasks.spawn(attached.load(), f"load {attached.kind}")
        for shards in self:
            topic = self._topics.get(shards.topic)
            if topic is not None:
                shards.open(topic)
                self._around.tasks.spawn(shards.load(), f"load {topic.name}")

    # --- partitions

    def led(self, partition: Partition) -> None:
        attached = self._attached_in(partition)
        if attached is not None:
            attached.led(partition, may_load=self._has_started)
        shard = self._shard_of(partition)
        if shard is not None:
            shard.gained()

    def lost(self, partition: Partition) -> None:
        attached = self._attached_in(partition)
        if attached is not None:
            attached.lost(partition)
        shard = self._shard_of(partition)
        if shard is not None:
            shard.lost()

    def moved_away(self, partition: Partition) -> None:
        for attached in self._by_kind.values():
            attached.forget(partition)

    async def deleted(self, topic: Topic) -> None:
        for partition in topic.partitions:
            self.moved_away(partition)
        for forget in self._forget_topic:
            await forget(topic.name)

    def _attached_in(self, partition: Partition) -> AttachedShards[Any] | None:
        if partition.attached_to is None:
            return None
        named = split_name(partition.topic)
        return self._by_kind.get(named[1]) if named is not None else None

    def _shard_of(self, partition: Partition) -> Shard[Any] | None:
        """The coordinator that lives in a partition, if it is one of an internal topic."""
        shards = self._by_topic.get(partition.topic)
        if shards is None:
            return None
        topic = self._topics.get(partition.topic)
        if topic is not None:
            shards.open(topic)
        return shards.at(partition.index)

    # --- transactions

    def before_marker(self, partition: Partition) -> None:
        """The marker of a transaction is about to be appended to a partition that a coordinator lives in."""
        shard = self._living_in(partition)
        if shard is not None:
            shard.end_turn()

    def on_marker(self, partition: Partition, producer_id: int, committed: bool) -> None:
        """The marker of a transaction was appended to it."""
        shard = self._living_in(partition)
        if shard is not None:
            shard.marker(producer_id, committed)

    def _living_in(self, partition: Partition) -> Shard[Any] | None:
        attached = self._attached_in(partition)
        if attached is None or partition.attached_to is None:
            return self._shard_of(partition)
        return attached.of(partition.attached_to)

    def compacted(self, log: Log) -> None:
        """A snapshot from before a compaction is of no use any more: take another."""
        for shards in self._all():
            for shard in shards:
                if shard.partition.log is log:
                    shard.save_soon()
