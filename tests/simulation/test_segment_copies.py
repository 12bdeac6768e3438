"""A broker with an empty disk catches up by copying whole segments, whatever happens to its leader meanwhile."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from penstock.cluster.replication.copying import CopySettings
from penstock.cluster.replication.following import FollowingSettings
from penstock.engine.partition import Partition
from penstock.records.build import build_batch
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.virtual_clock import run_virtual
from tests.simulated_broker import produce
from tests.simulation.cluster import SETTINGS, SimulatedCluster

SEGMENT = 200_000
COPYING = CopySettings(from_bytes=100_000, range_bytes=64 * 1024, pause_s=1.0)
PRODUCER: dict[str, Any] = {"producer_id": 77, "producer_epoch": 0}
DIRECTORY = "data/logs/t/0"


class Trial:
    """Three brokers, of which the third has lost its disk, and a partition with several sealed segments."""

    def __init__(self, seed: int) -> None:
        following = FollowingSettings(max_wait_ms=500, copying=COPYING)
        defaults = {"segment.bytes": str(SEGMENT), "min.insync.replicas": "1"}
        self.cluster = SimulatedCluster(seed, settings=replace(SETTINGS, following=following), defaults=defaults)
        self.random = self.cluster.random
        self.sent: list[bytes] = []
        self.offsets: list[int] = []

    async def begin(self) -> None:
        for node_id in self.cluster.ids:
            self.cluster.start(node_id)
        await self.until(lambda: all(map(self.cluster.is_up, self.cluster.ids)))
        await self.until(lambda: len(self.cluster.lives[1].node.image.live()) == 3)
        await self.do(1, lambda broker: broker.engine.create_topic("t", 1, assignment=[[1, 2, 3]]))
        await self.until(lambda: self.isr() == {1, 2, 3} and self.partition(1).led is not None)
        self.cluster.kill(3)
        self.cluster.disks[3] = FaultyDisk(self.random.getrandbits(32))
        await self.until(lambda: self.isr() == {1, 2})
        while len(self.sealed(1)) < 4:
            await self.produce(1)
        for _ in range(3):
            await self.produce(1)

    async def produce(self, node_id: int) -> None:
        number = len(self.sent)
        value = self.random.randbytes(30_000)
        self.sent.append(self.batch(number, value))
        batch = bytearray(self.sent[-1])
        done = await self.do(node_id, lambda broker: produce(broker.engine.topics.partition("t", 0), batch))
        self.offsets.append(done.base_offset)

    def batch(self, number: int, value: bytes) -> bytes:
        now_ms = self.cluster.clocks[1].now_ms()
        return build_batch([(None, value, (), now_ms)], base_sequence=number, **PRODUCER)

    async def do(self, node_id: int, work: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        return await self.cluster.call(node_id, work, 10.0)

    async def until(self, condition: Callable[..., object], limit_s: float = 60.0) -> None:
        deadline = self.cluster.loop.time() + limit_s
        while not condition():
            assert self.cluster.loop.time() < deadline, f"never so; crashes: {self.cluster.crashes}"
            await asyncio.sleep(0.001)

    def partition(self, node_id: int) -> Partition:
        return self.cluster.lives[node_id].engine.topics.partition("t", 0)

    def isr(self) -> set[int]:
        for node_id in self.cluster.ids:
            if self.cluster.is_up(node_id):
                topic = self.cluster.lives[node_id].engine.topics.get("t")
                if topic is not None and topic.partitions and topic.partitions[0].led is not None:
                    return set(topic.partitions[0].state.isr)
        return set()

    def sealed(self, node_id: int) -> list[int]:
        log = self.partition(node_id).log
        return [] if log is None else [segment.base for segment in log.segments[:-1] if segment.sealed]

    def copies(self) -> int:
        """How many segments broker 3 has copied, of any leader it has now."""
        return sum(following.copied_segments for _, following, _ in self.cluster.lives[3].node._followings.values())

    def is_copying(self) -> bool:
        """Whether broker 3 is in the middle of a segment that is not its first."""
        disk = self.cluster.disks[3]
        names = [name for name in disk.list_dir(DIRECTORY) if name.endswith(".copying")]
        return self.copies() >= 1 and any(disk.open(f"{DIRECTORY}/{name}").size() for name in names)

    def segment_files(self, node_id: int) -> dict[str, bytes]:
        disk = self.cluster.disks[node_id]
        names = [name for name in disk.list_dir(DIRECTORY) if name.endswith(".log")]
        files = {name: disk.open(f"{DIRECTORY}/{name}") for name in names}
        return {name: file.read_at(file.size(), 0) for name, file in files.items()}

    async def check(self, *node_ids: int) -> None:
        """The logs of these are the same, byte for byte, and hold what was acknowledged, once each."""
        first = self.partition(node_ids[0])
        for node_id in node_ids:
            await self.until(lambda of=node_id: self.partition(of).opened().visible_end == first.opened().visible_end)
        files = {node_id: self.segment_files(node_id) for node_id in node_ids}
        joined = b"".join(files[node_ids[0]].values())
        for node_id in node_ids:
            assert b"".join(files[node_id].values()) == joined, f"broker {node_id} has another log"
            assert not [name for name in self.cluster.disks[node_id].list_dir(DIRECTORY) if ".cop" in name]
        assert self.offsets == list(range(len(self.sent)))
        assert not self.cluster.crashes
        assert not self.cluster.loop.failures


def trial(function: Callable[[Trial], Coroutine[Any, Any, None]]) -> Callable[[int], None]:
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the tasks of killed brokers
    @pytest.mark.parametrize("seed", range(3))
    def test(seed: int) -> None:
        async def play() -> None:
            it = Trial(seed)
            await it.begin()
            await function(it)

        try:
            run_virtual(play, seed)
        finally:
            gc.collect()

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


@trial
async def test_an_empty_disk_is_filled_by_copies(it: Trial) -> None:
    it.cluster.start(3)
    await it.until(lambda: it.isr() == {1, 2, 3})
    assert it.copies() == len(it.sealed(1)) >= 4
    assert it.segment_files(3).keys() == it.segment_files(1).keys()
    assert (
        it.cluster.lives[3].stats.copied_bytes
        < sum(map(len, it.segment_files(1).values())) + len(it.sealed(1)) * SEGMENT
    )
    await it.check(1, 2, 3)


@trial
async def test_a_copy_leads_and_knows_what_it_is_sent_again(it: Trial) -> None:
    it.cluster.start(3)
    await it.until(lambda: it.isr() == {1, 2, 3})
    assert it.copies() == len(it.sealed(1)) >= 4
    for node_id in (1, 2):
        it.cluster.kill(node_id)
    await it.until(lambda: it.isr() == {3})
    last = len(it.sent) - 1
    for number in (last - 1, last):  # it has neither by a fetch alone: their producer began in what was copied
        again = bytearray(it.sent[number])
        done = await it.do(3, lambda broker, batch=again: produce(broker.engine.topics.partition("t", 0), batch))
        assert done.base_offset == it.offsets[number]
    await it.produce(3)
    for node_id in (1, 2):
        it.cluster.start(node_id)
    await it.until(lambda: it.isr() == {1, 2, 3})
    await it.check(3, 1, 2)


@trial
async def test_the_leader_dies_in_the_middle_of_a_copy(it: Trial) -> None:
    it.cluster.start(3)
    await it.until(lambda: it.cluster.is_up(3) and it.is_copying())
    it.cluster.kill(1, power_cut=True)
    await it.until(lambda: it.isr() == {2, 3})
    assert it.copies() >= 2, "the rest did not come by copies"
    await it.produce(2)
    it.cluster.start(1)
    await it.until(lambda: it.isr() == {1, 2, 3})
    await it.check(2, 1, 3)


@trial
async def test_another_leads_in_the_middle_of_a_copy(it: Trial) -> None:
    it.cluster.start(3)
    await it.until(lambda: it.cluster.is_up(3) and it.is_copying())
    epoch = it.partition(3).leader_epoch
    await it.cluster.stop(1)
    await it.until(lambda: it.isr() == {2, 3})
    assert it.partition(3).leader_epoch > epoch
    assert it.copies() >= 2, "the rest did not come by copies"
    await it.produce(2)
    await it.check(2, 3)


@trial
async def test_the_follower_loses_power_in_the_middle_of_a_copy(it: Trial) -> None:
    for _ in range(3):
        it.cluster.start(3)
        await it.until(lambda: it.cluster.is_up(3) and it.is_copying())
        it.cluster.kill(3, power_cut=True)
    it.cluster.start(3)
    await it.until(lambda: it.isr() == {1, 2, 3})
    await it.check(1, 2, 3)


@trial
async def test_a_clean_stop_in_the_middle_of_a_copy(it: Trial) -> None:
    it.cluster.start(3)
    await it.until(lambda: it.cluster.is_up(3) and it.is_copying())
    await it.cluster.stop(3)
    it.cluster.start(3)
    await it.until(lambda: it.isr() == {1, 2, 3})
    await it.check(1, 2, 3)
