"""Bytes into frames that end with a delimiter, such as lines, with frames of a known size in between.

Protocols of lines say in a line how large the payload behind it is (NATS: `PUB subject 11`; STOMP: `content-length`).
So every frame is a line, unless the session said otherwise when it was handed the line before:

    expect(size)             the next frame is `size` bytes, whatever they are
    expect_until(delimiter)  the next frame ends with another delimiter and may be as large as a payload (STOMP: NUL)

A frame is handed out without its delimiter, as a view of the buffer: it dies when the handler returns.

Limits, and why. A line has to fit `line_limit`, as nobody knows how long one gets that has no end yet; a payload has to
fit `limit`. A payload that is too large is refused when it is announced, before any memory is taken for it. Memory for
a frame without a known size is doubled as it fills, so it costs at most twice what the peer has sent. Whatever is
larger than an ordinary buffer comes from the room that all connections share.

Costs. Every byte is searched once: a search goes on where the last one ended, so a line that comes byte by byte costs
what it costs in one piece. What is there is moved to the start of the buffer only when that gains at least half of the
buffer, or else once per frame. A large payload is received to its very end and no further, as the next frame then
begins at the start of the buffer and nothing has to be moved.
"""

from penstock.net.buffer import GROWN_BYTES, SMALL_BYTES, ReceiveBuffer
from penstock.net.framing import FrameError
from penstock.net.room import Room

_NO_SIZE = -1


class LineBuffer(ReceiveBuffer):
    """Receives bytes, gives lines and payloads.

    Args:
        limit: largest payload.
        room: where the memory for large frames is taken from; without one there is always some.
        delimiter: what a line ends with. Who takes both kinds of line ends names LF and finds CR at the end of a frame.
        line_limit: longest line, without its delimiter.
    """

    __slots__ = ("_delimiter", "_is_owed", "_line_end", "_line_limit", "_longest", "_payload", "_searched", "_usable")

    def __init__(
        self, limit: int, room: Room | None = None, *, delimiter: bytes = b"\n", line_limit: int = SMALL_BYTES
    ) -> None:
        super().__init__(limit, room)
        self._line_end = self._delimiter = delimiter
        self._line_limit = line_limit
        self._longest = min(line_limit, limit)
        self._payload = _NO_SIZE
        self._is_owed = False  # whether a line has announced the frame that comes now
        self._searched = 0  # bytes of the frame under way at which no delimiter begins
        self._usable = SMALL_BYTES  # of the buffer: a large one is not for lines to fill

    def expect(self, size: int) -> None:
        """Take the next `size` bytes as one frame. Raises `FrameError` for more than the limit."""
        if not 0 <= size <= self._limit:
            raise FrameError(f"payload of {size} bytes; allowed: 0 to {self._limit}")
        self._payload = size
        self._is_owed = True

    def expect_until(self, delimiter: bytes) -> None:
        """Take what comes before `delimiter` as the next frame; it may be as large as a payload."""
        self._delimiter = delimiter
        self._longest = self._limit
        self._is_owed = True

    def limit(self, largest: int) -> None:
        """Change the largest payload that is taken; lines are not longer, either."""
        self._limit = largest
        self._longest = min(self._longest, largest) if self._is_owed else min(self._line_limit, largest)

    @property
    def size(self) -> int:
        return max(len(self._buffer), self._payload)

    @property
    def is_empty(self) -> bool:
        return self._start == self._end and not self._is_owed

    @property
    def lacking(self) -> int:
        """How much has to be taken from the room before more of the frame under way may be received."""
        needs = self._payload if self._payload >= 0 else self._widened()
        return max(needs - GROWN_BYTES - self.taken_bytes, 0)

    @property
    def missing(self) -> int:
        return 0

    def _widened(self) -> int:
        """How much of the buffer has to be usable for more of a frame without a known size; 0 if it is so already."""
        usable, largest = self._usable, self._longest + len(self._delimiter)
        if self._end < usable or self._end - self._start <= usable // 2 or usable >= largest:
            return 0
        return min(2 * usable, largest)

    def writable(self) -> memoryview:
        """Where the next bytes go; never past the end of a payload that is large."""
        if self._start == self._end:
            self._start = self._end = 0
            self._usable = min(len(self._buffer), GROWN_BYTES)
        payload = self._payload
        if payload > max(SMALL_BYTES, self._usable // 2):
            if self._start + payload > len(self._buffer):
                self._move(max(payload, len(self._buffer)))
            self._usable = self._start + payload
        elif payload >= 0:
            if self._usable - self._start < payload:
                self._move(len(self._buffer))
        elif self._end == self._usable:
            self._widen()
        return self._view[self._end : self._usable]

    def _widen(self) -> None:
        usable = self._widened() or self._usable
        if self._start or usable > len(self._buffer):
            self._move(max(usable, len(self._buffer)))
        self._usable = usable

    def next(self) -> memoryview | None:
        """The next complete frame without its delimiter, or None. It is valid until the next `writable`.

        Raises:
            FrameError: there is no end to it where the longest would have one.
        """
        start = self._start
        if self._payload >= 0:
            stop = start + self._payload
            if stop > self._end:
                return None
            self._payload = _NO_SIZE
            self._is_owed = False
            self._start = stop
            return self._view[start:stop]
        delimiter = self._delimiter
        stop = self._buffer.find(delimiter, start + self._searched, self._end)
        if stop < 0:
            self._look_on(delimiter)
            return None
        if stop - start > self._longest:
            raise self._too_long()
        self._start = stop + len(delimiter)
        self._searched = 0
        if self._is_owed:
            self._is_owed = False
            self._delimiter = self._line_end
            self._longest = min(self._line_limit, self._limit)
        return self._view[start:stop]

    def _look_on(self, delimiter: bytes) -> None:
        """There is no end yet: remember what was searched, and whether there can be one."""
        have = self._end - self._start
        if have == 0:
            if not self._is_owed:
                self._fit()
            return
        self._searched = max(have - len(delimiter) + 1, 0)
        if self._searched > self._longest:
            raise self._too_long()

    def _too_long(self) -> FrameError:
        return FrameError(f"no {self._delimiter!r} within {self._longest} bytes")

    def give_back(self) -> None:
        """Give what was taken back to the room, unless the frame under way needs it."""
        needs = max(self._end - self._start + 1, self._payload)
        if self.taken_bytes and needs <= GROWN_BYTES:
            self._move_back()
            self._usable = GROWN_BYTES
