"""Which partitions have a window of duplicates: those that are led here, of topics whose own queue has one."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from penstock.engine.once.once import Around, Once
from penstock.engine.partition import Partition
from penstock.engine.partition_events import PartitionSubscriber
from penstock.engine.topics import Topic, Topics
from penstock.observe.stats import Stats
from penstock.tasks import Tasks
from penstock.turns import Turns

MOST_NAMED: Final = 100
"""Topics whose duplicates are counted apart."""
_TEND_S: Final = 1.0


class Windows(PartitionSubscriber):
    """Of one broker.

    Args:
        window_of: the window of a topic, None if it has none.
    """

    def __init__(
        self,
        topics: Topics,
        window_of: Callable[[str], int | None],
        around: Around,
        tasks: Tasks,
        turns: Turns,
        stats: Stats,
    ) -> None:
        self._topics = topics
        self._window_of = window_of
        self._around = around
        self._tasks = tasks
        self._turns = turns
        self._stats = stats
        self._open: dict[Partition, Once] = {}
        self._tending: asyncio.Task[None] | None = None

    # --- what becomes of partitions

    def led(self, partition: Partition) -> None:
        self._close(partition)
        topic = self._topics.get(partition.topic)
        if topic is not None and topic.queues:
            self._settle(partition, self._window_of(topic.name))

    def lost(self, partition: Partition) -> None:
        self._close(partition)

    async def deleted(self, topic: Topic) -> None:
        for partition in topic.partitions:
            self._close(partition)

    def use_queues(self, topic: Topic) -> None:
        """A topic is there now, or has other queues."""
        if not topic.queues and not self._open:
            return
        window_ms = self._window_of(topic.name)
        for partition in topic.partitions:
            self._settle(partition, window_ms)

    def _settle(self, partition: Partition, window_ms: int | None) -> None:
        once = partition.once
        if once is not None and once.window_ms == window_ms:
            return
        self._close(partition)
        if window_ms is None or partition.led is None:
            return
        once = Once(partition, window_ms, self._around, partial(self._dropped, partition.topic))
        partition.once = self._open[partition] = once
        self._tasks.spawn(once.recall(), f"recall the ids of {partition.name}")
        if self._tending is None:
            self._tending = self._tasks.spawn(self._tend(), "forget ids of messages")

    def _close(self, partition: Partition) -> None:
        once = self._open.pop(partition, None)
        if once is not None:
            partition.once = None
            once.end()

    # --- upkeep

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(_TEND_S)
            for once in self.open:
                while not once.is_over and once.tend():
                    await self._turns.next()

    @property
    def open(self) -> Collection[Once]:
        return tuple(self._open.values())

    def _dropped(self, topic: str, count: int) -> None:
        if not count:
            return
        counts = self._stats.queue_duplicates
        name = topic if (topic,) in counts or len(counts) <= MOST_NAMED else ""  # which is one of them, too
        counts[name,] = counts.get((name,), 0) + count
