"""What compaction keeps: of each key the last record, and that for a while only if it has no value.

A record stays if it has a key, no later record of that key is known, it was not aborted, and it has a value or its
batch's delete horizon has not come.
"""

from collections.abc import Callable

from penstock.ports.disk import Disk
from penstock.records.batch import Header
from penstock.storage.compaction.decided import AbortedTransactions
from penstock.storage.compaction.job import Job
from penstock.storage.compaction.offset_map import OffsetMap
from penstock.storage.compaction.pace import Pace
from penstock.storage.compaction.reading import ReadBatch, SealedSegment
from penstock.storage.compaction.sieve import Horizons, Sifted, horizon_of, open_section, with_only
from penstock.storage.compaction.spans import Span, spans


class LatestKeys:
    """The rule of one pass. To be loaded before it is asked."""

    def __init__(self, job: Job, horizons: Horizons, give_way: Callable[[], None]) -> None:
        self._job = job
        self._horizons = horizons
        self._give_way = give_way
        self._aborted = AbortedTransactions(job.aborted)
        self._latest = OffsetMap(job.max_keys, job.until - job.dirty_from)

    @property
    def count(self) -> int:
        """Of different keys."""
        return self._latest.count

    def load(self, disk: Disk, pace: Pace) -> int:
        """Read the dirty part of the log; returns the offset before which every record is known then."""
        job = self._job
        dirty = [source for source in job.segments if source.next_offset > job.dirty_from]
        for source in dirty:
            stopped_at = self._load_segment(SealedSegment(disk, source, pace))
            if stopped_at is not None:
                # A later segment is left for the next pass; the first one is done in part, or no pass ever ended.
                return stopped_at if source is dirty[0] else source.base
        return job.until

    def _load_segment(self, segment: SealedSegment) -> int | None:
        """Returns where it stopped for lack of room, if it did."""
        try:
            for batch in segment.batches():
                header = batch.header
                if header.last_offset < self._job.dirty_from or header.is_control or self._aborted.holds(header):
                    continue
                if self._latest.is_full:
                    return header.base_offset
                with segment.opening(batch):
                    self._load_batch(batch)
            return None
        finally:
            segment.close()

    def _load_batch(self, batch: ReadBatch) -> None:
        header, put = batch.header, self._latest.put
        section = open_section(header, batch.data)
        for span in spans(section, header.record_count, header.last_offset_delta, self._give_way):
            if span.key is not None:
                put(span.key, header.base_offset + span.offset_delta)

    def sift(self, header: Header, batch: memoryview) -> Sifted | None:
        if self._aborted.holds(header):
            return None
        section = open_section(header, batch)
        expired = self._horizons.is_over(header)
        latest, base_offset = self._latest.get, header.base_offset
        tombstones = False
        kept: list[Span] = []
        for span in spans(section, header.record_count, header.last_offset_delta, self._give_way):
            if span.key is None or latest(span.key) > base_offset + span.offset_delta:
                continue
            if not span.has_value:
                if expired:
                    continue
                tombstones = True
            kept.append(span)
        if not kept:
            return None
        self._give_way()
        if tombstones and horizon_of(header) is None:
            made = self._horizons.set(header, section, kept)
            if made is not None:
                return made
        return with_only(header, batch, section, kept)
