"""Who is to read which partition: the two assignors a consumer group can choose between.

`uniform` gives everybody as many partitions as everybody else, as far as subscriptions allow, and moves as few as it
can from where they are. `range` gives everybody a run of neighbouring partitions of each topic; members that subscribe
to the same topics get the same numbers of each topic that has as many partitions, which a join of topics needs.

Both are pure and give the same answer for the same members, in whatever order those come.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple
from uuid import UUID

from penstock.engine.coordination.schemas import TopicPartitions

Assignment = tuple[TopicPartitions, ...]
"""Sorted by topic id, partitions sorted, no topic without partitions."""

_MOST_PASSES = (
    16  # over all classes of topics; each about halves what is left to balance, and one is nearly always enough
)


class Subscriber(NamedTuple):
    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    target: Assignment
    """What it was to have so far."""


Assignor = Callable[[Sequence[Subscriber], Mapping[UUID, int]], dict[str, Assignment]]


def make_assignment(partitions: Mapping[UUID, Iterable[int]]) -> Assignment:
    return tuple(
        TopicPartitions(topic_id, tuple(sorted(numbers)))
        for topic_id, numbers in sorted(partitions.items(), key=lambda item: item[0].int)
        if numbers
    )


def assign_range(subscribers: Sequence[Subscriber], partitions: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Args:
    partitions: the topics there are, with how many partitions each has.
    """
    ordered = _in_order(subscribers)
    given: list[list[TopicPartitions]] = [[] for _ in ordered]
    for alike in _classes(ordered, partitions):
        for topic_id, count in alike.topics.items():
            each, extra = divmod(count, len(alike.readers))
            start = 0
            for position, member in enumerate(alike.readers):
                stop = start + each + (position < extra)
                if stop == start:
                    break
                given[member].append(TopicPartitions(topic_id, tuple(range(start, stop))))
                start = stop
    return {
        subscriber.member_id: tuple(sorted(given[member], key=lambda topic: topic.topic_id.int))
        for member, subscriber in enumerate(ordered)
    }


def assign_uniform(subscribers: Sequence[Subscriber], partitions: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Args:
    partitions: the topics there are, with how many partitions each has.
    """
    ordered = _in_order(subscribers)
    loads = [0] * len(ordered)
    classes = _classes(ordered, partitions)
    _keep(ordered, classes, loads)
    # Those few can read go first: what everybody can read evens out the rest.
    for alike in sorted(classes, key=lambda alike: len(alike.readers)):
        alike.fill(loads)
    for _ in range(_MOST_PASSES):
        moved = [alike.balance(loads) for alike in classes]
        if not any(moved):
            break
    given: list[dict[UUID, list[int]]] = [{} for _ in ordered]
    for alike in classes:
        for member, owned in alike.owned.items():
            for topic_id, number in owned:
                given[member].setdefault(topic_id, []).append(number)
    return {subscriber.member_id: make_assignment(given[member]) for member, subscriber in enumerate(ordered)}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
DEFAULT_ASSIGNOR = "uniform"


def _in_order(subscribers: Sequence[Subscriber]) -> list[Subscriber]:
    """Static members first, by instance, since their place among the others outlives their member ids."""
    return sorted(
        subscribers, key=lambda one: (one.instance_id is None, one.instance_id or one.member_id, one.member_id)
    )


class _Class:
    """Topics with the same readers: to an assignor their partitions are all alike."""

    __slots__ = ("owned", "readers", "topics")

    def __init__(self, readers: list[int], topics: dict[UUID, int]) -> None:
        self.readers = readers
        self.topics = topics
        self.owned: dict[int, list[tuple[UUID, int]]] = {member: [] for member in readers}

    def fill(self, loads: list[int]) -> None:
        """What nobody has goes to whoever has least."""
        taken = {place for owned in self.owned.values() for place in owned}
        least = [(loads[member], member) for member in self.readers]
        heapify(least)
        for topic_id, count in self.topics.items():
            for number in range(count):
                place = (topic_id, number)
                if place in taken:
                    continue
                load, member = least[0]
                self.owned[member].append(place)
                heapreplace(least, (load + 1, member))
        for load, member in least:
            loads[member] = load

    def balance(self, loads: list[int]) -> bool:
        """Moves partitions from who has most to who has least until no move makes two of them more alike.

        What came last goes first: what `fill` gave has not been read yet, so moving it costs nobody anything.
        """
        most = [(-loads[member], member) for member in self.readers if self.owned[member]]
        least = [(loads[member], member) for member in self.readers]
        heapify(most)
        heapify(least)
        moved = False
        while most:
            giver, taker = most[0][1], least[0][1]
            if not self.owned[giver]:
                heappop(most)
            elif -most[0][0] != loads[giver]:
                heapreplace(most, (-loads[giver], giver))
            elif least[0][0] != loads[taker]:
                heapreplace(least, (loads[taker], taker))
            elif loads[giver] - loads[taker] < 2:
                break
            else:
                self._move(giver, taker, loads)
                heapreplace(most, (-loads[giver], giver))
                heapreplace(least, (loads[taker], taker))
                heappush(most, (-loads[taker], taker))
                heappush(least, (loads[giver], giver))
                moved = True
        return moved

    def _move(self, giver: int, taker: int, loads: list[int]) -> None:
        self.owned[taker].append(self.owned[giver].pop())
        loads[giver] -= 1
        loads[taker] += 1


def _classes(ordered: Sequence[Subscriber], partitions: Mapping[UUID, int]) -> list[_Class]:
    """Found by way of the different subscriptions there are: thousands of members usually have one or two."""
    members_of: dict[frozenset[UUID], list[int]] = {}
    for member, subscriber in enumerate(ordered):
        members_of.setdefault(subscriber.topics, []).append(member)
    kinds_of: dict[UUID, list[int]] = {}
    groups = list(members_of.items())
    for kind, (topics, _) in enumerate(groups):
        for topic_id in topics:
            if topic_id in partitions:
                kinds_of.setdefault(topic_id, []).append(kind)
    topics_of: dict[tuple[int, ...], dict[UUID, int]] = {}
    for topic_id in sorted(kinds_of, key=lambda topic: topic.int):
        topics_of.setdefault(tuple(kinds_of[topic_id]), {})[topic_id] = partitions[topic_id]
    return [
        _Class(sorted(member for kind in kinds for member in groups[kind][1]), topics)
        for kinds, topics in topics_of.items()
    ]


def _keep(ordered: Sequence[Subscriber], classes: Sequence[_Class], loads: list[int]) -> None:
    """Everybody keeps what it was to have and still may have."""
    class_of = {topic_id: alike for alike in classes for topic_id in alike.topics}
    taken: dict[UUID, set[int]] = {topic_id: set() for topic_id in class_of}
    for member, subscriber in enumerate(ordered):
        for topic_id, numbers in subscriber.target:
            alike = class_of.get(topic_id)
            if alike is None or topic_id not in subscriber.topics:
                continue
            count, others = alike.topics[topic_id], taken[topic_id]
            kept = [(topic_id, number) for number in numbers if number < count and number not in others]
            others.update(number for _, number in kept)
            alike.owned[member] += kept
            loads[member] += len(kept)
