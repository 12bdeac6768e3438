"""Bytes into frames with a 4-byte length in front, through one buffer that is reused, grows when needed and shrinks.

A frame is handed out as a view of the buffer: it dies when the handler returns. A large frame is received to its very
end and no further, so that the next one begins at the start of the buffer and nothing has to be moved. What it needs
beyond an ordinary buffer comes from a room that all connections share.
"""

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct

from penstock.net.room import Room

_LENGTH = Struct(">i")
SMALL_BYTES = 4 * 1024
_GROWN_BYTES = 256 * 1024
_KEPT_BYTES = 4 << 20  # a buffer larger than this is given back as soon as it is empty
_MAPPED_BYTES = 1 << 20  # from here on a page costs memory when bytes arrive in it, not when a length claims it


class FrameError(ValueError):
    """The peer sent a length that no frame has."""


class FrameBuffer:
    """Receives bytes, gives frames.

    Args:
        limit: largest frame; a longer one raises before anything is allocated for it.
        room: where the memory for large frames is taken from; without one there is always some.
    """

    __slots__ = ("_buffer", "_end", "_full", "_limit", "_room", "_start", "_view", "taken_bytes")

    def __init__(self, limit: int, room: Room | None = None) -> None:
        self._limit = limit
        self._room = room
        self.taken_bytes = 0
        """Of the room."""
        self._take(SMALL_BYTES)
        self._start = 0
        self._end = 0
        self._full = 0

    def _take(self, size: int) -> None:
        self._buffer = bytearray(size) if size < _MAPPED_BYTES else mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)
        self._view = memoryview(self._buffer)

    @property
    def lacking(self) -> int:
        """How much has to be taken from the room before more of the frame under way may be received."""
        if self._end - self._start < 4:
            return 0
        return max(4 + self._length(self._start) - _GROWN_BYTES - self.taken_bytes, 0)

    def give_back(self) -> None:
        """Give what was taken back to the room, unless the frame under way needs it."""
        have = self._end - self._start
        needs = 4 + _LENGTH.unpack_from(self._buffer, self._start)[0] if have >= 4 else have
        if self.taken_bytes and max(have, needs) <= _GROWN_BYTES:
            rest = bytes(self._view[self._start : self._end])
            self._take(_GROWN_BYTES)
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
            self._give()

    def _give(self) -> None:
        if self._room is not None and self.taken_bytes:
            taken, self.taken_bytes = self.taken_bytes, 0
            self._room.give(taken)

    @property
    def size(self) -> int:
        return len(self._buffer)

    @property
    def is_empty(self) -> bool:
        return self._start == self._end

    def writable(self) -> memoryview:
        """Where the next bytes go; never past the end of a frame whose length is known and whose size is large."""
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = start = end = 0
        have = end - start
        small = min(len(self._buffer), _GROWN_BYTES)  # what small frames fill: a large buffer is not for them to keep
        if have < 4:
            if small - start < SMALL_BYTES:
                self._move(len(self._buffer))
            return self._view[self._end : small]
        need = 4 + self._length(start)
        if need <= SMALL_BYTES:
            if small - start < need:
                self._move(len(self._buffer))
            return self._view[self._end : small]
        if start + need > len(self._buffer):
            self._move(max(need, len(self._buffer)))
        return self._view[self._end : self._start + need]

    def _move(self, size: int) -> None:
        """Bring what is there to the start of a buffer of `size` bytes."""
        rest = bytes(self._view[self._start : self._end])
        if size > len(self._buffer):
            self._take(size)
        self._view[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def add(self, size: int) -> None:
        """Note that `size` bytes were received at the start of the last `writable`."""
        self._end += size
        if self._end == len(self._buffer):
            self._full += 1

    def next(self) -> memoryview | None:
        """The next complete frame without its length, or None. It is valid until the next `writable`.

        Raises:
            FrameError: naming the length; the connection is beyond repair.
        """
        start = self._start
        if self._end - start >= 4:
            stop = start + 4 + self._length(start)
            if stop <= self._end:
                self._start = stop
                return self._view[start + 4 : stop]
        elif start == self._end:
            self._fit()
        return None

    def _fit(self) -> None:
        """Grow for a busy peer, give a large buffer back when it is empty: a very large one, or one others wait for."""
        size = len(self._buffer)
        if size > _KEPT_BYTES or (size > _GROWN_BYTES and self._room is not None and self._room.is_crowded):
            self._take(_GROWN_BYTES)
            self._give()
        elif self._full >= 2 and len(self._buffer) < _GROWN_BYTES:
            self._take(_GROWN_BYTES)
            self._full = 0
        self._start = self._end = 0

    def shrink(self) -> None:
        """Give memory back on a connection that has been idle."""
        if self._start == self._end and len(self._buffer) > SMALL_BYTES:
            self._take(SMALL_BYTES)
            self._start = self._end = self._full = 0
            self._give()

    def release(self) -> None:
        """Give everything back: nothing is received any more."""
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._give()

    def limit(self, largest: int) -> None:
        """Change the largest frame that is taken."""
        self._limit = largest

    def _length(self, at: int) -> int:
        length: int = _LENGTH.unpack_from(self._buffer, at)[0]
        if not 0 <= length <= self._limit:
            raise FrameError(f"frame length {length}; allowed: 0 to {self._limit}")
        return length
