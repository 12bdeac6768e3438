"""Pushes, back-pressure and a stop on real sockets, plain and under TLS."""

import asyncio
from pathlib import Path

import pytest
from tests.hand_clock import HandClock

from penstock.net.connection import Answer, Connection, Connections, Limits
from penstock.net.lines import LineBuffer
from penstock.net.tcp import TcpNetwork
from penstock.net.tls import TlsFiles
from penstock.observe.stats import Stats

from .certificates import Authority

COUNT, SIZE = 3000, 5000


class Feed:
    """Pushes numbered messages after the first line, as fast as the peer takes them; says goodbye."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.sent = 0
        self.most_unsent = 0
        self.is_asked = False

    def handle(self, frame: memoryview, answer: Answer) -> None:
        answer.skip()
        self.is_asked = True
        self.writable()

    def writable(self) -> None:
        while self.is_asked and self.sent < COUNT and self._connection.is_writable:
            self._connection.push((message(self.sent),))
            self.sent += 1
            self.most_unsent = max(self.most_unsent, self._connection.unsent)

    def draining(self) -> bool:
        self._connection.push((b"bye",))
        return False

    def disconnected(self) -> None: ...


def message(number: int) -> bytes:
    return b"%08d" % number * (SIZE // 8)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    directory: Path = tmp_path_factory.mktemp("tls")
    return Authority.make(directory / "ca").sign("broker")


@pytest.mark.parametrize("is_secure", [False, True])
async def test_a_slow_subscriber_gets_everything_then_a_goodbye(is_secure: bool, files: TlsFiles) -> None:
    feeds: list[Feed] = []

    def make(connection: Connection) -> Feed:
        feeds.append(Feed(connection))
        return feeds[-1]

    loop = asyncio.get_running_loop()
    connections = Connections(
        Limits(pushed_bytes=100_000),
        Stats(),
        HandClock(),
        make,
        loop.call_soon,
        make_framing=lambda limits, room: LineBuffer(limits.frame_bytes, room),
    )
    server = files.make_server_context() if is_secure else None
    client = files.make_client_context() if is_secure else None
    listener = await TcpNetwork().listen("127.0.0.1", 0, connections.accept, tls=server)
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*listener.address, ssl=client)
        writer.write(b"SUB\n")
        for number in range(COUNT):
            assert await reader.readexactly(len(message(0))) == message(number)
        draining = asyncio.create_task(connections.drain(30))
        assert await reader.read() == b"bye"
        writer.close()
        await draining
    await listener.close()
    assert feeds[0].most_unsent <= 100_000 + SIZE
