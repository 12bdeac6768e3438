"""65,536 neighbouring offsets: which strand each is of, and the offsets of each strand.

A block is made when the first record in it says anything. While records are added each strand has a list of its own;
a full block has them all in one array, strand after strand, which takes two bytes an offset.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SHIFT: Final = 16
SIZE: Final = 1 << SHIFT
INSIDE: Final = SIZE - 1
PLAIN: Final = 0
"""The strand of what says nothing."""


class Positions:
    """Where in a block a strand's offsets are: `values[begin:end]`, in their order."""

    __slots__ = ("begin", "end", "values")

    def __init__(self, values: Sequence[int], begin: int, end: int) -> None:
        self.values = values
        self.begin = begin
        self.end = end


_EVERYWHERE: Final = range(SIZE)


class Block:
    """Args:
    plain: how many offsets at its beginning say nothing.
    """

    __slots__ = ("_begins", "_lists", "_order", "_strands", "_which", "count", "own", "slots", "waiting")

    def __init__(self, plain: int) -> None:
        self.count = plain
        """Offsets it has so far."""
        self.own = 0
        """Of them, those that have a time of their own."""
        self.waiting = 0
        """Of them, those that are not due yet."""
        self.slots: array[int] | None = None
        """Hashes of keys, in a queue that is ordered by key; 0 for no key."""
        self._which: array[int] | None = None
        """The strand of each offset, if any of them is not plain."""
        self._lists: dict[int, array[int]] = {PLAIN: array("H", range(plain))} if plain else {}
        self._order = array("H")
        self._strands = array("H")
        self._begins = array("I")

    @property
    def is_full(self) -> bool:
        return self.count == SIZE

    @property
    def strands(self) -> list[int]:
        """Those that have anything here that was not delayed."""
        return list(self._lists) or list(self._strands)

    def which(self, position: int) -> int:
        return PLAIN if self._which is None else self._which[position]

    def which_in(self, begin: int, end: int) -> Sequence[int] | None:
        """The strands of a range; None if all of it is plain."""
        return None if self._which is None else self._which[begin:end]

    def positions(self, strand: int) -> Positions:
        if self._lists:
            values = self._lists.get(strand, _NONE)
            return Positions(values, 0, len(values))
        at = bisect_left(self._strands, strand)
        if at == len(self._strands) or self._strands[at] != strand:
            return Positions(_NONE, 0, 0)
        return Positions(self._order, self._begins[at], self._begins[at + 1])

    # --- adding

    def add_plain(self, count: int) -> None:
        """So many more that say nothing."""
        begin, end = self.count, self.count + count
        self._list(PLAIN).extend(range(begin, end))
        self._grow(end)

    def add(self, strand: int, *, is_later: bool) -> bool:
        """One more; whether the strand has its first one here.

        Args:
            is_later: it comes into its strand at a time of its own, not here.
        """
        at = self.count
        if strand != PLAIN and self._which is None:
            self._which = array("H", bytes(2 * at))
        if self._which is not None:
            self._which.append(strand)
        self.count = at + 1
        is_first = False
        if not is_later:
            values = self._lists.get(strand)
            if values is None:
                values, is_first = self._list(strand), True
            values.append(at)
        if self.slots is not None:
            self.slots.append(0)
        if self.count == SIZE:
            self._seal()
        return is_first

    def set_slot(self, position: int, slot: int) -> None:
        """The hash of the key at an offset that was added."""
        if self.slots is None:
            self.slots = array("I", bytes(4 * self.count))
        self.slots[position] = slot

    def _list(self, strand: int) -> "array[int]":
        return self._lists.setdefault(strand, array("H"))

    def _grow(self, end: int) -> None:
        grown = end - self.count
        if self._which is not None:
            self._which.frombytes(bytes(2 * grown))
        if self.slots is not None:
            self.slots.frombytes(bytes(4 * grown))
        self.count = end
        if end == SIZE:
            self._seal()

    def _seal(self) -> None:
        """All lists become one array. Places in them stay what they are: counted from where each strand begins."""
        order = self._order
        for strand in sorted(self._lists):
            self._strands.append(strand)
            self._begins.append(len(order))
            order.extend(self._lists[strand])
        self._begins.append(len(order))
        self._lists = {}


_NONE: Final = array("H")


def everywhere(count: int) -> Positions:
    """Of a block in which nothing says anything, so far."""
    return Positions(_EVERYWHERE, 0, count)
