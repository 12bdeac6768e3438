"""One cell from its start to its verdict: warm up, strike at a seeded moment, hold, heal, read everything, judge."""

import random
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from tests.chaos.history import Outcome, PartitionLog
from tests.chaos.load import DOWN, read_everything, wait_until
from tests.chaos.sorted_messages import Sayings

from . import judge
from .arena import Arena
from .cells import Cell
from .faults import Scene, pass_time
from .judge import Finding
from .moves import lead
from .plain_clients import PlainClients
from .queueing import Queueing
from .replicas import Batch, decisions, go_on, read_batches
from .transactions import Copying
from .workload import RATE, Workload

SECONDS = 8.0
_PROGRESS_ACKS = 10
_GRACE_S = 0.5
"""Answers that were on their way when the fault came are no progress."""
_SETTLE_S = 90.0
_RECOVER_S = 60.0
_SAME_S = 20.0
_AFTER_S = 30.0
"""Generous, as the bounds of cells are."""
_RATE_S = 15.0
_RATE_WARM_S = 5.0
_TOLD = 6
"""Findings told in words; all are counted."""
_PASSING = DOWN | {KafkaError.OFFSET_NOT_AVAILABLE}
"""What a leader answers that is about to go, or has only just come."""


@dataclass(slots=True)
class Result:
    """What a cell came to, as it is kept in JSON.

    Attributes:
        gap_s: longest time without an ack of a partition that was to go on, while the fault was there; where nothing
            is promised, of any partition until all were written to again.
        after_s: the longest such time of any partition from the healing on.
        in_sync_s: from the healing to the moment every replica was in sync.
        logs: where they were kept, when it failed.
    """

    cell: str
    seed: int
    injected: str = ""
    promise: str = ""
    acked: int = 0
    unknown: int = 0
    lost: int = 0
    duplicated: int = 0
    gap_s: float | None = None
    after_s: float | None = None
    rate_before: float = 0.0
    rate_during: float = 0.0
    rate_after: float = 0.0
    in_sync_s: float | None = None
    took_s: float = 0.0
    findings: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    logs: str = ""
    verdict: str = "failed"

    def settle(self, findings: list[Finding], logs: Path, took_s: float) -> None:
        self.took_s = took_s
        self.findings = judge.counts(findings)
        self.texts = [f"{finding.kind}: {finding.text}" for finding in findings[:_TOLD]]
        self.lost = sum(number for kind, number in self.findings.items() if kind in judge.LOST_KINDS)
        self.duplicated = sum(number for kind, number in self.findings.items() if kind in judge.DUPLICATE_KINDS)
        self.logs = str(logs) if findings else ""
        self.verdict = "failed" if findings else "ok"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """For a person who watches."""
        gap = "-" if self.gap_s is None else f"{self.gap_s:.1f} s"
        return (
            f"{self.verdict:6} {self.cell}: {self.injected or 'nothing injected'}; {self.acked:,} acked, "
            f"{self.lost} lost, {self.duplicated} duplicated, longest gap {gap}, {self.took_s:.0f} s"
        )


def run_cell(cell: Cell, seed: int, seconds: float = SECONDS) -> Result:
    """Never raises for what the cluster does: that is a finding, and the logs are kept."""
    result = Result(cell.name, seed, promise=cell.promise)
    began = time.monotonic()
    arena = Arena(cell.disk, clocks=cell.clocks, guarded=cell.guarded)
    findings: list[Finding] = []
    try:
        with arena:
            findings = attempt(lambda: _play(arena, cell, seed, cell.seconds or seconds, result))
            arena.keep = bool(findings)
    except Exception as problem:  # noqa: BLE001 - a cluster that does not start is what the cell came to
        findings.append(Finding(type(problem).__name__, f"the arena: {problem}"))
    result.settle(findings, arena.directory, time.monotonic() - began)
    return result


def attempt(step: Callable[[], list[Finding]]) -> list[Finding]:
    """What a step finds; one that fails is a finding itself, and the next ones go on."""
    try:
        return step()
    except Exception as problem:  # noqa: BLE001 - whatever it was, it is what the cell came to
        return [Finding(type(problem).__name__, f"{problem}\n{traceback.format_exc(limit=-4)}")]


class _Beside(NamedTuple):
    """Other clients of a cell, which its workload names."""

    copying: Copying | None = None
    plain: PlainClients | None = None
    queueing: Queueing | None = None


def _play(arena: Arena, cell: Cell, seed: int, seconds: float, result: Result) -> list[Finding]:
    coin = random.Random(f"{cell.name} {seed}")
    topic, cluster = cell.name, arena.cluster
    cluster.create_topic(topic, cell.partitions, {**cluster.smallest_segments, **cell.topic})
    findings: list[Finding] = []
    with ExitStack() as closing:
        if cell.workload == "java":
            cluster.create_topic(f"{topic}-java", cell.partitions, cluster.smallest_segments)
        rate = RATE if cell.rate is None else cell.rate
        is_java = cell.workload == "java"
        sayings = Sayings(seed) if cell.workload == "sorted" else None
        say = None if sayings is None else sayings.say
        workload = Workload(arena, topic, cell.partitions, rate=rate, patience_s=cell.patience_s, java=is_java, say=say)
        beside = _begin_beside(closing, arena, cell, workload, seed, sayings)
        warm = time.monotonic()
        closing.enter_context(workload)
        workload.warm_up(cell.warm_acks)
        if beside.queueing is not None:
            beside.queueing.warm_up(cell.warm_acks)
        if cell.least_rate:
            pass_time(_RATE_WARM_S + _RATE_S)
        pass_time(coin.uniform(0, 1))
        scene = Scene(arena, topic, coin, seconds, cluster.agreed(topic))
        struck = time.monotonic()
        findings += attempt(lambda: _strike(cell, scene, workload, result, warm, beside.queueing))
        all_ended = len(scene.victims) == len(arena.machines)
        findings += attempt(lambda: recover(arena, workload, result, all_ended=all_ended, queueing=beside.queueing))
        if result.gap_s is None:
            result.gap_s = workload.longest_gap(range(cell.partitions), struck, time.monotonic())
        findings += _compare_rates(cell, workload, result)
        if cell.no_election:
            findings += judge.judge_same_epochs(scene.view, cluster.agreed(topic))
        findings += _finish_clients(arena, workload, beside, result)
        if cell.each_leads:
            findings += attempt(lambda: _read_from_each(arena, workload))
        findings += attempt(lambda: judge_all(arena, workload, result))
    findings += judge.judge_crashes(arena.crashes(), scene.ended)
    return list(dict.fromkeys(findings))  # what is missing is missing each time it is read


def _begin_beside(
    closing: ExitStack, arena: Arena, cell: Cell, workload: Workload, seed: int, sayings: Sayings | None
) -> _Beside:
    cluster, topic = arena.cluster, workload.topic
    if cell.workload == "transactions":
        copying = closing.enter_context(Copying(cluster, arena.directory / "copying", seed))
        copying.warm_up()
        return _Beside(copying=copying)
    if cell.workload == "defaults":
        cluster.create_topic(f"{topic}-plain", cell.partitions, cluster.smallest_segments)
        plain = closing.enter_context(PlainClients(cluster.bootstrap, f"{topic}-plain", cell.partitions))
        plain.warm_up(cell.warm_acks)
        return _Beside(plain=plain)
    if cell.workload in ("queue", "shares", "sorted"):
        queueing = Queueing(
            arena,
            topic,
            cell.partitions,
            workload.history,
            seed=seed,
            patience_s=cell.patience_s,
            shares=cell.workload == "shares",
            settings=cell.queue,
            said=None if sayings is None else sayings.said,
        )
        return _Beside(queueing=closing.enter_context(queueing))
    return _Beside()


def _finish_clients(arena: Arena, workload: Workload, beside: _Beside, result: Result) -> list[Finding]:
    """Every client has done what it began; a queue is emptied when nothing is sent any more."""
    plain, copying, queueing = beside.plain, beside.copying, beside.queueing
    findings = []
    if plain is not None:
        findings += attempt(lambda: _finish_plain(arena, plain, result))
    if copying is not None:
        findings += attempt(lambda: _finish(copying, result))
    findings += attempt(lambda: workload.finish(_SETTLE_S))
    if queueing is not None:
        findings += attempt(lambda: _finish_queue(queueing, result))
    return findings


def _finish(copying: Copying, result: Result) -> list[Finding]:
    found = [Finding(each.kind, f"transactions: {each.text}") for each in copying.finish()]
    result.acked += copying.copied
    return found


def _finish_queue(queueing: Queueing, result: Result) -> list[Finding]:
    found = queueing.finish(_SETTLE_S)
    result.acked += queueing.history.acked
    result.unknown += queueing.history.unknown
    result.injected += f"; queue: {queueing.told()}"
    return found


def _finish_plain(arena: Arena, plain: PlainClients, result: Result) -> list[Finding]:
    found = plain.finish(_SETTLE_S)
    found += plain.judge(_read(arena.cluster.bootstrap, plain.topic, len(arena.cluster.agreed(plain.topic))))
    result.acked += plain.history.acked
    return found


def _strike(
    cell: Cell, scene: Scene, workload: Workload, result: Result, warm: float, queueing: Queueing | None
) -> list[Finding]:
    """The fault, as long as it lasts, and who went on meanwhile."""
    findings = []
    began = time.monotonic()
    promised: list[int] = []
    try:
        with cell.fault(scene):
            there = time.monotonic()
            result.injected = "; ".join(scene.notes)
            promised = _promised(cell, scene)
            left = scene.seconds - (time.monotonic() - began)
            if cell.hold and left > 0:
                pass_time(left)
            try:
                after = began + _GRACE_S
                patience_s = max(cell.bound_s - scene.seconds, 5.0)
                workload.wait_for_acks(_PROGRESS_ACKS, promised, patience_s, after)
                if queueing is not None:
                    queueing.load.wait_for_acks(_PROGRESS_ACKS, promised, patience_s, after)
            except TimeoutError as late:
                findings.append(Finding(judge.NO_PROGRESS, f"during the fault: {late}"))
            ended = time.monotonic()
    finally:
        result.injected = "; ".join(scene.notes)
    acks = workload.history.acks
    if cell.promise == "refused":
        findings += judge.judge_refusals(acks, there + _GRACE_S, ended)
    if promised:
        result.gap_s = workload.longest_gap(promised, began, ended)
        if queueing is not None:
            result.gap_s = max(result.gap_s, queueing.longest_gap(promised, began, ended))
        if result.gap_s > cell.bound_s:
            text = f"a gap of {result.gap_s:.1f} s, {cell.bound_s:g} s at most are promised"
            findings.append(Finding(judge.NO_PROGRESS, text))
    everything = [at for times in acks.values() for at in times]
    # The clients' first seconds are not their rate.
    result.rate_before = judge.rate(everything, warm + (_RATE_WARM_S if cell.least_rate else 1.0), began)
    result.rate_during = judge.rate(everything, began, ended)
    return findings


def _compare_rates(cell: Cell, workload: Workload, result: Result) -> list[Finding]:
    """With the mean of before and after the fault: a machine with other work is not the same all the time."""
    if not cell.least_rate:
        return []
    healed = time.monotonic()
    pass_time(_RATE_S)
    everything = [at for times in workload.history.acks.values() for at in times]
    result.rate_after = judge.rate(everything, healed, time.monotonic())
    if result.rate_during >= cell.least_rate * (result.rate_before + result.rate_after) / 2:
        return []
    text = f"{result.rate_during:.0f}/s in the fault, {result.rate_before:.0f} before, {result.rate_after:.0f} after"
    return [Finding(judge.NO_PROGRESS, text)]


def _promised(cell: Cell, scene: Scene) -> list[int]:
    if cell.promise in ("none", "refused"):
        return []
    if cell.promise == "all":
        return sorted(scene.view)
    others = [index for index, state in scene.view.items() if state.leader not in scene.victims]
    assert others, "the victim leads everything, so nothing is promised"
    return others


def recover(
    arena: Arena, workload: Workload, result: Result, *, all_ended: bool = False, queueing: Queueing | None = None
) -> list[Finding]:
    """All is healed: every replica gets in sync, and every partition is written to and leased from again.

    Args:
        all_ended: no broker lived through it. librdkafka drains a partition before it goes to a new leader, and may
            then do so without end; a new one of the same kind must be able to write, though.
    """
    healed = time.monotonic()
    arena.heal()
    arena.cluster.wait_whole(workload.topic)
    result.in_sync_s = time.monotonic() - healed
    try:
        workload.wait_for_acks(_PROGRESS_ACKS, range(workload.partitions), _RECOVER_S, healed)
    except TimeoutError as late:
        if not all_ended:
            return [Finding(judge.NO_PROGRESS, f"after the healing: {late}")]
        hung = workload.replace_hung(healed)
        result.injected += f"; the clients hung that wrote to partitions {hung}, new ones wrote"
    everything = range(workload.partitions)
    result.after_s = workload.longest_gap(everything, healed, time.monotonic())
    if queueing is not None:
        try:
            queueing.load.wait_for_acks(_PROGRESS_ACKS, everything, _RECOVER_S, healed)
        except TimeoutError as late:
            return [Finding(judge.NO_PROGRESS, f"queue, after the healing: {late}")]
        result.after_s = max(result.after_s, queueing.longest_gap(everything, healed, time.monotonic()))
    if result.after_s > _AFTER_S:
        return [Finding(judge.NO_PROGRESS, f"a gap of {result.after_s:.1f} s after the healing")]
    return []


def _read_from_each(arena: Arena, workload: Workload) -> list[Finding]:
    """Every broker leads in turn, and all is read from it; one that cannot has resigned, and then from another."""
    findings: list[Finding] = []
    for broker in arena.machines:
        lead(arena, workload.topic, range(workload.partitions), broker)
        logs = _read(arena.cluster.bootstrap, workload.topic, workload.partitions)
        findings += judge.judge_history(workload.history, logs)
    return findings


def judge_all(arena: Arena, workload: Workload, result: Result, *, trimmed: bool = False) -> list[Finding]:
    """Everything is read and compared. With `trimmed`, retention may have removed the oldest records."""
    topic, partitions = workload.topic, workload.partitions
    bootstrap = arena.cluster.bootstrap
    arena.cluster.wait_whole(topic)
    logs = _read(bootstrap, topic, partitions)
    if trimmed:
        logs = judge.with_what_was_read(workload.history, workload.reader.name, logs)
    findings = judge.judge_history(workload.history, logs)
    findings += [Finding(judge.SENDS_FAILED, str(error)) for error in workload.failed]
    result.acked += workload.history.acked
    result.unknown += sum(send.outcome is Outcome.UNKNOWN for send in workload.history.sends())
    if workload.java is not None:
        logs = _read(bootstrap, workload.java_topic, partitions)
        foreign = workload.java.history(logs)
        findings += [Finding(kind, f"VerifiableProducer: {text}") for kind, text in judge.judge_history(foreign, logs)]
        findings += [Finding(judge.SENDS_FAILED, str(each)) for each in workload.java.failures()]
        result.acked += foreign.acked
        findings += judge.judge_replicas(_files(arena, workload.java_topic, partitions))
    decided = go_on(arena.forgotten, decisions(arena.etcd, topic))
    findings += judge.judge_epochs(decided)
    files = _files(arena, topic, partitions, trimmed=trimmed)
    findings += judge.judge_replicas(files, trimmed=trimmed)
    held = {index: next(iter(replicas.values())) for index, replicas in files.items()}
    return findings + judge.judge_acks(workload.knocks.acks, decided, held)


def _read(bootstrap: str, topic: str, partitions: int) -> dict[int, PartitionLog]:
    """Everything, also when a leader resigns while it is asked where its log ends."""
    deadline = time.monotonic() + _RECOVER_S
    while True:
        try:
            return read_everything(bootstrap, topic, partitions)
        except KafkaException as failure:
            if failure.args[0].code() not in _PASSING or time.monotonic() > deadline:
                raise


def _files(arena: Arena, topic: str, partitions: int, *, trimmed: bool = False) -> dict[int, dict[int, list[Batch]]]:
    """What lies on the disks of each partition's replicas, when they are the same or no longer about to be."""
    files: dict[int, dict[int, list[Batch]]] = {}

    def are_same() -> bool:
        for index in range(partitions):
            view = arena.cluster.view(topic)
            brokers = view[index].replicas if view else tuple(arena.machines)
            files[index] = {
                broker: read_batches(arena.machines[broker].data / "logs" / topic / str(index)) for broker in brokers
            }
        return not judge.judge_replicas(files, trimmed=trimmed)

    with suppress(TimeoutError):  # the judge says in what they differ
        wait_until(are_same, _SAME_S, "all replicas hold the same")
    return files
