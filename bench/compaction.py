"""What a producer suffers while a compacted topic is compacted beside it, and what of that any third process costs.

A topic is filled with the same keys several times over and only then told to be compacted, so that one pass over all
of it begins at a known time. Afterwards, for as long, a process of the idle scheduling class computes for a third of
the time: it reads nothing, writes nothing and asks the broker nothing.
"""

import subprocess
import sys
import time
from pathlib import Path

from bench import native
from bench.cells import BASE, MEGABYTE, PACE_PARTITIONS
from bench.neighbours import RATE, Span, disturb, percentile, wait_for
from bench.progress import say
from bench.rows import Row, at_most
from bench.scale import Scale, settle
from bench.subject import Subject, start
from bench.throughput import measure_cell

MEGABYTES = 300
COPIES = 4
RECORD_BYTES = 1024
# Both look for work twice a second; by default Penstock does every 5 s and Kafka every 15 s.
LOOK_MS = 500
SETTINGS = {
    "penstock": {"storage.upkeep_ms": str(LOOK_MS)},
    "kafka": {"log.cleaner.backoff.ms": str(LOOK_MS), "log.retention.check.interval.ms": str(LOOK_MS)},
}
_SEGMENTS = 10  # of each partition; the last one is never compacted
_WARM_S = 5
_LEAST_MB = 60  # segments have a least size, and one of each partition stays as it is
_TOPIC = "compacted"
_PATIENCE_S = 90.0
_MOST = 0.5
_QUIET_S = 1.0
_LEAST_S = 5.0
_A_THIRD = """
import time
while True:
    begun = time.monotonic()
    while time.monotonic() - begun < 0.01:
        pass
    time.sleep(0.02)
"""
_COMPUTES = (*("chrt", "--idle", "0", sys.executable, "-c"), _A_THIRD)

THEME = "Compaction"
_THIRD_PROCESS = (
    "The compacting process has the idle scheduling class and moves 32 MiB a second at most, but the idle class did "
    "not always give way: of the wake-ups of the broker's and the producer's threads that came upon its core, 1.7 % "
    "waited for more than 0.1 ms and 0.7 % for more than 1 ms, about half of these until the next tick; counted in "
    "traces of the scheduler, and as many as a p99 consists of. Since the process offers its core after every few "
    "records it is 0.3 % and 0.04 %. What else slow requests wait for, quiet and beside compaction: "
    "`python -m bench.compaction_waits`."
)
_POINTS = {"p50": 0.5, "p99": 0.99}
_BESIDE = f"while {MEGABYTES} MB are compacted beside it"
ROWS = [
    row
    for point in _POINTS
    for row in (
        Row(
            f"compaction-{point}-ratio",
            THEME,
            f"{point} {_BESIDE}, over {point} alone",
            "x",
            (at_most(2.0, "nothing"),),
            reason=_THIRD_PROCESS,
        ),
        Row(f"compaction-{point}", THEME, f"{point} {_BESIDE}", "ms"),
    )
]
ROWS.append(
    Row("computing-p99-ratio", THEME, "p99 beside a process of the idle class that only computes, over p99 alone", "x")
)
ROWS.append(Row("compaction-took", THEME, f"from the order to compact {MEGABYTES} MB to its end", "s"))


def measure(name: str, directory: Path, scale: Scale) -> dict[str, float]:
    settle(directory, scale.megabytes(MEGABYTES))
    subject = start(name, directory / name, settings=SETTINGS[name])
    try:
        return _measure(subject, scale)
    finally:
        subject.stop()


def _measure(subject: Subject, scale: Scale) -> dict[str, float]:
    megabytes = max(_LEAST_MB, scale.megabytes(MEGABYTES))
    _fill(subject, megabytes)
    _warm_up(subject, scale)
    settle(subject.directory)
    full_bytes = subject.topic_bytes(_TOPIC)
    took_s = 0.0

    def compact() -> Span:
        nonlocal took_s
        begin_s = time.monotonic()
        subject.alter_topic(_TOPIC, "cleanup.policy", "compact")
        small = Shrinking(subject, full_bytes)
        wait_for(small.is_over, begin_s + _PATIENCE_S, f"{subject.name}: {megabytes} MB were not compacted")
        took_s = small.changed_s - begin_s
        return Span(begin_s, small.changed_s)

    alone, beside = disturb(subject, compact)
    subject.delete_topic(_TOPIC)
    quiet, computing = disturb(subject, lambda: _compute(max(took_s, _LEAST_S)))
    computing_ratio = percentile(computing, 0.99) / percentile(quiet, 0.99)
    figures = {"compaction-took": took_s, "computing-p99-ratio": computing_ratio}
    for point, share in _POINTS.items():
        figures[f"compaction-{point}"] = percentile(beside, share)
        figures[f"compaction-{point}-ratio"] = percentile(beside, share) / percentile(alone, share)
    ratios = ", ".join(f"{each} {figures[f'compaction-{each}-ratio']:.2f} x" for each in _POINTS)
    say(
        f"{subject.name}: compaction of {megabytes} MB in {took_s:.1f} s: {ratios} alone; "
        f"beside a process that only computes p99 {computing_ratio:.2f} x"
    )
    return figures


def _compute(seconds: float) -> Span:
    begin_s = time.monotonic()
    with subprocess.Popen(_COMPUTES) as process:
        time.sleep(seconds)
        process.kill()
    return Span(begin_s, begin_s + seconds)


def _fill(subject: Subject, megabytes: int) -> None:
    """The keys of load.c count from 0 in each run, so every run after the first writes the same keys again."""
    segment_bytes = megabytes * MEGABYTE // PACE_PARTITIONS // _SEGMENTS
    config = {"segment.bytes": str(max(segment_bytes, 1 << 20)), "cleanup.policy": "delete"}
    subject.create_topic(_TOPIC, PACE_PARTITIONS, "page cache", config)
    records = megabytes * MEGABYTE // RECORD_BYTES // COPIES
    for _ in range(COPIES):
        native.run("load", "produce", subject.bootstrap, _TOPIC, PACE_PARTITIONS, records, RECORD_BYTES, "1")


def _warm_up(subject: Subject, scale: Scale) -> None:
    """What is measured alone has to be as warm as what is measured later; half a gigabyte at once, then as measured."""
    measure_cell(subject, BASE, scale.share / 2)
    topic, records = "warm", RATE * (_WARM_S if scale.share >= 1 else 1)
    subject.create_topic(topic, PACE_PARTITIONS, "page cache")
    native.run("load", "latency", subject.bootstrap, topic, PACE_PARTITIONS, records, RECORD_BYTES, "1", RATE)
    subject.delete_topic(topic)


class Shrinking:
    """A topic on its way to a part of its size."""

    def __init__(self, subject: Subject, full_bytes: int) -> None:
        self._subject = subject
        self._full_bytes = full_bytes
        self._bytes = full_bytes
        self.changed_s = time.monotonic()
        """When its size last changed."""

    def is_over(self) -> bool:
        """Whether most of it has gone and nothing has changed for a while."""
        now_bytes = self._subject.topic_bytes(_TOPIC)
        if now_bytes != self._bytes:
            self._bytes, self.changed_s = now_bytes, time.monotonic()
        return now_bytes < self._full_bytes * _MOST and time.monotonic() - self.changed_s > _QUIET_S
