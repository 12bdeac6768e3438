"""Look at one partition's directory without changing it: every byte is read, checked and accounted for.

The rules are those of `recovery`, without its deeds: what lies behind the last card and was never promised may be torn;
all else must match. Below `gaps_to` of the state a log may have been compacted; if the state is lost, the card of a
sealed segment vouches for its gaps, and so does a topic's setting, or the mark beside the state.

Safe beside a running broker: the state is read before the files it speaks of, a segment that vanishes was retention's,
and a look during which the directory changed is taken again when it found anything.
"""

from collections.abc import Callable
from itertools import pairwise

from penstock.ports.disk import Disk, File
from penstock.records.batch import Header
from penstock.records.compression import CompressionError
from penstock.records.record import RecordError, iterate_batch
from penstock.storage import checked_file
from penstock.storage.checked_file import DamagedFile
from penstock.storage.compaction.job import CLEANED_INDEX_SUFFIX, CLEANED_SUFFIX
from penstock.storage.compaction.swap import FILE_NAME as SWAP_NAME
from penstock.storage.log import card as cards
from penstock.storage.log.log import NEXT_NAME
from penstock.storage.log.segment import CHECKPOINT_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX
from penstock.storage.log.state import FILE_NAME as STATE_NAME
from penstock.storage.log.state import GAPS_NAME, is_gap_marked, load_state
from penstock.storage.offline.card_check import CardMatch, bytes_of
from penstock.storage.offline.findings import (
    MENDED,
    NEXT_START,
    NOTHING,
    OLDER,
    REPAIR,
    RESTORE,
    Finding,
    Kind,
    Severity,
    Start,
)
from penstock.storage.offline.partition_report import PartitionReport, SegmentReport, survey_of
from penstock.storage.offline.segment_files import SegmentFiles, find_segments, segment_names
from penstock.storage.offline.survey import Stretch, Survey

DAMAGED_MARK = ".damaged-"
"""In the names of bytes that a repair took out."""
OWNER_NAME = "partition.meta"
SNAPSHOT_NAME = "snapshot"
"""A coordinator's, beside its log; only its frame is looked at here."""
_SNAPSHOT_KIND = b"snap"
_NEWEST_ANY = 0xFFFF
_DEEP_LIMIT_BYTES = 1 << 30
_LOOKS = 3


def inspect_partition(
    disk: Disk,
    path: str,
    name: str,
    *,
    expected_end: int | None = None,
    deep: bool = False,
    compacted: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> PartitionReport:
    """Check everything in a partition's directory. Blocking; reads every segment once.

    Args:
        expected_end: up to where the log is known to have been durable, by others than its own files.
        deep: also open every batch and decode every record.
        compacted: the topic is; as the mark `gaps` in the directory, asked when the log's own state is lost.
        advance: told the bytes read, for a progress bar.
    """
    for _ in range(_LOOKS):
        before = _fingerprint(disk, path)
        report = _Inspection(disk, path, name, deep, compacted, advance).run(expected_end)
        if not report.findings or _fingerprint(disk, path) == before:
            break
    return report


class _Inspection:
    def __init__(
        self, disk: Disk, path: str, name: str, deep: bool, compacted: bool, advance: Callable[[int], None]
    ) -> None:
        self.disk = disk
        self.path = path
        self.name = name
        self.deep = deep
        self.advance = advance
        self.report = PartitionReport(name, path, compacted=compacted)
        self.files = SegmentFiles(path, [])

    def run(self, expected_end: int | None) -> PartitionReport:
        report = self.report
        self._look_at_gaps_mark()
        self._load_state()
        state = report.state
        own_end = max(state.producers_at, state.log_start) if state else 0
        report.durable_end = max(expected_end or 0, own_end)
        present = self.disk.list_dir(self.path)
        self._look_at_leftovers(present, segment_names(present))
        self._look_at_swap(present)
        self._look_at_snapshot(present)
        names = self._skip_expired(self.files.names)
        for at, name in enumerate(names):
            following = int(names[at + 1]) if at + 1 < len(names) else None
            segment = SegmentReport(name, f"{self.path}/{name}{LOG_SUFFIX}", int(name), following is None)
            try:
                self._look_at_segment(segment, following)
            except FileNotFoundError:
                continue  # retention took it while we looked; if not, the listing shows it next time
            report.segments.append(segment)
        self._look_at_start(names)
        self._look_at_end(present, own_end)
        self._look_at_state()
        return report

    # --- small files

    def _load_state(self) -> None:
        path = f"{self.path}/{STATE_NAME}"
        try:
            self.report.state = load_state(self.disk, self.path)
        except (DamagedFile, ValueError, KeyError, TypeError, AssertionError) as error:
            what = str(error) if isinstance(error, DamagedFile) else f"{path}: not a log's state ({error})"
            self._damage(
                Kind.STATE,
                path,
                f"{what}. Leader epochs and producers can be rebuilt; a log start inside a segment is forgotten, so "
                f"records deleted there come back{self._gaps_forgotten()}",
                Start.MENDS if isinstance(error, DamagedFile) else Start.REFUSES,
            )

    def _look_at_gaps_mark(self) -> None:
        try:
            self.report.compacted |= is_gap_marked(self.disk, self.path)
        except DamagedFile as error:
            self.report.compacted = True
            what = f"{error}; that it is there says all: batches may be missing"
            self._damage(Kind.GAPS, f"{self.path}/{GAPS_NAME}", what, Start.MENDS)

    def _look_at_state(self) -> None:
        state, end = self.report.state, self.report.end_offset
        if state is None:
            if not any(finding.kind is Kind.STATE for finding in self.report.findings) and self.report.segments:
                path = f"{self.path}/{STATE_NAME}"
                what = f"{path} is missing; it is rebuilt from the batches{self._gaps_forgotten()}"
                self._damage(Kind.STATE, path, what, Start.MENDS)
            return
        entries = state.epochs.entries
        pairs = list(pairwise(entries))
        wrong = []
        if any(later[0] <= earlier[0] or later[1] <= earlier[1] for earlier, later in pairs):
            wrong.append("its leader epochs do not rise")
        if entries and entries[-1][1] > max(end, self.report.durable_end):
            wrong.append(f"leader epoch {entries[-1][0]} begins at {entries[-1][1]}, behind the end of the log")
        if max(state.gaps_to, state.compacted_to) > max(end, self.report.durable_end):
            wrong.append(f"compacted to {state.compacted_to}, gaps to {state.gaps_to}, behind the end of the log")
        for producer_id, _, _, batches, _ in state.producers.dump():
            assert isinstance(batches, list)
            if any(sent[2] > sent[3] or sent[3] >= max(end, state.producers_at) for sent in batches):
                wrong.append(f"producer {producer_id} has batches that the log has not")
        for what in wrong:
            path = f"{self.path}/{STATE_NAME}"
            self._damage(Kind.STATE, path, f"{path}: {what}", Start.IGNORES)

    def _gaps_forgotten(self) -> str:
        if not self.report.compacted:
            return ""
        return (
            ". How far it was compacted is lost: offsets missing below the last segment are taken for compacted "
            "records, and the next pass begins at the start"
        )

    def _look_at_swap(self, present: list[str]) -> None:
        self.files = find_segments(self.disk, self.path, present)
        path = f"{self.path}/{SWAP_NAME}"
        if self.files.problem is not None:
            self._damage(Kind.SWAP, path, self.files.problem, Start.OFFLINE, way_out=RESTORE)
        elif SWAP_NAME in present:
            self.report.is_swapping = True
            self._harmless(path, "compaction has decided which segments replace which, and not finished", Start.MENDS)

    def _look_at_snapshot(self, present: list[str]) -> None:
        path = f"{self.path}/{SNAPSHOT_NAME}"
        if SNAPSHOT_NAME in present:
            try:
                checked_file.load(self.disk, path, _SNAPSHOT_KIND, _NEWEST_ANY)
            except FileNotFoundError:
                return
            except DamagedFile as error:
                what = f"{error}; nothing is lost: the coordinator reads its whole log instead"
                self._damage(Kind.SNAPSHOT, path, what, Start.MENDS)

    def _look_at_leftovers(self, present: list[str], segments: list[str]) -> None:
        for name in present:
            stem, _, suffix = name.rpartition(".")
            path = f"{self.path}/{name}"
            known = (STATE_NAME, GAPS_NAME, OWNER_NAME, SWAP_NAME, SNAPSHOT_NAME)
            if name in known or name.removesuffix(LOG_SUFFIX) in segments:
                continue
            if name.endswith(".tmp"):
                self._harmless(path, "a file not finished when the broker stopped", Start.MENDS)
            elif name == NEXT_NAME:
                self._harmless(path, "a new segment that had no name yet", Start.MENDS)
            elif name.endswith((CLEANED_SUFFIX, CLEANED_INDEX_SUFFIX)):
                if SWAP_NAME not in present:
                    self._harmless(path, "written by a compaction under way, or one that was given up", Start.MENDS)
            elif suffix == "cut" or DAMAGED_MARK in name:
                what = "cut off by a start" if suffix == "cut" else "taken out by a repair"
                self._harmless(path, f"bytes {what}, kept for a person to look at", Start.IGNORES)
            elif f".{suffix}" in (INDEX_SUFFIX, CHECKPOINT_SUFFIX) and len(stem) == 20 and stem.isdigit():
                if stem not in segments:
                    self._damage(
                        Kind.CARD,
                        path,
                        "the card of a segment that is not there; was the segment removed?",
                        Start.IGNORES,
                    )
            else:
                self._harmless(path, "no file of a log", Start.IGNORES)

    def _skip_expired(self, names: list[str]) -> list[str]:
        start = self.report.state.log_start if self.report.state else 0
        while len(names) > 1 and int(names[1]) <= start:
            path = f"{self.path}/{names.pop(0)}{LOG_SUFFIX}"
            self._harmless(path, f"a segment below the log start {start}, on its way out", Start.MENDS)
        return names

    # --- segments

    def _look_at_segment(self, segment: SegmentReport, following: int | None) -> None:
        file = self.disk.open(self.files.log_path(segment.name))
        earlier = self.report.segments
        try:
            self._load_card(segment)  # before the size: both grow under a running broker
            segment.size = file.size()
            segment.gaps_to = self._gaps_to(segment, following)
            survey = survey_of(file, segment, following, self.report.state.epochs if self.report.state else None)
            segment.next_offset = segment.base
            match = CardMatch(segment.card, earlier[-1].open_transactions if earlier else None)
            for stretch in survey.stretches():
                self._take(segment, survey, stretch, match, file)
            segment.bad_blocks = match.finish(segment.size)
        finally:
            file.close()
        if following is not None:
            self._reach_end(segment, following)
        self._judge(segment, following)
        self._judge_card(segment, match)
        card = segment.card if segment.is_card_whole else None
        segment.open_transactions = (card.transactions if card is not None else match.transactions).open

    def _gaps_to(self, segment: SegmentReport, following: int | None) -> int:
        if self.report.state is not None:
            return self.report.state.gaps_to
        vouched = segment.sealed and segment.card is not None
        return following if following is not None and (vouched or self.report.compacted) else 0

    def _reach_end(self, segment: SegmentReport, following: int) -> None:
        """The last batches of a segment may have been compacted away; then its card knows where it ends."""
        end = min(following, segment.gaps_to)
        if segment.card is not None and segment.sealed:
            end = min(end, segment.card.next_offset) if segment.card.size == segment.size else 0
        elif segment.gaps_to < following:
            end = 0
        if segment.next_offset < end:
            segment.next_offset, segment.has_gaps = end, True

    def _take(self, segment: SegmentReport, survey: Survey, stretch: Stretch, match: CardMatch, file: File) -> None:
        match.take(stretch, bytes_of(file, survey, stretch))
        self.advance(stretch.size)
        if not stretch.is_sound:
            segment.problems.append(stretch)
        header = stretch.header
        if header is None:
            return
        segment.has_gaps |= stretch.first_offset > segment.next_offset or header.record_count == 0
        segment.next_offset = stretch.next_offset
        segment.batches += 1
        if header.is_transactional:
            match.note(header, survey.data(stretch))
        segment.records += 0 if header.is_control else header.record_count
        self.report.largest_producer_id = max(self.report.largest_producer_id, header.producer_id)
        self.report.largest_epoch = max(self.report.largest_epoch, header.leader_epoch)
        segment.last_epoch = header.leader_epoch
        if self.deep and stretch.is_sound:
            self._open_batch(segment, header, survey.data(stretch), stretch.position)

    def _open_batch(self, segment: SegmentReport, header: Header, data: memoryview, position: int) -> None:
        try:
            for _ in iterate_batch(data, _DEEP_LIMIT_BYTES):
                pass
        except (RecordError, CompressionError) as error:
            self._damage(
                Kind.RECORDS,
                segment.path,
                f"the batch matches its CRC-32C but cannot be opened ({error}): it was sent like that",
                Start.IGNORES,
                way_out=f"consumers that stumble over it must go on at offset {header.last_offset + 1}",
                position=position,
                offsets=(header.base_offset, header.last_offset),
            )

    def _load_card(self, segment: SegmentReport) -> None:
        suffixes = (CHECKPOINT_SUFFIX, INDEX_SUFFIX) if segment.is_last else (INDEX_SUFFIX, CHECKPOINT_SUFFIX)
        for suffix in suffixes:
            path = self.files.card_path(segment.name, suffix)
            if path is None:
                continue
            try:
                file = self.disk.open(path)
            except FileNotFoundError:
                continue
            segment.sealed |= suffix == INDEX_SUFFIX and not segment.is_last
            segment.card_path = segment.card_path or path
            try:
                card = cards.decode(file.read_at(file.size(), 0), path)
                if card.base == segment.base:
                    segment.card, segment.card_path = card, path
                    return
                what = f"{path} belongs to segment {card.base}"
            except DamagedFile as error:
                what = str(error)
            finally:
                file.close()
            segment.card_is_wrong = True
            self._damage(Kind.CARD, path, f"{what}; it can be rebuilt from the segment", Start.MENDS)

    def _judge(self, segment: SegmentReport, following: int | None) -> None:
        """What the stretches that are not sound mean, by where they are."""
        covered = segment.card.size if segment.card is not None else 0
        if covered > segment.size:
            self._damage(
                Kind.SHORT,
                segment.path,
                f"{segment.path} has {segment.size} bytes, {covered} were durable: the file was shortened",
                Start.OFFLINE,
            )
        if _covers_end(segment.problems, segment):  # how far it reached is known from what should follow
            last = segment.problems[-1]
            end = following if following is not None else self.report.durable_end
            segment.problems[-1] = last._replace(next_offset=max(end, last.first_offset))
        kept: list[Stretch] = []
        for stretch in segment.problems:
            durable = stretch.position < covered or stretch.first_offset < self.report.durable_end
            if durable or segment.sealed:
                kept.append(stretch)
                self._damaged_stretch(segment, stretch, covered)
                continue
            # Never promised: a start cuts here, whatever follows.
            self._finding(
                Kind.TAIL,
                Severity.HARMLESS,
                segment.path,
                f"{stretch.problem}: bytes written but never promised, from offset {stretch.first_offset} on",
                Start.CUTS,
                way_out=NEXT_START,
                position=stretch.position,
            )
            segment.next_offset = min(segment.next_offset, stretch.first_offset)
            break
        segment.problems = kept
        if following is not None and segment.next_offset < following and not _covers_end(kept, segment):
            self._hole(segment, following)

    def _damaged_stretch(self, segment: SegmentReport, stretch: Stretch, covered: int) -> None:
        last = stretch.next_offset - 1 if stretch.next_offset > stretch.first_offset else None
        lost = "the offsets are lost" if stretch.is_lost else "no record is lost"
        self._damage(
            Kind.BATCHES if stretch.size else Kind.HOLE,
            segment.path,
            f"{stretch.problem}; {stretch.size} bytes, {lost}",
            self._start_of(segment, stretch, covered),
            position=stretch.position,
            offsets=(stretch.first_offset, last),
        )

    def _start_of(self, segment: SegmentReport, stretch: Stretch, covered: int) -> Start:
        """What a start does about a stretch that no crash explains."""
        if segment.sealed:
            return Start.ERRORS
        checked_at_start = covered % cards.BLOCK_BYTES and covered // cards.BLOCK_BYTES in segment.bad_blocks
        behind = stretch.position >= covered
        return Start.OFFLINE if behind or checked_at_start else Start.ERRORS

    def _hole(self, segment: SegmentReport, following: int) -> None:
        sealed, promised = segment.sealed, segment.next_offset < self.report.durable_end
        what = f"ends before offset {segment.next_offset}, the next segment begins at {following}"
        if sealed or promised:
            self._damage(
                Kind.HOLE,
                segment.path,
                f"{what}: a segment was removed or shortened",
                Start.ERRORS if sealed else Start.OFFLINE,
                offsets=(segment.next_offset, following - 1),
            )
        else:
            self._harmless(segment.path, f"{what}; what follows was never promised and is set aside", Start.CUTS)

    def _judge_card(self, segment: SegmentReport, match: CardMatch) -> None:
        card, path = segment.card, segment.card_path
        if card is None or path is None:
            if not segment.is_last and not segment.card_is_wrong:
                self._harmless(segment.path, "a full segment without its card yet", Start.MENDS)
            return
        if segment.sealed and card.size < segment.size:
            what = f"{path} covers {card.size} of {segment.size} bytes"
            segment.card_is_wrong = True
            self._damage(Kind.CARD, path, what, Start.MENDS)
        explained = {
            block
            for stretch in segment.problems
            for block in range(stretch.position // cards.BLOCK_BYTES, max(stretch.end - 1, 0) // cards.BLOCK_BYTES + 1)
        }
        for block in segment.bad_blocks:
            if block not in explained and block * cards.BLOCK_BYTES < segment.size:
                last = segment.is_last and block == len(card.sums) - 1 and card.size % cards.BLOCK_BYTES
                thinned = segment.base < segment.gaps_to
                what = "an offset or a leader epoch" if thinned else "a leader epoch"
                self._damage(
                    Kind.BLOCK,
                    segment.path,
                    f"a block does not match its checksum, though every batch in it checks: {what} was "
                    "changed, or the card is wrong",
                    Start.OFFLINE if last else Start.ERRORS,
                    way_out=RESTORE if thinned else REPAIR,
                    position=block * cards.BLOCK_BYTES,
                )
        if match.wrong_entries and not segment.problems and not segment.bad_blocks:
            segment.card_is_wrong = True
            self._damage(
                Kind.CARD, path, f"{path}: {match.wrong_entries} entries do not point at their batches", Start.ERRORS
            )
        wrong = match.wrong_transactions()
        if wrong and not segment.problems and not segment.bad_blocks:
            segment.card_is_wrong = True
            what = f"{path}: {wrong} aborted transactions are not listed, or listed without their marker"
            self._damage(Kind.CARD, path, what, Start.IGNORES)

    # --- the whole

    def _look_at_start(self, names: list[str]) -> None:
        state = self.report.state
        if state is not None and names and int(names[0]) > state.log_start:
            self._finding(
                Kind.LEFTOVER,
                Severity.HARMLESS,
                self.path,
                f"the log start on record is {state.log_start}, the first segment begins at {names[0].lstrip('0')}: "
                "retention on a full disk, or somebody removed a segment",
                Start.MENDS,
                way_out=NEXT_START,
            )

    def _look_at_end(self, present: list[str], own_end: int) -> None:
        report = self.report
        end = report.end_offset
        if report.segments:
            last = report.segments[-1]
            if last.problems:
                end = max(end, last.problems[-1].next_offset)
            if any(finding.kind is Kind.SHORT for finding in report.findings) or _covers_end(last.problems, last):
                return  # said already
        if end < report.durable_end and NEXT_NAME not in present:
            self._damage(
                Kind.SHORT,
                self.path,
                f"{self.path} ends before offset {end}, but {report.durable_end} were durable: "
                + ("it is an old copy, or " if end >= own_end else "")
                + "a segment was removed",
                Start.OFFLINE,
                way_out=OLDER if end >= own_end else REPAIR,
                offsets=(end, report.durable_end - 1),
            )

    def _damage(
        self,
        kind: Kind,
        path: str,
        what: str,
        start: Start,
        *,
        way_out: str = REPAIR,
        position: int | None = None,
        offsets: tuple[int | None, int | None] = (None, None),
    ) -> None:
        if start is Start.MENDS:
            way_out = MENDED
        self._finding(kind, Severity.DAMAGE, path, what, start, way_out=way_out, position=position, offsets=offsets)

    def _harmless(self, path: str, what: str, start: Start) -> None:
        way_out = NOTHING if start is Start.IGNORES else NEXT_START
        self._finding(Kind.LEFTOVER, Severity.HARMLESS, path, what, start, way_out=way_out)

    def _finding(
        self,
        kind: Kind,
        severity: Severity,
        path: str,
        what: str,
        start: Start,
        *,
        way_out: str,
        position: int | None = None,
        offsets: tuple[int | None, int | None] = (None, None),
    ) -> None:
        self.report.findings.append(
            Finding(kind, severity, path, what, start, way_out, self.name, position, offsets[0], offsets[1])
        )


def _covers_end(problems: list[Stretch], segment: SegmentReport) -> bool:
    """Whether the segment's end is lost, and has been reported as such."""
    return bool(problems) and problems[-1].is_lost and problems[-1].end == segment.size


def _fingerprint(disk: Disk, path: str) -> tuple[list[str], bytes]:
    try:
        file = disk.open(f"{path}/{STATE_NAME}")
    except FileNotFoundError:
        return disk.list_dir(path), b""
    try:
        return disk.list_dir(path), file.read_at(file.size(), 0)
    finally:
        file.close()
