"""What must hold of a queue that is ordered by key, of messages that say what they are: beside what holds of any queue.

Moments of the wall clock are this machine's, which brokers share. A lease begins between the moment its consumer asked
and the one at which it had the answer, and lasts until its time is over or its consumer has said what became of it; so
what is judged is what is sure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.queue_history import SLACK_S, Delivery, Kind, Letter, Place, QueueHistory, Violation
from tests.chaos.sorted_messages import Said

_CLOCKS_MS = 5
"""By how much the clock that a broker goes by may differ from this one's: it counts from where that stood at its start,
and both know whole milliseconds."""


@dataclass
class SortedHistory(QueueHistory):
    """
    Attributes:
        said: what each value says; those that are not there say nothing.
        delay_ms: how long everything waits that has no time of its own.
    """

    said: Mapping[str, Said] = field(default_factory=dict)
    delay_ms: int = 0

    def check(self, sent: Mapping[Place, str], tried: Mapping[str, int], letters: Sequence[Letter]) -> list[Violation]:
        with self._lock:
            known = [(self.said[each.value], each) for each in self.deliveries if each.value in self.said]
        by_key: dict[tuple[int, str], list[Delivery]] = defaultdict(list)
        by_strand: dict[tuple[int, str, int, str], list[Delivery]] = defaultdict(list)
        for said, each in known:
            if said.key is not None:
                by_key[each.place[0], said.key].append(each)
                if said.due_ms is None:
                    by_strand[each.place[0], said.key, said.lane, said.tenant].append(each)
        return [
            *super().check(sent, tried, letters),
            *(wrong for said, each in known for wrong in _check_early(said, each, self.delay_ms)),
            *(wrong for had in by_key.values() for wrong in _check_alone(had, self.rules.visibility_s)),
            *(wrong for had in by_strand.values() for wrong in _check_order(had)),
        ]


def _check_early(said: Said, each: Delivery, delay_ms: int) -> Iterator[Violation]:
    due_ms = said.published_ms + delay_ms if said.due_ms is None else said.due_ms
    if (early_ms := due_ms - each.wall_ms) > _CLOCKS_MS:
        yield Violation(Kind.EARLY, f"{each}, {early_ms} ms before it was due")


class _Hold(NamedTuple):
    """When a delivery was surely out."""

    begin: float
    end: float
    of: Delivery


def _check_alone(had: Iterable[Delivery], visibility_s: float) -> Iterator[Violation]:
    """Deliveries of one key: of two messages only one is out at a time."""
    holds = []
    for each in had:
        ended = each.said_at if each.verdict is not None else float("inf")
        end = min(each.asked_at + visibility_s - SLACK_S, ended)
        if each.had_at <= end:
            holds.append(_Hold(each.had_at, end, each))
    longest: _Hold | None = None
    for hold in sorted(holds, key=lambda hold: (hold.begin, hold.end)):
        if longest is not None and hold.of.place != longest.of.place:
            is_same_answer = (hold.of.consumer, hold.of.asked_at) == (longest.of.consumer, longest.of.asked_at)
            if hold.begin < longest.end or is_same_answer:
                yield Violation(Kind.TWO_OF_KEY, f"{hold.of}, while there was {longest.of}")
        if longest is None or hold.end > longest.end:
            longest = hold


def _check_order(had: Iterable[Delivery]) -> Iterator[Violation]:
    """Deliveries of one key, lane and tenant: once a message was delivered, none before it is any more."""
    by_offset: dict[int, list[Delivery]] = defaultdict(list)
    for each in had:
        by_offset[each.place[1]].append(each)
    in_order = [by_offset[offset] for offset in sorted(by_offset)]
    firsts = [min(each, key=lambda delivery: delivery.had_at) for each in in_order]
    for at in reversed(range(len(firsts) - 1)):
        firsts[at] = min(firsts[at], firsts[at + 1], key=lambda delivery: delivery.had_at)
    for before, (_, first) in zip(in_order, pairwise(firsts), strict=False):
        latest = max(before, key=lambda delivery: delivery.asked_at)
        if latest.asked_at > first.had_at:
            yield Violation(Kind.OUT_OF_ORDER, f"{latest}, after {first}")
