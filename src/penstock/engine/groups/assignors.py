"""Who is to read which partition: the two assignors a consumer group can choose between.

`uniform` gives everybody as many partitions as everybody else, as far as subscriptions allow, and moves as few as it
can from where they are. `range` gives everybody a run of neighbouring partitions of each topic; members that subscribe
to the same topics get the same numbers of each topic that has as many partitions, which a join of topics needs.

Both are pure and give the same answer for the same members, in whatever order those come.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
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
    given: list[list[tuple[int, TopicPartitions]]] = [[] for _ in ordered]
    ids, classes = _classes(ordered, partitions)
    for alike in classes:
        for topic, count in alike.topics.items():
            each, extra = divmod(count, len(alike.readers))
            start = 0
            for position, member in enumerate(alike.readers):
                stop = start + each + (position < extra)
                if stop == start:
                    break
                given[member].append((topic, TopicPartitions(ids[topic], tuple(range(start, stop)))))
                start = stop
    return {
        subscriber.member_id: tuple([run for _, run in sorted(given[member])])
        for member, subscriber in enumerate(ordered)
    }


def assign_uniform(subscribers: Sequence[Subscriber], partitions: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Args:
    partitions: the topics there are, with how many partitions each has.
    """
    ordered = _in_order(subscribers)
    loads = [0] * len(ordered)
    ids, classes = _classes(ordered, partitions)
    taken, changed = _keep(ordered, ids, classes, loads)
    # Those few can read go first: what everybody can read evens out the rest.
    for alike in sorted(classes, key=lambda alike: len(alike.readers)):
        changed |= alike.fill(loads, taken)
    for _ in range(_MOST_PASSES):
        moved = set().union(*[alike.balance(loads) for alike in classes])
        if not moved:
            break
        changed |= moved
    return {
        subscriber.member_id: _assignment_of(ids, classes, member) if member in changed else subscriber.target
        for member, subscriber in enumerate(ordered)
    }


def even_out(subscribers: Sequence[Subscriber]) -> dict[str, Assignment]:
    """What `assign_uniform` gives when members join and nothing else changes, for the price of what moves.

    All must subscribe to the same topics, and what they were to have must be all there is, each partition once.
    """
    ordered = _in_order(subscribers)
    targets = [one.target for one in ordered]
    loads = [sum([len(numbers) for _, numbers in target]) for target in targets]
    wanted = _even_loads(loads)
    free: Assignment = ()
    for member, target in enumerate(targets):
        if loads[member] > wanted[member]:
            targets[member], cut = _cut(target, loads[member] - wanted[member])
            free += cut
    for member, target in enumerate(targets):
        if loads[member] < wanted[member]:
            free, gained = _cut(free, wanted[member] - loads[member])
            numbers: dict[UUID, list[int]] = {}
            for topic in (*target, *gained):
                numbers.setdefault(topic.topic_id, []).extend(topic.partitions)
            targets[member] = make_assignment(numbers)
    return {subscriber.member_id: target for subscriber, target in zip(ordered, targets, strict=True)}


def _even_loads(loads: Sequence[int]) -> list[int]:
    """Loads with the same sum that differ by one at most; with as few moves as that allows."""
    each, extra = divmod(sum(loads), len(loads))
    wanted = [each] * len(loads)
    # One more stays with who has it; what moves is taken from the first of them, as `_Class.balance` does.
    for member in sorted(range(len(loads)), key=lambda member: (loads[member] > each, member), reverse=True)[:extra]:
        wanted[member] += 1
    return wanted


def _cut(assignment: Assignment, count: int) -> tuple[Assignment, Assignment]:
    """An assignment without the last so many partitions, and those."""
    at = len(assignment)
    while count > 0:
        at -= 1
        count -= len(assignment[at].partitions)
    if count == 0:
        return assignment[:at], assignment[at:]
    (topic_id, numbers), kept = assignment[at], -count
    first, second = TopicPartitions(topic_id, numbers[:kept]), TopicPartitions(topic_id, numbers[kept:])
    return (*assignment[:at], first), (second, *assignment[at + 1 :])


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
DEFAULT_ASSIGNOR = "uniform"


def _in_order(subscribers: Sequence[Subscriber]) -> list[Subscriber]:
    """Static members first, by instance, since their place among the others outlives their member ids."""
    return sorted(
        subscribers, key=lambda one: (one.instance_id is None, one.instance_id or one.member_id, one.member_id)
    )


class _Class:
    """Topics with the same readers: to an assignor their partitions are all alike.

    Topics are numbers here, by the order of their ids: a UUID is hashed by Python code, which is slow.
    """

    __slots__ = ("owned", "readers", "topics")

    def __init__(self, readers: list[int], topics: dict[int, int]) -> None:
        self.readers = readers
        self.topics = topics
        """How many partitions each has."""
        self.owned: dict[int, list[tuple[int, int]]] = {member: [] for member in readers}

    def fill(self, loads: list[int], taken: Sequence[set[int]]) -> set[int]:
        """What nobody has goes to whoever has least. Returns who got something."""
        least = [(loads[member], member) for member in self.readers]
        heapify(least)
        changed = set()
        for topic, count in self.topics.items():
            if len(taken[topic]) == count:
                continue
            for number in range(count):
                if number in taken[topic]:
                    continue
                load, member = least[0]
                self.owned[member].append((topic, number))
                changed.add(member)
                heapreplace(least, (load + 1, member))
        for load, member in least:
            loads[member] = load
        return changed

    def balance(self, loads: list[int]) -> set[int]:
        """Moves partitions from who has most to who has least until no move makes two of them more alike.

        What came last goes first: what `fill` gave has not been read yet, so moving it costs nobody anything. Returns
        who gave and who took.
        """
        most = [(-loads[member], member) for member in self.readers if self.owned[member]]
        least = [(loads[member], member) for member in self.readers]
        heapify(most)
        heapify(least)
        moved = set()
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
                moved |= {giver, taker}
        return moved

    def _move(self, giver: int, taker: int, loads: list[int]) -> None:
        self.owned[taker].append(self.owned[giver].pop())
        loads[giver] -= 1
        loads[taker] += 1


def _classes(ordered: Sequence[Subscriber], partitions: Mapping[UUID, int]) -> tuple[list[UUID], list[_Class]]:
    ids, by_readers = topics_by_readers(ordered, partitions)
    return ids, [_Class(readers, topics) for readers, topics in by_readers]


def topics_by_readers(
    ordered: Sequence[Subscriber], partitions: Mapping[UUID, int]
) -> tuple[list[UUID], list[tuple[list[int], dict[int, int]]]]:
    """The topics by number; and the readers of topics, by their places, with the partitions of each topic they read.

    Found by way of the different subscriptions there are: thousands of members usually have one or two.
    """
    members_of: dict[frozenset[UUID], list[int]] = {}
    for member, subscriber in enumerate(ordered):
        members_of.setdefault(subscriber.topics, []).append(member)
    kinds_of: dict[UUID, list[int]] = {}
    groups = list(members_of.items())
    for kind, (topics, _) in enumerate(groups):
        for topic_id in topics:
            kinds_of.setdefault(topic_id, []).append(kind)
    ids = sorted(kinds_of.keys() & partitions.keys(), key=lambda topic_id: topic_id.int)
    topics_of: dict[tuple[int, ...], dict[int, int]] = {}
    for topic, topic_id in enumerate(ids):
        topics_of.setdefault(tuple(kinds_of[topic_id]), {})[topic] = partitions[topic_id]
    return ids, [
        (sorted(member for kind in kinds for member in groups[kind][1]), topics) for kinds, topics in topics_of.items()
    ]


def _keep(
    ordered: Sequence[Subscriber], ids: Sequence[UUID], classes: Sequence[_Class], loads: list[int]
) -> tuple[list[set[int]], set[int]]:
    """Everybody keeps what it was to have and still may have. Returns that by topic, and who keeps less than it had."""
    numbers_of = {topic_id: topic for topic, topic_id in enumerate(ids)}
    class_of = {topic: alike for alike in classes for topic in alike.topics}
    taken: list[set[int]] = [set() for _ in ids]
    changed = set()
    for member, subscriber in enumerate(ordered):
        for topic_id, numbers in subscriber.target:
            topic = numbers_of.get(topic_id)
            if topic is None or member not in class_of[topic].owned:
                changed.add(member)
                continue
            alike, others = class_of[topic], taken[topic]
            if max(numbers, default=0) >= alike.topics[topic] or not others.isdisjoint(numbers):
                numbers = tuple([number for number in numbers if number < alike.topics[topic] and number not in others])
                changed.add(member)
            others.update(numbers)
            alike.owned[member] += [(topic, number) for number in numbers]
            loads[member] += len(numbers)
    return taken, changed


def _assignment_of(ids: Sequence[UUID], classes: Sequence[_Class], member: int) -> Assignment:
    numbers: dict[int, list[int]] = {}
    for topic, number in sorted(chain.from_iterable(alike.owned.get(member, ()) for alike in classes)):
        numbers.setdefault(topic, []).append(number)
    return tuple([TopicPartitions(ids[topic], tuple(run)) for topic, run in numbers.items()])
