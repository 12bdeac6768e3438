"""How far one group has come in one strand: what came back, what has fallen due, and what nobody had yet."""

from bisect import bisect_left
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from penstock.engine.queues.sorting.block import INSIDE, PLAIN, SHIFT
from penstock.engine.queues.sorting.marks import Marks
from penstock.engine.queues.window import READY, Run, Window

MOST_LOOKED: Final = 10_000
"""Offsets at a time that turn out to be settled, or to wait for their key: some milliseconds."""
May = Callable[[int], bool]
"""Whether an offset may be given out now; if not it is set aside, and comes back by itself."""


class Taken(NamedTuple):
    """Attributes:
    is_stuck: there may be more, which cannot be had yet.
    is_tired: it was looked at so much that others have to have their turn first.
    """

    size: int
    is_stuck: bool = False
    is_tired: bool = False


class Place:
    """Attributes:
    again_count: offsets in ranges in which something came back.
    fallen: how far it is in `Marks.fallen`.
    passed: those that were given out, or were found to be settled, without having come back.
    """

    __slots__ = ("_again", "_at", "_block", "_caught_up", "again_count", "fallen", "passed", "strand")

    def __init__(self, strand: int) -> None:
        self.strand = strand
        self.again_count = 0
        self.passed = 0
        self._again: list[tuple[int, int]] = []
        self.fallen = 0
        self._block = -1
        self._caught_up = -1
        self._at = 0

    # --- what came back

    def come_back(self, first: int, last: int) -> None:
        heappush(self._again, (first, last))
        self.again_count += last - first + 1

    def pop_again(self, window: Window, end: int) -> Run | None:
        """What came back and is first, taken out. None if there is nothing, or it lies at `end`."""
        while self._again:
            first, last = self._again[0]
            run = window.first_again(max(first, window.start), last)
            if run is None and last >= window.next:
                run = Run(max(first, window.next), last)
            if run is not None and run.first >= end:
                return None
            heappop(self._again)
            self.again_count -= last - first + 1
            if run is None:
                continue
            until = min(run.last, last, end - 1)
            if until < last:
                self.come_back(until + 1, last)
            return Run(run.first, until)
        return None

    # --- what nobody had yet

    def take_fallen(self, marks: Marks, window: Window, most: int, end: int, may: May | None, taken: list[Run]) -> int:
        """Take what has a time of its own, which is over."""
        fallen, count = marks.fallen[self.strand], 0
        while self.fallen < len(fallen) and count < most:
            offset = fallen[self.fallen]
            self.fallen += 1
            self.passed += 1
            if offset >= end:
                self.come_back(offset, offset)
            elif _is_ready(window, offset) and (may is None or may(offset)):
                taken.append(Run(offset, offset))
                count += 1
        return count

    def take(self, marks: Marks, window: Window, most: int, end: int, may: May | None, taken: list[Run]) -> Taken:
        """Take what is first of all else, as ranges into `taken`."""
        self.catch_up(marks, window.start)
        count, looked, is_stuck = 0, 0, False
        while self._block >= 0:
            positions = marks.positions(self._block, self.strand)
            base, stop = self._block << SHIFT, positions.end - positions.begin
            if isinstance(positions.values, range):
                more, is_stuck, _ = self._take_range(window, base, stop, most - count, end, may, taken)
                count += more
            else:
                values, begin = positions.values, positions.begin
                while self._at < stop:
                    offset = base + values[begin + self._at]
                    if offset >= end:
                        return Taken(count, is_stuck=True)
                    if count == most:
                        return Taken(count)
                    if looked == MOST_LOOKED:
                        return Taken(count, is_stuck=True, is_tired=True)
                    looked += 1
                    self._at += 1
                    self.passed += 1
                    if _is_ready(window, offset) and (may is None or may(offset)):
                        taken.append(Run(offset, offset))
                        count += 1
            if is_stuck or self._at < stop:
                return Taken(count, is_stuck)
            following = marks.next_home(self.strand, self._block)
            if following < 0:
                return Taken(count)
            self._block, self._at = following, 0
        return Taken(count)

    def _take_range(
        self, window: Window, base: int, stop: int, most: int, end: int, may: May | None, taken: list[Run]
    ) -> Taken:
        """Of a block in which nothing says anything."""
        count, last = 0, min(base + stop, end) - 1
        while count < most:
            first = base + self._at
            if first > last:
                break
            run = _first_ready(window, first, last)
            until = last if run is None else min(run.last, run.first + most - count - 1)
            if run is not None and may is not None:
                until = run.first
                if may(until):
                    taken.append(Run(until, until))
                    count += 1
            elif run is not None:
                taken.append(Run(run.first, until))
                count += until - run.first + 1
            self.passed += until + 1 - first
            self._at = until + 1 - base
        return Taken(count, is_stuck=end < base + stop and base + self._at >= end)

    def catch_up(self, marks: Marks, start: int) -> None:
        """Pass over what lies below an offset, which is settled."""
        if self._caught_up == start and self._block >= 0:
            return
        self._caught_up = start
        if self._block < 0:
            first = marks.begin >> SHIFT
            self._block = first if self.strand == PLAIN else marks.next_home(self.strand, first - 1)
            self._at = 0
        while 0 <= self._block < start >> SHIFT:
            positions = marks.positions(self._block, self.strand)
            self.passed += positions.end - positions.begin - self._at
            self._at = positions.end - positions.begin
            following = marks.next_home(self.strand, self._block)
            if following < 0:
                return
            self._block, self._at = following, 0
        if self._block == start >> SHIFT:
            positions = marks.positions(self._block, self.strand)
            at = bisect_left(positions.values, start & INSIDE, positions.begin + self._at, positions.end)
            self.passed += at - positions.begin - self._at
            self._at = at - positions.begin


def _is_ready(window: Window, offset: int) -> bool:
    return offset >= window.next or (offset >= window.start and window.state_of(offset) == READY)


def _first_ready(window: Window, first: int, last: int) -> Run | None:
    """Of what is touched or not, the first that can be had."""
    for run in window.runs_in(first, last, READY):
        return run
    first = max(first, window.next)
    return Run(first, last) if first <= last else None
