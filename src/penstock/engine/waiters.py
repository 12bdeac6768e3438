"""Who waits for a high watermark: producers until their records are safe, readers until there is something new."""

from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.errors import PenstockError


class AckWait:
    """One produce request waiting for some partitions; `done` is called once, when the last of them got there.

    Args:
        failed: told which of them never will, by the token it was added with, and why; then that one counts as arrived.
    """

    __slots__ = ("_done", "_failed", "_pending")

    def __init__(self, done: Callable[[], None], failed: Callable[[Any, PenstockError], None] | None = None) -> None:
        self._done = done
        self._failed = failed
        self._pending = 1  # held by the caller until it has registered everywhere

    def add(self) -> None:
        self._pending += 1

    def arrive(self) -> None:
        self._pending -= 1
        if self._pending == 0:
            self._done()

    @property
    def can_fail(self) -> bool:
        """Whether anybody would hear of it; for others, to fail is to arrive."""
        return self._failed is not None

    def fail(self, token: Any, error: PenstockError) -> None:
        if self._failed is not None:
            self._failed(token, error)
        self.arrive()


class Waiters:
    """The waiting of one partition."""

    __slots__ = ("_acks", "_followers", "_readers")

    def __init__(self) -> None:
        self._acks: deque[tuple[int, AckWait, Any]] = deque()
        # In the order of coming, so that a run can be repeated. Each is called once: most of those who wait for many
        # partitions are served by a few, and who is gone without a word costs the writers one call.
        self._readers: dict[Callable[[], None], None] = {}
        self._followers: dict[Callable[[], None], None] = {}

    def add_ack(self, last_offset: int, wait: AckWait, token: Any = None) -> None:
        """Arrive at `wait` when the high watermark is above `last_offset`.

        Offsets rise, except for a duplicate of an earlier batch: that one merely waits as long as those before it.
        """
        wait.add()
        self._acks.append((last_offset, wait, token))

    def add_reader(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when a reader may be answered something else than before."""
        self._readers[wake] = None

    def remove_reader(self, wake: Callable[[], None]) -> None:
        self._readers.pop(wake, None)
        self._followers.pop(wake, None)

    def add_follower(self, wake: Callable[[], None]) -> None:
        """The same for a replica, which waits for anything to be appended, committed or not."""
        self._followers[wake] = None

    def advance(self, high_watermark: int) -> None:
        acks = self._acks
        while acks and acks[0][0] < high_watermark:
            acks.popleft()[1].arrive()
        if self._readers:
            self.wake_readers()

    def wake_readers(self) -> None:
        woken, self._readers = self._readers, {}
        for wake in woken:
            wake()

    def appended(self) -> None:
        if self._followers:
            woken, self._followers = self._followers, {}
            for wake in woken:
                wake()

    def fail_acks(self, error: PenstockError) -> None:
        """Whoever can be told that records may not become safe is told so; all others go on waiting."""
        acks, self._acks = self._acks, deque(ack for ack in self._acks if not ack[1].can_fail)
        for _, wait, token in acks:
            if wait.can_fail:
                wait.fail(token, error)

    def abandon(self, error: PenstockError) -> None:
        """The partition is not led here any more, or gone: nobody's records become safe, everybody looks again."""
        while self._acks:
            _, wait, token = self._acks.popleft()
            wait.fail(token, error)
        self.wake_readers()
        self.appended()
