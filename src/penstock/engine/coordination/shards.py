"""All shards of one internal topic: made when the topic is first needed, found by the hash of a name."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol

from penstock.engine.coordination.internal_topics import shard_of
from penstock.engine.coordination.shard import M, Shard
from penstock.engine.partition import Partition
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError


class TopicMaker(Protocol):
    async def __call__(self, name: str) -> Topic:
        """The internal topic, created if it is not there yet."""
        ...


class Shards(Generic[M]):
    def __init__(self, topic: str, make_topic: TopicMaker, make_shard: Callable[[Partition], Shard[M]]) -> None:
        self.topic = topic
        self._make_topic = make_topic
        self._make_shard = make_shard
        self._shards: list[Shard[M]] = []
        self.refusal: PenstockError | None = None
        """Why the topic could not be made, if another try will not help."""

    def __iter__(self) -> Iterator[Shard[M]]:
        """Those that live on this broker."""
        return (shard for shard in self._shards if shard.is_here)

    def open(self, topic: Topic) -> None:
        """Use the topic that is there."""
        self.refusal = None
        if not self._shards:
            self._shards = [self._make_shard(partition) for partition in topic.partitions]

    async def ready(self) -> int:
        """The number of shards, once there are any. Raises PenstockError."""
        if not self._shards:
            try:
                self.open(await self._make_topic(self.topic))
            except PenstockError as error:
                self.refusal = None if error.retriable else error
                raise
        return len(self._shards)

    async def of(self, name: str) -> Shard[M]:
        """The shard a name lives in. Raises PenstockError."""
        count = await self.ready()
        return self._shards[shard_of(name, count)]

    def at(self, index: int) -> Shard[M] | None:
        return self._shards[index] if index < len(self._shards) else None

    async def load(self) -> None:
        """Load them all: nobody may have asked yet, but time-outs run."""
        await load_all(self)

    async def close(self) -> None:
        await asyncio.gather(*(shard.close() for shard in self._shards))


async def load_all(shards: Iterable[Shard[M]]) -> None:
    """One after the other; what cannot be loaded goes on being tried by itself."""
    for shard in shards:
        try:
            await shard.load()
        except PenstockError as error:
            if error.code not in (Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOADING, Code.NOT_COORDINATOR):
                raise  # else it was said, and whoever asks for it is told again
