"""What consumers of a queue were given and told, what became dead letters, and what must follow from it.

A message is known by its partition and offset, which its sender was told, and by its value, which is there once. What a
consumer says of a message has an outcome: `ok`, `fail` (the broker said that the receipt is stale, so nothing was
done), or `unknown` (a time-out, a lost connection: it may have been done). Only the first two are promises. All moments
are of the clients' monotonic clock. In the end the queue was worked on until nothing was left in it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

from tests.chaos.history import Outcome

Place = tuple[int, int]
"""Partition and offset."""
SLACK_S = 0.02
"""By how much times in whole milliseconds and moments of this process may differ."""


class Kind(StrEnum):
    LOST = "lost"
    """Sent safely, and in the end neither acknowledged nor a dead letter."""
    AGAIN = "settled_again"
    """Delivered after an acknowledgement or a rejection of it was confirmed."""
    BURIED_TWICE = "buried_twice"
    """Two dead letters of one message."""
    ACKED_AND_BURIED = "acked_and_buried"
    """A dead letter although its acknowledgement was confirmed."""
    COUNTED_BACK = "counted_back"
    """Its deliveries or attempts are fewer than a consumer had seen, or more than there can have been."""
    TOO_OFTEN = "too_often"
    """Delivered although it had failed as often as it may."""
    EARLY = "early"
    """Delivered before the time was over that it was to wait."""
    HELD_TWICE = "held_twice"
    """Given to somebody while somebody else had it, and had said nothing of it."""
    TWO_OF_KEY = "two_of_a_key"
    """Given to somebody while another message of its key was out."""
    OUT_OF_ORDER = "out_of_order"
    """Delivered after one behind it of its key, lane and tenant."""
    PHANTOM = "phantom"
    """A message or dead letter that nobody sent, or with the value of another one."""
    WITHOUT_CAUSE = "without_cause"
    """A dead letter of what nobody rejected and what had not failed often enough."""


class Verdict(StrEnum):
    ACK = "ack"
    NACK = "nack"
    RELEASE = "release"
    REJECT = "reject"


class Violation(NamedTuple):
    kind: Kind
    text: str


@dataclass(slots=True)
class Delivery:
    """One lease of one message, as its consumer knows it.

    Attributes:
        asked_at: when it asked, and when it had the answer, `had_at`.
        deliveries: how often it was leased, by the answer; `attempts`: how often that had failed.
        verdict: what it said of it, if anything, and when it did, `said_at`.
        known_at: when it knew the outcome.
        wall_ms: `had_at` by this machine's wall clock.
    """

    place: Place
    value: str
    consumer: str
    asked_at: float
    had_at: float
    deliveries: int
    attempts: int
    verdict: Verdict | None = None
    said_at: float = 0.0
    known_at: float = 0.0
    outcome: Outcome = Outcome.UNKNOWN
    wall_ms: int = 0

    def said(self, verdict: Verdict, before: float) -> bool:
        """Whether it was confirmed before a moment that this is so."""
        return self.verdict is verdict and self.outcome is Outcome.OK and self.known_at < before

    def may_have(self, verdict: Verdict) -> bool:
        return self.verdict is verdict and self.outcome is not Outcome.FAIL

    def __str__(self) -> str:
        return f"{self.value} at {self.place[0]}-{self.place[1]}, delivered to {self.consumer} at {self.had_at:.3f}"


class Letter(NamedTuple):
    """A dead letter: whose, by its headers, and what it says."""

    place: Place
    value: str
    reason: str
    attempts: int


class Rules(NamedTuple):
    """What the queue goes by.

    Attributes:
        backoff_s: how long a message waits that failed, at least.
        forgotten: leases of one message that a power cut may take along, with their count.
    """

    limit: int
    visibility_s: float
    backoff_s: float
    forgotten: int = 0


@dataclass
class QueueHistory:
    """Collects from several threads."""

    rules: Rules
    deliveries: list[Delivery] = field(default_factory=list)
    acks: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When acknowledgements were confirmed, by partition."""
    refused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How often a consumer was told what error, for a person who looks at it."""

    def __post_init__(self) -> None:
        self._lock = Lock()

    def had(self, deliveries: Iterable[Delivery]) -> None:
        with self._lock:
            self.deliveries += deliveries

    def settled(self, delivery: Delivery, outcome: Outcome, at: float) -> None:
        with self._lock:
            delivery.outcome, delivery.known_at = outcome, at
            if delivery.verdict is Verdict.ACK and outcome is Outcome.OK:
                self.acks[delivery.place[0]].append(at)

    def failed(self, error: str) -> None:
        with self._lock:
            self.refused[error] += 1

    @property
    def acked(self) -> int:
        return sum(map(len, self.acks.values()))

    @property
    def unknown(self) -> int:
        with self._lock:
            return sum(each.verdict is not None and each.outcome is Outcome.UNKNOWN for each in self.deliveries)

    def check(self, sent: Mapping[Place, str], tried: Mapping[str, int], letters: Sequence[Letter]) -> list[Violation]:
        """Every violation.

        Args:
            sent: what is known to have been written where.
            tried: every value that was sent, and the partition it was sent to.
        """
        with self._lock:
            by_place: dict[Place, list[Delivery]] = defaultdict(list)
            for each in sorted(self.deliveries, key=lambda each: each.had_at):
                by_place[each.place].append(each)
        buried: dict[Place, list[Letter]] = defaultdict(list)
        for letter in letters:
            buried[letter.place].append(letter)
        return [
            *_check_values(sent, tried, [*self.deliveries, *letters]),
            *_check_ends(sent, by_place, buried, self.rules),
            *(wrong for had in by_place.values() for wrong in _check_one(had, self.rules)),
        ]


def _check_values(
    sent: Mapping[Place, str], tried: Mapping[str, int], seen: Iterable[Delivery | Letter]
) -> Iterator[Violation]:
    for each in dict.fromkeys((each.place, each.value) for each in seen):
        place, value = each
        if tried.get(value) != place[0] or sent.get(place, value) != value:
            yield Violation(Kind.PHANTOM, f"{value} at {place}, where {sent.get(place, 'nothing known')} was sent")


def _check_ends(
    sent: Mapping[Place, str],
    had: Mapping[Place, Sequence[Delivery]],
    buried: Mapping[Place, Sequence[Letter]],
    rules: Rules,
) -> Iterator[Violation]:
    """Each in one place in the end."""
    for place, value in sent.items():
        if not buried.get(place) and not any(each.may_have(Verdict.ACK) for each in had.get(place, ())):
            yield Violation(Kind.LOST, f"{value} at {place} was sent, delivered {len(had.get(place, ()))} times")
    for place, letters in buried.items():
        if len(letters) > 1:
            told = [letter.reason for letter in letters]
            yield Violation(Kind.BURIED_TWICE, f"{letters[0].value} at {place} is {len(letters)} letters: {told}")
        deliveries = had.get(place, ())
        acks = [each for each in deliveries if each.said(Verdict.ACK, float("inf"))]
        if acks:
            yield Violation(Kind.ACKED_AND_BURIED, f"{acks[0]}, acknowledged, and a letter ({letters[0].reason})")
        if wrong := _without_cause(letters[0], deliveries, rules):
            yield Violation(Kind.WITHOUT_CAUSE, f"{letters[0].value} at {place} is a letter: {wrong}")


def _without_cause(letter: Letter, had: Sequence[Delivery], rules: Rules) -> str:
    match letter.reason:
        case "rejected":
            return "" if any(each.may_have(Verdict.REJECT) for each in had) else "nobody rejected it"
        case "attempts":
            return "" if letter.attempts >= rules.limit else f"it had failed {letter.attempts} times"
        case other:
            return f"for the reason {other}, which this queue does not have"


def _check_one(had: Sequence[Delivery], rules: Rules) -> Iterator[Violation]:
    """One message's deliveries, in their order."""
    for index, each in enumerate(had):
        before = had[:index]
        for verdict in (Verdict.ACK, Verdict.REJECT):
            if any(other.said(verdict, each.asked_at) for other in before):
                yield Violation(Kind.AGAIN, f"{each}: its {verdict} was confirmed before that")
        nacks = sum(other.said(Verdict.NACK, each.asked_at) for other in before)
        releases = sum(other.said(Verdict.RELEASE, each.asked_at) for other in before)
        if nacks >= rules.limit:
            yield Violation(Kind.TOO_OFTEN, f"{each}: it had failed {nacks} times")
        if not nacks <= each.attempts <= each.deliveries - 1 - releases + rules.forgotten:
            text = f"{each}: {each.attempts} attempts, {each.deliveries} deliveries; {nacks} nacks, {releases} releases"
            yield Violation(Kind.COUNTED_BACK, text)
        for other in before:
            if other.had_at < each.asked_at and each.deliveries < other.deliveries + 1 - rules.forgotten:
                text = f"{each}: delivery {each.deliveries} after delivery {other.deliveries}"
                yield Violation(Kind.COUNTED_BACK, text)
    for first, then in pairwise(sorted(had, key=lambda each: each.deliveries)):
        yield from _check_pair(first, then, rules)


def _check_pair(first: Delivery, then: Delivery, rules: Rules) -> Iterator[Violation]:
    """One delivery and the next: whoever had it had time, and so did a failed message."""
    if then.deliveries == first.deliveries:
        return  # which came first is not known
    ended = first.said_at if first.verdict is not None else float("inf")
    if then.had_at < min(first.asked_at + rules.visibility_s, ended) - SLACK_S:
        left = first.asked_at + rules.visibility_s - then.had_at
        yield Violation(Kind.HELD_TWICE, f"{then}, {left:.3f} s before the lease of {first.consumer} was over")
    if first.verdict is Verdict.NACK and first.outcome is Outcome.OK:
        waited = then.had_at - first.said_at
        if waited < rules.backoff_s - SLACK_S:
            yield Violation(Kind.EARLY, f"{then}, {waited:.3f} s after {first.consumer} had given it back")
