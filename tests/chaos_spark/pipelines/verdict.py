"""What is in a sink and ought to be: every row once, none that nobody fed, records of one key in their order."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .rows import Row


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one reading of a sink.

    Attributes:
        strange: found, and fed by nobody.
        disorder: one line for each record that stands behind a later one of its key, or apart from them.
    """

    name: str
    fed: int
    found: int
    lost: list[Any] = field(default_factory=list)
    doubled: list[Any] = field(default_factory=list)
    strange: list[Any] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)

    @property
    def is_fine(self) -> bool:
        return not (self.lost or self.doubled or self.strange or self.disorder)

    def __str__(self) -> str:
        kinds = {"lost": self.lost, "doubled": self.doubled, "strange": self.strange, "out of order": self.disorder}
        told = [f"{len(each)} {kind}: {_first(each)}" for kind, each in kinds.items() if each]
        return f"{self.name}: {self.found} of {self.fed} rows, " + ("; ".join(told) or "each once")


def compare(name: str, fed: Iterable[Any], found: Iterable[Any]) -> Verdict:
    """Both as multisets."""
    wanted, there = Counter(fed), Counter(found)
    return Verdict(
        name,
        wanted.total(),
        there.total(),
        sorted((wanted - there).elements()),
        sorted(each for each in (there - wanted) if each in wanted),
        sorted((each for each in there if each not in wanted), key=repr),
    )


def disorder(partitions: Sequence[Sequence[Row]]) -> list[str]:
    """Rows of one key are in one partition, the later behind the earlier."""
    found: list[str] = []
    places: dict[str, int] = {}
    for number, rows in enumerate(partitions):
        last: dict[str, int] = {}
        for row in rows:
            if row.id < last.get(row.who, -1):
                found.append(f"{row.who}: {row.id} behind {last[row.who]}")
            last[row.who] = row.id
            if places.setdefault(row.who, number) != number:
                found.append(f"{row.who}: {row.id} in partition {number}, others in {places[row.who]}")
    return found


def miscounted(wanted: Mapping[str, Any], counted: Mapping[str, Any]) -> list[str]:
    """Where the pipeline's own counters say something else than is so."""
    return [
        f"{name}: counted {counted.get(name)}, there are {value}"
        for name, value in wanted.items()
        if counted.get(name) != value
    ]


def _first(items: Sequence[Any], most: int = 12) -> str:
    return ", ".join(str(tuple(each) if isinstance(each, Row) else each) for each in items[:most]) + (
        ", …" if len(items) > most else ""
    )
