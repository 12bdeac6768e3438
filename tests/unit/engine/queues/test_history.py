"""What the ledger's log says of one message."""

import asyncio

from tests.simulated_broker import running, virtual
from tests.unit.engine.queues.test_queues import ACK, NACK, REJECT, RELEASE, Reader, begun, letters, send
from tests.unit.engine.test_engine import Machine

from penstock.engine.queues.history import What


async def told(reader: Reader, offset: int) -> list[str]:
    engine = reader.engine
    events = await engine.queues.history(reader.partition, "q", offset, engine.turns)
    return [f"{each.what}: {each.why}" if each.why else str(each.what) for each in events]


@virtual
async def test_each_step_of_a_message_and_of_no_other() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        await send(reader, b"a", b"b", b"c")
        assert await told(reader, 0) == []
        await reader.settle(RELEASE, *await reader.receive())
        await reader.settle(NACK, *await reader.receive(2))
        first, second = await reader.receive(2)
        await reader.settle(ACK, first)
        await reader.settle(REJECT, second)
        assert [each.value for each in await letters(broker)] == [b"b"]
        begin = ["leased", "released", "leased", "failed", "leased"]
        assert await told(reader, 0) == [*begin, "acknowledged"]
        assert await told(reader, 1) == [*begin, "dying: rejected: broken", "written to dead letters", "dead letter"]
        assert await told(reader, 2) == ["leased", "released"]


@virtual
async def test_what_was_purged_and_what_was_settled_before() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        await send(reader, b"a", b"b")
        await reader.settle(ACK, *await reader.receive(1))
        await broker.engine.queues.purge(reader.partition, "q")
        assert await told(reader, 0) == ["leased", "acknowledged"]
        assert await told(reader, 1) == ["removed"]
        await broker.engine.queues.restart(reader.partition, "q", 0)
        assert (await told(reader, 1))[-1] == str(What.BEGUN_ANEW)


@virtual
async def test_whose_lease_it_was_and_until_when() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker, visibility="10s", backoff="fixed:5s")
        await send(reader, b"a")
        (given,) = await reader.receive()
        await asyncio.sleep(11)
        leased, failed = await broker.engine.queues.history(reader.partition, "q", 0, broker.engine.turns)
        assert (leased.consumer, leased.until_ms) == ("c", given.deadline)
        assert failed.what is What.FAILED
        assert failed.until_ms == failed.at_ms + 5000
