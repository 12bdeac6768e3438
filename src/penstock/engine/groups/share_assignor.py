"""Who is to take from which partition of a share group: Kafka's assignor `simple`.

Where topics have the same readers, each of their partitions has as many takers as any other: one, or with more readers
than partitions as many as it takes for every reader to have one. Each reader has as many partitions as any other, or
one more. As far as that allows, everybody keeps what it has.

Both can always be had. If a partition lacks a taker, and everybody who is to have more has that one already, somebody
else takes it and gives one of its own to one of those. There is one to give: who is to have more has fewer partitions
than who is not, and the one in question is among them.

It is pure and gives the same answer for the same members, in whatever order those come.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.engine.coordination.schemas import TopicPartitions
from penstock.engine.groups.assignors import Assignment, Subscriber, topics_by_readers


class _Spot(NamedTuple):
    """A partition; topics are numbers here, by the order of their ids."""

    topic: int
    partition: int


def assign_simple(subscribers: Sequence[Subscriber], partitions: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Args:
    partitions: the topics there are, with how many partitions each has.
    """
    ordered = sorted(subscribers, key=lambda one: one.member_id)
    ids, by_readers = topics_by_readers(ordered, partitions)
    numbers_of = {topic_id: topic for topic, topic_id in enumerate(ids)}
    had = [_spots_of(numbers_of, one.target) for one in ordered]
    loads = [0] * len(ordered)
    given: list[list[_Spot]] = [[] for _ in ordered]
    for readers, topics in sorted(by_readers, key=lambda alike: len(alike[0])):
        pool = _Pool(readers, topics)
        pool.share(had, loads)
        for member in readers:
            given[member] += pool.held[member]
            loads[member] = len(given[member])
    return {subscriber.member_id: _assignment_of(ids, spots) for subscriber, spots in zip(ordered, given, strict=True)}


class _Pool:
    """Topics with the same readers: to the assignor their partitions are all alike."""

    __slots__ = ("held", "readers", "sharing", "takers", "wanted")

    def __init__(self, readers: Sequence[int], topics: Mapping[int, int]) -> None:
        self.readers = readers
        self.takers: dict[_Spot, set[int]] = {
            _Spot(topic, number): set() for topic, count in topics.items() for number in range(count)
        }
        self.held: dict[int, set[_Spot]] = {member: set() for member in readers}
        self.sharing = -(-len(readers) // max(1, len(self.takers)))
        """How many take from one partition."""
        self.wanted: dict[int, int] = {}
        """How many partitions each is to have."""

    def share(self, had: Sequence[Iterable[_Spot]], loads: Sequence[int]) -> None:
        """Args:
        had: what each was to have so far.
        loads: how many partitions of other topics each is to have: who has fewer is the first to get one more here.
        """
        for member in self.readers:
            for spot in had[member]:
                if spot in self.takers:
                    self._give(spot, member)
        each, extra = divmod(self.sharing * len(self.takers), len(self.readers))
        first = sorted(self.readers, key=lambda member: (loads[member], len(self.held[member]) <= each, member))
        self.wanted = {member: each + (at < extra) for at, member in enumerate(first)}
        self._take_back()
        self._fill(loads)

    def _take_back(self) -> None:
        """What is too much: takers of a partition first, those with most partitions; then partitions of a reader."""
        for spot, takers in self.takers.items():
            while len(takers) > self.sharing:
                self._take(spot, max(takers, key=lambda member: (len(self.held[member]) - self.wanted[member], member)))
        for member in self.readers:
            excess = len(self.held[member]) - self.wanted[member]
            if excess > 0:
                for spot in sorted(self.held[member])[-excess:]:
                    self._take(spot, member)

    def _fill(self, loads: Sequence[int]) -> None:
        """What lacks takers goes to who lacks partitions."""
        with_room = [member for member in reversed(self.readers) if len(self.held[member]) < self.wanted[member]]
        for spot, takers in self.takers.items():
            while len(takers) < self.sharing:
                at = next((at for at in reversed(range(len(with_room))) if with_room[at] not in takers), -1)
                member = with_room[at]
                if member in takers:
                    self._trade(spot, member, loads)
                else:
                    self._give(spot, member)
                if len(self.held[member]) == self.wanted[member]:
                    del with_room[at]

    def _trade(self, spot: _Spot, member: int, loads: Sequence[int]) -> None:
        """A member with room takes from the partition already, and so do all that have room. Somebody who has none is
        the one to have one more instead of it, where that makes no difference; otherwise that one takes from the
        partition, and leaves another one to the member."""
        others = [reader for reader in self.readers if reader not in self.takers[spot]]
        room = self.wanted[member]
        alike = (each for each in others if self.wanted[each] < room and loads[each] == loads[member])
        other = next(alike, None)
        if other is not None:
            self.wanted[member], self.wanted[other] = self.wanted[other], room
            self._give(spot, other)
            return
        other = others[0]
        left = min(self.held[other] - self.held[member])
        self._take(left, other)
        self._give(left, member)
        self._give(spot, other)

    def _give(self, spot: _Spot, member: int) -> None:
        self.takers[spot].add(member)
        self.held[member].add(spot)

    def _take(self, spot: _Spot, member: int) -> None:
        self.takers[spot].remove(member)
        self.held[member].remove(spot)


def _spots_of(numbers_of: Mapping[UUID, int], assignment: Assignment) -> list[_Spot]:
    return [
        _Spot(topic, number)
        for topic_id, numbers in assignment
        if (topic := numbers_of.get(topic_id)) is not None
        for number in numbers
    ]


def _assignment_of(ids: Sequence[UUID], spots: Iterable[_Spot]) -> Assignment:
    numbers: dict[int, list[int]] = {}
    for topic, number in sorted(spots):
        numbers.setdefault(topic, []).append(number)
    return tuple([TopicPartitions(ids[topic], tuple(run)) for topic, run in numbers.items()])
