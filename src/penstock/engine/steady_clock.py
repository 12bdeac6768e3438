"""Wall time that never jumps: where it stood at the start, plus what a monotonic clock has counted since.

Time-outs of members and transactions go by it, so that a clock set right does not expire all of them at once.
"""

from penstock.ports.clock import Clock


class SteadyClock:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - int(clock.monotonic() * 1000)

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000) + self._offset_ms
