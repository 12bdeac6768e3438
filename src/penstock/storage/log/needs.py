"""Those who can say which records of a log they need, and not only from which offset on (`Log.floors`)."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.storage.compaction.job import Range


class Needed(NamedTuple):
    """Which of some offsets are needed: `ranges`, sorted and apart, and nothing else as far as `last`."""

    ranges: Sequence[Range]
    last: int


class Needs(Protocol):
    """Of one log, by all who need anything of it."""

    async def ask(self, first: int, last: int) -> Needed:
        """What is needed of a range, by all that is safe: a crash can add nothing to it.

        Raises:
            PenstockError: nobody can tell now, so it may be anything.
        """
        ...

    def ask_now(self, first: int, last: int) -> Needed:
        """The same as things stand, safe or not. Never waits; what is not known is needed."""
        ...
