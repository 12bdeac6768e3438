"""What a peer has to do in time. The sweep, every two seconds, looks whether it has; so that is how exact it is."""

from math import inf

from penstock.net.limits import Limits


class Deadlines:
    """Of one connection."""

    __slots__ = ("_idle_s", "_limits", "_silent_s", "_stalled")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._idle_s = limits.idle_s
        self._silent_s = inf
        self._stalled: tuple[int | None, float] = (None, 0.0)  # what it is without pushes, and since when

    def expect_within(self, seconds: float | None) -> None:
        """Have the peer send something at least so often, instead of `Limits.idle_s`; None: whenever it likes."""
        self._idle_s = inf
        self._silent_s = inf if seconds is None else seconds

    def for_frame(self, size: int, *, is_crowded: bool) -> float:
        """How long a frame may take to come."""
        limits = self._limits
        if is_crowded:
            return limits.crowded_s + size / limits.crowded_bytes_s
        return limits.frame_s + size / limits.slowest_bytes_s

    def is_stalled(self, now: float, unsent: int, pushed: int) -> bool:
        """Whether the peer has read nothing for too long.

        Args:
            unsent: bytes that have not left.
            pushed: of all that ever came to `unsent`, those that were pushed. Without them it changes whenever the peer
                reads, and not whenever something is pushed to one that does not.
        """
        if unsent == 0 or unsent - pushed != self._stalled[0]:
            self._stalled = (unsent - pushed, now)
            return False
        return now - self._stalled[1] > self._limits.write_stall_s

    def is_idle(self, quiet_s: float) -> bool:
        """Whether a peer that owes nothing and waits for nothing has been here for long enough."""
        return quiet_s > self._idle_s

    def is_silent(self, quiet_s: float) -> bool:
        """Whether the peer has not sent what it agreed to send."""
        return quiet_s > self._silent_s
