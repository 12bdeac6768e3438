"""Group commit: one round for many logs, nothing visible before it, and a failed sync is the end."""

import asyncio
import errno

import pytest
from tests.simulated_broker import Broker, append, batch_of, until_visible, virtual, wait_for
from tests.simulated_log import open_log

from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock


@virtual
async def test_a_hundred_partitions_share_their_rounds() -> None:
    disk = FaultyDisk(1)
    broker = Broker(disk, MemoryStore(), VirtualClock(), upkeep_ms=10**6)
    await broker.start()
    topic = await broker.engine.create_topic("t", 100)
    before = disk.counts["sync_files"]
    last = [append(partition, batch_of([b"x"], broker.clock)) for partition in topic.partitions]
    assert all(partition.high_watermark == 0 for partition in topic.partitions)
    for partition, done in zip(topic.partitions, last, strict=True):
        await until_visible(partition, done.last_offset)
    assert disk.counts["sync_files"] - before <= 2
    assert broker.stats.sync_files >= 100
    assert all(disk.read_durable(partition.opened().active.path) for partition in topic.partitions)


@virtual
async def test_a_round_covers_what_came_before_it_and_no_more() -> None:
    bench = await open_log(FaultyDisk(5))
    for _ in range(50):
        bench.append([b"a" * 50])
        before = bench.log.end_offset
        work = asyncio.create_task(bench.commit())
        await asyncio.sleep(0.0005)
        bench.append([b"b" * 50])
        await work
        assert bench.log.durable_end >= before
        position = bench.log.durable_position
        durable = bench.disk.read_durable(bench.log.active.path)
        assert len(durable) >= position
        file = bench.disk.open(bench.log.active.path)
        assert durable[:position] == file.read_at(position, 0)


@virtual
async def test_a_failed_sync_answers_nobody_and_stops_the_broker() -> None:
    bench = await open_log(FaultyDisk(1))
    await bench.write(b"a")
    seen = []
    bench.log.on_visible = lambda: seen.append(bench.log.visible_end)
    bench.disk.fail("sync_files", errno.EIO)
    bench.append([b"b"])
    await wait_for(lambda: bench.failures)
    assert [error.errno for error in bench.failures if isinstance(error, OSError)] == [errno.EIO]
    rounds = bench.disk.counts["sync_files"]
    with pytest.raises(OSError, match="Input/output"):
        await bench.commit()
    bench.append([b"c"])
    await asyncio.sleep(10)
    assert bench.disk.counts["sync_files"] == rounds, "a sync that failed must not be tried again"
    assert bench.log.visible_end == 1
    assert seen == []


@virtual
async def test_a_failed_sync_fails_everyone_who_waits() -> None:
    bench = await open_log(FaultyDisk(1))
    bench.disk.fail("sync_files", errno.EIO)
    bench.append([b"b"])
    waiting = [asyncio.create_task(bench.commit()) for _ in range(3)]
    await asyncio.sleep(0.0001)
    waiting += [asyncio.create_task(bench.commit()) for _ in range(3)]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, OSError) for result in results)
    assert len(bench.failures) == 1
