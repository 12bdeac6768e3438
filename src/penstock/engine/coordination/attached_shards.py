"""All shards of one kind that is attached to partitions: one where each of those is led.

They come and go with the partitions they are attached to. Each is loaded as soon as its partition is led, whether
anybody asks for it or not: until it has said which records it needs, retention removes none.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Generic

from penstock.engine.coordination.shard import M, Shard
from penstock.engine.coordination.shards import load_all
from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.storage.attached_names import attached_name


class AttachedShards(Generic[M]):
    """Args:
    make_shard: of a partition that is attached to another.
    """

    def __init__(self, kind: str, make_shard: Callable[[Partition], Shard[M]]) -> None:
        self.kind = kind
        self._make_shard = make_shard
        self._shards: dict[Partition, Shard[M]] = {}
        """By the partition each is attached to."""

    def __iter__(self) -> Iterator[Shard[M]]:
        """Those that live on this broker."""
        return (shard for shard in list(self._shards.values()) if shard.is_here)

    def of(self, partition: Partition) -> Shard[M]:
        """The shard attached to a partition. Raises PenstockError."""
        shard = self._shards.get(partition)
        if shard is None:
            for attached in partition.attached:
                if attached.topic == attached_name(partition.topic, self.kind):
                    return self._shard_in(attached)
            raise PenstockError(Code.NOT_COORDINATOR, f"nothing of kind {self.kind!r} is attached to {partition.name}")
        return shard

    def led(self, attached: Partition, *, may_load: bool) -> None:
        shard = self._shard_in(attached)
        if may_load:
            shard.gained()

    def lost(self, attached: Partition) -> None:
        self._shard_in(attached).lost()

    def forget(self, partition: Partition) -> None:
        """It is gone from this broker."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.lost()

    async def load(self) -> None:
        """Load them all, one after the other."""
        await load_all(self)

    async def close(self) -> None:
        await asyncio.gather(*(shard.close() for shard in self._shards.values()))

    def _shard_in(self, attached: Partition) -> Shard[M]:
        data = attached.attached_to
        assert data is not None
        shard = self._shards.get(data)
        if shard is None:
            shard = self._shards[data] = self._make_shard(attached)
        return shard
