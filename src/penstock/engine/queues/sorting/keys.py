"""Order by key: of each key one message is out at a time, and the next one waits until it is settled.

A message that comes back keeps its key to itself. What waits behind it is set aside, and comes up when the key is free:
so one key with very many messages holds up nobody, as long as no more than a million of them have been set aside.
"""

from heapq import heappop, heappush
from typing import Final

MOST_ASIDE: Final = 1_000_000
"""In one partition, by one group."""


class Keys:
    def __init__(self) -> None:
        self._owner: dict[int, int] = {}
        """Of each key that waits: the offset it waits for."""
        self._aside: dict[int, list[int]] = {}
        self.count_aside = 0

    @property
    def is_crowded(self) -> bool:
        """Whether no more can be set aside."""
        return self.count_aside >= MOST_ASIDE

    def take(self, slot: int, offset: int) -> bool:
        """Whether a message may be given out; otherwise it is set aside."""
        owner = self._owner.setdefault(slot, offset)
        if owner == offset:
            return True
        heappush(self._aside.setdefault(slot, []), offset)
        self.count_aside += 1
        return False

    def settled(self, slot: int, offset: int) -> int | None:
        """A message is settled; the one that has its key to itself now, if one was set aside."""
        if self._owner.get(slot) != offset:
            return None
        del self._owner[slot]
        aside = self._aside.get(slot)
        if aside is None:
            return None
        following = self._owner[slot] = heappop(aside)
        self.count_aside -= 1
        if not aside:
            del self._aside[slot]
        return following

    def owned_below(self, start: int) -> list[tuple[int, int]]:
        """Keys that wait for what lies below an offset, and what that is."""
        return [(slot, offset) for slot, offset in self._owner.items() if offset < start]
