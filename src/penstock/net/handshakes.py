"""How many TLS handshakes one listener has under way, and how long each may take.

A peer that has connected is silent until its first byte, and costs a socket. Then it waits for a place, and with one
its handshake costs up to a millisecond and some 30 KiB until it is over. There are few places, and a bound to all who
have connected: beyond it they wait in the kernel, not here. Each has some seconds; but one second where others are kept
out, by who is silent or by who has a place: else a few slow peers would keep everybody out. And no host but this one
has more than a few of the places.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from penstock.hosts import network_of
from penstock.net.strangers import host_of, is_remote
from penstock.net.tls_stream import TlsStream

PLACES: Final = 50
PLACES_OF_HOST: Final = 10
CONNECTED: Final = 1000
DEADLINE_S: Final = 10.0
CROWDED_S: Final = 1.0


class Handshakes:
    """
    Args:
        has_room: called when one more may connect after none might.
        places: handshakes under way.
        places_of_host: those of one host.
        connected: these, and those who are silent or wait for a place.
        deadline_s: for one handshake, and as long again to say something. The looks are `crowded_s` apart.
    """

    def __init__(
        self,
        has_room: Callable[[], None],
        *,
        places: int = PLACES,
        places_of_host: int = PLACES_OF_HOST,
        connected: int = CONNECTED,
        deadline_s: float = DEADLINE_S,
        crowded_s: float = CROWDED_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_room = has_room
        self._places = places
        self._places_of_host = places_of_host
        self._connected = connected
        self._deadline_s = deadline_s
        self._crowded_s = crowded_s
        # Since when; the oldest first.
        self._silent: dict[TlsStream, float] = {}
        self._waiting: dict[TlsStream, float] = {}
        self._under_way: dict[TlsStream, float] = {}
        self._hosts: dict[TlsStream, str] = {}  # of those who wait or are under way, but for this one
        self._under_way_of: Counter[str] = Counter()
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
        host = host_of(stream.peer)
        if is_remote(host):
            self._hosts[stream] = network_of(host)
        if self._may_begin(stream):
            self._place(stream)
            return True
        self._waiting[stream] = self._loop.time()
        return False

    def _may_begin(self, stream: TlsStream) -> bool:
        if len(self._under_way) >= self._places:
            return False
        host = self._hosts.get(stream)
        return host is None or self._under_way_of[host] < self._places_of_host

    def _place(self, stream: TlsStream) -> None:
        self._under_way[stream] = self._loop.time()
        if (host := self._hosts.get(stream)) is not None:
            self._under_way_of[host] += 1

    def _leave(self, stream: TlsStream) -> None:
        self._silent.pop(stream, None)
        self._waiting.pop(stream, None)
        had_place = self._under_way.pop(stream, None) is not None
        host = self._hosts.pop(stream, None)
        if host is not None and had_place:
            self._under_way_of[host] -= 1
            if not self._under_way_of[host]:
                del self._under_way_of[host]

    def end(self, stream: TlsStream) -> None:
        """It is over, well or not. One that is not known is nobody's business."""
        was_full = self.is_full
        self._leave(stream)
        if self._waiting and len(self._under_way) < self._places:
            # The last who came: those before may be many who never go on, and who is in earnest takes a millisecond.
            following = next(filter(self._may_begin, reversed(self._waiting)), None)
            if following is not None:
                del self._waiting[following]
                self._place(following)
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
            (self._waiting, self.is_full),
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
