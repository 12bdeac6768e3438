"""How fast a pass may move bytes: a token bucket that pauses its user, in whatever time it is given."""

from collections.abc import Callable

_BURST_S = 0.25
_SHORTEST_PAUSE_S = 0.01


def _go_on() -> None:
    return None


class Pace:
    """Called for everything read or written, so also the place to ask whether anybody still wants the result.

    Args:
        bytes_per_second: 0 is no limit.
        proceed: raises if the work is to be given up.
    """

    def __init__(
        self,
        bytes_per_second: int,
        monotonic: Callable[[], float],
        pause: Callable[[float], None],
        proceed: Callable[[], None] = _go_on,
    ) -> None:
        self._rate = bytes_per_second
        self._monotonic = monotonic
        self._pause = pause
        self._proceed = proceed
        self._paid_until = float("-inf")

    def spend(self, size: int) -> None:
        self._proceed()
        if not self._rate:
            return
        now = self._monotonic()
        self._paid_until = max(self._paid_until, now - _BURST_S) + size / self._rate
        ahead = self._paid_until - now
        if ahead >= _SHORTEST_PAUSE_S:
            self._pause(ahead)
