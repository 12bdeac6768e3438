"""Compares a segment's saved card with the bytes it describes: entries, transactions, block checksums, in one pass.

Of transactions only this is compared: each one that an abort marker of the segment ends must be listed, and none
without such a marker. Where it began may lie in a segment that is gone, or have been compacted away.
"""

from collections.abc import Iterator

from crc32c import crc32c

from penstock.ports.disk import File
from penstock.records.batch import Header
from penstock.records.control import Marker, decode_marker
from penstock.storage.log import card as cards
from penstock.storage.log.card import Card
from penstock.storage.log.transactions import Transactions
from penstock.storage.offline.survey import Stretch, Survey

_PIECE_BYTES = 1 << 20


class CardMatch:
    """Fed with the stretches of a survey; `wrong_entries` and `finish` say what did not match."""

    def __init__(self, card: Card | None, open_before: dict[int, int] | None = None) -> None:
        self._card = card
        self._aborts: set[tuple[int, int]] = set()
        self._due: set[tuple[int, int]] = set()
        self.transactions = Transactions(open_before)
        """As the batches tell."""
        self._sums: list[int] = []
        self._entry = 0
        self._position = 0
        self._largest_time = -1
        self.wrong_entries = 0

    def take(self, stretch: Stretch, pieces: Iterator[memoryview]) -> None:
        card = self._card
        if card is None:
            return
        self._check_entries(card, stretch)
        if stretch.header is not None:
            self._largest_time = max(self._largest_time, stretch.header.max_timestamp)
        for piece in pieces:
            self._sum(piece[: max(0, card.size - self._position)])

    def note(self, header: Header, batch: memoryview) -> None:
        """Take in a transactional batch."""
        ended = self.transactions.note(header, batch)
        card, end = self._card, (header.producer_id, header.last_offset)
        if card is None or header.base_offset >= card.next_offset or not header.is_control:
            return
        if decode_marker(batch) is Marker.ABORT:
            self._aborts.add(end)
            if ended is not None:
                self._due.add(end)

    def wrong_transactions(self) -> int:
        """Aborted transactions that the card does not list, or lists without a marker."""
        if self._card is None:
            return 0
        listed = {(row.producer_id, row.last_offset) for row in self._card.transactions.aborted()}
        return len(self._due - listed) + len(listed - self._aborts)

    def _check_entries(self, card: Card, stretch: Stretch) -> None:
        while self._entry < len(card.positions) and card.positions[self._entry] < stretch.end:
            at = self._entry
            fits = (
                card.positions[at] == stretch.position
                and card.offsets[at] == stretch.first_offset - card.base
                and card.times[at] == self._largest_time
            )
            self.wrong_entries += not fits
            self._entry += 1

    def _sum(self, piece: memoryview) -> None:
        size = cards.BLOCK_BYTES
        while piece:
            room = size - self._position % size
            if room == size:
                self._sums.append(0)
            part = piece[:room]
            self._sums[-1] = crc32c(part, self._sums[-1])
            self._position += len(part)
            piece = piece[room:]

    def finish(self, size: int) -> list[int]:
        """The blocks whose checksum does not match."""
        if self._card is None:
            return []
        saved = self._card.sums
        whole = min(len(saved), len(self._sums)) if self._card.size <= size else size // cards.BLOCK_BYTES
        return [block for block in range(whole) if saved[block] != self._sums[block]]


def bytes_of(file: File, survey: Survey, stretch: Stretch) -> Iterator[memoryview]:
    """The bytes of a stretch as they are on disk; a lost one may be large and is read piece by piece."""
    if stretch.is_sound:
        yield survey.data(stretch)
        return
    at = stretch.position
    while at < stretch.end:
        piece = memoryview(file.read_at(min(_PIECE_BYTES, stretch.end - at), at))
        if not piece:
            return
        yield piece
        at += len(piece)
