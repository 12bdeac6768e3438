"""Compaction of a log that is in use: what is due is given away, and what comes back takes the old segments' place.

The pass itself runs beside the broker and touches nothing of the log. Then, in this order, each step durable before the
next: the state says how far offsets may be missing; `swap` says which segments replace which; names change. Readers go
on with the old segments, which were given files of their own, until the log's list of segments has changed.
"""

from dataclasses import replace

from penstock.errors import PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.disk import Disk, File, is_shortage
from penstock.storage.compaction.due import plan
from penstock.storage.compaction.job import CompactionError, Group, Job, Result, Source
from penstock.storage.compaction.process import Compactor
from penstock.storage.compaction.swap import drop_leftovers, finish_swap, prepare_swap
from penstock.storage.log.card import SUMMARY_BYTES, Summary
from penstock.storage.log.loading import card_of, file_of
from penstock.storage.log.log import Log, Shelf
from penstock.storage.log.segment import Segment
from penstock.storage.log.upkeep import Upkeep, least_floor

log_ = get_logger("compaction")
MAX_KEYS = 1_000_000
"""Different keys of one pass: some 150 MB of the worker's memory. What does not fit is left for the next."""
_GIVEN_UP_MS = 10 * 60 * 1000


class Compaction:
    """One pass at a time, over all logs of a shelf."""

    def __init__(self, shelf: Shelf, compactor: Compactor, bytes_per_second: int) -> None:
        self._shelf = shelf
        self._upkeep = Upkeep(shelf)
        self._compactor = compactor
        self._bytes_per_second = bytes_per_second
        self._not_before: dict[str, int] = {}
        """Logs whose last pass was given up, by directory."""
        self.placing = False
        """Whether the result of a pass is being put into place."""

    def next_job(self, log: Log, now_ms: int) -> Job | None:
        """What is due for a log; needs no disk but for cards of aborted transactions, see `_aborted`."""
        options = log.options
        if not options.compact or log.closed or self._not_before.get(log.directory, 0) > now_ms:
            return None
        sealed: list[Segment] = []
        for segment in log.segments[:-1]:
            if not segment.sealed or (sealed and sealed[-1].next_offset != segment.base):
                break  # behind a hole nothing is touched: whatever fills it may be older
            sealed.append(segment)
        due = plan(
            sealed,
            dirty_from=log.state.compacted_to,
            stable_end=min(log.settled_end, least_floor(log)),
            active_base=log.active.base,
            now_ms=now_ms,
            min_dirty_ratio=options.min_dirty_ratio,
            min_lag_ms=options.min_compaction_lag_ms,
            max_lag_ms=options.max_compaction_lag_ms,
        )
        if due is None:
            return None
        return Job(
            directory=log.directory,
            segments=tuple(Source(each.base, each.size, each.next_offset, each.path) for each in due.segments),
            dirty_from=due.dirty_from,
            until=due.until,
            now_ms=now_ms,
            delete_retention_ms=options.delete_retention_ms,
            segment_bytes=options.segment_bytes,
            index_interval_bytes=options.index_interval_bytes,
            max_keys=MAX_KEYS,
            last_batches=tuple(
                producer.batches[-1].base_offset for _, producer in log.state.producers.items() if producer.batches
            ),
            bytes_per_second=self._bytes_per_second,
        )

    async def run(self, log: Log, job: Job, now_ms: int) -> Result | None:
        """Work off a job and put its result into place; None if that was not possible now."""
        disk = self._shelf.disk
        try:
            await disk.run(drop_leftovers, disk, log.directory)
            aborted = await disk.run(_aborted, log, job.until)
            result = await self._compactor.run(replace(job, aborted=aborted))
            self.placing = True
            async with log.tending:
                if not self._is_as_it_was(log, result):
                    await disk.run(drop_leftovers, disk, log.directory)
                    return None
                await self._put_into_place(log, result)
        except (CompactionError, PenstockError, FileNotFoundError) as error:
            self._give_up(log, now_ms, error)
            return None
        except OSError as error:
            if self.placing and not is_shortage(error):
                raise
            self._give_up(log, now_ms, error)  # the pass failed beside the log, which it has not touched
            return None
        finally:
            self.placing = False
        stats = self._shelf.stats
        stats.compactions += 1
        stats.compaction_read_bytes += result.bytes_read
        stats.compaction_dropped_bytes += result.bytes_dropped
        stats.compaction_dropped_records += result.records_dropped
        log_.info(
            "compacted",
            log=log.name,
            to=result.cleaned_to,
            keys=result.keys,
            records=f"{result.records_kept} of {result.records_read}",
            bytes=f"{result.bytes_kept} of {result.bytes_read}",
        )
        return result

    def _give_up(self, log: Log, now_ms: int, error: Exception) -> None:
        if log.closed:
            return
        self._not_before[log.directory] = now_ms + _GIVEN_UP_MS
        self._shelf.stats.compaction_failures += 1
        log_.error("compaction given up; the log stays as it is", log=log.name, error=str(error))

    def _is_as_it_was(self, log: Log, result: Result) -> bool:
        """Whether the segments a pass has read are still there; retention may have been quicker."""
        present = [segment.base for segment in log.segments]
        replaced = [base for group in result.groups for base in group.replaced]
        return not log.closed and present[: len(replaced)] == replaced

    async def _put_into_place(self, log: Log, result: Result) -> None:
        disk, changed = self._shelf.disk, result.changed
        if changed:
            log.state.gaps_to = max(log.state.gaps_to, changed[-1].next_offset)
            await self._upkeep.save_state(log)
            old = [segment for group in changed for segment in log.segments if segment.base in group.replaced]
            files = await disk.run(_pin, log, old)
            for segment, file in zip(old, files, strict=True):
                segment.file = file
            try:
                made = await disk.run(_swap, disk, log.directory, result)
            except OSError as error:
                self._shelf.fail(error)  # half done, perhaps: the next start finishes it
                raise
            for group, segment in zip(changed, made, strict=True):
                _replace(log, group, segment)
                for base in group.replaced:
                    self._shelf.files.forget(Segment(log.directory, base).path)
            # Closing the last descriptor of a removed file frees its blocks, which takes the disk: not on the loop.
            del segment, file
            await disk.run(_let_go, old, files)
        log.state.compacted_to = result.cleaned_to
        await self._upkeep.save_state(log)


def _aborted(log: Log, until: int) -> tuple[tuple[int, int, int], ...]:
    """Every aborted transaction with a record below `until`. Blocking."""
    found = []
    for segment in list(log.segments):
        if segment.aborted_count:
            card = card_of(log, segment)
            found += [row[:3] for row in card.transactions.aborted() if row.first_offset < until]
    return tuple(found)


def _pin(log: Log, segments: list[Segment]) -> list[File]:
    """Load the cards of segments whose names are about to be taken, and open their files. Blocking."""
    for segment in segments:
        card_of(log, segment)
    return [file_of(log, segment) for segment in segments]


def _let_go(segments: list[Segment], files: list[File]) -> None:
    segments.clear()
    files.clear()


def _swap(disk: Disk, directory: str, result: Result) -> list[Segment]:
    """Replace the files, and open the new segments. Blocking."""
    prepare_swap(disk, directory, result)
    finish_swap(disk, directory)
    made = []
    for group in result.changed:
        path = Segment(directory, group.base).index_path
        file = disk.open(path)
        try:
            made.append(Segment.sealed_from(directory, Summary(file.read_at(SUMMARY_BYTES, 0), path)))
        finally:
            file.close()
    return made


def _replace(log: Log, group: Group, segment: Segment) -> None:
    at = next(at for at, old in enumerate(log.segments) if old.base == group.base)
    log.segments[at : at + len(group.replaced)] = [segment]
