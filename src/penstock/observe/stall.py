"""How late the event loop comes, sampled by a timer, and how long each garbage collection held it up.

The timer asks to be woken after a fixed time and records by how much it was late. A stall shorter than the
interval is seen only when the wake-up falls into it, so the histogram is a sample; a stall longer than the
interval is always seen.
"""

import asyncio
import gc
import time
from collections.abc import Callable

from penstock.observe.stats import Stats

INTERVAL_S = 0.05  # twenty wake-ups a second: below anything a processor graph can show


class StallMonitor:
    """Feeds `Stats.loop_stall`, `Stats.loop_stall_max_s` and `Stats.gc_pause` between `start` and `stop`.

    Args:
        stats: Where the figures go.
        loop: The loop to watch.
        interval_s: Time between two samples.
        clock: Seconds, finer than the loop's own (uvloop's counts whole milliseconds, once per turn).
    """

    def __init__(
        self,
        stats: Stats,
        loop: asyncio.AbstractEventLoop,
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stats = stats
        self._loop = loop
        self._interval_s = interval_s
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._gc_began_s: float | None = None

    def start(self) -> None:
        if self._timer is None:
            gc.callbacks.append(self._on_gc)
            self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.callbacks.remove(self._on_gc)
            self._gc_began_s = None

    def _arm(self) -> None:
        self._due_s = self._clock() + self._interval_s
        self._timer = self._loop.call_later(self._interval_s, self._tick)

    def _tick(self) -> None:
        late_s = max(0.0, self._clock() - self._due_s)  # uvloop may wake up to a millisecond early
        self._stats.loop_stall.observe(late_s)
        if late_s > self._stats.loop_stall_max_s:
            self._stats.loop_stall_max_s = late_s
        self._arm()

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began_s = self._clock()
        elif self._gc_began_s is not None:
            self._stats.gc_pause.observe(self._clock() - self._gc_began_s)
            self._gc_began_s = None
