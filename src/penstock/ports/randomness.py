"""Randomness as the core sees it: `random.Random` and `random.SystemRandom` both fit."""

from typing import Protocol
from uuid import UUID


class Randomness(Protocol):
    def getrandbits(self, k: int, /) -> int: ...


def new_uuid(randomness: Randomness) -> UUID:
    """A version 4 UUID drawn from the port, so that a seed decides topic ids too."""
    return UUID(int=randomness.getrandbits(128), version=4)
