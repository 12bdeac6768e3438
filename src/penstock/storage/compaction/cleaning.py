"""One pass over sealed segments of a log, as Kafka's log cleaner makes it. Blocking; on the disk port only.

The segments are read, and what is still wanted by the job's rule is written into new ones: the last record of each key
(`latest_keys`), or what lies in certain ranges (`kept_ranges`). Offsets never change, so the new segments have gaps.
What lies behind the end of the map of keys, because that was full, is copied as it is.
"""

from collections.abc import Callable, Iterator, Sequence

from penstock.ports.disk import Disk
from penstock.records.control import decode_marker
from penstock.storage.compaction.cleaned_file import CleanedFile
from penstock.storage.compaction.decided import SeenTransactions
from penstock.storage.compaction.job import Group, Job, Result, Source
from penstock.storage.compaction.kept_ranges import KeptRanges
from penstock.storage.compaction.latest_keys import LatestKeys
from penstock.storage.compaction.pace import Pace
from penstock.storage.compaction.reading import ReadBatch, SealedSegment
from penstock.storage.compaction.sieve import Horizons, Rule, Sifted, emptied

_LARGEST_SPAN = (1 << 31) - 1  # offsets of a merged segment, as in Kafka


def clean(
    disk: Disk,
    job: Job,
    *,
    monotonic: Callable[[], float],
    pause: Callable[[float], None],
    proceed: Callable[[], None] = lambda: None,
    give_way: Callable[[], None] = lambda: None,
) -> Result:
    """Work off a job. What it wrote is durable when it returns; `swap` puts it into place.

    Args:
        proceed: called again and again; raises to give up.
        give_way: see `Pace`.

    Raises:
        CompactionError: a segment is damaged, or holds a batch nobody can open.
        OSError: from the disk. In both cases cleaned files may be left behind; the log is untouched.
    """
    pace = Pace(job.bytes_per_second, monotonic, pause, proceed, give_way)
    horizons = Horizons(job.now_ms, job.delete_retention_ms)
    if job.kept is not None:
        return _Pass(disk, job, pace, horizons, KeptRanges(job.kept, give_way), job.until).run()
    latest = LatestKeys(job, horizons, give_way)
    end = latest.load(disk, pace)
    return _Pass(disk, job, pace, horizons, latest, end).run(latest.count)


def grouped(sources: Sequence[Source], segment_bytes: int) -> Iterator[list[Source]]:
    """Neighbours that together are no larger than one segment may be."""
    group: list[Source] = []
    size = 0
    for source in sources:
        too_much = size + source.size > segment_bytes
        if group and (too_much or source.next_offset - group[0].base > _LARGEST_SPAN):
            yield group
            group, size = [], 0
        group.append(source)
        size += source.size
    if group:
        yield group


class _Pass:
    """Args:
    end: from there on everything is copied as it is.
    """

    def __init__(self, disk: Disk, job: Job, pace: Pace, horizons: Horizons, rule: Rule, end: int) -> None:
        self._disk = disk
        self._job = job
        self._pace = pace
        self._horizons = horizons
        self._rule = rule
        self._end = end
        self._seen = SeenTransactions(job.open_before)
        self._last_batches = frozenset(job.last_batches)
        self._records_read = self._records_kept = 0
        self._bytes_read = self._bytes_written = 0

    def run(self, keys: int = 0) -> Result:
        job = self._job
        sources = [source for source in job.segments if source.base < self._end]
        groups = [self._clean_group(group) for group in grouped(sources, job.segment_bytes)]
        if any(group.changed for group in groups):
            self._disk.sync_dir(job.directory)
        return Result(
            groups=tuple(groups),
            cleaned_to=self._end,
            keys=keys,
            records_read=self._records_read,
            records_kept=self._records_kept,
            bytes_read=self._bytes_read,
            bytes_kept=sum(group.size for group in groups),
            bytes_written=self._bytes_written,
        )

    def _clean_group(self, sources: list[Source]) -> Group:
        segments: list[SealedSegment] = []
        cleaned: CleanedFile | None = None
        try:
            for source in sources:
                segment = SealedSegment(self._disk, source, self._pace)
                segments.append(segment)
                if cleaned is None:
                    interval = self._job.index_interval_bytes
                    cleaned = CleanedFile(self._disk, self._job.directory, segment, interval, self._pace)
                    if len(sources) > 1:
                        cleaned.begin()
                self._clean_segment(segment, cleaned)
                segment.close()
                self._bytes_read += source.size
            assert cleaned is not None
            group = cleaned.finish(segments, self._seen)
            self._seen.aborted.clear()
            self._bytes_written += cleaned.bytes_written
            return group
        finally:
            if cleaned is not None:
                cleaned.close()
            for segment in segments:
                segment.close()

    def _clean_segment(self, segment: SealedSegment, cleaned: CleanedFile) -> None:
        for batch in segment.batches():
            self._records_read += batch.header.record_count
            with segment.opening(batch):
                left = self._left_of(batch)
            self._pace.give_way()
            if left is None and batch.header.base_offset in self._last_batches:
                left = emptied(batch.header, batch.data)
            if left is None:
                cleaned.begin()
                continue
            self._records_kept += left.header.record_count
            if left.data is batch.data:
                cleaned.copy(left.header, left.data)
            else:
                cleaned.put(left.header, left.data)

    def _left_of(self, batch: ReadBatch) -> Sifted | None:
        header, data = batch.header, batch.data
        is_copied = header.base_offset >= self._end  # its transaction counts all the same: the new card lists it
        if header.is_control:
            if header.record_count == 0 and not is_copied:
                return None
            marker = decode_marker(data)
            is_needed = marker is None or self._seen.note_marker(header, marker)
            return Sifted(header, data) if is_needed or is_copied else self._horizons.sift_marker(header, data)
        self._seen.note_data(header)
        return Sifted(header, data) if is_copied else self._rule.sift(header, data)
