"""What is not due yet, by time: in memory, as pairs of due time and offset in buckets of about a second.

The bucket that time is in is sorted when it is reached; all others only grow, at sixteen bytes an entry.
"""

from array import array
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final, NamedTuple

_SHIFT: Final = 10
_FEW: Final = 32
"""Of them the first is found by looking at all."""


class Waiting(NamedTuple):
    """An offset that is not due yet, and when it is."""

    due_ms: int
    offset: int


class Later:
    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._order: list[int] = []
        """The buckets, as a heap."""
        self._near: list[tuple[int, int]] = []
        """What was in the first buckets, as a heap: due and offset."""
        self._near_end = 0
        """Everything due before is in there."""
        self.count = 0

    def add(self, due_ms: int, offset: int) -> None:
        self.count += 1
        if due_ms < self._near_end:
            heappush(self._near, (due_ms, offset))
            return
        number = due_ms >> _SHIFT
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = array("Q")
            heappush(self._order, number)
        bucket.append(due_ms)
        bucket.append(offset)

    def next_due(self) -> int | None:
        """When something is due next, or to be looked at."""
        if self._near:
            return self._near[0][0]
        if not self._order:
            return None
        bucket = self._buckets[self._order[0]]
        return min(bucket[::2]) if len(bucket) <= _FEW else self._order[0] << _SHIFT

    def pop_due(self, now_ms: int, most: int) -> list[int]:
        """Offsets that are due by now, at most so many; those of a moment in their order."""
        found: list[int] = []
        near = self._near
        while len(found) < most:
            if not near:
                if not self._order or self._order[0] << _SHIFT > now_ms:
                    break
                self._open_bucket()
            if near[0][0] > now_ms:
                break
            found.append(heappop(near)[1])
        self.count -= len(found)
        return found

    def browse(self, after: Waiting, most: int) -> list[Waiting]:
        """What is due next behind a moment and offset, at most so many."""
        found = nsmallest(most, (Waiting(*each) for each in self._near if each > after))
        numbers = [number for number in self._order if number >= after.due_ms >> _SHIFT]
        heapify(numbers)
        while numbers and len(found) < most:
            values = self._buckets[heappop(numbers)]
            there = (Waiting(*each) for each in zip(values[::2], values[1::2], strict=True))
            found += nsmallest(most - len(found), (each for each in there if each > after))
        return found

    def _open_bucket(self) -> None:
        number = heappop(self._order)
        values = self._buckets.pop(number)
        self._near.extend(sorted(zip(values[::2], values[1::2], strict=True)))  # a sorted list is a heap
        self._near_end = (number + 1) << _SHIFT
