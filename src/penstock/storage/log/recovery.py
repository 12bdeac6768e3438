"""From a partition's directory to a log that can be trusted.

What a crash may leave, and what is done about it:
  * bytes behind the last good batch of the last segment: cut off, kept aside as `{base}.{position}.cut`;
  * `next.log`, a new segment not yet named: named if it continues the log, else set aside;
  * a rolled segment without its card: checked batch by batch and given one; if it is torn, it was never durable, so
    it is cut there and what follows is set aside;
  * segments below the saved log start: retention had decided on them, so it is finished;
  * `swap`: compaction had decided which segments replace which, so it is finished; without it, what a pass wrote goes;
  * `{base}.copied.index`: a copy of a leader's segment was complete, so it is put into place; without it, copies go.
What no crash leaves is damage: a sealed segment or a checkpointed prefix that does not match, a missing file. Damaged
ranges are refused when read and named in the log; nothing is deleted or cut there.

Only what lies behind the last checkpoint is read: the tail, not the log. It is read from the device, not from memory:
a broker stops when a sync fails, and the kernel goes on showing what it could not write.
"""

from dataclasses import dataclass, field

from crc32c import crc32c

from penstock.errors import Code, PenstockError
from penstock.ports.disk import Disk, File
from penstock.records.batch import HEADER_BYTES, Header, decode_header
from penstock.storage.checked_file import DamagedFile, save_all
from penstock.storage.compaction.swap import drop_leftovers, finish_swap
from penstock.storage.log import card as cards
from penstock.storage.log.adoption import finish as finish_adoption
from penstock.storage.log.card import BLOCK_BYTES, SUMMARY_BYTES, Card, Summary
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.log import NEXT_NAME
from penstock.storage.log.options import LogOptions
from penstock.storage.log.producers import Producers
from penstock.storage.log.scan import headers, scan
from penstock.storage.log.segment import CHECKPOINT_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, Segment
from penstock.storage.log.state import FILE_NAME as STATE_NAME
from penstock.storage.log.state import LogState, gaps_mark, is_gap_marked, load_state

_KEPT_CUT_BYTES = 64 << 20
_SHORTENED = "a segment file was removed, shortened or damaged: restore it from a replica or backup"
_OLDER = (
    "the directory is an old copy, or the newest of it was removed or damaged: put the newest back; or go on without "
    "what is missing by 'penstock log repair', which leaves its offsets empty, or by 'penstock log accept', after "
    "which they are used again"
)


@dataclass(slots=True)
class Recovered:
    """A log's parts, and what had to be done to get them."""

    segments: list[Segment]
    state: LogState
    scanned_bytes: int = 0
    cut_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    """What an operator should read."""
    damage: str = ""
    """What no crash leaves, if there is such a thing: offsets that are missing, or refused when read."""


class _Recovery:
    def __init__(self, disk: Disk, directory: str, options: LogOptions, now_ms: int) -> None:
        self.disk = disk
        self.directory = directory
        self.options = options
        self.now_ms = now_ms
        self.state_known = True
        self.may_have_gaps = options.compact
        """Whether offsets may be missing, as far as is known without the state."""
        self.durable_end = 0
        """Offsets below it were durable once, so no crash explains that one is missing."""
        self.own_end = 0
        """The same, as far as the directory itself tells."""
        self.out = Recovered([], LogState())

    def run(self, expected_end: int | None) -> Recovered:
        self._finish_compaction()
        self._load_state()
        self.own_end = self.durable_end
        self.durable_end = max(self.durable_end, expected_end or 0)
        names = self._tidy_names()
        for at, name in enumerate(names[:-1]):
            following = int(names[at + 1])
            segment = self._open_earlier(name, following)
            self.out.segments.append(segment)
            if segment.next_offset != following:
                if not segment.sealed:
                    self._refuse_loss(segment.next_offset)
                    self._set_aside(names[at + 1 :])
                    break
                self._damaged(
                    f"{segment.path} ends before offset {segment.next_offset}, the next begins at {following}"
                )
        else:
            if names:
                self.out.segments.append(self._open_last(names[-1]))
        if not self.out.segments:
            self.out.segments.append(self._new_segment(self.out.state.log_start))
        self._reopen_last()
        end = self.out.segments[-1].next_offset
        self._refuse_loss(end)
        begin = self.out.segments[0].base
        if self.state_known and begin > self.out.state.log_start:
            self._damaged(f"{self.directory} begins at offset {begin}, but {self.out.state.log_start} was to be kept")
        self.out.state.log_start = max(self.out.state.log_start, begin)
        self._rebuild_producers(end)
        if not self.state_known and self.may_have_gaps:
            self.out.state.gaps_to = self.out.segments[-1].base  # as far as it may have been compacted
        self._sync()
        return self.out

    def _finish_compaction(self) -> None:
        """What was decided is done; what a pass wrote without a decision goes."""
        try:
            finish_swap(self.disk, self.directory)
        except DamagedFile as error:
            raise PenstockError(
                Code.CORRUPT_LOG, str(error), help="restore the partition from a replica or backup; nothing was deleted"
            ) from None
        drop_leftovers(self.disk, self.directory)

    def _load_state(self) -> None:
        try:
            state = load_state(self.disk, self.directory)
        except DamagedFile as error:
            self._note(f"{error}; rebuilt from the batches")
            state = None
        if state is None:
            self.state_known = False
            if not self.out.notes and any(map(_is_segment, self.disk.list_dir(self.directory))):
                self._note(f"{self.directory}/{STATE_NAME} is missing; rebuilt from the batches")
        else:
            self.out.state = state
            self.durable_end = max(state.producers_at, state.log_start)  # saved after what lies below was synced
        try:
            self.out.state.is_gap_marked = is_gap_marked(self.disk, self.directory)
        except DamagedFile as error:
            self._note(f"{error}; written anew")
            save_all(self.disk, gaps_mark(self.directory))
            self.out.state.is_gap_marked = True
        self.may_have_gaps |= self.out.state.is_gap_marked

    def _refuse_loss(self, end: int) -> None:
        """Raise rather than go on with a log that ends before what was durable once."""
        if end < self.durable_end:
            raise PenstockError(
                Code.CORRUPT_LOG,
                f"{self.directory} has good batches up to offset {end} only, but {self.durable_end} were durable",
                help=_OLDER if end >= self.own_end else _SHORTENED,
            )

    def _tidy_names(self) -> list[str]:
        """Segment names in order, after leftovers of an interrupted step are finished or removed."""
        present = self.disk.list_dir(self.directory)
        if finish_adoption(self.disk, self.directory, present):
            present = self.disk.list_dir(self.directory)
        for name in present:
            if name.endswith(".tmp"):
                self.disk.unlink(f"{self.directory}/{name}")
        names = [name.removesuffix(LOG_SUFFIX) for name in present if _is_segment(name)]
        while len(names) > 1 and int(names[1]) <= self.out.state.log_start:
            for suffix in (INDEX_SUFFIX, CHECKPOINT_SUFFIX, LOG_SUFFIX):
                if f"{names[0]}{suffix}" in present:
                    self.disk.unlink(f"{self.directory}/{names[0]}{suffix}")
            names.pop(0)
        if NEXT_NAME in present:
            names += self._adopt_next(names)
        return names

    def _adopt_next(self, names: list[str]) -> list[str]:
        path = f"{self.directory}/{NEXT_NAME}"
        file = self.disk.open(path)
        head = file.read_at(HEADER_BYTES, 0)
        file.close()
        if len(head) == HEADER_BYTES:
            base = decode_header(head).base_offset
            name = f"{base:020d}"
            if base >= 0 and (not names or base > int(names[-1])):
                self.disk.rename(path, f"{self.directory}/{name}{LOG_SUFFIX}")
                return [name]
        self.disk.unlink(path)  # empty, or torn in its first batch: nothing in it was ever durable
        return []

    def _open_earlier(self, name: str, next_base: int) -> Segment:
        """A segment that is not the last: sealed, if its card says so."""
        segment = Segment(self.directory, int(name))
        had_card = self.disk.exists(segment.index_path)
        if had_card:
            try:
                summary = self._summary(segment)
                size = self._size(segment.path)
                if summary.base == segment.base and summary.size == size:
                    return Segment.sealed_from(self.directory, summary)
                self._note(f"{segment.path} has {size} bytes, its card says {summary.size}")
            except DamagedFile as error:
                self._note(f"{error}; rebuilt from the segment")
        return self._rescan(segment, sealed=had_card, next_base=next_base)

    def _rescan(self, segment: Segment, *, sealed: bool, next_base: int) -> Segment:
        card, file, problem = self._scan_from(segment, self._checkpoint(segment), next_base)
        if problem and not sealed:
            if card.next_offset < next_base:
                self._refuse_loss(card.next_offset)
            self._note(f"{segment.path}: {problem} at byte {card.size}; what follows is cut off")
            self._cut(segment, file, card)
        elif problem:
            self._damaged(f"{segment.path}: {problem} at byte {card.size}; offsets from {card.next_offset} are refused")
        segment.take_card(card)
        if sealed or (not problem and card.next_offset == next_base):
            self.disk.sync_files([file])
            _save_card(self.disk, segment, card)
            segment.checkpointed = segment.size
            segment.seal()
        else:
            segment.file = file
        return segment

    def _open_last(self, name: str) -> Segment:
        segment = Segment(self.directory, int(name))
        segment.created_ms = self.now_ms
        prefix = self._checkpoint(segment)
        card, file, problem = self._scan_from(segment, prefix)
        if problem:
            self._refuse_loss(card.next_offset)
            self._note(f"{segment.path}: {problem} at byte {card.size}; what follows is cut off")
            self._cut(segment, file, card)
        segment.take_card(card)
        segment.file = file
        return segment

    def _checkpoint(self, segment: Segment) -> Card | None:
        """The saved card of an unsealed segment, whole blocks unchecked, its last partial block checked now."""
        for path in (segment.checkpoint_path, segment.index_path):
            if not self.disk.exists(path):
                continue
            try:
                card = cards.decode(self._read(path), path)
            except DamagedFile as error:
                self._note(f"{error}; rebuilt from the segment")
                continue
            if card.base != segment.base:
                self._note(f"{path} belongs to another segment; rebuilt")
                continue
            size = self._size(segment.path)
            if card.size > size:
                raise PenstockError(
                    Code.CORRUPT_LOG,
                    f"{segment.path} has {size} bytes, {card.size} were durable",
                    help="the file was shortened: restore it from a replica or backup",
                )
            segment.checkpointed = card.size
            segment.checked = bytearray(len(card.sums))
            if card.size % BLOCK_BYTES:
                self._check_last_block(segment, card)
            return card
        return None

    def _check_last_block(self, segment: Segment, card: Card) -> None:
        block = card.size // BLOCK_BYTES
        file = self.disk.open(segment.path)
        data = file.read_at(card.size - block * BLOCK_BYTES, block * BLOCK_BYTES)
        file.close()
        if crc32c(data) != card.sums[block]:
            raise PenstockError(
                Code.CORRUPT_LOG,
                f"{segment.path} does not match its checksum at byte {block * BLOCK_BYTES}",
                help="restore the file from a replica or backup; nothing was deleted",
            )
        segment.note_checked([block])

    def _scan_from(
        self, segment: Segment, card: Card | None, next_base: int | None = None
    ) -> tuple[Card, File, str | None]:
        card = card if card is not None else Card(segment.base, self._open_before(segment.base))
        file = self.disk.open(segment.path)
        file.forget_cached(card.size)  # a sync may have failed: what counts is what the device has
        size = file.size()
        interval = self.options.index_interval_bytes

        def found(header: Header, batch: memoryview) -> None:
            card.take(header, batch, interval)

        epochs = self.out.state.epochs if self.state_known else None
        self.out.scanned_bytes += size - card.size
        result = scan(file, size, card.size, card.next_offset, epochs, found, self._gaps_to(next_base))
        if next_base is not None and not result.problem and next_base <= self._gaps_to(next_base):
            card.next_offset = next_base  # the last batches may have been compacted away
        return card, file, result.problem

    def _gaps_to(self, next_base: int | None) -> int:
        """Below it a segment may have been compacted; without the state, a segment that is not the last may have."""
        if self.state_known:
            return self.out.state.gaps_to
        return next_base if next_base is not None and self.may_have_gaps else 0

    def _open_before(self, base: int) -> dict[int, int]:
        """The transactions open where the segment at `base` begins."""
        earlier = [segment for segment in self.out.segments if segment.base < base]
        if not earlier or earlier[-1].first_open < 0:
            return {}
        before = earlier[-1]
        if before.card is None:
            try:
                before.card = before.load_card(self.disk)
            except DamagedFile:
                self._rescan(before, sealed=True, next_base=base)
        return before.open_transactions

    def _cut(self, segment: Segment, file: File, card: Card) -> None:
        """Take off everything behind the last good batch, keeping a copy beside it."""
        size = file.size()
        tail = file.read_at(min(size - card.size, _KEPT_CUT_BYTES), card.size)
        if tail.strip(b"\0"):
            kept = self.disk.open(f"{self.directory}/{segment.name}.{card.size}.cut", create=True)
            kept.truncate(0)
            kept.write_at(tail, 0)
            self.disk.sync_files([kept])
            kept.close()
        self.out.cut_bytes += size - card.size
        file.truncate(card.size)

    def _set_aside(self, names: list[str]) -> None:
        """Segments behind a cut: not part of the log any more, but not deleted either."""
        for name in names:
            path = f"{self.directory}/{name}{LOG_SUFFIX}"
            self._note(f"{path} does not continue the log; set aside")
            # Cards first: one left behind would be taken for that of a later segment with the same base.
            for suffix in (INDEX_SUFFIX, CHECKPOINT_SUFFIX):
                if self.disk.exists(f"{self.directory}/{name}{suffix}"):
                    self.disk.unlink(f"{self.directory}/{name}{suffix}")
            self.disk.rename(path, f"{self.directory}/{name}.0.cut")

    def _reopen_last(self) -> None:
        """The last segment is the one that is written: if it was sealed, it goes on being written."""
        last = self.out.segments[-1]
        last.sealed = False
        if last.card is None:
            last.card = last.load_card(self.disk)
        if last.file is None:
            last.file = self.disk.open(last.path)
        if self.disk.exists(last.index_path):  # it will not cover the segment for long
            self.disk.rename(last.index_path, last.checkpoint_path)

    def _new_segment(self, base: int) -> Segment:
        segment = Segment(self.directory, base)
        segment.card = Card(base)
        segment.file = self.disk.open(segment.path, create=True)
        segment.created_ms = self.now_ms
        return segment

    def _rebuild_producers(self, end: int) -> None:
        """Epochs and producers from the batches the saved state does not cover; all of them if it is lost."""
        state = self.out.state
        state.epochs.cut_to(end + 1)
        if not self.state_known:
            state.epochs = LeaderEpochs()
            state.producers, state.producers_at = Producers(), state.log_start
        start_offset = state.producers_at
        for segment in self.out.segments:
            if segment.next_offset <= start_offset:
                continue
            file = segment.file or self.disk.open(segment.path)
            position = segment.card.position_before(start_offset) if segment.card is not None else 0
            for header, at in headers(file, segment.size, position):
                if header.base_offset >= start_offset:
                    self._note_batch(header, file, at)
        state.producers_at = end

    def _note_batch(self, header: Header, file: File, position: int) -> None:
        state = self.out.state
        if state.epochs.note(header.leader_epoch, header.base_offset):
            state.unsaved = True  # a card was saved after it began, and the state was not
        batch = file.read_at(header.size, position) if header.is_control else b""
        state.producers.note_batch(header, batch, self.now_ms)

    def _sync(self) -> None:
        files = [segment.file for segment in self.out.segments if segment.file is not None]
        self.disk.sync_files(files)
        self.disk.sync_dir(self.directory)

    def _summary(self, segment: Segment) -> Summary:
        file = self.disk.open(segment.index_path)
        try:
            return Summary(file.read_at(SUMMARY_BYTES, 0), segment.index_path)
        finally:
            file.close()

    def _read(self, path: str) -> bytes:
        file = self.disk.open(path)
        try:
            return file.read_at(file.size(), 0)
        finally:
            file.close()

    def _size(self, path: str) -> int:
        file = self.disk.open(path)
        try:
            return file.size()
        finally:
            file.close()

    def _note(self, text: str) -> None:
        self.out.notes.append(text)

    def _damaged(self, text: str) -> None:
        self._note(text)
        self.out.damage = self.out.damage or text


def recover(disk: Disk, directory: str, options: LogOptions, now_ms: int, expected_end: int | None = None) -> Recovered:
    """Read a partition's directory and make it fit to be used. Blocking.

    Args:
        expected_end: up to where the log is known to have been durable, by others than its own files.

    Raises:
        PenstockError: CORRUPT_LOG when durable data is missing; nothing durable has been changed then.
    """
    return _Recovery(disk, directory, options, now_ms).run(expected_end)


def _is_segment(name: str) -> bool:
    return name.endswith(LOG_SUFFIX) and len(name) == 20 + len(LOG_SUFFIX) and name[:20].isdigit()


def _save_card(disk: Disk, segment: Segment, card: Card) -> None:
    save_all(disk, {segment.index_path: card.encode()})
