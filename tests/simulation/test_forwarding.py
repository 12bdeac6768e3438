"""A broker that leads nothing publishes, while connections are cut, held up, and leaders die: nothing is there twice.

What was acknowledged is there once, at the offset that was told; what was refused is not there; what is unknown may be.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from penstock.engine.forwarding import Outcome
from penstock.engine.partition import Partition
from penstock.engine.publishing import ALL, LEADER, Durability
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch
from penstock.testing.virtual_clock import run_virtual
from tests.simulated_broker import read_all
from tests.simulation.cluster import SimulatedBroker, SimulatedCluster, host_of

DOOR = 4
CUTS = 100
PARTITIONS = 2
Value = bytes


T = TypeVar("T", bound="Trial")


class Trial:
    """Three brokers that lead and follow, and a fourth that has no replica of anything."""

    def __init__(self, seed: int) -> None:
        self.cluster = SimulatedCluster(seed, brokers=4, defaults={"min.insync.replicas": "2"})
        self.random = self.cluster.random
        self.acked: dict[tuple[int, Value], int] = {}
        self.unknown: set[tuple[int, Value]] = set()
        self.refused: dict[tuple[int, Value], Code] = {}
        self.cuts = 0

    async def begin(self) -> None:
        for node_id in self.cluster.ids:
            self.cluster.start(node_id)
        await self.until(lambda: all(map(self.cluster.is_up, self.cluster.ids)))
        await self.until(lambda: len(self.cluster.lives[1].node.image.live()) == 4)

        async def create(broker: SimulatedBroker) -> object:
            return await broker.engine.create_topic("t", PARTITIONS, assignment=[[1, 2, 3], [2, 3, 1]])

        await self.cluster.call(1, create, 10.0)
        await self.until(lambda: all(self.leader(index) for index in range(PARTITIONS)))
        await self.until(lambda: all(self.partition(DOOR, at).state.leader > 0 for at in range(PARTITIONS)))

    def partition(self, node_id: int, index: int) -> Partition:
        return self.cluster.lives[node_id].engine.topics.partition("t", index)

    def leader(self, index: int) -> int:
        """0 if nobody leads."""
        for node_id, broker in self.cluster.lives.items():
            topic = broker.engine.topics.get("t")
            if topic is not None and len(topic.partitions) > index and topic.partitions[index].led is not None:
                return node_id
        return 0

    async def until(self, condition: Callable[..., object], limit_s: float = 60.0) -> None:
        deadline = self.cluster.loop.time() + limit_s
        while not condition():
            assert self.cluster.loop.time() < deadline, f"never so; crashes: {self.cluster.crashes}"
            await asyncio.sleep(0.001)

    # --- publishing

    async def publish(self, index: int, value: Value, durability: Durability, timeout_s: float) -> None:
        """By the fourth broker, and note what came of it."""
        key = index, value
        batch = build_batch([(None, value, (), self.cluster.clocks[DOOR].now_ms())])
        broker = self.cluster.lives[DOOR]
        work = broker.engine.forwarding.publish(
            broker.engine.topics.partition("t", index), batch, durability, timeout_s
        )
        try:
            self.acked[key] = (await self.cluster.processes[DOOR].create_task(work)).base_offset
        except PenstockError as error:
            if error.code is Code.OUTCOME_UNKNOWN:
                self.unknown.add(key)
            else:
                self.refused[key] = error.code

    async def publish_until(
        self, is_over: Callable[[], bool], durability: Durability = ALL, timeout_s: Callable[[], float] = lambda: 20.0
    ) -> None:
        """Some publishers for each partition, each of which waits for an answer before it goes on."""

        async def go_on(index: int, name: int) -> None:
            number = 0
            while not is_over():
                await self.publish(index, b"%d-%d" % (name, number), durability, timeout_s())
                number += 1

        await asyncio.gather(*(go_on(name % PARTITIONS, name) for name in range(6)))

    def on_publish(self, node_id: int, before: Callable[..., object], after: Callable[..., object]) -> None:
        """Have something happen on a broker when a batch has arrived, and when the answer is about to leave."""
        forwarding = self.cluster.lives[node_id].engine.forwarding
        take = forwarding.take

        async def taken(*arguments: Any) -> Outcome:
            before()
            outcome = await take(*arguments)
            if outcome.appended is not None:
                after()
            return outcome

        forwarding.take = taken  # type: ignore[method-assign, assignment]

    def cut(self, node_id: int) -> None:
        """End every connection between the fourth broker and this one."""
        hosts = {host_of(DOOR), host_of(node_id)}
        for connection in list(self.cluster.network._connections):
            if {end.host for end in connection.ends} == hosts:
                self.cuts += 1
                for end in connection.ends:
                    end.reset()

    # --- judging

    async def check(self) -> None:
        assert not self.cluster.crashes
        assert not self.cluster.loop.failures
        found: dict[tuple[int, Value], int] = {}
        for index in range(PARTITIONS):
            await self.until(lambda at=index: self.leader(at) and self.partition(self.leader(at), at).is_settled)
            stored = await read_all(self.partition(self.leader(index), index))
            records = [record for batch in stored for record in batch.records]
            twice = [value for value, count in Counter(value for _, value in records).items() if count > 1]
            assert not twice, f"doubled in partition {index}: {twice}"
            found |= {(index, value): offset for offset, value in records}
        lost = {key: offset for key, offset in self.acked.items() if found.get(key) != offset}
        assert not lost, f"acknowledged at these offsets, and not there: {lost}"
        assert not found.keys() & self.refused.keys(), "refused, and there all the same"
        assert found.keys() <= self.acked.keys() | self.unknown


def trial(test: Callable[[T], Coroutine[Any, Any, None]], make: type[T] = Trial) -> Callable[[int], None]:  # type: ignore[assignment]
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the tasks of killed brokers
    @pytest.mark.parametrize("seed", range(3))
    def run(seed: int) -> None:
        async def play() -> None:
            it = make(seed)
            await it.begin()
            await test(it)

        try:
            run_virtual(play, seed)
        finally:
            gc.collect()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@trial
async def test_cuts_between_the_append_and_its_answer(it: Trial) -> None:
    """With time enough, every outcome gets known."""
    for node_id in (1, 2, 3):
        it.on_publish(
            node_id,
            lambda at=node_id: it.random.random() < 0.1 and it.cut(at),
            lambda at=node_id: it.random.random() < 0.6 and it.cut(at),
        )
    await it.publish_until(lambda: it.cuts >= CUTS)
    assert len(it.acked) > CUTS / 5
    assert not it.unknown and not it.refused
    await it.check()


@trial
async def test_cuts_and_delays_with_little_time(it: Trial) -> None:
    """What came too late is unknown, and no later batch is taken for it, nor it for a later one."""
    network = it.cluster.network

    def hold(node_id: int) -> None:
        ways = [(host_of(DOOR), host_of(node_id)), (host_of(node_id), host_of(DOOR))]
        way = ways[it.random.random() < 0.5]
        network.block(*way)
        it.cluster.loop.call_later(it.random.random(), network.unblock, *way)

    def disturb(node_id: int) -> None:
        kind = it.random.random()
        if kind < 0.2:
            it.cut(node_id)
        elif kind < 0.3:
            hold(node_id)

    for node_id in (1, 2, 3):
        it.on_publish(node_id, lambda at=node_id: disturb(at), lambda at=node_id: disturb(at))
    await it.publish_until(lambda: it.cuts >= CUTS, timeout_s=lambda: it.random.choice((0.02, 0.1, 0.3)))
    assert it.unknown and it.acked
    for node_id in (1, 2, 3):
        for way in ((host_of(DOOR), host_of(node_id)), (host_of(node_id), host_of(DOOR))):
            network.unblock(*way)
    await asyncio.sleep(30)  # what was held up arrives
    await it.check()


@trial
async def test_the_leader_dies_between_the_append_and_its_answer(it: Trial) -> None:
    """It is the next leader that answers, out of what it has copied, or else takes the batch."""
    killed: list[int] = []

    def kill(node_id: int) -> None:
        if not killed and it.acked:
            killed.append(node_id)
            it.cluster.loop.call_soon(it.cluster.kill, node_id)

    it.on_publish(1, lambda: it.random.random() < 0.5 and kill(1), lambda: kill(1))
    await it.publish_until(lambda: bool(killed) and it.leader(0) in (2, 3) and len(it.acked) > 100)
    assert not it.unknown and not it.refused
    await it.check()


@trial
async def test_a_batch_that_is_held_up_comes_after_later_ones_and_once(it: Trial) -> None:
    door, leader = host_of(DOOR), it.leader(0)
    await it.publish(0, b"first", ALL, 5)
    it.cluster.network.block(door, host_of(leader))
    await it.publish(0, b"late", ALL, 0.5)
    assert it.unknown == {(0, b"late")}
    it.cluster.network.unblock(door, host_of(leader))
    await it.publish(0, b"next", ALL, 5)
    await it.publish(0, b"more", ALL, 5)
    await it.check()
    assert it.acked.keys() == {(0, b"first"), (0, b"next"), (0, b"more")}
    assert it.partition(leader, 0).end_offset == 4, "it did not come at all, so nothing was tried here"


@trial
async def test_records_that_were_not_wanted_safe_leave_a_gap_and_it_goes_on(it: Trial) -> None:
    """What only the dead leader had is lost, as was agreed, and the next batch is not refused for it."""
    old = it.partition(1, 0)
    await it.publish(0, b"first", ALL, 5)
    for node_id in (2, 3):
        it.cluster.network.block(host_of(1), host_of(node_id))
    await it.publish(0, b"lost", LEADER, 5)
    assert old.opened().end_offset == 2
    it.cluster.kill(1)
    await it.until(lambda: it.leader(0) in (2, 3))
    lost = it.acked.pop((0, b"lost"))
    await it.publish(0, b"next", ALL, 30)
    assert it.acked[0, b"next"] == lost
    assert not it.unknown and not it.refused
    await it.check()
