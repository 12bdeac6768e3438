"""How fast a pass may move bytes: a token bucket that pauses its user, in whatever time it is given.

Between two pauses a pass computes for tens of milliseconds, and there it has to offer its core to others by itself.
The idle class nearly always gives way at once to whoever wakes up, but in one of a hundred cases only at the next tick,
up to 4 ms later: seen in traces of the scheduler (Linux 6.18). The likely reason is that a thread which has had more
than its share of late does not count as eligible (EEVDF), not even beside the idle class.
"""

from collections.abc import Callable

_BURST_S = 0.25
_SHORTEST_PAUSE_S = 0.01
STEP_RECORDS = 16
STEP_BYTES = 64 * 1024


def _go_on() -> None:
    return None


class Pace:
    """Called for everything read or written, so also the place to ask whether anybody still wants the result.

    Args:
        bytes_per_second: 0 is no limit.
        proceed: raises if the work is to be given up.
        give_way: lets others have the core, if any want it; to be called after every `STEP_RECORDS` records and
            `STEP_BYTES` bytes, tenths of a millisecond of work.
    """

    def __init__(
        self,
        bytes_per_second: int,
        monotonic: Callable[[], float],
        pause: Callable[[float], None],
        proceed: Callable[[], None] = _go_on,
        give_way: Callable[[], None] = _go_on,
    ) -> None:
        self._rate = bytes_per_second
        self._monotonic = monotonic
        self._pause = pause
        self._proceed = proceed
        self.give_way = give_way
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
