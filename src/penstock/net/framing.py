"""What a connection asks of a framing: where received bytes go, and which frames they are.

A connection receives into `writable`, says with `add` how much came, and calls `next` until there is no further frame.
Before more of a large frame is received, what is `lacking` is taken from the room that all connections share.
"""

from typing import Protocol


class FrameError(ValueError):
    """The peer sent what cannot be a frame, or one that is too large; the connection is beyond repair."""


class Framing(Protocol):
    """Bytes into frames, for one connection."""

    taken_bytes: int
    """Of the room. The connection adds to it what it took; the framing gives it back."""

    @property
    def lacking(self) -> int:
        """How much has to be taken from the room before more of the frame under way may be received."""
        ...

    @property
    def missing(self) -> int:
        """How many bytes are still to come of the frame under way; 0 where that is not known."""
        ...

    @property
    def size(self) -> int:
        """How many bytes the frame under way may have, or what is held for it: it has the longer to come."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether no frame is under way: the peer owes nothing."""
        ...

    def writable(self) -> memoryview:
        """Where the next bytes go; called when `next` has returned None, and then never empty."""
        ...

    def add(self, size: int) -> None:
        """Note that `size` bytes were received at the start of the last `writable`."""
        ...

    def next(self) -> memoryview | None:
        """The next complete frame, or None. It is valid until the next `writable`. Raises `FrameError`."""
        ...

    def give_back(self) -> None:
        """Give what was taken back to the room, unless the frame under way needs it."""
        ...

    def shrink(self) -> None:
        """Give memory back on a connection that has been idle."""
        ...

    def release(self) -> None:
        """Give everything back: nothing is received any more."""
        ...

    def limit(self, largest: int) -> None:
        """Change the largest frame that is taken."""
        ...
