"""Topics and rights for consumer groups in tests, and assignments as people write them: `orders:0-2 payments:1`."""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.engine.coordination.schemas import TopicPartitions
from penstock.engine.groups.known_topics import TopicInfo


class FakeTopics:
    """A `TopicView` that tests change."""

    def __init__(self, **partitions: int) -> None:
        self.revision = 0
        self._by_name: dict[str, TopicInfo] = {}
        self._made = 0
        for name, count in partitions.items():
            self.put(name, count)

    def put(self, name: str, partitions: int) -> TopicInfo:
        """Makes a topic, or lets it grow."""
        known = self._by_name.get(name)
        if known is None:
            self._made += 1
        topic_id = known.topic_id if known else UUID(int=self._made)
        self._by_name[name] = TopicInfo(name, topic_id, partitions)
        self.revision += 1
        return self._by_name[name]

    def remove(self, name: str) -> None:
        del self._by_name[name]
        self.revision += 1

    def get(self, name: str) -> TopicInfo | None:
        return self._by_name.get(name)

    def get_by_id(self, topic_id: UUID) -> TopicInfo | None:
        return next((info for info in self._by_name.values() if info.topic_id == topic_id), None)

    def names(self) -> Sequence[str]:
        return sorted(self._by_name)

    def parse(self, words: Iterable[str]) -> tuple[TopicPartitions, ...]:
        found = []
        for word in words:
            name, _, numbers = word.partition(":")
            partitions: list[int] = []
            for run in numbers.split(","):
                first, _, last = run.partition("-")
                partitions += range(int(first), int(last or first) + 1)
            found.append(TopicPartitions(self._by_name[name].topic_id, tuple(partitions)))
        return tuple(found)

    def format(self, assignment: Iterable[tuple[UUID, Sequence[int]]]) -> str:
        words = []
        for topic_id, numbers in assignment:
            info = self.get_by_id(topic_id)
            words.append(f"{info.name if info else 'a deleted topic'}:{_format_runs(numbers)}")
        return " ".join(words) or "nothing"


class FakeRules:
    """Who may not be told of which topics; tests change it. Without any, everybody may be told of everything."""

    def __init__(self) -> None:
        self.revision = 0
        self.hidden: dict[str, frozenset[str]] = {}

    def hide(self, member: str, names: Iterable[str]) -> None:
        self.hidden[member] = frozenset(names)
        self.revision += 1

    def sight(self, member: str) -> "FakeSight":
        return FakeSight(self, member)


class FakeSight(NamedTuple):
    """A `Sight` of one member."""

    rules: FakeRules
    member: str

    @property
    def revision(self) -> int:
        return self.rules.revision

    @property
    def is_open(self) -> bool:
        return not self.rules.hidden

    @property
    def hidden(self) -> frozenset[str]:
        return self.rules.hidden.get(self.member, frozenset())

    @property
    def likeness(self) -> Hashable:
        return self.rules.revision, self.hidden

    def may_see(self, name: str) -> bool:
        return name not in self.hidden


def _format_runs(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def owned_by_id(assignment: Iterable[TopicPartitions]) -> set[tuple[UUID, int]]:
    return {(topic_id, number) for topic_id, numbers in assignment for number in numbers}
