"""Peers that have not said yet who they are, on listeners that ask: few of one host, and not too many of all.

    come ──► has a place ──► known, or gone
       └──► waits for one of its host's places ──┘

A host is an IPv4 address, or an IPv6 network of 64 bits, as a machine has all addresses of one.
A peer that waits is not read from. One that has a place while others of its host wait has to be quick. On this machine
a host may have any number. When there are too many in all, the oldest that has said nothing makes room for who comes,
or else one that had time enough; if there is neither, who comes is turned away.
"""

from enum import Enum
from itertools import islice
from typing import Final, Protocol

from penstock.hosts import network_of, parse_host

_LOOKED_AT: Final = 32
"""Of the oldest, when one has to make room."""


class Stranger(Protocol):
    active_at: float
    """When it connected, or last said something."""

    def go_on(self) -> None:
        """There is a place."""
        ...

    def turn_away(self, reason: str) -> None: ...


class Turn(Enum):
    NOW = "now"
    LATER = "later"
    NEVER = "never"


class Strangers:
    """
    Args:
        most: of all hosts together, those that wait too.
        of_host: places of one host.
        crowded_s: how long one may take while others need its place.
    """

    def __init__(self, most: int, of_host: int, crowded_s: float) -> None:
        self._most = most
        self._of_host = of_host
        self._crowded_s = crowded_s
        # Since when; the oldest first.
        self._here: dict[Stranger, float] = {}
        self._hosts: dict[Stranger, str] = {}
        self._placed: dict[str, dict[Stranger, float]] = {}
        self._waiting: dict[str, dict[Stranger, None]] = {}

    def __len__(self) -> int:
        return len(self._here)

    def come(self, stranger: Stranger, host: str, now: float) -> Turn:
        if len(self._here) >= self._most and not self._make_room(now):
            return Turn.NEVER
        self._here[stranger] = now
        if not is_remote(host):
            return Turn.NOW
        host = self._hosts[stranger] = network_of(host)
        placed = self._placed.setdefault(host, {})
        if len(placed) < self._of_host:
            placed[stranger] = now
            return Turn.NOW
        self._waiting.setdefault(host, {})[stranger] = None
        return Turn.LATER

    def leave(self, stranger: Stranger, now: float) -> None:
        """It is known, or gone. One that is not here is nobody's business."""
        self._here.pop(stranger, None)
        host = self._hosts.pop(stranger, None)
        if host is None:
            return
        placed, waiting = self._placed[host], self._waiting.get(host, {})
        waiting.pop(stranger, None)
        if placed.pop(stranger, None) is not None and waiting:
            following = next(iter(waiting))
            del waiting[following]
            placed[following] = now
            following.go_on()
        if not waiting:
            self._waiting.pop(host, None)
        if not placed:
            self._placed.pop(host, None)

    def sweep(self, now: float) -> None:
        """Have those go that keep others of their host waiting."""
        reason = f"did not say who it is in {self._crowded_s:g} s, and others of its host wait"
        for host in list(self._waiting):
            due = [each for each, since in self._placed[host].items() if now - since > self._crowded_s]
            for stranger in due:
                self._turn_away(stranger, reason, now)

    def _make_room(self, now: float) -> bool:
        for stranger, since in islice(self._here.items(), _LOOKED_AT):
            if stranger.active_at <= since or now - since > self._crowded_s:
                self._turn_away(stranger, f"more than {self._most} peers have not said who they are", now)
                return True
        return False

    def _turn_away(self, stranger: Stranger, reason: str, now: float) -> None:
        self.leave(stranger, now)
        stranger.turn_away(reason)


def host_of(peer: str) -> str:
    """The address in `host:port` or `[v6]:port`, an IPv4 address in an IPv6 one as itself."""
    host = peer.rpartition(":")[0].removeprefix("[").removesuffix("]")
    return host.removeprefix("::ffff:") if "." in host else host


def is_remote(host: str) -> bool:
    """Whether it is the address of another machine."""
    address = parse_host(host)
    return address is not None and not address.is_loopback
