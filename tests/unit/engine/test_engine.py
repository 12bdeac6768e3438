"""The engine: topics made and deleted durably, starts and stops, refusals that touch nothing."""

import errno
from uuid import UUID

import orjson
import pytest
from tests.simulated_broker import (
    Broker,
    append,
    batch_of,
    produce,
    read_all,
    running,
    virtual,
    wait_for,
)

from penstock.engine.offset_lookup import find_largest_time
from penstock.engine.topics import CREATING, REMOVING, TOPICS
from penstock.errors import Code, PenstockError, StartupError
from penstock.records.build import build_batch
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock

SMALL = {"segment.bytes": "1024"}


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

    def files(self, path: str = "data") -> dict[str, bytes]:
        found = {}
        for name in self.disk.list_dir(path):
            inner = f"{path}/{name}"
            if self.disk.is_dir(inner):
                found.update(self.files(inner))
            else:
                file = self.disk.open(inner)
                found[inner] = file.read_at(file.size(), 0)
        return found


async def some_records(broker: Broker, topic: str = "t", count: int = 5) -> None:
    partition = broker.partition(topic)
    for number in range(count):
        await produce(partition, batch_of([b"%d" % number + b"." * 300], broker.clock))


async def values(broker: Broker, topic: str = "t", index: int = 0) -> list[bytes]:
    batches = await read_all(broker.partition(topic, index))
    return [value.split(b".")[0] for batch in batches for _, value in batch.records]


# --- starting and stopping


@virtual
async def test_a_clean_stop_costs_no_scan_and_no_epoch() -> None:
    machine = Machine()
    async with running(machine.broker(defaults=SMALL)) as broker:
        topic = await broker.engine.create_topic("t", 3)
        await some_records(broker, count=12)
        cluster_id, epoch = broker.engine.cluster_id, topic.partitions[0].leader_epoch
    machine.disk = machine.disk.after_power_cut()  # a clean stop leaves nothing to lose
    async with running(machine.broker(defaults=SMALL)) as broker:
        assert broker.engine.cluster_id == cluster_id
        assert broker.stats.recovered_bytes == 0
        assert broker.partition("t").leader_epoch == epoch
        assert await values(broker) == [b"%d" % number for number in range(12)]
        again = broker.engine.topics.get("t")
        assert again is not None and (again.topic_id, len(again.partitions)) == (topic.topic_id, 3)
        await some_records(broker)


@virtual
async def test_a_crash_begins_a_new_leader_epoch() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    await broker.engine.create_topic("t")
    await some_records(broker, count=2)
    for life in (1, 2):
        machine.disk = machine.disk.abandon()
        broker = machine.broker()
        await broker.start()
        partition = broker.partition("t")
        assert partition.leader_epoch == life
        await some_records(broker, count=1)
    headers = [batch.header for batch in await read_all(partition)]
    assert [header.leader_epoch for header in headers] == [0, 0, 1, 2]
    assert partition.end_of_epoch(0) == (0, 2)
    assert partition.end_of_epoch(1) == (1, 3)
    assert partition.end_of_epoch(9) == (2, 4)
    for epoch, code in ((1, Code.FENCED_LEADER_EPOCH), (3, Code.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(PenstockError) as refused:
            partition.check_epoch(epoch)
        assert refused.value.code is code
    partition.check_epoch(2)
    partition.check_epoch(-1)


@virtual
async def test_stopping_seals_what_has_rolled() -> None:
    machine = Machine()
    async with running(machine.broker(defaults=SMALL, upkeep_ms=10**9)) as broker:
        await broker.engine.create_topic("t")
        await some_records(broker, count=20)
        log = broker.partition("t").opened()
        log.on_rolled = lambda _: None
        await some_records(broker, count=4)
    names = machine.disk.list_dir("data/logs/t/0")
    logs = [name for name in names if name.endswith(".log") and name != "next.log"]  # a roll may be under way
    assert len([name for name in names if name.endswith(".index")]) == len(logs) - 1
    async with running(machine.broker(defaults=SMALL)) as broker:
        assert broker.stats.recovered_bytes == 0


@virtual
async def test_stopping_in_the_middle_of_everything_loses_nothing() -> None:
    for seed in range(20):
        machine = Machine(seed)
        broker = machine.broker(defaults=SMALL, upkeep_ms=1)
        await broker.start()
        partition = (await broker.engine.create_topic("t")).partitions[0]
        for number in range(30):
            append(partition, batch_of([b"%d" % number + b"." * 200], machine.clock))
            if number % (seed + 2) == 0:
                await machine.disk.run(lambda: None)
        await broker.stop()
        assert broker.failures == []
        with pytest.raises(PenstockError):
            append(partition, batch_of([b"late"], machine.clock))
        machine.disk = machine.disk.after_power_cut()
        async with running(machine.broker(defaults=SMALL)) as again:
            assert await values(again) == [b"%d" % number for number in range(30)]


# --- topics


@virtual
async def test_topics_survive_a_power_cut() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    await broker.engine.create_topic("a", 2, {"flush": "os", "segment.bytes": "2048"})
    await broker.engine.create_topic("b")
    topic = broker.engine.topics.get("b")
    assert topic is not None
    await broker.engine.delete_topic(topic)
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as broker:
        assert [(topic.name, len(topic.partitions)) for topic in broker.engine.topics] == [("a", 2)]
        assert broker.partition("a").config.given == {"flush": "os", "segment.bytes": "2048"}
        assert broker.partition("a").config.log.segment_bytes == 2048


@virtual
async def test_what_cannot_be_created_leaves_nothing() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        engine = broker.engine
        await engine.create_topic("t")
        before = machine.files()
        for name, partitions, settings, code in (
            ("t", 1, {}, Code.TOPIC_EXISTS),
            ("a/b", 1, {}, Code.INVALID_TOPIC),
            ("..", 1, {}, Code.INVALID_TOPIC),
            ("", 1, {}, Code.INVALID_TOPIC),
            ("x" * 250, 1, {}, Code.INVALID_TOPIC),
            ("n", 0, {}, Code.INVALID_PARTITIONS),
            ("n", 10_001, {}, Code.INVALID_PARTITIONS),
            ("n", 10_000, {}, Code.LIMIT_EXCEEDED),
            ("n", 1, {"retention.ms": "soon"}, Code.INVALID_CONFIG),
        ):
            with pytest.raises(PenstockError) as refused:
                await engine.create_topic(name, partitions, settings)
            assert refused.value.code is code
        made = await engine.create_topic("n", 2, {}, validate_only=True)
        assert made.name == "n"
        assert engine.topics.get("n") is None
        assert machine.files() == before
        assert await machine.store.list(CREATING) == []


@virtual
async def test_a_deleted_topic_is_gone_for_everybody() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t")
        partition = topic.partitions[0]
        await some_records(broker)
        answered, woken = [], []
        done = append(partition, batch_of([b"x"], machine.clock))
        partition.when_safe(done.last_offset, lambda error: answered.append(error.code))
        partition.waiters.add_reader(lambda: woken.append(True))
        await broker.engine.delete_topic(topic)
        assert answered == [Code.UNKNOWN_TOPIC] and woken
        for use in (lambda: append(partition, batch_of([b"x"], machine.clock)), partition.opened):
            with pytest.raises(PenstockError) as refused:
                use()
            assert refused.value.code is Code.UNKNOWN_TOPIC
        with pytest.raises(PenstockError):
            await broker.engine.delete_topic(topic)
        again = await broker.engine.create_topic("t")
        assert again.topic_id != topic.topic_id
        assert await values(broker) == []
        await wait_for(lambda: machine.disk.list_dir("data/logs/~removed") == [])
        assert await machine.store.list(REMOVING) == []


@virtual
async def test_a_creation_that_finds_no_room_is_undone_and_can_be_tried_again() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        machine.disk.fail("write_at", errno.ENOSPC, path_contains="t/1/", when=2)
        with pytest.raises(PenstockError) as refused:
            await broker.engine.create_topic("t", 3)
        assert refused.value.code is Code.STORAGE_FULL
        assert broker.engine.topics.get("t") is None
        assert not machine.disk.exists("data/logs/t")
        assert await machine.store.list(CREATING) == []
        await broker.engine.create_topic("t", 3)
        await some_records(broker)
    async with running(machine.broker()) as broker:
        assert len(await values(broker)) == 5


@virtual
async def test_deleting_while_upkeep_is_at_work() -> None:
    for seed in range(15):
        machine = Machine(seed)
        async with running(machine.broker(defaults=SMALL, upkeep_ms=1)) as broker:
            topic = await broker.engine.create_topic("t", 2, {"retention.bytes": "1000", "flush": "os"})
            for _ in range(40):
                for partition in topic.partitions:
                    append(partition, batch_of([b"." * 300], machine.clock))
                await machine.disk.run(lambda: None)
            await broker.engine.delete_topic(topic)
            await broker.engine.create_topic("t")
            await machine.disk.run(lambda: None)


# --- intents


async def crashed_with(intent: str, *, moved: bool = False, records: int = 0) -> tuple[Machine, str]:
    """A machine whose broker died with an intent in its metadata and the topic's directory there, or moved away."""
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    await broker.engine.create_topic("kept")
    topic = await broker.engine.create_topic("t", 2)
    await some_records(broker, count=records)
    machine.disk = machine.disk.abandon()
    value = orjson.dumps({"topic": "t", "id": str(topic.topic_id)})
    await machine.store.transact(put={f"{intent}{topic.topic_id}": value}, delete=[TOPICS + "t"])
    if moved:
        machine.disk.rename("data/logs/t", f"data/logs/~removed/{topic.topic_id}")
    return machine, str(topic.topic_id)


@virtual
async def test_what_a_crash_interrupted_is_finished_at_the_next_start() -> None:
    for intent, moved, records in ((CREATING, False, 0), (REMOVING, False, 5), (REMOVING, True, 5)):
        machine, _ = await crashed_with(intent, moved=moved, records=records)
        async with running(machine.broker()) as broker:
            assert [topic.name for topic in broker.engine.topics] == ["kept"]
            assert await machine.store.list(intent) == []
            assert machine.disk.list_dir("data/logs") == ["kept", "~removed"]
            assert machine.disk.list_dir("data/logs/~removed") == []
            await broker.engine.create_topic("t")
            await some_records(broker)


@virtual
async def test_a_creation_is_not_undone_once_it_holds_records() -> None:
    machine, _ = await crashed_with(CREATING, records=1)
    before = machine.files("data/logs")
    broker = machine.broker()
    await machine.disk.run(broker.directory.open)
    with pytest.raises(StartupError, match="1 partitions"):
        await broker.engine.start()
    assert machine.files("data/logs") == before


@virtual
async def test_an_intent_touches_no_topic_with_another_id() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t")
        await some_records(broker)
    for number, intent in enumerate((CREATING, REMOVING)):
        other = UUID(int=number)
        value = orjson.dumps({"topic": "t", "id": str(other)})
        await machine.store.transact(put={f"{intent}{other}": value})
    async with running(machine.broker()) as broker:
        assert len(await values(broker)) == 5


# --- refusals


@virtual
async def test_lost_metadata_stops_the_start_and_nothing_is_touched() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t", 2)
        await some_records(broker)
    kept, machine.store = machine.store, MemoryStore()
    broker = machine.broker()
    await machine.disk.run(broker.directory.open)
    before = machine.files()
    with pytest.raises(StartupError, match="2 partitions") as refused:
        await broker.engine.start()
    assert "backup" in str(refused.value) and "data/meta" in str(refused.value)
    assert machine.files() == before
    assert await machine.store.list("") == []
    # With the metadata back, everything is there.
    machine.store, machine.disk = kept, machine.disk.abandon()
    async with running(machine.broker()) as broker:
        assert len(await values(broker)) == 5


@virtual
async def test_metadata_of_another_broker_stops_the_start() -> None:
    machine, other = Machine(), Machine(2)
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t")
    async with running(other.broker()) as broker:
        await broker.engine.create_topic("t")
        await broker.engine.create_topic("u")
    machine.store, machine.disk = other.store, machine.disk.abandon()
    before = machine.files("data/logs")
    with pytest.raises(StartupError, match="t"):
        await machine.broker(upkeep_ms=77).start()
    assert machine.files("data/logs") == before


@virtual
async def test_a_stranger_among_the_topics_stops_the_start() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t")
        await broker.engine.create_topic("stranger")
    await machine.store.transact(delete=[TOPICS + "stranger"])
    machine.disk = machine.disk.abandon()
    before = machine.files("data/logs")
    with pytest.raises(StartupError, match="stranger"):
        await machine.broker().start()
    assert machine.files("data/logs") == before


@virtual
async def test_one_missing_partition_is_offline_and_the_others_serve() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t", 3)
        await some_records(broker)
    machine.disk = machine.disk.abandon()
    machine.disk.remove_tree("data/logs/t/1")
    for _ in range(2):
        async with running(machine.broker()) as broker:
            with pytest.raises(PenstockError, match="data/logs/t/1 is missing") as refused:
                broker.partition("t", 1).opened()
            assert refused.value.code is Code.CORRUPT_LOG
            assert len(await values(broker)) == 5
            await produce(broker.partition("t", 2), batch_of([b"x"], machine.clock))
        assert not machine.disk.exists("data/logs/t/1"), "an empty log must not take its place"


@virtual
async def test_a_damaged_partition_stays_offline_however_often_one_starts() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t", 2)
        await some_records(broker)
    machine.disk = machine.disk.abandon()
    machine.disk.unlink(f"data/logs/t/0/{0:020d}.log")
    machine.disk.unlink(f"data/logs/t/0/{0:020d}.checkpoint")
    for _ in range(3):
        async with running(machine.broker()) as broker:
            offline = broker.partition("t", 0).offline
            assert offline is not None and offline.code is Code.CORRUPT_LOG
            assert broker.partition("t", 1).offline is None


@virtual
async def test_bad_defaults_are_named_at_the_start() -> None:
    with pytest.raises(PenstockError, match=r"did you mean retention\.ms") as refused:
        await Machine().broker(defaults={"retention.msx": "1"}).start()
    assert refused.value.code is Code.INVALID_CONFIG


# --- offsets, producers, appends


@virtual
async def test_producer_ids_are_never_handed_out_twice() -> None:
    machine = Machine()
    taken = []
    for _ in range(3):
        broker = machine.broker()
        await broker.start()
        taken += [await broker.engine.producer_ids.take() for _ in range(1500)]
        machine.disk = machine.disk.abandon()
    assert len(set(taken)) == 4500


@virtual
async def test_records_are_deleted_up_to_where_it_is_allowed() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t")
        await some_records(broker)
        partition = broker.partition("t")
        assert await broker.engine.delete_records(partition, 2) == 2
        assert await broker.engine.delete_records(partition, 1) == 2  # gone already: nothing to do
        for offset in (6, -2):
            with pytest.raises(PenstockError) as refused:
                await broker.engine.delete_records(partition, offset)
            assert refused.value.code is Code.OFFSET_OUT_OF_RANGE
        assert await broker.engine.delete_records(partition, -1) == 5
        machine.disk.fail("write_at", errno.ENOSPC, path_contains="state")
        await some_records(broker, count=1)
        with pytest.raises(PenstockError) as refused:
            await broker.engine.delete_records(partition, -1)
        assert refused.value.code is Code.STORAGE_FULL


@virtual
async def test_offsets_by_time() -> None:
    machine = Machine()
    async with running(machine.broker(defaults=SMALL)) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        start = machine.clock.now_ms()
        times = [start + step for step in (0, 10, 5, 40, 30, 40, 100)]
        for at in times:
            await produce(partition, bytearray(build_batch([(None, b"." * 400, [], at)])))
        for asked in range(start - 1, start + 110):
            found = await broker.engine.find_offset_by_time(partition, asked, committed=False)
            expected = next((offset for offset, at in enumerate(times) if at >= asked), None)
            assert (found.offset if found else None) == expected
            assert found is None or found.timestamp == times[found.offset]
        newest = await broker.engine.find_largest_time(partition)
        assert newest is not None and (newest.offset, newest.timestamp) == (6, start + 100)
        await broker.engine.delete_records(partition, 2)
        found = await broker.engine.find_offset_by_time(partition, start, committed=True)
        assert found is not None and found.offset == 2
        empty = (await broker.engine.create_topic("empty")).partitions[0]
        assert await broker.engine.find_largest_time(empty) is None
        assert await broker.engine.find_offset_by_time(empty, 0, committed=False) is None


@virtual
async def test_what_a_partition_refuses() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        settings = {"max.message.bytes": "300", "message.timestamp.after.max.ms": "1000", "min.insync.replicas": "2"}
        partition = (await broker.engine.create_topic("t", 1, settings)).partitions[0]
        assert partition.append(memoryview(batch_of([b"x"], machine.clock))).base_offset == 0
        with pytest.raises(PenstockError) as refused:
            partition.append(memoryview(batch_of([b"x" * 300], machine.clock)))
        assert refused.value.code is Code.BATCH_TOO_LARGE
        late = batch_of([b"x"], machine.clock)
        machine.clock.jump_ms(-5000)
        with pytest.raises(PenstockError) as refused:
            partition.append(memoryview(late))
        assert refused.value.code is Code.INVALID_TIMESTAMP
        assert partition.opened().end_offset == 1


@virtual
async def test_log_append_time_topics_stamp_every_batch() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        settings = {"message.timestamp.type": "LogAppendTime"}
        partition = (await broker.engine.create_topic("t", 1, settings)).partitions[0]
        machine.clock.jump_ms(1234)
        done = await produce(partition, batch_of([b"x"], machine.clock))
        assert done.timestamp >= machine.clock.now_ms() - 1000
        stored = (await read_all(partition))[0]
        assert stored.header.max_timestamp == done.timestamp


@virtual
async def test_the_largest_time_is_one_that_may_be_seen() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        start = machine.clock.now_ms()
        for at in (start, start + 7, start + 3):
            await produce(partition, bytearray(build_batch([(None, b"v", [], at)])))
        append(partition, bytearray(build_batch([(None, b"not yet durable", [], start + 50)])))
        found = find_largest_time(partition.opened(), partition.high_watermark)
        assert found is not None and (found.offset, found.timestamp) == (1, start + 7)


@virtual
async def test_metadata_from_an_older_backup_than_the_log() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t")
        await some_records(broker)
        backup = await machine.store.get(TOPICS + "t")
    assert backup is not None
    for _ in range(3):  # unclean starts raise the leader epoch
        broker = machine.broker()
        await broker.engine.start()
        await some_records(broker)
        machine.disk = machine.disk.abandon()
    await machine.store.transact(put={TOPICS + "t": backup.value})
    for life in range(2):
        async with running(machine.broker()) as broker:
            partition = broker.partition("t")
            assert partition.leader_epoch == partition.opened().state.epochs.latest >= 3
            await some_records(broker)
            assert len(await read_all(partition)) == 25 + 5 * life
