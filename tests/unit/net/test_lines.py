"""Lines and payloads: the same frames come out however the bytes come in; no end and a claim cost nothing."""

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.net.buffer import GROWN_BYTES, SMALL_BYTES
from penstock.net.framing import FrameError
from penstock.net.lines import LineBuffer
from penstock.net.room import Room

LIMIT = 8 << 20


class Reader:
    """Receives in pieces. Lines `+N` announce a payload of N bytes, lines `0` a frame that ends with NUL."""

    def __init__(self, buffer: LineBuffer, *, switches: bool = False) -> None:
        self.buffer = buffer
        self.found: list[bytes] = []
        self._switches = switches
        self._is_line = True

    def feed(self, data: bytes, most: int = 1 << 30) -> list[bytes]:
        position = 0
        while position < len(data):
            room = self.buffer.writable()
            assert len(room) > 0
            size = min(len(room), most, len(data) - position)
            room[:size] = data[position : position + size]
            self.buffer.add(size)
            position += size
            self._take()
        return self.found

    def _take(self) -> None:
        while (view := self.buffer.next()) is not None:
            frame = bytes(view)
            self.found.append(frame)
            was_line, self._is_line = self._is_line, True
            if self._switches and was_line and frame[:1] == b"+":
                self.buffer.expect(int(frame))
                self._is_line = False
            elif self._switches and was_line and frame == b"0":
                self.buffer.expect_until(b"\0")
                self._is_line = False


def lines_of(data: bytes, delimiter: bytes, most: int = 1 << 30) -> list[bytes]:
    return Reader(LineBuffer(LIMIT, delimiter=delimiter)).feed(data, most)


@pytest.mark.parametrize("delimiter", [b"\n", b"\r\n", b"\0", b"abc"])
@pytest.mark.parametrize("most", [1, 2, 3, 1000, 4096, 1 << 30])
def test_lines_come_out_as_they_went_in(delimiter: bytes, most: int) -> None:
    lines = [b"", b"x", b"\r", b"", b"y" * 4095, b"z" * 4096, b"ab", b"a" * 2000, b"b" * 2090, b"\r\r"]
    assert lines_of(delimiter.join(lines) + delimiter, delimiter, most) == lines


@pytest.mark.parametrize("most", [1, 1 << 30])
def test_the_start_of_the_next_line_waits_for_its_rest(most: int) -> None:
    reader = Reader(LineBuffer(LIMIT, delimiter=b"\r\n"))
    assert reader.feed(b"one\r\ntwo\r", most) == [b"one"]
    assert not reader.buffer.is_empty
    assert reader.feed(b"\n", most) == [b"one", b"two"]
    assert reader.buffer.is_empty


@given(st.text("ab\r\n\0").map(str.encode), st.sampled_from([b"\n", b"\r\n", b"\0", b"aab"]))
def test_every_split_gives_what_the_whole_gives(data: bytes, delimiter: bytes) -> None:
    expected = data.split(delimiter)[:-1]
    assert lines_of(data, delimiter) == expected
    assert lines_of(data, delimiter, 1) == expected
    for split in range(1, len(data)):
        reader = Reader(LineBuffer(LIMIT, delimiter=delimiter))
        reader.feed(data[:split])
        assert reader.feed(data[split:]) == expected


frames_of_all_kinds = st.lists(
    st.one_of(
        st.binary(max_size=40).filter(lambda line: b"\n" not in line and line[:1] != b"+" and line != b"0"),
        st.integers(0, 60).map(lambda size: (b"+%d" % size, bytes([size]) * size)),
        st.binary(max_size=40).filter(lambda body: b"\0" not in body).map(lambda body: (b"0", body)),
    )
)


@given(frames_of_all_kinds, st.integers(1, 50))
def test_payloads_between_lines_may_have_any_bytes(frames: list[Any], most: int) -> None:
    data, expected = b"", []
    for frame in frames:
        line, body = frame if isinstance(frame, tuple) else (frame, None)
        end = b"\0" if line == b"0" else b""
        data += line + b"\n" + (body + end if body is not None else b"")
        expected += [line] if body is None else [line, body]
    for step in (most, 1 << 30):
        assert Reader(LineBuffer(LIMIT), switches=True).feed(data, step) == expected


@pytest.mark.parametrize("seed", range(20))
def test_random_frames_in_random_pieces(seed: int) -> None:
    rng = random.Random(seed)
    reader, data, expected = Reader(LineBuffer(LIMIT, Room(LIMIT)), switches=True), b"", []
    for _ in range(40):
        size = rng.choice((0, 3, 50, 4000, 4096, 4097, 9000, 100_000, 300_000))
        kind = rng.randrange(3)
        body = rng.randbytes(size) if kind == 1 else b"b" * size
        head = (b"l" * rng.randrange(4000), b"+%d" % size, b"0")[kind]
        data += head + b"\n" + (b"", body, body + b"\0")[kind]
        expected += [head] if kind == 0 else [head, body]
    position = 0
    while position < len(data):
        size = rng.choice((1, 3, 100, 4096, 1 << 20))
        reader.feed(data[position : position + size], size)
        position += size
        if rng.random() < 0.2:
            rng.choice((reader.buffer.shrink, reader.buffer.give_back))()
    assert reader.found == expected
    assert reader.buffer.is_empty


class CountingBytes(bytearray):
    """Memory that knows how much of it was searched."""

    searched = 0

    def find(self, sub: Any, start: Any = 0, end: Any = 0) -> int:
        CountingBytes.searched += end - start
        return super().find(sub, start, end)


def test_a_line_that_trickles_in_is_searched_once() -> None:
    buffer = LineBuffer(LIMIT, delimiter=b"\r\n")
    buffer._buffer = CountingBytes(buffer._buffer)
    buffer._view = memoryview(buffer._buffer)
    CountingBytes.searched = 0
    line = b"x" * 4000 + b"\r\n"
    assert Reader(buffer).feed(line, 1) == [line[:-2]]
    assert CountingBytes.searched <= 3 * len(line)


def test_a_long_frame_that_trickles_in_is_seldom_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    move = LineBuffer._move

    def count(self: LineBuffer, size: int) -> None:
        moved.append(self._end - self._start)
        move(self, size)

    monkeypatch.setattr(LineBuffer, "_move", count)
    reader = Reader(LineBuffer(LIMIT, line_limit=3000))
    reader.feed((b"x" * 2500 + b"\n") * 400, 700)
    assert len(reader.found) == 400
    assert sum(moved) < 2 * 2500 * 400


def test_an_endless_line_is_refused_and_costs_no_more_than_a_line() -> None:
    reader, endless = Reader(LineBuffer(LIMIT, line_limit=10_000)), b"x" * LIMIT
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match="10000"):
            reader.feed(endless)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert reader.buffer.size <= 20_000


@pytest.mark.parametrize("most", [1, 100, 1 << 30])
@pytest.mark.parametrize("delimiter", [b"\n", b"\r\n"])
def test_the_longest_line_is_allowed_and_one_byte_more_is_not(delimiter: bytes, most: int) -> None:
    longest = b"x" * 5000
    reader = Reader(LineBuffer(LIMIT, delimiter=delimiter, line_limit=5000))
    assert reader.feed(longest + delimiter, most) == [longest]
    with pytest.raises(FrameError):
        reader.feed(longest + b"x" + delimiter, most)
    assert reader.found == [longest]


def test_many_tiny_lines() -> None:
    lines = [b"%d" % number for number in range(100_000)]
    reader = Reader(LineBuffer(LIMIT))
    assert reader.feed(b"\n".join(lines) + b"\n") == lines
    assert reader.feed(b"\n" * 100_000)[100_000:] == [b""] * 100_000
    assert reader.buffer.size == GROWN_BYTES, "grown for a busy peer"
    reader.buffer.shrink()
    assert reader.buffer.size == SMALL_BYTES


def test_short_lines_make_no_buffer_larger_than_it_is() -> None:
    reader = Reader(LineBuffer(LIMIT, line_limit=1 << 20))
    reader.feed((b"x" * 99 + b"\n") * 50_000)
    assert len(reader.found) == 50_000
    assert reader.buffer.size <= GROWN_BYTES


@pytest.mark.parametrize("most", [10_000, 1 << 30])
def test_the_largest_payload_is_received_to_its_end_and_no_further(most: int) -> None:
    reader = Reader(LineBuffer(LIMIT), switches=True)
    payload = random.Random(1).randbytes(LIMIT)
    data = b"+%d\n" % LIMIT + payload
    reader.feed(data[:-1], most)
    assert len(reader.buffer.writable()) == 1
    reader.feed(data[-1:])
    assert reader.found[1] == payload
    assert reader.buffer.size == GROWN_BYTES
    assert reader.feed(b"next\n")[2:] == [b"next"]


@pytest.mark.parametrize("size", [-1, LIMIT + 1, 1 << 60])
def test_a_payload_that_is_too_large_is_refused_when_it_is_announced(size: int) -> None:
    buffer = LineBuffer(LIMIT)
    with pytest.raises(FrameError, match=str(size)):
        buffer.expect(size)
    assert (buffer.size, buffer.lacking) == (SMALL_BYTES, 0)


def test_a_payload_of_no_bytes_is_a_frame() -> None:
    assert Reader(LineBuffer(LIMIT), switches=True).feed(b"+0\n\n", 1) == [b"+0", b"", b""]


def test_a_body_without_a_size_is_limited_like_a_payload() -> None:
    reader = Reader(LineBuffer(300_000), switches=True)
    assert reader.feed(b"0\n" + b"x" * 300_000 + b"\0")[1] == b"x" * 300_000
    with pytest.raises(FrameError, match="300000"):
        reader.feed(b"0\n" + b"x" * 300_001 + b"\0")


def test_what_a_payload_lacks_is_asked_for_before_it_comes() -> None:
    room = Room(LIMIT)
    buffer = LineBuffer(LIMIT, room)
    buffer.expect(1 << 20)
    assert buffer.lacking == (1 << 20) - GROWN_BYTES
    assert not buffer.is_empty, "it is owed"
    assert room.take(buffer.lacking)
    buffer.taken_bytes += buffer.lacking
    buffer.shrink()
    buffer.give_back()
    assert (buffer.lacking, room.taken_bytes) == (0, (1 << 20) - GROWN_BYTES), "and is not given back before"
    reader = Reader(buffer)
    reader.feed(bytes(1 << 20))
    buffer.give_back()
    assert room.taken_bytes == 0
    assert reader.feed(b"line\n")[1:] == [b"line"]


def test_what_a_body_without_a_size_lacks_is_asked_for_as_it_comes() -> None:
    buffer = LineBuffer(LIMIT)
    buffer.expect_until(b"\0")
    sizes = []
    for _ in range(600):
        room = buffer.writable()
        size = min(len(room), 1000)
        room[:size] = b"x" * size
        buffer.add(size)
        assert buffer.next() is None
        if buffer.lacking:
            sizes.append(buffer.lacking)
            buffer.taken_bytes += buffer.lacking
    assert sizes == [GROWN_BYTES, 2 * GROWN_BYTES]
    assert buffer.size <= GROWN_BYTES + buffer.taken_bytes


def test_a_lower_limit_holds_for_lines_and_payloads() -> None:
    buffer = LineBuffer(LIMIT, line_limit=4000)
    buffer.limit(100)
    with pytest.raises(FrameError):
        buffer.expect(101)
    with pytest.raises(FrameError):
        Reader(buffer).feed(b"x" * 101)
    buffer = LineBuffer(LIMIT, line_limit=4000)
    buffer.limit(100)
    buffer.limit(LIMIT)
    assert Reader(buffer).feed(b"x" * 4000 + b"\n") == [b"x" * 4000]
