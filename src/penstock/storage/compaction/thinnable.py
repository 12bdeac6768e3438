"""Whether a log is worth thinning, and over which segments: numbers alone.

A segment is worth it if less than a fifth of its offsets is needed; one that was thinned before, if less than half of
what it kept then is. So no byte is written more than a few times, and what is kept in vain stays within bounds. Small
neighbours are made one when there are enough of them: each record is moved once for every power of `MERGED_AT_ONCE`
in the size of its segment, no more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from penstock.storage.compaction.due import S
from penstock.storage.compaction.job import Range
from penstock.storage.compaction.kept_ranges import count_of, within

MERGED_AT_ONCE = 8
NEEDED_SHARE = 0.2
"""Of a segment's offsets; with so many it is not worth it."""
_NEEDED_AGAIN_SHARE = 0.5

Kept = Mapping[Range, int]
"""How many offsets each segment that was thinned kept, by the first and the last it stands for."""


@dataclass(frozen=True, slots=True)
class Thinnable(Generic[S]):
    segments: tuple[S, ...]
    """Neighbours."""
    kept: tuple[Range, ...]
    """What is needed of them."""


def plan(
    segments: Sequence[S], needed: Sequence[Range], kept: Kept, segment_bytes: int, most_bytes: int
) -> Thinnable[S] | None:
    """What is worth a pass, if anything is: the first such neighbours.

    Args:
        segments: contiguous, oldest first.
        needed: of all of them; sorted, and apart.
        most_bytes: that a pass may read, unless one segment alone has more.
    """
    counts = [count_of(within(needed, each.base, each.next_offset - 1)) for each in segments]
    worth = [_is_worth(segment, count, kept) for segment, count in zip(segments, counts, strict=True)]
    chosen = _first_run(worth, segments, most_bytes)
    if not chosen:
        small = [_is_small(segment, count, segment_bytes) for segment, count in zip(segments, counts, strict=True)]
        chosen = _first_run(small, segments, most_bytes, MERGED_AT_ONCE)
    if not chosen:
        return None
    run = segments[chosen.start : chosen.stop]
    return Thinnable(tuple(run), tuple(within(needed, run[0].base, run[-1].next_offset - 1)))


def _first_run(wanted: Sequence[bool], segments: Sequence[S], most_bytes: int, least: int = 1) -> range:
    """The first neighbours that are wanted, as many as may be read at once; empty if they are fewer than `least`."""
    begin, size = 0, 0
    for at, segment in enumerate(segments):
        if wanted[at] and (begin == at or size + segment.size <= most_bytes):
            size += segment.size
            continue
        if at - begin >= least:
            return range(begin, at)
        begin, size = (at, segment.size) if wanted[at] else (at + 1, 0)
    return range(begin, len(segments)) if len(segments) - begin >= least else range(0)


def _is_worth(segment: S, needed: int, kept: Kept) -> bool:
    span = segment.next_offset - segment.base
    before = kept.get((segment.base, segment.next_offset - 1))
    least = span * NEEDED_SHARE if before is None else before * _NEEDED_AGAIN_SHARE
    return segment.size > 0 and needed < least


def _is_small(segment: S, needed: int, segment_bytes: int) -> bool:
    span = segment.next_offset - segment.base
    return segment.size * MERGED_AT_ONCE <= segment_bytes and needed < span * NEEDED_SHARE
