"""Who guesses waits: by address and user, so that nobody can lock another one out.

The first failures cost nothing, for people mistype. Then each attempt has to come later than the one before, and one
that comes too early is refused whatever it says. That is asked when an attempt begins and again when it is judged:
however many were begun at the same time, so many are judged as if each had waited for the one before.

Nothing is forgotten to make room for something else, or whoever invents names would be free to go on with a real one.
Names for which there is no room count as one, and wait together with all such names from their address.
"""

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.hosts import network_of

FREE_FAILURES: Final = 3
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
FORGOTTEN_AFTER_S: Final = 900.0
MAX_KEPT: Final = 10_000
MAX_NAMES: Final = 1000
"""Of one address. Two people behind it seldom mistype so many."""
MAX_PLACES: Final = 10_000
"""Who comes from more addresses has the first failures of each for nothing, whatever is remembered."""
_LONGEST_NAME: Final = 255


class _Failures(NamedTuple):
    times: int = 0
    last_s: float = -math.inf

    def is_over(self, now_s: float) -> bool:
        return now_s - self.last_s >= FORGOTTEN_AFTER_S

    def and_one(self, now_s: float) -> "_Failures":
        return _Failures(1 if self.is_over(now_s) else self.times + 1, now_s)


_NONE: Final = _Failures()


@dataclass(slots=True)
class _Place:
    """An address. Of several dictionaries here, what failed last is last."""

    names: dict[str, _Failures] = field(default_factory=dict)
    others: _Failures = _NONE
    """Of all names that are not among these."""


class Backoff:
    """Args:
    limit: how many pairs of address and user are remembered; and what of it one address may take.
    places: how many addresses are remembered; those that failed longest ago go first.
    """

    def __init__(self, limit: int = MAX_KEPT, names: int = MAX_NAMES, places: int = MAX_PLACES) -> None:
        self._limit = limit
        self._max_names = names
        self._max_places = places
        self._places: dict[str, _Place] = {}
        self._kept = 0

    def wait_s(self, host: str, user: str, now_s: float) -> float:
        """How long an attempt is still too early; 0: it may be looked at."""
        place = self._places.get(network_of(host))
        if place is None:
            return 0.0
        failures = place.names.get(user[:_LONGEST_NAME], place.others)
        return max(0.0, failures.last_s + _pause_s(failures.times) - now_s)

    def failed(self, host: str, user: str, now_s: float) -> None:
        """An attempt was looked at and failed. One that came too early does not count: it cannot have been right."""
        network, name = network_of(host), user[:_LONGEST_NAME]
        place = self._places.pop(network, None) or _Place()
        self._forget(place, now_s)
        while self._places and (len(self._places) >= self._max_places or self._is_over(now_s)):
            self._kept -= len(self._places.pop(next(iter(self._places))).names)
        self._places[network] = place
        known = place.names.pop(name, None)
        if known is not None:
            place.names[name] = known.and_one(now_s)
        elif len(place.names) < self._max_names and self._kept < self._limit:
            place.names[name] = _Failures(1, now_s)
            self._kept += 1
        else:
            place.others = place.others.and_one(now_s)

    def succeeded(self, host: str, user: str) -> None:
        place = self._places.get(network_of(host))
        if place is not None and place.names.pop(user[:_LONGEST_NAME], None) is not None:
            self._kept -= 1

    def _forget(self, place: _Place, now_s: float) -> None:
        while place.names:
            name = next(iter(place.names))
            if not place.names[name].is_over(now_s):
                break
            del place.names[name]
            self._kept -= 1

    def _is_over(self, now_s: float) -> bool:
        """Whether there is nothing to remember of the place that failed longest ago."""
        place = next(iter(self._places.values()))
        last = next(reversed(place.names.values()), _NONE)
        return last.is_over(now_s) and place.others.is_over(now_s)


def _pause_s(failures: int) -> float:
    over = failures - FREE_FAILURES
    return 0.0 if over < 0 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(over, 10))
