"""Compaction of a log that is in use: of each key only the last record stays."""

from penstock.observe.logs import get_logger
from penstock.storage.compaction.due import plan
from penstock.storage.compaction.job import Job, Result
from penstock.storage.log.log import Log
from penstock.storage.log.rewriting import Rewriting, last_batches, source_of
from penstock.storage.log.segment import Segment
from penstock.storage.log.upkeep import least_floor

log_ = get_logger("compaction")
MAX_KEYS = 1_000_000
"""Different keys of one pass: some 150 MB of the worker's memory. What does not fit is left for the next."""


class Compaction:
    """Of all logs of a shelf, one after the other."""

    def __init__(self, rewriting: Rewriting) -> None:
        self._rewriting = rewriting

    def next_job(self, log: Log, now_ms: int) -> Job | None:
        """What is due for a log; needs no disk."""
        options = log.options
        if not options.compact or not self._rewriting.may_begin(log, now_ms):
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
            segments=tuple(map(source_of, due.segments)),
            dirty_from=due.dirty_from,
            until=due.until,
            now_ms=now_ms,
            delete_retention_ms=options.delete_retention_ms,
            segment_bytes=options.segment_bytes,
            index_interval_bytes=options.index_interval_bytes,
            max_keys=MAX_KEYS,
            last_batches=last_batches(log),
            bytes_per_second=self._rewriting.bytes_per_second,
        )

    async def run(self, log: Log, job: Job, now_ms: int) -> Result | None:
        """Work off a job and put its result into place; None if that was not possible now."""

        def placed(result: Result) -> bool:
            log.state.compacted_to = result.cleaned_to
            return True

        result = await self._rewriting.run(log, job, now_ms, placed=placed)
        if result is not None:
            self._rewriting.stats.compactions += 1
            log_.info(
                "compacted",
                log=log.name,
                to=result.cleaned_to,
                keys=result.keys,
                records=f"{result.records_kept} of {result.records_read}",
                bytes=f"{result.bytes_kept} of {result.bytes_read}",
            )
        return result
