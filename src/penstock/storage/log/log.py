"""One partition's log: append at once, read as file slices, roll, commit. One writer, the event loop.

Nothing here awaits between a check and the change it guards. `append` writes straight from the network buffer, so it
must finish before the caller's first await. Whatever may wait for the device is in `recovery` and `upkeep`, or behind
`warm`.

Offsets, oldest first:  log_start <= durable_end <= end_offset
`durable_end` is what a sync round has covered; `visible_end` is how far this replica keeps what its settings promise:
`durable_end` with flush=commit, `end_offset` otherwise. `committed_end` is the high watermark, as the partition tells:
with one replica that is `visible_end`, with several it is what all that are in sync have.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import Code, PenstockError
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk, File, is_shortage
from penstock.records.batch import HEADER_BYTES, MAGIC, Header, crc_matches, decode_header, patch_place
from penstock.storage.log.card import Card
from penstock.storage.log.commit import CommitJob, Committer
from penstock.storage.log.loading import prepare
from penstock.storage.log.options import Flush, LogOptions
from penstock.storage.log.producers import SentBatch
from penstock.storage.log.segment import FilePool, FileSlice, NotReady, Segment
from penstock.storage.log.state import LogState
from penstock.storage.log.transactions import AbortedTransaction, EndedTransaction, Transactions
from penstock.tasks import Tasks

_RECENT_BYTES = 64 << 20  # this far behind the end of the active segment, pages are taken to be in memory
_ANY_EPOCH = (1 << 31) - 1
_LARGEST_SEGMENT = (1 << 32) - (1 << 28)  # positions are 32 bits in the index
_LARGEST_SPAN = (1 << 32) - 1  # and so are offsets; one batch may claim 2**31 of them
_ROLL_SPAN = 1 << 30
READY_BYTES = 1 << 20
"""What one `warm` makes ready at least, if asked for that much."""
NEXT_NAME = "next.log"


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
        "_ending",
        "_flush_timer",
        "_roll_task",
        "_rolling",
        "_shelf",
        "_unsynced",
        "closed",
        "commit_wanted",
        "committed_end",
        "damage",
        "directory",
        "durable_end",
        "durable_position",
        "end_offset",
        "first_unstable",
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
        self.tending = asyncio.Lock()
        self.last_append_ms = 0
        self._shelf = shelf
        self._rolling = False
        self._roll_task: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._unsynced: list[Segment] = []
        self._ending: deque[EndedTransaction] = deque()
        self.first_unstable = segments[-1].first_open
        """The first offset of a transaction that is open, or whose end is not visible yet; -1 if there is none."""

    @property
    def shelf(self) -> Shelf:
        return self._shelf

    @property
    def log_start(self) -> int:
        return self.state.log_start

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
            self._shelf.committer.request(self)

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
        now_ms = self._write(batch, header, base)
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
        self._appended(self.segments[-1], len(batch), header.record_count)
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

    def append_copied(self, data: memoryview, newest_epoch: int = _ANY_EPOCH) -> None:
        """Write batches of the leader's log at the end, offsets and epochs as they are there.

        What is known of epochs, producers and transactions goes on as it did where they were first appended. If an
        epoch began, or offsets are missing because the leader has compacted them away, the state must be saved before
        what was written counts: `must_save`.

        Args:
            newest_epoch: that of the leader; no batch of its can be of a later one.

        Raises:
            PenstockError: CORRUPT_BATCH, with everything before the bad batch appended; STORAGE_FULL.
        """
        if self.closed:
            raise PenstockError(Code.NOT_AVAILABLE, f"{self.name} is closed")
        position, begun = 0, False
        while position < len(data):
            header, batch = self._copied_batch(data, position, begun, newest_epoch)
            position += len(batch)
            if header.last_offset < self.end_offset:
                continue  # the leader sends whole batches, and this one is here
            begun = True
            if header.base_offset > self.end_offset or header.record_count < 1:
                self.state.gaps_to = header.last_offset + 1
                self.state_changes += 1
            if self.state.epochs.note(header.leader_epoch, header.base_offset):
                self.state_changes += 1
            now_ms = self._write(batch, header, header.base_offset)
            self._note_copied(header, batch, now_ms)
            self._appended(self.segments[-1], len(batch), header.record_count)

    def _copied_batch(
        self, data: memoryview, position: int, begun: bool, newest_epoch: int
    ) -> tuple[Header, memoryview]:
        """The batch at a position; `begun` says that one before it was new, so that this one must be."""
        why = "is cut short"
        if len(data) - position >= HEADER_BYTES:
            header = decode_header(data, position)
            batch = data[position : position + header.size]
            overlaps = header.base_offset < self.end_offset <= header.last_offset
            again = begun and header.last_offset < self.end_offset
            if header.magic != MAGIC or header.base_offset < 0 or again:
                why = f"of version {header.magic} with offset {header.base_offset} follows one that ends at "
                why += f"{self.end_offset - 1}"
            elif header.size < HEADER_BYTES or len(batch) < header.size:
                why = f"has {header.size} bytes, {len(batch)} of them are there"
            elif overlaps or header.last_offset < header.base_offset:
                why = (
                    f"has offsets {header.base_offset} to {header.last_offset}; this replica ends at {self.end_offset}"
                )
            elif header.last_offset >= self.end_offset and header.leader_epoch < self.state.epochs.latest:
                why = f"is of epoch {header.leader_epoch}, older than {self.state.epochs.latest} before it"
            elif header.leader_epoch > newest_epoch:
                why = f"is of epoch {header.leader_epoch}, later than its leader's, {newest_epoch}"
            elif not crc_matches(batch, header):
                why = "does not match its CRC-32C"
            else:
                return header, batch
        raise PenstockError(Code.CORRUPT_BATCH, f"{self.name}: a batch from the leader {why}")

    def _note_copied(self, header: Header, batch: memoryview, now_ms: int) -> None:
        self.state.producers.note_batch(header, batch, now_ms)
        if header.is_transactional:
            ended = self.active_transactions.note(header, batch)
            if ended is not None:
                self._ending.append(ended)
            elif self.first_unstable < 0 and not header.is_control:
                self.first_unstable = header.base_offset

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
        now_ms = self._write(batch, header, base)
        ended = self.active_transactions.note(decode_header(batch), batch)
        if ended is not None:
            self._ending.append(ended)
        self.state.producers.note_epoch(header.producer_id, header.producer_epoch, now_ms, coordinator_epoch)
        self._appended(self.segments[-1], len(batch), header.record_count)
        return Appended(base, base + header.last_offset_delta, -1)

    def settle_transactions(self, visible_end: int) -> None:
        """Markers below `visible_end` can be seen: what they decided may be read."""
        while self._ending and self._ending[0].last_offset < visible_end:
            self._ending.popleft()
        undecided = [ended.first_offset for ended in self._ending]
        if self.active_transactions.open:
            undecided.append(self.active_transactions.first_open)
        self.first_unstable = min(undecided, default=-1)

    def _begin_write(self, batch: memoryview, leader_epoch: int) -> None:
        """Give a new batch its place."""
        assert leader_epoch == self.state.epochs.latest
        patch_place(batch, self.end_offset, leader_epoch)

    def _write(self, batch: memoryview, header: Header, base: int) -> int:
        """Put a batch at the end; returns the time. Raises PenstockError; nothing has changed then."""
        segment = self.segments[-1]
        card = segment.card
        if segment.size > _LARGEST_SEGMENT or base - segment.base > _LARGEST_SPAN:
            self.want_roll()
            raise PenstockError(Code.NOT_AVAILABLE, f"{self.name} waits for a new segment file")
        assert card is not None and segment.file is not None
        clock = self._shelf.clock
        started = clock.monotonic()
        try:
            segment.file.write_at(batch, segment.size)
        except OSError as error:
            raise self._write_failed(error) from error
        self._shelf.stats.append_latency.observe(clock.monotonic() - started)
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

    def _appended(self, segment: Segment, size: int, count: int) -> None:
        stats = self._shelf.stats
        stats.appended_batches += 1
        stats.appended_records += count
        stats.appended_bytes += size
        if not self._unsynced or self._unsynced[-1] is not segment:
            self._unsynced.append(segment)
        if segment.size >= self.options.segment_bytes or self.end_offset - segment.base >= _ROLL_SPAN:
            self.want_roll()
        if self.options.flush is Flush.COMMIT:
            self._shelf.committer.request(self)
        else:
            if self.options.flush is Flush.INTERVAL and self._flush_timer is None:
                loop = asyncio.get_running_loop()
                self._flush_timer = loop.call_later(self.options.flush_ms / 1000, self._flush_due)
            self.on_visible()
        self.on_appended()

    def _flush_due(self) -> None:
        self._flush_timer = None
        self._shelf.committer.request(self)

    def _write_failed(self, error: OSError) -> PenstockError:
        if is_shortage(error):
            self.out_of_room = True
            # Part of the batch may be on disk past the end; the next append overwrites it, recovery would cut it.
            return PenstockError(
                Code.STORAGE_FULL,
                f"no space left to append to {self.name}",
                help="free space or lower retention; writing goes on by itself when there is room",
            )
        self._shelf.fail(error)
        return PenstockError(Code.STORAGE_FAILED, f"cannot write {self.name}: {error}")

    # --- rolling

    def want_roll(self) -> None:
        """Begin a new segment soon; appends go on into the old one until its file is there."""
        if not self._rolling and not self.closed and self.active.size > 0:
            self._rolling = True
            self._roll_task = self._shelf.tasks.spawn(self._roll(), f"roll {self.name}")

    async def rolled(self) -> None:
        """Return when no new segment file is being made."""
        if self._roll_task is not None and not self._roll_task.done():
            await asyncio.wait({self._roll_task})

    async def _roll(self) -> None:
        disk = self._shelf.disk
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
        self._shelf.stats.segments_rolled += 1
        # The round gives the file its name; `_rolling` stays set until then, so there is one unnamed file at most.
        self._shelf.committer.request(self)

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

    # --- reading

    @property
    def first_offset(self) -> int:
        """Of what is there; the log start may lie inside the first segment, even inside a batch."""
        return self.segments[0].base

    def read(
        self,
        offset: int,
        limit: int,
        max_bytes: int,
        at_least_one: bool,
        warmed: bool = False,
        *,
        everything: bool = False,
    ) -> FileSlice | None:
        """Whole batches from the one that holds `offset` up to `limit`, as a slice of a file.

        Returns None when there is nothing below `limit`, or when the first batch is larger than `max_bytes` and
        `at_least_one` is not set. `warmed` says that `warm` was called for this read: pages the kernel dropped
        again, or will not tell about, are then no reason to wait once more. With `everything` also what lies below the
        log start and has not been removed yet, as the beginning of a batch that holds it.

        Raises:
            NotReady: the disk is needed first; `await warm(...)` and call again.
            PenstockError: OFFSET_OUT_OF_RANGE, CORRUPT_LOG.
        """
        start_offset = self.first_offset if everything else self.state.log_start
        if offset >= limit:
            if offset > self.end_offset or offset < start_offset:
                raise self._out_of_range(offset)
            return None
        segment = self.segment_of(offset, start_offset)
        while True:
            card = segment.card
            file = segment.file if segment.file is not None else self._shelf.files.peek(segment.path)
            if card is None or file is None:
                raise NotReady
            start = self._position_of(segment, card, file, offset, warmed)
            if start < segment.size or segment is self.segments[-1]:
                break
            offset = segment.next_offset  # what was left of the segment has been compacted away
            if offset >= limit:
                return None
            segment = self.segment_of(offset, start_offset)
        if not warmed and not _is_recent(segment, start) and not segment.is_in_memory(file, start, 1):
            raise NotReady  # the next lines may read the batch's header
        end = self._end_of(segment, card, file, limit, start, max_bytes, at_least_one)
        if end <= start:
            return None
        if not self._is_ready(segment, file, start, end, warmed):
            # `warm` makes the beginning ready; asking for all of a large range again would never end.
            end = self._end_of(segment, card, file, limit, start, min(max_bytes, READY_BYTES), at_least_one)
            if not self._is_ready(segment, file, start, end, warmed):
                raise NotReady
        self._shelf.stats.fetched_bytes += end - start
        return FileSlice(file, start, end - start, segment.base)

    def _is_ready(self, segment: Segment, file: File, start: int, end: int, warmed: bool) -> bool:
        if segment.is_unchecked(start, end - start):
            return False
        return warmed or _is_recent(segment, start) or segment.is_in_memory(file, start, end - start)

    def segment_of(self, offset: int, start_offset: int | None = None) -> Segment:
        """The segment that holds `offset`. Raises OFFSET_OUT_OF_RANGE or, for a hole, CORRUPT_LOG."""
        segment = self.segments[-1]
        if offset < (self.state.log_start if start_offset is None else start_offset):
            raise self._out_of_range(offset)
        if offset < segment.base:
            at = bisect_right(self.segments, offset, key=_base) - 1
            segment = self.segments[max(at, 0)]
        if not segment.base <= offset < segment.next_offset:
            if offset > self.end_offset:
                raise self._out_of_range(offset)
            raise PenstockError(
                Code.CORRUPT_LOG,
                f"{self.name}: offset {offset} is missing, {segment.path} ends at {segment.next_offset - 1}",
                help="restore the missing segment from a replica or backup; nothing was deleted",
            )
        return segment

    def _position_of(self, segment: Segment, card: Card, file: File, offset: int, warmed: bool) -> int:
        position = card.position_before(offset)
        at = bisect_right(card.positions, position) - 1
        if at >= 0 and card.offsets[at] == offset - segment.base:
            return position  # the index names this very batch
        walk = segment.walk_bytes(card, position)
        if segment.is_unchecked(position, walk):
            raise NotReady
        needed = min(walk, READY_BYTES)
        if not warmed and not _is_recent(segment, position) and not segment.is_in_memory(file, position, needed):
            raise NotReady
        return segment.find(file, offset)

    def _end_of(
        self,
        segment: Segment,
        card: Card,
        file: File,
        limit: int,
        start: int,
        max_bytes: int,
        at_least_one: bool,
    ) -> int:
        if limit >= segment.next_offset:
            limit_position = segment.size
        elif limit == self.durable_end and segment is self.segments[-1]:
            limit_position = self.durable_position
        else:
            limit_position = segment.find(file, limit)
        if limit_position - start <= max_bytes:
            return limit_position
        end = card.batch_start_up_to(start + max_bytes)
        if end > start:
            return end
        first = start + segment.batch_size_at(file, start)
        return first if at_least_one or first - start <= max_bytes else start

    def aborted_in(self, offset: int, data: FileSlice, limit: int) -> list[AbortedTransaction]:
        """Aborted transactions with records among those in `data`, which was read at `offset` up to `limit`.

        A transaction's marker may lie in a later segment; the cards are walked until nothing older is open.

        Raises:
            NotReady: a card is needed first.
        """
        at = bisect_right(self.segments, data.base, key=_base) - 1
        card = self.segments[at].card
        if card is None:
            raise NotReady
        end = min(card.offset_at_or_after(data.position + data.size), limit)
        found: list[AbortedTransaction] = []
        for segment in self.segments[at:]:
            if segment.aborted_count:
                if segment.card is None:
                    raise NotReady
                found += segment.card.transactions.overlapping(offset, end)
            if not 0 <= segment.first_open < end:
                break
        found.sort(key=_first_offset)
        return found

    async def warm(self, offset: int, max_bytes: int) -> None:
        """Do off the loop what `read` at `offset` lacked: open, load the card, check blocks, page in.

        Raises:
            PenstockError: CORRUPT_LOG, OFFSET_OUT_OF_RANGE.
        """
        self._shelf.stats.cold_reads += 1
        while True:
            segment = self.segment_of(offset, self.first_offset)  # whoever reads below the log start may
            try:
                card, file, good = await self._shelf.disk.run(prepare, self, segment, offset, max_bytes)
            except FileNotFoundError:
                if offset < max(self.log_start, self.first_offset):
                    raise self._out_of_range(offset) from None  # retention was quicker
                self.damage = segment.damaged(0, "is missing")
                raise self.damage from None
            if segment.card is None:
                segment.card = card
            if segment.file is None:
                self._shelf.files.put(segment.path, file)
            segment.note_checked(good)
            if segment.find(file, offset) < segment.size or segment.next_offset >= self.end_offset:
                return
            offset = segment.next_offset  # nothing is left of the segment from there on

    def _out_of_range(self, offset: int) -> PenstockError:
        return PenstockError(
            Code.OFFSET_OUT_OF_RANGE,
            f"{self.name}: offset {offset} is outside {self.log_start} to {self.end_offset}",
        )


def _create_empty(disk: Disk, path: str) -> File:
    file = disk.open(path, create=True)
    file.truncate(0)
    return file


def _is_recent(segment: Segment, position: int) -> bool:
    return segment.file is not None and not segment.sealed and segment.size - position <= _RECENT_BYTES


def _base(segment: Segment) -> int:
    return segment.base


def _first_offset(aborted: AbortedTransaction) -> int:
    return aborted.first_offset


def _nothing() -> None:
    return None


def _nobody(_: object) -> None:
    return None
