"""One partition's log: append at once, roll, commit. One writer, the event loop.

Nothing here awaits between a check and the change it guards. `append` writes straight from the network buffer, so it
must finish before the caller's first await. Whatever may wait for the device is in `recovery` and `upkeep`. Reading is
in `reading`; what a follower appends, in `copied`.

Offsets, oldest first:  log_start <= durable_end <= end_offset
`durable_end` is what a sync round has covered; `visible_end` is how far this replica keeps what its settings promise:
`durable_end` with flush=commit, `end_offset` otherwise. `committed_end` is the high watermark, as the partition tells:
with one replica that is `visible_end`, with several it is what all that are in sync have.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import Code, PenstockError
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk, File, is_shortage
from penstock.records.batch import Header, decode_header, patch_place
from penstock.storage.log.card import Card
from penstock.storage.log.commit import CommitJob, Committer
from penstock.storage.log.options import Flush, LogOptions
from penstock.storage.log.producers import SentBatch
from penstock.storage.log.segment import FilePool, Segment
from penstock.storage.log.state import LogState
from penstock.storage.log.transactions import EndedTransaction, Transactions
from penstock.tasks import Tasks

_LARGEST_SEGMENT = (1 << 32) - (1 << 28)  # positions are 32 bits in the index
_LARGEST_SPAN = (1 << 32) - 1  # and so are offsets; one batch may claim 2**31 of them
_ROLL_SPAN = 1 << 30
NEXT_NAME = "next.log"

Floor = Callable[[], int | None]
"""The lowest offset that somebody still needs, or None if that is nothing. See `Log.floors`."""


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    timestamp: int
    """The broker's time if it stamped the batch, else -1."""


@dataclass(slots=True)
class Shelf:
    """What all logs of a data directory share."""

    disk: Disk
    clock: Clock
    stats: Stats
    files: FilePool
    committer: Committer
    tasks: Tasks
    fail: Callable[[BaseException], None]


class Log:
    """See the module's text. Made of what `recovery.recover` found; there is always an active segment."""

    __slots__ = (
        "_flush_timer",
        "_roll_task",
        "_rolling",
        "_unsynced",
        "closed",
        "commit_wanted",
        "committed_end",
        "damage",
        "directory",
        "durable_end",
        "durable_position",
        "end_offset",
        "ending",
        "first_unstable",
        "floors",
        "follows",
        "last_append_ms",
        "name",
        "on_appended",
        "on_rolled",
        "on_start_moved",
        "on_visible",
        "options",
        "out_of_room",
        "saved_changes",
        "segments",
        "shelf",
        "state",
        "state_changes",
        "tending",
        "unsealed",
        "upkeep_error",
    )

    def __init__(
        self,
        name: str,
        directory: str,
        options: LogOptions,
        shelf: Shelf,
        state: LogState,
        segments: list[Segment],
    ) -> None:
        self.name = name
        self.directory = directory
        self.options = options
        self.state = state
        self.segments = segments
        self.end_offset = segments[-1].next_offset
        self.durable_end = self.end_offset
        self.durable_position = segments[-1].size
        self.unsealed: list[Segment] = [s for s in segments[:-1] if not s.sealed]
        self.on_visible: Callable[[], None] = _nothing
        self.on_start_moved: Callable[[], None] = _nothing
        self.on_appended: Callable[[], None] = _nothing
        """Called after every append, long before it is durable: a follower may copy it now."""
        self.committed_end = self.durable_end
        self.on_rolled: Callable[[Log], None] = _nobody
        """Not bound to the log, which would be in a cycle then, and keep its files open long after it is closed."""
        self.commit_wanted = False
        self.closed = False
        self.out_of_room = False
        """Whether an append found no room; whoever acts on it says that it has."""
        self.upkeep_error: OSError | None = None
        """Why upkeep could not be done when it was last tried."""
        self.damage: PenstockError | None = None
        """Why some of it is refused when read, once that was found out."""
        self.state_changes = int(state.unsaved)
        """How often what a copy brought made it necessary to save the state; up to `saved_changes` that was done."""
        self.saved_changes = 0
        self.follows = False
        """Another broker leads: it decides what is too old to be kept."""
        self.floors: list[Floor] = []
        """Asked by retention, on the event loop, in the very step that moves the log start.

        Neither age nor size ever moves the log start above the least of them, so what lies there stays, and what lies
        behind it: but for what all who have said so can tell that they do not need (`needs.py`, `thinning.py`). An
        operator who deletes records may go above, a follower goes where its leader is, and compaction takes no notice.
        A holder that does not know yet what it needs says 0, not None. Whoever opens the log adds them before it awaits
        anything, each time anew; like `on_rolled`, none may keep hold of a log that is closed.
        """
        self.tending = asyncio.Lock()
        self.last_append_ms = 0
        self.shelf = shelf
        self._rolling = False
        self._roll_task: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._unsynced: list[Segment] = []
        self.ending: deque[EndedTransaction] = deque()
        """Transactions whose markers are written and not visible yet."""
        self.first_unstable = segments[-1].first_open
        """The first offset of a transaction that is open, or whose end is not visible yet; -1 if there is none."""

    @property
    def log_start(self) -> int:
        return self.state.log_start

    @property
    def first_offset(self) -> int:
        """Of what is there; the log start may lie inside the first segment, even inside a batch."""
        return self.segments[0].base

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def visible_end(self) -> int:
        return self.durable_end if self.options.flush is Flush.COMMIT else self.end_offset

    @property
    def settled_end(self) -> int:
        """Below it everything can be seen, is decided, and will never be taken back."""
        return self.committed_end if self.first_unstable < 0 else min(self.first_unstable, self.committed_end)

    def size_from(self, offset: int) -> int:
        """About how many bytes the batches from an offset on have; within a segment all offsets count alike."""
        size = 0
        for segment, end in zip(
            self.segments, [*(each.base for each in self.segments[1:]), self.end_offset], strict=True
        ):
            if end > offset:
                span = end - segment.base
                size += segment.size if offset <= segment.base else segment.size * (end - offset) // span
        return size

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def use_options(self, options: LogOptions) -> None:
        """Go by other settings from now on. What was appended before is synced soon if it has to be from now on.

        An `acks=all` that waits for a sync is answered by what the settings promise when its answer is due.
        """
        self.options = options
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        if options.flush is not Flush.OS:
            self.shelf.committer.request(self)

    # --- writing

    def append(self, batch: memoryview, header: Header, leader_epoch: int, append_time: int = -1) -> Appended:
        """Write a checked batch at the end, or recognise it as one already written.

        The batch is patched in place. Nothing is durable yet: see `visible_end`.

        Raises:
            PenstockError: sequence errors, INVALID_TRANSACTION_STATE; STORAGE_FULL, after which nothing has changed.
        """
        if self.closed:
            raise PenstockError(Code.NOT_AVAILABLE, f"{self.name} is closed")
        producer_id = header.producer_id
        if producer_id >= 0 and header.base_sequence >= 0:
            sent = self.state.producers.check(
                producer_id, header.producer_epoch, header.base_sequence, header.last_sequence
            )
            if sent is not None:
                return Appended(sent.base_offset, sent.last_offset, sent.timestamp)
            if self.first_unstable >= 0 and not header.is_transactional:
                self._check_no_transaction(producer_id)
        base = self.end_offset
        self._begin_write(batch, leader_epoch)
        now_ms = self.write_batch(batch, header, base)
        last = base + header.last_offset_delta
        if producer_id >= 0:
            if header.base_sequence >= 0:
                sent = SentBatch(header.base_sequence, header.last_sequence, base, last, append_time)
                self.state.producers.note(producer_id, header.producer_epoch, sent, now_ms, header.max_timestamp)
            else:
                self.state.producers.note_epoch(producer_id, header.producer_epoch, now_ms)
            if header.is_transactional:
                self.active_transactions.open.setdefault(producer_id, base)
                if self.first_unstable < 0:
                    self.first_unstable = base
        self.note_written(self.segments[-1], len(batch), header.record_count)
        return Appended(base, last, append_time)

    def _check_no_transaction(self, producer_id: int) -> None:
        """Raises PenstockError: no coordinator vouches for a plain batch's epoch, which could keep the marker out."""
        if producer_id in self.active_transactions.open:
            raise PenstockError(
                Code.INVALID_TRANSACTION_STATE,
                f"producer {producer_id} has a transaction open in {self.name}, and this batch is not part of it",
            )

    @property
    def must_save(self) -> bool:
        """Whether what was copied is not safe yet although it is synced: recovery would cut it off."""
        return self.saved_changes < self.state_changes

    @property
    def active_transactions(self) -> Transactions:
        """Those of the segment that is written: which transactions are open now."""
        card = self.segments[-1].card
        assert card is not None
        return card.transactions

    def append_marker(self, batch: memoryview, leader_epoch: int, coordinator_epoch: int) -> Appended:
        """Write the marker that ends a producer's transaction here, if one is open.

        Raises:
            PenstockError: INVALID_PRODUCER_EPOCH when the producer has a later epoch, COORDINATOR_FENCED when a later
                coordinator has written already; STORAGE_FULL.
        """
        if self.closed:
            raise PenstockError(Code.NOT_AVAILABLE, f"{self.name} is closed")
        header = decode_header(batch)
        self.state.producers.check_marker(header.producer_id, header.producer_epoch, coordinator_epoch)
        base = self.end_offset
        self._begin_write(batch, leader_epoch)
        now_ms = self.write_batch(batch, header, base)
        ended = self.active_transactions.note(decode_header(batch), batch)
        if ended is not None:
            self.ending.append(ended)
        self.state.producers.note_epoch(header.producer_id, header.producer_epoch, now_ms, coordinator_epoch)
        self.note_written(self.segments[-1], len(batch), header.record_count)
        return Appended(base, base + header.last_offset_delta, -1)

    def settle_transactions(self, visible_end: int) -> None:
        """Markers below `visible_end` can be seen: what they decided may be read."""
        while self.ending and self.ending[0].last_offset < visible_end:
            self.ending.popleft()
        undecided = [ended.first_offset for ended in self.ending]
        if self.active_transactions.open:
            undecided.append(self.active_transactions.first_open)
        self.first_unstable = min(undecided, default=-1)

    def _begin_write(self, batch: memoryview, leader_epoch: int) -> None:
        """Give a new batch its place."""
        assert leader_epoch == self.state.epochs.latest
        patch_place(batch, self.end_offset, leader_epoch)

    def write_batch(self, batch: memoryview, header: Header, base: int) -> int:
        """Put a batch at the end; returns the time. Raises PenstockError; nothing has changed then."""
        segment = self.segments[-1]
        card = segment.card
        if segment.size > _LARGEST_SEGMENT or base - segment.base > _LARGEST_SPAN:
            self.want_roll()
            raise PenstockError(Code.NOT_AVAILABLE, f"{self.name} waits for a new segment file")
        assert card is not None and segment.file is not None
        clock = self.shelf.clock
        started = clock.monotonic()
        try:
            segment.file.write_at(batch, segment.size)
        except OSError as error:
            raise self._write_failed(error) from error
        self.shelf.stats.append_latency.observe(clock.monotonic() - started)
        next_offset = base + header.last_offset_delta + 1
        card.add(base, next_offset, batch, header.max_timestamp, self.options.index_interval_bytes)
        segment.size = card.size
        segment.next_offset = self.end_offset = next_offset
        segment.max_timestamp = card.max_timestamp
        now_ms = clock.now_ms()
        self.last_append_ms = now_ms
        if not segment.created_ms:
            segment.created_ms = now_ms
        return now_ms

    def note_written(self, segment: Segment, size: int, count: int) -> None:
        """What a written batch sets off once all that is known of it is noted: a roll, a sync round, whoever waits."""
        stats = self.shelf.stats
        stats.appended_batches += 1
        stats.appended_records += count
        stats.appended_bytes += size
        if not self._unsynced or self._unsynced[-1] is not segment:
            self._unsynced.append(segment)
        if segment.size >= self.options.segment_bytes or self.end_offset - segment.base >= _ROLL_SPAN:
            self.want_roll()
        if self.options.flush is Flush.COMMIT:
            self.shelf.committer.request(self)
        else:
            if self.options.flush is Flush.INTERVAL and self._flush_timer is None:
                loop = asyncio.get_running_loop()
                self._flush_timer = loop.call_later(self.options.flush_ms / 1000, self._flush_due)
            self.on_visible()
        self.on_appended()

    def _flush_due(self) -> None:
        self._flush_timer = None
        self.shelf.committer.request(self)

    def _write_failed(self, error: OSError) -> PenstockError:
        if is_shortage(error):
            self.out_of_room = True
            # Part of the batch may be on disk past the end; the next append overwrites it, recovery would cut it.
            return PenstockError(
                Code.STORAGE_FULL,
                f"no space left to append to {self.name}",
                help="free space or lower retention; writing goes on by itself when there is room",
            )
        self.shelf.fail(error)
        return PenstockError(Code.STORAGE_FAILED, f"cannot write {self.name}: {error}")

    # --- rolling

    def want_roll(self) -> None:
        """Begin a new segment soon; appends go on into the old one until its file is there."""
        if not self._rolling and not self.closed and self.active.size > 0:
            self._rolling = True
            self._roll_task = self.shelf.tasks.spawn(self._roll(), f"roll {self.name}")

    async def rolled(self) -> None:
        """Return when no new segment file is being made."""
        if self._roll_task is not None and not self._roll_task.done():
            await asyncio.wait({self._roll_task})

    async def _roll(self) -> None:
        disk = self.shelf.disk
        try:
            file = await disk.run(_create_empty, disk, f"{self.directory}/{NEXT_NAME}")
        except OSError as error:
            self._rolling = False
            if self.closed:
                return  # the topic is deleted and its directory gone
            if not is_shortage(error):
                raise
            return  # the old segment grows on; upkeep or the next append tries again
        if self.closed:
            return
        old = self.active
        segment = Segment(self.directory, self.end_offset)
        segment.card = Card(self.end_offset, self.active_transactions.open)
        segment.file = file
        segment.named = False
        self.segments.append(segment)
        self.unsealed.append(old)
        self._unsynced.append(segment)
        self.shelf.stats.segments_rolled += 1
        # The round gives the file its name; `_rolling` stays set until then, so there is one unnamed file at most.
        self.shelf.committer.request(self)

    # --- committing

    def begin_commit(self) -> CommitJob:
        renames = []
        if not self.active.named:
            renames.append((f"{self.directory}/{NEXT_NAME}", self.active.path))
        files = [segment.file for segment in self._unsynced if segment.file is not None]
        self._unsynced = []
        return CommitJob(self.end_offset, self.active.size, files, renames, self.directory)

    def finish_commit(self, job: CommitJob) -> None:
        if job.renames:
            self._rolling = False
            self.active.named = True
            self.on_rolled(self)
            if self.active.size >= self.options.segment_bytes:
                self.want_roll()
        if job.end_offset > self.durable_end:
            self.durable_end = job.end_offset
        self.durable_position = job.position
        if self.options.flush is Flush.COMMIT:
            self.on_visible()


def _create_empty(disk: Disk, path: str) -> File:
    file = disk.open(path, create=True)
    file.truncate(0)
    return file


def _nothing() -> None:
    return None


def _nobody(_: object) -> None:
    return None
