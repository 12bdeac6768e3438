"""What transactional producers did and were told, what readers got, and what must follow from it.

A value names its transaction; a transaction is over when its producer was told, or never heard again. Offsets give the
order, so all checks take one pass. A commit that was never asked for must not be seen by anybody; one that was asked
for and never answered is there wholly or not at all; what a group's offset is belongs to it like a record.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

Place = tuple[str, int]
Records = Sequence[tuple[int, bytes]]
"""Offset and value, in order."""


class Outcome(StrEnum):
    OPEN = "not ended by its producer"
    ABORTED = "aborted"
    REFUSED = "refused"
    UNKNOWN = "commit not answered"
    COMMITTED = "committed"


@dataclass(slots=True)
class Attempt:
    """One transaction, as its producer knows it."""

    transactional_id: str
    number: int
    """Rises with every transaction of the id; also the group's offset it commits."""
    life: "Life"
    sent: list[tuple[Place, bytes]] = field(default_factory=list)
    has_offset: bool = False
    """Whether the offset was acknowledged."""
    commit_asked_at: float = math.inf
    ended_at: float = math.inf
    outcome: Outcome = Outcome.OPEN

    @property
    def name(self) -> str:
        return f"{self.transactional_id}/{self.number}"

    def next_value(self, place: Place) -> bytes:
        return f"{self.name}/{place[1]}/{sum(at == place for at, _ in self.sent)}".encode()

    @property
    def may_be_seen(self) -> bool:
        return self.outcome in (Outcome.UNKNOWN, Outcome.COMMITTED)


@dataclass(slots=True)
class Life:
    """One producer with a transactional id, from its init on until another took its place."""

    replaced_at: float = math.inf
    """When another one's init was answered: from then on it can do nothing."""


class Range(NamedTuple):
    """What one read of committed records went over."""

    start: int
    end: int
    offsets: tuple[int, ...]
    who: str


class Seen(NamedTuple):
    value: bytes
    at: float
    who: str


@dataclass
class History:
    attempts: dict[str, Attempt] = field(default_factory=dict)
    seen: dict[Place, dict[int, Seen]] = field(default_factory=dict)
    """By readers of committed records: each value when it was first seen."""
    ranges: dict[Place, list[Range]] = field(default_factory=dict)
    raw: dict[Place, dict[int, bytes]] = field(default_factory=dict)
    """By readers of all records."""
    conflicts: list[str] = field(default_factory=list)

    def attempt_of(self, value: bytes) -> Attempt | None:
        return self.attempts.get("/".join(value.decode().split("/")[:2]))

    def saw(self, place: Place, start: int, end: int, records: Records, at: float, who: str) -> None:
        """A reader of committed records was given these."""
        known = self.seen.setdefault(place, {})
        for offset, value in records:
            before = known.setdefault(offset, Seen(value, at, who))
            if before.value != value:
                was = f"{_text(before.value)} ({before.who})"
                self.conflicts.append(f"{_name(place)}: offset {offset} is {_text(value)} ({who}), was {was}")
        self.ranges.setdefault(place, []).append(Range(start, end, tuple(offset for offset, _ in records), who))

    def saw_raw(self, place: Place, records: Records, who: str) -> None:
        known = self.raw.setdefault(place, {})
        for offset, value in records:
            before = known.setdefault(offset, value)
            if before != value:
                self.conflicts.append(f"{_name(place)}: offset {offset} is {_text(value)} ({who}), was {_text(before)}")


@dataclass
class Final:
    """How everything stands in the end."""

    committed: dict[Place, Records] = field(default_factory=dict)
    raw: dict[Place, Records] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    """By transactional id: its group's offset."""


def check_transactions(history: History, final: Final) -> list[str]:
    """Everything that is wrong; of what readers got only, if it never came to a last read."""
    if not final.committed:
        return [*history.conflicts, *check_seen(history, final)]
    return [
        *history.conflicts,
        *check_outcomes(history, final),
        *check_zombies(history, final),
        *check_offsets(history, final),
        *check_values(history, final),
        *check_seen(history, final),
        *check_skipped(history, final),
    ]


def check_outcomes(history: History, final: Final) -> Iterator[str]:
    """Aborted ones are not there, committed ones are, and none is there in part."""
    there = {(place, value) for place, records in final.committed.items() for _, value in records}
    for attempt in history.attempts.values():
        missing = [sent for sent in attempt.sent if sent not in there]
        found = len(attempt.sent) - len(missing)
        if found and not attempt.may_be_seen:
            yield f"aborted read: {attempt.name} ({attempt.outcome}): {found} of its records are committed"
        elif found and missing:
            yield f"torn: {attempt.name} ({attempt.outcome}): {found} records there, {_sent(missing[0])} is not"
        elif missing and attempt.outcome is Outcome.COMMITTED:
            yield f"lost: {attempt.name} was committed, none of its {len(missing)} records is there"


def check_zombies(history: History, final: Final) -> Iterator[str]:
    """What a producer asked for after another had taken its place is not done."""
    there = {value for records in final.committed.values() for _, value in records}
    for attempt in history.attempts.values():
        if attempt.commit_asked_at <= attempt.life.replaced_at:
            continue
        what = f"zombie: {attempt.name} was fenced at {attempt.life.replaced_at:.3f}"
        if attempt.outcome is Outcome.COMMITTED:
            yield f"{what} and committed at {attempt.ended_at:.3f}"
        elif any(value in there for _, value in attempt.sent):
            yield f"{what}, its records are committed"


def check_offsets(history: History, final: Final) -> Iterator[str]:
    """The group's offset is that of the last transaction whose records are there."""
    there = {value for records in final.committed.values() for _, value in records}
    last: dict[str, Attempt] = {}
    for attempt in history.attempts.values():
        if attempt.has_offset and any(value in there for _, value in attempt.sent):
            known = last.get(attempt.transactional_id)
            if known is None or attempt.number > known.number:
                last[attempt.transactional_id] = attempt
    for transactional_id, offset in final.offsets.items():
        attempt = last.get(transactional_id)
        expected = -1 if attempt is None else attempt.number
        if offset != expected:
            yield (f"torn: the offset of {transactional_id} is {offset}, by the records that are committed {expected}")


def check_values(history: History, final: Final) -> Iterator[str]:
    """Only what was sent is there, once, and an id's transactions in their order."""
    sent = {each for attempt in history.attempts.values() for each in attempt.sent}
    for place, records in final.raw.items():
        counts = Counter(value for _, value in records)
        for value, times in counts.items():
            if times > 1:
                yield f"duplicate: {_text(value)} is {times} times in {_name(place)}"
            if (place, value) not in sent:
                yield f"phantom: {_text(value)} in {_name(place)} was never sent there"
    for place, records in final.committed.items():
        last: dict[str, tuple[int, int]] = {}
        for offset, value in records:
            transactional_id, number, _, at = value.decode().split("/")
            order = int(number), int(at)
            if order < last.get(transactional_id, (-1, -1)):
                yield f"reordered: {_text(value)} at {offset} of {_name(place)} is after {last[transactional_id]}"
            last[transactional_id] = order


def check_seen(history: History, final: Final) -> Iterator[str]:
    """What a reader of committed records was given was committed then, and still is."""
    for place, seen in history.seen.items():
        committed = dict(final.committed.get(place, ()))
        for offset, (value, at, who) in seen.items():
            what = f"{_text(value)} at {offset} of {_name(place)} was given to a reader at {at:.3f} ({who})"
            attempt = history.attempt_of(value)
            if attempt is None:
                yield f"phantom: {what}"
            elif not attempt.may_be_seen:
                yield f"aborted read: {what}: {attempt.outcome}"
            elif at < attempt.commit_asked_at:
                yield f"early read: {what}, its commit was asked for at {attempt.commit_asked_at:.3f}"
            elif final.committed and committed.get(offset) != value:
                yield f"vanished: {what}, now there is {_text(committed.get(offset, b'nothing'))}"
    for place, raw in history.raw.items():
        now = dict(final.raw.get(place, ()))
        for offset, value in raw.items():
            if final.raw and now.get(offset) != value:
                yield (
                    f"vanished: {_text(value)} at {offset} of {_name(place)} was seen, now there is "
                    f"{_text(now.get(offset, b'nothing'))}"
                )


def check_skipped(history: History, final: Final) -> Iterator[str]:
    """A reader is not taken past what is committed there."""
    offsets = {place: [offset for offset, _ in records] for place, records in final.committed.items()}
    for place, ranges in history.ranges.items():
        known = offsets.get(place, [])
        for start, end, given, who in ranges:
            there = known[bisect_left(known, start) : bisect_left(known, end)]
            skipped = set(there).difference(given)
            if skipped:
                yield f"skipped: a reader went from {start} to {end} of {_name(place)} ({who}) past {sorted(skipped)}"


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _text(value: bytes) -> str:
    return value[:30].decode()


def _sent(sent: tuple[Place, bytes]) -> str:
    return f"{_text(sent[1])} in {_name(sent[0])}"


def committed_counts(history: History) -> Mapping[Outcome, int]:
    return Counter(attempt.outcome for attempt in history.attempts.values())
