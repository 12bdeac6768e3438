"""What producers were told, what readers saw, what is in the log at the end, and what must follow from it.

Every value sent is unique, so a value found in the log names its send. A send ends in one of three ways:
`ok` with an offset, `fail` (the broker said that it was not written), or `unknown` (a timeout, a lost
connection: it may or may not be there). Only `ok` and `fail` are promises. Offsets give the order, so every
check is one pass.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock


class Outcome(StrEnum):
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    LOST = "lost"
    """Acked, but its value is not in the log."""
    MOVED = "moved"
    """Acked at one offset, found at another."""
    DOUBLE_ACK = "double_ack"
    """Two sends were acked with the same offset."""
    DUPLICATE = "duplicate"
    """A value is in the log more than once."""
    GAP = "gap"
    """Offsets in the log are not contiguous."""
    REORDERED = "reordered"
    """Two values of one producer are in the log in the other order than they were sent."""
    ABORTED_READ = "aborted_read"
    """The send failed for certain, and the value is in the log all the same."""
    PHANTOM = "phantom"
    """A value in the log was never sent."""
    VANISHED = "vanished"
    """A reader saw a value at an offset where the log now has another one, or none."""
    SKIPPED = "skipped"
    """A reader went from one offset to another that is not the next."""
    READ_ERROR = "read_error"
    """A reader was told that its position does not exist, or another error that ends reading."""
    PRODUCER_FATAL = "producer_fatal"
    """An idempotent producer met an error after which it cannot promise order or uniqueness."""


@dataclass(frozen=True, slots=True)
class Send:
    producer: str
    sequence: int
    """Counts up in the order of the producer's sends; order is promised within a partition."""
    partition: int
    value: str
    outcome: Outcome = Outcome.UNKNOWN
    offset: int | None = None
    """Of an ack; None where the broker said "sent before" and the client no longer knows where it went."""


@dataclass(frozen=True, slots=True)
class Record:
    partition: int
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition as read from its start to its end."""

    start_offset: int
    end_offset: int
    records: Sequence[Record]


@dataclass(frozen=True, slots=True)
class Violation:
    kind: Kind
    partition: int
    text: str


@dataclass
class History:
    """Collects from several threads; the pure checks below take what it gives out."""

    errors: list[Violation] = field(default_factory=list)
    """What the clients themselves reported as broken promises."""
    seen: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    """Reader → what it was given, in order."""

    def __post_init__(self) -> None:
        self._sends: dict[str, Send] = {}
        self._lock = Lock()
        self.acked = 0

    def sent(self, send: Send) -> None:
        with self._lock:
            if send.value in self._sends:
                raise ValueError(f"value {send.value!r} is sent twice")
            self._sends[send.value] = send

    def settled(self, value: str, outcome: Outcome, offset: int | None = None) -> None:
        with self._lock:
            send = self._sends[value]
            self._sends[value] = Send(send.producer, send.sequence, send.partition, value, outcome, offset)
            self.acked += outcome is Outcome.OK

    def sends(self) -> list[Send]:
        with self._lock:
            return list(self._sends.values())

    def check(self, logs: Mapping[int, PartitionLog], *, trimmed: bool = False) -> list[Violation]:
        """Every violation, given the whole log. With `trimmed`, retention may have removed the oldest."""
        sends = self.sends()
        seen = {reader: list(records) for reader, records in self.seen.items()}
        return [
            *self.errors,
            *check_acks(sends, logs, trimmed=trimmed),
            *check_log(sends, logs, trimmed=trimmed),
            *check_order(sends, logs),
            *check_readers(seen, logs),
        ]


def check_acks(sends: Iterable[Send], logs: Mapping[int, PartitionLog], *, trimmed: bool = False) -> list[Violation]:
    """What was acked is there, where the ack said; what was refused is not."""
    found: list[Violation] = []
    places: dict[tuple[int, str], list[int]] = defaultdict(list)
    for partition, whole in logs.items():
        for record in whole.records:
            places[partition, record.value].append(record.offset)
    acked: dict[tuple[int, int], Send] = {}
    for send in sends:
        offsets = places.get((send.partition, send.value), [])
        if send.outcome is Outcome.FAIL and offsets:
            found.append(Violation(Kind.ABORTED_READ, send.partition, f"{send.value} failed, is at {offsets}"))
        if send.outcome is not Outcome.OK:
            continue
        log = logs.get(send.partition)
        if send.offset is None:
            if not offsets and not trimmed:
                text = f"{send.value} acked without an offset, not in the log"
                found.append(Violation(Kind.LOST, send.partition, text))
            continue
        other = acked.setdefault((send.partition, send.offset), send)
        if other is not send:
            text = f"{other.value} and {send.value} both acked at {send.offset}"
            found.append(Violation(Kind.DOUBLE_ACK, send.partition, text))
        if trimmed and log is not None and send.offset < log.start_offset:
            continue
        if not offsets:
            where = "no such partition" if log is None else f"log is {log.start_offset} to {log.end_offset}"
            text = f"{send.value} acked at {send.offset}, not in the log ({where})"
            found.append(Violation(Kind.LOST, send.partition, text))
        elif send.offset not in offsets:
            text = f"{send.value} acked at {send.offset}, is at {offsets}"
            found.append(Violation(Kind.MOVED, send.partition, text))
    return found


def check_log(sends: Iterable[Send], logs: Mapping[int, PartitionLog], *, trimmed: bool = False) -> list[Violation]:
    """The log is contiguous from start to end, and holds each sent value at most once, and no other."""
    found: list[Violation] = []
    sent = {(send.partition, send.value) for send in sends}
    for partition, log in logs.items():
        if not trimmed and log.start_offset != 0:
            found.append(Violation(Kind.GAP, partition, f"log starts at {log.start_offset}, not at 0"))
        expected = log.start_offset
        places: dict[str, int] = {}
        for record in log.records:
            if record.offset != expected:
                found.append(Violation(Kind.GAP, partition, f"offset {expected} is followed by {record.offset}"))
            expected = record.offset + 1
            first = places.setdefault(record.value, record.offset)
            if first != record.offset:
                text = f"{record.value} is at {first} and at {record.offset}"
                found.append(Violation(Kind.DUPLICATE, partition, text))
            if (partition, record.value) not in sent:
                text = f"{record.value} at {record.offset} was never sent"
                found.append(Violation(Kind.PHANTOM, partition, text))
        if expected != log.end_offset:
            text = f"records end at {expected}, the log ends at {log.end_offset}"
            found.append(Violation(Kind.GAP, partition, text))
    return found


def check_order(sends: Iterable[Send], logs: Mapping[int, PartitionLog]) -> list[Violation]:
    """Within a partition, one producer's values stand in the order of its sends."""
    found: list[Violation] = []
    by_value = {(send.partition, send.value): send for send in sends}
    for partition, log in logs.items():
        last: dict[str, Send] = {}
        counted: set[str] = set()
        for record in log.records:
            send = by_value.get((partition, record.value))
            if send is None or record.value in counted:
                continue  # a phantom or a duplicate, reported as such
            counted.add(record.value)
            before = last.get(send.producer)
            if before is not None and send.sequence < before.sequence:
                text = f"{send.value} at {record.offset} stands after {before.value}, which was sent later"
                found.append(Violation(Kind.REORDERED, partition, text))
            last[send.producer] = send
    return found


def check_readers(seen: Mapping[str, Sequence[Record]], logs: Mapping[int, PartitionLog]) -> list[Violation]:
    """What a reader was given is still there, and it was given every offset in turn."""
    found: list[Violation] = []
    values = {(record.partition, record.offset): record.value for log in logs.values() for record in log.records}
    for reader, records in seen.items():
        position: dict[int, int] = {}
        for record in records:
            before = position.get(record.partition)
            if before is not None and record.offset != before + 1:
                text = f"{reader} went from {before} to {record.offset}"
                found.append(Violation(Kind.SKIPPED, record.partition, text))
            position[record.partition] = record.offset
            log = logs.get(record.partition)
            if log is not None and record.offset < log.start_offset:
                continue  # if retention was not allowed, `check_log` says so
            now = values.get((record.partition, record.offset))
            if now != record.value:
                text = f"{reader} saw {record.value} at {record.offset}, now {now or 'nothing'}"
                found.append(Violation(Kind.VANISHED, record.partition, text))
    return found


def report(violations: Sequence[Violation], limit: int = 20) -> str:
    """Readable in a failed assertion: a count per kind, then the first few."""
    counts: dict[Kind, int] = defaultdict(int)
    for violation in violations:
        counts[violation.kind] += 1
    lines = [f"{len(violations)} violations: " + ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items()))]
    lines += [f"  {v.kind} partition {v.partition}: {v.text}" for v in violations[:limit]]
    return "\n".join(lines)
