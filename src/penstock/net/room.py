"""Memory that many connections share.

For requests that are arriving: who finds no room waits its turn. For answers that cannot leave, which are there
already: who holds most has to go.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

H = TypeVar("H")


class Room:
    """What may be taken together by all who receive.

    Args:
        limit_bytes: how much there is. Somebody who needs more gets it when nobody else has any.
    """

    __slots__ = ("_idle_bytes", "_limit_bytes", "_taken_bytes", "_waiting")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._taken_bytes = 0
        self._waiting: dict[Callable[[], None], tuple[int, int]] = {}  # in the order of coming
        self._idle_bytes = 0  # taken by who waits for more

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    @property
    def is_crowded(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def take(self, size: int) -> bool:
        """Whether there was room, and none waits for it who came before."""
        if self._waiting or not self._fits(size):
            return False
        self._taken_bytes += size
        return True

    def wait(self, size: int, granted: Callable[[], None], has_bytes: int = 0) -> None:
        """Take it as soon as it is there; `granted` is called then, perhaps at once.

        Args:
            has_bytes: what who waits has taken before.
        """
        self._waiting[granted] = size, has_bytes
        self._idle_bytes += has_bytes
        self._serve()

    def leave(self, granted: Callable[[], None]) -> None:
        """Wait no longer."""
        waited = self._waiting.pop(granted, None)
        if waited is not None:
            self._idle_bytes -= waited[1]
            self._serve()

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self._taken_bytes -= size
        if self._waiting:
            self._serve()

    def _fits(self, size: int) -> bool:
        """Or whether nobody else gets on: then one has to, or all would wait for each other."""
        return self._taken_bytes + size <= self._limit_bytes or self._taken_bytes == self._idle_bytes

    def _serve(self) -> None:
        while self._waiting:
            granted, (size, has_bytes) = next(iter(self._waiting.items()))
            if not self._fits(size):
                return
            del self._waiting[granted]
            self._idle_bytes -= has_bytes
            self._taken_bytes += size
            granted()


class Holders(Generic[H]):
    """Who holds how much. Above the limit the one that holds most is told to go, until it is below."""

    __slots__ = ("_by_holder", "_held_bytes", "_limit_bytes", "_too_much")

    def __init__(self, limit_bytes: int, too_much: Callable[[H, int], None]) -> None:
        self._limit_bytes = limit_bytes
        self._too_much = too_much
        self._held_bytes = 0
        self._by_holder: dict[H, int] = {}

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def holds(self, holder: H, size: int) -> None:
        """Note that somebody holds `size` bytes now, 0 for nothing."""
        self._held_bytes += size - self._by_holder.get(holder, 0)
        if size:
            self._by_holder[holder] = size
        else:
            self._by_holder.pop(holder, None)
        while self._held_bytes > self._limit_bytes:
            most = max(self._by_holder, key=self._by_holder.__getitem__)
            held = self._by_holder.pop(most)
            self._held_bytes -= held
            self._too_much(most, held)
