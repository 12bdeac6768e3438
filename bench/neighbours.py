"""What one connection's produce latency suffers from others: a reader of a cold topic, and a gigabyte of retention.

A producer sends at a steady rate, first alone and then beside the disturbance; the figure is the p99 of the records
sent during the disturbance over the p99 of those before it. Both halves are of one run, on one connection.
"""

import contextlib
import os
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import native
from bench.cells import MEGABYTE, PACE_BYTES, PACE_PARTITIONS
from bench.progress import say
from bench.rows import Row, at_most
from bench.scale import Scale, settle
from bench.subject import Subject

RATE = 2_000
COLD_MB = 2_000
EXPIRED_MB = 1_100
RECORD_BYTES = 1024
# The reader's own work would take cores from the producer and the broker; a real one has its own machine.
READER = ("nice", "-n", "19")
SEGMENT_BYTES = 64 << 20
ALONE_S = 4.0
_CONNECT_S = 1.0  # of which nothing counts
_RETENTION_MS = 3_600_000
_UPKEEP_S = 5.0
_SOME, _MOST = 0.01, 0.8  # the segment being written may stay
_LONGEST_S = 120
_SLOWEST_MB_S = 150
_EVENT_S = 2.0
_LEAD_S = 0.25

_THEME = "Neighbours"
_SHARED_CORES = (
    "Alone the p99 is so low that any other work on the two cores shows. The event loop hardly waits for the disk then "
    "(seen with perf); smaller steps of sending and reading in other ways changed nothing. What is left is the "
    "scheduling of two clients, one broker and the kernel's own work on two cores. In milliseconds see the row below."
)
ROWS = [
    Row(
        "cold-ratio",
        _THEME,
        "p99 beside a consumer of a cold 2 GB topic, over p99 alone",
        "x",
        (at_most(2.0, "nothing"),),
        reason=_SHARED_CORES,
    ),
    Row("cold-p99", _THEME, "p99 beside a consumer of a cold 2 GB topic", "ms"),
    Row(
        "expiry-ratio",
        _THEME,
        "p99 while 1 GB of retention goes, over p99 alone",
        "x",
        (at_most(2.0, "nothing"),),
        reason=_SHARED_CORES,
    ),
    Row("expiry-p99", _THEME, "p99 while 1 GB of retention goes", "ms"),
]


class Sample(NamedTuple):
    sent_s: float
    took_ms: float


class Span(NamedTuple):
    begin_s: float
    end_s: float


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def times_between(samples: Sequence[Sample], span: Span) -> list[float]:
    """What the records sent during a span took, in milliseconds."""
    taken = [each.took_ms for each in samples if span.begin_s <= each.sent_s < span.end_s]
    if not taken:
        raise native.NativeError("no record was sent during the disturbance: it was over before it began")
    return taken


def load_samples(path: Path) -> list[Sample]:
    """What load.c writes: pairs of int64, when a record was sent and how long it took, in nanoseconds."""
    numbers = array("q", path.read_bytes())
    return [Sample(sent / 1e9, took / 1e6) for sent, took in zip(numbers[::2], numbers[1::2], strict=True)]


def measure(subject: Subject, scale: Scale) -> dict[str, float]:
    return measure_reader(subject, scale) | measure_expiry(subject, scale)


def measure_reader(subject: Subject, scale: Scale) -> dict[str, float]:
    topic, records = "cold", scale.megabytes(COLD_MB) * MEGABYTE // RECORD_BYTES
    subject.create_topic(topic, PACE_PARTITIONS, "page cache", {"segment.bytes": str(SEGMENT_BYTES)})
    place = (subject.bootstrap, topic, PACE_PARTITIONS, records, RECORD_BYTES)
    native.run("load", "produce", *place, "1")
    settle(subject.directory)
    drop_pages(subject, topic)

    def read() -> Span:
        begin_s = time.monotonic()
        native.run("load", "consume", *place, prefix=READER)
        return Span(begin_s, time.monotonic())

    alone_ms, beside_ms = (percentile(times, 0.99) for times in disturb(subject, read))
    say(f"{subject.name}: cold reader: p99 {alone_ms:.2f} ms alone, {beside_ms:.2f} ms beside it")
    subject.delete_topic(topic)
    return {"cold-ratio": beside_ms / alone_ms, "cold-p99": beside_ms}


def measure_expiry(subject: Subject, scale: Scale) -> dict[str, float]:
    """All records carry one timestamp, so that all of them fall due in the same look at the logs."""
    topic, megabytes = "expiry", scale.megabytes(EXPIRED_MB)
    segment_bytes = min(SEGMENT_BYTES, megabytes * MEGABYTE // PACE_PARTITIONS // 8)
    config = {"retention.ms": str(_RETENTION_MS), "segment.bytes": str(max(segment_bytes, 1 << 20))}
    subject.create_topic(topic, PACE_PARTITIONS, "page cache", config)
    settle(subject.directory, megabytes)
    due_s = time.time() + ALONE_S + _CONNECT_S + 2 + megabytes / _SLOWEST_MB_S
    time_ms = int(due_s * 1000) - _RETENTION_MS
    place = (subject.bootstrap, topic, PACE_PARTITIONS, megabytes * MEGABYTE // RECORD_BYTES, RECORD_BYTES)
    native.run("load", "produce", *place, "1", f"time={time_ms}")
    os.sync()
    spare_s = due_s - time.time() - ALONE_S - _CONNECT_S
    if spare_s < 0:
        raise native.NativeError(f"{subject.name}: {megabytes} MB took too long to fall due all at once")
    time.sleep(spare_s)
    full_bytes = subject.topic_bytes(topic)

    def removed(share: float) -> Callable[[], bool]:
        return lambda: subject.topic_bytes(topic) <= full_bytes * (1 - share)

    def expire() -> Span:
        deadline_s = time.monotonic() + 3 * _UPKEEP_S
        wait_for(removed(_SOME), deadline_s, f"{subject.name}: nothing of {megabytes} MB fell to retention")
        begin_s = time.monotonic() - _LEAD_S
        wait_for(removed(_MOST), deadline_s, f"{subject.name}: retention left most of {megabytes} MB")
        return Span(begin_s, max(time.monotonic() + _LEAD_S, begin_s + _EVENT_S))

    alone_ms, beside_ms = (percentile(times, 0.99) for times in disturb(subject, expire))
    say(f"{subject.name}: retention: p99 {alone_ms:.2f} ms alone, {beside_ms:.2f} ms during it")
    subject.delete_topic(topic)
    return {"expiry-ratio": beside_ms / alone_ms, "expiry-p99": beside_ms}


def wait_for(condition: Callable[[], bool], deadline_s: float, failure: str) -> None:
    while not condition():
        if time.monotonic() > deadline_s:
            raise native.NativeError(failure)
        time.sleep(0.02)


def drop_pages(subject: Subject, topic: str) -> None:
    """Make a topic cold: only clean pages can go, so they are written out first."""
    os.sync()
    for path in subject.topic_files(topic):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disturb(subject: Subject, disturbance: Callable[[], Span]) -> tuple[list[float], list[float]]:
    """What a steady producer's records took alone and during the disturbance, in milliseconds."""
    topic, path = "neighbour", subject.directory / "samples.dat"
    subject.create_topic(topic, PACE_PARTITIONS, "page cache")
    place = (subject.bootstrap, topic, PACE_PARTITIONS, _LONGEST_S * RATE, PACE_BYTES)
    with native.running("load", "latency", *place, "1", RATE, f"samples={path}") as producer:
        time.sleep(_CONNECT_S)
        alone = Span(time.monotonic(), time.monotonic() + ALONE_S)
        time.sleep(ALONE_S)
        beside = disturbance()
        time.sleep(max(0.0, beside.end_s - time.monotonic()))
        producer.stop()
        producer.finish()
    samples = load_samples(path)
    subject.delete_topic(topic)
    return times_between(samples, alone), times_between(samples, beside)
