"""Disks and queues: one old message keeps its own bytes on the disk, and not all that came behind it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from tests.simulated_broker import Broker, running, virtual, wait_for
from tests.unit.engine.queues.test_queues import ACK, Reader, begun, send, values
from tests.unit.engine.test_engine import Machine

from penstock.engine.needs import PartitionNeeds
from penstock.engine.queues.holdings import find_holding
from penstock.engine.queues.machine import LedgerMachine
from penstock.engine.queues.needed import MOST_RANGES
from penstock.engine.queues.settings import QUEUE_RULES
from penstock.engine.queues.window import Run
from penstock.errors import PenstockError
from penstock.storage.compaction.job import Job, Result
from penstock.storage.compaction.process import InlineCompaction

SMALL = {"segment.bytes": "4096", "retention.ms": "600000"}
HOUR_S = 3600
COUNT = 400


async def with_an_old_message(broker: Broker, **settings: str) -> Reader:
    """`COUNT` messages, all acknowledged but the eleventh, which is delayed."""
    reader = await begun(broker, **settings)
    for first in range(0, COUNT, 20):
        await send(reader, *(b"%d" % number + b"." * 100 for number in range(first, first + 20)))
    deliveries = await reader.receive(COUNT, visibility_ms=3 * HOUR_S * 1000)
    assert len(deliveries) == COUNT
    await reader.settle(ACK, *deliveries[:10], *deliveries[11:])
    return reader


@virtual
async def test_an_old_message_keeps_its_own_bytes_and_is_delivered_at_last() -> None:
    machine = Machine()
    broker = machine.broker(defaults=SMALL, upkeep_ms=30_000)
    await broker.start()
    reader = await with_an_old_message(broker)
    log = reader.partition.leading()
    before = log.size_bytes
    await asyncio.sleep(HOUR_S)
    now_ms = broker.clock.now_ms()
    holding = await find_holding(reader.partition, 10, now_ms, durable=True)
    assert log.size_bytes < before / 10
    assert 0 < holding.held_bytes <= log.size_bytes
    assert broker.stats.thinnings > 0 and log.log_start == 0
    machine.disk.cut_power()
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker(defaults=SMALL, upkeep_ms=30_000)) as again:
        reader = Reader(again)
        await asyncio.sleep(3 * HOUR_S)
        (late,) = await reader.receive()
        assert values([late])[0] == b"10" + b"." * 100 and late.message.offset == 10
        await reader.settle(ACK, late)
        await asyncio.sleep(HOUR_S)
        log = reader.partition.leading()
        assert (log.log_start, log.size_bytes) == (COUNT, 0)
        assert await reader.receive() == []


@virtual
async def test_what_another_queue_has_not_settled_stays_as_well() -> None:
    machine = Machine()
    async with running(machine.broker(defaults=SMALL, upkeep_ms=30_000)) as broker:
        reader = await with_an_old_message(broker)
        topic = broker.engine.topics.get("q")
        assert topic is not None
        await broker.engine.alter_queues(topic, lambda queues: {**queues, "other": {}, "loose": {"durable": "false"}})
        other = Reader(broker, group="other")
        taken = await other.receive(COUNT, visibility_ms=3 * HOUR_S * 1000)
        await other.settle(ACK, *taken[:20], *taken[21:])
        await asyncio.sleep(HOUR_S)
        log = reader.partition.leading()
        assert log.size_bytes < 4096, "the segment that is written, and two messages"
        await asyncio.sleep(3 * HOUR_S)
        assert [each.message.offset for each in await reader.receive()] == [10]
        assert [each.message.offset for each in await other.receive()] == [20]


@contextmanager
def at_the_end_of_a_pass(act: Callable[[], Awaitable[object]]) -> Iterator[list[Result]]:
    """Has something happen when segments are made, and not in place yet; once."""
    run, seen = InlineCompaction.run, list[Result]()

    async def and_act(self: InlineCompaction, job: Job) -> Result:
        result = await run(self, job)
        if not seen:
            seen.append(result)
            await act()
        return result

    with patch.object(InlineCompaction, "run", and_act):
        yield seen


@pytest.mark.parametrize("what", ["made", "anew", "purged"])
def test_a_queue_that_comes_to_need_more_during_a_pass_finds_it(what: str) -> None:
    @virtual
    async def body() -> None:
        machine = Machine()
        async with running(machine.broker(defaults=SMALL, upkeep_ms=30_000)) as broker:
            reader = await with_an_old_message(broker)
            topic = broker.engine.topics.get("q")
            assert topic is not None
            queues = broker.engine.queues

            async def act() -> None:
                if what == "made":
                    await broker.engine.alter_queues(topic, lambda queues: {**queues, "new": {}})
                elif what == "anew":
                    await queues.restart(reader.partition, "q", 100)
                else:
                    await queues.purge(reader.partition, "q")

            with at_the_end_of_a_pass(act) as seen:
                await wait_for(lambda: seen, 2 * HOUR_S)
                await asyncio.sleep(1)
            assert seen[0].changed
            log = reader.partition.leading()
            if what == "purged":  # needs less
                assert broker.stats.thinnings > 0
                return
            assert broker.stats.thinnings == 0 and log.size_bytes > COUNT * 100
            await asyncio.sleep(HOUR_S)
            there = await Reader(broker, group="new" if what == "made" else "q").receive(COUNT)
            first = 0 if what == "made" else 100
            assert [each.message.offset for each in there] == list(range(first, COUNT))
            assert broker.stats.compaction_failures == 0

    body()


@virtual
async def test_what_was_acknowledged_goes_when_that_is_safe_and_not_before() -> None:
    """A crash that takes the acknowledgement along leaves the message."""
    machine = Machine()
    broker = machine.broker(defaults=SMALL, upkeep_ms=30_000)
    await broker.start()
    reader = await with_an_old_message(broker)
    needs = PartitionNeeds(reader.partition)
    assert (await needs.ask(0, COUNT - 1)).ranges == [(10, 10)]
    shard = broker.engine.queues.shards.of(reader.partition)
    shard.step(lambda machine, now: machine.purge(now, None, "q", 20))
    assert needs.ask_now(0, COUNT - 1).ranges == []
    asked = asyncio.create_task(needs.ask(0, COUNT - 1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not asked.done() and shard.partition.high_watermark < shard.partition.leading().end_offset
    assert (await asked).ranges == []
    assert shard.partition.high_watermark == shard.partition.leading().end_offset
    machine.disk.cut_power()
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker(defaults=SMALL, upkeep_ms=30_000)) as again:
        partition = again.partition("q")
        await again.engine.queues.figures(partition, "q")
        assert (await PartitionNeeds(partition).ask(0, COUNT - 1)).ranges == []


@virtual
async def test_whoever_cannot_tell_needs_everything_from_its_floor_on() -> None:
    machine = Machine()
    async with running(machine.broker(defaults=SMALL, upkeep_ms=30_000)) as broker:
        reader = await with_an_old_message(broker)
        needs = PartitionNeeds(reader.partition)
        floor: int | None = 300
        reader.partition.leading().floors.append(lambda: floor)
        assert (await needs.ask(0, COUNT - 1)).ranges == [(10, 10), (300, COUNT - 1)]
        assert needs.ask_now(20, 350).ranges == [(300, 350)]
        floor = None
        assert needs.ask_now(0, COUNT - 1).ranges == [(10, 10)]
        shard = broker.engine.queues.shards.of(reader.partition)
        shard.lost()
        assert needs.ask_now(5, 50).ranges == [(5, 50)], "a ledger that is not loaded"
        await shard.load()
        shard.partition.follow(shard.partition.state)
        assert needs.ask_now(5, 50).ranges == [(5, 50)], "and one that is led by another broker"
        with pytest.raises(PenstockError):
            await needs.ask(5, 50)


def ledger(*durable: str) -> LedgerMachine:
    ids = iter(range(1, 100))
    made = LedgerMachine(lambda group: QUEUE_RULES, lambda: durable, lambda: next(ids), lambda: 0.0)
    for group in ("a", "b"):
        made.open(0, "to", group, 0)
    return made


def test_what_is_needed_is_what_any_durable_queue_has_not_settled() -> None:
    made = ledger("a", "b")
    for name, settled in (("a", ((0, 2), (5, 1500))), ("b", ((1, 3), (7, 1400)))):
        group = made.get(name)
        assert group is not None
        group.window.take_new(1999)
        for first, last in settled:
            group.window.set(first, last, 4)
    assert made.needed(0, 2500) == ([Run(0, 0), Run(3, 6), Run(1401, 2500)], 2500)
    assert made.needed(8, 1400) == ([], 1400)
    assert made.needed(4, 1450) == ([Run(4, 6), Run(1401, 1450)], 1450)
    assert ledger().needed(0, 9) == ([], 9), "nobody's messages must stay"
    assert ledger("a", "new").needed(3, 9) == ((Run(3, 9),), 9), "a queue that is not known yet"


def test_very_many_ranges_are_told_in_parts() -> None:
    made = ledger("a")
    group = made.get("a")
    assert group is not None
    end = 3 * MOST_RANGES
    group.window.take_new(end)
    for offset in range(1, end, 2):
        group.window.set(offset, offset, 4)
    at = 0
    found: list[tuple[int, int]] = []
    while at <= end:
        ranges, last = made.needed(at, end)
        assert len(ranges) <= MOST_RANGES and at <= last <= end
        found += ranges
        at = last + 1
    assert found == [Run(offset, offset) for offset in range(0, end + 1, 2)]
