"""A connection on the loop the broker runs on, which reads sooner after a pause than asyncio's own."""

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from tests.hand_clock import HandClock

from penstock.net.connection import Answer, Connections, Limits
from penstock.net.tcp import TcpNetwork
from penstock.observe.stats import Stats


class SlowEcho:
    """A session each of whose requests takes longer than a connection may have the loop."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock

    def handle(self, frame: memoryview, answer: Answer) -> None:
        self._clock.now += 0.02
        answer.send((struct.pack(">i", len(frame)) + frame,))

    def disconnected(self) -> None:
        return None


def on_uvloop(body: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(body(), 60))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [10, 1000, 6000, 300_000])
def test_many_slow_requests_at_once_are_all_answered(size: int) -> None:
    async def body() -> None:
        clock = HandClock()
        soon = asyncio.get_running_loop().call_soon
        connections = Connections(Limits(), Stats(), clock, lambda _: SlowEcho(clock), soon)
        listener = await TcpNetwork().listen("127.0.0.1", 0, connections.accept)
        reader, writer = await asyncio.open_connection(*listener.address)
        frames = [struct.pack(">i", size) + bytes([number]) * size for number in range(60)]
        writer.write(b"".join(frames))
        assert await reader.readexactly(60 * (size + 4)) == b"".join(frames)
        writer.close()
        await listener.close()

    on_uvloop(body)
