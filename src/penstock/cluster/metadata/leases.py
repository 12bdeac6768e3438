"""Leases that live in this process, on its event loop's time: for a store that only one broker uses.

A lease ends once: by its time, by `end`, or with the process. Whoever made the table is told of the first, and removes
the keys.
"""

import asyncio
from collections.abc import Callable
from itertools import count

from penstock.ports.metadata import LeaseLost


class Leases:
    """The leases that hold.

    Args:
        expired: called with each lease whose time is over, after it has left the table.
    """

    def __init__(self, expired: Callable[[int], None]) -> None:
        self._expired = expired
        self._ids = count(1)
        self._ttl_s: dict[int, int] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def __contains__(self, lease: object) -> bool:
        return lease in self._ttl_s

    def grant(self, ttl_s: int) -> int:
        if ttl_s <= 0:
            raise ValueError(f"a lease of {ttl_s} s; it needs at least 1 s")
        lease = next(self._ids)
        self._ttl_s[lease] = ttl_s
        self._set_timer(lease)
        return lease

    def keep_alive(self, lease: int) -> None:
        if lease not in self._ttl_s:
            raise LeaseLost(f"lease {lease} has ended")
        self._timers[lease].cancel()
        self._set_timer(lease)

    def end(self, lease: int) -> bool:
        """Take a lease out of the table; False when it is not there."""
        if self._ttl_s.pop(lease, None) is None:
            return False
        self._timers.pop(lease).cancel()
        return True

    def clear(self) -> None:
        """End all leases without telling anybody."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ttl_s.clear()

    def _set_timer(self, lease: int) -> None:
        loop = asyncio.get_running_loop()
        self._timers[lease] = loop.call_later(self._ttl_s[lease], self._time_over, lease)

    def _time_over(self, lease: int) -> None:
        if self.end(lease):
            self._expired(lease)
