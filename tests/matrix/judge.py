"""What must follow from what clients were told and readers saw: findings, each of a kind that is counted.

The checks of `tests.chaos.history` say what became of every record. Here are those that need to know which broker
acked what, what the store had decided, and what lies on which disk.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.history import History, Kind, PartitionLog
from tests.chaos.queue_history import Kind as QueueKind
from tests.cluster.cluster_process import Partition

from .replicas import Batch, Decision, differences

SPLIT_BRAIN = "split_brain"
TWO_LEADERS = "two_leaders"
REPLICAS_DIFFER = "replicas_differ"
NO_PROGRESS = "no_progress"
NOT_IN_SYNC = "not_in_sync"
SENDS_FAILED = "sends_failed"
CRASHED = "crashed"
NOT_REFUSED = "not_refused"
ELECTED = "elected_without_need"
LOST_KINDS = (Kind.LOST, Kind.VANISHED, Kind.MOVED, "unconsumed", "not_copied", "torn", QueueKind.LOST)
DUPLICATE_KINDS = (
    *(Kind.DUPLICATE, Kind.DOUBLE_ACK, "consumed_twice"),
    *(QueueKind.AGAIN, QueueKind.BURIED_TWICE, QueueKind.ACKED_AND_BURIED),
)


class Finding(NamedTuple):
    kind: str
    text: str


class Knock(NamedTuple):
    """An ack that a certain broker gave."""

    broker: int
    partition: int
    offset: int
    value: str


def judge_history(history: History, logs: Mapping[int, PartitionLog]) -> list[Finding]:
    found = history.check(logs)
    return [Finding(each.kind, f"partition {each.partition}: {each.text}") for each in found]


def with_what_was_read(history: History, reader: str, logs: Mapping[int, PartitionLog]) -> dict[int, PartitionLog]:
    """Logs from their first offset on: what retention has removed is taken from a reader that was there in time."""
    whole = {}
    for partition, log in logs.items():
        early = [
            each for each in history.seen[reader] if each.partition == partition and each.offset < log.start_offset
        ]
        whole[partition] = PartitionLog(0, log.end_offset, [*early, *log.records])
    return whole


def judge_crashes(crashes: Mapping[int, Sequence[int]], meant: Collection[int]) -> list[Finding]:
    """Nobody ends but those the fault is meant to end: exit codes of each broker that did."""
    return [
        Finding(CRASHED, f"broker {broker} ended by itself with {', '.join(map(str, codes))}")
        for broker, codes in crashes.items()
        if codes and broker not in meant
    ]


def judge_refusals(acks: Mapping[int, Sequence[float]], began: float, ended: float) -> list[Finding]:
    """Where fewer are left than an ack needs, there is none."""
    return [
        Finding(NOT_REFUSED, f"partition {partition}: {number} acks while too few were in sync")
        for partition, times in acks.items()
        if (number := sum(began <= at <= ended for at in times))
    ]


def judge_same_epochs(before: Mapping[int, Partition], after: Mapping[int, Partition]) -> list[Finding]:
    """Nobody was elected meanwhile."""
    return [
        Finding(ELECTED, f"partition {index}: epoch {state.epoch} before, {after[index].epoch} after")
        for index, state in before.items()
        if after[index].epoch != state.epoch
    ]


def judge_epochs(decided: Mapping[int, Sequence[Decision]]) -> list[Finding]:
    """An epoch has one leader at most, and epochs never go back."""
    found = []
    for partition, states in decided.items():
        leaders: dict[int, int] = {}
        latest = -1
        for state in states:
            if state.epoch < latest:
                found.append(Finding(TWO_LEADERS, f"partition {partition}: epoch {state.epoch} after {latest}"))
            latest = max(latest, state.epoch)
            if state.leader >= 0 and leaders.setdefault(state.epoch, state.leader) != state.leader:
                text = (
                    f"partition {partition}: epoch {state.epoch} was led by {leaders[state.epoch]} and {state.leader}"
                )
                found.append(Finding(TWO_LEADERS, text))
    return found


def judge_acks(
    acks: Iterable[Knock], decided: Mapping[int, Sequence[Decision]], batches: Mapping[int, Sequence[Batch]]
) -> list[Finding]:
    """Whoever acked an offset led in the epoch in which it was written."""
    found = []
    for ack in acks:
        held = batches.get(ack.partition, ())
        if held and ack.offset < held[0].base:
            continue  # lost or trimmed, which the history is judged by; nobody can tell who wrote it
        epoch = _epoch_at(held, ack.offset)
        if epoch is None:
            found.append(Finding(SPLIT_BRAIN, f"broker {ack.broker} acked {ack.value} at {ack.offset}, not on disk"))
            continue
        leaders = {state.leader for state in decided.get(ack.partition, ()) if state.epoch == epoch}
        if ack.broker not in leaders:
            text = f"broker {ack.broker} acked {ack.value} at {ack.offset} of epoch {epoch}, led by {sorted(leaders)}"
            found.append(Finding(SPLIT_BRAIN, f"partition {ack.partition}: {text}"))
    return found


def judge_replicas(replicas: Mapping[int, Mapping[int, list[Batch]]], *, trimmed: bool = False) -> list[Finding]:
    """Partition → broker → what it holds: the same everywhere; with `trimmed`, some may have let go of more."""
    return [
        Finding(REPLICAS_DIFFER, f"partition {partition}: {text}")
        for partition, held in replicas.items()
        for text in differences(held, trimmed=trimmed)
    ]


def longest_gap(times: Sequence[float], begin: float, end: float) -> float:
    """Seconds without an ack between two moments."""
    inside = [at for at in times if begin <= at <= end]
    before = max((at for at in times if at < begin), default=begin)
    marks = [max(before, begin - 1.0), *inside, end]
    return max(later - earlier for earlier, later in pairwise(marks))


def rate(times: Iterable[float], begin: float, end: float) -> float:
    """Acks a second between two moments."""
    return sum(1 for at in times if begin <= at <= end) / max(end - begin, 1e-9)


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    return dict(Counter(finding.kind for finding in findings))


def _epoch_at(batches: Sequence[Batch], offset: int) -> int | None:
    return next((batch.epoch for batch in batches if batch.base <= offset <= batch.last), None)
