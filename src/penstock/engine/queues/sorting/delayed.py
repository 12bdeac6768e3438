"""A queue in which every message waits: what was published so long ago is ripe, which goes by offsets."""

from collections import deque
from typing import Final

_GRAIN_MS: Final = 10
_MOST_KEPT: Final = 50_000
_NO_END: Final = 1 << 62


class Ripening:
    """Of one group in one partition.

    Args:
        delay_ms: how long each message waits.
        end: everything below is ripe.
    """

    def __init__(self, delay_ms: int, end: int) -> None:
        self._delay_ms = delay_ms
        self._grain_ms = _GRAIN_MS
        self._end = end
        self._waiting: deque[tuple[int, int]] = deque()
        """From when on everything below an offset is ripe; both grow."""

    def add(self, end: int, published_ms: int) -> None:
        """Everything below `end` was published by then."""
        ripe_ms = self._round_up(published_ms + self._delay_ms)
        if self._waiting:
            ripe_ms = max(ripe_ms, self._waiting[-1][0])
            if self._waiting[-1][0] == ripe_ms:
                self._waiting.pop()
        self._waiting.append((ripe_ms, end))
        while len(self._waiting) > _MOST_KEPT:
            self._grain_ms *= 2
            kept = {self._round_up(ripe_ms): end for ripe_ms, end in self._waiting}
            self._waiting = deque(kept.items())

    def _round_up(self, moment_ms: int) -> int:
        return -(-moment_ms // self._grain_ms) * self._grain_ms

    def ripen(self, now: int) -> bool:
        """Whether anything has become ripe."""
        before = self._end
        while self._waiting and self._waiting[0][0] <= now:
            self._end = self._waiting.popleft()[1]
        return self._end > before

    @property
    def end(self) -> int:
        """Where what is not ripe begins."""
        return self._end if self._waiting else _NO_END

    def next(self) -> int | None:
        return self._waiting[0][0] if self._waiting else None
