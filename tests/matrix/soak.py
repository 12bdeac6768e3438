"""A fault a minute for as long as it is told, one history for all of them; memory and descriptors of brokers watched.

    python -m tests.matrix.soak --minutes 60 [--every 60] [--seed 1]

One broker, the witness, is cut off and put to sleep like the others, but never ends: what a process costs over hours is
seen on it. Its memory and open files are judged by the slope of a straight line after a warm-up; its sockets, of which
a fault makes and ends some, by how many there are between two faults.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from . import disk_faults, faults, judge, network, report
from .arena import Arena
from .faults import Fault, Scene, pass_time
from .judge import Finding
from .machines import Size
from .namespaces import why_not
from .run import SECONDS, Result, attempt, judge_all, recover
from .workload import Workload

WITNESS = 1
TOPIC, PARTITIONS, RATE = "soak", 3, 150
BOUNDED = {"segment.bytes": str(1 << 20), "retention.bytes": str(4 << 20)}
"""A segment is full after some 40 s, and five are kept: what still grows after the warm-up does so without end."""
_SAMPLE_S = 5.0
_WARM_SHARE = 0.25
_KEPT_FROM = 60.0
"""Minutes: a shorter run is none to show."""
_COVERED = 0.9
_MORE_SOCKETS = 12
"""That clients come with again after a fault."""
_JUDGED_FROM_S = 900.0
"""A line through less than a quarter of an hour says nothing."""
GENTLE: dict[str, Fault] = {
    "pause a leader": faults.pause("leader"),
    "pause a follower": faults.pause("follower"),
    "cut a machine off": faults.cut(network.cut_off, "any", what="cut from all other machines"),
    "cut from etcd": faults.cut(lambda victim, _: network.cut_from_etcd(victim), "any", what="requests to etcd lost"),
    "deaf to etcd": faults.cut(lambda victim, _: network.deaf_to_etcd(victim), "any", what="answers of etcd lost"),
    "clients cut": faults.cut(lambda victim, _: network.cut_from_clients(victim), "any", hides=True, what="no clients"),
    "loss": faults.lossy(5),
    "grudges": faults.random_grudges,
    "etcd's leader dies": faults.etcd_kill("leader"),
    "etcd dies": faults.etcd_kill("all"),
    "slow sync": disk_faults.injected("any", "delay_enter=100000", "each sync takes 100 ms"),
}
"""Nobody ends."""
FATAL: dict[str, Fault] = {
    "kill": faults.kill("mortal"),
    "kill twice": faults.kill("mortal", times=2),
    "stop": faults.stop("mortal"),
    "failed sync": disk_faults.injected("mortal", "error=EIO:when=1", "the next sync fails", ends=True),
}
"""Some broker ends, never the witness."""


class Sample(NamedTuple):
    at: float
    rss_bytes: int
    files: int
    sockets: int


class Sampler:
    """Looks at every broker that runs, all the time. Use as a context manager."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.samples: dict[int, list[Sample]] = {number: [] for number in arena.machines}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_SAMPLE_S):
            for number, machine in self._arena.machines.items():
                size = machine.size()
                if size is not None:
                    self.samples[number].append(Sample(time.monotonic(), *size))


def slope_per_hour(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line that fits best, as a share of the mean."""
    count = len(points)
    middle_x, middle_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    if not spread or not middle_y:
        return 0.0
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread * 3600 / middle_y


def judge_samples(samples: Sequence[Sample], most: float) -> tuple[float, float, list[Finding]]:
    """Slopes of memory and open files by the hour, and what is wrong with them."""
    settled = samples[int(len(samples) * _WARM_SHARE) :]
    if len(settled) < 3:
        return 0.0, 0.0, []
    memory = slope_per_hour([(each.at, each.rss_bytes) for each in settled])
    open_files = slope_per_hour([(each.at, each.files) for each in settled])
    if settled[-1].at - settled[0].at < _JUDGED_FROM_S:
        return memory, open_files, []
    found = []
    for what, slope in (("resident memory", memory), ("open files", open_files)):
        if slope > most:
            found.append(Finding("grows", f"{what} of broker {WITNESS} by {slope:.1%} an hour, {most:.1%} at most"))
    return memory, open_files, found


def by_quarters(samples: Sequence[Sample]) -> list[dict[str, float]]:
    """Means over each quarter of the run."""
    edges = [len(samples) * quarter // 4 for quarter in range(5)]
    parts = [samples[start:end] for start, end in pairwise(edges) if end > start]
    return [
        {
            "rss_mib": round(sum(each.rss_bytes for each in part) / len(part) / 2**20, 2),
            "files": round(sum(each.files for each in part) / len(part), 1),
            "sockets": round(sum(each.sockets for each in part) / len(part), 1),
        }
        for part in parts
    ]


def soak(minutes: float, every_s: float, seed: int, most: float) -> tuple[Result, dict[str, Any]]:
    result = Result("soak", seed, promise="none")
    coin = random.Random(seed)
    arena, began, struck = Arena(), time.monotonic(), 0
    findings: list[Finding] = []
    growth: dict[str, Any] = {}
    with arena:
        arena.keep = True  # until it is known to be good
        arena.cluster.create_topic(TOPIC, PARTITIONS, BOUNDED)
        with Workload(arena, TOPIC, PARTITIONS, rate=RATE) as workload, Sampler(arena) as sampler:
            workload.warm_up(30)
            quiet = arena.machines[WITNESS].size()
            while time.monotonic() - began < minutes * 60 and not findings:
                due = time.monotonic() + every_s
                findings += _strike(arena, workload, coin, result)
                struck += 1
                pass_time(max(0.0, due - time.monotonic()))
            findings += attempt(lambda: workload.finish(90.0))
            findings += attempt(lambda: judge_all(arena, workload, result, trimmed=True))
            findings += _judge_witness(arena, quiet, len(sampler.samples[WITNESS]) * _SAMPLE_S / (minutes * 60))
            memory, open_files, grown = judge_samples(sampler.samples[WITNESS], most)
            growth = {
                "memory_per_hour": memory,
                "files_per_hour": open_files,
                "quarters": by_quarters(sampler.samples[WITNESS]),
            }
            findings += grown
        arena.keep = bool(findings)
    result.injected = f"{struck} faults"
    result.settle(findings, arena.directory, time.monotonic() - began)
    return result, growth


def _judge_witness(arena: Arena, quiet: Size | None, covered: float) -> list[Finding]:
    """It was there, and was looked at, all the time; and has no more connections in the end than at the beginning."""
    witness, found = arena.machines[WITNESS], []
    if witness.starts != 1 or covered < _COVERED:
        found.append(
            Finding("witness", f"broker {WITNESS}: {witness.starts} starts, looked at {covered:.0%} of the time")
        )
    size = witness.size()
    if quiet is None or size is None or size.sockets > quiet.sockets + _MORE_SOCKETS:
        found.append(Finding("grows", f"broker {WITNESS} was {quiet} at the beginning, is {size} in the end"))
    return found


def _strike(arena: Arena, workload: Workload, coin: random.Random, result: Result) -> list[Finding]:
    name, fault = coin.choice([*GENTLE.items(), *FATAL.items()])
    scene = Scene(arena, TOPIC, coin, SECONDS, arena.cluster.agreed(TOPIC), spared=WITNESS)
    began, before = time.monotonic(), arena.crashes()
    try:
        with fault(scene):
            pass_time(max(0.0, SECONDS - (time.monotonic() - began)))
        crashes = {number: codes[len(before[number]) :] for number, codes in arena.crashes().items()}
        findings = judge.judge_crashes(crashes, scene.ended) + recover(arena, workload, result)
    except Exception as problem:  # noqa: BLE001 - whatever it was, it ends the run and is what it came to
        findings = [Finding(type(problem).__name__, f"{name}: {problem}")]
    gap = workload.longest_gap(range(PARTITIONS), began, time.monotonic())
    result.gap_s = max(result.gap_s or 0.0, gap)
    looks = [machine.size() for machine in arena.machines.values()]
    sizes = "; ".join(str(size) if size else "-" for size in looks)
    print(
        f"{time.strftime('%H:%M:%S')} {name}: {'; '.join(scene.notes)}; {workload.history.acked:,} acked so far, "
        f"gap {gap:.1f} s, in sync after {result.in_sync_s or 0:.1f} s; {sizes}",
        flush=True,
    )
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds from fault to fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-slope", type=float, default=0.05, help="share by which the witness may grow in an hour")
    arguments = parser.parse_args()
    reason = why_not()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    result, growth = soak(arguments.minutes, arguments.every, arguments.seed, arguments.most_slope)
    print(result.line())
    print(f"broker {WITNESS} by the hour: memory {growth['memory_per_hour']:+.1%}, ", end="")
    print(f"files {growth['files_per_hour']:+.1%}; by quarters: {growth['quarters']}")
    for text in result.texts:
        print(f"    {text}")
    if arguments.minutes >= _KEPT_FROM:
        print(report.keep_soak(result, growth))
    return 0 if result.verdict == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
