"""The simulated network: every byte once and in order, in seeded pieces, with back-pressure and resets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from penstock.ports.network import Transport
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_network import MemoryClient, MemoryNetwork
from penstock.testing.virtual_clock import VirtualLoop, run_virtual

T = TypeVar("T")


class Recorder:
    """A receiver that keeps what it is told."""

    def __init__(self, buffer_size: int = 1 << 16) -> None:
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
        assert self.server.unsent == 0
        self.events.append("drained")

    def disconnected(self) -> None:
        self.events.append("disconnected")

    @property
    def server(self) -> Transport:
        assert self.transport is not None
        return self.transport


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - polling is free in virtual time
            await asyncio.sleep(0.001)


Scenario = Callable[[MemoryNetwork, MemoryClient, Recorder], Awaitable[T]]


def simulate(scenario: Scenario[T], seed: int, *, buffer_size: int = 1 << 16, window_bytes: int = 1000) -> T:
    async def main() -> T:
        network = MemoryNetwork(seed)
        port: Any = network
        receiver = Recorder(buffer_size)
        listener = await port.listen("broker", 0, lambda: receiver)
        client = await network.connect(*listener.address, window_bytes=window_bytes)
        await until(lambda: receiver.transport is not None)
        return await scenario(network, client, receiver)

    return run_virtual(main, seed)


PAYLOAD = bytes(range(251)) * 100


def test_bytes_arrive_once_in_order_in_pieces_that_depend_on_the_seed() -> None:
    async def scenario(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> tuple[int, ...]:
        client.send(PAYLOAD[:1000])
        client.send(PAYLOAD[1000:])
        await until(lambda: len(server.data) >= len(PAYLOAD))
        assert server.data == PAYLOAD
        assert client.unsent == 0
        return tuple(server.pieces)

    pieces = [simulate(scenario, seed) for seed in range(10)]
    assert pieces == [simulate(scenario, seed) for seed in range(10)]
    assert len(set(pieces)) == 10
    assert min(size for run in pieces for size in run) == 1
    assert len({size for run in pieces for size in run}) > 50
    small = simulate(scenario, 1, buffer_size=7)
    assert max(small) == 7


def test_answers_and_file_ranges_arrive_in_order() -> None:
    async def scenario(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        disk = FaultyDisk(1)
        file = disk.open("f", create=True)
        file.write_at(PAYLOAD, 0)
        server.server.write(b"head")
        server.server.send_range(file, 100, 5000)
        server.server.write(b"tail")
        assert server.server.unsent == 5008
        assert await client.receive_exactly(4) == b"head"
        assert await client.receive_exactly(5000) == PAYLOAD[100:5100]
        assert await client.receive_exactly(4) == b"tail"
        await until(lambda: "drained" in server.events)

    for seed in range(5):
        simulate(scenario, seed)


def test_a_range_beyond_the_file_resets_the_connection() -> None:
    async def scenario(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        file = FaultyDisk(1).open("f", create=True)
        file.write_at(b"abc", 0)
        server.server.send_range(file, 0, 10)
        with pytest.raises(ConnectionResetError):
            await client.receive_exactly(10)
        await until(lambda: server.events == ["connected", "disconnected"])

    simulate(scenario, 1)


def test_a_peer_that_does_not_receive_leaves_bytes_unsent() -> None:
    async def scenario(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        server.server.write(PAYLOAD)
        await asyncio.sleep(10)
        assert server.server.unsent == len(PAYLOAD) - 1000
        assert server.events == ["connected"]
        server.server.write(b"more")
        assert server.server.unsent == len(PAYLOAD) - 996
        assert await client.receive_exactly(len(PAYLOAD) + 4) == PAYLOAD + b"more"
        await until(lambda: server.events == ["connected", "drained"])
        assert server.server.unsent == 0
        server.server.write(b"again")
        await until(lambda: server.events == ["connected", "drained", "drained"])

    for seed in range(5):
        simulate(scenario, seed)


def test_a_server_that_pauses_receives_nothing_until_it_resumes() -> None:
    async def scenario(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        server.server.pause_reading()
        client.send(PAYLOAD)
        client.close()
        await asyncio.sleep(10)
        assert not server.data
        assert server.events == ["connected"]
        server.server.resume_reading()
        await until(lambda: server.events == ["connected", "disconnected"])
        assert server.data == PAYLOAD

    for seed in range(5):
        simulate(scenario, seed)


def test_a_server_that_pauses_does_not_see_the_client_leave() -> None:
    async def scenario(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        server.server.pause_reading()
        client.close()
        await asyncio.sleep(10)
        assert server.events == ["connected"]
        server.server.resume_reading()
        await until(lambda: server.events == ["connected", "disconnected"])

    simulate(scenario, 1)


def test_close_sends_the_rest_and_abort_does_not() -> None:
    async def closing(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        server.server.write(PAYLOAD)
        server.server.close()
        server.server.write(b"too late")
        assert await client.receive_exactly(len(PAYLOAD)) == PAYLOAD
        with pytest.raises(asyncio.IncompleteReadError):
            await client.receive_exactly(1)
        await until(lambda: server.events[-1] == "disconnected")
        with pytest.raises(ConnectionResetError):
            client.send(b"x")

    async def aborting(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        server.server.write(PAYLOAD)
        server.server.abort()
        assert server.server.unsent == 0
        with pytest.raises(ConnectionResetError):
            await client.receive_exactly(len(PAYLOAD))
        await until(lambda: server.events == ["connected", "disconnected"])
        server.server.abort()
        server.server.close()
        await asyncio.sleep(1)
        assert server.events == ["connected", "disconnected"]

    async def client_aborting(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        client.abort()
        await until(lambda: server.events == ["connected", "disconnected"])
        await client.closed()

    for seed in range(5):
        simulate(closing, seed)
        simulate(aborting, seed)
        simulate(client_aborting, seed)


def test_a_server_writing_to_a_client_that_left_is_disconnected() -> None:
    async def scenario(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        server.server.pause_reading()
        client.close()
        server.server.write(b"x")
        await until(lambda: server.events == ["connected", "disconnected"])

    simulate(scenario, 1)


def test_a_held_host_stalls_and_goes_on() -> None:
    async def scenario(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        network.hold("broker")
        client.send(b"question")
        server.server.write(b"answer")
        await asyncio.sleep(10)
        assert not server.data
        network.release("broker")
        assert await client.receive_exactly(6) == b"answer"
        await until(lambda: server.data == b"question")

    simulate(scenario, 1)


def test_a_cut_host_resets_its_clients_and_refuses_new_ones() -> None:
    async def scenario(network: MemoryNetwork, client: MemoryClient, server: Recorder) -> None:
        network.cut("broker")
        with pytest.raises(ConnectionResetError):
            await client.receive_exactly(1)
        with pytest.raises(ConnectionRefusedError):
            await network.connect("broker", 20_000)
        again = await network.listen("broker", 20_000, Recorder)
        assert again.address == ("broker", 20_000)
        with pytest.raises(OSError, match="in use"):
            await network.listen("broker", 20_000, Recorder)
        await again.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect("broker", 20_000)

    simulate(scenario, 1)


def test_the_connections_of_a_killed_process_hang_until_they_are_cut() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        network = MemoryNetwork(1)
        server = Recorder()
        process = loop.process("broker")
        listener = await process.create_task(network.listen("broker", 0, lambda: server))
        client = await network.connect(*listener.address)
        await until(lambda: server.transport is not None)
        process.kill()
        client.send(b"anyone?")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.receive_exactly(1), 60)
        network.cut("broker")
        with pytest.raises(ConnectionResetError):
            await client.receive_exactly(1)
        assert server.events == ["connected"]
        assert not server.data

    run_virtual(main, 1)
