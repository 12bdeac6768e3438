"""How queues stand in the partitions this broker leads, for a scrape.

Queues that somebody made have names in the metrics, the first hundred of the cluster by name: all brokers name the same
ones, so that what they tell adds up. Others are added up here, under empty names: the number of series must be bounded,
and groups of share consumers have whatever names clients invent.

How old the oldest message is takes a read, and only where it is not the one it was at the last survey.

What came in and was delivered by lane is counted where it happens, since the broker leads the partition; what is new of
that since the last survey goes into the broker's counters.
"""

import asyncio
from collections.abc import Mapping
from heapq import nsmallest
from typing import Final, NamedTuple

from penstock.engine.engine import Engine
from penstock.engine.partition import Partition
from penstock.engine.queues.answers import Figures
from penstock.engine.queues.headers import LANES
from penstock.engine.queues.holdings import find_holding
from penstock.engine.queues.names import QueueName
from penstock.engine.queues.sorting.standing import Standing
from penstock.errors import PenstockError
from penstock.observe.metrics import Gauge

MOST_NAMED: Final = 100
MOST_READ: Final = 1_000
"""Oldest messages read in one survey. What is left is told as it was, and has its turn first at the next one."""
OTHERS: Final = QueueName("", "")
_AT_ONCE: Final = 100
"""Queues looked at, each in one partition, before others have their turn: a millisecond."""


class _Oldest(NamedTuple):
    """The oldest unsettled message of a queue in a partition.

    Attributes:
    start: everything below is settled.
    sent_ms: None if everything is.
    """

    start: int
    sent_ms: int | None


class _Counted(NamedTuple):
    """What was counted by lane when it was last looked at, and by whom: another one begins at 0."""

    by: object
    counts: tuple[int, ...]


class _Sums:
    """Over the partitions of one queue."""

    def __init__(self) -> None:
        self.ready = self.leased = self.delayed = self.dying = 0
        self.oldest_ms = 0
        self.lanes: dict[tuple[str, str], int] = {}
        """By lane and state; nothing where all messages are alike."""
        self.not_due = self.tenants = self.unseen = 0

    def add_standing(self, standing: Standing) -> None:
        for lane, each in zip(LANES, standing.lanes, strict=False):
            self.lanes[lane, "ready"] = self.lanes.get((lane, "ready"), 0) + each.ready
            self.lanes[lane, "leased"] = self.lanes.get((lane, "leased"), 0) + each.leased
        self.not_due += standing.not_due
        self.tenants = max(self.tenants, standing.tenants)
        self.unseen += standing.unseen

    def add(self, figures: Figures) -> None:
        self.ready += figures.ready
        self.leased += figures.leased
        self.delayed += figures.delayed
        self.dying += figures.dying

    def by_state(self) -> Mapping[str, int]:
        return {"ready": self.ready, "leased": self.leased, "delayed": self.delayed, "dying": self.dying}


class QueueSurvey:
    """Of one broker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._oldest: dict[tuple[Partition, str], _Oldest] = {}
        self._counted: dict[tuple[Partition, str, str], _Counted] = {}
        self._reads_left = MOST_READ
        self._read_to: Partition | None = None
        """Where reads ended the last time there were too many; the next survey begins behind it."""

    async def take(self) -> dict[str, Gauge]:
        sums = {OTHERS: _Sums()}
        named = self._named()
        known: dict[tuple[Partition, str], _Oldest] = {}
        counted: dict[tuple[Partition, str, str], _Counted] = {}
        self._reads_left = MOST_READ
        since_turn = 0
        for partition in self._partitions():
            for figures in self._figures(partition):
                queue = QueueName(partition.topic, figures.group)
                is_named = queue in named
                each = sums.setdefault(queue if is_named else OTHERS, _Sums())
                each.add(figures)
                if is_named and (oldest := await self._find_oldest(partition, figures)) is not None:
                    known[partition, figures.group] = oldest
                    each.oldest_ms = max(each.oldest_ms, self._age_ms(oldest))
                since_turn += 1
            since_turn += await self._look_closer(partition, sums, named, counted)
            if since_turn >= _AT_ONCE:
                since_turn = 0
                await asyncio.sleep(0)
        self._oldest, self._counted = known, counted
        return _gauges(sums)

    def _named(self) -> set[QueueName]:
        made = (QueueName(topic.name, group) for topic in self._engine.topics for group in topic.queues)
        return set(nsmallest(MOST_NAMED, made))

    def _partitions(self) -> list[Partition]:
        """Of topics that are read as queues."""
        topics = [topic for topic in self._engine.topics if topic.queues or topic.attached]
        found = [partition for topic in topics for partition in topic.partitions]
        at = found.index(self._read_to) + 1 if self._read_to in found else 0
        return found[at:] + found[:at]

    def _figures(self, partition: Partition) -> list[Figures]:
        return self._engine.queues.glance(partition) if partition.led is not None else []

    async def _look_closer(
        self,
        partition: Partition,
        sums: dict[QueueName, _Sums],
        named: set[QueueName],
        counted: dict[tuple[Partition, str, str], _Counted],
    ) -> int:
        """What only queues have that were made as such; how many there are."""
        if partition.led is None:
            return 0
        queues = self._engine.queues
        queues.look_ahead(partition)
        groups = queues.glanced(partition)
        for group in groups:
            standing = await queues.glance_closer(partition, group)
            queue = QueueName(partition.topic, group.name)
            sums.setdefault(queue if queue in named else OTHERS, _Sums()).add_standing(standing)
            delivered = tuple(lane.delivered for lane in standing.lanes)
            for what, by, counts in (
                ("arrived", standing.counted_by, standing.arrived),
                ("delivered", group.picker, delivered),
            ):
                self._count(counted, (partition, group.name, what), _Counted(by, tuple(counts)))
        return len(groups)

    def _count(
        self,
        counted: dict[tuple[Partition, str, str], _Counted],
        key: tuple[Partition, str, str],
        now: _Counted,
    ) -> None:
        """Add what is new since the last survey."""
        before = self._counted.get(key)
        known = before.counts if before is not None and before.by is now.by else ()
        tally = self._engine.queues.tally
        for at, (lane, count) in enumerate(zip(LANES, now.counts, strict=False)):
            more = count - (known[at] if known else 0)
            if key[2] == "arrived":
                tally.lane_arrived(lane, more)
            else:
                tally.lane_delivered(lane, more)
        counted[key] = now

    async def _find_oldest(self, partition: Partition, figures: Figures) -> _Oldest | None:
        known = self._oldest.get((partition, figures.group))
        if known is not None and known.start == figures.start and known.sent_ms is not None:
            return known
        if self._reads_left <= 0:
            return known
        now = self._engine.clock.now_ms()
        try:
            oldest_ms = (await find_holding(partition, figures.start, now, durable=False)).oldest_ms
        except PenstockError:
            return None  # another broker leads it since
        if oldest_ms is None:
            return _Oldest(figures.start, None)
        self._reads_left -= 1
        if self._reads_left == 0:
            self._read_to = partition
        return _Oldest(figures.start, now - oldest_ms)

    def _age_ms(self, oldest: _Oldest) -> int:
        return 0 if oldest.sent_ms is None else max(self._engine.clock.now_ms() - oldest.sent_ms, 0)


def _gauges(sums: Mapping[QueueName, _Sums]) -> dict[str, Gauge]:
    messages: dict[tuple[str, ...], float] = {}
    oldest: dict[tuple[str, ...], float] = {}
    lanes: dict[tuple[str, ...], float] = {}
    not_due: dict[tuple[str, ...], float] = {}
    tenants: dict[tuple[str, ...], float] = {}
    unseen: dict[tuple[str, ...], float] = {}
    for queue, each in sums.items():
        names = tuple(name.encode(errors="replace").decode() for name in queue)
        for state, count in each.by_state().items():
            messages[*names, state] = count
        if queue != OTHERS:
            oldest[names] = each.oldest_ms / 1000
        for (lane, state), count in each.lanes.items():
            lanes[*names, lane, state] = count
        not_due[names], tenants[names], unseen[names] = each.not_due, each.tenants, each.unseen
    return {
        "queue_messages": messages,
        "queue_oldest_s": oldest,
        "queue_lanes": lanes,
        "queue_not_due": not_due,
        "queue_tenants": tenants,
        "queue_index_lag": unseen,
    }
