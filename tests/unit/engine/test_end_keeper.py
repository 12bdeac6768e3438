"""An old copy of a log is known by what is kept of its end; nothing else is ever taken for one."""

import asyncio
import errno

import pytest
from tests.simulated_broker import Broker, append, batch_of, produce, read_all, running, virtual, wait_for

from penstock.errors import Code, PenstockError
from penstock.storage.kept_ends import FILE_NAME, load_ends
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock

BEHIND_S = 10.0
PATH = f"data/meta/{FILE_NAME}"


class Machine:
    """A device, a metadata store and a clock, on which one broker lives after the other."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = FaultyDisk(seed)
        self.store = MemoryStore()
        self.clock = VirtualClock()
        self.lives = 1000 * seed

    def broker(self, **options: object) -> Broker:
        self.lives += 1
        return Broker(self.disk, self.store, self.clock, seed=self.lives, **options)  # type: ignore[arg-type]

    async def started(self, **options: object) -> Broker:
        broker = self.broker(**options)
        await broker.start()
        return broker

    def files(self, path: str) -> dict[str, bytes]:
        found = {}
        for name in self.disk.list_dir(path):
            file = self.disk.open(f"{path}/{name}")
            found[name] = file.read_at(file.size(), 0)
        return found

    def kept(self, broker: Broker, topic: str = "t") -> list[int]:
        found = broker.engine.topics.get(topic)
        assert found is not None
        return load_ends(self.disk, "data/meta").get(found.topic_id, [])


async def write(broker: Broker, count: int, topic: str = "t", index: int = 0) -> None:
    for number in range(count):
        await produce(broker.partition(topic, index), batch_of([b"%d" % number + b"." * 100], broker.clock))


async def end_of(broker: Broker, topic: str = "t", index: int = 0) -> int:
    batches = await read_all(broker.partition(topic, index))
    return batches[-1].header.last_offset + 1 if batches else 0


def refused(broker: Broker, topic: str = "t", index: int = 0) -> PenstockError:
    with pytest.raises(PenstockError) as refusal:
        broker.partition(topic, index).opened()
    assert refusal.value.code is Code.CORRUPT_LOG
    return refusal.value


async def with_an_old_copy_put_back(machine: Machine) -> None:
    """Topic `t` with two partitions of ten records; the directory of the first is that of when it had four."""
    broker = await machine.started()
    await broker.engine.create_topic("t", 2)
    await write(broker, 4)
    old = machine.disk.backup()
    await write(broker, 6)
    await write(broker, 10, index=1)
    await asyncio.sleep(BEHIND_S)
    assert machine.kept(broker) == [10, 10]
    machine.disk = machine.disk.abandon()
    machine.disk.restore("data/logs/t/0", old)


@virtual
async def test_an_old_copy_stays_offline_and_others_serve() -> None:
    machine = Machine()
    await with_an_old_copy_put_back(machine)
    for _ in range(3):  # whether it was killed or stopped in between
        files = machine.files("data/logs/t/0")
        async with running(machine.broker()) as broker:
            error = refused(broker)
            assert "up to offset 4 only, but 10 were durable" in str(error)
            assert "old copy" in error.help and "penstock log accept" in error.help
            assert await end_of(broker, index=1) >= 10
            await write(broker, 1, index=1)
            await asyncio.sleep(2 * BEHIND_S)
            assert machine.kept(broker)[0] == 10
        assert machine.files("data/logs/t/0") == files


@virtual
async def test_the_newest_put_back_serves_again() -> None:
    machine = Machine()
    broker = await machine.started()
    await broker.engine.create_topic("t")
    await write(broker, 4)
    old = machine.disk.backup()
    await write(broker, 6)
    await broker.stop()
    newest = machine.disk.backup()
    machine.disk.restore("data/logs/t/0", old)
    async with running(machine.broker()) as broker:
        refused(broker)
    machine.disk.restore("data/logs/t/0", newest)
    async with running(machine.broker()) as broker:
        assert await end_of(broker) == 10


@virtual
async def test_what_is_kept_is_a_few_seconds_behind_at_most() -> None:
    machine = Machine()
    broker = await machine.started()
    await broker.engine.create_topic("t")
    written: list[tuple[float, int]] = []
    for number in range(100):
        await write(broker, 1)
        written.append((machine.clock.monotonic(), number + 1))
        await asyncio.sleep(0.7)
        due = [end for at, end in written if machine.clock.monotonic() - at >= BEHIND_S]
        assert not due or machine.kept(broker)[0] >= due[-1]
    await broker.stop()


@virtual
async def test_a_roll_is_kept_soon() -> None:
    machine = Machine()
    broker = await machine.started(defaults={"segment.bytes": "1024"})
    await broker.engine.create_topic("t")
    await write(broker, 1)
    await wait_for(lambda: machine.kept(broker) == [1])
    await write(broker, 30)
    assert broker.stats.segments_rolled
    await asyncio.sleep(BEHIND_S / 5)
    assert machine.kept(broker)[0] > 20
    await broker.stop()


@virtual
async def test_an_idle_broker_writes_nothing() -> None:
    machine = Machine()
    broker = await machine.started()
    await broker.engine.create_topic("t", 5)
    await write(broker, 3)
    await asyncio.sleep(100)  # checkpoints are saved by then
    operations = machine.disk.operations
    await asyncio.sleep(1000)
    assert machine.disk.operations == operations
    await broker.stop()


@virtual
async def test_only_what_a_sync_has_covered_is_kept() -> None:
    machine = Machine()
    broker = await machine.started()
    await broker.engine.create_topic("t", 1, {"flush": "os"})
    await broker.engine.create_topic("other", 1)
    for number in range(5):
        append(broker.partition("t"), batch_of([b"%d" % number], machine.clock))
    await write(broker, 1, "other")
    await asyncio.sleep(BEHIND_S)
    assert machine.kept(broker, "other") == [1]
    assert machine.kept(broker) == [0]
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as broker:
        assert broker.partition("t").opened().end_offset <= 5
    assert machine.kept(broker) == [broker.partition("t").opened().end_offset]


@virtual
async def test_a_topic_made_anew_begins_anew() -> None:
    machine = Machine()
    broker = await machine.started()
    topic = await broker.engine.create_topic("t")
    await write(broker, 5)
    await asyncio.sleep(BEHIND_S)
    await broker.engine.delete_topic(topic)
    await broker.engine.create_topic("t")
    await write(broker, 1)
    machine.disk = machine.disk.abandon()
    async with running(machine.broker()) as broker:
        assert await end_of(broker) == 1
        await asyncio.sleep(BEHIND_S)
        assert topic.topic_id not in load_ends(machine.disk, "data/meta")


@virtual
async def test_deleted_records_do_not_shorten_a_log() -> None:
    machine = Machine()
    broker = await machine.started()
    await broker.engine.create_topic("t")
    await write(broker, 5)
    await asyncio.sleep(BEHIND_S)
    await broker.engine.delete_records(broker.partition("t"), -1)
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as broker:
        assert broker.partition("t").opened().end_offset == 5


@virtual
async def test_a_damaged_file_is_said_and_written_anew() -> None:
    machine = Machine()
    broker = await machine.started()
    await broker.engine.create_topic("t")
    await write(broker, 5)
    await broker.stop()
    machine.disk.flip_byte(PATH, 20, 1)
    async with running(machine.broker()) as broker:
        assert await end_of(broker) == 5
        await wait_for(lambda: machine.disk.exists(PATH))
        await asyncio.sleep(BEHIND_S)
        assert machine.kept(broker) == [5]


@virtual
async def test_a_directory_without_it_is_given_one() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t")
        await write(broker, 5)
    machine.disk.unlink(PATH)
    async with running(machine.broker()) as broker:
        await asyncio.sleep(BEHIND_S)
        assert machine.kept(broker) == [5]


@virtual
async def test_a_full_disk_delays_it() -> None:
    machine = Machine()
    broker = await machine.started()
    await broker.engine.create_topic("t")
    await write(broker, 1)
    await asyncio.sleep(BEHIND_S)
    await write(broker, 1)
    machine.disk.fail("open", errno.ENOSPC, path_contains=PATH, times=3)
    await asyncio.sleep(3 * BEHIND_S)
    assert machine.kept(broker) == [1] and broker.failures == []
    machine.disk.clear_faults()
    await asyncio.sleep(2 * BEHIND_S)
    assert machine.kept(broker) == [2]
    await broker.stop()
