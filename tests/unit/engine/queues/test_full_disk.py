"""A queue on a full disk: nothing is confirmed that is not kept, nothing is lost, and it goes on by itself."""

import asyncio
from collections.abc import Awaitable

import pytest
from tests.simulated_broker import running, virtual
from tests.unit.engine.queues.test_queues import ACK, begun, send, values
from tests.unit.engine.test_engine import Machine

from penstock.errors import Code, PenstockError


async def is_refused(asked: Awaitable[object]) -> Code:
    with pytest.raises(PenstockError) as refused:
        async with asyncio.timeout(60):
            await asked
    return refused.value.code


@virtual
async def test_it_goes_on_when_there_is_room() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker, visibility="10s", backoff="none")
        await send(reader, b"a", b"b", b"c")
        (a, b) = await reader.receive(2)
        await asyncio.sleep(1)
        machine.disk.capacity_bytes = 0
        assert await is_refused(reader.settle(ACK, a)) is Code.COORDINATOR_NOT_AVAILABLE
        assert await is_refused(send(reader, b"d")) is Code.STORAGE_FULL
        await asyncio.sleep(30)  # virtual: the lease is over, and nobody can note that
        machine.disk.capacity_bytes = None
        found = [each for _ in range(3) for each in await reader.receive(wait_s=60)]
        assert sorted((each.message.value or b"", each.deliveries, each.attempts) for each in found) == [
            (b"a", 2, 1),
            (b"b", 2, 1),
            (b"c", 1, 0),
        ]
        await reader.settle(ACK, *found)
        assert await is_refused(reader.settle(ACK, b)) is Code.STALE_RECEIPT
        assert values(await reader.receive()) == []
