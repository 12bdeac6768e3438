"""`python -m bench.compaction_waits`: what a producer's slow requests wait for, while a topic beside it is compacted.

A producer sends at a steady rate throughout. Quiet phases and phases in which a topic is compacted take turns, each
with a trace of the scheduler. Slow is a request above the quiet phases' p95; each of its microseconds is counted for
what the request did in it (`bench.scheduling`), so that what else the machine does shows as such and not as Penstock's.
Needs perf and the right to trace, and as many megabytes in memory (/dev/shm) as the run has seconds, twice over.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from bench import native, scheduling
from bench.cells import MEGABYTE, PACE_BYTES, PACE_PARTITIONS, Durability
from bench.compaction import COPIES, RECORD_BYTES, SETTINGS
from bench.neighbours import RATE, Sample, Span, load_samples, percentile
from bench.progress import say
from bench.scheduling import Piece, Trace
from bench.subject import Subject, start

SLOW = 0.95
_SEGMENTS = 10
_LONGEST_S = 1_200
_CONNECT_S = 2.0
_REST_S = 0.5
_LOOK_S = 0.5
_PATIENCE_S = 90.0
_TOPIC, _PRODUCED = "keyed", "neighbour"
_DONE = b"compaction compacted"  # the broker's line for each partition

Cause = str
GENERATOR, LOOP, THREADS = "load generator", "broker's loop", "broker's threads"
CAUSES: tuple[Cause, ...] = (
    f"{GENERATOR} waited for a core",
    f"{LOOP} waited for a core",
    f"{THREADS} waited for a core",
    "an idle core woke up",
    "disk (a sync, a page, the journal)",
    f"{LOOP} ran",
    f"{THREADS} ran",
    f"{GENERATOR} ran",
    "rest",
)


@dataclass(slots=True)
class Cast:
    """Whose each thread is."""

    broker: int
    generator: int
    bench: int
    threads: dict[int, str] = field(default_factory=dict)
    poller: int = 0

    def look(self) -> None:
        """Note the threads that there are now; those of earlier looks stay."""
        for pid, who in ((self.broker, THREADS), (self.generator, GENERATOR), (self.bench, "this measurement")):
            self.threads |= dict.fromkeys(_threads(pid), who)
        self.threads[self.broker] = LOOP
        for child in psutil.Process(self.broker).children(recursive=True):
            self.threads |= dict.fromkeys(_threads(child.pid), "compacting process")

    def role(self, thread: int, name: str) -> str:
        if thread in self.threads:
            return self.threads[thread]
        if name.startswith("perf"):
            return "this measurement"
        kernel = name.startswith(("kworker", "ksoftirqd", "jbd2", "rcu", "migration", "kdamond", "kcompactd", "kswapd"))
        return "kernel threads" if kernel else "other processes"


class Phase(NamedTuple):
    compacting: bool
    span: Span
    trace: Path
    faults: Counter[str]


@dataclass(slots=True)
class Account:
    """What slow requests of one kind of phase did."""

    requests: int = 0
    slow: int = 0
    slow_ns: int = 0
    seconds: float = 0.0
    spent_ns: Counter[Cause] = field(default_factory=Counter)
    """Of slow requests, by what they did."""
    usual_ns: Counter[Cause] = field(default_factory=Counter)
    """Of a sample of all others, the same."""
    others: int = 0
    mainly: Counter[Cause] = field(default_factory=Counter)
    """Slow requests, by what of theirs took longest beyond the usual."""
    held_ns: Counter[str] = field(default_factory=Counter)
    """Who of slow requests waited for whom to leave a core."""
    cores_ns: Counter[str] = field(default_factory=Counter)
    """Who had the cores, at any time."""
    faults: Counter[str] = field(default_factory=Counter)
    times_ms: list[float] = field(default_factory=list)


def _threads(pid: int) -> Iterable[int]:
    try:
        return [int(each) for each in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError:
        return []


def _faults(cast: Cast) -> Counter[str]:
    """Page faults so far; the fields are counted from behind the name, which may hold anything."""
    found: Counter[str] = Counter()
    for who, pid in (("broker", cast.broker), ("generator", cast.generator)):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[f"{who}, minor"], found[f"{who}, major"] = int(fields[7]), int(fields[9])
    return found


def cause_of(piece: Piece, role: str, idle: bool) -> Cause:
    """What a stretch of a request's time is counted for; `idle` is of the core that a wait was for."""
    if piece.state == "blocked":
        return "disk (a sync, a page, the journal)"
    if piece.state == "waits" and idle:
        return "an idle core woke up"
    verb = {"waits": "waited for a core", "runs": "ran"}.get(piece.state, "")
    cause = f"{role} {verb}"
    return cause if cause in CAUSES else "rest"


class Reader:
    """One phase's trace, asked about single requests."""

    def __init__(self, trace: Trace, cast: Cast) -> None:
        self.trace = trace
        self._cast = cast

    def role(self, thread: int) -> str:
        return self._cast.role(thread, self.trace.names.get(thread, "")) if thread else "nobody"

    def _leads_to(self, thread: int) -> bool:
        return self.role(thread) in (GENERATOR, LOOP, THREADS) or self.trace.names.get(thread, "").startswith(
            "ksoftirqd"
        )

    def spent(self, sample: Sample, held: Counter[str]) -> Counter[Cause]:
        """Nanoseconds of a request by cause; who had the core it waited for is added to `held`."""
        begin_ns = round(sample.sent_s * 1e9)
        end_ns = begin_ns + round(sample.took_ms * 1e6)
        found: Counter[Cause] = Counter()
        for piece in self.trace.path(self._cast.poller, begin_ns, end_ns, self._leads_to):
            role = self.role(piece.thread)
            if piece.state != "waits":
                found[cause_of(piece, role, idle=False)] += piece.end_ns - piece.begin_ns
                continue
            left_ns = piece.end_ns - piece.begin_ns
            for holder, took_ns in self.trace.held(piece.core, piece.begin_ns, piece.end_ns):
                found[cause_of(piece, role, idle=not holder)] += took_ns
                held[f"{role}, for {self.role(holder)}"] += took_ns
                left_ns -= took_ns
            found["rest"] += left_ns
        return found


def account(
    phases: Sequence[Phase], samples: Sequence[Sample], cast: Cast, load: Callable[[Path], Trace]
) -> tuple[float, dict[bool, Account]]:
    """What slow is, in milliseconds, and what the slow requests of quiet and of compacting phases did."""
    inside = [[each for each in samples if phase.span.begin_s <= each.sent_s < phase.span.end_s] for phase in phases]
    quiet_ms = [
        each.took_ms for phase, found in zip(phases, inside, strict=True) if not phase.compacting for each in found
    ]
    limit_ms = percentile(quiet_ms, SLOW)
    accounts = {False: Account(), True: Account()}
    slow: dict[bool, list[Counter[Cause]]] = defaultdict(list)
    for phase, found in zip(phases, inside, strict=True):
        mine = accounts[phase.compacting]
        reader = Reader(load(phase.trace), cast)
        mine.seconds += phase.span.end_s - phase.span.begin_s
        mine.requests += len(found)
        mine.times_ms += [each.took_ms for each in found]
        mine.faults += phase.faults
        for thread, took_ns in reader.trace.ran_ns(*(round(each * 1e9) for each in phase.span)).items():
            mine.cores_ns[reader.role(thread)] += took_ns
        for each in found:
            if each.took_ms > limit_ms:
                spent = reader.spent(each, mine.held_ns)
                slow[phase.compacting].append(spent)
                mine.spent_ns += spent
                mine.slow += 1
                mine.slow_ns += round(each.took_ms * 1e6)
        for each in [each for each in found if each.took_ms <= limit_ms][::20]:
            mine.usual_ns += reader.spent(each, Counter())
            mine.others += 1
    usual = {cause: accounts[False].usual_ns[cause] / max(1, accounts[False].others) for cause in CAUSES}
    for compacting, requests in slow.items():
        for spent in requests:
            accounts[compacting].mainly[max(CAUSES, key=lambda cause: spent[cause] - usual[cause])] += 1
    return limit_ms, accounts


def table(limit_ms: float, accounts: dict[bool, Account]) -> str:
    quiet, beside = accounts[False], accounts[True]
    points = ", ".join(
        f"p{share * 100:g} {percentile(quiet.times_ms, share):.3f} and {percentile(beside.times_ms, share):.3f} ms"
        for share in (0.5, 0.95, 0.99)
    )
    slow = f"{quiet.slow / quiet.requests:.1%} and {beside.slow / beside.requests:.1%} of them"
    lines = [
        f"{quiet.requests:,} requests in {quiet.seconds:.0f} s quiet, {beside.requests:,} in {beside.seconds:.0f} s "
        f"beside compaction: {points}.",
        f"Slow is above {limit_ms:.3f} ms: {slow}, on average {_mean_ms(quiet):.3f} and {_mean_ms(beside):.3f} ms.",
        "",
        "| what slow requests did | quiet: main reason of | of their time | µs each "
        "| compacting: main reason of | of their time | µs each | µs each, usual |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cause in CAUSES:
        cells = [cause]
        for mine in (quiet, beside):
            cells += [
                f"{mine.mainly[cause] / max(1, mine.slow):.0%}",
                f"{mine.spent_ns[cause] / max(1, mine.slow_ns):.0%}",
                f"{mine.spent_ns[cause] / 1e3 / max(1, mine.slow):.0f}",
            ]
        cells.append(f"{quiet.usual_ns[cause] / 1e3 / max(1, quiet.others):.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| who waited for whom to leave a core, µs in 1,000 requests | quiet | compacting |", "|---|---|---|"]
    lines += [
        f"| {name} | {quiet.held_ns[name] / quiet.requests:.0f} | {beside.held_ns[name] / beside.requests:.0f} |"
        for name, _ in (quiet.held_ns + beside.held_ns).most_common()
        if quiet.held_ns[name] + beside.held_ns[name] >= quiet.requests + beside.requests
    ]
    lines += ["", "| who had the cores at any time | quiet | compacting |", "|---|---|---|"]
    lines += _shares(quiet.cores_ns, beside.cores_ns)
    lines += ["", "| page faults a second | quiet | compacting |", "|---|---|---|"]
    lines += [
        f"| {name} | {quiet.faults[name] / quiet.seconds:.1f} | {beside.faults[name] / beside.seconds:.1f} |"
        for name in sorted(quiet.faults | beside.faults)
    ]
    return "\n".join(lines)


def _mean_ms(mine: Account) -> float:
    return mine.slow_ns / 1e6 / max(1, mine.slow)


def _shares(quiet: Counter[str], beside: Counter[str]) -> list[str]:
    totals = [max(1, quiet.total()), max(1, beside.total())]
    names = [name for name, _ in (quiet + beside).most_common()]
    return [f"| {name} | {quiet[name] / totals[0]:.1%} | {beside[name] / totals[1]:.1%} |" for name in names]


class Measurement:
    """A broker with a producer; phases are made one after the other."""

    def __init__(self, subject: Subject, cast: Cast, traces: Path, megabytes: int) -> None:
        self._subject = subject
        self._cast = cast
        self._traces = traces
        self._megabytes = megabytes
        self.phases: list[Phase] = []

    def pair(self, quiet_s: float, quiet_first: bool) -> None:
        self._fill()
        if quiet_first:
            self._phase(False, lambda: self._look_until(time.monotonic() + quiet_s, lambda: False))
        self._phase(True, self._compact)
        self._subject.delete_topic(_TOPIC)
        if not quiet_first:
            self._rest()
            self._phase(False, lambda: self._look_until(time.monotonic() + quiet_s, lambda: False))

    def _fill(self) -> None:
        segment_bytes = max(1 << 20, self._megabytes * MEGABYTE // PACE_PARTITIONS // _SEGMENTS)
        config = {"segment.bytes": str(segment_bytes), "cleanup.policy": "delete"}
        self._subject.create_topic(_TOPIC, PACE_PARTITIONS, "page cache", config)
        records = self._megabytes * MEGABYTE // RECORD_BYTES // COPIES
        for _ in range(COPIES):
            place = (self._subject.bootstrap, _TOPIC, PACE_PARTITIONS, records, RECORD_BYTES)
            native.run("load", "produce", *place, "1")
        self._rest()

    def _rest(self) -> None:
        os.sync()
        time.sleep(_REST_S)

    def _phase(self, compacting: bool, work: Callable[[], object]) -> None:
        path = self._traces / f"{len(self.phases)}.data"
        with scheduling.recording(path):
            self._cast.look()
            before = _faults(self._cast)
            begin_s = time.monotonic()
            work()
            span = Span(begin_s, time.monotonic())
            faults = _faults(self._cast) - before
            self._cast.look()
        self.phases.append(Phase(compacting, span, path, faults))

    def _compact(self) -> None:
        log = self._subject.broker.log
        seen = log.read_bytes().count(_DONE)
        self._subject.alter_topic(_TOPIC, "cleanup.policy", "compact")
        deadline_s = time.monotonic() + _PATIENCE_S
        if not self._look_until(deadline_s, lambda: log.read_bytes().count(_DONE) >= seen + PACE_PARTITIONS):
            raise native.NativeError(f"{self._megabytes} MB were not compacted")

    def _look_until(self, deadline_s: float, condition: Callable[[], bool]) -> bool:
        """Both kinds of phase look as often, for looking takes a core too."""
        while not (done := condition()) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            self._cast.look()
        return done


def measure(directory: Path, *, pairs: int, quiet_s: float, megabytes: int, acks: str, durability: Durability) -> str:
    subject = start("penstock", directory / "penstock", settings=SETTINGS["penstock"])
    samples_path = directory / "samples.dat"
    try:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as traces:
            subject.create_topic(_PRODUCED, PACE_PARTITIONS, durability)
            place = (subject.bootstrap, _PRODUCED, PACE_PARTITIONS, _LONGEST_S * RATE, PACE_BYTES)
            with native.running("load", "latency", *place, acks, RATE, f"samples={samples_path}") as producer:
                time.sleep(_CONNECT_S)
                cast = Cast(subject.broker.pid, producer.pid, os.getpid())
                cast.poller = _poller(producer.pid)
                measurement = Measurement(subject, cast, Path(traces), megabytes)
                for number in range(pairs):
                    measurement.pair(quiet_s, quiet_first=number % 2 == 0)
                    spans = [phase.span.end_s - phase.span.begin_s for phase in measurement.phases[-2:]]
                    say(f"pair {number + 1} of {pairs}: {spans[0]:.1f} s and {spans[1]:.1f} s")
                producer.stop()
                producer.finish()
            return table(*account(measurement.phases, load_samples(samples_path), cast, scheduling.load))
    finally:
        subject.stop()


def _poller(pid: int) -> int:
    """The load generator's thread that takes delivery reports: its own, and not its first."""
    own = [each for each in _threads(pid) if not _name(pid, each).startswith("rdk:") and each != pid]
    if len(own) != 1:
        raise native.NativeError(f"process {pid} has {len(own)} threads that could take delivery reports")
    return own[0]


def _name(pid: int, thread: int) -> str:
    return Path(f"/proc/{pid}/task/{thread}/comm").read_text().strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compaction_waits", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="where the data goes for the run")
    parser.add_argument("--pairs", type=int, default=6, help="quiet and compacting phases (%(default)s)")
    parser.add_argument("--quiet-s", type=float, default=8.0, help="length of a quiet phase (%(default)s)")
    parser.add_argument("--megabytes", type=int, default=100, help="compacted in each phase (%(default)s)")
    parser.add_argument("--synced", action="store_true", help="acks=all and a sync before each (acks=1, page cache)")
    options = parser.parse_args()
    durability: Durability = "defaults" if options.synced else "page cache"
    with tempfile.TemporaryDirectory(dir=options.directory) as made:
        print(
            measure(
                Path(made),
                pairs=options.pairs,
                quiet_s=options.quiet_s,
                megabytes=options.megabytes,
                acks="all" if options.synced else "1",
                durability=durability,
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
