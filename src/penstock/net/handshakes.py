"""How many TLS handshakes one listener has under way, and how long each may take.

A peer that has connected is silent until its first byte, and costs a socket. Then it waits for a place, and with one
its handshake costs up to a millisecond and some 30 KiB until it is over. There are few places, and a bound to all who
have connected: beyond it they wait in the kernel, not here. Each has some seconds; but one second where others are kept
out, by who is silent or by who has a place: else a few slow peers would keep everybody out.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.net.tls_stream import TlsStream

PLACES: Final = 50
CONNECTED: Final = 1000
DEADLINE_S: Final = 10.0
CROWDED_S: Final = 1.0


class Handshakes:
    """
    Args:
        has_room: called when one more may connect after none might.
        places: handshakes under way.
        connected: these, and those who are silent or wait for a place.
        deadline_s: for one handshake, and as long again to say something. The looks are `crowded_s` apart.
    """

    def __init__(
        self,
        has_room: Callable[[], None],
        *,
        places: int = PLACES,
        connected: int = CONNECTED,
        deadline_s: float = DEADLINE_S,
        crowded_s: float = CROWDED_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_room = has_room
        self._places = places
        self._connected = connected
        self._deadline_s = deadline_s
        self._crowded_s = crowded_s
        # Since when; the oldest first.
        self._silent: dict[TlsStream, float] = {}
        self._waiting: dict[TlsStream, float] = {}
        self._under_way: dict[TlsStream, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._silent) + len(self._waiting) + len(self._under_way)

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @property
    def is_full(self) -> bool:
        return len(self) >= self._connected

    def connected(self, stream: TlsStream) -> None:
        self._silent[stream] = self._loop.time()
        self._arm()

    def begin(self, stream: TlsStream) -> bool:
        """Whether there is a place for who has said something; if not, its `go_on` is called when there is."""
        self._silent.pop(stream, None)
        has_place = len(self._under_way) < self._places
        (self._under_way if has_place else self._waiting)[stream] = self._loop.time()
        return has_place

    def end(self, stream: TlsStream) -> None:
        """It is over, well or not. One that is not known is nobody's business."""
        was_full = self.is_full
        for group in (self._silent, self._waiting, self._under_way):
            group.pop(stream, None)
        while self._waiting and len(self._under_way) < self._places:
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._under_way[following] = self._loop.time()
            self._loop.call_soon(following.go_on)
        if was_full and not self.is_full:
            self._has_room()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(min(self._crowded_s, self._deadline_s), self._look)

    def _look(self) -> None:
        self._timer = None
        for group, is_crowded in (
            (self._silent, self.is_full),
            (self._waiting, False),
            (self._under_way, bool(self._waiting)),
        ):
            allowed_s = self._crowded_s if is_crowded else self._deadline_s
            due = self._loop.time() - allowed_s
            for stream in [stream for stream, since in group.items() if since <= due]:
                stream.give_up(f"the TLS handshake took more than {allowed_s:g} s")
                self.end(stream)
        if len(self):
            self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for stream in [*self._silent, *self._waiting, *self._under_way]:
            stream.give_up("the listener closes")
            self.end(stream)
