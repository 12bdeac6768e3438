"""What transactional clients did and were told, what is committed in the end, and what must follow from it.

Each client writes a line before it acts and one when it knows the outcome, so the lines of a client that was killed say
how far it got: a transaction it never asked to commit must be gone, one it asked for and heard nothing about is there
wholly or not at all. A value names its source (producer, key, sequence) and the attempt that wrote it; a source is
copied by several attempts when some are aborted, and exactly one may be seen. Offsets give the order, the machine's
steady clock is the same for all processes, and every check is a pass over what is in order or was sorted once.
"""

import json
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.history import Outcome, PartitionLog

PLAIN = "-"
"""The attempt of a value that was sent outside any transaction."""
Place = tuple[str, int]


class Kind(StrEnum):
    LOST = "lost"
    """Acked or committed, and nothing of it is in the log."""
    TORN = "torn"
    """Some records of a transaction are in the log, others are not."""
    ABORTED_READ = "aborted_read"
    """A value of a transaction that did not commit was read."""
    EARLY_READ = "early_read"
    """A value was read before its producer asked for the commit."""
    PHANTOM = "phantom"
    """A value in the log was never sent."""
    DUPLICATE = "duplicate"
    """A source is in a topic more than once."""
    REORDERED = "reordered"
    """Two values of one producer and key are in the other order than they were sent."""
    VANISHED = "vanished"
    """A reader was given a value at an offset where the log now has another one, or none."""
    WENT_BACK = "went_back"
    """A reader was given an offset again, or an earlier one, while it kept the partition."""
    SKIPPED = "skipped"
    """A reader was taken past a committed record while it kept the partition."""
    CONSUMED_TWICE = "consumed_twice"
    """Two transactions that committed both took in the same offsets."""
    UNCONSUMED = "unconsumed"
    """A committed record lies below the group's offsets, and no transaction that committed took it in."""
    NOT_COPIED = "not_copied"
    """A record of the input has no copy in the output."""
    UNREAD = "unread"
    """A record below a group's offsets was given to none of its members."""
    OFFSETS_BACK = "offsets_back"
    """A committed offset was lower than one committed before."""
    HANGING = "hanging"
    """All transactions are over, and the last stable offset stays below the end of the log."""
    CLIENT_FATAL = "client_fatal"
    """A client met an error after which it could not go on, though nobody had taken its place."""
    STUCK = "stuck"
    """No progress any more."""


class Violation(NamedTuple):
    kind: Kind
    text: str


class Value(NamedTuple):
    producer: str
    key: int
    sequence: int
    attempt: str

    @property
    def source(self) -> str:
        return f"{self.producer}/{self.key}/{self.sequence}"

    def __str__(self) -> str:
        return f"{self.source}@{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> "Value":
        source, attempt = text.split("@")
        producer, key, sequence = source.split("/")
        return cls(producer, int(key), int(sequence), attempt)


@dataclass(slots=True)
class Attempt:
    """One transaction, as its client told it."""

    name: str
    sent: list[tuple[Place, str]] = field(default_factory=list)
    group: str = ""
    consumed: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """First offset taken in, and the one to go on with."""
    commit_asked_at: float = math.inf
    ended_at: float = math.inf
    outcome: Outcome = Outcome.FAIL
    """Fails as long as nobody asked for the commit."""


class Step(NamedTuple):
    """Something that happened to a reader. `rows` are (topic, partition, offset, value), as far as it has them."""

    kind: str
    at: float
    rows: Sequence[Sequence[Any]]


class Reader(NamedTuple):
    group: str
    steps: list[Step]


class Offset(NamedTuple):
    """A group's offset at a moment: a commit when it was acked, a look at it when it began."""

    at: float
    group: str
    place: Place
    offset: int


class Copy(NamedTuple):
    """What exactly-once copying promises: each record of `source` is once in `target`."""

    group: str
    source: str
    target: str


@dataclass
class History:
    attempts: dict[str, Attempt] = field(default_factory=dict)
    plain: dict[str, tuple[Place, Outcome]] = field(default_factory=dict)
    """Value to where it was sent, and what became of it."""
    readers: dict[str, Reader] = field(default_factory=dict)
    commits: list[Offset] = field(default_factory=list)
    looks: list[Offset] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    """Clients another one took the place of while they were still alive: they are to be fenced."""
    fatal: list[tuple[str, str]] = field(default_factory=list)
    """Clients that could not go on, and why."""
    refusals: list[str] = field(default_factory=list)
    """Why clients had to abort or to commit again: no violation, but what a person wants to know first."""

    @classmethod
    def load(cls, files: Iterable[Path]) -> "History":
        history = cls()
        for path in sorted(files):
            for line in path.read_bytes().splitlines(keepends=True):
                if line.endswith(b"\n"):  # the last one may be torn by a kill: what it announces was not done
                    history.note(json.loads(line))
        return history

    def note(self, line: Mapping[str, Any]) -> None:
        getattr(self, f"_on_{line['op']}")(line)

    def _on_sends(self, line: Mapping[str, Any]) -> None:
        rows = [((topic, partition), value) for topic, partition, value in line["rows"]]
        if line["attempt"] == PLAIN:
            self.plain.update((value, (place, Outcome.UNKNOWN)) for place, value in rows)
        else:
            attempt = self.attempts.setdefault(line["attempt"], Attempt(line["attempt"]))
            attempt.sent += rows

    def _on_acked(self, line: Mapping[str, Any]) -> None:
        for value in line["values"]:
            self.plain[value] = (self.plain[value][0], Outcome.OK)

    def _on_consumed(self, line: Mapping[str, Any]) -> None:
        attempt = self.attempts[line["attempt"]]
        attempt.group = line["group"]
        attempt.consumed = {(topic, index): (first, following) for topic, index, first, following in line["rows"]}

    def _on_committing(self, line: Mapping[str, Any]) -> None:
        attempt = self.attempts[line["attempt"]]
        attempt.commit_asked_at, attempt.outcome = line["at"], Outcome.UNKNOWN

    def _on_ended(self, line: Mapping[str, Any]) -> None:
        attempt = self.attempts[line["attempt"]]
        attempt.ended_at, attempt.outcome = line["at"], Outcome(line["outcome"])
        if attempt.outcome is Outcome.OK:
            self.commits += [
                Offset(line["at"], attempt.group, place, following)
                for place, (_, following) in attempt.consumed.items()
            ]

    def _on_committed(self, line: Mapping[str, Any]) -> None:
        self.commits += [Offset(line["at"], line["group"], (topic, index), at) for topic, index, at in line["rows"]]

    def _on_look(self, line: Mapping[str, Any]) -> None:
        self.looks += [Offset(line["began"], line["group"], (topic, index), at) for topic, index, at in line["rows"]]
        self._on_committed(line)  # what was once seen stays, so it counts like an acked commit

    def _on_step(self, line: Mapping[str, Any]) -> None:
        reader = self.readers.setdefault(line["reader"], Reader(line["group"], []))
        reader.steps.append(Step(line["kind"], line["at"], line["rows"]))

    def _on_refused(self, line: Mapping[str, Any]) -> None:
        self.refusals.append(f"{line['attempt']}: {line['error']}")

    def _on_fatal(self, line: Mapping[str, Any]) -> None:
        self.fatal.append((line["client"], line["error"]))

    def _on_succeeded(self, line: Mapping[str, Any]) -> None:
        self.replaced.add(line["client"])

    def check(
        self, logs: Mapping[Place, PartitionLog], copies: Sequence[Copy] = (), watched: Mapping[str, str] | None = None
    ) -> list[Violation]:
        """Every violation, given all committed records; `watched` names topics and groups that read all of them."""
        found = [
            *(Violation(Kind.CLIENT_FATAL, f"{who}: {why}") for who, why in self.fatal if who not in self.replaced),
            *check_outcomes(self, logs),
            *check_logs(self, logs),
            *check_readers(self, logs),
            *check_offsets(self),
        ]
        for copy in copies:
            found += check_consumption(self, logs, copy)
            found += check_copies(logs, copy)
        for topic, group in (watched or {}).items():
            found += check_watched(self, logs, topic, group)
        return found


def check_outcomes(history: History, logs: Mapping[Place, PartitionLog]) -> list[Violation]:
    """Acked and committed is there; a transaction is there as a whole or not at all; an aborted one is not."""
    found = []
    seen = {(place, record.value) for place, log in logs.items() for record in log.records}
    for value, (place, outcome) in history.plain.items():
        if outcome is Outcome.OK and (place, value) not in seen:
            found.append(Violation(Kind.LOST, f"{value} acked in {_name(place)}, not there"))
    for attempt in history.attempts.values():
        missing = [sent for sent in attempt.sent if sent not in seen]
        there = len(attempt.sent) - len(missing)
        if attempt.outcome is Outcome.FAIL and there:
            found.append(
                Violation(Kind.ABORTED_READ, f"{attempt.name} did not commit, {there} of its records are there")
            )
        elif there and missing:
            text = f"{attempt.name} ({attempt.outcome}): {there} records there, {len(missing)} not: {missing[0]}"
            found.append(Violation(Kind.TORN, text))
        elif attempt.outcome is Outcome.OK and missing:
            found.append(Violation(Kind.LOST, f"{attempt.name} committed, none of its {len(missing)} records is there"))
    return found


def check_logs(history: History, logs: Mapping[Place, PartitionLog]) -> list[Violation]:
    """A topic holds only what was sent to it, each source once, a producer's values of one key in their order."""
    found = []
    sent = {(place, value) for attempt in history.attempts.values() for place, value in attempt.sent}
    sent |= {(place, value) for value, (place, _) in history.plain.items()}
    first: dict[tuple[str, str], str] = {}
    last: dict[tuple[str, str, int], Value] = {}
    for place, log in sorted(logs.items()):
        for record in log.records:
            where = f"{record.value} at {record.offset} of {_name(place)}"
            if (place, record.value) not in sent:
                found.append(Violation(Kind.PHANTOM, f"{where} was never sent there"))
                continue
            value = Value.parse(record.value)
            earlier = first.setdefault((place[0], value.source), where)
            if earlier is not where:
                found.append(Violation(Kind.DUPLICATE, f"{where} is also {earlier}"))
                continue
            before = last.get((place[0], value.producer, value.key))
            if before is not None and value.sequence < before.sequence:
                found.append(Violation(Kind.REORDERED, f"{where} stands after {before}"))
            last[place[0], value.producer, value.key] = value
    return found


def check_readers(history: History, logs: Mapping[Place, PartitionLog]) -> list[Violation]:
    """A reader goes forward, past nothing that is committed, and is given only what is and stays committed."""
    found: list[Violation] = []
    offsets = {place: [record.offset for record in log.records] for place, log in logs.items()}
    values = {(*place, record.offset): record.value for place, log in logs.items() for record in log.records}
    for name, reader in history.readers.items():
        position: dict[Place, int] = {}
        for step in reader.steps:
            for topic, partition, *more in step.rows:
                place = (topic, partition)
                if step.kind == "polled":
                    offset, value = more
                    found += _given(history, name, step.at, place, offset, value, values.get((*place, offset)))
                    found += _moved(name, place, position.get(place), offset, offsets.get(place, []))
                    position[place] = offset + 1
                elif step.kind == "sought":
                    position[place] = more[0]
                else:
                    position.pop(place, None)
    return found


def _given(
    history: History, reader: str, at: float, place: Place, offset: int, text: str, now: str | None
) -> Iterator[Violation]:
    what = f"{reader} was given {text} at {offset} of {_name(place)}"
    attempt = history.attempts.get(Value.parse(text).attempt)
    if attempt is not None and attempt.outcome is Outcome.FAIL:
        yield Violation(Kind.ABORTED_READ, f"{what}; that transaction did not commit")
    elif now != text:
        yield Violation(Kind.VANISHED, f"{what}, now {now or 'nothing'}")
    elif attempt is not None and at < attempt.commit_asked_at:
        early = attempt.commit_asked_at - at
        yield Violation(Kind.EARLY_READ, f"{what} {early * 1000:.1f} ms before its commit was asked for")


def _moved(
    reader: str, place: Place, expected: int | None, offset: int, committed: Sequence[int]
) -> Iterator[Violation]:
    if expected is None:
        return
    if offset < expected:
        yield Violation(Kind.WENT_BACK, f"{reader} went back from {expected} to {offset} of {_name(place)}")
        return
    passed = committed[bisect_left(committed, expected) : bisect_left(committed, offset)]
    if passed:
        text = f"{reader} went from {expected} to {offset} of {_name(place)}, past {len(passed)} records"
        yield Violation(Kind.SKIPPED, text)


def check_offsets(history: History) -> list[Violation]:
    """Once a commit was acked, nobody finds a lower offset, and no member that comes later begins below it."""
    found = []
    moments: list[tuple[float, int, str, Offset]] = [(each.at, 0, "a commit", each) for each in history.commits]
    moments += [(each.at, 1, "a look", each) for each in history.looks]
    for name, reader in history.readers.items():
        moments += [(each.at, 1, name, each) for each in _beginnings(reader)]
    floors: dict[tuple[str, Place], int] = {}
    for _, order, who, each in sorted(moments, key=lambda moment: moment[:2]):
        floor = floors.get((each.group, each.place), -1)
        if order == 0:
            floors[each.group, each.place] = max(floor, each.offset)
        elif each.offset < floor:
            text = f"{who} found {each.offset} for {each.group} in {_name(each.place)}, {floor} was committed before"
            found.append(Violation(Kind.OFFSETS_BACK, text))
    return found


def _beginnings(reader: Reader) -> Iterator[Offset]:
    """The first offset a reader was given of each partition it was assigned, with the time of the assignment."""
    assigned: dict[Place, float] = {}
    for step in reader.steps:
        for topic, partition, *more in step.rows:
            place = (topic, partition)
            if step.kind == "assigned":
                assigned[place] = step.at
            elif (at := assigned.pop(place, None)) is not None and step.kind == "polled":
                yield Offset(at, reader.group, place, more[0])


def check_consumption(history: History, logs: Mapping[Place, PartitionLog], copy: Copy) -> list[Violation]:
    """Transactions that committed took in each committed record once, as far as the group's offsets go."""
    found = []
    seen = {Value.parse(record.value).attempt for log in logs.values() for record in log.records}
    taken: dict[Place, list[tuple[int, int, str]]] = defaultdict(list)
    for attempt in history.attempts.values():
        if attempt.group == copy.group and (attempt.outcome is Outcome.OK or attempt.name in seen):
            for place, (first, following) in attempt.consumed.items():
                taken[place].append((first, following, attempt.name))
    for place, ranges in taken.items():
        log = logs.get(place)
        committed = [record.offset for record in log.records] if log is not None else []
        reached, before = 0, "the beginning"
        for first, following, name in sorted(ranges):
            if first < reached:
                text = f"{before} went to {reached} of {_name(place)}, {name} began at {first}"
                found.append(Violation(Kind.CONSUMED_TWICE, text))
            elif missed := committed[bisect_left(committed, reached) : bisect_left(committed, first)]:
                text = f"{before} went to {reached} of {_name(place)}, {name} began at {first}: {len(missed)} missed"
                found.append(Violation(Kind.UNCONSUMED, text))
            reached, before = max(reached, following), name
    return found


def check_copies(logs: Mapping[Place, PartitionLog], copy: Copy) -> list[Violation]:
    """Each source of the input is in the output; `check_logs` sees to it that it is there once."""
    copied = {Value.parse(value).source for value in _values(logs, copy.target)}
    missing = [value for value in _values(logs, copy.source) if Value.parse(value).source not in copied]
    return [Violation(Kind.NOT_COPIED, f"{value} of {copy.source} is not in {copy.target}") for value in missing]


def check_watched(history: History, logs: Mapping[Place, PartitionLog], topic: str, group: str) -> list[Violation]:
    """Each record of a topic was given to a member of the group at least once."""
    given = {
        (row[0], row[1], row[2])
        for reader in history.readers.values()
        if reader.group == group
        for step in reader.steps
        if step.kind == "polled"
        for row in step.rows
    }
    return [
        Violation(Kind.UNREAD, f"{record.value} at {record.offset} of {_name(place)} was read by nobody of {group}")
        for place, log in sorted(logs.items())
        if place[0] == topic
        for record in log.records
        if (*place, record.offset) not in given
    ]


def _values(logs: Mapping[Place, PartitionLog], topic: str) -> Iterator[str]:
    return (record.value for place, log in sorted(logs.items()) if place[0] == topic for record in log.records)


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def report(violations: Sequence[Violation], limit: int = 20) -> str:
    """Readable in a failed assertion: a count per kind, then the first few of each."""
    counts = Counter(violation.kind for violation in violations)
    lines = [f"{len(violations)} violations: " + ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items()))]
    shown: Counter[Kind] = Counter()
    for violation in violations:
        shown[violation.kind] += 1
        if shown[violation.kind] <= max(1, limit // len(counts)):
            lines.append(f"  {violation.kind}: {violation.text}")
    return "\n".join(lines)
