"""A clock that stands still until a test moves it."""


class HandClock:
    def __init__(self) -> None:
        self.now = 1000.0
        """In seconds."""

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)
