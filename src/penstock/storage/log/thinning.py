"""Thinning of a log that is in use: of what is past retention, only those records stay that somebody still needs.

Retention removes whole segments from the oldest on, up to the first record that is needed. From there on a segment is
rewritten when little of it is, down to that, at the same offsets; one of which nothing is becomes empty. What is needed
is asked twice: when the job is made, of what is safe, so that no crash can make anything needed again that went; and in
the very step that decides for the new segments, of what is so now, as somebody may need more than before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.observe.logs import get_logger
from penstock.storage.compaction.job import Job, Range, Result
from penstock.storage.compaction.kept_ranges import KeptRanges, coarser, count_of, joined, within
from penstock.storage.compaction.thinnable import plan
from penstock.storage.log.log import Log
from penstock.storage.log.needs import Needed, Needs
from penstock.storage.log.rewriting import Rewriting, last_batches, source_of
from penstock.storage.log.segment import Segment
from penstock.storage.log.upkeep import least_floor, past_retention

log_ = get_logger("compaction")
MOST_RANGES = 20_000
"""Of one job: a few hundredths of a second to look at again before the new segments are taken."""
_MOST_BYTES = 1 << 30


@dataclass(slots=True)
class _Memory:
    """What is known of one log since the start."""

    kept: dict[Range, int] = field(default_factory=dict)
    """See `thinnable.Kept`."""
    look_ms: int = 0
    """When to look again."""
    look_from: int = 0
    """Where the last look ended, if there was more than it could take in."""


class Thinning:
    """Of all logs of a shelf, one after the other.

    Args:
        every_ms: how often a log of which nothing was worth it is looked at.
    """

    def __init__(self, rewriting: Rewriting, every_ms: int) -> None:
        self._rewriting = rewriting
        self._every_ms = every_ms
        self._memories: dict[str, _Memory] = {}
        """By directory, of logs of which something is held back."""

    async def next_job(self, log: Log, needs: Needs, now_ms: int) -> Job | None:
        """What is worth thinning in a log, if anything is."""
        if not self._rewriting.may_begin(log, now_ms):
            return None
        held = held_back(log, now_ms)
        if not held:
            self._memories.pop(log.directory, None)
            return None
        memory = self._memories.setdefault(log.directory, _Memory())
        if now_ms < memory.look_ms:
            return None
        there = {(segment.base, segment.next_offset - 1) for segment in held}
        memory.kept = {each: count for each, count in memory.kept.items() if each in there}
        segments = [each for each in held if each.base >= memory.look_from] or held
        try:
            needed = await _ask(needs, segments)
        except PenstockError:
            memory.look_ms = now_ms + self._every_ms
            return None  # nobody knows what is needed, so all is
        segments = [each for each in segments if each.next_offset <= needed.last + 1]
        options = log.options
        found = plan(segments, needed.ranges, memory.kept, options.segment_bytes, _MOST_BYTES)
        if found is None:
            is_all = segments[-1] is held[-1]
            memory.look_from = 0 if is_all else segments[-1].next_offset
            memory.look_ms = now_ms + self._every_ms if is_all else now_ms
            return None
        return Job(
            directory=log.directory,
            segments=tuple(map(source_of, found.segments)),
            dirty_from=found.segments[-1].next_offset,
            until=found.segments[-1].next_offset,
            now_ms=now_ms,
            delete_retention_ms=options.delete_retention_ms,
            segment_bytes=options.segment_bytes,
            index_interval_bytes=options.index_interval_bytes,
            max_keys=1,
            last_batches=last_batches(log),
            bytes_per_second=self._rewriting.bytes_per_second,
            kept=found.kept,
        )

    async def run(self, log: Log, needs: Needs, job: Job, now_ms: int) -> Result | None:
        """Work off a job and put its result into place; None if that was not possible now, or is not right any more."""
        assert job.kept is not None
        kept = KeptRanges(job.kept)

        def is_right(result: Result) -> bool:
            return all(_holds_all(kept, needs, each.base, each.next_offset - 1) for each in result.changed)

        result = await self._rewriting.run(log, job, now_ms, is_right)
        memory = self._memories.setdefault(log.directory, _Memory())
        if result is None:
            memory.look_ms = now_ms + self._every_ms
            return None
        for group in result.groups:
            stands_for = (group.base, group.next_offset - 1)
            memory.kept[stands_for] = count_of(within(job.kept, *stands_for))
        self._rewriting.stats.thinnings += 1
        log_.info(
            "thinned",
            log=log.name,
            segments=f"{len(result.groups)} of {len(job.segments)}",
            records=f"{result.records_kept} of {result.records_read}",
            bytes=f"{result.bytes_kept} of {result.bytes_read}",
        )
        return result


def held_back(log: Log, now_ms: int) -> list[Segment]:
    """Sealed segments past retention that only stay because somebody needs records of them, or before them."""
    lowest, settled = least_floor(log), log.settled_end
    held: list[Segment] = []
    for segment, following in past_retention(log, now_ms):
        if segment.next_offset > settled or segment.next_offset != following.base:
            break  # behind a hole nothing is touched, as in compaction
        if segment.next_offset > lowest:
            held.append(segment)
    return held


async def _ask(needs: Needs, segments: Sequence[Segment]) -> Needed:
    """What is needed of the first of some neighbours, as many as one job can speak of: one at least."""
    ranges: list[Range] = []
    for segment in segments:
        found: list[Range] = []
        at, last = segment.base, segment.next_offset - 1
        while at <= last:
            needed = await needs.ask(at, last)
            found += needed.ranges
            at = needed.last + 1
        found = joined(found)
        if len(found) > MOST_RANGES:
            found = coarser(found, MOST_RANGES)
        if ranges and len(ranges) + len(found) > MOST_RANGES:
            return Needed(joined(ranges), segment.base - 1)
        ranges += found
    return Needed(joined(ranges), segments[-1].next_offset - 1)


def _holds_all(kept: KeptRanges, needs: Needs, first: int, last: int) -> bool:
    """Whether all that is needed now is kept."""
    while first <= last:
        needed = needs.ask_now(first, last)
        if not all(kept.holds(*each) for each in needed.ranges):
            return False
        first = needed.last + 1
    return True
