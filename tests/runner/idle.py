"""Whether the machine has stood half idle for a while, whoever uses the rest of it."""

import os
import time
from pathlib import Path

_WINDOW_S = 5.0
"""A part that has just begun is not at its busiest yet, and one that waits for a moment is about to go on."""
_IDLE_CORES = 0.5
_IDLE_COLUMNS = (4, 5)
"""Of a processor's line in /proc/stat: nothing to do, and nothing but to wait for a disk."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Idleness:
    """Of the cores this process may use."""

    def __init__(self) -> None:
        self._cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        self.begin()

    def begin(self) -> None:
        """A part was started: what was idle before does not count."""
        self._since, self._idle_s = time.monotonic(), self._count_s()

    def is_idle(self) -> bool:
        """Asked again and again; says so once for each stretch of time in which it was."""
        seconds = time.monotonic() - self._since
        if seconds < _WINDOW_S:
            return False
        found = (self._count_s() - self._idle_s) / seconds >= _IDLE_CORES
        self.begin()
        return found

    def _count_s(self) -> float:
        lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
        of_cores = (words for words in lines if words and words[0] in self._cores)
        return sum(int(words[column]) for words in of_cores for column in _IDLE_COLUMNS) / _TICKS_PER_S
