"""Those who have not said who they are: few of one host, not too many of all, and little memory for each."""

import asyncio
import struct
from functools import partial
from pathlib import Path

import pytest
from tests.doors.transport import RecordingTransport
from tests.hand_clock import HandClock

from penstock.net import strangers as strangers_module
from penstock.net.buffer import GROWN_BYTES
from penstock.net.connection import Answer, Connection, Connections, Limits
from penstock.net.strangers import host_of, is_remote
from penstock.net.tcp import TcpNetwork
from penstock.observe.stats import Stats

from .certificates import Authority
from .test_tls import End, until

LARGEST = 50_000
CROWDED_S = 2.0


class Threshold:
    """A session that answers with what it hears, and that knows a peer when it says so."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.heard: list[bytes] = []
        self.is_over = False
        self.answer = b""
        self.owed: list[Answer] | None = None
        """Where answers are kept that are not given yet."""
        connection.limit_frames(LARGEST)

    def handle(self, frame: memoryview, answer: Answer) -> None:
        self.heard.append(bytes(frame))
        if self.owed is None:
            answer.send((self.answer,))
        else:
            self.owed.append(answer)
        if frame == b"known":
            self._connection.limit_frames(None)

    def disconnected(self) -> None:
        self.is_over = True


class Caller:
    """A peer and its connection; `taken` is how much of what is sent to it leaves."""

    def __init__(self, place: "Place", peer: str, taken: int | None = None) -> None:
        self.transport = RecordingTransport(taken)
        self.transport.peer = peer
        self.connection = place.connections.accept()
        self.connection.connected(self.transport)
        place.run_soon()
        self._place = place
        self.session = place.sessions[-1]

    def say(self, *words: bytes) -> None:
        data = b"".join(struct.pack(">i", len(word)) + word for word in words)
        while data and self.transport.reading:
            room = self.connection.get_buffer()[: len(data)]
            room[:] = data[: len(room)]
            data = data[len(room) :]
            self.connection.received(len(room))
        self._place.run_soon()

    def go(self) -> None:
        self.connection.disconnected()
        self._place.run_soon()

    @property
    def is_gone(self) -> bool:
        return self.transport.aborted


class Place:
    def __init__(self, **limits: int) -> None:
        self.clock = HandClock()
        self.stats = Stats()
        self._soon: list = []
        self.sessions: list[Threshold] = []
        self.connections = Connections(
            Limits(**limits),  # type: ignore[arg-type]
            self.stats,
            self.clock,
            self._make_session,
            self._soon.append,
        )

    def _make_session(self, connection: Connection) -> Threshold:
        self.sessions.append(Threshold(connection))
        return self.sessions[-1]

    def run_soon(self) -> None:
        while self._soon:
            self._soon.pop(0)()

    def come(self, count: int = 1, host: str = "10.0.0.1", **more: int) -> list[Caller]:
        return [Caller(self, f"{host}:{port}", **more) for port in range(count)]


def test_a_few_of_one_host_and_the_others_wait_their_turn() -> None:
    place = Place(strangers_of_host=3)
    callers = place.come(5)
    assert [each.transport.reading for each in callers] == [True, True, True, False, False]
    (other,) = place.come(host="10.0.0.2")
    assert other.transport.reading
    callers[1].say(b"known")
    assert callers[1].session.heard == [b"known"]
    assert callers[3].transport.reading and not callers[4].transport.reading
    callers[0].go()
    assert callers[4].transport.reading
    callers[4].say(b"known")
    assert callers[4].session.heard == [b"known"]
    assert len(place.connections.strangers) == 3


def test_a_network_of_ipv6_is_one_host() -> None:
    place = Place(strangers_of_host=3)
    of_one = [Caller(place, f"2001:db8::{number}:{number}") for number in range(5)]
    (other,) = place.come(host="2001:db8:0:1::1")
    assert [each.transport.reading for each in (*of_one, other)] == [True, True, True, False, False, True]
    for each in (*of_one, other):
        each.go()
    strangers = place.connections.strangers
    assert (len(strangers), strangers._hosts, strangers._placed, strangers._waiting) == (0, {}, {}, {})


def test_who_waits_may_go_and_leaves_nothing_behind() -> None:
    place = Place(strangers_of_host=1)
    first, second, third = place.come(3)
    second.go()
    first.go()
    assert third.transport.reading
    third.go()
    strangers = place.connections.strangers
    assert (len(strangers), strangers._hosts, strangers._placed, strangers._waiting) == (0, {}, {}, {})


def test_those_who_keep_others_of_their_host_waiting_have_to_be_quick() -> None:
    place = Place(strangers_of_host=2)
    (patient,) = place.come(host="10.0.0.2")
    slow = place.come(3)
    place.clock.now += CROWDED_S + 0.1
    place.connections.sweep()
    place.run_soon()
    assert [each.is_gone for each in (*slow, patient)] == [True, True, False, False]
    assert slow[2].transport.reading


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1", "memory"])
def test_on_this_machine_there_may_be_any_number_of_them(host: str) -> None:
    place = Place(strangers_of_host=1)
    assert all(each.transport.reading for each in place.come(5, host))


@pytest.mark.parametrize(
    ("peer", "host", "remote"),
    [
        ("10.0.0.1:5", "10.0.0.1", True),
        ("::ffff:10.0.0.1:5", "10.0.0.1", True),
        ("[fe80::1]:5", "fe80::1", True),
        ("2001:db8::1:5", "2001:db8::1", True),
        ("unknown", "", False),
    ],
)
def test_whose_address_it_is(peer: str, host: str, remote: bool) -> None:
    assert host_of(peer) == host
    assert is_remote(host) is remote


def test_when_there_are_too_many_the_oldest_that_said_nothing_goes() -> None:
    place = Place(strangers=3)
    talker, *silent = place.come(3, "127.0.0.1")
    place.clock.now += 0.1
    talker.say(b"hello")
    (good,) = place.come(host="127.0.0.1")
    assert [each.is_gone for each in (talker, *silent, good)] == [False, True, False, False]
    good.say(b"known")
    assert good.session.heard == [b"known"]
    assert len(place.connections.strangers) == 2


def test_when_all_have_said_something_those_who_had_time_go_and_else_who_comes() -> None:
    place = Place(strangers=2)
    talkers = place.come(2)
    place.clock.now += 0.1
    for each in talkers:
        each.say(b"hello")
    (late,) = place.come()
    assert [each.is_gone for each in (*talkers, late)] == [False, False, True]
    assert place.stats.connections_refused == 1
    place.clock.now += CROWDED_S
    (later,) = place.come()
    assert [each.is_gone for each in (*talkers, later)] == [True, False, False]


def test_a_stranger_gets_no_large_buffer_and_who_is_known_does() -> None:
    for is_known in (False, True):
        place = Place()
        (caller,) = place.come()
        if is_known:
            caller.say(b"known")
        frame = struct.pack(">i", 4) + b"word"
        for _ in range(5000):
            room = caller.connection.get_buffer()
            size = len(room) // len(frame) * len(frame) or len(room)
            room[:size] = (frame * (size // len(frame) + 1))[:size]
            caller.connection.received(size)
            place.run_soon()
            if caller.connection.framing.size >= GROWN_BYTES:
                break
        assert (caller.connection.framing.size >= GROWN_BYTES) is is_known


def test_a_stranger_that_does_not_read_its_answers_is_not_read_from() -> None:
    for is_known in (False, True):
        place = Place(stranger_unsent_bytes=1000)
        (caller,) = place.come(taken=0)
        if is_known:
            caller.say(b"known")
        caller.session.answer = bytes(400)
        for _ in range(2):
            caller.say(b"ask")
        assert caller.transport.reading
        caller.say(b"ask")
        assert caller.transport.reading is is_known


def test_a_stranger_that_waits_for_answers_is_not_read_from() -> None:
    for is_known in (False, True):
        place = Place(in_flight=4, stranger_in_flight=2)
        (caller,) = place.come()
        if is_known:
            caller.say(b"known")
        heard, caller.session.owed = len(caller.session.heard), []
        caller.say(*[b"ask"] * 5)
        assert len(caller.session.heard) - heard == (4 if is_known else 2)
        assert not caller.transport.reading
        for _ in range(5):
            caller.session.owed.pop(0).send((b"",))
            place.run_soon()
        assert len(caller.session.heard) - heard == 5
        assert caller.transport.reading


def test_who_becomes_known_among_requests_may_have_as_many_as_others() -> None:
    place = Place(in_flight=4, stranger_in_flight=2)
    (caller,) = place.come()
    caller.session.owed = []
    caller.say(b"ask", b"known", *[b"ask"] * 5)
    assert caller.session.heard == [b"ask", b"known", b"ask", b"ask"]


def test_a_stranger_keeps_no_memory_of_a_request() -> None:
    for is_known in (False, True):
        place = Place()
        (caller,) = place.come()
        if is_known:
            caller.say(b"known")
        caller.say(bytes(LARGEST))
        assert (caller.connection.framing.size < LARGEST) is not is_known


def has_come(sessions: list[Threshold], count: int) -> bool:
    return len(sessions) == count


def has_heard(session: Threshold, count: int) -> bool:
    return len(session.heard) >= count


@pytest.mark.parametrize("is_plain", [True, False])
async def test_who_waits_is_not_read_from_and_loses_nothing(
    is_plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real sockets, where all that was said is there before it is read."""
    monkeypatch.setattr(strangers_module, "is_remote", lambda host: True)
    files = Authority.make(tmp_path / "ours").sign("broker")
    sessions: list[Threshold] = []

    def make_session(connection: Connection) -> Threshold:
        sessions.append(Threshold(connection))
        return sessions[-1]

    connections = Connections(
        Limits(strangers_of_host=1), Stats(), HandClock(), make_session, asyncio.get_running_loop().call_soon
    )
    network = TcpNetwork()
    server_tls = None if is_plain else files.make_server_context()
    client_tls = None if is_plain else files.make_client_context()
    listener = await network.listen("127.0.0.1", 0, connections.accept, tls=server_tls)
    words = [bytes([number]) * 900 for number in range(40)]
    said = b"".join(struct.pack(">i", len(word)) + word for word in words)
    ends = [End() for _ in range(3)]
    for number, end in enumerate(ends):
        await network.connect(*listener.address, end, timeout_s=30, tls=client_tls)
        end.out.write(said)
        await until(partial(has_come, sessions, number + 1))
    await until(partial(has_heard, sessions[0], len(words)))
    assert [len(each.heard) for each in sessions] == [len(words), 0, 0]
    for number in range(3):
        await until(partial(has_heard, sessions[number], len(words)))
        ends[number].out.write(struct.pack(">i", 5) + b"known")
    await until(lambda: all(each.heard == [*words, b"known"] for each in sessions))
    assert not any(end.events[-1] == "disconnected" for end in ends)
    for end in ends:
        end.out.abort()
    await until(lambda: all(each.is_over for each in sessions))
    await listener.close()
