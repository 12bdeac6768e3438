"""When each of many things has to be looked at next: a heap that is put in order only when it is looked at.

Heartbeats move a deadline back many times before it is reached. Such a move only notes the later time; the heap learns
of it when the earlier one comes up. So it holds about one element per key however often keys move.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
"""Such that any two can be put in order."""
_SLACK = 64  # elements that may be out of date before the heap is made again, whatever its size


class Deadlines(Generic[K]):
    __slots__ = ("_at", "_heap", "_queued")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self._queued: dict[K, int] = {}
        """The earliest element of a key in the heap."""
        self._heap: list[tuple[int, K]] = []

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at: int | None) -> None:
        """The key's only deadline from now on; None for none."""
        if at is None:
            self._at.pop(key, None)
            return
        self._at[key] = at
        queued = self._queued.get(key)
        if queued is None or at < queued:
            self._push(at, key)
            if len(self._heap) > 2 * len(self._at) + _SLACK:
                self._rebuild()

    def next(self) -> int | None:
        """The earliest deadline of all."""
        while self._heap:
            at, key = self._heap[0]
            wanted = self._at.get(key)
            if wanted == at:
                return at
            heappop(self._heap)
            if self._queued.get(key) == at:
                del self._queued[key]
                if wanted is not None:
                    self._push(wanted, key)
        return None

    def take_due(self, now: int) -> list[K]:
        """Keys whose deadline has come, earliest first; they have none until they are set again."""
        due = []
        while (key := self.pop_due(now)) is not None:
            due.append(key)
        return due

    def pop_due(self, now: int) -> K | None:
        """The key whose deadline came first, if any has come; it has none until it is set again."""
        at = self.next()
        if at is None or at > now:
            return None
        key = heappop(self._heap)[1]
        del self._at[key], self._queued[key]
        return key

    def _push(self, at: int, key: K) -> None:
        heappush(self._heap, (at, key))
        self._queued[key] = at

    def _rebuild(self) -> None:
        self._queued = dict(self._at)
        self._heap = [(at, key) for key, at in self._at.items()]
        heapify(self._heap)
