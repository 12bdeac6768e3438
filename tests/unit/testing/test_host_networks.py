"""Simulated hosts that connect to each other: who hears what, through blocks, deaths and cuts."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from penstock.ports.network import Network, Transport
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_network import MemoryNetwork
from penstock.testing.virtual_clock import Process, VirtualLoop, run_virtual

PAYLOAD = bytes(range(251)) * 100


class End:
    """A receiver that keeps what it is told, and in whose name."""

    def __init__(self, buffer_size: int = 4096) -> None:
        self.buffer = bytearray(buffer_size)
        self.data = bytearray()
        self.pieces: list[int] = []
        self.events: list[str] = []
        self.transport: Transport | None = None

    def connected(self, transport: Transport) -> None:
        self.transport = transport
        self.events.append("connected")

    def get_buffer(self) -> memoryview:
        return memoryview(self.buffer)

    def received(self, size: int) -> None:
        self.data += self.buffer[:size]
        self.pieces.append(size)

    def drained(self) -> None:
        self.events.append("drained")

    def disconnected(self) -> None:
        self.events.append("disconnected")

    @property
    def out(self) -> Transport:
        assert self.transport is not None
        return self.transport


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polling is free in virtual time
            await asyncio.sleep(0.001)


class TwoHosts:
    """Hosts a and b, each a process of its own; a has connected to b."""

    def __init__(self, network: MemoryNetwork) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.network = network
        self.processes: dict[str, Process] = {host: loop.process(host) for host in "ab"}
        self.a, self.b = End(), End()

    async def run(self, host: str, work: Coroutine[Any, Any, Any]) -> Any:
        return await self.processes[host].create_task(work)

    async def open(self) -> None:
        port: Network = self.network.of("b")
        await self.run("b", port.listen("b", 9, lambda: self.b))
        await self.connect(self.a)
        await until(lambda: self.b.transport is not None)

    async def connect(self, receiver: End, timeout_s: float = 5.0) -> Transport:
        made: Transport = await self.run("a", self.network.of("a").connect("b", 9, receiver, timeout_s=timeout_s))
        return made


def simulate(
    scenario: Callable[[TwoHosts], Awaitable[None]], *, seeds: int = 5, max_piece_bytes: int | None = 512
) -> None:
    async def main() -> None:
        world = TwoHosts(MemoryNetwork(1, max_piece_bytes=max_piece_bytes))
        await world.open()
        await scenario(world)

    for seed in range(seeds):
        run_virtual(main, seed)


@pytest.mark.parametrize("max_piece_bytes", [512, None])
def test_bytes_and_file_ranges_go_both_ways(max_piece_bytes: int | None) -> None:
    async def scenario(world: TwoHosts) -> None:
        file = FaultyDisk(1).open("f", create=True)
        file.write_at(PAYLOAD, 0)
        world.a.out.write(PAYLOAD)
        world.b.out.write(b"head")
        world.b.out.send_range(file, 100, 9000)
        world.b.out.write(b"tail")
        await until(lambda: world.b.data == PAYLOAD and world.a.data == b"head" + PAYLOAD[100:9100] + b"tail")
        await until(lambda: "drained" in world.a.events and "drained" in world.b.events)
        assert world.a.out.peer == "b:9"
        assert world.b.out.peer.startswith("a:")
        if max_piece_bytes is None:
            assert world.a.pieces == [4096, 4096, 816]

    simulate(scenario, max_piece_bytes=max_piece_bytes)


def test_nobody_listens() -> None:
    async def scenario(world: TwoHosts) -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.network.of("a").connect("b", 10, End(), timeout_s=5)
        with pytest.raises(OSError, match="not an address of a"):
            await world.network.of("a").listen("b", 10, End)

    simulate(scenario, seeds=1)


def test_a_block_holds_back_one_way_only_and_drops_nothing() -> None:
    async def scenario(world: TwoHosts) -> None:
        world.network.block("a", "b")
        world.a.out.write(b"question")
        world.b.out.write(b"news")
        await until(lambda: world.a.data == b"news")
        await asyncio.sleep(60)
        assert not world.b.data
        assert world.a.out.unsent == 8
        world.network.unblock("a", "b")
        await until(lambda: world.b.data == b"question")
        assert world.a.events == ["connected", "drained"]

    simulate(scenario)


@pytest.mark.parametrize("way", [("a", "b"), ("b", "a")])
def test_a_block_of_either_way_keeps_from_connecting(way: tuple[str, str]) -> None:
    async def scenario(world: TwoHosts) -> None:
        world.network.block(*way)
        started = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await world.connect(End(), timeout_s=3)
        assert asyncio.get_running_loop().time() - started == pytest.approx(3, abs=0.01)
        late = End()
        connecting = asyncio.create_task(world.connect(late, timeout_s=100))
        await asyncio.sleep(50)
        assert late.events == []
        world.network.unblock(*way)
        await connecting
        assert late.events == ["connected"]

    simulate(scenario)


def test_a_cut_host_is_known_to_be_gone() -> None:
    async def scenario(world: TwoHosts) -> None:
        world.processes["b"].kill()
        world.network.cut("b")
        await until(lambda: world.a.events == ["connected", "disconnected"])
        with pytest.raises(ConnectionRefusedError):
            await world.connect(End())
        assert world.b.events == ["connected"], "the dead hear nothing"

    simulate(scenario)


def test_the_connecting_host_is_cut() -> None:
    async def scenario(world: TwoHosts) -> None:
        world.processes["a"].kill()
        world.network.cut("a")
        await until(lambda: world.b.events == ["connected", "disconnected"])
        assert world.a.events == ["connected"]

    simulate(scenario)


def test_nobody_learns_of_a_death_through_a_block() -> None:
    async def scenario(world: TwoHosts) -> None:
        world.network.block("b", "a")
        world.processes["b"].kill()
        world.network.cut("b")
        await asyncio.sleep(60)
        assert world.a.events == ["connected"]
        with pytest.raises(TimeoutError):
            await world.connect(End(), timeout_s=3)
        world.network.unblock("b", "a")
        await until(lambda: world.a.events == ["connected", "disconnected"])

    simulate(scenario)


def test_a_process_killed_and_not_cut_hangs() -> None:
    async def scenario(world: TwoHosts) -> None:
        world.b.out.write(b"last words")
        world.processes["b"].kill()
        world.a.out.write(b"anyone?")
        with pytest.raises(TimeoutError):
            await world.connect(End(), timeout_s=3)
        await asyncio.sleep(60)
        assert not world.a.data
        assert not world.b.data
        assert world.a.events == ["connected"]

    simulate(scenario)


def test_callbacks_run_as_the_program_they_belong_to() -> None:
    """What a receiver starts dies with its own process, not with the one that spoke to it."""

    async def scenario(world: TwoHosts) -> None:
        alive: list[str] = []

        class Starter(End):
            def __init__(self, name: str) -> None:
                super().__init__()
                self.name = name

            def received(self, size: int) -> None:
                asyncio.get_running_loop().call_later(10, alive.append, self.name)

        a, b = Starter("a"), Starter("b")
        await world.run("b", world.network.of("b").listen("b", 10, lambda: b))
        await world.run("a", world.network.of("a").connect("b", 10, a, timeout_s=5))
        await until(lambda: b.transport is not None)
        a.out.write(b"to b")
        b.out.write(b"to a")
        await asyncio.sleep(1)
        world.processes["a"].kill()
        await asyncio.sleep(60)
        assert alive == ["b"]

    simulate(scenario)


def test_one_that_closed_and_is_written_to_resets() -> None:
    async def scenario(world: TwoHosts) -> None:
        world.b.out.pause_reading()
        world.a.out.close()
        world.b.out.write(b"x")
        await until(lambda: world.b.events == ["connected", "disconnected"])
        await until(lambda: world.a.events == ["connected", "disconnected"])

    simulate(scenario)


def test_close_delivers_first_and_abort_does_not() -> None:
    async def closing(world: TwoHosts) -> None:
        world.a.out.write(PAYLOAD)
        world.a.out.close()
        await until(lambda: world.b.events == ["connected", "disconnected"])
        assert world.b.data == PAYLOAD
        await until(lambda: world.a.events[-1] == "disconnected")

    async def aborting(world: TwoHosts) -> None:
        world.a.out.write(PAYLOAD)
        world.a.out.abort()
        await until(lambda: world.b.events == ["connected", "disconnected"])
        assert not world.b.data
        assert world.a.events == ["connected", "disconnected"]

    simulate(closing)
    simulate(aborting)


def test_equal_seeds_give_equal_runs() -> None:
    def run(seed: int) -> list[int]:
        async def main() -> list[int]:
            world = TwoHosts(MemoryNetwork(seed))
            await world.open()
            world.a.out.write(PAYLOAD)
            world.b.out.write(PAYLOAD)
            await until(lambda: len(world.b.data) + len(world.a.data) == 2 * len(PAYLOAD))
            return world.a.pieces + world.b.pieces

        return run_virtual(main, seed)

    assert run(3) == run(3)
    assert run(3) != run(4)
