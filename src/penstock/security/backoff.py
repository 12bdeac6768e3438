"""Who guesses waits: by address and user, so that nobody can lock another one out.

The first failures cost nothing, for people mistype. Then each attempt has to come later than the one before, and one
that comes too early is refused whatever it says.
"""

import ipaddress
from typing import Final

FREE_FAILURES: Final = 3
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
FORGOTTEN_AFTER_S: Final = 900.0
MAX_KEPT: Final = 10_000
_IPV6_NETWORK_BITS: Final = 64
"""Who has one address of it has all of them."""


class Backoff:
    """Args:
    limit: how many pairs of address and user are remembered; the oldest go first.
    """

    def __init__(self, limit: int = MAX_KEPT) -> None:
        self._limit = limit
        self._failures: dict[tuple[str, str], tuple[int, float]] = {}

    def wait_s(self, host: str, user: str, now_s: float) -> float:
        """How long an attempt is still too early; 0: it may be looked at."""
        failures, last_s = self._failures.get((_network(host), user), (0, now_s))
        return max(0.0, last_s + _pause_s(failures) - now_s)

    def failed(self, host: str, user: str, now_s: float) -> None:
        """An attempt was looked at and failed. One that came too early does not count: it cannot have been right."""
        pair = (_network(host), user)
        failures, last_s = self._failures.pop(pair, (0, now_s))
        if now_s - last_s >= FORGOTTEN_AFTER_S:
            failures = 0
        if len(self._failures) >= self._limit:
            del self._failures[next(iter(self._failures))]
        self._failures[pair] = (failures + 1, now_s)

    def succeeded(self, host: str, user: str) -> None:
        self._failures.pop((_network(host), user), None)


def _pause_s(failures: int) -> float:
    over = failures - FREE_FAILURES
    return 0.0 if over < 0 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(over, 10))


def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Address(int(address) >> _IPV6_NETWORK_BITS << _IPV6_NETWORK_BITS))
    return host
