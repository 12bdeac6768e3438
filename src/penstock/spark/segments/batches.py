"""The batches of a sealed segment in stretches of some MB, every byte checked before it is given out.

A batch's CRC leaves out its offset and its length; the card's checksum of each block of the file covers those, too.
"""

import os
from bisect import bisect_left
from collections.abc import Iterator

from crc32c import crc32c

from penstock.ports.disk import File
from penstock.records.batch import BATCH_HEADER, CRC_START, HEADER_BYTES, MAGIC, Header
from penstock.spark.arrow.decode import Place
from penstock.spark.errors import SourceError
from penstock.spark.segments.chain import OpenSegment
from penstock.storage.compaction.decided import AbortedTransactions
from penstock.storage.log import card as cards

_WINDOW_BYTES = 4 << 20


class DamagedSegment(SourceError):
    """A file does not hold what its card and its checksums say."""

    def __init__(self, file: File, position: int, what: str) -> None:
        super().__init__(
            f"{file.path}, byte {position}: {what}. Nothing was read from there. 'penstock log verify' finds all "
            "damage; restore the file from a replica or backup, or stop the broker and run 'penstock log repair'"
        )


class Window:
    """A stretch of a file in memory; one buffer for all stretches, so that each is good until the next is read."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_WINDOW_BYTES + cards.BLOCK_BYTES))
        self.start = 0
        self.stop = 0
        """Positions in the file."""

    @property
    def data(self) -> memoryview:
        return self._buffer[: self.stop - self.start]

    def begin(self, position: int) -> None:
        self.start = self.stop = position

    def advance(self, file: File, position: int, wanted: int, limit: int) -> int:
        """Let go of what lies before `position` and read on to have `wanted` bytes from there, or up to `limit`.

        Returns where the new bytes begin; they end with a block, or at `limit`.
        """
        block = cards.BLOCK_BYTES
        kept = self._buffer[position - self.start : self.stop - self.start] if position < self.stop else b""
        new = min(-(-(max(_WINDOW_BYTES, wanted) - len(kept)) // block) * block, limit - self.stop)
        if len(kept) + new > len(self._buffer):
            self._buffer = memoryview(bytearray(len(kept) + new))
        self._buffer[: len(kept)] = kept
        begin = at = self.stop
        self.start = position if kept else self.stop
        end = begin + new
        while at < end:
            got = os.preadv(file.fileno(), [self._buffer[at - self.start : end - self.start]], at)
            if got == 0:
                raise DamagedSegment(file, at, f"the file ends here, its card covers {limit} bytes")
            at += got
        self.stop = end
        return begin


class SegmentBatches:
    """Those batches of one segment with offsets in `[first, end)` that a reader is to see."""

    def __init__(self, segment: OpenSegment, first: int, end: int, aborted: AbortedTransactions | None) -> None:
        self._file, self._card = segment
        self._first, self._end = first, end
        self._aborted = aborted
        found = bisect_left(self._card.offsets, max(end - self._card.base, 0))
        self._stop = self._card.positions[found] if found < len(self._card.positions) else self._card.size
        """No batch from here on begins before `end`."""
        self._position = self._card.position_before(first)
        self._lowest = self._card.base
        self._needed = HEADER_BYTES

    def stretches(self, window: Window) -> Iterator[tuple[memoryview, list[Place]]]:
        """Bytes and the whole batches in them, good until the next are asked for.

        Raises:
            DamagedSegment: naming file and position; nothing of that stretch was given out.
        """
        block = cards.BLOCK_BYTES
        limit = min(-(-self._stop // block) * block, self._card.size)
        window.begin(self._position // block * block)
        while self._position < self._stop:
            if window.stop == limit:
                raise DamagedSegment(self._file, self._position, "the segment ends inside a batch")
            new = window.advance(self._file, self._position, self._needed, limit)
            damaged = self._damaged_block(window, new)  # told behind what the walk finds, which names the batch
            places = self._walk(window)
            if damaged is not None:
                raise DamagedSegment(self._file, damaged, "a block of the file does not match its checksum")
            if places:
                yield window.data, places

    def _damaged_block(self, window: Window, position: int) -> int | None:
        data, size = window.data, cards.BLOCK_BYTES
        for at in range(position, window.stop, size):
            covered = data[at - window.start : at - window.start + size]
            if crc32c(covered) != self._card.sums[at // size]:
                return at
        return None

    def _walk(self, window: Window) -> list[Place]:
        """Check every whole batch in the window; returns those to be seen."""
        data, start, stop = window.data, window.start, window.stop
        first, end, aborted = self._first, self._end, self._aborted
        position = self._position
        places: list[Place] = []
        while position < self._stop and stop - position >= HEADER_BYTES:
            at = position - start
            header = Header._make(BATCH_HEADER.unpack_from(data, at))
            self._check(header, position)
            size = header.size
            if size > stop - position:
                self._position, self._needed = position, size
                return places
            if crc32c(data[at + CRC_START : at + size]) != header.crc:
                raise DamagedSegment(self._file, position, "a batch does not match its CRC-32C")
            if (
                header.last_offset >= first
                and header.base_offset < end
                and header.record_count
                and not header.is_control
                and (aborted is None or not aborted.holds(header))
            ):
                places.append(Place(at, header))
            self._lowest = header.last_offset + 1
            position += size
        self._position, self._needed = position, HEADER_BYTES
        return places

    def _check(self, header: Header, position: int) -> None:
        if header.magic != MAGIC or not HEADER_BYTES <= header.size <= self._card.size - position:
            raise DamagedSegment(self._file, position, "no batch begins here")
        if not self._lowest <= header.base_offset <= header.last_offset < self._card.next_offset:
            raise DamagedSegment(
                self._file,
                position,
                f"a batch with offsets {header.base_offset} to {header.last_offset}, expected within {self._lowest} to "
                f"{self._card.next_offset - 1}",
            )
