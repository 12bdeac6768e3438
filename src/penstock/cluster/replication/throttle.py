"""How fast this broker copies partitions that move to it, so that those it has already do not suffer."""

from collections.abc import Callable

from penstock.ports.clock import Clock

LOOK_AGAIN_S = 1.0
"""Whoever waits asks again after so long at most: the rate may be another by then."""

_SHORTEST_S = 0.001


class Throttle:
    """Bytes are spent after they came, and who comes next waits until they are paid for.

    Args:
        rate: bytes a second, or None for no limit; asked each time.
    """

    def __init__(self, clock: Clock, rate: Callable[[], int | None]) -> None:
        self._clock = clock
        self._rate = rate
        self._debt = 0.0
        self._at = clock.monotonic()

    def spend(self, size: int) -> None:
        self._pay()
        self._debt += size

    def wait_s(self) -> float:
        """How many seconds to wait before more may come, or before asking again."""
        rate = self._pay()
        wait_s = self._debt / rate if rate is not None else 0.0
        return min(LOOK_AGAIN_S, wait_s) if wait_s >= _SHORTEST_S else 0.0

    def _pay(self) -> int | None:
        """What the time since the last look was worth, at the present rate."""
        now, rate = self._clock.monotonic(), self._rate()
        self._debt = 0.0 if rate is None else max(0.0, self._debt - (now - self._at) * rate)
        self._at = now
        return rate
