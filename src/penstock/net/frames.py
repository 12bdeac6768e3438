"""Bytes into frames with a 4-byte length in front: the framing of Kafka.

A frame is handed out as a view of the buffer: it dies when the handler returns. A large frame is received to its very
end and no further, so that the next one begins at the start of the buffer and nothing has to be moved.
"""

from struct import Struct

from penstock.net.buffer import GROWN_BYTES, SMALL_BYTES, ReceiveBuffer
from penstock.net.framing import FrameError
from penstock.net.limits import Limits
from penstock.net.room import Room

__all__ = ["FrameBuffer", "FrameError", "with_length_in_front"]

_LENGTH = Struct(">i")


class FrameBuffer(ReceiveBuffer):
    """Receives bytes, gives frames.

    Args:
        limit: largest frame; a longer one raises before anything is allocated for it.
        room: where the memory for large frames is taken from; without one there is always some.
    """

    __slots__ = ()

    @property
    def lacking(self) -> int:
        """How much has to be taken from the room before more of the frame under way may be received."""
        if self._end - self._start < 4:
            return 0
        return max(4 + self._length(self._start) - GROWN_BYTES - self.taken_bytes, 0)

    @property
    def missing(self) -> int:
        have = self._end - self._start
        return 4 + int(_LENGTH.unpack_from(self._buffer, self._start)[0]) - have if have >= 4 else 0

    def give_back(self) -> None:
        """Give what was taken back to the room, unless the frame under way needs it."""
        have = self._end - self._start
        needs = 4 + _LENGTH.unpack_from(self._buffer, self._start)[0] if have >= 4 else have
        if self.taken_bytes and max(have, needs) <= GROWN_BYTES:
            self._move_back()

    def writable(self) -> memoryview:
        """Where the next bytes go; never past the end of a frame whose length is known and whose size is large."""
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = start = end = 0
        have = end - start
        small = min(len(self._buffer), GROWN_BYTES)  # what small frames fill: a large buffer is not for them to keep
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

    def _length(self, at: int) -> int:
        length: int = _LENGTH.unpack_from(self._buffer, at)[0]
        if not 0 <= length <= self._limit:
            raise FrameError(f"frame length {length}; allowed: 0 to {self._limit}")
        return length


def with_length_in_front(limits: Limits, room: Room) -> FrameBuffer:
    """The framing of one connection."""
    return FrameBuffer(limits.frame_bytes, room)
