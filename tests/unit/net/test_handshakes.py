"""Handshakes that are slow, that are no TLS, and that are many."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

import pytest

from penstock.net.handshakes import Handshakes
from penstock.net.tcp import TcpNetwork
from penstock.net.tls import TlsFiles
from penstock.net.tls_endpoints import FixedIdentity
from penstock.net.tls_listener import TlsListener, bind

from .certificates import Authority
from .test_tls import DEADLINE_S, End, until


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority.make(tmp_path_factory.mktemp("tls") / "ours").sign("broker")


async def listen(
    files: TlsFiles, *, places: int = 50, connected: int = 1000, deadline_s: float = 30.0, crowded_s: float = 30.0
) -> tuple[list[End], TlsListener, list[Handshakes]]:
    """A listener, who came, and its handshakes."""
    came: list[End] = []
    made: list[Handshakes] = []

    def accept() -> End:
        came.append(End())
        return came[-1]

    def make(has_room: Callable[[], None]) -> Handshakes:
        made.append(
            Handshakes(has_room, places=places, connected=connected, deadline_s=deadline_s, crowded_s=crowded_s)
        )
        return made[-1]

    identity = FixedIdentity(files.make_server_context())
    listener = TlsListener(await bind("127.0.0.1", 0), accept, identity, make_handshakes=make)
    return came, listener, made


async def silent(listener: TlsListener) -> asyncio.StreamReader:
    """Somebody who connects and says nothing."""
    reader, writer = await asyncio.open_connection(*listener.address)
    reader.writer = writer  # type: ignore[attr-defined]  # who lets go of it closes it
    return reader


async def ends(reader: asyncio.StreamReader, within_s: float = DEADLINE_S) -> bool:
    """Whether the connection ends with no more than an alert, also if there are bytes that nobody read."""
    try:
        return (await asyncio.wait_for(reader.read(), within_s))[:1] in (b"", b"\x15")
    except ConnectionResetError:
        return True


async def test_who_says_nothing_is_let_go(files: TlsFiles) -> None:
    came, listener, handshakes = await listen(files, deadline_s=0.1)
    reader = await silent(listener)
    assert await ends(reader)
    assert came == []
    await until(lambda: len(handshakes[0]) == 0)
    await listener.close()


async def test_who_begins_and_does_not_go_on_is_let_go(files: TlsFiles) -> None:
    came, listener, _ = await listen(files, deadline_s=0.1)
    reader = await silent(listener)
    reader.writer.write(b"\x16\x03\x01\x02\x00\x01\x00")  # type: ignore[attr-defined]
    assert await ends(reader)
    assert came == []
    await listener.close()


async def test_only_so_many_connect_and_the_others_wait_in_the_kernel(files: TlsFiles) -> None:
    came, listener, (handshakes,) = await listen(files, connected=3)
    slow = [await silent(listener) for _ in range(3)]
    await until(lambda: handshakes.is_full)
    waiting = asyncio.create_task(
        TcpNetwork().connect(*listener.address, End(), timeout_s=DEADLINE_S, tls=files.make_client_context())
    )
    others = [await silent(listener) for _ in range(5)]  # the kernel's, not ours
    assert len(handshakes) == 3
    assert not waiting.done()
    for each in (*slow, *others):  # in whatever order the kernel has them
        each.writer.close()  # type: ignore[attr-defined]
    transport = await waiting
    await until(lambda: len(came) == 1)
    transport.abort()
    await listener.close()


async def test_in_a_crowd_the_silent_make_room_sooner(files: TlsFiles) -> None:
    came, listener, _ = await listen(files, connected=3, deadline_s=600.0, crowded_s=0.3)
    slow = [await silent(listener) for _ in range(7)]
    transport = await TcpNetwork().connect(
        *listener.address, End(), timeout_s=DEADLINE_S, tls=files.make_client_context()
    )
    await until(lambda: len(came) == 1)
    assert all([await ends(each) for each in slow[:3]])
    transport.abort()
    await listener.close()


BEGUN = b"\x16\x03\x01\x02\x00\x01\x00"


async def test_only_so_many_are_under_way_and_the_others_wait(files: TlsFiles) -> None:
    came, listener, (handshakes,) = await listen(files, places=3)
    slow = [await silent(listener) for _ in range(3)]
    for each in slow:
        each.writer.write(BEGUN)  # type: ignore[attr-defined]
    await until(lambda: handshakes.under_way == 3)
    waiting = asyncio.create_task(
        TcpNetwork().connect(*listener.address, End(), timeout_s=DEADLINE_S, tls=files.make_client_context())
    )
    quiet = await silent(listener)
    await until(lambda: len(handshakes) == 5 and len(handshakes._waiting) == 1)
    assert handshakes.under_way == 3 and not waiting.done()
    slow[1].writer.close()  # type: ignore[attr-defined]
    transport = await waiting
    await until(lambda: len(came) == 1)
    assert handshakes.under_way == 2
    transport.abort()
    quiet.writer.close()  # type: ignore[attr-defined]
    await until(lambda: len(handshakes) == 2)
    await listener.close()


async def test_of_who_waits_for_a_place_little_is_kept(files: TlsFiles) -> None:
    _, listener, (handshakes,) = await listen(files, places=0)
    eager = await silent(listener)
    eager.writer.write(BEGUN + bytes(100_000))  # type: ignore[attr-defined]
    await until(lambda: len(handshakes._waiting) == 1)
    (waiting,) = handshakes._waiting
    assert 0 < len(waiting._left) <= 4 * 1024
    eager.writer.close()  # type: ignore[attr-defined]
    await listener.close()


async def test_in_a_crowd_the_slow_make_room_sooner(files: TlsFiles) -> None:
    # One place: of several slow ones those who are due first would end the crowd, and the others keep their time.
    came, listener, (handshakes,) = await listen(files, places=1, deadline_s=600.0, crowded_s=0.3)
    slow = await silent(listener)
    slow.writer.write(BEGUN)  # type: ignore[attr-defined]
    await until(lambda: handshakes.under_way == 1)
    quiet = await silent(listener)
    transport = await TcpNetwork().connect(
        *listener.address, End(), timeout_s=DEADLINE_S, tls=files.make_client_context()
    )
    await until(lambda: len(came) == 1)
    assert await ends(slow)
    assert len(handshakes) == 1  # who says nothing keeps nobody out
    transport.abort()
    quiet.writer.close()  # type: ignore[attr-defined]
    await listener.close()


async def test_among_those_who_wait_the_last_is_next(files: TlsFiles) -> None:
    _, listener, (handshakes,) = await listen(files, places=1)

    def has(begun: int) -> bool:
        return handshakes.under_way + len(handshakes._waiting) == begun

    slow = [await silent(listener) for _ in range(4)]
    for number, each in enumerate(slow):
        each.writer.write(BEGUN)  # type: ignore[attr-defined]
        await until(partial(has, number + 1))
    good = asyncio.create_task(
        TcpNetwork().connect(*listener.address, End(), timeout_s=DEADLINE_S, tls=files.make_client_context())
    )
    await until(lambda: len(handshakes._waiting) == 4)
    slow[0].writer.close()  # type: ignore[attr-defined]
    transport = await good
    assert len(handshakes) == 3
    transport.abort()
    for each in slow[1:]:
        each.writer.close()  # type: ignore[attr-defined]
    await listener.close()


class Distant:
    """As much of a stream as handshakes ask for, of a machine that is another one."""

    def __init__(self, host: str) -> None:
        self.peer = f"{host}:5"
        self.began = False
        self.is_gone = False

    def go_on(self) -> None:
        self.began = True

    def give_up(self, reason: str) -> None:
        self.is_gone = True


@pytest.mark.parametrize("hosts", [["10.0.0.1"] * 4, [f"2001:db8::{number}" for number in range(4)]])
async def test_no_host_has_all_places(hosts: list[str]) -> None:
    handshakes = Handshakes(lambda: None, places=5, places_of_host=2)
    many = [Distant(each) for each in hosts]
    other = Distant("10.0.0.2")
    assert [handshakes.begin(each) for each in (*many, other)] == [True, True, False, False, True]  # type: ignore[arg-type]
    handshakes.end(other)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert not any(each.began for each in many)
    handshakes.end(many[0])  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert [each.began for each in many] == [False, False, False, True]
    for each in many:
        handshakes.end(each)  # type: ignore[arg-type]
    assert (len(handshakes), handshakes._hosts, dict(handshakes._under_way_of)) == (0, {}, {})
    handshakes.close()


async def test_who_waits_goes_sooner_where_others_cannot_even_connect() -> None:
    handshakes = Handshakes(lambda: None, places=0, connected=1, deadline_s=600.0, crowded_s=0.01)
    waiting = Distant("10.0.0.2")
    handshakes.connected(waiting)  # type: ignore[arg-type]
    handshakes.begin(waiting)  # type: ignore[arg-type]
    await until(lambda: waiting.is_gone)
    assert not waiting.began
    handshakes.close()


async def test_many_at_once_all_come_in(files: TlsFiles) -> None:
    came, listener, _ = await listen(files, places=3, connected=10)
    context = files.make_client_context()
    joining = [TcpNetwork().connect(*listener.address, End(), timeout_s=DEADLINE_S, tls=context) for _ in range(40)]
    for transport in await asyncio.gather(*joining):
        transport.abort()
    await until(lambda: len(came) == 40)
    await listener.close()


@pytest.mark.parametrize("said", [b"\0\0\0\x10" + bytes(16), b"GET / HTTP/1.1\r\n\r\n", b"\x10", b"CONNECT\n"])
async def test_plain_bytes_are_turned_away_at_once_with_a_hint(
    files: TlsFiles, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    came, listener, _ = await listen(files)
    with caplog.at_level(logging.WARNING):
        reader = await silent(listener)
        reader.writer.write(said)  # type: ignore[attr-defined]
        assert await ends(reader, 1)
    assert came == []
    await listener.close()


def test_the_hint_is_one_line(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Log:
        def limited(self, key: str) -> "Log":
            return self

        def warning(self, event: str, **fields: object) -> None:
            told.append(str(fields["reason"]))

    monkeypatch.setattr("penstock.net.tls_listener.log_", Log())

    async def body() -> None:
        _, listener, _ = await listen(files)
        reader = await silent(listener)
        reader.writer.write(b"\0\0\0\x10")  # type: ignore[attr-defined]
        await ends(reader)
        await listener.close()

    asyncio.run(body())
    assert told == ["its first bytes are not TLS; is the client told to speak TLS here?"]


@pytest.mark.parametrize("said", [b"\x16\x03\x01\xff\xff" + bytes(9), b"\x16\x03\x01\x00\x05\xff" + bytes(9)])
async def test_what_only_begins_like_tls_is_turned_away_at_once(
    files: TlsFiles, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    came, listener, _ = await listen(files)
    reader = await silent(listener)
    reader.writer.write(said)  # type: ignore[attr-defined]
    assert await ends(reader, 1)
    assert came == []
    assert [record for record in caplog.records if record.exc_info] == []
    await listener.close()


async def test_a_listener_that_closes_lets_go_of_who_has_not_come_in(files: TlsFiles) -> None:
    _, listener, _ = await listen(files)
    transport = await TcpNetwork().connect(
        *listener.address, End(), timeout_s=DEADLINE_S, tls=files.make_client_context()
    )
    reader = await silent(listener)
    reader.writer.write(b"\x16")  # type: ignore[attr-defined]
    await listener.close()
    await listener.close()
    assert await ends(reader)
    assert transport.unsent == 0
    with pytest.raises(ConnectionRefusedError):
        await TcpNetwork().connect(*listener.address, End(), timeout_s=DEADLINE_S, tls=files.make_client_context())
    transport.abort()


async def test_an_address_that_is_taken(files: TlsFiles) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await TcpNetwork().listen("127.0.0.1", taken.getsockname()[1], End, tls=files.make_server_context())


async def test_a_name_with_several_addresses(files: TlsFiles) -> None:
    server = End()
    listener = await TcpNetwork().listen("localhost", 0, lambda: server, tls=files.make_server_context())
    client = await TcpNetwork().connect(
        listener.address[0], listener.address[1], End(), timeout_s=DEADLINE_S, tls=ssl_without_names(files)
    )
    client.abort()
    await listener.close()


def ssl_without_names(files: TlsFiles) -> ssl.SSLContext:
    context = files.make_client_context()
    context.check_hostname = False
    return context


async def test_a_call_that_takes_too_long_leaves_nothing_behind(files: TlsFiles) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        client = End()
        with pytest.raises(TimeoutError):
            await TcpNetwork().connect(
                "127.0.0.1",
                mute.getsockname()[1],
                client,
                timeout_s=0.2,
                tls=FixedIdentity(files.make_client_context()),
            )
        peer, _ = mute.accept()
        peer.setblocking(False)
        async with asyncio.timeout(DEADLINE_S):
            while await asyncio.get_running_loop().sock_recv(peer, 4096):  # until it is closed
                pass
        peer.close()
    assert client.events == []
