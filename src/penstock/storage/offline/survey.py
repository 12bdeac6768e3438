"""Walk a segment that may be damaged: which stretches are sound, which can be put right, which are lost.

`scan` stops at the first byte that does not fit; a survey goes on behind it. What it tells apart:
  * sound     the batch checks, has the next offset and the leader epoch on record;
  * mendable  the batch matches its CRC-32C, but a field the CRC leaves out (offset, length, epoch, magic) was changed,
              and only one value fits its neighbours;
  * lost      no batch can be made out until `position + size`, or offsets are missing between two sound batches.
Where the log has been compacted, offsets only rise and batches may be empty, so neighbours say little about a batch's
offset. There the block checksums of the segment's card are asked: they cover it, and tell a flipped bit of it.
Behind damage the next batch is looked for where the broken one says it ends, then byte by byte. A candidate must match
its CRC, fit the offsets that are free there, and be followed by a batch that continues it, or end where the file does:
a record's value may hold a batch, too, and must not be taken for one.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.ports.disk import File
from penstock.records.batch import (
    BATCH_HEADER,
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_BYTES,
    HIGHEST_CODEC,
    KNOWN_ATTRIBUTES,
    MAGIC,
    PREFIX_BYTES,
    Header,
    decode_header,
)
from penstock.storage.log import card as cards
from penstock.storage.log.card import Card
from penstock.storage.log.epochs import LeaderEpochs

_WINDOW_BYTES = 1 << 20
_CRC_START = 21
_MAGIC_AT = 16
_OFFSET = Struct(">q")
_UNSIGNED = (1 << 64) - 1
_ATTRIBUTES = KNOWN_ATTRIBUTES | DELETE_HORIZON
_LARGEST_SPAN = (1 << 32) - 1  # offsets in one segment; cards have 32 bits for them


class Stretch(NamedTuple):
    """Bytes `[position, position + size)` and the offsets `[first_offset, next_offset)` they hold or should hold."""

    position: int
    size: int
    first_offset: int
    next_offset: int
    header: Header | None
    """As it should be; None when the stretch is lost."""
    problem: str | None
    """None when sound."""

    @property
    def is_sound(self) -> bool:
        return self.problem is None

    @property
    def is_lost(self) -> bool:
        return self.header is None

    @property
    def end(self) -> int:
        return self.position + self.size


class Survey:
    """One pass over bytes `[position, size)` of a file; memory stays at a window and the batch at hand. Blocking.

    Args:
        next_offset: the offset the first batch must have.
        ceiling: offsets at or above it belong to the next segment; None when there is none.
        epochs: the epochs on record, or None when they are lost.
        gaps_to: below this offset the log may have been compacted.
        card: what is known of a prefix of the file, for its block checksums.
    """

    def __init__(
        self,
        file: File,
        size: int,
        next_offset: int,
        *,
        position: int = 0,
        ceiling: int | None = None,
        epochs: LeaderEpochs | None = None,
        gaps_to: int = 0,
        card: Card | None = None,
    ) -> None:
        self._file = file
        self._size = size
        self._position = position
        self._next_offset = next_offset
        self._ceiling = next_offset + _LARGEST_SPAN if ceiling is None else ceiling
        self._is_last = ceiling is None
        self._epochs = epochs
        self._gaps_to = gaps_to
        self._card = card
        self._good_blocks: set[int] = set()
        known = epochs.entries if epochs is not None else []
        self._oldest_epoch = known[0][0] if known else None
        self._last_epoch = -1
        self._window, self._window_at = memoryview(b""), 0

    def stretches(self) -> Iterator[Stretch]:
        while self._position < self._size:
            for stretch in self._next():
                if stretch.header is not None:
                    self._last_epoch = stretch.header.leader_epoch
                self._position = stretch.end
                self._next_offset = stretch.next_offset
                yield stretch

    def data(self, stretch: Stretch) -> memoryview:
        """The bytes of a batch as they should be."""
        view = self._read(stretch.position, stretch.size)
        if stretch.is_sound or stretch.header is None:
            return view
        mended = bytearray(view)
        BATCH_HEADER.pack_into(mended, 0, *stretch.header)
        return memoryview(mended)

    # --- one step

    def _next(self) -> list[Stretch]:
        position, expected = self._position, self._next_offset
        header = self._header(position)
        problem = "the file ends inside a batch header" if header is None else self._misfit(header, position)
        if header is not None and problem is None:
            return self._place(header, position)
        header_mended = self._mend_magic(header, position)
        if header_mended is not None:
            return self._place(header_mended, position, "a batch has another magic than 2")
        assert problem is not None
        end, found = self._resync(position, header)
        next_offset = expected if found is None else found.base_offset
        if header is not None:
            whole = self._mend_length(header, position, end, found)
            if whole is not None:
                return [self._stretch(whole, position, "a batch has a wrong length")]
        return [Stretch(position, end - position, expected, max(next_offset, expected), None, problem)]

    def _place(self, header: Header, position: int, problem: str | None = None) -> list[Stretch]:
        """A batch that matches its CRC: is it the next one, and of the epoch that wrote here?"""
        expected = self._next_offset
        before: list[Stretch] = []
        vouched = self._vouched_offset(header, position, expected)
        if vouched is not None:
            if vouched != header.base_offset:
                problem = problem or f"a batch has offset {header.base_offset}, by the card's checksums it is {vouched}"
                header = header._replace(base_offset=vouched)
        elif header.base_offset != expected and not self._is_behind_gap(header, position):
            wrong = f"a batch has offset {header.base_offset}, expected {expected}"
            renamed = header._replace(base_offset=expected)
            if header.base_offset > expected and self._is_followed(header, position, alone=False):
                missing = f"offsets {expected} to {header.base_offset - 1} are missing"
                before = [Stretch(position, 0, expected, header.base_offset, None, missing)]
            elif expected >= self._gaps_to and self._is_followed(renamed, position, alone=self._is_last):
                header, problem = renamed, problem or wrong
            else:
                end, found = self._resync(position, header)
                next_offset = expected if found is None else found.base_offset
                return [Stretch(position, end - position, expected, max(next_offset, expected), None, wrong)]
        epoch = self._epoch_of(header)
        if epoch != header.leader_epoch:
            problem = problem or f"a batch has leader epoch {header.leader_epoch}, expected {epoch}"
            header = header._replace(leader_epoch=epoch)
        return [*before, self._stretch(header, position, problem)]

    def _stretch(self, header: Header, position: int, problem: str | None) -> Stretch:
        return Stretch(position, header.size, header.base_offset, header.last_offset + 1, header, problem)

    def _epoch_of(self, header: Header) -> int:
        """The leader epoch a batch must have; its own where none is on record and it fits between its neighbours."""
        expected = -1 if self._epochs is None else self._epochs.at(header.base_offset)
        if expected >= 0:
            return expected
        oldest = self._oldest_epoch
        if oldest is not None and header.leader_epoch > oldest:  # below the log start, where epochs are forgotten
            return self._last_epoch if self._last_epoch >= 0 else oldest
        return max(header.leader_epoch, self._last_epoch)

    # --- does it check?

    def _misfit(self, header: Header, position: int) -> str | None:
        """Why this is no batch, or None. Its place in the log is not looked at."""
        room = self._size - position
        if header.magic != MAGIC or header.size < HEADER_BYTES:
            return "no batch starts here"
        if header.size > room:
            return "the file ends inside a batch"
        least = 0 if self._gaps_to and header.size == HEADER_BYTES else 1
        if header.record_count < least or header.last_offset_delta < max(header.record_count - 1, 0):
            return "a batch's record count does not fit its offsets"
        if header.attributes & ~_ATTRIBUTES or header.attributes & CODEC_MASK > HIGHEST_CODEC:
            return "a batch has unknown attributes"
        return None if self._crc(position, header.size) == header.crc else "a batch does not match its CRC-32C"

    def _is_followed(self, header: Header, position: int, *, alone: bool) -> bool:
        """Whether the batch, so placed, fits below the ceiling and what comes behind it continues it.

        Args:
            alone: nothing behind it will do as well.
        """
        following, end = header.last_offset + 1, position + header.size
        if following > self._ceiling:
            return False
        if end == self._size:
            return alone or following == self._ceiling
        after = self._header(end)
        return after is not None and after.base_offset == following and self._misfit(after, end) is None

    def _mend_magic(self, header: Header | None, position: int) -> Header | None:
        if header is None or header.magic == MAGIC:
            return None
        mended = header._replace(magic=MAGIC)
        return mended if self._misfit(mended, position) is None else None

    def _mend_length(self, header: Header, position: int, end: int, found: Header | None) -> Header | None:
        """The batch with the length it has if it reaches to `end`, provided that its CRC says so, too."""
        mended = header._replace(batch_length=end - position - PREFIX_BYTES)
        following = found.base_offset if found is not None else mended.last_offset + 1
        fits = self._continues(mended, self._next_offset) and following <= self._ceiling
        fits = fits and (found is None or self._continues(found, mended.last_offset + 1))
        return mended if fits and mended != header and self._misfit(mended, position) is None else None

    # --- the next batch behind damage

    def _resync(self, position: int, broken: Header | None) -> tuple[int, Header | None]:
        """Where the next sound batch begins, and its header; the end of the file and None when there is none."""
        if broken is not None and HEADER_BYTES <= broken.size < self._size - position:
            end = position + broken.size
            header = self._header(end)
            follows = header is not None and self._continues(header, broken.last_offset + 1)
            if header is not None and follows and self._may_follow(header, end):
                return end, header
        for at in self._candidates(position + 1):
            header = self._header(at)
            if header is not None and self._may_follow(header, at) and self._is_trusted(header, at):
                return at, header
        return self._size, None

    def _candidates(self, position: int) -> Iterator[int]:
        """Positions whose 17th byte is the magic of a batch."""
        at = position
        while at + HEADER_BYTES <= self._size:
            window = bytes(self._read(at, min(_WINDOW_BYTES, self._size - at)))
            found = window.find(MAGIC, _MAGIC_AT)
            while found >= 0:
                yield at + found - _MAGIC_AT
                found = window.find(MAGIC, found + 1)
            at += max(1, len(window) - _MAGIC_AT)

    def _may_follow(self, header: Header, position: int) -> bool:
        return (
            self._next_offset < header.base_offset
            and header.last_offset_delta >= 0
            and header.last_offset < self._ceiling
            and self._misfit(header, position) is None
        )

    def _is_trusted(self, header: Header, position: int) -> bool:
        """Not a batch inside a record: another batch continues it, or it ends with the file."""
        end = position + header.size
        if end == self._size:
            return True
        after = self._header(end)
        return after is not None and self._continues(after, header.last_offset + 1) and self._misfit(after, end) is None

    # --- where offsets may be missing

    def _continues(self, header: Header, next_offset: int) -> bool:
        """Whether a batch may come next: contiguous, or behind a gap where the log may have some."""
        return header.base_offset == next_offset or self._is_thinned(header, next_offset)

    def _is_thinned(self, header: Header, next_offset: int) -> bool:
        return next_offset <= header.base_offset and header.last_offset < min(self._gaps_to, self._ceiling)

    def _is_behind_gap(self, header: Header, position: int) -> bool:
        """Whether it fits in front of the batch that follows, and only records that were compacted away are missing."""
        if not self._is_thinned(header, self._next_offset):
            return False
        following, end = header.last_offset + 1, position + header.size
        after = self._header(end)
        if after is None or self._misfit(after, end) is not None or self._continues(after, following):
            return True
        return self._vouched_offset(after, end, following) is not None

    def _vouched_offset(self, header: Header, position: int, next_offset: int) -> int | None:
        """A batch's offset by the card's block checksums, perhaps with one bit put right; None if they do not tell."""
        card, size = self._card, cards.BLOCK_BYTES
        if card is None or next_offset >= self._gaps_to or position + _OFFSET.size > card.size:
            return None
        blocks = range(position // size, (position + _OFFSET.size - 1) // size + 1)
        if not self._good_blocks.issuperset(blocks):
            start = blocks[0] * size
            data = bytearray(self._file.read_at(min((blocks[-1] + 1) * size, card.size) - start, start))
            sums = [card.sums[block] for block in blocks]
            if _block_sums(data) != sums:
                offsets = [(header.base_offset & _UNSIGNED) ^ (1 << bit) for bit in range(64)]
                fitting = [each for each in offsets if self._is_thinned(header._replace(base_offset=each), next_offset)]
                return _matching_offset(fitting, data, position - start, sums)
            self._good_blocks.update(blocks)
        return header.base_offset if self._is_thinned(header, next_offset) else None

    # --- bytes

    def _header(self, position: int) -> Header | None:
        if position + HEADER_BYTES > self._size:
            return None
        view = self._read(position, HEADER_BYTES)
        return decode_header(view) if len(view) == HEADER_BYTES else None

    def _crc(self, position: int, size: int) -> int:
        crc, at, end = 0, position + _CRC_START, position + size
        while at < end:
            piece = self._read(at, min(_WINDOW_BYTES, end - at))
            if not piece:
                return -1
            crc = crc32c(piece, crc)
            at += len(piece)
        return crc

    def _read(self, position: int, size: int) -> memoryview:
        at = position - self._window_at
        if at < 0 or at + size > len(self._window):
            wanted = min(max(size, _WINDOW_BYTES), max(self._size - position, 0))
            self._window, self._window_at, at = memoryview(self._file.read_at(wanted, position)), position, 0
        return self._window[at : at + size]


def _matching_offset(offsets: list[int], data: bytearray, at: int, sums: list[int]) -> int | None:
    """The first of the offsets with which blocks have these checksums."""
    for offset in offsets:
        _OFFSET.pack_into(data, at, offset)
        if _block_sums(data) == sums:
            return offset
    return None


def _block_sums(data: bytearray) -> list[int]:
    size = cards.BLOCK_BYTES
    return [crc32c(memoryview(data)[at : at + size]) for at in range(0, len(data), size)]
