"""Large frames under TLS: the loop is woken for much of one, and every frame arrives, however it comes."""

import asyncio
import random
import socket
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.net.cipher import Cipher
from penstock.net.frames import FrameBuffer
from penstock.net.room import Room
from penstock.net.tcp import TcpNetwork
from penstock.net.tls import TlsFiles

from .certificates import Authority
from .test_tls import End, until

LIMIT = 8 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ours").sign("broker")


class Frames(End):
    """A receiver of frames that wants nothing for a moment after some of what it gets."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.buffer = FrameBuffer(LIMIT, Room(64 << 20))
        self.frames: list[bytes] = []
        self._random = random.Random(seed)
        self._is_picky = seed > 0

    def get_buffer(self) -> memoryview:
        return self.buffer.writable()

    @property
    def missing(self) -> int:
        return self.buffer.missing

    def received(self, size: int) -> None:
        self.buffer.add(size)
        while (frame := self.buffer.next()) is not None:
            self.frames.append(bytes(frame))
        if self._is_picky and self._random.random() < 0.2:
            self.out.pause_reading()
            asyncio.get_running_loop().call_later(0.001, self.out.resume_reading)

    def awaited(self) -> int:
        """What the kernel waits for before it wakes the loop."""
        out: Any = self.out
        return int(out._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))


class Client:
    """One that sends enciphered bytes as the test cuts them."""

    def __init__(self, files: TlsFiles, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._cipher = Cipher(files.make_client_context(), "localhost")
        self._reader, self.writer = reader, writer

    async def shake_hands(self) -> None:
        is_done = False
        while not is_done:
            is_done = self._cipher.shake_hands()
            self.writer.write(self._cipher.collect())
            if not is_done:
                received = memoryview(await self._reader.read(1 << 16))
                at = 0
                while 0 <= at < len(received):
                    at = self._cipher.take(received, at)

    def seal(self, data: bytes) -> bytes:
        sealed: list[bytes] = []
        self._cipher.seal(data, sealed)
        return b"".join(sealed)

    async def send(self, data: bytes) -> None:
        """And give the other side the time to take it, before anything else is there."""
        self.writer.write(data)
        await self.writer.drain()
        for _ in range(5):
            await asyncio.sleep(0)


class Pair:
    def __init__(self, server: Frames, client: Client) -> None:
        self.server, self.client = server, client


@pytest.fixture(params=range(4))
async def pair(files: TlsFiles, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    server = Frames(request.param)
    listener = await TcpNetwork().listen("127.0.0.1", 0, lambda: server, tls=files.make_server_context())
    client = Client(files, *await asyncio.open_connection(*listener.address))
    await client.shake_hands()
    await until(lambda: server.transport is not None)
    yield Pair(server, client)
    client.writer.close()
    server.out.abort()
    await listener.close()


def frame_of(size: int) -> bytes:
    return struct.pack(">i", size) + random.Random(size).randbytes(size)


async def test_frames_that_are_cut_anywhere_arrive(pair: Pair) -> None:
    """What is asked of the kernel must never be more than what is still to come."""
    rng = random.Random(7)
    sent = []
    for size in (200_000, 70_000, 17_000, 16_384, 83_000, 1, 99_000, 1_200_000, 65_536, 81_920):
        frame = frame_of(size)
        sent.append(frame[4:])
        sealed = pair.client.seal(frame)
        cuts = sorted({len(sealed), *(rng.randrange(1, len(sealed)) for _ in range(6)), max(1, len(sealed) - 3000)})
        for begin, end in zip([0, *cuts], cuts, strict=False):
            await pair.client.send(sealed[begin:end])
        await until(lambda: len(pair.server.frames) == len(sent))
    assert pair.server.frames == sent


async def test_frames_one_after_the_other_arrive(pair: Pair) -> None:
    frames = [frame_of(random.Random(seed).randrange(1, 300_000)) for seed in range(40)]
    sealed = pair.client.seal(b"".join(frames))
    for at in range(0, len(sealed), 50_001):
        pair.client.writer.write(sealed[at : at + 50_001])
        await pair.client.writer.drain()
    await until(lambda: len(pair.server.frames) == len(frames))
    assert pair.server.frames == [frame[4:] for frame in frames]


@pytest.mark.skipif(sys.platform != "linux", reason="only there it is asked for")
@pytest.mark.parametrize("pair", [0], indirect=True)
async def test_the_loop_is_woken_for_much_of_a_large_frame(pair: Pair) -> None:
    server, client = pair.server, pair.client
    assert server.awaited() == 1
    sealed = client.seal(frame_of(200_000))
    client.writer.write(sealed[:40_000])
    await until(lambda: server.awaited() == 65_536)
    client.writer.write(sealed[40_000:])
    await until(lambda: len(server.frames) == 1)
    await until(lambda: server.awaited() == 1)


async def test_who_leaves_within_a_large_frame_is_gone_at_once(pair: Pair) -> None:
    sealed = pair.client.seal(frame_of(500_000))
    await pair.client.send(sealed[:100_000])
    pair.client.writer.close()
    await until(lambda: pair.server.events[-1:] == ["disconnected"])
    assert pair.server.frames == []


async def test_a_broken_record_behind_whole_ones_ends_the_connection_and_not_what_came_before(pair: Pair) -> None:
    sealed = pair.client.seal(frame_of(100))
    broken = bytearray(pair.client.seal(frame_of(200)))
    broken[20] ^= 1
    await pair.client.send(sealed + bytes(broken))
    await until(lambda: pair.server.events[-1:] == ["disconnected"])
    assert pair.server.frames == [frame_of(100)[4:]]


async def test_a_farewell_behind_a_frame_does_not_lose_it(pair: Pair) -> None:
    sealed = pair.client.seal(frame_of(50_000))
    await pair.client.send(sealed + pair.client._cipher.say_farewell())
    await until(lambda: pair.server.events[-1:] == ["disconnected"])
    assert pair.server.frames == [frame_of(50_000)[4:]]
