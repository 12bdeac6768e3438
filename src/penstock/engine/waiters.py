"""Who waits for a high watermark: producers until their records are safe, readers until there is something new."""

from collections import deque
from collections.abc import Callable

from penstock.errors import PenstockError

Told = Callable[[PenstockError | None], None]
"""Called once: with nothing when the records are safe, else with the reason why nobody here will ever know."""


class Waiters:
    """The waiting of one partition."""

    __slots__ = ("_acks", "_followers", "_readers")

    def __init__(self) -> None:
        self._acks: deque[tuple[int, Told, bool]] = deque()
        # In the order of coming, so that a run can be repeated. Each is called once: most of those who wait for many
        # partitions are served by a few, and who is gone without a word costs the writers one call.
        self._readers: dict[Callable[[], None], None] = {}
        self._followers: dict[Callable[[], None], None] = {}

    def when_safe(self, last_offset: int, told: Told, *, patient: bool = False) -> None:
        """Tell when the high watermark is above `last_offset`, or when it will not be as far as this broker knows.

        Offsets rise, except for a duplicate of an earlier batch: that one merely waits as long as those before it.

        Args:
            patient: goes on waiting while this broker is cut off from others, and is told when it leads no more.
        """
        self._acks.append((last_offset, told, patient))

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
            acks.popleft()[1](None)
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

    def cut_off(self, error: PenstockError) -> None:
        """Nothing becomes safe for the time being: whoever is not patient is told so."""
        acks, self._acks = self._acks, deque(ack for ack in self._acks if ack[2])
        for _, told, patient in acks:
            if not patient:
                told(error)

    def abandon(self, error: PenstockError) -> None:
        """The partition is not led here any more, or gone: nobody's records become safe, everybody looks again."""
        while self._acks:
            self._acks.popleft()[1](error)
        self.wake_readers()
        self.appended()
