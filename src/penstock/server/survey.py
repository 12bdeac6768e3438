"""Figures that cost too much to be made while a scrape waits: room on the disk, what groups have yet to read, and how
queues stand (`queue_survey.py`).

They are taken bit by bit while somebody scrapes, and a scrape is told the last ones. Groups are added up, not named:
their ids are made up by clients, and the number of series must be bounded. `penstock group lag` shows each of them.

How far a partition goes is known of those this broker holds. Offsets of others are counted as unknown and add nothing
to lag: with more brokers than replicas, lag is at least what is told here.

What cannot be taken does not keep the other figures from being taken, and their age says that something is missing.
"""

import asyncio
import bisect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from penstock.engine.engine import Engine
from penstock.engine.groups.classic import CONSUMER, State
from penstock.engine.groups.machine import SHARE, GroupListing, GroupMachine
from penstock.engine.groups.offsets import FetchRequest
from penstock.errors import PenstockError
from penstock.observe.logs import get_logger
from penstock.observe.metrics import Gauge, Gauges
from penstock.server.queue_survey import QueueSurvey

log_ = get_logger("broker")
EVERY_S = 5.0
BEHIND = (1, 1_000, 100_000, 10_000_000)
"""Groups are counted that lag by so many records or more."""
GROUP_STATES = (*(state.value for state in State), "Assigning", "Reconciling")
_AT_ONCE = 500
"""Offsets and members looked at before others have their turn: a millisecond."""
_BUGS_PER_S = 1 / 60
Figures = dict[str, Gauge]


class Survey:
    """Call `figures` at a scrape; `run` goes on until cancelled."""

    def __init__(self, engine: Engine, every_s: float = EVERY_S) -> None:
        self._engine = engine
        self._every_s = every_s
        self._asked = asyncio.Event()
        self._asked.set()
        self._queues = QueueSurvey(engine)
        self._figures: Figures = {}
        self._taken_at = engine.clock.monotonic()

    def figures(self) -> Gauges:
        """The last ones, if any were taken yet, and since when they are all there; has others taken."""
        self._asked.set()
        return {**self._figures, "group_survey_s": self._engine.clock.monotonic() - self._taken_at}

    async def run(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self.take()
            await asyncio.sleep(self._every_s)

    async def take(self) -> None:
        """Take all figures now. What fails is logged, and keeps its last figures."""
        takers = (self._take_space, self._take_groups, self._queues.take)
        if all([await self._taken(take) for take in takers]):
            self._taken_at = self._engine.clock.monotonic()

    async def _taken(self, take: Callable[[], Awaitable[Figures]]) -> bool:
        try:
            self._figures.update(await take())
        except OSError as error:
            log_.limited("survey").warning("room on the disk cannot be asked for", error=str(error))
        except Exception:  # noqa: BLE001 - a bug in what is counted must not stop the watch on the disk
            log_.limited("survey-bug", _BUGS_PER_S).exception("figures cannot be taken")
        else:
            return True
        return False

    async def _take_space(self) -> Figures:
        space = await self._engine.disk_space()
        return {"disk_total_bytes": space.total_bytes, "disk_free_bytes": space.usable_bytes}

    async def _take_groups(self) -> Figures:
        states: Counter[str] = Counter(dict.fromkeys(GROUP_STATES, 0))
        behind = [0] * (len(BEHIND) + 1)
        members = unknown = largest = total = 0
        since_turn = 0
        for shard in list(self._engine.groups.shards):
            machine = shard.loaded
            for listing in _listings(machine) if machine is not None else ():
                if shard.loaded is not machine:
                    break  # another broker coordinates these now
                assert machine is not None
                states[listing.state] += 1
                count = _member_count(machine, listing)
                lag, looked_at, missed = self._lag(machine, listing.group_id)
                members, unknown, total = members + count, unknown + missed, total + lag
                largest = max(largest, lag)
                behind[bisect.bisect_right(BEHIND, lag)] += 1
                since_turn += 1 + count + looked_at
                if since_turn >= _AT_ONCE:
                    since_turn = 0
                    await asyncio.sleep(0)
        return {
            "groups": states,
            "group_members": members,
            "group_lag_records": largest,
            "group_lag_total": total,
            "groups_behind": {str(least): sum(behind[at:]) for at, least in enumerate(BEHIND, start=1)},
            "group_lag_unknown": unknown,
        }

    def _lag(self, machine: GroupMachine, group_id: str) -> tuple[int, int, int]:
        """Records a group has not read, how many offsets it has, and of how many it cannot be told."""
        (reply,) = machine.fetch(0, None, FetchRequest(group_id, None)).replies
        lag = unknown = 0
        for (name, index), committed in reply.answer.items():
            end = self._end(name, index)
            if end is None:
                unknown += 1
            else:
                lag += max(0, end - committed.offset)
        return lag, len(reply.answer), unknown

    def _end(self, name: str, index: int) -> int | None:
        try:
            partition = self._engine.topics.partition(name, index)
        except PenstockError:
            return None
        return partition.high_watermark if partition.log is not None else None


def _listings(machine: GroupMachine) -> Iterator[GroupListing]:
    (reply,) = machine.list_groups(0, None, frozenset(), frozenset()).replies
    yield from reply.answer


def _member_count(machine: GroupMachine, listing: GroupListing) -> int:
    if listing.state in (State.EMPTY, State.DEAD):
        return 0
    describe = {CONSUMER: machine.describe_consumer, SHARE: machine.describe_share}.get(
        listing.group_type, machine.describe_classic
    )
    try:
        (reply,) = describe(0, None, listing.group_id).replies
    except PenstockError:
        return 0  # gone since it was listed
    return len(reply.answer.members)
