"""Who waits for a high watermark: producers until their records are safe, readers until there is something new."""

from collections import deque
from collections.abc import Callable


class AckWait:
    """One produce request waiting for some partitions; `done` is called once, when the last of them got there."""

    __slots__ = ("_done", "_pending")

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._pending = 1  # held by the caller until it has registered everywhere

    def add(self) -> None:
        self._pending += 1

    def arrive(self) -> None:
        self._pending -= 1
        if self._pending == 0:
            self._done()


class Waiters:
    """The waiting of one partition."""

    __slots__ = ("_acks", "_readers")

    def __init__(self) -> None:
        self._acks: deque[tuple[int, AckWait]] = deque()
        self._readers: set[Callable[[], None]] = set()

    def add_ack(self, last_offset: int, wait: AckWait) -> None:
        """Arrive at `wait` when the high watermark is above `last_offset`.

        Offsets rise, except for a duplicate of an earlier batch: that one merely waits as long as those before it.
        """
        wait.add()
        self._acks.append((last_offset, wait))

    def add_reader(self, wake: Callable[[], None]) -> None:
        self._readers.add(wake)

    def remove_reader(self, wake: Callable[[], None]) -> None:
        self._readers.discard(wake)

    def advance(self, high_watermark: int) -> None:
        acks = self._acks
        while acks and acks[0][0] < high_watermark:
            acks.popleft()[1].arrive()
        if self._readers:
            for wake in list(self._readers):
                wake()

    def abandon(self) -> None:
        """The partition is gone: let everybody look again."""
        while self._acks:
            self._acks.popleft()[1].arrive()
        for wake in list(self._readers):
            wake()
