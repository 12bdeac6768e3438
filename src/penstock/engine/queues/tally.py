"""What a broker's queues have done since it started, as its metrics tell it.

Counted is what a step decides while the broker leads, range by range; what is read from a ledger was counted by whoever
decided it.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from penstock.engine.queues import entries
from penstock.engine.queues.entries import How, Value
from penstock.engine.queues.headers import Reason
from penstock.engine.queues.window import Run
from penstock.observe.stats import Stats


class Back(StrEnum):
    """How a leased message came back."""

    NACK = "nack"
    RELEASE = "release"
    OVERDUE = "overdue"
    """Its lease ended."""
    LOST = "lost"
    """Its consumer was lost with it."""
    UNREAD = "unread"
    """It did not fit the answer."""


PURGED: Final = "purged"
TRIMMED: Final = "trimmed"
"""Retention or a deletion took the record before the message was settled."""
_WORDS: Final = {how: how.name.lower() for how in How}
ACKED: Final = _WORDS[How.ACKED]


class Tally:
    """Of one broker, in its figures."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def take(self, value: Value, back: Back | None) -> None:
        """Count what an entry says that was made here.

        Args:
            back: what gave back what comes back.
        """
        if isinstance(value, entries.Leased):
            self._stats.queue_leased += _size(value.runs)
        elif isinstance(value, entries.Settled):
            self.settled(_WORDS[value.how], _size(value.runs))
        elif isinstance(value, entries.Returned) and back is not None:
            self._stats.queue_returned[back,] += _size(value.runs)

    def settled(self, how: str, count: int) -> None:
        self._stats.queue_settled[how,] += count

    def dead_letters(self, reason: Reason, count: int) -> None:
        """They are safe in their topic."""
        self._stats.queue_dead_letters[reason.value,] += count

    def redriven(self, count: int) -> None:
        self._stats.queue_redriven += count

    def lane_arrived(self, lane: str, count: int) -> None:
        self._stats.queue_lane_arrived[lane,] += count

    def lane_delivered(self, lane: str, count: int) -> None:
        self._stats.queue_lane_delivered[lane,] += count

    def burial_failed(self) -> None:
        self._stats.queue_burial_failures += 1

    def scheduled(self, count: int) -> None:
        self._stats.queue_scheduled += count

    def schedule_failed(self) -> None:
        self._stats.queue_schedule_failures += 1

    def unread_headers(self, count: int) -> None:
        self._stats.queue_unread_headers += count


def _size(runs: Sequence[Run]) -> int:
    size = 0
    for first, last in runs:
        size += last - first + 1
    return size
