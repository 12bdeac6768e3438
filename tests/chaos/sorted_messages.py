"""Messages of a queue that are not alike: each says its key, priority, tenant and when it is due, or nothing.

What a message says comes from a seed and its value, so it needs to be kept only for whoever judges.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

Say = Callable[[str], Mapping[str, Any]]
"""What a producer is to be given for a value, beside it."""
_LANES: Final = {"critical": 0, 8: 0, "high": 1, 6: 1, "normal": 2, 4: 2, "low": 3, 3: 3, "background": 4, 0: 4}
"""What may be said of a priority, and the lane that is."""
_NORMAL: Final = 2
_TENANTS: Final = ("", "red", "green", "blue")
_HAS_KEY: Final = 0.7
_HAS_PRIORITY: Final = 0.3
_HAS_TIME: Final = 0.2
_DELAYS_MS: Final = (0, 1, 200, 1500)
_AWAY_MS: Final = (-500, 10, 300, 1500)
"""Of `penstock-deliver-at`, from when it was sent."""


class Said(NamedTuple):
    """What one message says.

    Attributes:
        lane: from 0, the highest, to 4.
        tenant: a key has one tenant, so that there is an order among many of its messages.
        published_ms: by its timestamp.
        due_ms: not before then; None if it has no time of its own.
    """

    key: str | None
    lane: int
    tenant: str
    published_ms: int
    due_ms: int | None = None


class Sayings:
    """What was said of each value.

    Args:
        keys: how many there are, of all partitions.
    """

    def __init__(self, seed: int, keys: int = 40) -> None:
        self._seed, self._keys = seed, keys
        self.said: dict[str, Said] = {}

    def say(self, value: str) -> dict[str, Any]:
        """Choose what a message says: its key, headers and timestamp as producers take them."""
        coin = random.Random(f"{self._seed}-{value}")
        now, due_ms, lane = int(time.time() * 1000), None, _NORMAL
        headers: list[tuple[str, bytes]] = []
        number = coin.randrange(self._keys)
        key = f"k{number}" if coin.random() < _HAS_KEY else None
        tenant = _TENANTS[(number if key else coin.randrange(len(_TENANTS))) % len(_TENANTS)]
        if tenant:
            headers.append(("penstock-tenant", tenant.encode()))
        if coin.random() < _HAS_PRIORITY:
            priority, lane = coin.choice(list(_LANES.items()))
            headers.append(("penstock-priority", str(priority).encode()))
        if coin.random() < _HAS_TIME:
            if coin.random() < 0.5:
                delay_ms = coin.choice(_DELAYS_MS)
                due_ms = now + delay_ms
                headers.append(("penstock-delay-ms", b"%d" % delay_ms))
            else:
                due_ms = now + coin.choice(_AWAY_MS)
                headers.append(("penstock-deliver-at", b"%d" % due_ms))
        self.said[value] = Said(key, lane, tenant, now, due_ms)
        return {"key": key, "headers": headers, "timestamp": now}
