"""Whose turn it is among priorities: in shares of their weights, or always the highest.

In shares each lane has a turn after the other, and in a turn as many messages as its weight; what it could not give out
in a turn that was cut short it has left for the next one, unless it ran empty. However the turns go, a lane that has
waited for 30 s since it last had one, with messages in it all the time, has the next one. Then it waits again.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

WEIGHTS: Final = (50, 25, 15, 7, 3)
"""From the highest lane to the lowest."""
LANES_COUNT: Final = len(WEIGHTS)
STARVED_MS: Final = 30_000


class LaneOrder(StrEnum):
    WEIGHTED = "weighted"
    STRICT = "strict"


class Turn(NamedTuple):
    lane: int
    most: int


class Lanes:
    """Of one group in one partition."""

    def __init__(self, order: LaneOrder) -> None:
        self.order = order
        self._left = [0] * len(WEIGHTS)
        """What each may still give out in this round."""
        self._waits_since: list[int | None] = [None] * len(WEIGHTS)
        self._extra: Turn | None = None

    def next(self, now: int, waiting: Sequence[bool]) -> Turn | None:
        """Whose turn it is of those in which something waits, and how many messages it may give out."""
        for lane, waits in enumerate(waiting):
            since = self._waits_since[lane]
            if not waits:
                self._waits_since[lane] = None
                self._left[lane] = 0
            elif since is None or now < since:
                self._waits_since[lane] = now
        if not any(waiting):
            return None
        starved = [
            lane for lane, since in enumerate(self._waits_since) if since is not None and now - since >= STARVED_MS
        ]
        if starved:
            self._extra = Turn(starved[-1], WEIGHTS[starved[-1]])
            return self._extra
        self._extra = None
        if self.order is LaneOrder.STRICT:
            return Turn(next(lane for lane, waits in enumerate(waiting) if waits), 1 << 30)
        if not any(left for left, waits in zip(self._left, waiting, strict=True) if waits):
            self._left = [weight if waits else 0 for weight, waits in zip(WEIGHTS, waiting, strict=True)]
        lane = next(lane for lane, waits in enumerate(waiting) if waits and self._left[lane])
        return Turn(lane, self._left[lane])

    def served(self, now: int, lane: int, count: int) -> None:
        """So many messages were given out of a lane in its turn."""
        if self._waits_since[lane] is not None and count:
            self._waits_since[lane] = now
        if self._extra is None:
            self._left[lane] = max(self._left[lane] - count, 0)
