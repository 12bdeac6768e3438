"""TLS on real sockets: who gets in, which contexts can be made, and that file ranges stay bounded."""

import asyncio
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import WrongSettings
from penstock.net.tcp import TcpNetwork
from penstock.net.tls import TlsFiles
from penstock.ports.network import Listener, Transport

from .certificates import Authority

DEADLINE_S = 30.0


class End:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.data = bytearray()
        self.events: list[str] = []
        self._buffer = bytearray(65536)

    def connected(self, transport: Transport) -> None:
        self.transport = transport
        self.events.append("connected")

    def get_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        self.data += self._buffer[:size]

    def drained(self) -> None:
        assert self.out.unsent == 0
        self.events.append("drained")

    def disconnected(self) -> None:
        self.events.append("disconnected")

    @property
    def out(self) -> Transport:
        assert self.transport is not None
        return self.transport


class BytesFile:
    """A file of one repeated page that notes how it is read."""

    path = "file"

    def __init__(self, size: int) -> None:
        self.size = size
        self.reads: list[int] = []

    def read_at(self, size: int, position: int) -> bytes:
        self.reads.append(size)
        return bytes(max(0, min(size, self.size - position)))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the kernel's, not ours: no event tells of it
            await asyncio.sleep(0.005)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    return authority.sign("broker")


async def serve(files: TlsFiles) -> tuple[End, Listener]:
    server = End()
    return server, await TcpNetwork().listen("127.0.0.1", 0, lambda: server, tls=files.make_server_context())


async def join(listener: Listener, context: ssl.SSLContext) -> End:
    client = End()
    await TcpNetwork().connect(*listener.address, client, timeout_s=DEADLINE_S, tls=context)
    return client


async def test_both_sides_show_a_certificate(files: TlsFiles) -> None:
    server, listener = await serve(files)
    client = await join(listener, files.make_client_context())
    client.out.write(b"question")
    await until(lambda: bytes(server.data) == b"question")
    assert server.out.certified
    assert client.out.certified
    server.out.write(b"answer")
    server.out.close()
    await until(lambda: client.events[-1] == "disconnected")
    assert bytes(client.data) == b"answer"
    await listener.close()


async def test_without_an_authority_clients_need_no_certificate(files: TlsFiles) -> None:
    server, listener = await serve(replace(files, authority=None))
    context = ssl.create_default_context(cafile=files.authority)
    client = await join(listener, context)
    await until(lambda: server.transport is not None)
    assert not server.out.certified
    client.out.abort()
    await listener.close()


async def refused_by_the_server(listener: Listener, server: End, context: ssl.SSLContext) -> None:
    """In TLS 1.3 a client is connected before the server has seen its certificate: it is lost a moment later."""
    client = End()
    try:
        await TcpNetwork().connect(*listener.address, client, timeout_s=DEADLINE_S, tls=context)
    except OSError:
        return
    await until(lambda: client.events[-1] == "disconnected")
    assert server.events == []


async def test_clients_without_the_right_certificate(authority: Authority, files: TlsFiles, tmp_path: Path) -> None:
    server, listener = await serve(files)
    strangers = Authority.make(tmp_path / "theirs").sign("stranger")
    for theirs in (strangers, authority.sign("old", days=-1)):
        context = replace(theirs, authority=authority.certificate).make_client_context()
        await refused_by_the_server(listener, server, context)
    await refused_by_the_server(listener, server, ssl.create_default_context(cafile=authority.certificate))
    assert server.events == []
    await listener.close()


@pytest.mark.parametrize("wrong", ["name", "authority", "time"])
async def test_servers_without_the_right_certificate(
    authority: Authority, files: TlsFiles, tmp_path: Path, wrong: str
) -> None:
    theirs = {
        "name": lambda: authority.sign("elsewhere", "DNS:elsewhere.example"),
        "authority": lambda: Authority.make(tmp_path / "theirs").sign("stranger"),
        "time": lambda: authority.sign("old-server", days=-1),
    }[wrong]()
    _, listener = await serve(theirs)
    client = End()
    with pytest.raises(ssl.SSLCertVerificationError):
        await TcpNetwork().connect(*listener.address, client, timeout_s=DEADLINE_S, tls=files.make_client_context())
    assert client.events == []
    await listener.close()


async def test_a_peer_that_speaks_no_tls(files: TlsFiles) -> None:
    server, listener = await serve(files)
    reader, writer = await asyncio.open_connection(*listener.address)
    writer.write(b"\0\0\0\x0a" + bytes(10))
    assert await asyncio.wait_for(reader.read(), DEADLINE_S) is not None
    writer.close()
    assert server.events == []
    await listener.close()


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
async def test_old_versions_are_refused(files: TlsFiles, version: str) -> None:
    server, listener = await serve(replace(files, authority=None))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="is deprecated"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the loop
        await TcpNetwork().connect(*listener.address, End(), timeout_s=DEADLINE_S, tls=context)
    assert server.events == []
    await listener.close()


async def test_a_cipher_that_does_not_authenticate_is_refused(files: TlsFiles) -> None:
    server, listener = await serve(replace(files, authority=None))
    context = ssl.create_default_context(cafile=files.authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the loop
        await TcpNetwork().connect(*listener.address, End(), timeout_s=DEADLINE_S, tls=context)
    assert server.events == []
    await listener.close()


async def test_file_ranges_in_order_and_a_slow_reader_costs_little(files: TlsFiles) -> None:
    server, listener = await serve(files)
    client = await join(listener, files.make_client_context())
    await until(lambda: server.transport is not None)
    client.out.pause_reading()
    size = 64 << 20
    file: Any = BytesFile(size)
    server.out.write(b"head")
    server.out.send_range(file, 0, size)
    server.out.write(b"tail")
    read_before = -1
    while read_before != sum(file.reads):  # until the kernel's buffers are full
        read_before = sum(file.reads)
        await asyncio.sleep(0.1)
    assert server.out.unsent > size // 2
    # What the kernel of a loopback holds, and two pieces; nothing like the range.
    assert read_before < 16 << 20
    assert max(file.reads) <= 128 * 1024
    client.out.resume_reading()
    await until(lambda: len(client.data) == size + 8)
    assert client.data[:4] == b"head"
    assert client.data[-4:] == b"tail"
    assert client.data.count(0) == size
    await until(lambda: "drained" in server.events)
    client.out.abort()
    await until(lambda: server.events[-1] == "disconnected")
    await listener.close()


async def test_close_sends_the_range_first(files: TlsFiles) -> None:
    server, listener = await serve(files)
    client = await join(listener, files.make_client_context())
    await until(lambda: server.transport is not None)
    file: Any = BytesFile(3 << 20)
    server.out.send_range(file, 0, 3 << 20)
    server.out.close()
    server.out.write(b"too late")
    await until(lambda: client.events[-1] == "disconnected")
    assert len(client.data) == 3 << 20
    await listener.close()


async def test_a_range_beyond_the_file_ends_the_connection(files: TlsFiles) -> None:
    server, listener = await serve(files)
    client = await join(listener, files.make_client_context())
    await until(lambda: server.transport is not None)
    file: Any = BytesFile(1000)
    server.out.send_range(file, 0, 5000)
    await until(lambda: client.events[-1] == "disconnected")
    assert len(client.data) <= 1000
    await listener.close()


def test_files_that_cannot_be_used(authority: Authority, files: TlsFiles, tmp_path: Path) -> None:
    other = authority.sign("other")
    (tmp_path / "empty.pem").write_text("")
    (tmp_path / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    locked = str(tmp_path / "locked.pem")
    words = ["openssl", "pkey", "-in", files.key, "-out", locked, "-aes256", "-passout", "pass:word"]
    subprocess.run(words, check=True, capture_output=True)
    for made, told in (
        (replace(files, certificate="/nowhere/c.pem"), r"cannot read the certificate /nowhere/c\.pem: No such file"),
        (replace(files, key="/nowhere/k.pem"), r"cannot read the private key /nowhere/k\.pem: No such file"),
        (replace(files, authority="/nowhere/a.pem"), r"cannot read the certificate authority /nowhere/a\.pem: No such"),
        (replace(files, key=str(tmp_path / "empty.pem")), r"empty\.pem has no '-----BEGIN PRIVATE KEY"),
        (replace(files, key=other.key), r"other\.key cannot be used.*not the one of the certificate"),
        (replace(files, key=locked), r"locked\.pem has a password and cannot be read"),
        (replace(files, authority=str(tmp_path / "broken.pem")), r"broken\.pem cannot be used"),
    ):
        for make in (made.make_server_context, made.make_client_context):
            with pytest.raises(WrongSettings, match=told):
                make()
