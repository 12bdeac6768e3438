"""One `.log` file: which offsets it holds, where they are, which of its blocks have been checked."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import Code, PenstockError
from penstock.ports.disk import Disk, File
from penstock.records.batch import HEADER_BYTES, PREFIX_BYTES, decode_header, decode_offset_and_size
from penstock.storage.log import card as cards
from penstock.storage.log.card import BLOCK_BYTES, Card, Summary

_WALK_BYTES = 8192
LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
CHECKPOINT_SUFFIX = ".checkpoint"


class FileSlice(NamedTuple):
    """Bytes on disk, ready to be sent."""

    file: File
    position: int
    size: int
    base: int = 0
    """Base offset of the segment the bytes are in."""


class NotReady(Exception):
    """The read needs the disk first (open, verify, page in): `await reading.warm(...)`, then read again."""


class FilePool:
    """Open segment files, least recently used dropped first; a file still in use elsewhere stays open until let go."""

    def __init__(self, disk: Disk, capacity: int = 4096) -> None:
        self._disk = disk
        self._capacity = capacity
        self._files: OrderedDict[str, File] = OrderedDict()

    def peek(self, path: str) -> File | None:
        file = self._files.get(path)
        if file is not None:
            with suppress(KeyError):  # `prepare` looks from a worker thread; the loop may drop the file meanwhile
                self._files.move_to_end(path)
        return file

    def put(self, path: str, file: File) -> None:
        self._files[path] = file
        self._files.move_to_end(path)
        while len(self._files) > self._capacity:
            self._files.popitem(last=False)

    def open(self, path: str) -> File:
        """Open without pooling; blocking."""
        return self._disk.open(path)

    def forget(self, path: str) -> None:
        self._files.pop(path, None)


class Segment:
    """Bytes `[0, size)` of one file, offsets `[base, next_offset)`.

    `card` is None for a sealed segment nobody has read yet. `file` is set while the segment is written or unsynced.

    `checked` has a 0 for each block that must match its checksum before it is sent. Those are the blocks written by an
    earlier process; and in a sealed segment everything from where it was found to have left memory: whatever else has
    left behind that place is brought back by the kernel's reading ahead, and looks as if it had always been there.
    """

    __slots__ = (
        "_aborted",
        "_first_open",
        "base",
        "card",
        "checked",
        "checkpointed",
        "created_ms",
        "directory",
        "file",
        "max_timestamp",
        "name",
        "named",
        "next_offset",
        "sealed",
        "size",
    )

    def __init__(self, directory: str, base: int) -> None:
        self.directory = directory
        self.base = base
        self.name = f"{base:020d}"
        self.card: Card | None = None
        self.file: File | None = None
        self.size = 0
        self.next_offset = base
        self.max_timestamp = -1
        self.sealed = False
        self.named = True
        """False between the roll and the round that gives the file its name."""
        self.checkpointed = 0
        """Bytes covered by the saved card."""
        self.created_ms = 0
        self.checked: bytearray | None = None
        self._aborted = 0
        self._first_open = -1

    @property
    def aborted_count(self) -> int:
        """How many transactions were aborted by a marker in this segment."""
        return self.card.transactions.aborted_count if self.card is not None else self._aborted

    @property
    def first_open(self) -> int:
        """The first offset of the oldest transaction that is open where this segment ends, or -1."""
        return self.card.transactions.first_open if self.card is not None else self._first_open

    @property
    def open_transactions(self) -> dict[int, int]:
        """Those open where this segment ends; its card must be there."""
        assert self.card is not None
        return self.card.transactions.open

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.name}{LOG_SUFFIX}"

    @property
    def index_path(self) -> str:
        return f"{self.directory}/{self.name}{INDEX_SUFFIX}"

    @property
    def checkpoint_path(self) -> str:
        return f"{self.directory}/{self.name}{CHECKPOINT_SUFFIX}"

    @classmethod
    def sealed_from(cls, directory: str, summary: Summary) -> "Segment":
        segment = cls(directory, summary.base)
        segment.sealed = True
        segment.size = segment.checkpointed = summary.size
        segment.next_offset = summary.next_offset
        segment.max_timestamp = summary.max_timestamp
        segment._aborted, segment._first_open = summary.aborted, summary.first_open
        segment.checked = bytearray(summary.blocks)
        return segment

    def take_card(self, card: Card) -> None:
        self.card = card
        self.size, self.next_offset, self.max_timestamp = card.size, card.next_offset, card.max_timestamp

    def is_unchecked(self, position: int, size: int) -> bool:
        checked = self.checked
        if checked is None:
            return False
        return checked.find(0, position // BLOCK_BYTES, (position + size - 1) // BLOCK_BYTES + 1) >= 0

    def is_in_memory(self, file: File, position: int, size: int) -> bool:
        """Whether a range is likely to be; if not, everything from there on is distrusted."""
        if file.resident(size, position):
            return True
        self.distrust(position)
        return False

    def distrust(self, position: int) -> None:
        """Something from `position` on has left memory: check each block from there on once more, if that is possible.

        What lies before it cannot come back by a read there: the kernel reads ahead, not back. From any thread, so it
        is one step, and of two nothing is lost.
        """
        checked, first = self.checked, position // BLOCK_BYTES
        if self.sealed and checked is not None:
            checked[first:] = bytes(max(0, len(checked) - first))

    def seal(self) -> None:
        """Nothing changes any more, and the card covers all of it."""
        checked = self.checked if self.checked is not None else bytearray()
        self.checked = checked.ljust(-(-self.size // BLOCK_BYTES), b"\1")
        self.sealed = True  # last: a thread that reads it takes this for its word that all is covered

    def note_checked(self, blocks: Collection[int]) -> None:
        checked = self.checked
        if checked is not None:
            for block in blocks:
                if block < len(checked):
                    checked[block] = 1

    def walk_bytes(self, card: Card, position: int) -> int:
        """How far a walk from the indexed `position` may go: to the next indexed batch, or to the end."""
        at = bisect_right(card.positions, position)
        return max(1, (card.positions[at] if at < len(card.positions) else self.size) - position)

    def find(self, file: File, offset: int) -> int:
        """The position of the batch that holds `offset`, or of the first batch after it. Reads a few headers."""
        card = self.card
        assert card is not None
        position = card.position_before(offset)
        window, window_at = b"", position
        while position < self.size:
            at = position - window_at
            if at + HEADER_BYTES > len(window):
                window, window_at, at = file.read_at(_WALK_BYTES, position), position, 0
                if len(window) < HEADER_BYTES:
                    raise self.damaged(position, "ends inside a batch header")
            header = decode_header(window, at)
            if header.size < HEADER_BYTES or not self.base <= header.base_offset < self.next_offset:
                raise self.damaged(position, "has no batch where the index points")
            if header.last_offset >= offset:
                return position
            position += header.size
        return position

    def batch_size_at(self, file: File, position: int) -> int:
        prefix = file.read_at(PREFIX_BYTES, position)
        if len(prefix) < PREFIX_BYTES:
            raise self.damaged(position, "ends inside a batch header")
        size = decode_offset_and_size(prefix, 0)[1]
        if not HEADER_BYTES <= size <= self.size - position:
            raise self.damaged(position, "has a batch with an impossible length")
        return size

    def check_blocks(self, file: File, position: int, size: int, done: Collection[int] = ()) -> list[int]:
        """Read the blocks of a range but `done` and compare them with the card; returns those found good. Blocking.

        Raises:
            PenstockError: CORRUPT_LOG naming file and block.
        """
        assert self.card is not None
        good, sealed = [], self.sealed
        for block in range(position // BLOCK_BYTES, (position + size - 1) // BLOCK_BYTES + 1):
            start = block * BLOCK_BYTES
            if block in done or not (sealed or self.is_unchecked(start, 1)):
                continue
            covered = min(BLOCK_BYTES, self.checkpointed - start)
            if covered <= 0:
                break  # all of it was compacted away
            data = file.read_at(covered, start)
            if len(data) != covered or crc32c(data) != self.card.sums[block]:
                raise self.damaged(start, "does not match its checksum")
            good.append(block)
        return good

    def load_card(self, disk: Disk) -> Card:
        """The saved card of a sealed segment. Raises `DamagedFile` or `FileNotFoundError`. Blocking."""
        file = disk.open(self.index_path)
        try:
            return cards.decode(file.read_at(file.size(), 0), self.index_path)
        finally:
            file.close()

    def damaged(self, position: int, what: str) -> PenstockError:
        return PenstockError(
            Code.CORRUPT_LOG,
            f"{self.path} {what} at byte {position} (offsets {self.base} to {self.next_offset - 1})",
            help="restore the file from a replica or backup; nothing was deleted",
        )
