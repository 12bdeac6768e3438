"""A state machine on a partition: what a restart replays, what a crash keeps, what a failed append does."""

import asyncio
import errno
from typing import Any
from unittest.mock import Mock, patch

import pytest
from tests.simulated_broker import Broker, batch_of, produce, running, virtual, wait_for
from tests.unit.engine.test_engine import Machine

from penstock.engine.coordination import shard as shards
from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, shard_of
from penstock.engine.coordination.outcome import Outcome
from penstock.engine.coordination.shard import Shard
from penstock.engine.groups.offsets import CommitRequest, FetchRequest, NewOffset, TransactionalCommit
from penstock.engine.transactions.requests import EndRequest
from penstock.errors import Code, PenstockError


async def commit(broker: Broker, group: str, offset: int, partition: int = 0) -> None:
    spot = ("t", partition)
    results = await broker.engine.groups.commit(CommitRequest(group, "", -1, None, {spot: NewOffset(offset)}))
    assert results[spot] is None


async def committed(broker: Broker, group: str) -> dict[Any, int]:
    fetched = await broker.engine.groups.fetch(FetchRequest(group, None))
    return {spot: value.offset for spot, value in fetched.items()}  # type: ignore[union-attr]


async def shard(broker: Broker, group: str = "g") -> Shard[Any]:
    found = await broker.engine.groups.shards.of(group)
    await found.machine()
    return found


def directory(group: str = "g") -> str:
    return f"data/logs/{OFFSETS_TOPIC}/{shard_of(group, 16)}"


@virtual
async def test_after_a_clean_stop_nothing_is_replayed() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        for offset in range(50):
            await commit(broker, "g", offset, offset % 5)
    async with running(machine.broker()) as broker:
        assert (await shard(broker)).replayed == 0
        assert await committed(broker, "g") == {("t", at): 45 + at for at in range(5)}


@virtual
async def test_after_a_kill_few_records_are_replayed() -> None:
    machine = Machine()
    with patch.object(shards, "SNAPSHOT_EVERY", 20):
        broker = machine.broker()
        await broker.start()
        for offset in range(500):
            await commit(broker, "g", offset, offset % 5)
        await wait_for(lambda: machine.disk.exists(f"{directory()}/snapshot"))
        machine.disk = machine.disk.after_power_cut()
        async with running(machine.broker()) as broker:
            assert 0 < (await shard(broker)).replayed <= 60
            assert await committed(broker, "g") == {("t", at): 495 + at for at in range(5)}


@pytest.mark.parametrize("damage", ["deleted", "flipped", "cut"])
def test_without_its_snapshot_the_log_gives_the_same_state(damage: str) -> None:
    @virtual
    async def body() -> None:
        machine = Machine()
        async with running(machine.broker()) as broker:
            for offset in range(30):
                await commit(broker, "g", offset, offset % 3)
        path = f"{directory()}/snapshot"
        if damage == "deleted":
            machine.disk.unlink(path)
        elif damage == "flipped":
            machine.disk.flip_byte(path, 40, 1)
        else:
            machine.disk.open(path).truncate(30)
        async with running(machine.broker()) as broker:
            assert (await shard(broker)).replayed == 30
            assert await committed(broker, "g") == {("t", at): 27 + at for at in range(3)}

    body()


@virtual
async def test_every_flipped_byte_of_a_snapshot_is_found() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await commit(broker, "g", 7)
    path = f"{directory()}/snapshot"
    for at in range(machine.disk.open(path).size()):
        machine.disk.flip_byte(path, at, 0x10)
        broker = machine.broker()
        await broker.start()
        assert (await shard(broker)).replayed == 1, f"byte {at} was taken as it is"
        assert await committed(broker, "g") == {("t", 0): 7}
        await broker.engine.abandon()
        broker.directory.release()
        machine.disk.flip_byte(path, at, 0x10)


@virtual
async def test_what_was_answered_survives_a_power_cut_and_nothing_else_was_told() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    answered = -1
    for offset in range(40):
        await commit(broker, "g", offset)
        answered = offset
    task = asyncio.ensure_future(commit(broker, "g", 99))
    await asyncio.sleep(0)
    asked = asyncio.ensure_future(committed(broker, "g"))
    await asyncio.sleep(0)
    assert not task.done() and not asked.done(), "an answer came before the record was durable"
    machine.disk = machine.disk.after_power_cut()
    task.cancel()
    asked.cancel()
    async with running(machine.broker()) as broker:
        assert (await committed(broker, "g"))["t", 0] in (answered, 99)


@virtual
async def test_after_a_failed_append_the_state_is_what_the_log_says() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await commit(broker, "g", 1)
        machine.disk.fail("write_at", errno.ENOSPC, path_contains=OFFSETS_TOPIC)
        with pytest.raises(PenstockError) as caught:
            await commit(broker, "g", 2)
        assert caught.value.code is Code.COORDINATOR_NOT_AVAILABLE
        assert await committed(broker, "g") == {("t", 0): 1}
        await commit(broker, "g", 3)
        assert await committed(broker, "g") == {("t", 0): 3}


@virtual
async def test_internal_topics_are_the_brokers_own() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        engine = broker.engine
        with pytest.raises(PenstockError, match="the broker's own"):
            await engine.create_topic(OFFSETS_TOPIC)
        topic = await engine.internal_topic(OFFSETS_TOPIC)
        assert await engine.internal_topic(OFFSETS_TOPIC) is topic
        for refused in (engine.delete_topic(topic), engine.create_partitions(topic, 99)):
            with pytest.raises(PenstockError, match="the broker's own"):
                await refused
        with pytest.raises(PenstockError, match="written by the broker only"):
            await produce(topic.partitions[0], batch_of([b"x"], broker.clock))
        both = await asyncio.gather(*(engine.internal_topic(TRANSACTIONS_TOPIC) for _ in range(2)))
        assert both[0] is both[1]


@virtual
async def test_offsets_of_a_deleted_topic_go() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1)
        await commit(broker, "g", 5)
        await broker.engine.delete_topic(topic)
        assert await committed(broker, "g") == {}
    async with running(machine.broker()) as broker:
        assert await committed(broker, "g") == {}


def test_shards_are_found_by_javas_hash() -> None:
    assert [shard_of(name, 50) for name in ("", "a", "test-group", "é", "𝄞")] == [
        0,
        97 % 50,
        (sum(31 ** (9 - at) * ord(c) for at, c in enumerate("test-group")) & 0x7FFFFFFF) % 50,
        0xE9 % 50,
        ((31 * 0xD834 + 0xDD1E) & 0x7FFFFFFF) % 50,
    ]


@virtual
async def test_a_snapshot_older_than_a_compaction_is_not_used() -> None:
    """Above it, the log may lack tombstones and markers that the snapshot's records need."""
    machine = Machine()
    broker = machine.broker(upkeep_ms=60_000)
    await broker.start()
    engine = broker.engine
    await commit(broker, "g", 5)
    mine = shard_of("g", 16)
    others = [name for name in (f"x{at}" for at in range(600)) if shard_of(name, 16) == mine][:20]
    identity = await engine.transactions.init("tx", 60_000)
    check = await engine.transactions.add_offsets("tx", *identity, others[0])
    pending = TransactionalCommit(others[0], *identity, "", -1, None, {("t", 0): NewOffset(7)})
    await engine.groups.commit_in_transaction(pending, check)
    found = await shard(broker)
    await found.save()
    with patch.object(Shard, "save_soon"):  # the one after a compaction may be lost as well
        await engine.transactions.end(EndRequest("tx", *identity, True))
        await asyncio.sleep(1)
        await engine.groups.delete("g")
        for day in range(5):
            for name in others:
                await commit(broker, name, 100 + day)
            found.partition.opened().want_roll()
            await asyncio.sleep(1.2 * 86_400)
    assert broker.stats.compactions > 1
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as broker:
        fetched: Any = await broker.engine.groups.fetch(FetchRequest("g", (("t", 0),)))
        assert fetched["t", 0].offset == -1
        stable: Any = await broker.engine.groups.fetch(FetchRequest(others[0], (("t", 0),), require_stable=True))
        assert stable["t", 0].offset == 104


@virtual
async def test_a_coordinator_that_cannot_be_loaded_is_tried_again_by_itself() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await commit(broker, "g", 1)
        found = await shard(broker)
        machine.disk.fail("write_at", errno.ENOSPC, path_contains=OFFSETS_TOPIC)
        machine.disk.fail("open", errno.EMFILE, path_contains="snapshot", times=3)
        with pytest.raises(PenstockError):
            await commit(broker, "g", 2)
        await wait_for(lambda: found.loaded is not None)
        assert await committed(broker, "g") == {("t", 0): 1}


@virtual
async def test_a_stop_without_room_for_a_snapshot_is_clean() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await commit(broker, "g", 1)
        machine.disk.fail("write_at", errno.ENOSPC, path_contains="snapshot")
    assert machine.disk.exists("data/clean-shutdown")
    async with running(machine.broker()) as broker:
        assert await committed(broker, "g") == {("t", 0): 1}


@virtual
async def test_a_step_that_breaks_off_costs_the_machine() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await commit(broker, "g", 1)
        found = await shard(broker)
        before = found.loaded

        def breaks(*_: object) -> Outcome:
            raise KeyError("a bug")

        with pytest.raises(KeyError):
            await found.ask(breaks)
        await wait_for(lambda: found.loaded is not None)
        assert found.loaded is not before
        assert await committed(broker, "g") == {("t", 0): 1}


@virtual
async def test_a_timer_that_does_not_know_when_it_goes_off() -> None:
    """uvloop gives a plain handle for what is due by the time it is asked."""
    machine = Machine()
    async with running(machine.broker()) as broker:
        found = await shard(broker)
        loop, ticks = asyncio.get_running_loop(), list[None]()
        state = Mock(next_deadline=lambda: machine.clock.now_ms() - 1000, tick=lambda now: ticks.append(None))
        with patch.object(loop, "call_at", lambda _, callback: loop.call_soon(callback)):
            for _ in range(2):
                found._set_timer(state)
        found._timer = None
    assert broker.failures == []
