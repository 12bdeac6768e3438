"""What thinning keeps: the records whose offsets lie in certain ranges, whatever their keys."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from penstock.records.batch import Header
from penstock.storage.compaction.job import Range
from penstock.storage.compaction.sieve import Sifted, open_section, with_only
from penstock.storage.compaction.spans import spans


class KeptRanges:
    """The rule of one pass.

    Args:
        ranges: sorted, and apart.
    """

    def __init__(self, ranges: Sequence[Range], give_way: Callable[[], None] = lambda: None) -> None:
        self._ranges = ranges
        self._lasts = [last for _, last in ranges]
        self._give_way = give_way

    def sift(self, header: Header, batch: memoryview) -> Sifted | None:
        base, last = header.base_offset, header.last_offset
        if self.holds(base, last):
            return Sifted(header, batch)
        if not self.touches(base, last):
            return None
        section = open_section(header, batch)
        found = spans(section, header.record_count, header.last_offset_delta, self._give_way)
        kept = [span for span in found if self.touches(base + span.offset_delta, base + span.offset_delta)]
        self._give_way()
        return with_only(header, batch, section, kept) if kept else None

    def holds(self, first: int, last: int) -> bool:
        """Whether all of some offsets are kept."""
        at = bisect_left(self._lasts, last)
        return at < len(self._lasts) and self._ranges[at][0] <= first

    def touches(self, first: int, last: int) -> bool:
        """Whether any of them is."""
        at = bisect_left(self._lasts, first)
        return at < len(self._lasts) and self._ranges[at][0] <= last


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Ranges sorted by where they begin, as few as say the same."""
    made: list[Range] = []
    for first, last in ranges:
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return made


def within(ranges: Sequence[Range], first: int, last: int) -> list[Range]:
    """The parts of sorted ranges that lie in another one."""
    at = bisect_left(ranges, first, key=_last)
    found = []
    while at < len(ranges) and ranges[at][0] <= last:
        found.append((max(ranges[at][0], first), min(ranges[at][1], last)))
        at += 1
    return found


def coarser(ranges: Sequence[Range], most: int) -> list[Range]:
    """No more than so many ranges that hold what these do: the nearest ones are made one."""
    gaps = sorted(range(1, len(ranges)), key=lambda at: ranges[at][0] - ranges[at - 1][1])
    closed = set(gaps[: max(len(ranges) - most, 0)])
    made: list[Range] = []
    for at, (first, last) in enumerate(ranges):
        if at in closed:
            made[-1] = (made[-1][0], last)
        else:
            made.append((first, last))
    return made


def count_of(ranges: Iterable[Range]) -> int:
    """How many offsets they hold."""
    return sum(last - first + 1 for first, last in ranges)


def _last(each: Range) -> int:
    return each[1]
