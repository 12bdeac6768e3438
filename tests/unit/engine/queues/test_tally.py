"""What queues have done is counted once: by who decided it, and not when a ledger is read."""

import asyncio

from tests.simulated_broker import Broker, produce, running, virtual, wait_for
from tests.unit.engine.queues.test_queues import ACK, NACK, REJECT, RELEASE, begun, letters, send
from tests.unit.engine.test_engine import Machine

from penstock.engine.queues.headers import TTL_MS
from penstock.engine.queues.window import Run
from penstock.errors import Code, PenstockError
from penstock.records.build import NewRecord, build_batch


def settled(broker: Broker) -> dict[str, int]:
    return {how: count for (how,), count in broker.stats.queue_settled.items() if count}


def returned(broker: Broker) -> dict[str, int]:
    return {cause: count for (cause,), count in broker.stats.queue_returned.items() if count}


def dead_letters(broker: Broker) -> dict[str, int]:
    return {reason: count for (reason,), count in broker.stats.queue_dead_letters.items() if count}


@virtual
async def test_leased_settled_and_returned_messages() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker, backoff="none", visibility="2s")
        await send(reader, *[b"%d" % number for number in range(10)])
        leased = await reader.receive()
        await reader.settle(ACK, *leased[:4])
        await reader.settle(NACK, leased[4])
        await reader.settle(RELEASE, *leased[5:7])
        assert returned(broker) == {"nack": 1, "release": 2}
        await asyncio.sleep(3)
        assert returned(broker) == {"nack": 1, "release": 2, "overdue": 3}
        assert len(await reader.receive(3)) == 3
        count = await broker.engine.queues.leave(reader.partition, "q", "c", graceful=False)
        assert returned(broker) == {"nack": 1, "release": 2, "overdue": 3, "lost": count}
        assert await broker.engine.queues.purge(reader.partition, "q") == 6
        assert settled(broker) == {"acked": 4, "purged": 6}
        assert broker.stats.queue_leased == 13


@virtual
async def test_a_ledger_that_is_read_counts_nothing() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    reader = await begun(broker, backoff="none")
    await send(reader, b"a", b"b", b"c")
    a, b, _ = await reader.receive()
    await reader.settle(ACK, a)
    await reader.settle(NACK, b)
    machine.disk.cut_power()
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as again:
        figures = await again.engine.queues.figures(again.partition("q"), "q")
        assert (figures.start, figures.ready, figures.leased) == (1, 1, 1)
        assert (again.stats.queue_leased, settled(again), returned(again)) == (0, {}, {})


@virtual
async def test_dead_letters_by_why_and_those_that_are_brought_back() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker, backoff="none", **{"max-attempts": "1"})
        await send(reader, b"a", b"b", b"c")
        a, b, c = await reader.receive()
        await reader.settle(REJECT, a, b)
        await reader.settle(NACK, c)
        await wait_for(lambda: dead_letters(broker) == {"rejected": 2, "attempts": 1})
        assert settled(broker) == {"buried": 3}
        await broker.engine.queues.redrive(broker.partition("dlq.q"), "q", [Run(0, 1)])
        assert len(await reader.receive(wait_s=10)) == 2
        await wait_for(lambda: broker.stats.queue_redriven == 2)
        assert dead_letters(broker) == {"rejected": 2, "attempts": 1}


@virtual
async def test_a_burial_that_fails_is_counted_each_time_and_the_letter_once() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        await send(reader, b"a")
        take, errors = broker.engine.producer_ids.take, [PenstockError(Code.STORAGE_FAILED, "not now")] * 2

        async def take_the_third_time() -> int:
            if errors:
                raise errors.pop()
            return await take()

        broker.engine.producer_ids.take = take_the_third_time  # type: ignore[method-assign]
        await reader.settle(REJECT, *await reader.receive())
        assert len(await letters(broker)) == 1
        assert broker.stats.queue_burial_failures == 2
        assert dead_letters(broker) == {"rejected": 1}


@virtual
async def test_headers_that_cannot_be_read() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        now = broker.clock.now_ms()
        wrong = NewRecord(None, b"a", ((TTL_MS, b"soon"), ("x", b"y")), now)
        right = NewRecord(None, b"b", ((TTL_MS, b"60000"),), now)
        await produce(reader.partition, bytearray(build_batch([wrong, right])))
        assert len(await reader.receive()) == 2
        assert broker.stats.queue_unread_headers == 1
