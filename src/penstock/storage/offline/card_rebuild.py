"""Cards made again from the batches of a segment, and from what the segments before it left open."""

from penstock.ports.disk import Disk, File
from penstock.storage.checked_file import DamagedFile
from penstock.storage.log import card as cards
from penstock.storage.log.card import Card
from penstock.storage.log.epochs import LeaderEpochs
from penstock.storage.log.options import LogOptions
from penstock.storage.log.segment import CHECKPOINT_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX
from penstock.storage.offline.partition_report import PartitionReport, SegmentReport
from penstock.storage.offline.survey import Survey

INDEX_INTERVAL = LogOptions().index_interval_bytes


def take_rest(card: Card, file: File, size: int, gaps_to: int, epochs: LeaderEpochs | None) -> None:
    """Bring a card from where it ends to the end of the file, or to the first batch that is not sound."""
    survey = Survey(file, size, card.next_offset, position=card.size, epochs=epochs, gaps_to=gaps_to)
    for stretch in survey.stretches():
        if stretch.header is None or not stretch.is_sound:
            break
        card.take(stretch.header, survey.data(stretch), INDEX_INTERVAL)


def open_before(disk: Disk, report: PartitionReport, base: int) -> dict[int, int]:
    """The transactions open where a segment begins, as what is on disk by now tells of the segments before it."""
    bare: list[tuple[SegmentReport, Card | None]] = []
    for segment in reversed([each for each in report.segments if each.base < base]):
        card = _saved_card(disk, segment)
        bare.append((segment, card))
        if card is not None:
            break
    opened: dict[int, int] = {}
    for segment, saved in reversed(bare):
        card = saved if saved is not None else Card(segment.base, opened)
        file = disk.open(segment.path)
        try:
            take_rest(card, file, file.size(), segment.gaps_to, None)
        finally:
            file.close()
        opened = card.transactions.open
    return opened


def _saved_card(disk: Disk, segment: SegmentReport) -> Card | None:
    for suffix in (INDEX_SUFFIX, CHECKPOINT_SUFFIX):
        path = segment.path.removesuffix(LOG_SUFFIX) + suffix
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue
        try:
            card = cards.decode(file.read_at(file.size(), 0), path)
        except DamagedFile:
            continue
        finally:
            file.close()
        if card.base == segment.base:
            return card
    return None
