"""A broker's connection to another: answers by number, views, deadlines, and what a lost peer looks like."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.net.connection import PeerError
from penstock.net.frames import FrameBuffer
from penstock.ports.network import Transport
from penstock.protocols.internal.peer import Peer, PeerGone
from penstock.protocols.kafka.handlers import metadata
from penstock.testing.memory_network import MemoryNetwork
from penstock.testing.virtual_clock import VirtualClock, run_virtual

Ask = tuple[int, int, int, bytes]
"""API key, version, correlation id, and what is behind the client id."""


class Server:
    """One connection of the other broker; a test answers by hand."""

    def __init__(self, world: "PeerAndServers") -> None:
        self._world = world
        self._buffer = FrameBuffer(1 << 20)
        self.transport: Transport | None = None
        self.asked: list[Ask] = []
        self.lost = False

    def connected(self, transport: Transport) -> None:
        self.transport = transport
        self._world.servers.append(self)

    def get_buffer(self) -> memoryview:
        return self._buffer.writable()

    def received(self, size: int) -> None:
        self._buffer.add(size)
        while (frame := self._buffer.next()) is not None:
            key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
            assert bytes(frame[10 : 10 + length]) == b"broker"
            self.asked.append((key, version, correlation_id, bytes(frame[10 + length :])))

    def drained(self) -> None: ...

    def disconnected(self) -> None:
        self.lost = True

    def answer(self, number: int, body: bytes, *, tags: bytes = b"") -> None:
        self.send(struct.pack(">i", self.asked[number][2]) + tags + body)

    def send(self, frame: bytes) -> None:
        assert self.transport is not None
        self.transport.write(struct.pack(">i", len(frame)) + frame)


class PeerAndServers:
    def __init__(self, max_piece_bytes: int | None) -> None:
        self.network = MemoryNetwork(1, max_piece_bytes=max_piece_bytes)
        self.servers: list[Server] = []
        self.peer = Peer(self.network.of("a"), "b", 9, VirtualClock(), timeout_s=20, connect_timeout_s=5)

    async def listen(self) -> None:
        await self.network.listen("b", 9, lambda: Server(self))

    def ask(self, body: bytes = b"?", *, flexible: bool = False, timeout_s: float | None = None) -> asyncio.Task[bytes]:
        work = self.peer.request(3, 7, body, flexible=flexible, handle=bytes, timeout_s=timeout_s)
        return asyncio.create_task(work)

    async def ask_in_turn(self, *bodies: bytes, **options: Any) -> list[asyncio.Task[bytes]]:
        """Tasks whose requests have arrived in this order."""
        asking = []
        for number, body in enumerate(bodies, 1):
            asking.append(self.ask(body, **options))
            await self.asked(number)
        return asking

    async def asked(self, count: int, server: int = 0) -> Server:
        await until(lambda: len(self.servers) > server and len(self.servers[server].asked) == count)
        return self.servers[server]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polling is free in virtual time
            await asyncio.sleep(0.001)


def simulate(scenario: Callable[[PeerAndServers], Awaitable[None]], *, max_piece_bytes: int | None = 100) -> None:
    async def main() -> None:
        world = PeerAndServers(max_piece_bytes)
        await world.listen()
        await scenario(world)

    run_virtual(main, 1)


@pytest.mark.parametrize("flexible", [False, True])
def test_several_under_way_are_told_apart(flexible: bool) -> None:
    async def scenario(world: PeerAndServers) -> None:
        asking = [world.ask(body, flexible=flexible) for body in (b"one", b"two", b"three")]
        server = await world.asked(3)
        start = b"\0" if flexible else b""
        assert sorted(ask[3] for ask in server.asked) == [start + b"one", start + b"three", start + b"two"]
        assert {ask[:2] for ask in server.asked} == {(3, 7)}
        for number in (2, 0, 1):
            tags = b"\x01\x05\x02xy" if flexible else b""
            server.answer(number, b"re: " + server.asked[number][3][len(start) :], tags=tags)
        assert [await each for each in asking] == [b"re: one", b"re: two", b"re: three"]
        assert len(world.servers) == 1

    simulate(scenario)


def test_a_large_answer_is_handed_over_in_place() -> None:
    async def scenario(world: PeerAndServers) -> None:
        seen: list[memoryview] = []

        def handle(view: memoryview) -> int:
            seen.append(view)
            assert bytes(view[:3]) == b"xxx"
            return len(view)

        asking = asyncio.create_task(world.peer.request(1, 17, b"", flexible=False, handle=handle))
        server = await world.asked(1)
        server.answer(0, b"x" * (5 << 20))
        assert await asking == 5 << 20
        assert not isinstance(seen[0].obj, bytes), "a copy"

    simulate(scenario, max_piece_bytes=None)


def test_what_the_handler_raises_is_the_callers() -> None:
    async def scenario(world: PeerAndServers) -> None:
        def handle(view: memoryview) -> None:
            raise PeerError("nonsense")

        asking = asyncio.create_task(world.peer.request(1, 17, b"", flexible=False, handle=handle))
        server = await world.asked(1)
        server.answer(0, b"x")
        with pytest.raises(PeerError, match="nonsense"):
            await asking
        again = world.ask()
        await world.asked(2)
        server.answer(1, b"still here")
        assert await again == b"still here"

    simulate(scenario)


def test_by_schema() -> None:
    async def scenario(world: PeerAndServers) -> None:
        calling = asyncio.create_task(world.peer.call(metadata.API, 1, {"topics": [{"name": "t"}]}))
        server = await world.asked(1)
        assert server.asked[0][:2] == (3, 1)
        assert server.asked[0][3] == b"\0\0\0\1\0\1t"
        server.answer(0, b"\0\0\0\0" + b"\0\0\0\5" + b"\0\0\0\0")
        assert (await calling).controller_id == 5

    simulate(scenario)


def test_nobody_listens() -> None:
    async def scenario(world: PeerAndServers) -> None:
        world.network.cut("b")
        loop = asyncio.get_running_loop()
        started, times = loop.time(), []
        for number in range(1, 9):
            with pytest.raises(PeerGone, match="cannot connect to b:9") as raised:
                await world.ask()
            assert raised.value.refused
            assert world.peer.refusals == number
            times.append(loop.time() - started)
        assert times[1] < 0.1, "the second look comes soon"
        assert times[7] - times[6] == pytest.approx(1, abs=0.01), "and later ones less often"
        await world.listen()
        asking = world.ask()
        (await world.asked(1)).answer(0, b"back")
        assert await asking == b"back"
        assert world.peer.refusals == 0

    simulate(scenario)


def test_a_peer_that_cannot_be_reached_is_not_one_that_refuses() -> None:
    async def scenario(world: PeerAndServers) -> None:
        world.network.block("b", "a")
        with pytest.raises(PeerGone, match="b:9 could not be reached in 5 s") as raised:
            await world.ask()
        assert not raised.value.refused
        assert world.peer.refusals == 0

    simulate(scenario)


def test_a_lost_connection_fails_what_is_under_way_and_the_next_request_connects_at_once() -> None:
    async def scenario(world: PeerAndServers) -> None:
        answered, *asking = await world.ask_in_turn(b"1", b"2", b"3")
        server = world.servers[0]
        server.answer(0, b"x")
        await answered
        assert server.transport is not None
        server.transport.abort()
        for each in asking:
            with pytest.raises(PeerGone, match="b:9 closed the connection") as raised:
                await each
            assert not raised.value.refused
        assert not world.peer.is_connected
        now = asyncio.get_running_loop().time()
        again = world.ask()
        (await world.asked(1, server=1)).answer(0, b"back")
        assert await again == b"back"
        assert asyncio.get_running_loop().time() - now < 0.04

    simulate(scenario)


def test_one_that_accepts_and_hangs_up_is_not_called_without_pause() -> None:
    async def scenario(world: PeerAndServers) -> None:
        for number in range(6):
            asking = world.ask()
            server = await world.asked(1, server=number)
            assert server.transport is not None
            server.transport.abort()
            with pytest.raises(PeerGone):
                await asking
        assert asyncio.get_running_loop().time() > 1

    simulate(scenario)


def test_a_request_not_answered_in_time_ends_the_connection() -> None:
    async def scenario(world: PeerAndServers) -> None:
        slow, other = world.ask(timeout_s=2), world.ask(timeout_s=200)
        server = await world.asked(2)
        with pytest.raises(PeerGone, match="b:9 did not answer API 3 in 2 s"):
            await slow
        with pytest.raises(PeerGone):
            await other
        await until(lambda: server.lost)

    simulate(scenario)


def test_a_caller_that_gives_up_leaves_the_others_alone() -> None:
    async def scenario(world: PeerAndServers) -> None:
        leaving, staying = await world.ask_in_turn(b"1", b"2")
        server = world.servers[0]
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        server.answer(0, b"nobody waits")
        server.answer(1, b"here")
        assert await staying == b"here"

    simulate(scenario)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0\x63", b"\0\0"], ids=["empty", "an answer to nothing", "half a number"])
def test_a_peer_that_breaks_the_protocol_is_left(frame: bytes) -> None:
    async def scenario(world: PeerAndServers) -> None:
        asking = world.ask()
        server = await world.asked(1)
        server.send(frame)
        with pytest.raises(PeerGone, match="broke the protocol"):
            await asking
        await until(lambda: server.lost)

    simulate(scenario)


def test_close_while_connected_and_while_connecting() -> None:
    async def connected(world: PeerAndServers) -> None:
        asking = world.ask()
        server = await world.asked(1)
        world.peer.close()
        with pytest.raises(PeerGone, match="given up by this broker"):
            await asking
        await until(lambda: server.lost)
        with pytest.raises(PeerGone, match="given up by this broker"):
            await world.ask()

    async def connecting(world: PeerAndServers) -> None:
        world.network.block("a", "b")
        asking = world.ask()
        await asyncio.sleep(1)
        world.peer.close()
        with pytest.raises(PeerGone, match="given up by this broker"):
            await asking

    simulate(connected)
    simulate(connecting)
