"""One connection: answers in order, limits that stop reading, deadlines, and a bug that costs one connection only."""

import gc
import struct
import sys
from collections import deque
from collections.abc import Callable
from copy import copy

import pytest
from tests.doors.transport import RecordingLog, RecordingTransport
from tests.hand_clock import HandClock

from penstock.net import connection as connection_module
from penstock.net.connection import Answer, Connection, Connections, Limits, PeerError
from penstock.observe.stats import Histogram, Stats


class Echo:
    """A session that keeps its answers until told to give them."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.answers: list[Answer] = []
        self.at_once = False
        self.over = 0
        self.error: Exception | None = None
        self.on_frame: Callable[[], None] | None = None

    def handle(self, frame: memoryview, answer: Answer) -> None:
        self.frames.append(bytes(frame))
        self.answers.append(answer)
        if self.on_frame is not None:
            self.on_frame()
        if self.error is not None:
            raise self.error
        if self.at_once:
            answer.send((bytes(frame),))

    def disconnected(self) -> None:
        self.over += 1


class WiredConnection:
    """A connection with everything around it."""

    def __init__(self, limits: Limits | None = None, *, taken: int | None = None) -> None:
        self.clock, self.stats, self.session = HandClock(), Stats(), Echo()
        self.soon: deque[Callable[[], None]] = deque()
        self.connections = Connections(
            limits or Limits(), self.stats, self.clock, lambda _: self.session, self.soon.append
        )
        self.transport = RecordingTransport(taken)
        self.connection: Connection = self.connections.accept()
        self.connection.connected(self.transport)

    def another(self) -> "WiredConnection":
        """A further connection to the same listener and session."""
        other = copy(self)
        other.transport = RecordingTransport()
        other.connection = self.connections.accept()
        other.connection.connected(other.transport)
        return other

    def receive(self, data: bytes) -> None:
        """Deliver bytes as long as the connection reads."""
        while data and self.transport.reading and not self.transport.aborted:
            room = self.connection.get_buffer()
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.connection.received(size)
            data = data[size:]

    def request(self, *frames: bytes) -> None:
        self.receive(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def run_soon(self) -> None:
        while self.soon:
            self.soon.popleft()()

    def sweep_after(self, seconds: float, step: float = 1.0) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now = min(self.clock.now + step, end)
            self.connections.sweep()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> RecordingLog:
    recording = RecordingLog()
    monkeypatch.setattr(connection_module, "log_", recording)
    return recording


def test_answers_leave_in_the_order_of_requests() -> None:
    bench = WiredConnection()
    bench.request(b"1", b"2", b"3", b"4")
    one, two, three, four = bench.session.answers
    three.send((b"C",))
    two.send((b"B",))
    assert bench.transport.data == b""
    one.send((b"A",))
    assert bench.transport.data == b"ABC"
    four.send((b"D",))
    assert bench.transport.data == b"ABCD"
    assert bench.stats.bytes_out == 4


def test_a_skipped_answer_holds_nobody_up() -> None:
    bench = WiredConnection()
    bench.request(b"1", b"2", b"3")
    bench.session.answers[2].send((b"C",))
    bench.session.answers[0].skip()
    bench.session.answers[1].skip()
    assert bench.transport.data == b"C"


def test_an_answer_of_several_parts_is_not_mixed_with_others() -> None:
    bench = WiredConnection()
    bench.request(b"1", b"2")
    bench.session.answers[1].send((b"c", b"d"))
    bench.session.answers[0].send((b"a", b"b"))
    assert bench.transport.data == b"abcd"


def test_latency_is_taken_when_the_answer_is_ready() -> None:
    bench = WiredConnection()
    histogram = Histogram()
    bench.request(b"1", b"2")
    second = bench.session.answers[1]
    second.time(histogram, bench.clock.now)
    bench.clock.now += 0.02
    second.send((b"x",))
    bench.clock.now += 50
    bench.session.answers[0].send((b"y",))
    assert histogram.count == 1
    assert histogram.total == pytest.approx(0.02)


def test_reading_stops_at_the_limit_of_unanswered_requests_and_goes_on_at_half() -> None:
    bench = WiredConnection(Limits(in_flight=4))
    bench.request(*[b"%d" % number for number in range(10)])
    assert len(bench.session.frames) == 4
    assert not bench.transport.reading
    bench.session.answers[0].send((b"0",))
    bench.run_soon()
    assert len(bench.session.frames) == 4, "three are still unanswered"
    bench.session.answers[1].send((b"1",))
    bench.run_soon()
    assert len(bench.session.frames) == 6, "received before the pause, handled after it"
    assert not bench.transport.reading
    for number in range(2, 10):
        bench.session.answers[number].send((b"%d" % number,))
        bench.run_soon()
    assert bench.session.frames == [b"%d" % number for number in range(10)]
    assert bench.transport.data == b"0123456789"
    assert bench.transport.reading


def test_answers_at_once_never_pause() -> None:
    bench = WiredConnection(Limits(in_flight=4))
    bench.session.at_once = True
    bench.request(*[b"x"] * 1000)
    assert len(bench.session.frames) == 1000
    assert bench.transport.reading


def test_a_peer_that_does_not_take_its_answers_is_not_read_from() -> None:
    bench = WiredConnection(Limits(unsent_bytes=1000), taken=0)
    bench.session.at_once = True
    bench.request(*[bytes(100)] * 35)
    handled = len(bench.session.frames)
    assert handled == 11, "the first answer above 1000 bytes ends it"
    assert not bench.transport.reading
    bench.transport.unsent = 0
    bench.connection.drained()
    bench.run_soon()
    assert len(bench.session.frames) == 22
    for _ in range(2):
        bench.transport.unsent = 0
        bench.connection.drained()
        bench.run_soon()
    assert bench.transport.data == bytes(100) * 35
    assert bench.transport.reading


def test_a_broken_protocol_closes_the_connection(log: RecordingLog) -> None:
    bench = WiredConnection()
    bench.session.error = PeerError("nonsense")
    bench.request(b"1", b"2")
    assert bench.transport.aborted
    assert bench.session.frames == [b"1"]
    assert bench.session.over == 1
    assert bench.stats.protocol_errors == 1
    assert log.warnings[0]["reason"] == "nonsense"
    assert not log.bugs


def test_an_impossible_length_closes_the_connection(log: RecordingLog) -> None:
    bench = WiredConnection()
    bench.receive(b"\xff\xff\xff\xffrest")
    assert bench.transport.aborted
    assert not log.bugs


def test_a_bug_of_ours_closes_the_connection_and_is_logged(log: RecordingLog) -> None:
    bench = WiredConnection()
    bench.session.error = ZeroDivisionError("ours")
    bench.request(b"1")
    assert bench.transport.aborted
    assert len(log.bugs) == 1
    assert "ZeroDivisionError" in log.bugs[0]
    assert bench.stats.protocol_errors == 1


def test_answers_after_the_end_go_nowhere() -> None:
    bench = WiredConnection()
    bench.request(b"1", b"2")
    bench.connection.disconnected()
    assert bench.session.over == 1
    assert bench.stats.connections_open == 0
    for answer in bench.session.answers:
        answer.send((b"late",))
    assert bench.transport.sent == []


def test_nothing_is_handled_after_the_end() -> None:
    bench = WiredConnection(Limits(in_flight=2))
    bench.request(*[b"x"] * 5)
    bench.session.answers[0].send(())
    bench.connection.disconnected()
    bench.session.answers[1].send(())
    bench.run_soon()
    assert len(bench.session.frames) == 2


def test_connections_above_the_limit_are_refused() -> None:
    bench = WiredConnection(Limits(connections=1))
    refused, transport = bench.connections.accept(), RecordingTransport()
    refused.connected(transport)
    assert transport.aborted
    refused.disconnected()
    assert (bench.stats.connections_open, bench.stats.connections_refused) == (1, 1)
    bench.connection.disconnected()
    again = bench.connections.accept()
    again.connected(RecordingTransport())
    assert (bench.stats.connections_open, bench.stats.connections_total) == (1, 2)


def test_a_slow_request_is_closed(log: RecordingLog) -> None:
    bench = WiredConnection(Limits(frame_s=30))
    bench.receive(b"\0\0\0\x10")
    for _ in range(10):  # a byte now and then does not help
        bench.sweep_after(2)
        bench.receive(b"x")
    assert not bench.transport.aborted
    bench.sweep_after(15)
    assert bench.transport.aborted
    assert log.warnings[-1]["reason"] == "request came too slowly"


def test_a_large_request_gets_more_time() -> None:
    bench = WiredConnection(Limits(frame_s=30, slowest_bytes_s=16 * 1024))
    bench.receive((16 << 20).to_bytes(4, "big"))
    bench.receive(b"x")
    bench.sweep_after(1000, 10)
    assert not bench.transport.aborted
    bench.sweep_after(100, 10)
    assert bench.transport.aborted


def test_a_busy_peer_whose_buffer_is_never_empty_is_not_slow() -> None:
    """Every read ends in the middle of a request, as it does when requests are pipelined."""
    bench = WiredConnection(Limits(frame_s=30))
    bench.session.at_once = True
    frame = b"\0\0\0\x08abcdefgh"
    bench.receive(frame[:5])
    for _ in range(100):
        bench.sweep_after(1)
        bench.receive(frame[5:] + frame[:5])
    assert not bench.transport.aborted
    assert len(bench.session.frames) == 100
    bench.sweep_after(31)
    assert bench.transport.aborted


def test_time_we_did_not_read_is_not_the_peers_fault() -> None:
    bench = WiredConnection(Limits(in_flight=2, frame_s=30))
    bench.request(b"1", b"2")
    assert not bench.transport.reading
    room = bench.connection.get_buffer()
    room[:6] = b"\0\0\0\x09ab"  # read by the system before it was told to stop
    bench.connection.received(6)
    bench.sweep_after(100)
    assert not bench.transport.aborted
    for answer in bench.session.answers:
        answer.send(())
    bench.run_soon()
    bench.sweep_after(20)
    assert not bench.transport.aborted
    bench.receive(b"cdefghi")
    assert bench.session.frames[-1] == b"abcdefghi"


def test_a_peer_that_never_reads_is_closed(log: RecordingLog) -> None:
    bench = WiredConnection(Limits(write_stall_s=30), taken=0)
    bench.session.at_once = True
    bench.request(b"hello")
    bench.sweep_after(29)
    assert not bench.transport.aborted
    bench.sweep_after(4)
    assert bench.transport.aborted
    assert log.warnings[-1]["reason"] == "peer does not read"
    assert bench.session.over == 1


def test_a_peer_that_reads_slowly_is_kept() -> None:
    bench = WiredConnection(Limits(write_stall_s=30), taken=0)
    bench.session.at_once = True
    bench.request(bytes(500))
    for _ in range(100):
        bench.sweep_after(2)
        bench.transport.unsent -= 1
    assert not bench.transport.aborted


def test_an_idle_connection_shrinks_then_is_closed() -> None:
    bench = WiredConnection(Limits(shrink_s=5, idle_s=600))
    bench.session.at_once = True
    bench.request(*[bytes(60)] * 2000)
    grown = bench.connection._buffer.size
    bench.sweep_after(6)
    assert bench.connection._buffer.size < grown
    bench.sweep_after(590, 10)
    assert not bench.transport.closed
    bench.sweep_after(20, 10)
    assert bench.transport.closed
    assert not bench.transport.aborted


def test_a_connection_that_waits_for_an_answer_is_not_idle() -> None:
    bench = WiredConnection(Limits(idle_s=600))
    bench.request(b"long poll")
    bench.sweep_after(1000, 10)
    assert not bench.transport.closed


def test_close_all_lets_what_is_queued_leave() -> None:
    bench = WiredConnection()
    bench.connections.close_all()
    assert bench.transport.closed
    assert not bench.transport.aborted


def test_peer_has_a_name_before_and_after() -> None:
    bench = WiredConnection()
    assert bench.connection.peer == "test:1"
    bench.connection.disconnected()
    assert bench.connection.peer == "nobody"


def large(size: int) -> bytes:
    return struct.pack(">i", size)


def test_large_requests_wait_for_room_and_come_when_there_is_some() -> None:
    first = WiredConnection(Limits(receive_bytes=10 << 20))
    second = first.another()
    first.receive(large(8 << 20) + b"1")
    second.receive(large(8 << 20) + b"2")
    assert (first.transport.reading, second.transport.reading) == (True, False)
    assert first.connections.room.taken_bytes < 10 << 20
    first.receive(bytes((8 << 20) - 1))
    first.run_soon()
    assert len(first.session.frames) == 1
    assert second.transport.reading
    second.receive(bytes((8 << 20) - 1))
    assert len(first.session.frames) == 2
    assert first.connections.room.taken_bytes == 0


def test_small_requests_never_wait_for_room() -> None:
    first = WiredConnection(Limits(receive_bytes=1 << 20))
    second = first.another()
    first.receive(large(50 << 20) + b"1")
    second.request(bytes(200 * 1024))
    assert len(second.session.frames) == 1


def test_room_comes_back_from_connections_that_end() -> None:
    first = WiredConnection(Limits(receive_bytes=10 << 20))
    waiting, gone = first.another(), first.another()
    first.receive(large(8 << 20) + b"1")
    gone.receive(large(9 << 20) + b"2")
    waiting.receive(large(7 << 20) + b"3")
    gone.connection.disconnected()
    assert not waiting.transport.reading
    first.connection.disconnected()
    first.run_soon()
    assert waiting.transport.reading


def test_while_others_wait_a_large_request_has_to_come_fast(log: RecordingLog) -> None:
    bench = WiredConnection(Limits(receive_bytes=10 << 20))
    bench.receive(large(8 << 20) + b"1")
    bench.sweep_after(20)
    assert not bench.transport.aborted
    other = bench.another()
    other.receive(large(8 << 20) + b"2")
    bench.sweep_after(5)
    assert bench.transport.aborted and not other.transport.aborted


def test_answers_behind_an_unanswered_request_are_counted_and_stop_reading() -> None:
    bench = WiredConnection(Limits(unsent_bytes=1000))
    bench.request(b"1", b"2", b"3")
    bench.session.answers[1].send((bytes(600),))
    assert (bench.transport.reading, bench.connections.holders.held_bytes) == (True, 600)
    bench.session.answers[2].send((bytes(600),))
    assert (bench.transport.reading, bench.connections.holders.held_bytes) == (False, 1200)
    bench.session.answers[0].send((b"x",))
    bench.run_soon()
    assert (bench.transport.reading, bench.connections.holders.held_bytes) == (True, 0)


def test_of_all_connections_the_one_that_holds_most_answers_is_closed(log: RecordingLog) -> None:
    first = WiredConnection(Limits(answer_bytes=100_000))
    second = first.another()
    for bench, held in ((first, 30_000), (second, 60_000)):
        bench.session.answers.clear()
        bench.request(b"1", b"2")
        bench.session.answers[1].send((bytes(held),))
    assert not second.transport.aborted
    third = first.another()
    third.session.answers.clear()
    third.request(b"1", b"2")
    third.session.answers[1].send((bytes(20_000),))
    assert [bench.transport.aborted for bench in (first, second, third)] == [False, True, False]
    assert first.connections.holders.held_bytes == 50_000


def test_answers_that_the_peer_does_not_read_are_counted() -> None:
    bench = WiredConnection(taken=0)
    bench.session.at_once = True
    bench.request(bytes(100_000))
    assert bench.connections.holders.held_bytes == 100_000
    bench.transport.unsent = 0
    bench.connection.drained()
    assert bench.connections.holders.held_bytes == 0


def test_a_request_that_takes_long_is_alone_on_its_connection() -> None:
    bench = WiredConnection()
    bench.session.on_frame = bench.connection.busy
    bench.request(b"1", b"2")
    assert bench.session.frames == [b"1"]
    bench.session.answers[0].send((b"a",))
    bench.run_soon()
    assert bench.session.frames == [b"1"]
    bench.connection.free()
    bench.run_soon()
    assert bench.session.frames == [b"1", b"2"]


def test_who_does_not_read_what_took_long_gets_no_more_of_it() -> None:
    bench = WiredConnection(taken=0)
    bench.session.on_frame = bench.connection.busy
    bench.request(b"1", b"2")
    bench.session.answers[0].send((bytes(100_000),))
    bench.connection.free()
    bench.run_soon()
    assert bench.session.frames == [b"1"]
    bench.transport.unsent = 0
    bench.connection.drained()
    bench.run_soon()
    assert bench.session.frames == [b"1", b"2"]


def test_who_does_not_read_answers_that_were_quick_gets_more_of_them() -> None:
    bench = WiredConnection(Limits(in_flight=2), taken=0)
    bench.session.on_frame = bench.connection.busy
    bench.request(b"1")
    bench.session.answers[0].send((b"a",))
    bench.connection.free()
    bench.run_soon()
    bench.session.on_frame = None
    bench.request(b"2", b"3", b"4")
    assert bench.session.frames == [b"1", b"2", b"3"]
    for answer in bench.session.answers[1:]:
        answer.send((bytes(100_000),))
    bench.run_soon()
    assert bench.session.frames == [b"1", b"2", b"3", b"4"]


def test_many_requests_at_once_let_others_have_a_turn() -> None:
    bench = WiredConnection()
    bench.session.at_once = True

    def slow() -> None:
        bench.clock.now += 0.02

    bench.session.on_frame = slow
    bench.request(b"1", b"2", b"3")
    assert bench.session.frames == [b"1"]
    bench.run_soon()
    assert bench.session.frames == [b"1", b"2", b"3"]
    assert bench.transport.data == b"123"


def test_a_connection_that_ends_unanswered_leaves_nothing_behind() -> None:
    gc.disable()
    try:
        bench = WiredConnection()
        other = bench.another()
        other.request(b"1", b"2")
        bench.session.answers[1].send((b"x",))
        other.connection.disconnected()
        bench.session.answers.clear()
        mine = other.connection
        del other
        assert sys.getrefcount(mine) == 2  # its name here, and the call
    finally:
        gc.enable()


def test_an_answer_for_nobody_is_let_go() -> None:
    bench = WiredConnection()
    bench.request(b"1", b"2")
    bench.connection.disconnected()
    for answer in bench.session.answers:
        answer.send((b"x",))
    assert (bench.transport.data, bench.connections.holders.held_bytes) == (b"", 0)


def test_room_that_is_kept_for_later_goes_to_who_needs_it_now() -> None:
    idle = WiredConnection(Limits(receive_bytes=10 << 20, in_flight=2))
    paused, asking = idle.another(), idle.another()
    for bench in (idle, paused):
        bench.request(bytes(3 << 20))  # answered later; its buffer stays
    paused.request(b"second")
    paused.receive(b"\x00")  # and no further one is read, whose first byte is there
    assert (paused.transport.reading, idle.connections.room.taken_bytes > 5 << 20) == (False, True)
    asking.receive(large(8 << 20) + b"1")
    assert asking.transport.reading
    assert idle.connections.room.taken_bytes < 8 << 20


def test_what_is_left_in_a_large_buffer_outlives_its_giving_back() -> None:
    bench = WiredConnection(Limits(receive_bytes=10 << 20, in_flight=2))
    bench.request(bytes(3 << 20), b"second")
    bench.transport.reading = True  # what came in one piece with it
    bench.receive(struct.pack(">i", 5) + b"thi")
    bench.connection.give_back()
    assert bench.connections.room.taken_bytes == 0
    for answer in bench.session.answers:
        answer.skip()
    bench.run_soon()
    bench.receive(b"rd")
    assert bench.session.frames[1:] == [b"second", b"third"]
