"""Time as the core sees it; timers are the event loop's own, which a virtual loop replaces."""

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970. May jump; never use it to measure a duration."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards."""
        ...
