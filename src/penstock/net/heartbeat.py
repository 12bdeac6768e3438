"""A sign of life when a connection has been quiet: one timer of the event loop per connection that asked for one.

The sweep, which looks after all other deadlines of connections, is too coarse for it: peers count in single seconds.
The timer is not set anew for every write; when it fires it sees how long ago the last one was.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.ports.clock import Clock

_SHORTEST_S: Final = 0.1  # what a peer may have every connection cost is up to us


class Heartbeat:
    """Calls `beat` when nothing was sent for `every_s`.

    Raises:
        ValueError: `every_s` is too short; the session agrees to no such thing.
    """

    __slots__ = ("_beat", "_clock", "_every_s", "_loop", "_timer", "sent_at")

    def __init__(self, every_s: float, clock: Clock, beat: Callable[[], object]) -> None:
        if every_s < _SHORTEST_S:
            raise ValueError(f"a heartbeat every {every_s} s; allowed: {_SHORTEST_S} and more")
        self._beat = beat
        self._clock = clock
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self.sent_at = clock.monotonic()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(every_s, self._due)

    def _due(self) -> None:
        left = self.sent_at + self._every_s - self._clock.monotonic()
        if left <= 0:
            self.sent_at = self._clock.monotonic()
            left = self._every_s
            self._beat()
        if self._timer is not None:
            self._timer = self._loop.call_later(left, self._due)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
