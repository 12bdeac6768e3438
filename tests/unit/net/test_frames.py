"""Frames: the same frames come out however the bytes come in, and a claim costs nothing."""

import random
import struct
import tracemalloc

import pytest

from penstock.net.buffer import SMALL_BYTES
from penstock.net.frames import FrameBuffer, FrameError

LIMIT = 100 << 20


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def feed(buffer: FrameBuffer, data: bytes, most: int = 1 << 30) -> list[bytes]:
    """Receive `data` in pieces of at most `most` bytes; the frames that came out."""
    found, position = [], 0
    while position < len(data):
        room = buffer.writable()
        assert len(room) > 0
        size = min(len(room), most, len(data) - position)
        room[:size] = data[position : position + size]
        buffer.add(size)
        position += size
        while (frame := buffer.next()) is not None:
            found.append(bytes(frame))
    return found


SIZES = [
    (0,),
    (1,),
    (4091,),
    (4092,),
    (4093,),
    (SMALL_BYTES,),
    (4097,),
    (300_000,),
    (5_000_000, 3, 5_000_000),
    (1, 0, 0, 7, 4092, 4092, 1),
    (100_000, 10, 100_000, 10),
    tuple(range(200)),
]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("most", [1 << 30, 65_536, 4096, 1000])
def test_frames_come_out_as_they_went_in(sizes: tuple[int, ...], most: int) -> None:
    frames = [random.Random(size).randbytes(size) for size in sizes]
    buffer = FrameBuffer(LIMIT)
    assert feed(buffer, framed(*frames), most) == frames
    assert buffer.is_empty


@pytest.mark.parametrize("sizes", [(0,), (1,), (5, 0, 9), (4092, 4093, 4), (9000, 1)])
def test_byte_by_byte(sizes: tuple[int, ...]) -> None:
    frames = [random.Random(size).randbytes(size) for size in sizes]
    assert feed(FrameBuffer(LIMIT), framed(*frames), 1) == frames


@pytest.mark.parametrize("seed", range(30))
def test_random_frames_in_random_pieces(seed: int) -> None:
    rng = random.Random(seed)
    frames = [rng.randbytes(rng.choice((0, 3, 50, 4000, 4092, 4093, 9000, 300_000))) for _ in range(60)]
    data, buffer, found, position = framed(*frames), FrameBuffer(LIMIT), [], 0
    while position < len(data):
        room = buffer.writable()
        size = min(len(room), rng.choice((1, 3, 100, 4096, 1 << 20)), len(data) - position)
        room[:size] = data[position : position + size]
        buffer.add(size)
        position += size
        while (frame := buffer.next()) is not None:
            found.append(bytes(frame))
        if rng.random() < 0.1:
            buffer.shrink()
    assert found == frames


def test_several_frames_in_one_read_and_the_start_of_another() -> None:
    buffer = FrameBuffer(LIMIT)
    frames = [b"one", b"", b"three"]
    assert feed(buffer, framed(*frames) + b"\0\0") == frames
    assert not buffer.is_empty
    assert feed(buffer, b"\0\2xy") == [b"xy"]
    assert buffer.is_empty


def test_a_large_frame_is_received_to_its_end_and_no_further() -> None:
    buffer = FrameBuffer(LIMIT)
    assert len(feed(buffer, framed(bytes(300_000)))) == 1  # there is room for more now
    assert feed(buffer, struct.pack(">i", 10_000)) == []
    assert len(buffer.writable()) == 10_000
    assert feed(buffer, bytes(9_999)) == []
    assert len(buffer.writable()) == 1


@pytest.mark.parametrize("length", [-1, -(1 << 31), LIMIT + 1, (1 << 31) - 1, 0x16030102, 0x47455420])
@pytest.mark.parametrize("most", [1, 4, 100])
def test_impossible_lengths(length: int, most: int) -> None:
    buffer = FrameBuffer(LIMIT)
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match=str(length)):
            feed(buffer, struct.pack(">i", length) + b"rest of it", most)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert buffer.size == SMALL_BYTES


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_claimed_length_costs_nothing_until_its_bytes_come() -> None:
    buffers = [FrameBuffer(LIMIT) for _ in range(10)]
    before = resident_bytes()
    for buffer in buffers:
        feed(buffer, struct.pack(">i", LIMIT) + b"begin")
        assert len(buffer.writable()) == LIMIT - 5
    assert resident_bytes() - before < 10 << 20


def test_the_limit_itself_is_allowed() -> None:
    buffer = FrameBuffer(5000)
    assert [len(frame) for frame in feed(buffer, framed(bytes(5000)))] == [5000]
    with pytest.raises(FrameError):
        feed(buffer, framed(bytes(5001)))


def test_a_busy_peer_gets_a_larger_buffer_and_an_idle_one_gives_it_back() -> None:
    buffer = FrameBuffer(LIMIT)
    assert buffer.size == SMALL_BYTES
    small = framed(*[bytes(60)] * 1000)
    feed(buffer, small)
    feed(buffer, small)
    grown = buffer.size
    assert grown > SMALL_BYTES
    buffer.shrink()
    assert buffer.size == SMALL_BYTES
    assert len(feed(buffer, small)) == 1000


def test_a_buffer_in_use_does_not_shrink() -> None:
    buffer = FrameBuffer(LIMIT)
    feed(buffer, struct.pack(">i", 9000) + b"start")
    size = buffer.size
    buffer.shrink()
    assert buffer.size == size
    assert feed(buffer, bytes(8995)) == [b"start" + bytes(8995)]


def test_a_very_large_buffer_is_given_back_at_once() -> None:
    buffer = FrameBuffer(LIMIT)
    assert len(feed(buffer, framed(bytes(20 << 20)))) == 1
    assert buffer.size <= 4 << 20


def test_frames_can_be_written_in_place() -> None:
    """The offset of a batch is patched in the frame itself."""
    for size in (100, 10_000, 3 << 20):
        buffer = FrameBuffer(LIMIT)
        data, position = framed(bytes(size)), 0
        frame = None
        while frame is None:
            room = buffer.writable()
            step = min(len(room), len(data) - position)
            room[:step] = data[position : position + step]
            buffer.add(step)
            position += step
            frame = buffer.next()
        frame[0:3] = b"abc"
        assert bytes(frame[:4]) == b"abc\0"
