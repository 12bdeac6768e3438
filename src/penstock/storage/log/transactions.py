"""The transactions of a log, as far as its bytes tell: which are open, which were aborted and where.

Both belong to a segment's card: `open` is how things stand at its end, `aborted` lists the transactions whose abort
marker lies in the segment. So a reader finds what to skip by walking cards, and a card can be made again from the
segment's batches and what was open where it begins.

A transaction is open from its producer's first batch until its marker. First offsets rise in the order they are
noted, so the first open one is the lowest.
"""

from array import array
from bisect import bisect_left
from typing import NamedTuple

from penstock.records.batch import Header
from penstock.records.control import Marker, decode_marker


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """Of its marker."""
    stable_offset: int
    """Below it nothing was undecided when the marker was written: transactions that ended later begin above."""


class EndedTransaction(NamedTuple):
    first_offset: int
    last_offset: int


class Transactions:
    """Of one segment. One writer; what the card saves of it is copied first."""

    __slots__ = ("_rows", "open")

    def __init__(self, open_: dict[int, int] | None = None) -> None:
        self.open: dict[int, int] = dict(open_ or {})
        """Producer id to first offset, the lowest first."""
        self._rows = array("q")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transactions) and (self.open, self._rows) == (other.open, other._rows)

    __hash__ = None  # type: ignore[assignment]

    @property
    def first_open(self) -> int:
        """The first offset of the oldest open transaction, or -1."""
        return next(iter(self.open.values()), -1)

    @property
    def aborted_count(self) -> int:
        return len(self._rows) // 4

    def aborted(self) -> list[AbortedTransaction]:
        rows = self._rows
        return [AbortedTransaction(*rows[at : at + 4]) for at in range(0, len(rows), 4)]

    def note(self, header: Header, batch: bytes | memoryview) -> EndedTransaction | None:
        """Take in a transactional batch at its place in the log; returns what it ended, if it is a marker."""
        if not header.is_control:
            self.open.setdefault(header.producer_id, header.base_offset)
            return None
        marker = decode_marker(batch)
        first = self.open.pop(header.producer_id, -1) if marker is not None else -1
        if first < 0:
            return None
        last = header.last_offset
        if marker is Marker.ABORT:
            self._rows.extend((header.producer_id, first, last, self.first_open if self.open else last + 1))
        return EndedTransaction(first, last)

    def overlapping(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions with a record in `[start_offset, end_offset)`."""
        rows = self._rows
        found = []
        at = bisect_left(range(len(rows) // 4), start_offset, key=lambda row: rows[row * 4 + 2]) * 4
        while at < len(rows):
            row = AbortedTransaction(*rows[at : at + 4])
            if row.first_offset < end_offset:
                found.append(row)
            if row.stable_offset >= end_offset:
                break
            at += 4
        return found

    def copy(self) -> "Transactions":
        made = Transactions(self.open)
        made._rows = self._rows[:]
        return made

    def columns(self) -> tuple["array[int]", "array[int]"]:
        """Open and aborted ones as a card keeps them."""
        return array("q", [number for pair in self.open.items() for number in pair]), self._rows

    @classmethod
    def restore(cls, opened: "array[int]", aborted: "array[int]") -> "Transactions":
        made = cls(dict(zip(opened[::2], opened[1::2], strict=True)))
        made._rows = aborted
        return made

    @classmethod
    def kept(cls, open_: dict[int, int], aborted: list[AbortedTransaction]) -> "Transactions":
        """Of a segment that replaces others."""
        made = cls(open_)
        for row in aborted:
            made._rows.extend(row)
        return made
