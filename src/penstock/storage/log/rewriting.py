"""Segments of a log that is in use are given away to be rewritten, and what comes back takes their place.

The pass itself runs beside the broker and touches nothing of the log. Then, in this order, each step durable before the
next: the state says how far offsets may be missing; `swap` says which segments replace which; names change. Readers go
on with the old segments, which were given files of their own, until the log's list of segments has changed.
"""

from collections.abc import Callable
from dataclasses import replace

from penstock.errors import PenstockError
from penstock.observe.logs import get_logger
from penstock.ports.disk import Disk, File, is_shortage
from penstock.storage.compaction.job import CompactionError, Group, Job, Result, Source
from penstock.storage.compaction.process import Compactor
from penstock.storage.compaction.swap import drop_leftovers, finish_swap, prepare_swap
from penstock.storage.log.card import SUMMARY_BYTES, Summary
from penstock.storage.log.loading import card_of, file_of
from penstock.storage.log.log import Log, Shelf
from penstock.storage.log.segment import Segment
from penstock.storage.log.upkeep import Upkeep

log_ = get_logger("compaction")
_GIVEN_UP_MS = 10 * 60 * 1000


class Rewriting:
    """One pass at a time, over all logs of a shelf.

    Args:
        bytes_per_second: what a pass may read and write.
    """

    def __init__(self, shelf: Shelf, compactor: Compactor, bytes_per_second: int) -> None:
        self.stats = shelf.stats
        self.bytes_per_second = bytes_per_second
        self._shelf = shelf
        self._upkeep = Upkeep(shelf)
        self._compactor = compactor
        self._not_before: dict[str, int] = {}
        """Logs whose last pass was given up, by directory."""
        self.placing = False
        """Whether the result of a pass is being put into place."""

    def may_begin(self, log: Log, now_ms: int) -> bool:
        return not log.closed and self._not_before.get(log.directory, 0) <= now_ms

    async def run(
        self,
        log: Log,
        job: Job,
        now_ms: int,
        is_right: Callable[[Result], bool] = lambda _: True,
        placed: Callable[[Result], bool] = lambda _: False,
    ) -> Result | None:
        """Work off a job and put its result into place; None if that was not possible now.

        Args:
            is_right: asked in the very step that decides for the new segments, whether they will still do.
            placed: told when they are there, and says whether the state of the log has changed by that.
        """
        disk = self._shelf.disk
        try:
            await disk.run(drop_leftovers, disk, log.directory)
            aborted = await disk.run(_aborted, log, job.until)
            open_before = await disk.run(_open_before, log, job.segments[0].base)
            result = await self._compactor.run(replace(job, aborted=aborted, open_before=open_before))
            self.placing = True
            async with log.tending:
                if not (_is_as_it_was(log, result) and await self._put_into_place(log, result, is_right)):
                    await disk.run(drop_leftovers, disk, log.directory)
                    return None
                if placed(result):
                    await self._upkeep.save_state(log)
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
        stats = self.stats
        stats.compaction_read_bytes += result.bytes_read
        stats.compaction_dropped_bytes += result.bytes_dropped
        stats.compaction_dropped_records += result.records_dropped
        return result

    def _give_up(self, log: Log, now_ms: int, error: Exception) -> None:
        if log.closed:
            return
        self._not_before[log.directory] = now_ms + _GIVEN_UP_MS
        self.stats.compaction_failures += 1
        log_.error("compaction given up; the log stays as it is", log=log.name, error=str(error))

    async def _put_into_place(self, log: Log, result: Result, is_right: Callable[[Result], bool]) -> bool:
        """False if they are not right any more: then everything is as it was."""
        disk, changed = self._shelf.disk, result.changed
        if not changed:
            return True
        log.state.gaps_to = max(log.state.gaps_to, changed[-1].next_offset)
        await self._upkeep.save_state(log)
        old = [segment for group in changed for segment in log.segments if segment.base in group.replaced]
        files = await disk.run(_pin, log, old)
        if not is_right(result):
            return False
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
        return True


def source_of(segment: Segment) -> Source:
    return Source(segment.base, segment.size, segment.next_offset, segment.path)


def last_batches(log: Log) -> tuple[int, ...]:
    """Base offsets of the batches by which producers are known."""
    return tuple(producer.batches[-1].base_offset for _, producer in log.state.producers.items() if producer.batches)


def _is_as_it_was(log: Log, result: Result) -> bool:
    """Whether the segments a pass has read are still there; retention may have been quicker."""
    present = [segment.base for segment in log.segments]
    replaced = [base for group in result.groups for base in group.replaced]
    at = present.index(replaced[0]) if replaced and replaced[0] in present else 0
    return not log.closed and present[at : at + len(replaced)] == replaced


def _aborted(log: Log, until: int) -> tuple[tuple[int, int, int], ...]:
    """Every aborted transaction with a record below `until`. Blocking."""
    found = []
    for segment in list(log.segments):
        if segment.aborted_count:
            card = card_of(log, segment)
            found += [row[:3] for row in card.transactions.aborted() if row.first_offset < until]
    return tuple(found)


def _open_before(log: Log, base: int) -> tuple[int, ...]:
    """Producers with a transaction open where the segment at `base` begins. Blocking."""
    before = [segment for segment in list(log.segments) if segment.next_offset == base and segment.base < base]
    if not before or before[-1].first_open < 0:
        return ()
    return tuple(card_of(log, before[-1]).transactions.open)


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
