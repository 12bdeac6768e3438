"""How long a message that failed waits until somebody gets it again.

`none`               not at all
`fixed:10s`          10 s each time
`linear:1s..1m`      1 s, 2 s, 3 s, and so on up to a minute
`exponential:1s..5m` 1 s, 2 s, 4 s, and so on up to five minutes

With `~0.2` behind it each wait is longer by up to a fifth of itself, by chance: what failed together is not all tried
again at once. It is never shorter, so a dependency that is down gets the rest it was promised.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple, assert_never

from penstock.quantities import format_duration, parse_duration_ms

LONGEST_MS: Final = 7 * 24 * 3600 * 1000
"""Without what chance adds."""
_MOST_DOUBLINGS: Final = LONGEST_MS.bit_length()
"""After so many even a millisecond is longer than allowed; no count of attempts makes larger numbers than that."""
_TO: Final = ".."
_JITTER: Final = re.compile(r"0(?:\.[0-9]{1,3})?|1(?:\.0{1,3})?")


class Growth(StrEnum):
    NONE = "none"
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Backoff(NamedTuple):
    """Attributes:
    jitter: the share of a wait that chance may add to it, from 0 to 1, in thousandths.
    """

    kind: Growth = Growth.NONE
    first_ms: int = 0
    most_ms: int = 0
    jitter: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Backoff":
        """Raises ValueError."""
        waits, tilde, share = text.strip().partition("~")
        if tilde and not _JITTER.fullmatch(share):
            raise ValueError(f"{share[:20]!r} is no share from 0 to 1 in thousandths")
        word, colon, times = waits.partition(":")
        kind = Growth(word)
        if kind is Growth.NONE:
            if colon or tilde:
                raise ValueError("none waits for nothing, and has neither times nor chance")
            return cls()
        first, to, most = times.partition(_TO)
        first_ms = parse_duration_ms(first)
        most_ms = parse_duration_ms(most) if to else first_ms
        if bool(to) == (kind is Growth.FIXED):
            raise ValueError("fixed has one time, linear and exponential have two with .. between")
        if not 1 <= first_ms <= most_ms <= LONGEST_MS:
            raise ValueError(f"waits are from 1ms to {format_duration(LONGEST_MS)}, the first no longer than the last")
        return cls(kind, first_ms, most_ms, float(share or 0))

    def format(self) -> str:
        if self.kind is Growth.NONE:
            return str(self.kind)
        to = "" if self.kind is Growth.FIXED else f"{_TO}{format_duration(self.most_ms)}"
        share = f"~{self.jitter:g}" if self.jitter else ""
        return f"{self.kind}:{format_duration(self.first_ms)}{to}{share}"

    def delay_ms(self, attempts: int, unit: float) -> int:
        """How long to wait after so many failed attempts.

        Args:
            attempts: with the one that has just failed; the first wait is that after one.
            unit: drawn by chance, from 0 to below 1.
        """
        wait_ms = min(self._grown_ms(max(attempts, 1)), self.most_ms)
        return wait_ms + int(wait_ms * self.jitter * unit)

    def _grown_ms(self, attempts: int) -> int:
        match self.kind:
            case Growth.NONE:
                return 0
            case Growth.FIXED:
                return self.first_ms
            case Growth.LINEAR:
                return self.first_ms * attempts
            case Growth.EXPONENTIAL:
                return self.first_ms << min(attempts - 1, _MOST_DOUBLINGS)
            case _:
                assert_never(self.kind)
