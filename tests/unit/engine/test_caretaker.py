"""Who looks after the logs: sealing soon after a roll, retention in rounds, by a clock that cannot jump."""

import asyncio

from tests.simulated_broker import Broker, append, batch_of, running, virtual, wait_for

from penstock.engine.caretaker import Caretaker
from penstock.storage.log.log import Log
from penstock.storage.log.upkeep import Upkeep
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock

HOUR_MS = 3600 * 1000


def broker_with(settings: dict[str, str], upkeep_ms: int = 1000) -> Broker:
    return Broker(FaultyDisk(4), MemoryStore(), VirtualClock(), defaults=settings, upkeep_ms=upkeep_ms)


@virtual
async def test_a_rolled_segment_is_sealed_without_waiting_for_the_round() -> None:
    async with running(broker_with({"segment.bytes": "1024"}, upkeep_ms=10**9)) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        await asyncio.sleep(1)
        append(partition, batch_of([b"." * 1100], broker.clock))
        await wait_for(lambda: partition.opened().segments[0].sealed, 5)


@virtual
async def test_a_log_that_is_wanted_does_not_wait_for_the_rest_of_a_round() -> None:
    async with running(broker_with({}, upkeep_ms=10**9)) as broker:
        partitions = (await broker.engine.create_topic("t", partitions=20)).partitions
        logs = [partition.opened() for partition in partitions]
        tended: list[str] = []

        class Slow(Upkeep):
            def is_due(self, log: Log, now_ms: int) -> bool:
                return log is not logs[-1]

            async def tend(self, log: Log, now_ms: int, settled: int) -> None:
                await asyncio.sleep(10)
                tended.append(log.directory)
                if len(tended) == 1:
                    caretaker.call(logs[-1])

        upkeep = Slow(broker.engine.replicas._shelf)
        caretaker = Caretaker(upkeep, broker.clock, lambda: [(log, 0) for log in logs], every_ms=10**9)
        work = asyncio.create_task(caretaker.run())
        await asyncio.sleep(1000)
        work.cancel()
        assert len(tended) == 20
        assert tended[1] == logs[-1].directory


@virtual
async def test_records_expire_in_due_time() -> None:
    async with running(broker_with({"segment.bytes": "1024", "retention.ms": str(HOUR_MS)})) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        for _ in range(5):
            append(partition, batch_of([b"." * 1100], broker.clock))
            await asyncio.sleep(0.1)
        await asyncio.sleep(HOUR_MS / 1000 - 60)
        assert partition.opened().log_start == 0
        await wait_for(lambda: partition.opened().log_start == 5, 120)


@virtual
async def test_a_wall_clock_that_jumps_makes_no_record_old() -> None:
    for jump_ms in (10**12, -(10**12), 30 * HOUR_MS, -30 * HOUR_MS):
        settings = {
            "segment.bytes": "1024",
            "retention.ms": str(HOUR_MS),
            "message.timestamp.type": "LogAppendTime",
        }
        async with running(broker_with(settings)) as broker:
            partition = (await broker.engine.create_topic("t")).partitions[0]
            for before in (True, False):
                for _ in range(5):
                    append(partition, batch_of([b"." * 1100], broker.clock))
                    await asyncio.sleep(0.1)
                if before:
                    broker.clock.jump_ms(jump_ms)
            await asyncio.sleep(600)
            assert partition.opened().log_start == 0, f"a jump of {jump_ms} ms made records old"
            assert partition.high_watermark == 10


@virtual
async def test_ten_quiet_topics_cost_no_disk_work() -> None:
    broker = broker_with({})
    async with running(broker):
        for number in range(10):
            await broker.engine.create_topic(f"t{number}")
        await asyncio.sleep(10)
        before = dict(broker.disk.counts)  # type: ignore[attr-defined]
        await asyncio.sleep(3600)
        assert dict(broker.disk.counts) == before  # type: ignore[attr-defined]


@virtual
async def test_stopping_ends_upkeep_wherever_it_is() -> None:
    for seed in range(30):
        broker = Broker(
            FaultyDisk(seed), MemoryStore(), VirtualClock(), defaults={"segment.bytes": "1024"}, upkeep_ms=1
        )
        await broker.start()
        partition = (await broker.engine.create_topic("t")).partitions[0]
        append(partition, batch_of([b"." * 1100], broker.clock))
        await asyncio.sleep(seed / 3000)
        async with asyncio.timeout(10):
            await broker.stop()
        assert broker.failures == []
