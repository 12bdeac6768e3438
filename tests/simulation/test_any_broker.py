"""Readers and publishers on brokers that do not lead, while connections are cut, leaders die, and come back.

Whatever happens, a reader gets every committed record once, in order, and nothing else; what was acknowledged to a
publisher of single messages is there once, at the offset that was told.
"""

import asyncio
import gc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from penstock.engine import elsewhere, tails
from penstock.engine.elsewhere import Taken, WantedRecords
from penstock.engine.feed import FIRST, Feed
from penstock.engine.gathering import Message
from penstock.engine.looking import Found, look
from penstock.engine.partition import Partition
from penstock.engine.publishing import ALL
from penstock.engine.reading import Cursor, find_ends
from penstock.engine.reading import Message as Record
from penstock.errors import Code, PenstockError
from tests.simulated_broker import read_all
from tests.simulation.cluster import host_of
from tests.simulation.test_forwarding import DOOR, PARTITIONS, Trial, trial

Offset = int
_SEEDS_FOR_A_BUG = 8


class Reader:
    """One that reads a partition on one broker; what it got must go on where it was."""

    def __init__(self, it: "Reach", node_id: int, index: int) -> None:
        self.it = it
        self.node_id = node_id
        self.index = index
        self.got: list[tuple[Offset, bytes | None]] = []
        self.errors: list[PenstockError] = []

    @property
    def partition(self) -> Partition:
        return self.it.partition(self.node_id, self.index)

    def take(self, record: Record) -> None:
        self.got.append((record.offset, record.value))

    async def until_got(self, count: int) -> None:
        """So many records, or an error, or nothing of the kind for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(90):
                while len(self.got) < count and not self.errors:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)

    async def by_cursor(self) -> None:
        cursor = Cursor(self.partition, 0, patience_s=60)
        while True:
            try:
                for record in await cursor.records(2000, self.it.random.choice((0.01, 1, 30))):
                    self.take(record)
            except PenstockError as error:
                self.errors.append(error)
                return
            await asyncio.sleep(0.001)

    async def by_feed(self) -> None:
        it = self.it
        fed = Feed(
            it.cluster.lives[self.node_id].engine.tails,
            self.partition,
            FIRST,
            is_writable=lambda: it.random.random() < 0.9,
            take=self.take,
            failed=self.errors.append,
        )
        while True:
            fed.go_on()
            await asyncio.sleep(it.random.choice((0.001, 0.1)))


class Reach(Trial):
    """The same world, with readers and publishers of single messages."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.readers: list[Reader] = []
        self.numbers = 0
        self.untold = 0

    def read(self, *node_ids: int) -> None:
        for node_id in node_ids:
            for index in range(PARTITIONS):
                for way in (Reader.by_cursor, Reader.by_feed, Reader.by_feed):
                    reader = Reader(self, node_id, index)
                    self.readers.append(reader)
                    self.cluster.processes[node_id].create_task(way(reader))

    def put(self, node_id: int, index: int) -> None:
        value = b"%d" % self.numbers
        self.numbers += 1
        self.untold += 1

        def told(offset: int, error: PenstockError | None) -> None:
            self.untold -= 1
            if error is None:
                self.acked[index, value] = offset
            elif error.code is Code.OUTCOME_UNKNOWN:
                self.unknown.add((index, value))
            else:
                self.refused[index, value] = error.code

        engine = self.cluster.lives[node_id].engine
        engine.gatherer.put(self.partition(node_id, index), Message(None, value), ALL, told, 30)

    async def put_until(self, node_id: int, is_over: Callable[[], object]) -> None:
        async def go_on() -> None:
            while not is_over():
                for _ in range(self.random.randrange(1, 20)):
                    self.put(node_id, self.random.randrange(PARTITIONS))
                await asyncio.sleep(self.random.choice((0, 0.001, 0.3)))

        await self.cluster.processes[node_id].create_task(go_on())
        await self.until(lambda: self.untold == 0)

    def on_give(self, node_id: int, before: Callable[[], object], after: Callable[[], object]) -> None:
        """Have something happen when a broker is asked for records, and when it is about to answer with some."""
        at = self.cluster.lives[node_id].engine.elsewhere
        give = at.give

        async def given(wanted: WantedRecords) -> Taken:
            before()
            taken = await give(wanted)
            if taken.found.data is not None:
                after()
            return taken

        at.give = given  # type: ignore[method-assign]

    def maybe_cut(self, node_id: int, probability: float) -> None:
        if self.random.random() < probability:
            self.cut(node_id)

    async def check(self) -> None:
        await super().check()
        for index in range(PARTITIONS):
            leader = self.partition(self.leader(index), index)
            log = [record for batch in await read_all(leader) for record in batch.records]
            for reader in self.readers:
                if reader.index == index and reader.node_id in self.cluster.lives:
                    await reader.until_got(len(log))
                    assert not reader.errors, f"reader on broker {reader.node_id}: {reader.errors}"
                    assert reader.got == log, f"reader on broker {reader.node_id} of partition {index}"


def reach(test: Callable[[Reach], Any]) -> Callable[[int], None]:
    return trial(test, Reach)


@reach
async def test_cuts_while_others_are_read_from(it: Reach) -> None:
    it.read(DOOR, 2)
    for node_id in (1, 2, 3):
        it.on_give(node_id, partial(it.maybe_cut, node_id, 0.1), partial(it.maybe_cut, node_id, 0.3))
    await it.put_until(DOOR, lambda: it.cuts >= 60)
    assert not it.unknown and not it.refused
    assert len(it.acked) > 60
    await it.check()


@reach
async def test_the_leader_dies_and_comes_back(it: Reach) -> None:
    """While its partition is read and written elsewhere; then it leads again."""
    it.read(DOOR, 2, 3)
    started = len(it.acked)
    over: list[bool] = []

    async def disturb() -> None:
        await it.until(lambda: len(it.acked) > started + 50)
        it.cluster.kill(1)
        await it.until(lambda: it.leader(0) in (2, 3))
        before = len(it.acked)
        await it.until(lambda: len(it.acked) > before + 50)
        it.cluster.start(1)
        await it.until(lambda: it.leader(0) == 1, 120)
        before = len(it.acked)
        await it.until(lambda: len(it.acked) > before + 50)
        over.append(True)

    disturbing = asyncio.ensure_future(disturb())
    await it.put_until(DOOR, lambda: over or disturbing.done())
    await disturbing
    assert not it.unknown and not it.refused
    await it.check()


@reach
async def test_a_leader_that_is_cut_off_gives_nothing_that_is_not_committed(it: Reach) -> None:
    """It goes on to take records that are lost with it; who reads from it, or later from another, never sees them."""
    it.read(DOOR)
    await it.put_until(DOOR, lambda: len(it.acked) > 20)
    network, old = it.cluster.network, it.partition(1, 0)
    for node_id in (2, 3):
        network.block(host_of(1), host_of(node_id))
        network.block(host_of(node_id), host_of(1))
    it.put(1, 0)
    await it.until(lambda: old.opened().end_offset > old.high_watermark)
    await asyncio.sleep(1)
    it.cluster.kill(1)
    it.untold = 0
    await it.until(lambda: it.leader(0) in (2, 3))
    before = len(it.acked)
    await it.put_until(DOOR, lambda: len(it.acked) > before + 20)
    await it.check()


@reach
async def test_ends_are_those_of_the_leader(it: Reach) -> None:
    await it.put_until(DOOR, lambda: len(it.acked) > 20)

    async def ends() -> list[int]:
        found = [await find_ends(it.partition(DOOR, index), 0) for index in range(PARTITIONS)]
        assert all(each.log_start == 0 and each.stable_offset == each.high_watermark for each in found)
        assert all(each.at_time is not None and each.at_time.offset == 0 for each in found)
        return [each.high_watermark for each in found]

    before = await it.cluster.processes[DOOR].create_task(ends())
    assert before == [it.partition(it.leader(index), index).high_watermark for index in range(PARTITIONS)]
    it.cluster.kill(1)
    after = await it.cluster.processes[DOOR].create_task(ends())
    assert after == before, "less than was told before would be taken for the end"


# --- bugs that these tests must find


def plant_a_jump_to_the_end(patch: pytest.MonkeyPatch) -> None:
    """A tail goes on at the end of what a new leader knows, and not at its own place."""
    failed = elsewhere.Search.failed

    async def jumping(self: elsewhere.Search, error: PenstockError) -> None:
        await failed(self, error)
        ends = await find_ends(self._partition)
        for tail in list(tails_of.values()):
            if tail._partition is self._partition:
                tail._cursor.offset = ends.stable_offset

    tails_of: dict[int, tails.Tail] = {}
    join = tails.Tail.join

    def joining(self: tails.Tail, *arguments: Any, **options: Any) -> int:
        tails_of[id(self)] = self
        return join(self, *arguments, **options)

    patch.setattr(elsewhere.Search, "failed", jumping)
    patch.setattr(tails.Tail, "join", joining)


def plant_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    """A leader gives others everything it has."""
    patch.setattr(
        elsewhere,
        "look_until",
        lambda partition, offset, size, *, committed: _everything(partition, offset, size),
    )


async def _everything(partition: Partition, offset: int, size: int) -> Found:
    return look(partition, offset, size, committed=False, at_least_one=True, as_replica=True, warmed=True)


def plant_a_cursor_that_forgets(patch: pytest.MonkeyPatch) -> None:
    """After a question that nobody answered it begins again with the last record it has."""
    ask = Cursor._ask

    async def forgetful(self: Cursor, *arguments: Any) -> Found:
        try:
            return await ask(self, *arguments)
        except PenstockError:
            self.offset = max(self.offset - 1, 0)
            raise

    patch.setattr(Cursor, "_ask", forgetful)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (plant_a_jump_to_the_end, test_the_leader_dies_and_comes_back),
        (plant_a_cursor_that_forgets, test_cuts_while_others_are_read_from),
        (plant_what_is_not_committed, test_a_leader_that_is_cut_off_gives_nothing_that_is_not_committed),
    ],
)
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], test: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of the first few seeds: which one it is changes with every change of the order of things."""
    plant(monkeypatch)
    found = []
    for seed in range(_SEEDS_FOR_A_BUG):
        try:
            test(seed)
        except AssertionError as error:
            found.append(str(error))
            break
    gc.collect()  # the world that the error kept
    assert found and "reader on broker" in found[0]
