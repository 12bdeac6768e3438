"""Sealed segments read from front to back, every byte checked: by the card's block checksums, by the batch's CRC.

What compaction writes gets checksums of its own, so a flipped bit it did not notice would be sound ever after.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from crc32c import crc32c

from penstock.ports.disk import Disk
from penstock.records.batch import HEADER_BYTES, MAGIC, Header, crc_matches, decode_header
from penstock.records.compression import CompressionError
from penstock.records.record import RecordError
from penstock.storage.checked_file import DamagedFile
from penstock.storage.compaction.job import CompactionError, Source
from penstock.storage.compaction.pace import Pace
from penstock.storage.log import card as cards
from penstock.storage.log.card import Card

_WINDOW_BYTES = 1 << 20
_LOG_SUFFIX, _INDEX_SUFFIX = ".log", ".index"


class ReadBatch(NamedTuple):
    header: Header
    data: memoryview
    """Good until the next batch is asked for."""
    position: int


class SealedSegment:
    """One source, open for reading.

    Raises `CompactionError` here and while reading for whatever is not as it was when the segment was sealed.
    """

    def __init__(self, disk: Disk, source: Source, pace: Pace) -> None:
        self.source = source
        self._pace = pace
        self.card = self._load_card(disk)
        try:
            self.file = disk.open(source.path)
        except FileNotFoundError:
            raise self.damaged(0, "the file is gone") from None
        size = self.file.size()
        card = self.card
        if size != source.size or (card.base, card.size, card.next_offset) != (
            source.base,
            source.size,
            source.next_offset,
        ):
            raise self.damaged(
                0, f"{size} bytes, its card covers {card.size} and offsets to {card.next_offset}, the log {source.size}"
            )

    def close(self) -> None:
        self.file.close()

    def batches(self) -> Iterator[ReadBatch]:
        size, position, lowest = self.source.size, 0, self.source.base
        window = memoryview(b"")  # of the file, from `position` on
        while position < size:
            if len(window) < HEADER_BYTES:
                window = self._longer(window, position, HEADER_BYTES)
            header = decode_header(window)
            self._check(header, position, lowest)
            if len(window) < header.size:
                window = self._longer(window, position, header.size)
            batch = window[: header.size]
            if not crc_matches(batch, header):
                raise self.damaged(position, "a batch does not match its CRC-32C")
            self._pace.give_way()
            yield ReadBatch(header, batch, position)
            window = window[header.size :]
            position += header.size
            lowest = header.last_offset + 1

    @contextmanager
    def opening(self, batch: ReadBatch) -> Iterator[None]:
        """Says where a batch lies that nobody can open."""
        try:
            yield
        except (RecordError, CompressionError) as error:
            raise self.damaged(batch.position, f"a batch cannot be opened ({error})") from None

    def damaged(self, position: int, what: str) -> CompactionError:
        return CompactionError(f"{self.source.path} cannot be compacted, byte {position}: {what}; it is left as it is")

    def _longer(self, window: memoryview, position: int, wanted: int) -> memoryview:
        """The window with at least `wanted` bytes; it always ends with a block, or with the segment."""
        start = position + len(window)
        block_bytes = cards.BLOCK_BYTES
        blocks = -(-max(_WINDOW_BYTES, wanted - len(window)) // block_bytes)
        size = min(blocks * block_bytes, self.source.size - start)
        self._pace.spend(size)
        parts = [bytes(window)]
        for at in range(start, start + size, block_bytes):
            asked = min(block_bytes, start + size - at)
            data = self.file.read_at(asked, at)
            if len(data) < asked and at + len(data) - position < wanted:
                raise self.damaged(position, "the file ends inside a batch")
            if crc32c(data) != self.card.sums[at // block_bytes]:
                raise self.damaged(at, "a block does not match its checksum")
            parts.append(data)
            self._pace.give_way()  # the kernel does not take a core away amid a read: a megabyte holds it for too long
        return memoryview(b"".join(parts))

    def _check(self, header: Header, position: int, lowest: int) -> None:
        if header.magic != MAGIC or not HEADER_BYTES <= header.size <= self.source.size - position:
            raise self.damaged(position, "no batch starts here")
        if not lowest <= header.base_offset <= header.last_offset < self.source.next_offset:
            raise self.damaged(
                position,
                f"a batch with offsets {header.base_offset} to {header.last_offset}, "
                f"expected within {lowest} to {self.source.next_offset - 1}",
            )
        if not 0 <= header.record_count <= header.last_offset_delta + 1:
            raise self.damaged(position, f"{header.record_count} records in {header.last_offset_delta + 1} offsets")

    def _load_card(self, disk: Disk) -> Card:
        path = self.source.path.removesuffix(_LOG_SUFFIX) + _INDEX_SUFFIX
        try:
            file = disk.open(path)
            try:
                return cards.decode(file.read_at(file.size(), 0), path)
            finally:
                file.close()
        except (DamagedFile, FileNotFoundError) as error:
            raise self.damaged(0, f"its card cannot be used ({error})") from None
