"""Transactions in a pass: whose records were aborted, and whose marker has nothing left to speak about.

A marker tells readers what became of records before it, so it stays while any of them was still there when this pass
read the log, even if the pass drops them: a reader may be between the two. It gets its delete horizon in a later pass.
"""

from bisect import bisect_right
from collections.abc import Iterable

from penstock.records.batch import Header
from penstock.records.control import Marker


class AbortedTransactions:
    """Which batches belong to aborted transactions; a producer has one at a time, so its ranges are apart."""

    def __init__(self, rows: Iterable[tuple[int, int, int]]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first_offset, last_offset in sorted(rows):
            self._ranges.setdefault(producer_id, []).append((first_offset, last_offset))

    def holds(self, header: Header) -> bool:
        if not header.is_transactional or header.is_control:
            return False
        ranges = self._ranges.get(header.producer_id)
        if not ranges:
            return False
        at = bisect_right(ranges, header.base_offset, key=_first_offset) - 1
        return at >= 0 and header.base_offset <= ranges[at][1]


class SeenTransactions:
    """What was met so far, walking the log from its start, or from where transactions of some producers are open."""

    def __init__(self, open_before: Iterable[int] = ()) -> None:
        self._with_data: set[int] = set(open_before)
        """Producers of whom a transactional batch was met since their last marker."""
        self.aborted: set[tuple[int, int]] = set()
        """Producer and offset of abort markers with data before them; a user may clear it."""

    def note_data(self, header: Header) -> None:
        if header.is_transactional:
            self._with_data.add(header.producer_id)

    def note_marker(self, header: Header, marker: Marker) -> bool:
        """Returns whether the marker still speaks about something."""
        if header.producer_id not in self._with_data:
            return False
        self._with_data.discard(header.producer_id)
        if marker is Marker.ABORT:
            self.aborted.add((header.producer_id, header.last_offset))
        return True


def _first_offset(row: tuple[int, int]) -> int:
    return row[0]
