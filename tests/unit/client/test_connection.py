"""Frames on one connection: their order, their limits, and how it ends."""

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.unit.cli.scripted_broker import Script, scripted_broker

from penstock.client.connection import AnswerBuffer, Connection
from penstock.client.errors import ClientError, Refused, Unreachable, Unsupported
from penstock.client.settings import Settings

Talk = Callable[[socket.socket], None]


def read_frame(peer: socket.socket) -> bytes:
    def read(size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = peer.recv(size - len(data))
            assert piece, "the client hung up"
            data += piece
        return data

    return read(struct.unpack(">i", read(4))[0])


def frame(correlation: int, body: bytes) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation) + body


@contextmanager
def connected(talk: Talk, timeout_s: float = 10.0) -> Iterator[Connection]:
    """A connection to a server that talks like that, and then listens to the end."""
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            peer, _ = listening.accept()
            with peer:
                talk(peer)
                while peer.recv(1 << 16):
                    pass
        except ConnectionError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        connection = Connection(Settings("unused", timeout_s=timeout_s), listening.getsockname())
        try:
            yield connection
        finally:
            connection.close()
            thread.join(30)
    assert failures == []


def test_a_request_is_framed_as_kafka_has_it() -> None:
    seen = []
    with connected(lambda peer: seen.append(read_frame(peer))) as connection:
        assert connection.send(7, 3, [b"ab", memoryview(b"cd")], flexible=True) == 1
    assert seen == [struct.pack(">hhih", 7, 3, 1, 8) + b"penstock" + b"\0" + b"abcd"]


def test_answers_come_in_the_order_of_the_questions() -> None:
    def talk(peer: socket.socket) -> None:
        for _ in range(3):
            read_frame(peer)
        peer.sendall(frame(1, b"one") + frame(2, b"\x01\x05\x01xtwo") + frame(3, b"\0three"))

    with connected(talk) as connection:
        first, second, third = (connection.send(0, 9, [b"x"], flexible=True) for _ in range(3))
        kept = connection.receive(first, flexible=False)
        assert bytes(connection.receive(second, flexible=True)) == b"two"
        assert bytes(connection.receive(third, flexible=True)) == b"three"
        assert bytes(kept) == b"one"


def test_an_answer_to_another_question_ends_the_connection() -> None:
    with connected(lambda peer: peer.sendall(frame(1, b"one"))) as connection:
        connection.send(0, 9, [], flexible=True)
        second = connection.send(0, 9, [], flexible=True)
        with pytest.raises(
            ClientError, match=f"{connection.name} gave no proper answer: it belongs to another question"
        ):
            connection.receive(second, flexible=True)
        assert connection.closed and not connection.usable
        with pytest.raises(Unreachable):
            connection.send(0, 9, [], flexible=True)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (struct.pack(">i", 1001), "1001 bytes"),
        (struct.pack(">i", 3), "3 bytes"),
        (struct.pack(">i", -1), "-1 bytes"),
        (b"\x15\x03\x03\x00\x02\x02\x50", "it wants TLS: security.protocol=SSL"),
        (frame(1, b"\xff\xff\xff\xff\xff\xff"), "a varint does not end"),
        (frame(1, b""), "a varint does not end"),
    ],
)
def test_no_answer(answer: bytes, told: str) -> None:
    with connected(lambda peer: peer.sendall(answer)) as connection:
        asked = connection.send(0, 9, [], flexible=True)
        with pytest.raises(ClientError, match=told) as raised:
            connection.receive(asked, flexible=True, limit=1000)
    assert not raised.value.retriable


def test_an_answer_of_the_largest_size() -> None:
    with connected(lambda peer: peer.sendall(frame(1, b"x" * 996))) as connection:
        asked = connection.send(0, 9, [], flexible=True)
        assert len(connection.receive(asked, flexible=False, limit=1000)) == 996


def test_many_parts_and_large_ones_arrive_whole() -> None:
    parts: list[bytes | memoryview] = [bytes([number % 251]) * (number % 7) for number in range(1500)]
    parts += [memoryview(b"large" * 2_000_000), b"", b"end"]
    seen = []
    with connected(lambda peer: seen.append(read_frame(peer))) as connection:
        connection.send(0, 9, parts, flexible=False)
    assert seen[0][18:] == b"".join(parts)


@pytest.mark.parametrize("said", [b"", b"\0\0", frame(1, b"whole")[:-1]])
def test_a_server_that_goes_silent(said: bytes) -> None:
    begun = time.monotonic()
    with connected(lambda peer: peer.sendall(said), timeout_s=0.2) as connection:
        asked = connection.send(0, 9, [], flexible=True)
        with pytest.raises(Unreachable, match=r"no answer within 0\.2 s") as raised:
            connection.receive(asked, flexible=True)
    assert isinstance(raised.value.__cause__, TimeoutError)
    assert raised.value.retriable
    assert time.monotonic() - begun < 10


def test_a_server_that_drips_is_late_all_the_same() -> None:
    def drip(peer: socket.socket) -> None:
        for _ in range(1000):
            peer.sendall(b"\0")
            stop.wait(0.02)

    stop = threading.Event()
    with connected(lambda peer: (peer.sendall(struct.pack(">ii", 1000, 1)), drip(peer))[0], 0.3) as connection:
        asked = connection.send(0, 9, [], flexible=True)
        with pytest.raises(Unreachable, match="no answer within"):
            connection.receive(asked, flexible=True)
        stop.set()


def test_a_connection_with_answers_under_way_is_usable() -> None:
    with connected(lambda peer: peer.sendall(frame(1, b"answer"))) as connection:
        asked = connection.send(0, 9, [], flexible=False)
        assert select.select([connection._socket], [], [], 30)[0]
        assert connection.usable
        connection.receive(asked, flexible=False)
        assert connection.usable
    assert not connection.usable


def test_an_idle_connection_that_the_server_ended_is_seen() -> None:
    with connected(lambda peer: peer.shutdown(socket.SHUT_WR)) as connection:
        assert select.select([connection._socket], [], [], 30)[0]
        assert not connection.usable


def test_versions_are_asked_for_once() -> None:
    scripts = {
        "list_transactions": Script(66, 0, 9, lambda _: {"error_code": 0, "transaction_states": []}),
        "fetch": Script(1, 4, 12, lambda _: None),
    }
    with scripted_broker(**scripts) as broker:
        connection = Connection(Settings(broker.address), (broker.host, broker.port))
        assert connection.version("list_transactions") == 1
        connection.call("list_transactions")
        with pytest.raises(Unsupported, match="has Fetch in versions 4 to 12; 13 to 13 are known here"):
            connection.version("fetch")
        with pytest.raises(Unsupported, match="does not have Produce"):
            connection.version("produce")
        connection.close()
    assert [name for name, _ in broker.asked] == ["api_versions", "list_transactions"]


@pytest.mark.parametrize(
    ("body", "kind", "told"),
    [
        (struct.pack(">hi", 35, 0), Refused, "unsupported version"),
        (struct.pack(">hi", 0, 1) + b"\0\0\0\0", ClientError, "no proper answer to ApiVersions: 1 elements claimed"),
        (struct.pack(">hi", 0, -1), ClientError, "no proper answer to ApiVersions"),
        (b"\0", ClientError, "no proper answer to ApiVersions"),
    ],
)
def test_versions_that_are_none(body: bytes, kind: type[ClientError], told: str) -> None:
    with connected(lambda peer: peer.sendall(frame(1, body))) as connection, pytest.raises(kind, match=told):
        connection.version("metadata")


def test_nobody_there(closed_port: int) -> None:
    with pytest.raises(Unreachable, match=rf"no broker answers at 127\.0\.0\.1:{closed_port} \(Connection refused\)"):
        Connection(Settings("unused"), ("127.0.0.1", closed_port))
    with pytest.raises(Unreachable, match=r"no broker answers at a\.\.b:1 "):
        Connection(Settings("unused"), ("a..b", 1))


def test_a_buffer_is_used_again_and_grows() -> None:
    buffer = AnswerBuffer()
    first = buffer.reserve(1000)
    first[:3] = b"abc"
    again = buffer.reserve(500)
    assert bytes(again[:3]) == b"abc" and len(again) == 500
    assert len(buffer.reserve(5000)) == 5000
    assert bytes(first[:3]) == b"abc"  # a view of the old memory keeps it
