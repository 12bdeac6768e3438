"""Logs attached to partitions, on a broker of its own: made, kept, found by nobody, gone with their topic."""

import asyncio
import errno
from unittest.mock import patch
from uuid import UUID

import orjson
import pytest
from tests.attached_counter import COUNTER, Counter, Counters
from tests.simulated_broker import Broker, batch_of, produce, running, virtual, wait_for
from tests.unit.engine.test_engine import Machine

from penstock.engine.attached import attached_config
from penstock.engine.coordination.shard import Shard
from penstock.engine.partition import Partition
from penstock.engine.topic_config import make_config
from penstock.engine.topics import CREATING, TOPICS, TopicRecord
from penstock.errors import Code, PenstockError, StartupError
from penstock.storage.attached_names import attached_name, split_name
from penstock.storage.log.options import Flush

HOUR_MS = 3600 * 1000
DIRECTORY = "data/logs/t~count"


class Counted:
    """A broker with a counter, beside the partitions of `t`."""

    def __init__(self, machine: Machine) -> None:
        self.broker = machine.broker()
        self.counters = Counters(self.broker.engine)

    def data(self, index: int = 0) -> Partition:
        return self.broker.partition("t", index)

    def attached(self, index: int = 0) -> Partition:
        return self.data(index).attached[0]

    async def step(self, name: str, index: int = 0) -> int:
        return await self.counters.step(self.data(index), name)

    async def numbers(self, index: int = 0) -> dict[str, int]:
        return dict((await (await self.counters.of(self.data(index))).machine()).numbers)


async def begun(machine: Machine, partitions: int = 2, **settings: str) -> Counted:
    """Started, with a topic."""
    counted = Counted(machine)
    await counted.broker.start()
    given = {name.replace("_", "."): text for name, text in settings.items()}
    await counted.broker.engine.create_topic("t", partitions, given)
    return counted


async def killed(counted: Counted, machine: Machine, *, power_cut: bool = False) -> Counted:
    """The next life after a kill."""
    if power_cut:
        machine.disk.cut_power()
        machine.disk = machine.disk.after_power_cut()
    else:
        await counted.broker.engine.abandon()
        machine.disk = machine.disk.abandon()
    following = Counted(machine)
    await following.broker.start()
    return following


# --- names


def test_a_name_says_of_what_and_of_which_kind() -> None:
    assert attached_name("orders", "count") == "orders~count"
    assert split_name("orders~count") == ("orders", "count")
    assert split_name("orders") is None


def test_a_name_that_no_directory_can_have_is_refused() -> None:
    assert len(attached_name("t" * 249, "count")) == 255
    with pytest.raises(PenstockError, match="248 at most") as refused:
        attached_name("t" * 249, "ledger")
    assert refused.value.code is Code.INVALID_TOPIC


def test_when_it_counts_as_kept_is_what_the_data_says() -> None:
    data = make_config({"flush": "interval", "flush.ms": "7", "min.insync.replicas": "2"}, {})
    config = attached_config({"cleanup.policy": "compact"}, data)
    assert config.compacts and (config.log.flush, config.log.flush_ms) == (Flush.INTERVAL, 7)
    assert config.least_in_sync(3) == data.least_in_sync(3) == 2


# --- lives


@virtual
async def test_steps_outlive_a_clean_stop_a_kill_and_a_power_cut() -> None:
    machine = Machine()
    counted = await begun(machine)
    assert [await counted.step(name) for name in ("a", "b", "a")] == [1, 2, 1]
    assert await counted.step("a", 1) == 1, "each partition has its own"
    await counted.broker.stop()
    for power_cut in (False, True):
        counted = await killed(counted, machine, power_cut=power_cut)
        await counted.step(f"{power_cut}")
        assert counted.attached().leader_epoch == counted.data().leader_epoch
        assert counted.attached().led is not None
    counted = await killed(counted, machine, power_cut=True)
    assert await counted.numbers() == {"a": 1, "b": 2, "False": 3, "True": 4}
    assert await counted.numbers(1) == {"a": 1}
    await counted.broker.stop()
    assert counted.broker.failures == []


@virtual
async def test_a_start_loads_it_without_being_asked() -> None:
    machine = Machine()
    counted = await begun(machine)
    await counted.step("a")
    await counted.broker.stop()
    again = Counted(machine)
    async with running(again.broker):
        await wait_for(lambda: again.counters.shards.of(again.data()).loaded is not None)


@virtual
async def test_a_topic_that_grows_has_it_everywhere() -> None:
    machine = Machine()
    counted = await begun(machine, 1)
    await counted.step("a")
    topic = counted.broker.engine.topics.get("t")
    assert topic is not None
    await counted.broker.engine.create_partitions(topic, 3)
    assert await counted.step("a", 2) == 1
    await counted.broker.stop()
    again = Counted(machine)
    async with running(again.broker):
        assert [await again.numbers(index) for index in range(3)] == [{"a": 1}, {}, {"a": 1}]


@virtual
async def test_it_is_deleted_with_its_topic() -> None:
    machine = Machine()
    counted = await begun(machine)
    await counted.step("a")
    shard = counted.counters.shards.of(counted.data())
    engine = counted.broker.engine
    topic = engine.topics.get("t")
    assert topic is not None
    await engine.delete_topic(topic)
    assert shard.loaded is None
    await wait_for(lambda: machine.disk.list_dir("data/logs") == ["~removed"])
    await engine.create_topic("t", 1)
    assert not machine.disk.exists(DIRECTORY)
    assert await counted.step("b") == 1
    await counted.broker.stop()
    assert counted.broker.failures == []


@virtual
async def test_settings_of_the_topic_reach_it() -> None:
    machine = Machine()
    counted = await begun(machine)
    await counted.step("a")
    engine = counted.broker.engine
    topic = engine.topics.get("t")
    assert topic is not None
    await engine.alter_topic(topic, lambda _: {"flush": "os"})
    assert counted.attached().opened().options.flush is Flush.OS
    assert counted.attached().config.compacts, "its own stay"
    await counted.broker.stop()


# --- crashes


@virtual
async def test_a_power_cut_at_any_operation_while_it_is_attached_leaves_all_of_it_or_nothing() -> None:
    outcomes = set()
    for operations in range(60):
        machine = Machine(operations + 1)
        counted = await begun(machine)
        machine.disk.cut_power_after(operations)
        step = counted.broker.engine._tasks.spawn(_stepped(counted), "step")
        await wait_for(lambda disk=machine.disk, step=step: disk.dead or step.done())  # type: ignore[misc]
        was_acknowledged = step.done() and not step.cancelled() and step.exception() is None
        if not machine.disk.dead:
            machine.disk.cut_power()
        machine.disk = machine.disk.after_power_cut()
        again = Counted(machine)
        await again.broker.start()
        is_there = bool(again.data().attached)
        assert is_there or not machine.disk.exists(f"{DIRECTORY}/0/partition.meta"), operations
        assert is_there or not was_acknowledged
        assert not await machine.store.list(CREATING)
        assert await again.step("a") == 1 and await again.step("b") == 2
        outcomes.add((is_there, was_acknowledged))
        await again.broker.stop()
    assert outcomes == {(False, False), (True, False), (True, True)}


async def _stepped(counted: Counted) -> None:
    await counted.step("a")


@virtual
async def test_a_power_cut_at_any_operation_while_its_topic_goes_or_grows_leaves_both_alike() -> None:
    outcomes = set()
    for operations in range(0, 140, 5):
        machine = Machine(operations + 1)
        counted = await begun(machine, 1)
        await counted.step("a")
        machine.disk.cut_power_after(operations // 2)
        engine, topic = counted.broker.engine, counted.broker.engine.topics.get("t")
        assert topic is not None
        change = engine.create_partitions(topic, 2) if operations % 2 else engine.delete_topic(topic)
        engine._tasks.spawn(change, "change")
        await asyncio.sleep(5.0)  # no time at all, unless the power is on still
        if not machine.disk.dead:
            machine.disk.cut_power()
        machine.disk = machine.disk.after_power_cut()
        again = Counted(machine)
        await again.broker.start()
        left = again.broker.engine.topics.get("t")
        if left is None:
            assert [one.topic for one in again.broker.directory.partitions()] == []
        else:
            for index in range(len(left.partitions)):
                assert await again.step("a", index) == 1
        outcomes.add((operations % 2, 0 if left is None else len(left.partitions)))
        await again.broker.stop()
    assert outcomes == {(0, 0), (1, 1), (1, 2)}


@virtual
async def test_without_room_nothing_is_attached_and_nothing_is_left() -> None:
    machine = Machine()
    counted = await begun(machine)
    codes = set()
    for when in range(1, 12):
        machine.disk.fail("write_at", errno.ENOSPC, when=when, path_contains="~count")
        (error,) = await asyncio.gather(counted.step("a"), return_exceptions=True)
        codes.add(error.code if isinstance(error, PenstockError) else None)
        machine.disk.clear_faults()
    assert Code.STORAGE_FULL in codes and codes <= {Code.STORAGE_FULL, Code.COORDINATOR_NOT_AVAILABLE, None}
    await wait_for(lambda: not machine.disk.list_dir("data/logs/~removed"))
    assert await counted.step("a") == 1
    await counted.broker.stop()
    assert counted.broker.failures == []


@virtual
async def test_a_flipped_bit_anywhere_is_found_or_harmless() -> None:
    machine = Machine()
    counted = await begun(machine, 1)
    for name in ("a", "b", "c"):
        await counted.step(name)
    await counted.broker.stop()
    files = {path: data for path, data in machine.files().items() if path.startswith(DIRECTORY)}
    assert {path.rpartition("/")[2] for path in files} >= {"partition.meta", "state", "snapshot"}
    refused = 0
    for path, data in files.items():
        for position in range(0, len(data), 7):
            disk = machine.disk.backup()
            disk.flip_byte(path, position)
            damaged = Machine()
            damaged.disk, damaged.store = disk, machine.store
            again = Counted(damaged)
            try:
                await again.broker.start()
            except StartupError:
                refused += 1
                continue
            if again.attached().offline is None:
                assert await again.numbers() == {"a": 1, "b": 2, "c": 3}, f"{path} at {position}"
            else:
                refused += 1
                assert again.data().led is not None, "the records are served all the same"
                assert again.data().opened().floors[0]() == 0, "and kept, as nobody knows which are needed"
            await again.broker.engine.abandon()
    assert refused > 0


@virtual
async def test_a_log_that_is_gone_is_missed() -> None:
    machine = Machine()
    counted = await begun(machine, 1)
    await counted.step("a")
    await counted.broker.stop()
    machine.disk.lose(f"{DIRECTORY}/0")
    again = Counted(machine)
    await again.broker.start()
    with pytest.raises(PenstockError):
        await again.numbers()
    assert again.attached().offline is not None and not machine.disk.exists(f"{DIRECTORY}/0")
    await again.broker.engine.abandon()


@virtual
async def test_an_old_copy_is_known_by_the_kept_ends() -> None:
    machine = Machine()
    counted = await begun(machine, 1)
    await counted.step("a")
    await counted.broker.stop()
    backup = machine.disk.backup()
    counted = Counted(machine)
    await counted.broker.start()
    for name in ("b", "c", "d"):
        await counted.step(name)
    await counted.broker.stop()
    machine.disk.unlink("data/clean-shutdown")
    machine.disk.restore(f"{DIRECTORY}/0", backup)
    again = Counted(machine)
    await again.broker.start()
    offline = again.attached().offline
    assert offline is not None and offline.code is Code.CORRUPT_LOG
    await again.broker.engine.abandon()


@virtual
async def test_logs_of_no_topic_or_of_a_kind_that_its_record_lacks_are_lost_metadata() -> None:
    machine = Machine()
    counted = await begun(machine, 1)
    await counted.step("a")
    await counted.broker.stop()
    entry = await machine.store.get(TOPICS + "t")
    assert entry is not None
    forgotten = orjson.loads(entry.value)
    assert TopicRecord.decode(entry.value).attached == {"count": dict(COUNTER.settings)}
    del forgotten["attached"]  # as a release before would write it
    await machine.store.transact(put={TOPICS + "t": orjson.dumps(forgotten)})
    with pytest.raises(StartupError, match="t~count"):
        await Counted(machine).broker.start()
    assert machine.disk.exists(f"{DIRECTORY}/0/partition.meta")


def test_a_record_without_any_is_written_as_it_always_was() -> None:
    record = TopicRecord(UUID(int=1), 1, {}, 0)
    assert b"attached" not in record.encode() and TopicRecord.decode(record.encode()) == record


# --- nobody sees it


@virtual
async def test_no_door_finds_it_and_nobody_can_make_a_topic_of_its_name() -> None:
    machine = Machine()
    counted = await begun(machine, 1)
    await counted.step("a")
    engine, holder = counted.broker.engine, counted.attached()
    topics = engine.topics
    assert [topic.name for topic in topics] == ["t"] and len(topics) == topics.partition_count == 1
    assert topics.get("t~count") is None and topics.get_by_id(holder.topic_id) is None
    for find in (lambda: topics.partition("t~count", 0), lambda: topics.partition_by_id(holder.topic_id, 0)):
        with pytest.raises(PenstockError):
            find()
    assert topics.replica_by_id(holder.topic_id, 0) is holder
    with pytest.raises(PenstockError) as refused:
        await engine.create_topic("t~count", 1)
    assert refused.value.code is Code.INVALID_TOPIC
    await counted.broker.stop()


# --- what it needs of the data


async def _fill(counted: Counted, count: int = 12) -> None:
    for number in range(count):
        await produce(counted.data(), batch_of([b"%d" % number + b"." * 300], counted.broker.clock))


async def _settled_start(counted: Counted) -> int:
    """Where the data begins when retention has had its time."""
    await wait_for(lambda: not counted.data().opened().unsealed)
    engine = counted.broker.engine
    for _ in range(3):
        for log, settled in engine.replicas.open_logs():
            await engine._upkeep.tend(log, counted.broker.clock.now_ms() + 2 * HOUR_MS, settled)
    return counted.data().opened().log_start


SMALL = {"segment_bytes": "1024", "retention_ms": str(HOUR_MS)}


@virtual
async def test_retention_spares_what_it_needs_until_it_does_not() -> None:
    machine = Machine()
    counted = await begun(machine, 1, **SMALL)
    await counted.counters.need(counted.data(), 5)
    await _fill(counted)
    start = await _settled_start(counted)
    assert 0 < start <= 5
    await counted.counters.need(counted.data(), None)
    assert await _settled_start(counted) > 5
    await counted.broker.stop()


@virtual
async def test_after_a_start_nothing_goes_before_it_has_said_what_it_needs() -> None:
    machine = Machine()
    counted = await begun(machine, 1, **SMALL)
    await counted.counters.need(counted.data(), 5)
    await _fill(counted)
    may_load, replay = asyncio.Event(), Shard._replay

    async def replay_late(self: Shard[Counter]) -> Counter:
        await may_load.wait()
        return await replay(self)

    with patch.object(Shard, "_replay", replay_late):
        again = await killed(counted, machine)
        assert await _settled_start(again) == 0, "nobody knows yet"
        may_load.set()
        await wait_for(lambda: again.counters.shards.of(again.data()).loaded is not None)
    assert 0 < await _settled_start(again) <= 5
    await again.broker.engine.abandon()


@virtual
async def test_a_kind_that_this_release_does_not_run_needs_everything() -> None:
    machine = Machine()
    counted = await begun(machine, 1, **SMALL)
    await counted.counters.need(counted.data(), None)
    await _fill(counted)
    await counted.broker.stop()
    broker: Broker = machine.broker()
    async with running(broker):
        log = broker.partition("t").opened()
        assert [floor() for floor in log.floors] == [0]
        assert broker.partition("t").attached[0].opened().end_offset > 0


@virtual
async def test_what_is_not_safe_yet_lets_nothing_go() -> None:
    machine = Machine()
    counted = await begun(machine, 1, **SMALL)
    await counted.counters.need(counted.data(), 5)
    shard = counted.counters.shards.of(counted.data())
    log = counted.data().opened()
    assert log.floors[0]() == 5
    shard.step(lambda machine, now: machine.need(9, 0))
    assert log.floors[0]() == 5
    shard.end_turn()
    assert log.floors[0]() == 5
    shard.step(lambda machine, now: machine.need(3, 0))
    assert log.floors[0]() == 3, "what it has come to need counts at once"
    await wait_for(lambda: counted.attached().high_watermark == counted.attached().end_offset)
    shard.step(lambda machine, now: machine.need(9, 0))
    await wait_for(lambda: log.floors[0]() == 9)
    await counted.broker.stop()
