"""Three brokers in virtual time with a partition of small segments, for tests of what becomes of its replicas."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.simulated_broker import produce
from tests.simulation.cluster import SETTINGS, SimulatedBroker, SimulatedCluster

from penstock.cluster import keys
from penstock.cluster.node import NodeSettings
from penstock.engine.partition import Partition
from penstock.engine.partition_state import PartitionState
from penstock.records.build import build_batch
from penstock.testing.virtual_clock import run_virtual

DIRECTORY = "data/logs/t/0"
SMALL = {"segment.bytes": "1024", "min.insync.replicas": "2"}


class Trial:
    """Three brokers and a partition of some small sealed segments, led by the first."""

    def __init__(self, settings: NodeSettings = SETTINGS) -> None:
        self.cluster = SimulatedCluster(5, settings=settings)
        self.states: list[PartitionState] = []
        self.cluster.etcd.state.on_change = lambda changes: self.states.extend(
            PartitionState.decode(change.value, change.revision)
            for change in changes
            if change.key.startswith(keys.PARTITIONS) and change.value is not None
        )

    async def begin(self) -> None:
        for node_id in self.cluster.ids:
            self.cluster.start(node_id)
        await self.until(lambda: all(map(self.cluster.is_up, self.cluster.ids)))
        await self.until(lambda: len(self.cluster.lives[1].node.image.live()) == 3)
        await self.do(1, lambda broker: broker.engine.create_topic("t", 1, SMALL, assignment=[[1, 2, 3]]))
        await self.until(lambda: self.states and self.states[-1].isr == (1, 2, 3) and self.led() == 1)
        for number in range(12):
            await self.produce(number)
        await self.until(lambda: len({self.partition(node_id).opened().end_offset for node_id in (1, 2, 3)}) == 1)
        self.states.clear()

    async def produce(self, number: int, topic: str = "t") -> None:
        now_ms = self.cluster.clocks[1].now_ms()
        batch = bytearray(build_batch([(None, b"%d" % number + b"." * 300, (), now_ms)]))
        leader = self.led(topic)
        assert leader is not None
        await self.do(leader, lambda broker: produce(broker.engine.topics.partition(topic, 0), batch))

    async def do(self, node_id: int, work: Callable[[SimulatedBroker], Coroutine[Any, Any, Any]]) -> Any:
        return await self.cluster.call(node_id, work, 10.0)

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        deadline = self.cluster.loop.time() + limit_s
        while not condition():
            assert self.cluster.loop.time() < deadline, f"never so; {self.states[-3:]}; {self.cluster.crashes}"
            await asyncio.sleep(0.01)

    def partition(self, node_id: int, topic: str = "t") -> Partition:
        return self.cluster.lives[node_id].engine.topics.partition(topic, 0)

    def knows(self, node_id: int, topic: str) -> bool:
        broker = self.cluster.lives.get(node_id)
        found = broker.engine.topics.get(topic) if broker is not None else None
        return found is not None and bool(found.partitions)

    def led(self, topic: str = "t") -> int | None:
        for node_id in self.cluster.lives:
            if self.knows(node_id, topic) and self.partition(node_id, topic).led is not None:
                return node_id
        return None

    def state(self, topic: str = "t") -> PartitionState:
        """What the store says, as the broker has it that has heard of it last."""
        brokers = [self.cluster.lives[node_id] for node_id in self.cluster.lives if self.knows(node_id, topic)]
        states = [each.node.image.states[each.engine.topics.partition(topic, 0).topic_id][0] for each in brokers]
        return max(states, key=lambda state: state.revision)

    def durable(self, node_id: int, topic: str = "t") -> bytes:
        """All that is on the disk of a replica."""
        disk, log = self.cluster.disks[node_id], self.partition(node_id, topic).opened()
        return b"".join(disk.read_durable(segment.path) for segment in log.segments)

    def sealed(self, node_id: int) -> list[str]:
        return [segment.path for segment in self.partition(node_id).opened().segments if segment.sealed]

    async def until_mended(self, node_id: int) -> None:
        """In sync again, as long as the leader's, and nothing is left of what was damaged."""
        await self.until(lambda: self.states and self.states[-1].isr == (1, 2, 3))
        await self.until(lambda: not [path for path in self.cluster.disks[node_id].files() if "/~" in path])
        leader = self.led()
        assert leader is not None
        log = self.partition(node_id).opened()
        await self.until(lambda: log.visible_end == self.partition(leader).opened().visible_end)
        assert log.log_start == 0
        assert log.damage is None


def play(
    test: Callable[[Trial], Coroutine[Any, Any, None]],
    settings: NodeSettings = SETTINGS,
    make: Callable[[NodeSettings], Trial] = Trial,
) -> None:
    async def begun() -> None:
        made = make(settings)
        await made.begin()
        await test(made)

    try:
        run_virtual(begun, 5)
    finally:
        gc.collect()  # here, where what the tasks of killed brokers say at their end is not heard


def trial(test: Callable[[Trial], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test with a cluster that is up."""

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def run() -> None:
        play(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run
