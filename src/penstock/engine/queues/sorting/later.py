"""What is not due yet, by time, in memory: eight bytes for each.

Three stages, as in a clock: buckets of two minutes, which only grow; buckets of 64 ms, into which one of the former is
spread before its time comes, some at a time; and a heap of what is due next.
"""

from array import array
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final, NamedTuple

_OFFSET_BITS: Final = 46
MOST_OFFSET: Final = (1 << _OFFSET_BITS) - 1
"""What lies beyond is kept in the heap, at more expense."""
_NEAR_BITS: Final = 64
_IN_NEAR: Final = (1 << _NEAR_BITS) - 1
_COARSE: Final = 17
_FINE: Final = 6
_AHEAD_MS: Final = 10_000
"""A bucket of two minutes is spread so long before its time."""
_MOST_SPREAD: Final = 20_000
"""At a time; some milliseconds."""
_IN_COARSE: Final = (1 << _COARSE) - 1
_IN_FINE: Final = (1 << _FINE) - 1


class Waiting(NamedTuple):
    """An offset that is not due yet, and when it is."""

    due_ms: int
    offset: int


class Later:
    def __init__(self) -> None:
        self.count = 0
        self._coarse: dict[int, array[int]] = {}
        """Each entry is how long behind the bucket's beginning it is due, and its offset, in one number."""
        self._coarse_order: list[int] = []
        self._spread_end = 0
        """What is due before does not go into buckets of two minutes any more."""
        self._spreading: list[tuple[int, array[int]]] = []
        """Buckets that are being spread: where each begins, and what is left of it."""
        self._fine: dict[int, array[int]] = {}
        self._fine_order: list[int] = []
        self._near: list[int] = []
        """Due time and offset in one number."""
        self._near_end = 0
        """What is due before goes into the heap at once."""

    def add(self, due_ms: int, offset: int) -> None:
        self.count += 1
        if due_ms < self._near_end or offset > MOST_OFFSET:
            heappush(self._near, due_ms << _NEAR_BITS | offset)
        elif due_ms < self._spread_end:
            self._add_fine(due_ms, offset)
        else:
            number = due_ms >> _COARSE
            bucket = self._coarse.get(number)
            if bucket is None:
                bucket = self._coarse[number] = array("Q")
                heappush(self._coarse_order, number)
            bucket.append((due_ms & _IN_COARSE) << _OFFSET_BITS | offset)

    def _add_fine(self, due_ms: int, offset: int) -> None:
        number = due_ms >> _FINE
        bucket = self._fine.get(number)
        if bucket is None:
            bucket = self._fine[number] = array("Q")
            heappush(self._fine_order, number)
        bucket.append((due_ms & _IN_FINE) << _OFFSET_BITS | offset)

    def next_due(self) -> int | None:
        """When something is due next, or to be looked after."""
        if self._spreading:
            return 0
        times = []
        if self._near:
            times.append(self._near[0] >> _NEAR_BITS)
        if self._fine_order:
            times.append(self._fine_order[0] << _FINE)
        if self._coarse_order:
            times.append((self._coarse_order[0] << _COARSE) - _AHEAD_MS)
        return min(times, default=None)

    def pop_due(self, now_ms: int, most: int) -> list[int]:
        """Offsets that are due by now, at most so many; those of a moment in their order."""
        self._spread(now_ms)
        found: list[int] = []
        near = self._near
        while len(found) < most:
            if self._fine_order and self._fine_order[0] << _FINE <= self._first_near(now_ms):
                self._open(heappop(self._fine_order))
            if not near or near[0] >> _NEAR_BITS > now_ms:
                break
            found.append(heappop(near) & _IN_NEAR)
        self.count -= len(found)
        return found

    def browse(self, after: Waiting, most: int) -> list[Waiting]:
        """What is due next behind a moment and offset, at most so many."""
        found = nsmallest(most, (each for there in self._unordered() for each in there if each > after))
        for begin, bucket in self._in_order(after.due_ms):
            if len(found) >= most and begin > found[-1].due_ms:
                break
            there = nsmallest(most, (each for each in _unpacked(begin, bucket) if each > after))
            found = sorted(found + there)[:most]
        return found

    # --- inside

    def _unordered(self) -> Iterator[Iterator[Waiting]]:
        """What is due first, and whatever the buckets have no room for."""
        yield (Waiting(each >> _NEAR_BITS, each & _IN_NEAR) for each in self._near)
        for begin, left in self._spreading:
            yield _unpacked(begin, left)

    def _in_order(self, from_ms: int) -> Iterator[tuple[int, "array[int]"]]:
        """All buckets that reach beyond a moment, by when they begin; first those of 64 ms."""
        for shift, buckets in ((_FINE, self._fine), (_COARSE, self._coarse)):
            for number in sorted(each for each in buckets if (each + 1) << shift > from_ms):
                yield number << shift, buckets[number]

    def _spread(self, now_ms: int) -> None:
        while self._coarse_order and (self._coarse_order[0] << _COARSE) - _AHEAD_MS <= now_ms:
            number = heappop(self._coarse_order)
            self._spreading.append((number << _COARSE, self._coarse.pop(number)))
            self._spread_end = max(self._spread_end, (number + 1) << _COARSE)
        room = _MOST_SPREAD
        while self._spreading and room:
            begin, left = self._spreading[0]
            part = left[:room]
            del left[:room]
            for due_ms, offset in _unpacked(begin, part):
                if due_ms < self._near_end:
                    heappush(self._near, due_ms << _NEAR_BITS | offset)
                else:
                    self._add_fine(due_ms, offset)
            room -= len(part)
            if not left:
                del self._spreading[0]

    def _open(self, number: int) -> None:
        """A bucket's time has come."""
        begin = number << _FINE
        self._near_end = max(self._near_end, begin + _IN_FINE + 1)
        near = self._near
        for each in sorted(self._fine.pop(number)):
            near.append((begin + (each >> _OFFSET_BITS)) << _NEAR_BITS | (each & MOST_OFFSET))
        heapify(near)

    def _first_near(self, now_ms: int) -> int:
        """When the first in the heap is due, or now if it is later, or there is none."""
        return min(self._near[0] >> _NEAR_BITS, now_ms) if self._near else now_ms


def _unpacked(begin: int, packed: "array[int] | list[int]") -> Iterator[Waiting]:
    for each in packed:
        yield Waiting(begin + (each >> _OFFSET_BITS), each & MOST_OFFSET)
