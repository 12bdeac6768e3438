"""A new segment and its card being written beside the old ones, durable before anybody hears of them.

As long as a lone segment comes out as it went in, nothing is written; the part already passed is copied when the first
difference shows.
"""

from collections.abc import Sequence

from crc32c import crc32c

from penstock.ports.disk import Disk, File
from penstock.records.batch import Header
from penstock.storage.compaction.decided import SeenTransactions
from penstock.storage.compaction.job import Group, cleaned_names
from penstock.storage.compaction.pace import STEP_BYTES, Pace
from penstock.storage.compaction.reading import SealedSegment
from penstock.storage.log import card as cards
from penstock.storage.log.card import Card
from penstock.storage.log.transactions import Transactions

_WRITE_BYTES = 1 << 20
_SYNC_BYTES = 1 << 20  # so that the broker's own syncs never wait for a gigabyte of ours


class CleanedFile:
    """The segment that is to stand for a group of old ones, in order: `copy` or `put` for each batch that stays."""

    def __init__(self, disk: Disk, directory: str, first: SealedSegment, index_interval: int, pace: Pace) -> None:
        self._disk = disk
        self._paths = tuple(f"{directory}/{name}" for name in cleaned_names(first.source.base))
        self._first = first
        self._interval = index_interval
        self._pace = pace
        self._file: File | None = None
        self._buffer = bytearray()
        self._flushed = 0
        self._synced = 0
        self.card = Card(first.source.base)
        self.bytes_written = 0

    def copy(self, header: Header, batch: memoryview) -> None:
        """The next batch stays as it is."""
        self._note(header, batch)
        if self._file is not None:
            self._write(batch)

    def put(self, header: Header, batch: memoryview) -> None:
        """The next batch stays as another one."""
        self.begin()
        self._note(header, batch)
        self._write(batch)

    def begin(self) -> None:
        """Something differs: from here on there is a file."""
        if self._file is not None:
            return
        self._pace.spend(0)  # not a name of the next process's, if this one is not wanted any more
        self._file = self._disk.open(self._paths[0], create=True)
        self._file.truncate(0)
        for block, crc in enumerate(self.card.sums):
            start = block * cards.BLOCK_BYTES
            data = self._first.file.read_at(min(cards.BLOCK_BYTES, self.card.size - start), start)
            if crc32c(data) != crc:
                raise self._first.damaged(start, "read a second time, a block is another")
            self._pace.spend(len(data))
            self._write(memoryview(data))

    def finish(self, group: Sequence[SealedSegment], seen: SeenTransactions) -> Group:
        """Make it durable but for its name; the caller syncs the directory."""
        last = group[-1]
        replaced = tuple(segment.source.base for segment in group)
        next_offset = last.source.next_offset
        if self._file is None:
            return Group(replaced, self.card.size, next_offset, changed=False)
        finish_card(self.card, group, seen)
        self._flush()
        index = self._disk.open(self._paths[1], create=True)
        encoded = self.card.encode()
        self._pace.spend(len(encoded))
        index.truncate(0)
        index.write_at(encoded, 0)
        self._disk.sync_files([self._file, index])
        index.close()
        self.bytes_written += len(encoded)
        self.close()
        return Group(replaced, self.card.size, next_offset, changed=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _note(self, header: Header, batch: memoryview) -> None:
        self.card.add(header.base_offset, header.last_offset + 1, batch, header.max_timestamp, self._interval)

    def _write(self, data: memoryview) -> None:
        self._buffer += data
        if len(self._buffer) >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        assert self._file is not None
        self._pace.spend(len(self._buffer))
        for at in range(0, len(self._buffer), STEP_BYTES):
            part = self._buffer[at : at + STEP_BYTES]
            self._file.write_at(part, self._flushed)
            self._flushed += len(part)
            self._pace.give_way()
        self.bytes_written += len(self._buffer)
        self._buffer = bytearray()
        if self._flushed - self._synced >= _SYNC_BYTES:
            self._disk.sync_files([self._file])
            self._synced = self._flushed


def finish_card(card: Card, group: Sequence[SealedSegment], seen: SeenTransactions) -> None:
    """What a card says about its whole segment: offsets to its end, and transactions.

    Those open at the end are as they were, for the next segment's card may be made again from them; aborted ones are
    listed as long as there was a record of theirs to skip.
    """
    card.next_offset = group[-1].source.next_offset
    aborted = [row for segment in group for row in segment.card.transactions.aborted()]
    card.transactions = Transactions.kept(
        group[-1].card.transactions.open,
        [row for row in aborted if (row.producer_id, row.last_offset) in seen.aborted],
    )
