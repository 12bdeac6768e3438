"""A segment's card: where offsets and times are in its `.log` file, and a CRC-32C for each 64 KiB block of it.

While a segment is written its card lives in memory and is saved now and then as `{base}.checkpoint`, covering a
prefix; when the segment is sealed it is saved once, whole, as `{base}.index`. A card is always rebuildable from
its `.log`; it is never trusted without its own checksums.

Index: one entry at most every `index_interval_bytes`: (offset relative to the base, file position, largest timestamp
of all batches before that position). The three columns rise, so offset and time are both found by bisection.

Block checksums cover every byte, header fields the batch CRC leaves out included, so a flipped bit anywhere in a sealed
file is found before the block is sent.

Version 2 adds the transactions open at the end and those aborted within; a card of version 1 has none.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct

from crc32c import crc32c

from penstock.records.batch import Header
from penstock.storage.checked_file import DamagedFile
from penstock.storage.log.transactions import Transactions

BLOCK_BYTES = 64 * 1024
_MAGIC = b"PSCARD"
_VERSION = 2
_MARK = Struct("<6sH")  # magic, version
# base, next, size, max timestamp, offset of it, entries, blocks; since version 2 also: open, aborted, first open
_SUMMARIES = {1: Struct("<6sHqqqqqII"), 2: Struct("<6sHqqqqqIIIIq")}
_SUMMARY = _SUMMARIES[_VERSION]
_CRC = Struct("<I")
SUMMARY_BYTES = _SUMMARY.size + _CRC.size
"""What to read of a file to be sure of its summary."""


class Card:
    """What is known about the first `size` bytes of a segment. Offsets run from `base` to `next_offset` - 1."""

    __slots__ = (
        "_last_indexed",
        "base",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "offsets",
        "positions",
        "size",
        "sums",
        "times",
        "transactions",
    )

    def __init__(self, base: int, open_transactions: dict[int, int] | None = None) -> None:
        self.base = base
        self.transactions = Transactions(open_transactions)
        self.next_offset = base
        self.size = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = -1
        """Base offset of the first batch that carries `max_timestamp`."""
        self.offsets = array("I")
        self.positions = array("I")
        self.times = array("q")
        self.sums = array("I")
        """A checksum per block of `[0, size)`; the last one may be of a block not full yet, and is carried on."""
        self._last_indexed = -1

    def add(self, base_offset: int, next_offset: int, batch: memoryview, max_timestamp: int, interval: int) -> None:
        """Note a batch just appended at position `self.size`. Hot path: once per batch."""
        position = self.size
        self._sum(batch, position)
        if self._last_indexed < 0 or position - self._last_indexed >= interval:
            self.offsets.append(base_offset - self.base)
            self.positions.append(position)
            self.times.append(self.max_timestamp)
            self._last_indexed = position
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = base_offset
        self.size = position + len(batch)
        self.next_offset = next_offset

    def take(self, header: Header, batch: memoryview, interval: int) -> None:
        """Note a batch that is in the log already: what a card is made again from."""
        self.add(header.base_offset, header.last_offset + 1, batch, header.max_timestamp, interval)
        if header.is_transactional:
            self.transactions.note(header, batch)

    def _sum(self, batch: memoryview, position: int) -> None:
        """Carry the block checksums on, from bytes that are in the cache and were just checked: never from the disk."""
        sums, size = self.sums, len(batch)
        at = -position % BLOCK_BYTES  # what the block begun earlier still takes
        if at:
            sums[-1] = crc32c(batch[:at], sums[-1])
        while at < size:
            sums.append(crc32c(batch[at : at + BLOCK_BYTES]))
            at += BLOCK_BYTES

    def position_before(self, offset: int) -> int:
        """A batch start from which walking forward meets `offset`."""
        found = bisect_right(self.offsets, offset - self.base) - 1
        return self.positions[found] if found >= 0 else 0

    def position_before_time(self, timestamp: int) -> int:
        """A batch start before which every timestamp is smaller than `timestamp`."""
        found = bisect_left(self.times, timestamp) - 1
        return self.positions[found] if found >= 0 else 0

    def batch_start_up_to(self, position: int) -> int:
        """The last indexed batch start at or before `position`."""
        found = bisect_right(self.positions, position) - 1
        return self.positions[found] if found >= 0 else 0

    def offset_at_or_after(self, position: int) -> int:
        """An offset that no batch before `position` reaches: that of the next indexed batch, or the end."""
        found = bisect_left(self.positions, position)
        return self.base + self.offsets[found] if found < len(self.offsets) else self.next_offset

    def copy(self) -> "Card":
        """As it is now, to be saved while the segment grows on."""
        made = Card(self.base)
        made.next_offset, made.size = self.next_offset, self.size
        made.max_timestamp, made.max_timestamp_offset = self.max_timestamp, self.max_timestamp_offset
        made.offsets, made.positions, made.times, made.sums = (
            column[:] for column in (self.offsets, self.positions, self.times, self.sums)
        )
        made.transactions = self.transactions.copy()
        return made

    def encode(self) -> bytes:
        summary = _SUMMARY.pack(
            _MAGIC,
            _VERSION,
            self.base,
            self.next_offset,
            self.size,
            self.max_timestamp,
            self.max_timestamp_offset,
            len(self.offsets),
            len(self.sums),
            len(self.transactions.open),
            self.transactions.aborted_count,
            self.transactions.first_open,
        )
        columns = (self.offsets, self.positions, self.times, self.sums, *self.transactions.columns())
        body = b"".join(_little_endian(column).tobytes() for column in columns)
        return summary + _CRC.pack(crc32c(summary)) + body + _CRC.pack(crc32c(body))


class Summary:
    """The head of a saved card, readable without the rest."""

    __slots__ = (
        "aborted",
        "base",
        "blocks",
        "entries",
        "first_open",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "open",
        "size",
        "size_bytes",
    )

    def __init__(self, data: bytes, path: str) -> None:
        if len(data) < _MARK.size:
            raise DamagedFile(f"{path}: {len(data)} bytes are too few for a segment card")
        magic, version = _MARK.unpack_from(data)
        if magic != _MAGIC:
            raise DamagedFile(f"{path}: not a segment card")
        layout = _SUMMARIES.get(version)
        if layout is None:
            raise DamagedFile(f"{path}: card version {version}; this release reads up to {_VERSION}")
        self.size_bytes = layout.size + _CRC.size
        if len(data) < self.size_bytes:
            raise DamagedFile(f"{path}: {len(data)} bytes are too few for a segment card")
        if crc32c(data[: layout.size]) != _CRC.unpack_from(data, layout.size)[0]:
            raise DamagedFile(f"{path}: checksum of the summary does not match")
        fields = layout.unpack_from(data)[2:]
        self.base, self.next_offset, self.size, self.max_timestamp, self.max_timestamp_offset = fields[:5]
        self.entries, self.blocks = fields[5:7]
        self.open, self.aborted, self.first_open = fields[7:] or (0, 0, -1)


def decode(data: bytes, path: str) -> Card:
    """A saved card. Raises `DamagedFile`."""
    head = Summary(data, path)
    body = data[head.size_bytes : -_CRC.size]
    columns = (
        ("I", head.entries),
        ("I", head.entries),
        ("q", head.entries),
        ("I", head.blocks),
        ("q", head.open * 2),
        ("q", head.aborted * 4),
    )
    expected = sum(array(kind).itemsize * count for kind, count in columns)
    if len(body) != expected or len(data) < head.size_bytes + _CRC.size:
        raise DamagedFile(f"{path}: {len(data)} bytes do not fit {head.entries} entries and {head.blocks} blocks")
    if crc32c(body) != _CRC.unpack(data[-_CRC.size :])[0]:
        raise DamagedFile(f"{path}: checksum of the entries does not match")
    card = Card(head.base)
    card.next_offset, card.size = head.next_offset, head.size
    card.max_timestamp, card.max_timestamp_offset = head.max_timestamp, head.max_timestamp_offset
    start, made = 0, []
    for kind, count in columns:
        column = array(kind)
        column.frombytes(body[start : start + column.itemsize * count])
        start += column.itemsize * count
        made.append(_little_endian(column, in_place=True))
    card.offsets, card.positions, card.times, card.sums = made[:4]
    card.transactions = Transactions.restore(made[4], made[5])
    card._last_indexed = card.positions[-1] if card.positions else -1
    return card


def _little_endian(column: "array[int]", in_place: bool = False) -> "array[int]":
    if sys.byteorder == "little":
        return column
    swapped = column if in_place else column[:]
    swapped.byteswap()
    return swapped
