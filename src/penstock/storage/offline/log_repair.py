"""Mend what an inspection of a partition found, with the broker stopped: no byte goes, no offset is used twice.

A damaged segment is written anew, with every batch that still checks; lost offsets become voids, those that compaction
took out stay gaps. Cards are made with the transactions that were open before, so that aborted ones stay aborted; a
lost marker is written anew if the old card tells how its transaction ended, else that stays open, and 'penstock txn
hanging' shows it. Bytes taken out are kept beside the segment as `{segment}.{position}.damaged-{n}`. Every step may be
cut short:
  1. what is taken out is saved and synced; 2. the new bytes are written to `{segment}.log.tmp` and synced, a start
  would remove them; 3. the new card takes the old one's place; 4. the new segment takes the old one's place.
Between 3 and 4 the card does not match its segment: a start then refuses to serve those bytes, changes nothing, and
the repair can be made again. For that the new card must not end on a block boundary when it ends before the old bytes
do: its last block is what a start compares (see `recovery`).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from penstock.ports.disk import Disk, File
from penstock.records.batch import NO_TIMESTAMP, decode_header, patch_place
from penstock.records.control import Marker, build_marker
from penstock.storage.checked_file import save_all
from penstock.storage.compaction.swap import FILE_NAME as SWAP_NAME
from penstock.storage.compaction.swap import finish_swap
from penstock.storage.log import card as cards
from penstock.storage.log.card import Card
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.options import LogOptions
from penstock.storage.log.recovery import recover
from penstock.storage.log.segment import CHECKPOINT_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX
from penstock.storage.log.state import FILE_NAME as STATE_NAME
from penstock.storage.log.state import gaps_mark
from penstock.storage.offline.card_rebuild import INDEX_INTERVAL, open_before, take_rest
from penstock.storage.offline.findings import Kind, Start
from penstock.storage.offline.log_inspection import DAMAGED_MARK
from penstock.storage.offline.partition_report import PartitionReport, SegmentReport, survey_of
from penstock.storage.offline.survey import Stretch, Survey
from penstock.storage.offline.void import void_batches

OffsetRange = tuple[int, int]
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to be mended. `apply` does it, durably, and returns the files that keep what was taken out."""

    path: str
    what: str
    apply: Callable[[Disk], list[str]]
    partition: str = ""
    lost: tuple[OffsetRange, ...] = ()
    """First and last of each range of offsets without records from now on."""


def plan_partition(report: PartitionReport, now_ms: int, expected_end: int | None = None) -> list[Step]:
    """What would mend a partition; nothing is read or changed yet."""
    if any(finding.kind is Kind.SWAP and finding.is_damage for finding in report.findings):
        return []  # which segments are the log cannot be told
    epochs = report.state.epochs if report.state is not None else None
    steps: list[Step] = []
    for at, segment in enumerate(report.segments):
        following = report.segments[at + 1].base if at + 1 < len(report.segments) else None
        end = following if following is not None else max(report.durable_end, segment.next_offset)
        short = segment.card is not None and segment.card.size > segment.size
        if segment.problems or short:
            steps.append(_plan_rewrite(report, segment, end, epochs))
            continue
        # Where offsets may be missing, only the old card knows what they were: a new one would make a wrong one right.
        doubtful = segment.bad_blocks and segment.base < segment.gaps_to
        if (segment.card_is_wrong or segment.bad_blocks) and not doubtful:
            steps.append(_plan_card(report, segment, epochs))
        promised = segment.sealed or segment.next_offset < report.durable_end
        if segment.next_offset < end and promised:
            steps.append(_plan_void(report, segment.next_offset, end, epochs, is_last=following is None))
    if not report.segments and report.log_start < report.durable_end:
        steps.append(_plan_void(report, report.log_start, report.durable_end, epochs, is_last=True))
    written = {step.path.removesuffix(LOG_SUFFIX) for step in steps}
    known = {segment.path.removesuffix(LOG_SUFFIX) for segment in report.segments}
    for finding in report.findings:
        is_orphan = finding.kind is Kind.CARD and finding.start is Start.IGNORES
        if is_orphan and finding.path.rpartition(".")[0] not in written | known:
            steps.append(_plan_aside(report, finding.path, "the segment it speaks of is not there"))
        if finding.kind is Kind.SNAPSHOT:
            steps.append(_plan_aside(report, finding.path, "the coordinator reads its log instead"))
        if finding.kind is Kind.GAPS:
            steps.append(_plan_gaps_mark(report, finding.path))
    if any(finding.kind is Kind.STATE and finding.is_damage for finding in report.findings):
        steps.append(_plan_state(report, now_ms, expected_end))
    return [_plan_swap(report), *steps] if report.is_swapping and steps else steps


def keep_copy(disk: Disk, path: str, name: str | None = None, start: int = 0, size: int | None = None) -> str:
    """Save bytes of a file under a free name beside it, synced; a copy that is there already is not made again."""
    source = disk.open(path)
    try:
        size = source.size() - start if size is None else size
        number = 1
        while True:
            kept = f"{name or path}{DAMAGED_MARK}{number}"
            if not disk.exists(kept):
                break
            if _same(disk, kept, source, start, size):
                return kept
            number += 1
        target = disk.open(kept, create=True)
        try:
            for piece, at in _pieces(source, start, size):
                target.write_at(piece, at - start)
            disk.sync_files([target])
        finally:
            target.close()
    finally:
        source.close()
    disk.sync_dir(path.rpartition("/")[0])
    return kept


# --- plans


def _plan_rewrite(report: PartitionReport, segment: SegmentReport, end: int, epochs: LeaderEpochs | None) -> Step:
    lost = [(each.first_offset, each.next_offset - 1) for each in segment.problems if each.is_lost]
    if not (segment.problems and segment.problems[-1].is_lost and segment.problems[-1].end == segment.size):
        lost.append((segment.next_offset, end - 1))  # missing behind the last byte
    lost = [(first, last) for first, last in lost if first <= last]
    mended = sum(not each.is_lost for each in segment.problems)
    what = f"write {segment.path} anew: {segment.batches} batches stay"
    what += f", {mended} of them with their header put right" if mended else ""

    def apply(disk: Disk) -> list[str]:
        return _Rewrite(disk, report, segment, end, epochs).run()

    return Step(segment.path, what, apply, report.name, tuple(lost))


def _plan_card(report: PartitionReport, segment: SegmentReport, epochs: LeaderEpochs | None) -> Step:
    def apply(disk: Disk) -> list[str]:
        return _rebuild_card(disk, report, segment, epochs)

    path = segment.card_path or segment.path
    return Step(path, f"make the card of {segment.path} anew from its batches", apply, report.name)


def _plan_void(report: PartitionReport, first: int, end: int, epochs: LeaderEpochs | None, *, is_last: bool) -> Step:
    path = f"{report.path}/{first:020d}{LOG_SUFFIX}"

    def apply(disk: Disk) -> list[str]:
        epoch = epochs.at(first) if epochs is not None else -1
        return _write_void(disk, report, first, end, epoch if epoch >= 0 else _epoch_before(report, first), is_last)

    what = f"put {path} without records where a segment is missing, so that its offsets are not used again"
    return Step(path, what, apply, report.name, ((first, end - 1),))


def _plan_swap(report: PartitionReport) -> Step:
    def apply(disk: Disk) -> list[str]:
        finish_swap(disk, report.path)
        return []

    what = "put the segments into place that compaction has decided on, as a start would"
    return Step(f"{report.path}/{SWAP_NAME}", what, apply, report.name)


def _plan_aside(report: PartitionReport, path: str, why: str) -> Step:
    def apply(disk: Disk) -> list[str]:
        kept = keep_copy(disk, path)
        disk.unlink(path)
        disk.sync_dir(report.path)
        return [kept]

    return Step(path, f"set it aside: {why}", apply, report.name)


def _plan_gaps_mark(report: PartitionReport, path: str) -> Step:
    def apply(disk: Disk) -> list[str]:
        save_all(disk, gaps_mark(report.path))
        return []

    return Step(path, "write it anew: it says by being there that batches may be missing", apply, report.name)


def _plan_state(report: PartitionReport, now_ms: int, expected_end: int | None) -> Step:
    path = f"{report.path}/{STATE_NAME}"
    gaps_to, compacted_to = report.gaps_to, report.state.compacted_to if report.state is not None else 0

    def apply(disk: Disk) -> list[str]:
        kept = []
        if disk.exists(path):
            kept.append(keep_copy(disk, path))
            disk.unlink(path)  # a state that cannot be decoded would stop the recovery
            disk.sync_dir(report.path)
        recovered = recover(disk, report.path, LogOptions(compact=gaps_to > 0), now_ms, expected_end)
        for segment in recovered.segments:
            if segment.file is not None:
                segment.file.close()
        recovered.state.gaps_to, recovered.state.compacted_to = gaps_to, compacted_to
        save_all(disk, recovered.state.files(report.path))
        return kept

    what = "rebuild leader epochs and producers from the batches, as a start would"
    if gaps_to and report.state is None:
        what += f"; how far it was compacted is lost: offsets missing below {gaps_to} are taken for compacted records"
    return Step(path, what, apply, report.name)


# --- deeds


class _Rewrite:
    """A segment written anew; see the module's text for the order of steps."""

    def __init__(
        self, disk: Disk, report: PartitionReport, segment: SegmentReport, end: int, epochs: LeaderEpochs | None
    ) -> None:
        self.disk = disk
        self.report = report
        self.directory = report.path
        self.segment = segment
        self.end = end
        self.epochs = epochs
        self.ceiling = None if segment.is_last else end
        self.damaged = {stretch.position for stretch in segment.problems}
        self.kept: list[str] = []
        self.last_markers: dict[int, int] = {}
        """Position of each producer's last control batch that is there."""
        self.epoch_before = _epoch_before(report, segment.base)

    def run(self) -> list[str]:
        new = f"{self.segment.path}.tmp"
        source = self.disk.open(self.segment.path)
        target = self.disk.open(new, create=True)
        try:
            self._keep(source)
            card = self._write(source, target, 0)
            if card.size % cards.BLOCK_BYTES == 0:
                card = self._write(source, target, 1)
            self.disk.sync_files([target])
        finally:
            source.close()
            target.close()
        self.kept += _replace_card(self.disk, self.directory, self.segment.name, self.segment.is_last, card)
        self.disk.rename(new, self.segment.path)
        self.disk.sync_dir(self.directory)
        return self.kept

    def _survey(self, source: File) -> Survey:
        return survey_of(source, self.segment, self.ceiling, self.epochs)

    def _stretches(self, survey: Survey) -> Iterator[Stretch]:
        """Up to a tail that was never promised, which is taken out as a start would do."""
        for stretch in survey.stretches():
            if not stretch.is_sound and stretch.position not in self.damaged:
                return
            yield stretch

    def _keep(self, source: File) -> None:
        name = f"{self.directory}/{self.segment.name}"
        at = 0
        for stretch in self._stretches(self._survey(source)):
            at = stretch.end
            if stretch.header is not None and stretch.header.is_control:
                self.last_markers[stretch.header.producer_id] = stretch.position
            if not stretch.is_sound and stretch.size:
                place = f"{name}.{stretch.position}"
                self.kept.append(keep_copy(self.disk, self.segment.path, place, stretch.position, stretch.size))
        if at < self.segment.size:
            self.kept.append(keep_copy(self.disk, self.segment.path, f"{name}.{at}", at))

    def _write(self, source: File, target: File, pad: int) -> Card:
        target.truncate(0)
        card = Card(self.segment.base, open_before(self.disk, self.report, self.segment.base))
        survey = self._survey(source)
        epoch = self.epoch_before
        end_is_lost = self.segment.next_offset < self.end
        for stretch in self._stretches(survey):
            if stretch.header is None:
                for producer_id, marker, offset in self._lost_markers(card, stretch):
                    self._fill(card, target, offset, epoch, 0)
                    _append(card, target, self._marker(card, producer_id, marker, epoch))
                self._fill(card, target, stretch.next_offset, epoch, pad)
                end_is_lost |= stretch.end == self.segment.size
                continue
            epoch = stretch.header.leader_epoch
            _append(card, target, survey.data(stretch))
        if end_is_lost:
            self._fill(card, target, self.end, epoch, pad)
        card.next_offset = self.end
        return card

    def _lost_markers(self, card: Card, stretch: Stretch) -> list[tuple[int, Marker, int]]:
        """Producer, outcome and offset of transactions that ended in a lost stretch, as far as the old card tells."""
        old, next_offset = self.segment.card, stretch.next_offset
        if stretch.end == self.segment.size:
            next_offset = self.end
        if old is None or stretch.end > old.size:
            return []
        aborted = {row.producer_id: row for row in old.transactions.aborted() if row.last_offset < next_offset}
        ended: dict[int, int | None] = {}
        for producer_id, first in card.transactions.open.items():
            if (
                self.last_markers.get(producer_id, -1) > stretch.position
                or old.transactions.open.get(producer_id) == first
            ):
                continue
            row = aborted.get(producer_id)
            ended[producer_id] = row.last_offset if row and row.last_offset >= stretch.first_offset else None
        # Where a commit marker was, the card does not tell: any offset that is free will do.
        free = (offset for offset in range(stretch.first_offset, next_offset) if offset not in ended.values())
        placed = [
            (producer_id, Marker.COMMIT, next(free, -1)) if offset is None else (producer_id, Marker.ABORT, offset)
            for producer_id, offset in ended.items()
        ]
        return sorted((each for each in placed if each[2] >= 0), key=lambda each: each[2])

    def _marker(self, card: Card, producer_id: int, marker: Marker, epoch_before: int) -> memoryview:
        state = self.report.state
        producers = {row[0]: row[1] for row in state.producers.dump()} if state is not None else {}
        producer_epoch = producers.get(producer_id, 0)
        assert isinstance(producer_epoch, int)
        batch = memoryview(bytearray(build_marker(producer_id, producer_epoch, marker, 0, NO_TIMESTAMP)))
        patch_place(batch, card.next_offset, self._epoch_at(card.next_offset, epoch_before))
        return batch

    def _epoch_at(self, offset: int, epoch_before: int) -> int:
        epoch = self.epochs.at(offset) if self.epochs is not None else -1
        return epoch if epoch >= 0 else epoch_before

    def _fill(self, card: Card, target: File, next_offset: int, epoch_before: int, pad: int) -> None:
        _append_voids(card, target, next_offset, self._epoch_at(card.next_offset, epoch_before), pad)


def _epoch_before(report: PartitionReport, offset: int) -> int:
    """The leader epoch of the last batch below `offset`, for when none is on record."""
    return max([0, *(segment.last_epoch for segment in report.segments if segment.base < offset)])


def _write_void(disk: Disk, report: PartitionReport, first: int, end: int, epoch: int, is_last: bool) -> list[str]:
    directory = report.path
    name = f"{first:020d}"
    path = f"{directory}/{name}{LOG_SUFFIX}"
    file = disk.open(f"{path}.tmp", create=True)
    try:
        file.truncate(0)
        card = Card(first, open_before(disk, report, first))
        _append_voids(card, file, end, epoch, 0)
        disk.sync_files([file])
    finally:
        file.close()
    kept = _replace_card(disk, directory, name, is_last, card)
    disk.rename(f"{path}.tmp", path)
    disk.sync_dir(directory)
    return kept


def _rebuild_card(
    disk: Disk, report: PartitionReport, segment: SegmentReport, epochs: LeaderEpochs | None
) -> list[str]:
    file = disk.open(segment.path)
    card = Card(segment.base, open_before(disk, report, segment.base))
    try:
        take_rest(card, file, segment.size, segment.gaps_to, epochs)
        disk.sync_files([file])  # a card is a promise that its bytes are durable
    finally:
        file.close()
    card.next_offset = max(card.next_offset, segment.next_offset)
    return _replace_card(disk, report.path, segment.name, segment.is_last, card)


def _replace_card(disk: Disk, directory: str, name: str, is_last: bool, card: Card) -> list[str]:
    """Save a card under the name that recovery looks at first; older ones are kept, out of its sight."""
    index, checkpoint = f"{directory}/{name}{INDEX_SUFFIX}", f"{directory}/{name}{CHECKPOINT_SUFFIX}"
    path, other = (checkpoint, index) if is_last and not disk.exists(index) else (index, checkpoint)
    kept = []
    if disk.exists(path):
        kept.append(keep_copy(disk, path))
    if disk.exists(other):
        kept.append(keep_copy(disk, other))
        disk.unlink(other)
    save_all(disk, {path: card.encode()})
    return kept


def _append_voids(card: Card, target: File, next_offset: int, epoch: int, pad: int) -> None:
    for batch, _ in void_batches(card.next_offset, next_offset, epoch, pad):
        _append(card, target, memoryview(batch))


def _append(card: Card, target: File, data: memoryview) -> None:
    target.write_at(data, card.size)
    card.take(decode_header(data), data, INDEX_INTERVAL)


def _pieces(file: File, start: int, size: int) -> Iterator[tuple[bytes, int]]:
    at = start
    while at < start + size:
        piece = file.read_at(min(_PIECE_BYTES, start + size - at), at)
        if not piece:
            return
        yield piece, at
        at += len(piece)


def _same(disk: Disk, path: str, source: File, start: int, size: int) -> bool:
    file = disk.open(path)
    try:
        if file.size() != size:
            return False
        return all(file.read_at(len(piece), at - start) == piece for piece, at in _pieces(source, start, size))
    finally:
        file.close()


def lost_ranges(steps: Iterable[Step]) -> dict[str, list[OffsetRange]]:
    """The offsets without records after these steps, by partition."""
    lost: dict[str, list[OffsetRange]] = {}
    for step in steps:
        if step.lost:
            lost.setdefault(step.partition, []).extend(step.lost)
    return lost
