"""Lists of topics that members subscribe to, each kept once: cheaper to keep, and to compare."""

from collections.abc import Iterable

Names = tuple[str, ...]
"""Sorted."""


class NameLists:
    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[Names, tuple[Names, int]] = {}
        """With how many members have it."""

    def take(self, names: Names) -> Names:
        """The same tuple for the same names, for one more member."""
        kept, members = self._kept.get(names, (names, 0))
        self._kept[kept] = kept, members + 1
        return kept

    def give_back(self, names: Names) -> None:
        kept, members = self._kept.pop(names)
        if members > 1:
            self._kept[kept] = kept, members - 1


def union(lists: Iterable[Names]) -> frozenset[str]:
    """All names; lists that are the same tuple are looked at once."""
    return frozenset().union(*{id(names): names for names in lists}.values())
