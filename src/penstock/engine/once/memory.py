"""Which ids were appended lately, and where: what a partition with a window of duplicates keeps in memory.

Time is cut into spans of an eighth of the window, and ids are kept by the span in which they came: a span goes as a
whole when all of it is older than the window. An id is known for as long as the window at least, and for an eighth of
it longer at most.

    span:    [ packed | packed | packed | ... | dictionaries ]
               oldest                           newest

The newest span is dictionaries, some 170 bytes for an id; those before it are packed, one slice of the ids at a time:
sorted hashes, their offsets, and where each beginning of a hash starts among them, less than 30 bytes for an id. What
packs is called by who has time for it (`pack`); whatever is not packed yet is found all the same.
"""

from array import array
from collections import deque
from collections.abc import Iterable
from typing import Final

ID_BYTES: Final = 16
SPANS: Final = 8
_SLICES: Final = 256
_MOST_LOOSE: Final = 1 << 18
"""Ids of one span in dictionaries; then another one begins, that goes when the first one does."""
_LEAST_PACKED: Final = 1 << 12
"""Spans of fewer ids stay as they are: their slices would take more than they save."""


class Packed:
    """Ids that begin with the same byte: as few bytes as possible, and found in a step or two."""

    __slots__ = ("_hashes", "_offsets", "_shift", "_starts")

    def __init__(self, ids: dict[bytes, int]) -> None:
        found = sorted(ids.items())
        bits = min(max(len(found).bit_length(), 1), 16)
        self._shift = 16 - bits
        self._hashes = b"".join([each for each, _ in found])
        self._offsets = array("q", [offset for _, offset in found])
        counts = [0] * ((1 << bits) + 1)
        for each, _ in found:
            counts[((each[1] << 8 | each[2]) >> self._shift) + 1] += 1
        total = 0
        for at, count in enumerate(counts):
            total += count
            counts[at] = total
        self._starts = array("H" if total < 1 << 16 else "I", counts)

    def get(self, wanted: bytes) -> int | None:
        at = (wanted[1] << 8 | wanted[2]) >> self._shift
        first, end = self._starts[at], self._starts[at + 1]
        if first == end:
            return None
        found = self._hashes.find(wanted, first * ID_BYTES, end * ID_BYTES)
        while found >= 0 and found % ID_BYTES:  # the end of one and the beginning of the next look like it
            found = self._hashes.find(wanted, found + 1, end * ID_BYTES)
        return None if found < 0 else self._offsets[found // ID_BYTES]

    @property
    def size_bytes(self) -> int:
        return len(self._hashes) + sum(each.itemsize * len(each) for each in (self._offsets, self._starts))


Slice = dict[bytes, int] | Packed


class _Span:
    """Ids that came in the same stretch of time.

    Attributes:
        number: which stretch.
        first_offset: the lowest of their offsets.
    """

    __slots__ = ("count", "first_offset", "number", "slices", "to_pack")

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = 0
        self.first_offset: int | None = None
        self.slices: list[Slice | None] = [None] * _SLICES
        self.to_pack = 0
        """The first slice that is not packed."""


class Memory:
    """Ids of one partition, by the hash of each.

    Times are milliseconds of a clock that never goes back.
    """

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._span_ms = -(-window_ms // SPANS)
        self._spans: deque[_Span] = deque()
        self.count = 0

    def get(self, wanted: bytes) -> int | None:
        """The offset of the record with this id, the last one of several; None if there is none."""
        at = wanted[0]
        for span in reversed(self._spans):
            found = span.slices[at]
            if found is not None and (offset := found.get(wanted)) is not None:
                return offset
        return None

    def add(self, time_ms: int, ids: Iterable[tuple[bytes, int]]) -> None:
        """Remember ids and their offsets; times rise, and one that does not counts as the one before."""
        number = time_ms // self._span_ms
        span = self._spans[-1] if self._spans else None
        if span is None or span.number < number or span.count >= _MOST_LOOSE:
            span = _Span(number if span is None else max(span.number, number))
            self._spans.append(span)
        before = span.count
        for wanted, offset in ids:
            ids_of_slice = span.slices[wanted[0]]
            if ids_of_slice is None:
                ids_of_slice = span.slices[wanted[0]] = {}
            assert isinstance(ids_of_slice, dict)
            if wanted not in ids_of_slice:
                span.count += 1
            ids_of_slice[wanted] = offset
            if span.first_offset is None or offset < span.first_offset:
                span.first_offset = offset
        self.count += span.count - before

    def expire(self, now_ms: int) -> None:
        """Forget the spans that are older than the window, all of them."""
        while self._spans and (self._spans[0].number + 1) * self._span_ms + self._window_ms <= now_ms:
            self.drop_oldest()

    def drop_oldest(self) -> None:
        self.count -= self._spans.popleft().count

    def pack(self) -> bool:
        """Pack one slice of a span that takes no more; whether there was one."""
        for span in list(self._spans)[:-1]:
            while span.count >= _LEAST_PACKED and span.to_pack < _SLICES:
                at = span.to_pack
                span.to_pack += 1
                found = span.slices[at]
                if isinstance(found, dict):
                    span.slices[at] = Packed(found)
                    return True
        return False

    @property
    def first_offset(self) -> int | None:
        """The lowest offset of what is remembered."""
        return min((each.first_offset for each in self._spans if each.first_offset is not None), default=None)

    @property
    def packed_bytes(self) -> tuple[int, int]:
        """How many ids are packed, and what that takes."""
        packed = [each for span in self._spans for each in span.slices if isinstance(each, Packed)]
        loose = sum(len(each) for span in self._spans for each in span.slices if isinstance(each, dict))
        return self.count - loose, sum(each.size_bytes for each in packed)
