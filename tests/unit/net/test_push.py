"""What a session sends on its own: at once, in order, bounded, and never to a peer that does not read."""

import struct
from collections import deque
from collections.abc import Callable

import pytest
from tests.doors.transport import RecordingLog, RecordingTransport
from tests.hand_clock import HandClock

from penstock.net import connection as connection_module
from penstock.net.connection import Answer, Connection, Connections, Limits, PeerError
from penstock.net.session import PushError
from penstock.observe.stats import Stats


class Publisher:
    """A session that pushes what is queued whenever it may."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.queue: deque[bytes] = deque()
        self.answers: list[Answer] = []
        self.calls = 0
        self.over = 0
        self.error: Exception | None = None

    def handle(self, frame: memoryview, answer: Answer) -> None:
        self.answers.append(answer)

    def writable(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        while self.queue and self.connection.is_writable:
            self.connection.push((self.queue.popleft(),))

    def disconnected(self) -> None:
        self.over += 1


class WiredPublisher:
    """A publisher with everything around it."""

    def __init__(self, limits: Limits | None = None, *, taken: int | None = None, ordered: bool = True) -> None:
        self.clock, self.stats = HandClock(), Stats()
        self.soon: deque[Callable[[], None]] = deque()
        self.sessions: list[Publisher] = []
        self.connections = Connections(
            limits or Limits(), self.stats, self.clock, self._make, self.soon.append, ordered=ordered
        )
        self.transport = RecordingTransport(taken)
        self.connection = self.connect(self.transport)
        self.session = self.sessions[0]

    def connect(self, transport: RecordingTransport) -> Connection:
        connection = self.connections.accept()
        connection.connected(transport)
        return connection

    def _make(self, connection: Connection) -> Publisher:
        self.sessions.append(Publisher(connection))
        return self.sessions[-1]

    def request(self, count: int) -> None:
        data = struct.pack(">i", 1) + b"x"
        for _ in range(count):
            self.connection.get_buffer()[: len(data)] = data
            self.connection.received(len(data))

    def read_all(self) -> None:
        self.transport.unsent = 0
        self.connection.drained()
        self.run_soon()

    def run_soon(self) -> None:
        while self.soon:
            self.soon.popleft()()

    def sweep_for(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.now += 1
            self.connections.sweep()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> RecordingLog:
    recording = RecordingLog()
    monkeypatch.setattr(connection_module, "log_", recording)
    return recording


def test_a_push_does_not_wait_for_unanswered_requests() -> None:
    bench = WiredPublisher()
    bench.request(2)
    bench.connection.push((b"1", b"2"))
    bench.session.answers[1].send((b"B",))
    bench.connection.push((b"3",))
    bench.session.answers[0].send((b"A",))
    bench.connection.push((b"4",))
    assert bench.transport.data == b"123AB4"
    assert bench.stats.bytes_out == 6


def test_a_session_may_push_as_soon_as_it_is_made() -> None:
    bench = WiredPublisher()

    def greet(connection: Connection) -> Publisher:
        connection.push((b"INFO",))
        return Publisher(connection)

    bench.connections.make_session = greet
    transport = RecordingTransport()
    bench.connect(transport)
    assert transport.data == b"INFO"


def test_pushing_above_the_limit_is_refused_until_the_peer_has_read() -> None:
    bench = WiredPublisher(Limits(pushed_bytes=1000), taken=0)
    bench.connection.push((bytes(1000),))
    assert bench.connection.is_writable
    bench.connection.push((bytes(5000),))  # one may be larger than all that is left
    assert not bench.connection.is_writable
    with pytest.raises(PushError, match="6000 bytes"):
        bench.connection.push((b"x",))
    assert bench.connection.unsent == 6000
    bench.transport.unsent = 999
    assert bench.connection.is_writable


def test_a_session_is_told_when_the_peer_has_read() -> None:
    bench = WiredPublisher(Limits(pushed_bytes=1000), taken=0)
    bench.session.queue.extend(b"%d" % digit * 400 for digit in range(10))
    bench.session.writable()
    most = 0
    while bench.session.queue:
        most = max(most, bench.connection.unsent)
        bench.read_all()
    assert most == 1200
    assert bench.transport.data == b"".join(b"%d" % digit * 400 for digit in range(10))


def test_a_session_without_that_method_is_not_told() -> None:
    class Silent:
        def handle(self, frame: memoryview, answer: Answer) -> None:
            answer.skip()

        def disconnected(self) -> None: ...

    bench = WiredPublisher()
    bench.connections.make_session = lambda _: Silent()
    transport = RecordingTransport()
    bench.connect(transport).drained()
    bench.run_soon()
    assert not transport.aborted


def test_requests_of_a_slow_reader_are_still_read() -> None:
    bench = WiredPublisher(Limits(pushed_bytes=1000, unsent_bytes=4000), taken=0)
    bench.connection.push((bytes(1500),))
    bench.request(1)
    bench.session.answers[0].send((b"x",))
    assert bench.transport.reading
    bench.request(1)
    bench.session.answers[1].send((bytes(3000),))
    assert not bench.transport.reading
    bench.read_all()
    assert bench.transport.reading


def test_what_was_pushed_counts_among_what_all_connections_hold(log: RecordingLog) -> None:
    bench = WiredPublisher(Limits(answer_bytes=300_000, pushed_bytes=1 << 20), taken=0)
    others = [bench.connect(RecordingTransport(0)) for _ in range(2)]
    bench.connection.push((bytes(150_000),))
    others[0].push((bytes(100_000),))
    assert bench.connections.holders.held_bytes == 250_000
    others[1].push((bytes(100_000),))
    assert bench.transport.aborted
    assert bench.session.over == 1
    assert "150000 bytes" in str(log.warnings[0]["reason"])
    assert bench.connections.holders.held_bytes == 200_000


def test_a_peer_that_reads_nothing_is_closed_although_something_is_pushed_now_and_then(log: RecordingLog) -> None:
    bench = WiredPublisher(Limits(write_stall_s=30), taken=0)
    for _ in range(30):
        bench.connection.push((b"tick",))
        bench.sweep_for(1)
    assert not bench.transport.aborted
    for _ in range(3):
        bench.connection.push((b"tick",))
        bench.sweep_for(1)
    assert bench.transport.aborted
    assert log.warnings[0]["reason"] == "peer does not read"


def test_a_peer_that_reads_as_slowly_as_is_pushed_is_kept() -> None:
    bench = WiredPublisher(Limits(write_stall_s=30), taken=0)
    bench.connection.push((bytes(100),))
    for _ in range(100):
        bench.connection.push((b"tick",))
        bench.transport.unsent -= 4
        bench.sweep_for(1)
    assert not bench.transport.aborted


def test_a_push_to_nobody_goes_nowhere() -> None:
    bench = WiredPublisher()
    bench.connection.disconnected()
    bench.connection.push((b"late",))
    assert (bench.transport.sent, bench.connection.is_writable, bench.connection.unsent) == ([], False, 0)
    bench.connection.drained()
    bench.run_soon()
    assert bench.session.calls == 0, "it is over"


def test_a_session_is_told_once_and_not_while_it_sends() -> None:
    bench = WiredPublisher()
    bench.connection.drained()
    bench.connection.drained()
    assert bench.session.calls == 0
    bench.run_soon()
    assert bench.session.calls == 1
    bench.connection.drained()
    bench.connection.disconnected()
    bench.run_soon()
    assert bench.session.calls == 1


@pytest.mark.parametrize(("error", "bugs"), [(ZeroDivisionError("ours"), 1), (PeerError("theirs"), 0)])
def test_a_session_that_fails_while_it_pushes_costs_its_connection_only(
    log: RecordingLog, error: Exception, bugs: int
) -> None:
    bench = WiredPublisher()
    bench.session.error = error
    bench.connection.drained()
    bench.run_soon()
    assert (bench.transport.aborted, bench.session.over, len(log.bugs)) == (True, 1, bugs)


def test_answers_without_an_order_go_when_they_are_there() -> None:
    bench = WiredPublisher(ordered=False)
    bench.request(4)
    one, two, three, four = bench.session.answers
    three.send((b"c", b"C"))
    one.send((b"a",))
    four.skip()
    two.send((b"b",))
    assert bench.transport.data == b"cCab"
    assert bench.connections.holders.held_bytes == 0


def test_answers_without_an_order_are_limited_like_others() -> None:
    bench = WiredPublisher(Limits(in_flight=4), ordered=False)
    bench.request(4)
    assert not bench.transport.reading
    bench.session.answers[3].skip()
    bench.session.answers[2].skip()
    bench.soon.popleft()()
    assert bench.transport.reading


def test_late_answers_without_an_order_go_nowhere() -> None:
    bench = WiredPublisher(ordered=False)
    bench.request(2)
    bench.connection.disconnected()
    bench.session.answers[1].send((b"late",))
    assert bench.transport.sent == []


def test_a_late_answer_leaves_at_once_however_many_are_owed_or_unsent() -> None:
    bench = WiredPublisher(Limits(pushed_bytes=10, unsent_bytes=100), taken=0)
    bench.request(2)
    bench.session.answers[0].skip()
    bench.connection.send_late((b"1" * 50, b"2"))
    assert not bench.connection.is_writable
    bench.connection.send_late((b"3" * 60,))
    assert bench.transport.data == b"1" * 50 + b"2" + b"3" * 60
    assert bench.stats.bytes_out == 111
    assert not bench.transport.reading, "who asks for more than it takes is read no further"
    bench.read_all()
    bench.connection.disconnected()
    bench.connection.send_late((b"4",))
    assert bench.stats.bytes_out == 111
