"""One pass over the sealed segments of a log, as Kafka's log cleaner makes it. Blocking; on the disk port only.

First the dirty part is read and the last offset of each of its keys noted; then all segments are read and only what
is still wanted is written into new ones. Offsets never change, so compacted segments have gaps. What lies behind the
end of the map, because that was full, is copied as it is.
"""

from collections.abc import Callable, Iterator, Sequence

from penstock.ports.disk import Disk
from penstock.records.compression import CompressionError
from penstock.records.control import decode_marker
from penstock.records.record import RecordError
from penstock.storage.compaction.cleaned_file import CleanedFile
from penstock.storage.compaction.decided import AbortedTransactions, SeenTransactions
from penstock.storage.compaction.job import Group, Job, Result, Source
from penstock.storage.compaction.offset_map import OffsetMap
from penstock.storage.compaction.pace import Pace
from penstock.storage.compaction.reading import ReadBatch, SealedSegment
from penstock.storage.compaction.sieve import Sieve, Sifted, emptied, open_section
from penstock.storage.compaction.spans import spans

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
    return _Pass(disk, job, Pace(job.bytes_per_second, monotonic, pause, proceed, give_way)).run()


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
    def __init__(self, disk: Disk, job: Job, pace: Pace) -> None:
        self._disk = disk
        self._job = job
        self._pace = pace
        self._aborted = AbortedTransactions(job.aborted)
        self._latest = OffsetMap(job.max_keys, job.until - job.dirty_from)
        self._sieve = Sieve(self._latest, job.now_ms, job.delete_retention_ms, pace.give_way)
        self._seen = SeenTransactions()
        self._last_batches = frozenset(job.last_batches)
        self._map_end = job.until
        self._records_read = self._records_kept = 0
        self._bytes_read = self._bytes_written = 0

    def run(self) -> Result:
        job = self._job
        self._map_end = self._build_map()
        sources = [source for source in job.segments if source.base < self._map_end]
        groups = [self._clean_group(group) for group in grouped(sources, job.segment_bytes)]
        if any(group.changed for group in groups):
            self._disk.sync_dir(job.directory)
        return Result(
            groups=tuple(groups),
            cleaned_to=self._map_end,
            keys=self._latest.count,
            records_read=self._records_read,
            records_kept=self._records_kept,
            bytes_read=self._bytes_read,
            bytes_kept=sum(group.size for group in groups),
            bytes_written=self._bytes_written,
        )

    # --- the map

    def _build_map(self) -> int:
        """Returns the offset before which every record is in the map."""
        job = self._job
        dirty = [source for source in job.segments if source.next_offset > job.dirty_from]
        for source in dirty:
            stopped_at = self._map_segment(source)
            if stopped_at is not None:
                # A later segment is left for the next pass; the first one is done in part, or no pass ever ended.
                return stopped_at if source is dirty[0] else source.base
        return job.until

    def _map_segment(self, source: Source) -> int | None:
        """Returns where it stopped for lack of room, if it did."""
        segment = SealedSegment(self._disk, source, self._pace)
        try:
            for batch in segment.batches():
                header = batch.header
                if header.last_offset < self._job.dirty_from or header.is_control or self._aborted.holds(header):
                    continue
                if self._latest.is_full:
                    return header.base_offset
                with _Opening(segment, batch):
                    self._map_batch(batch)
            return None
        finally:
            segment.close()

    def _map_batch(self, batch: ReadBatch) -> None:
        header, put = batch.header, self._latest.put
        section = open_section(header, batch.data)
        for span in spans(section, header.record_count, header.last_offset_delta, self._pace.give_way):
            if span.key is not None:
                put(span.key, header.base_offset + span.offset_delta)

    # --- the segments

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
            with _Opening(segment, batch):
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
        is_copied = header.base_offset >= self._map_end  # its transaction counts all the same: the new card lists it
        if header.is_control:
            if header.record_count == 0 and not is_copied:
                return None
            marker = decode_marker(data)
            is_needed = marker is None or self._seen.note_marker(header, marker)
            return Sifted(header, data) if is_needed or is_copied else self._sieve.sift_marker(header, data)
        self._seen.note_data(header)
        if is_copied:
            return Sifted(header, data)
        if self._aborted.holds(header):
            return None
        return self._sieve.sift(header, data)


class _Opening:
    """Says where a batch lies that nobody can open."""

    __slots__ = ("_batch", "_segment")

    def __init__(self, segment: SealedSegment, batch: ReadBatch) -> None:
        self._segment = segment
        self._batch = batch

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (RecordError, CompressionError)):
            raise self._segment.damaged(self._batch.position, f"a batch cannot be opened ({error})") from None
