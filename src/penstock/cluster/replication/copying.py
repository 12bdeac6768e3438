"""Catching up from far behind: whole sealed segments of the leader, instead of batch after batch.

A fetch shows how far behind a partition is. If that is far, the leader is asked for the segment that begins where this
log ends. While it is copied, the partition is not fetched; if the leader has none that begins there, fetches go on to
where the next one does. Partitions take turns, a segment each, one at a time for each leader.

Bytes are checked and written in threads. The log goes on with a copy only if, under the partition's lock, it is the
very log and epoch that the fetch was about: what the leader confirmed then is still what it continues.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.cluster.replication.source import (
    FetchedRow,
    LeaderGone,
    Position,
    SegmentPart,
    SegmentWanted,
    Source,
)
from penstock.cluster.replication.throttle import Throttle
from penstock.engine.partition import Partition
from penstock.engine.replicas import Replicas
from penstock.errors import Code, PenstockError
from penstock.observe.logs import get_logger
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.disk import is_shortage
from penstock.records.batch import HEADER_BYTES, decode_header
from penstock.storage.checked_file import DamagedFile
from penstock.storage.log.adoption import IncomingSegment
from penstock.storage.log.log import Log

log_ = get_logger("replication")
_TRIES = 3
Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class CopySettings:
    from_bytes: int = 64 << 20
    """So far behind, at least."""
    range_bytes: int = 1 << 20
    pause_s: float = 10.0
    """How long a partition is fetched after the leader had nothing to copy, or a copy failed."""


@dataclass(slots=True, eq=False)
class _Job:
    partition: Partition
    epoch: int
    log: Log

    @property
    def key(self) -> Key:
        return self.partition.topic_id.bytes, self.partition.index


class Copying:
    """What is copied of one leader.

    Args:
        lock_of: held while a partition's log is replaced.
        ended: called when a partition is to be fetched again.

    Attributes:
        segments: how many were copied.
    """

    def __init__(
        self,
        source: Source,
        replicas: Replicas,
        clock: Clock,
        stats: Stats,
        fail: Callable[[BaseException], None],
        lock_of: Callable[[Partition], asyncio.Lock],
        throttle: Throttle,
        ended: Callable[[], None],
        settings: CopySettings,
    ) -> None:
        self._source = source
        self._replicas = replicas
        self._clock = clock
        self._stats = stats
        self._fail = fail
        self._lock_of = lock_of
        self._throttle = throttle
        self._ended = ended
        self._settings = settings
        self._jobs: dict[Key, _Job] = {}
        self._queue: deque[_Job] = deque()
        self._next_base: dict[Key, int] = {}
        """Where the next segment begins that could be copied."""
        self._not_before: dict[Key, float] = {}
        self._adoption: asyncio.Task[bool] | None = None
        self._wake = asyncio.Event()
        self.segments = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._jobs

    def takes(self, partition: Partition, position: Position, log: Log, row: FetchedRow) -> bool:
        """Whether a partition is to be copied, by what a fetch at `position` has brought; that is not needed then."""
        key = position.topic_id, position.partition_index
        if _bytes_behind(position, row) < self._settings.from_bytes:
            return False
        if position.fetch_offset < self._next_base.get(key, 0):
            return False
        if self._clock.monotonic() < self._not_before.get(key, 0.0):
            return False
        job = self._jobs[key] = _Job(partition, position.leader_epoch, log)
        self._queue.append(job)
        self._wake.set()
        return True

    def forget(self, key: Key) -> None:
        """It has another leader or epoch, or none: what was begun is of no use."""
        self._jobs.pop(key, None)
        self._next_base.pop(key, None)
        self._not_before.pop(key, None)

    async def run(self) -> None:
        """Until cancelled; a log that is being replaced is left in one piece then."""
        try:
            while True:
                while self._queue:
                    await self._take_turn(self._queue.popleft())
                self._wake.clear()
                await self._wake.wait()
        finally:
            if self._adoption is not None:
                await asyncio.wait({self._adoption})

    async def _take_turn(self, job: _Job) -> None:
        """Copy a segment; then it is the next one's turn."""
        if self._is_current(job) and await self._copy(job):
            self._queue.append(job)
        elif self._jobs.get(job.key) is job:
            del self._jobs[job.key]
            self._ended()

    async def _copy(self, job: _Job) -> bool:
        """Whether there may be more to copy."""
        try:
            return await self._copy_segment(job)
        except (LeaderGone, PenstockError, DamagedFile) as error:
            reason = str(error)
        except OSError as error:
            if self._is_current(job) and not is_shortage(error):
                self._fail(error)
                return False
            reason = str(error)
        if self._is_current(job):
            log_.limited("copy").warning("segment not copied; fetched", partition=job.partition.name, error=reason)
            self._not_before[job.key] = self._clock.monotonic() + self._settings.pause_s
        return False

    async def _copy_segment(self, job: _Job) -> bool:
        base = job.log.end_offset
        first = await self._ask(job, base, 0)
        if not self._is_current(job):
            return False
        if first.base != base:
            if first.base > base:
                self._next_base[job.key] = first.base
            else:
                self._not_before[job.key] = self._clock.monotonic() + self._settings.pause_s
            return False
        copy = await self._replicas.begin_copy(job.log, base, first.card)
        is_complete = False
        try:
            is_complete = await self._receive(job, copy, first)
        finally:
            if not is_complete:
                await self._replicas.drop_copy(copy)
        if not is_complete:
            return False
        self._adoption = asyncio.get_running_loop().create_task(self._adopt(job, copy))
        return await asyncio.shield(self._adoption)

    async def _ask(self, job: _Job, base: int, position: int) -> SegmentPart:
        key, settings = job.key, self._settings
        return await self._source.copy_segment(
            SegmentWanted(*key, job.epoch, base, position, settings.range_bytes, settings.from_bytes)
        )

    async def _receive(self, job: _Job, copy: IncomingSegment, part: SegmentPart) -> bool:
        """All of a segment's bytes, of which `part` is the first; False if it is not wanted any more."""
        position, tries = 0, 1
        while position < copy.size:
            if (part.base, part.next_offset, part.size) != (copy.base, copy.next_offset, copy.size):
                raise PenstockError(Code.NOT_AVAILABLE, f"the segment at {copy.base} was replaced while it was copied")
            try:
                position = await self._replicas.add_to_copy(copy, part.data, position)
                self._stats.copied_bytes += len(part.data)
                if job.partition.is_moving_here:
                    self._stats.moved_bytes += len(part.data)
                    self._throttle.spend(len(part.data))
                tries = 1
            except DamagedFile as error:
                if tries == _TRIES:
                    raise
                tries += 1
                log_.limited("damage").warning("range of a segment asked for again", error=str(error))
            await self._pay(job)
            if position < copy.size:
                part = await self._ask(job, copy.base, position)
            if not self._is_current(job):
                return False
        await self._replicas.complete_copy(job.log, copy)
        return True

    async def _pay(self, job: _Job) -> None:
        """Wait until what was copied for a move is paid for."""
        wait_s = self._throttle.wait_s()
        while wait_s and job.partition.is_moving_here and self._is_current(job):
            await asyncio.sleep(wait_s)
            wait_s = self._throttle.wait_s()

    async def _adopt(self, job: _Job, copy: IncomingSegment) -> bool:
        partition = job.partition
        async with self._lock_of(partition):
            if not self._is_current(job) or job.log.visible_end != copy.base or job.log.end_offset != copy.base:
                await self._replicas.drop_copy(copy)
                return False
            try:
                adopted = await self._replicas.adopt(partition, copy)
            except (OSError, PenstockError) as error:  # half done: the next start finishes it
                self._fail(error)
                return False
            job.log = partition.opened()
        if not adopted:
            raise PenstockError(Code.STORAGE_FULL, f"no room to put a copy of {copy.size} bytes into place")
        self.segments += 1
        log_.info("copied a segment", partition=partition.name, base=copy.base, end=copy.next_offset, bytes=copy.size)
        return True

    def _is_current(self, job: _Job) -> bool:
        """Whether a copy would still be of the log and in the epoch it was begun for."""
        partition = job.partition
        return (
            self._jobs.get(job.key) is job
            and partition.led is None
            and partition.log is job.log
            and partition.leader_epoch == job.epoch
            and not job.log.closed
        )


def _bytes_behind(position: Position, row: FetchedRow) -> float:
    """A guess, by the first batch that came: all others are taken to be like it."""
    if len(row.records) < HEADER_BYTES:
        return 0
    header = decode_header(row.records)
    return (row.high_watermark - position.fetch_offset) * header.size / max(header.last_offset_delta + 1, 1)
