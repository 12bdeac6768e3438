"""Who owned which partition when, out of what the members of a group were told; gaps in the flow of records."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple


class Change(NamedTuple):
    """What a member was told; times are seconds of the monotonic clock."""

    at_s: float
    member: int
    kind: Literal["joins", "assigned", "revoked", "lost"]
    partitions: frozenset[int] = frozenset()


class Ownership:
    """Who owns what after the changes so far; a partition without an owner has no entry in `owners`."""

    def __init__(self) -> None:
        self.owners: dict[int, set[int]] = {}
        self.twice: set[int] = set()
        """Partitions that had two owners at some time."""
        self._held: Counter[int] = Counter()

    def apply(self, change: Change) -> None:
        for partition in change.partitions:
            mine = self.owners.setdefault(partition, set())
            before = len(mine)
            if change.kind == "assigned":
                mine.add(change.member)
            else:
                mine.discard(change.member)
            self._held[change.member] += len(mine) - before
            if len(mine) > 1:
                self.twice.add(partition)
            if not mine:
                del self.owners[partition]

    def is_whole(self, partitions: int, members: int) -> bool:
        """Whether each partition has one owner, and each of so many members has a partition."""
        once = len(self.owners) == partitions == self._held.total()
        return once and sum(count > 0 for count in self._held.values()) == members


def ownership(changes: Iterable[Change], until_s: float = float("inf")) -> Ownership:
    found = Ownership()
    for change in sorted(changes):
        if change.at_s <= until_s:
            found.apply(change)
    return found


def whole_from(changes: Iterable[Change], partitions: int, members: int) -> float | None:
    """When the last partition changed hands, if since then the ownership is whole; None if it is not."""
    found, since_s = Ownership(), None
    for change in sorted(changes):
        found.apply(change)
        if not found.is_whole(partitions, members):
            since_s = None
        elif since_s is None or change.partitions:
            since_s = change.at_s
    return since_s


def unmoved(before: Ownership, after: Ownership) -> set[int]:
    return {partition for partition, owner in after.owners.items() if before.owners.get(partition) == owner}


def longest_gap_s(arrivals: Mapping[int, Sequence[float]], begin_s: float, end_s: float) -> float:
    """The longest time within a span in which one of the partitions brought nothing."""
    longest_s = 0.0
    for times in arrivals.values():
        inside = [begin_s, *sorted(each for each in times if begin_s < each < end_s), end_s]
        longest_s = max(longest_s, *(later - earlier for earlier, later in pairwise(inside)))
    return longest_s
