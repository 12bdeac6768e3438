"""The steps of one turn of the event loop: one batch, in their order, and nobody is told before it is durable."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.simulated_broker import Broker, read_all, running, virtual, wait_for
from tests.unit.engine.coordination.test_shard import commit, committed
from tests.unit.engine.test_engine import Machine

from penstock.engine.coordination import shard as shards
from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC, shard_of
from penstock.engine.coordination.shard import Shard
from penstock.engine.groups.offsets import CommitRequest, NewOffset, TransactionalCommit
from penstock.errors import Code, PenstockError

NAMES = [name for name in (f"g{at}" for at in range(900)) if shard_of(name, 16) == shard_of("g", 16)][:30]
"""Groups that live in one shard."""


class Scene:
    def __init__(self, machine: Machine, broker: Broker, shard: Shard[Any]) -> None:
        self.machine = machine
        self.broker = broker
        self.shard = shard

    def commits(self, names: list[str], offset: int) -> list["asyncio.Future[None]"]:
        return [asyncio.ensure_future(commit(self.broker, name, offset)) for name in names]

    def take(self, group: str, partition: int, offset: int) -> None:
        """A step, in this turn."""
        request = CommitRequest(group, "", -1, None, {("t", partition): NewOffset(offset)})
        self.shard.step(lambda machine, now: machine.commit(now, None, request))

    async def until_committed(self) -> None:
        self.shard.end_turn()
        partition = self.shard.partition
        await wait_for(lambda: partition.high_watermark == partition.opened().end_offset)

    async def batches(self) -> list[int]:
        """How many records each batch has; a marker is 0."""
        stored = await read_all(self.shard.partition)
        return [0 if each.header.is_control else each.header.record_count for each in stored]


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    machine = Machine()
    async with running(machine.broker()) as broker:
        shard = await broker.engine.groups.shards.of("g")
        await shard.load()
        yield Scene(machine, broker, shard)


@virtual
async def test_they_are_one_batch() -> None:
    async with scene() as it:
        await asyncio.gather(*it.commits(NAMES, 7))
        assert await it.batches() == [len(NAMES)]
        await asyncio.gather(*it.commits(NAMES[:2], 8))
        assert await it.batches() == [len(NAMES), 2]
        assert (await committed(it.broker, NAMES[0]), await committed(it.broker, NAMES[2])) == (
            {("t", 0): 8},
            {("t", 0): 7},
        )


@virtual
async def test_nobody_is_told_before_it_is_durable_and_who_only_reads_waits_as_well() -> None:
    async with scene() as it:
        it.take("g", 0, 7)
        asked: list[asyncio.Future[Any]] = [asyncio.ensure_future(committed(it.broker, "g")), *it.commits(NAMES[:1], 7)]
        log = it.shard.partition.opened()
        while log.end_offset == 0:
            assert not any(each.done() for each in asked)
            await asyncio.sleep(0)
        assert it.shard.partition.high_watermark == 0
        assert not any(each.done() for each in asked)
        assert await asyncio.gather(*asked) == [{("t", 0): 7}, None]


@virtual
async def test_a_failed_append_sends_all_of_them_away() -> None:
    async with scene() as it:
        await asyncio.gather(*it.commits(NAMES, 7))
        it.machine.disk.fail("write_at", errno.ENOSPC, path_contains=OFFSETS_TOPIC)
        results = await asyncio.gather(*it.commits(NAMES, 8), return_exceptions=True)
        codes = {result.code for result in results if isinstance(result, PenstockError)}
        assert codes == {Code.COORDINATOR_NOT_AVAILABLE} and all(result is not None for result in results)
        assert [await committed(it.broker, name) for name in NAMES] == [{("t", 0): 7}] * len(NAMES)
        await asyncio.gather(*it.commits(NAMES, 9))
        assert await it.batches() == [len(NAMES), len(NAMES)]


@virtual
async def test_what_is_part_of_a_transaction_has_its_own_batch_in_its_place() -> None:
    async with scene() as it:
        engine = it.broker.engine
        identity = await engine.transactions.init("tx", 60_000)
        check = await engine.transactions.add_offsets("tx", *identity, NAMES[2])
        pending = TransactionalCommit(NAMES[2], *identity, "", -1, None, {("t", 0): NewOffset(7)})
        for name in NAMES[:2]:
            it.take(name, 0, 7)
        within = asyncio.ensure_future(engine.groups.commit_in_transaction(pending, check))
        await wait_for(lambda: it.shard.partition.opened().end_offset == 3)
        for name in NAMES[3:6]:
            it.take(name, 0, 7)
        await within
        await it.until_committed()
        stored = await read_all(it.shard.partition)
        kinds = [(each.header.record_count, each.header.is_transactional) for each in stored]
        assert kinds == [(2, False), (1, True), (3, False)]


@virtual
async def test_a_marker_comes_behind_what_was_decided_before_it() -> None:
    """Of a plain and a transactional commit the later one counts: by the log, and by the machine."""
    async with scene() as it:
        engine = it.broker.engine
        identity = await engine.transactions.init("tx", 60_000)
        check = await engine.transactions.add_offsets("tx", *identity, "g")
        pending = TransactionalCommit("g", *identity, "", -1, None, {("t", 0): NewOffset(7)})
        await engine.groups.commit_in_transaction(pending, check)
        it.take("g", 1, 8)
        await engine.transactions.write_marker(OFFSETS_TOPIC, it.shard.partition.index, *identity, 0, True)
        assert await it.batches() == [1, 1, 0]
        assert await committed(it.broker, "g") == {("t", 0): 7, ("t", 1): 8}


@virtual
async def test_a_snapshot_ends_the_turn_so_that_it_is_no_further_than_the_log() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    it = Scene(machine, broker, await broker.engine.groups.shards.of("g"))
    await commit(broker, "g", 7)
    it.take("g", 0, 8)
    await it.shard.save()
    assert await it.batches() == [1, 1]
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as later:
        found = await later.engine.groups.shards.of("g")
        await found.load()
        assert found.replayed == 0
        assert await committed(later, "g") == {("t", 0): 8}


@virtual
async def test_who_loses_the_partition_within_a_turn_appends_nothing_of_it() -> None:
    async with scene() as it:
        asked = it.commits(NAMES, 7)
        await asyncio.sleep(0)
        partition, led = it.shard.partition, it.shard.partition.state
        assert partition.opened().end_offset == 0 and it.shard.loaded is not None
        partition.follow(replace(led, leader=2, leader_epoch=led.leader_epoch + 1))
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert {getattr(result, "code", None) for result in results} == {Code.NOT_COORDINATOR}
        partition.lead(replace(led, leader_epoch=led.leader_epoch + 2))
        assert await committed(it.broker, NAMES[0]) == {}
        assert partition.opened().end_offset == 0


@virtual
async def test_a_turn_that_has_come_to_much_ends_at_once() -> None:
    with patch.object(shards, "_MOST_GATHERED_BYTES", 200):
        async with scene() as it:
            await asyncio.gather(*it.commits(NAMES, 7))
            found = await it.batches()
            assert sum(found) == len(NAMES) and 1 < max(found) < 8
