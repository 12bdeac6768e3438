"""What leaves under TLS, and what comes: whole, in order, in small pieces, however it is cut."""

import asyncio
import gc
import random
import socket
import ssl
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.net.cipher import LARGE_PIECE_BYTES, SMALL_PIECE_BYTES, Cipher
from penstock.net.tcp import TcpNetwork
from penstock.net.tls import TlsFiles

from .certificates import Authority
from .test_tls import DEADLINE_S, BytesFile, End, join, serve, until


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ours").sign("broker")


class DeepFile(BytesFile):
    """A file that notes how deep in calls it is read."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.depths: set[int] = set()

    def read_at(self, size: int, position: int) -> bytes:
        depth, frame = 0, sys._getframe()
        while frame.f_back is not None:
            depth, frame = depth + 1, frame.f_back
        self.depths.add(depth)
        return super().read_at(size, position)


def read_all(files: TlsFiles, address: tuple[str, int], size: int) -> int:
    """What a peer that reads as fast as it can gets."""
    got, buffer = 0, bytearray(1 << 20)
    plain = socket.create_connection(address)
    with files.make_client_context().wrap_socket(plain, server_hostname="localhost") as peer:
        peer.sendall(b"begin")
        while got < size and (step := peer.recv_into(buffer)):
            got += step
    return got


async def test_a_large_range_arrives_whole_and_nothing_calls_itself(files: TlsFiles) -> None:
    server, listener = await serve(files)
    size = 50 << 20
    file: Any = DeepFile(size)
    reading = asyncio.create_task(asyncio.to_thread(read_all, files, listener.address, size))
    await until(lambda: len(server.data) > 0)
    server.out.send_range(file, 0, size)
    assert await reading == size
    assert max(file.depths) - min(file.depths) < 8
    await until(lambda: server.events[-1:] == ["disconnected"])
    await listener.close()


async def test_bytes_of_any_size_and_ranges_keep_their_order(files: TlsFiles, tmp_path: Path) -> None:
    server, listener = await serve(files)
    client = await join(listener, files.make_client_context())
    await until(lambda: server.transport is not None)
    content = random.Random(1).randbytes(300_000)

    class File(BytesFile):
        def read_at(self, size: int, position: int) -> bytes:
            return content[position : position + size]

    file: Any = File(len(content))
    expected = bytearray()
    for size in (0, 1, 16_384, 16_385, 65_536, 65_537, 1_000_000, 10):
        data = random.Random(size).randbytes(size)
        server.out.write(data)
        expected += data
        server.out.send_range(file, 7, 200_000)
        expected += content[7:200_007]
    await until(lambda: len(client.data) == len(expected))
    assert client.data == expected
    await until(lambda: server.out.unsent == 0)
    client.out.abort()
    await listener.close()


async def test_what_tls_holds_goes_with_the_connection(files: TlsFiles) -> None:
    server, listener = await serve(files)
    client = await join(listener, files.make_client_context())
    await until(lambda: server.transport is not None)
    held = [weakref.ref(cast(Any, end.out)._cipher._tls) for end in (server, client)]
    file: Any = BytesFile(100_000)
    server.out.send_range(file, 0, 100_000)
    await until(lambda: len(client.data) == 100_000)
    gc.disable()
    try:
        client.out.close()
        await until(lambda: server.events[-1] == client.events[-1] == "disconnected")
        await until(lambda: [each() for each in held] == [None, None])
    finally:
        gc.enable()
    assert server.out.unsent == 0
    server.out.write(b"too late")
    server.out.close()
    server.out.abort()
    server.out.resume_reading()
    await listener.close()


class Greedy:
    """A socket that takes everything, or nothing, and notes what it took."""

    def __init__(self, own: socket.socket, *, takes: bool) -> None:
        self._own = own
        self._takes = takes
        self.taken = 0

    def sendmsg(self, parts: list[bytes]) -> int:
        if not self._takes:
            raise BlockingIOError
        size = sum(map(len, parts))
        self.taken += size
        return size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


async def greedy(server: End, *, takes: bool) -> Greedy:
    """Put such a socket under a transport that has begun to send ranges."""
    out: Any = server.out
    file: Any = BytesFile(1)
    out.send_range(file, 0, 1)
    await until(lambda: out.unsent == 0)
    out._socket = Greedy(out._socket, takes=takes)
    return out._socket  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["range", "bytes"])
async def test_a_turn_enciphers_a_mebibyte_so_that_others_have_theirs(files: TlsFiles, kind: str) -> None:
    server, listener = await serve(files)
    client = await join(listener, files.make_client_context())
    await until(lambda: server.transport is not None)
    taken = await greedy(server, takes=True)
    file: Any = BytesFile(8 << 20)
    if kind == "range":
        server.out.send_range(file, 0, 8 << 20)
    else:
        server.out.write(bytes(8 << 20))
    assert 1 << 20 <= taken.taken <= (1 << 20) + 70_000
    await until(lambda: taken.taken > 8 << 20)
    client.out.abort()
    await listener.close()


async def test_large_bytes_are_not_enciphered_before_their_time(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, listener = await serve(files)
    client = await join(listener, files.make_client_context())
    await until(lambda: server.transport is not None)
    client.out.pause_reading()
    sealed: list[int] = []
    seal = Cipher.seal
    monkeypatch.setattr(Cipher, "seal", lambda self, data, to: sealed.append(len(data)) or seal(self, data, to))
    server.out.write(bytes(64 << 20))
    assert sum(sealed) <= (1 << 20) + 65_536
    assert server.out.unsent > 60 << 20
    client.out.abort()
    server.out.abort()
    await listener.close()


async def test_what_tls_says_itself_is_behind_what_is_enciphered(files: TlsFiles) -> None:
    server, listener = await serve(files)
    client = await join(listener, files.make_client_context())
    await until(lambda: server.transport is not None)
    await greedy(server, takes=False)
    out: Any = server.out
    out.write(b"first")
    out.send_records(b"said")
    assert [bytes(part) for part in out._sealed][1:] == [b"said"]
    client.out.abort()
    out.abort()
    await listener.close()


async def test_who_makes_tls_say_much_and_does_not_read_it_goes(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, listener = await serve(files)
    client = await join(listener, files.make_client_context())
    await until(lambda: server.transport is not None)
    monkeypatch.setattr(Cipher, "collect", lambda self: bytes(70_000))
    monkeypatch.setattr(Cipher, "decipher", lambda self, data, start, buffer: (len(data), 0))
    client.out.write(b"?")
    await until(lambda: server.events[-1:] == ["disconnected"])
    await listener.close()


class Picky(End):
    """A receiver with a small buffer that wants nothing now and then."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._buffer = bytearray(size)

    def received(self, size: int) -> None:
        assert not self.is_paused
        super().received(size)
        if len(self.data) % 7 == 0:
            self.is_paused = True
            self.out.pause_reading()
            asyncio.get_running_loop().call_later(0.001, self._resume)

    is_paused = False

    def _resume(self) -> None:
        self.is_paused = False
        self.out.resume_reading()


@pytest.mark.parametrize("size", [1, 1000, 16_384, 100_000])
async def test_nothing_is_handed_to_who_wants_nothing_and_nothing_is_lost(files: TlsFiles, size: int) -> None:
    server = Picky(size)
    listener = await TcpNetwork().listen("127.0.0.1", 0, lambda: server, tls=files.make_server_context())
    client = await join(listener, files.make_client_context())
    data = random.Random(2).randbytes(2000 if size == 1 else 1_000_000)
    client.out.write(data)
    await until(lambda: len(server.data) == len(data))
    assert server.data == data
    client.out.abort()
    await listener.close()


class Unmoved(End):
    """A receiver that wants nothing more once it has something."""

    def __init__(self, *, is_stranger: bool) -> None:
        super().__init__()
        self.is_stranger = is_stranger
        self._buffer = bytearray(1000)

    def received(self, size: int) -> None:
        super().received(size)
        self.out.pause_reading()


@pytest.mark.parametrize("is_stranger", [True, False])
async def test_of_a_stranger_that_is_not_read_from_little_waits(files: TlsFiles, is_stranger: bool) -> None:
    server = Unmoved(is_stranger=is_stranger)
    listener = await TcpNetwork().listen("127.0.0.1", 0, lambda: server, tls=files.make_server_context())
    client = await join(listener, files.make_client_context())
    await until(lambda: server.transport is not None)
    client.out.write(bytes(1_000_000))
    await until(lambda: bool(server.data))
    waiting_bytes = len(server.out._stream._left)  # type: ignore[attr-defined]
    assert (waiting_bytes <= 4 * 1024) is is_stranger
    client.out.abort()
    await listener.close()


class Pair:
    """Two ciphers, and how much OpenSSL held for the server at most."""

    def __init__(self, files: TlsFiles, seed: int, *, one_by_one: bool = False) -> None:
        self._random = random.Random(seed)
        self._one_by_one = one_by_one
        self.server = Cipher(files.make_server_context())
        self.client = Cipher(files.make_client_context(), "localhost")
        self.held_bytes = 0
        for _ in range(4):
            self.client.shake_hands()
            self.carry(self.client.collect(), self.server)
            self.server.shake_hands()
            self.carry(self.server.collect(), self.client)
        assert self.client.shake_hands() and self.server.shake_hands()

    def carry(self, data: bytes, to: Cipher) -> None:
        at = 0
        while at < len(data):
            at = to.take(memoryview(data), at)

    def ask(self, data: bytes) -> bytes:
        """What the server reads of what the client says."""
        server, got, buffer = self.server, bytearray(), memoryview(bytearray(10_000))
        read = server._read

        def note_and_read(most: int, into: memoryview) -> int:
            self.held_bytes = max(self.held_bytes, server._incoming.pending)
            return read(most, into)

        server._read = note_and_read
        sealed: list[bytes] = []
        self.client.seal(data, sealed)
        left = memoryview(b"".join(sealed))
        while left:
            size = 1 if self._one_by_one else self._random.choice((1, 3, 5, 100, 5000, 20_000, 200_000))
            piece, left, at = left[:size], left[size:], 0
            while at < len(piece) or server.has_more:
                at, filled = server.decipher(piece, at, buffer)
                got += buffer[:filled]
        server._read = read
        return bytes(got)


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_records_cut_anywhere_and_no_more_than_one_is_held(files: TlsFiles, seed: int, one_by_one: bool) -> None:
    pair = Pair(files, seed, one_by_one=one_by_one)
    for size in (1, 20, 16_384, 70_000, 300_000):
        data = random.Random(size).randbytes(size // 50 + 1 if one_by_one else size)
        assert pair.ask(data) == data
    assert pair.held_bytes <= 16_384 + 256 + 5


@pytest.mark.parametrize("piece_bytes", [SMALL_PIECE_BYTES, LARGE_PIECE_BYTES])
def test_what_is_sent_is_enciphered_in_pieces(files: TlsFiles, piece_bytes: int) -> None:
    client = Pair(files, 1).client
    client._piece_bytes = piece_bytes
    sealed: list[bytes] = []
    assert client.seal(bytes(1_000_000), sealed) == sum(map(len, sealed))
    assert piece_bytes < max(map(len, sealed)) < piece_bytes + 200


async def test_where_there_are_many_connections_pieces_are_small(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.net.tls_listener._MANY", 2)
    servers: list[End] = []

    def accept() -> End:
        servers.append(End())
        return servers[-1]

    listener = await TcpNetwork().listen("127.0.0.1", 0, accept, tls=files.make_server_context())
    clients = []
    for count in (1, 2, 3):
        clients.append(await join(listener, files.make_client_context()))
        await until(lambda: len(servers) == count)  # noqa: B023 - waited for at once
    pieces = [cast(Any, server.out)._cipher._piece_bytes for server in servers]
    assert pieces == [LARGE_PIECE_BYTES, LARGE_PIECE_BYTES, SMALL_PIECE_BYTES]
    clients[0].out.close()
    await until(lambda: servers[0].events[-1] == "disconnected")
    clients[0] = await join(listener, files.make_client_context())
    await until(lambda: len(servers) == 4)
    clients[1].out.abort()
    clients[2].out.abort()
    await until(lambda: servers[2].events[-1] == servers[1].events[-1] == "disconnected")
    clients.append(await join(listener, files.make_client_context()))
    await until(lambda: len(servers) == 5)
    assert cast(Any, servers[4].out)._cipher._piece_bytes == LARGE_PIECE_BYTES
    for client in clients:
        client.out.abort()
    await listener.close()


@pytest.mark.parametrize("cut", [5, 2])
def test_a_record_that_is_too_long(files: TlsFiles, cut: int) -> None:
    header, server = memoryview(b"\x17\x03\x03\xff\xff"), Pair(files, 1).server
    with pytest.raises(ssl.SSLError, match="a record of 65535 bytes"):
        server.take(header[cut:], 0) if server.take(header[:cut], 0) else None


class RawClient:
    """A client whose ciphertext the test has in its hands."""

    def __init__(self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.reader, self.writer = reader, writer

    @classmethod
    async def make(cls, files: TlsFiles, listener: Any) -> "RawClient":
        self = cls(files.make_client_context(), *await asyncio.open_connection(*listener.address))
        is_done = False
        while not is_done:
            try:
                self.tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                self.send()
                self.incoming.write(await self.reader.read(100_000))
        self.send()
        return self

    def send(self) -> None:
        self.writer.write(self.outgoing.read())


async def test_the_end_is_said_both_ways(files: TlsFiles) -> None:
    server, listener = await serve(files)
    client = await RawClient.make(files, listener)
    await until(lambda: server.transport is not None)
    server.out.write(b"last words")
    server.out.close()
    client.incoming.write(await asyncio.wait_for(client.reader.read(), DEADLINE_S))
    assert client.tls.read(100) == b"last words"
    assert client.tls.read(100) == b""  # said, and not just cut: that would raise
    client.writer.close()
    await until(lambda: server.events[-1:] == ["disconnected"])
    await listener.close()


@pytest.mark.parametrize("says_it", [True, False])
async def test_a_peer_that_says_the_end_and_one_that_is_cut(files: TlsFiles, says_it: bool) -> None:
    server, listener = await serve(files)
    client = await RawClient.make(files, listener)
    client.tls.write(b"hello")
    client.send()
    if says_it:
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
        client.send()
    else:
        client.writer.write(b"\x17\x03\x03\x00\x50half")  # a record that never ends
        client.writer.close()
    await until(lambda: server.events[-1:] == ["disconnected"])
    assert server.data == b"hello"
    client.writer.close()
    await listener.close()


async def test_bytes_that_were_changed_end_the_connection(files: TlsFiles) -> None:
    server, listener = await serve(files)
    client = await RawClient.make(files, listener)
    client.tls.write(b"hello")
    record = bytearray(client.outgoing.read())
    record[-1] ^= 1
    client.writer.write(record)
    await until(lambda: server.events[-1:] == ["disconnected"])
    assert server.data == b""
    client.writer.close()
    await listener.close()


async def test_new_keys_in_between(files: TlsFiles) -> None:
    server, listener = await serve(files)
    client = await s_client(listener, files)
    assert client.stdin is not None and client.stdout is not None
    async with asyncio.timeout(DEADLINE_S):
        for said in (b"one", b"two", b"three"):
            client.stdin.write(said + b"\n")
            await until(partial(server.data.endswith, said + b"\n"))
            client.stdin.write(b"K\n")  # new keys, from both sides
            await client.stdout.readuntil(b"KEYUPDATE\n")
            server.out.write(said)
            await client.stdout.readuntil(said)
    client.kill()
    await client.wait()
    await until(lambda: server.events[-1:] == ["disconnected"])
    await listener.close()


async def s_client(listener: Any, files: TlsFiles, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-connect", f"127.0.0.1:{listener.address[1]}"),
        *("-cert", files.certificate, "-key", files.key, *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


async def test_no_renegotiation_no_compression_and_ciphers_that_authenticate(files: TlsFiles) -> None:
    server, listener = await serve(files)
    client = await s_client(listener, files, "-tls1_2", "-comp", "-cipher", "ALL")
    assert client.stdin is not None and client.stdout is not None
    await until(lambda: server.transport is not None)
    client.stdin.write(b"R\n")  # which asks for a renegotiation
    said = (await asyncio.wait_for(client.stdout.read(), DEADLINE_S)).decode()
    await client.wait()
    assert "RENEGOTIATING" in said and "no renegotiation" in said
    assert "Compression: NONE" in said
    assert "Cipher is ECDHE-" in said and ("-GCM-" in said or "CHACHA20-POLY1305" in said)
    assert server.data == b""
    await listener.close()
