"""What a log needs now and then, off the event loop: checkpoints, sealing, retention, deleting records.

Every step first makes its decision durable, then acts on it, so that a crash in between is finished by recovery:
a card is saved after the bytes it describes are synced; the new log start is saved before a segment is removed.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace

from penstock.errors import Code, PenstockError
from penstock.ports.disk import Disk, is_shortage
from penstock.storage.checked_file import save_all
from penstock.storage.log import state as states
from penstock.storage.log.adoption import IncomingSegment, decide, finish
from penstock.storage.log.log import Log, Shelf
from penstock.storage.log.options import Flush, LogOptions
from penstock.storage.log.recovery import Recovered, recover
from penstock.storage.log.segment import Segment
from penstock.storage.log.state import LogState
from penstock.storage.log.truncation import restart, truncate

CHECKPOINT_BYTES = 64 << 20
_UNSYNCED_FACTOR = 8  # a checkpoint syncs first, which flush=os and interval are there to put off
CHECKPOINT_MS = 60_000


class Upkeep:
    """The upkeep of the logs on one shelf; `Log.tending` keeps it to one step at a time per log."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def is_due(self, log: Log, now_ms: int) -> bool:
        """Whether `tend` would find anything to do; cheap, for ten thousand quiet logs."""
        active = log.active
        if log.unsealed or len(log.segments) > 1 or active.size > active.checkpointed:
            return True
        old = now_ms - active.created_ms >= _longest_ms(log.options)
        return active.size > 0 and (old or _is_droppable(log, now_ms))

    async def tend(self, log: Log, now_ms: int, settled: int) -> None:
        """Whatever is due for one log.

        Args:
            settled: the high watermark; retention never passes it.
        """
        active = log.active
        if active.size and now_ms - active.created_ms >= _longest_ms(log.options):
            log.want_roll()
        try:
            async with log.tending:
                await self._seal(log)
                grown = log.active.size - log.active.checkpointed
                idle = now_ms - log.last_append_ms >= CHECKPOINT_MS
                enough = CHECKPOINT_BYTES * (1 if log.options.flush is Flush.COMMIT else _UNSYNCED_FACTOR)
                if not log.closed and (grown >= enough or (grown and idle)):
                    await self._shelf.disk.run(save_all, self._shelf.disk, await self._snapshot(log))
                if not log.closed and not log.follows:
                    await self._expire(log, now_ms, settled)
            log.upkeep_error = None
        except OSError as error:
            if not is_shortage(error):
                raise  # a shortage may delay upkeep; anything else stops the broker
            log.upkeep_error = error

    async def _seal(self, log: Log, *, closing: bool = False) -> None:
        """Save the cards of segments that will not change any more."""
        while log.unsealed and (closing or not log.closed):
            segment = log.unsealed[0]
            if log.durable_end < segment.next_offset:
                await self._shelf.committer.commit(log)
            await self._shelf.disk.run(_seal_blocking, self._shelf.disk, segment, await self._state(log))
            segment.checkpointed = segment.size
            segment.seal()
            if segment.file is not None:
                self._shelf.files.put(segment.path, segment.file)
                segment.file = None
            log.unsealed.remove(segment)

    async def snapshot(self, log: Log) -> dict[str, bytes]:
        """The files of a checkpoint, to be saved by the caller; everything they describe is durable.

        After it an unclean stop costs only the tail written since.
        """
        async with log.tending:
            await self._seal(log, closing=True)
            return await self._snapshot(log)

    async def _snapshot(self, log: Log) -> dict[str, bytes]:
        segment = log.active
        assert segment.card is not None
        card = segment.card.copy()
        state = log.state
        state.producers_at = log.end_offset
        contents = state.files(log.directory)
        await self._shelf.committer.commit(log)
        if card.size:
            contents[segment.checkpoint_path] = card.encode()
            segment.checkpointed = card.size
        return contents

    async def delete_records(self, log: Log, offset: int) -> None:
        """Move the log start up to `offset`, durably, and drop segments that lie wholly below it."""
        async with log.tending:
            if log.closed:
                raise PenstockError(Code.NOT_AVAILABLE, f"{log.name} is closed")
            await self._move_start(log, offset)

    async def _expire(self, log: Log, now_ms: int, settled: int) -> None:
        """Retention by time and size. Only whole segments go, oldest first, and none above `settled` or `Log.floors`.

        Of those above that nobody needs much of, thinning leaves that.

        Nothing awaits between asking for the floors and moving the log start.
        """
        highest = min(settled, least_floor(log))
        keep_from, gone = log.log_start, 0
        for _, following in past_retention(log, now_ms):
            if following.base > highest:
                break
            keep_from, gone = following.base, gone + 1
        if gone == len(log.segments) - 1 and _is_droppable(log, now_ms):
            log.want_roll()  # so that the next round may drop it
        try:
            await self._move_start(log, keep_from)
        except OSError as error:
            if not is_shortage(error):
                raise
            # Retention is what makes room again, so whole segments go before their going is on record. It is put there
            # at once: a crash in between is taken for damage.
            await self._drop_below_start(log)
            await self.save_state(log)

    async def begin_epochs(self, logs: Iterable[tuple[Log, int]]) -> None:
        """Note durably that each log's epoch begins at its end, before its first batch; one sync round for all.

        Nobody appends to them meanwhile.
        """
        async with AsyncExitStack() as held:
            begun = []
            for log, epoch in logs:
                await held.enter_async_context(log.tending)  # or upkeep would put an older state in place afterwards
                if log.state.epochs.note(epoch, log.end_offset):
                    begun.append(log)
            contents: dict[str, bytes] = {}
            for state in await asyncio.gather(*(self._state(log) for log in begun)):
                contents |= state
            try:
                if contents:
                    await self._shelf.disk.run(save_all, self._shelf.disk, contents)
            except OSError:
                for log in begun:
                    log.state.epochs.cut_to(log.end_offset)  # as if it had not begun: the caller tries again
                raise

    async def take_back(self, log: Log, offset: int, now_ms: int, beside: Iterable[str] = ()) -> tuple[Recovered, bool]:
        """End a log at `offset`; it must not be used any more, another one is made of what is returned.

        False if there was no room to, so that it may end where it did or anywhere above `offset`.
        """
        return await self._rewrite(log, lambda: truncate(self._shelf.disk, log, offset, now_ms, beside), now_ms)

    async def begin_anew(
        self, log: Log, offset: int, now_ms: int, beside: Iterable[str] = ()
    ) -> tuple[Recovered, bool]:
        """Empty a log, and let it begin at `offset`; as `take_back`."""
        return await self._rewrite(log, lambda: restart(self._shelf.disk, log, offset, now_ms, beside), now_ms)

    async def _rewrite(self, log: Log, step: Callable[[], Recovered], now_ms: int) -> tuple[Recovered, bool]:
        log.closed = True
        await self.quiesce(log)
        for segment in log.segments:
            self._shelf.files.forget(segment.path)
        return await self._shelf.disk.run(_rewritten, self._shelf.disk, log, step, now_ms)

    async def adopt(self, log: Log, copy: IncomingSegment, now_ms: int) -> tuple[Recovered, bool]:
        """Put a complete copy behind the end of a log, as `take_back`; False if there was no room to."""
        log.closed = True
        await self.quiesce(log)
        contents = await self.snapshot(log)
        state = log.state
        before = LogState(
            state.log_start,
            copy.epochs,
            state.producers,
            log.end_offset,
            state.compacted_to,
            copy.next_offset if copy.has_gaps else state.gaps_to,
        )
        for segment in log.segments:
            self._shelf.files.forget(segment.path)
        files = before.files(log.directory)
        after = replace(before, producers=copy.producers, producers_at=copy.next_offset)
        return await self._shelf.disk.run(_adopt, self._shelf.disk, log, copy, contents | files, after, now_ms)

    async def quiesce(self, log: Log) -> None:
        """Return when a closed log has no upkeep, no roll and no unsynced append under way."""
        async with log.tending:
            await log.rolled()
            await self._shelf.committer.commit(log)

    async def _state(self, log: Log) -> dict[str, bytes]:
        log.state.producers_at = log.end_offset
        files = log.state.files(log.directory)
        await self._shelf.committer.commit(log)
        return files

    async def save_state(self, log: Log) -> None:
        """Save what a log remembers besides its segments, durably. The caller has `Log.tending`."""
        changes = log.state_changes
        files = await self._state(log)
        await self._shelf.disk.run(save_all, self._shelf.disk, files)
        log.state.is_gap_marked |= f"{log.directory}/{states.GAPS_NAME}" in files
        log.saved_changes = max(log.saved_changes, changes)

    async def _move_start(self, log: Log, offset: int) -> None:
        if offset > log.log_start:
            log.state.log_start = offset
            # Followers read what lies below until its segment goes, and are told by which history it came there.
            log.state.epochs.drop_before(log.segments[_kept_from(log)].base)
            log.on_start_moved()
            await self.save_state(log)
        await self._drop_below_start(log)

    async def _drop_below_start(self, log: Log) -> None:
        kept_from = _kept_from(log)
        gone = log.segments[:kept_from]
        del log.segments[:kept_from]
        for segment in gone:
            self._shelf.files.forget(segment.path)
            self._shelf.stats.segments_deleted += 1
            await self._shelf.disk.run(_remove, self._shelf.disk, segment)


def _kept_from(log: Log) -> int:
    """Which segment is the first that does not lie wholly below the log start, or cannot go yet."""
    at = 0
    while at + 1 < len(log.segments) and log.segments[at + 1].base <= log.log_start and log.segments[at].sealed:
        at += 1
    return at


def _rewritten(disk: Disk, log: Log, step: Callable[[], Recovered], now_ms: int) -> tuple[Recovered, bool]:
    try:
        return step(), True
    except OSError as error:
        if not is_shortage(error):
            raise
        return recover(disk, log.directory, log.options, now_ms), False  # as after a crash in the middle of it


def _adopt(
    disk: Disk, log: Log, copy: IncomingSegment, contents: dict[str, bytes], after: LogState, now_ms: int
) -> tuple[Recovered, bool]:
    try:
        decide(disk, copy, contents)
    except OSError as error:
        if not is_shortage(error):
            raise
        return recover(disk, log.directory, log.options, now_ms), False
    finish(disk, log.directory, disk.list_dir(log.directory))
    save_all(disk, {f"{log.directory}/{states.FILE_NAME}": after.encode()})
    return recover(disk, log.directory, log.options, now_ms), True


def _longest_ms(options: LogOptions) -> int:
    """How long a segment may be written; only one that is not any more can be compacted."""
    return min(options.segment_ms, options.max_compaction_lag_ms) if options.compact else options.segment_ms


def _expired(segment: Segment, retention_ms: int, now_ms: int) -> bool:
    """By time. A segment without any timestamp never expires: nothing goes because knowledge about it is missing.

    One that compaction has emptied has nothing to keep.
    """
    if segment.sealed and segment.size == 0:
        return retention_ms >= 0
    return retention_ms >= 0 and segment.max_timestamp >= 0 and now_ms - segment.max_timestamp > retention_ms


def past_retention(log: Log, now_ms: int) -> Iterator[tuple[Segment, Segment]]:
    """Segments that go by age or size unless somebody needs them, oldest first, each with the one behind it."""
    options = log.options
    excess = log.size_bytes - options.retention_bytes if options.retention_bytes >= 0 else -1
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        too_much = excess - segment.size >= 0
        if not (too_much or _expired(segment, options.retention_ms, now_ms)) or not segment.sealed:
            return
        excess -= segment.size
        yield segment, following


def held_back_bytes(log: Log, floor: int, now_ms: int) -> int:
    """Of segments that would go by age or size, and stay for who needs an offset as low as `floor`."""
    return sum(segment.size for segment, following in past_retention(log, now_ms) if following.base > floor)


def _is_droppable(log: Log, now_ms: int) -> bool:
    """Whether the segment that is written has expired by time and nobody needs any of it: then it is worth a roll."""
    active = log.active
    return active.size > 0 and _expired(active, log.options.retention_ms, now_ms) and least_floor(log) >= log.end_offset


def least_floor(log: Log) -> int:
    """The lowest offset that must stay; the end if nobody needs anything."""
    held = [offset for floor in log.floors if (offset := floor()) is not None]
    return min(held, default=log.end_offset)


def _seal_blocking(disk: Disk, segment: Segment, state: dict[str, bytes]) -> None:
    card = segment.card
    assert card is not None and segment.file is not None
    segment.file.truncate(card.size)  # bytes of a failed append may lie behind the end
    disk.sync_files([segment.file])
    save_all(disk, {segment.index_path: card.encode(), **state})
    if disk.exists(segment.checkpoint_path):
        disk.unlink(segment.checkpoint_path)


def _remove(disk: Disk, segment: Segment) -> None:
    for path in (segment.index_path, segment.checkpoint_path, segment.path):
        if disk.exists(path):
            disk.unlink(path)
