"""TCP with real sockets on loopback: bytes and file ranges leave in order, whatever the peer does."""

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.net.tcp import TcpNetwork, TcpTransport
from penstock.ports.network import Transport
from penstock.storage.local_disk import LocalDisk, LocalFile

FILE_BYTES = 8 << 20
DEADLINE_S = 30.0


class Server:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.data = bytearray()
        self.events: list[str] = []
        self.connected_now = asyncio.Event()
        self.gone = asyncio.Event()
        self.drained_now = asyncio.Event()
        self._buffer = bytearray(65536)

    def connected(self, transport: Transport) -> None:
        self.transport = transport
        self.connected_now.set()

    def get_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        self.data += self._buffer[:size]

    def drained(self) -> None:
        assert self.transport is not None
        self.events.append(f"drained with {self.transport.unsent}")
        self.drained_now.set()

    def disconnected(self) -> None:
        self.events.append("disconnected")
        self.gone.set()


@pytest.fixture(scope="module")
def content() -> bytes:
    return random.Random(1).randbytes(FILE_BYTES)


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> LocalFile:
    (tmp_path / "file").write_bytes(content)
    disk = LocalDisk()
    opened = disk.open(str(tmp_path / "file"))
    disk.close()
    assert isinstance(opened, LocalFile)
    return opened


@contextlib.asynccontextmanager
async def pair(receive_bytes: int = 0) -> AsyncIterator[tuple[Server, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connected server and client. With `receive_bytes` the client's system takes only about as much unread."""
    server = Server()
    listener = await TcpNetwork().listen("127.0.0.1", 0, lambda: server)
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, listener.address)
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    await asyncio.wait_for(server.connected_now.wait(), DEADLINE_S)
    try:
        yield server, reader, writer
    finally:
        writer.transport.abort()
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)
        await listener.close()


async def exactly(reader: asyncio.StreamReader, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = await asyncio.wait_for(reader.read(1 << 20), DEADLINE_S)
        assert part, f"closed after {len(parts)} of {size} bytes"
        parts += part
    return bytes(parts)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the kernel's, not ours: no event tells of it
            await asyncio.sleep(0.005)


async def test_address_and_bytes() -> None:
    async with pair() as (server, reader, writer):
        assert isinstance(server.transport, TcpTransport)
        assert server.transport.peer.startswith("127.0.0.1:")
        writer.write(b"question")
        await until(lambda: bytes(server.data) == b"question")
        server.transport.write(b"answer")
        assert await exactly(reader, 6) == b"answer"


@pytest.mark.parametrize("seed", range(6))
async def test_ranges_and_writes_keep_their_order(seed: int, file: LocalFile, content: bytes) -> None:
    rng = random.Random(seed)
    async with pair(rng.choice((0, 4096))) as (server, reader, _):
        expected = bytearray()
        for _ in range(200):
            if rng.random() < 0.5:
                data = rng.randbytes(rng.choice((0, 1, 100, 70_000)))
                server.transport.write(data)
                expected += data
            else:
                size = rng.choice((1, 500, 60_000, 300_000))
                position = rng.randint(0, FILE_BYTES - size)
                server.transport.send_range(file, position, size)
                expected += content[position : position + size]
            if rng.random() < 0.1:
                await asyncio.sleep(0)
        assert await exactly(reader, len(expected)) == expected
        await until(lambda: server.transport.unsent == 0)


async def test_small_answers_by_the_thousand_then_a_range(file: LocalFile, content: bytes) -> None:
    async with pair(4096) as (server, reader, _):
        expected = b"".join(b"%07d\n" % number for number in range(20_000))
        for number in range(20_000):
            server.transport.write(b"%07d\n" % number)
        server.transport.send_range(file, 10, 3_000_000)
        server.transport.write(b"end")
        wanted = expected + content[10:3_000_010] + b"end"
        assert await exactly(reader, len(wanted)) == wanted


async def test_a_slow_reader_gets_everything_and_drained_is_told_once_it_has(file: LocalFile, content: bytes) -> None:
    async with pair(4096) as (server, reader, _):
        server.transport.send_range(file, 0, FILE_BYTES)
        server.transport.write(b"tail")
        assert server.transport.unsent > 1 << 20
        assert server.events == []
        got = bytearray()
        while len(got) < 100_000:
            got += await asyncio.wait_for(reader.read(1000), DEADLINE_S)
        assert server.transport.unsent > 1 << 20
        got += await exactly(reader, FILE_BYTES + 4 - len(got))
        assert bytes(got) == content + b"tail"
        await asyncio.wait_for(server.drained_now.wait(), DEADLINE_S)
        assert server.events == ["drained with 0"]


async def test_drained_is_told_when_only_plain_bytes_waited() -> None:
    async with pair(4096) as (server, reader, _):
        server.transport.write(bytes(20 << 20))
        assert server.transport.unsent > 0
        await exactly(reader, 20 << 20)
        await asyncio.wait_for(server.drained_now.wait(), DEADLINE_S)
        assert server.transport.unsent == 0


async def test_drained_is_told_when_a_range_waited_behind_plain_bytes(file: LocalFile, content: bytes) -> None:
    """The range is small enough to leave in one go when its turn comes."""
    for size in (1, 100, 10_000):
        async with pair(4096) as (server, reader, _):
            server.transport.write(bytes(20 << 20))
            server.transport.send_range(file, 0, size)
            assert server.transport.unsent > size
            assert await exactly(reader, (20 << 20) + size) == bytes(20 << 20) + content[:size]
            await asyncio.wait_for(server.drained_now.wait(), DEADLINE_S)
            assert server.events[-1] == "drained with 0"


async def test_close_sends_what_is_queued_first(file: LocalFile, content: bytes) -> None:
    async with pair(4096) as (server, reader, _):
        server.transport.write(b"head")
        server.transport.send_range(file, 0, FILE_BYTES)
        server.transport.close()
        server.transport.write(b"too late")
        data = bytearray()
        while part := await asyncio.wait_for(reader.read(1 << 20), DEADLINE_S):
            data += part
        assert bytes(data) == b"head" + content
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)


async def test_abort_in_the_middle_of_a_range(file: LocalFile) -> None:
    async with pair(4096) as (server, reader, _):
        server.transport.send_range(file, 0, FILE_BYTES)
        assert server.transport.unsent > 0
        server.transport.abort()
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)
        assert server.events == ["disconnected"]
        server.transport.write(b"x")
        server.transport.send_range(file, 0, 5)
        got = 0
        with contextlib.suppress(ConnectionResetError):
            while part := await asyncio.wait_for(reader.read(1 << 20), DEADLINE_S):
                got += len(part)
        assert got < FILE_BYTES


async def test_a_client_that_goes_in_the_middle_of_a_range(file: LocalFile) -> None:
    async with pair(4096) as (server, reader, writer):
        server.transport.send_range(file, 0, FILE_BYTES)
        await exactly(reader, 1000)
        writer.transport.abort()
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)
        assert server.events == ["disconnected"]


async def test_a_file_that_is_too_short_ends_the_connection(file: LocalFile) -> None:
    async with pair() as (server, reader, _):
        server.transport.send_range(file, FILE_BYTES - 10, 20)
        await asyncio.wait_for(server.gone.wait(), DEADLINE_S)
        with contextlib.suppress(ConnectionResetError):
            assert len(await asyncio.wait_for(reader.read(), DEADLINE_S)) <= 10


async def test_a_paused_connection_is_not_read_and_resumes() -> None:
    async with pair() as (server, reader, writer):
        server.transport.pause_reading()
        writer.write(b"x" * 1000)
        server.transport.write(b"still sends")
        assert await exactly(reader, 11) == b"still sends"
        assert server.data == b""
        server.transport.resume_reading()
        await until(lambda: len(server.data) == 1000)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_the_descriptor_is_given_back(file: LocalFile) -> None:
    before = open_descriptors()
    for _ in range(20):
        async with pair() as (server, reader, _):
            server.transport.send_range(file, 0, 1000)
            await exactly(reader, 1000)
    await until(lambda: open_descriptors() <= before + 5)


async def test_a_taken_port_is_refused() -> None:
    listener = await TcpNetwork().listen("127.0.0.1", 0, Server)
    with pytest.raises(OSError, match="in use"):
        await TcpNetwork().listen("127.0.0.1", listener.address[1], Server)
    await listener.close()
    assert listener.address[1] > 0
