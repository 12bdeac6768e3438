"""The memory that frames are received into: one buffer that is reused, grows when needed and shrinks.

What a large frame needs beyond an ordinary buffer comes from a room that all connections share.
"""

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

from penstock.net.room import Room

SMALL_BYTES: Final = 4 * 1024
GROWN_BYTES: Final = 256 * 1024
_KEPT_BYTES: Final = 4 << 20  # a buffer larger than this is given back as soon as it is empty
_MAPPED_BYTES: Final = 1 << 20  # from here on a page costs memory when bytes arrive in it, not when a length claims it


class ReceiveBuffer:
    """What framings have in common: bytes between `_start` and `_end` have been received and not handed out.

    Args:
        limit: largest frame.
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

    def add(self, size: int) -> None:
        """Note that `size` bytes were received at the start of the last `writable`."""
        self._end += size
        if self._end == len(self._buffer):
            self._full += 1

    def _move(self, size: int) -> None:
        """Bring what is there to the start of a buffer of `size` bytes."""
        rest = bytes(self._view[self._start : self._end])
        if size > len(self._buffer):
            self._take(size)
        self._view[: len(rest)] = rest
        self._start, self._end = 0, len(rest)

    def _move_back(self) -> None:
        """Bring what is there, which fits, into an ordinary buffer, and give what was taken back."""
        rest = bytes(self._view[self._start : self._end])
        self._take(GROWN_BYTES)
        self._view[: len(rest)] = rest
        self._start, self._end = 0, len(rest)
        self._give()

    def _fit(self) -> None:
        """Grow for a busy peer, give a large buffer back when it is empty: a very large one, or one others wait for."""
        size = len(self._buffer)
        if size > _KEPT_BYTES or (size > GROWN_BYTES and self._room is not None and self._room.is_crowded):
            self._take(GROWN_BYTES)
            self._give()
        elif self._full >= 2 and len(self._buffer) < GROWN_BYTES <= self._limit:
            self._take(GROWN_BYTES)
            self._full = 0
        self._start = self._end = 0

    def shrink(self) -> None:
        """Give memory back on a connection that has been idle."""
        if self.is_empty and len(self._buffer) > SMALL_BYTES:
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
