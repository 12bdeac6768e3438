"""What is measured: for each row its unit, which way is better, and the bar Penstock has to reach."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench import native
from bench.subject import Subject

RECORD_BYTES = 1024
PARTITIONS = 6
LATENCY_RATE = 2000
MEGABYTE = 1_000_000
PAGE_CACHE = {"flush": "os"}
# Long enough for a broker to end its start-up work, short enough for the run.
IDLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Bar:
    """What a row has to reach: a ratio to Kafka, or an absolute figure of Penstock's."""

    kind: Literal["ratio", "absolute"]
    at_least: float | None = None
    at_most: float | None = None

    def text(self) -> str:
        sign, limit = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        return f"{sign} {limit:g}{' x Kafka' if self.kind == 'ratio' else ''}"

    def holds(self, value: float) -> bool:
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    title: str
    unit: str
    bar: Bar | None = None


ROWS = [
    Row("produce", "produce, page cache (`flush=os`), acks=1", "MB/s", Bar("ratio", at_least=1.5)),
    Row("consume", "consume", "MB/s", Bar("ratio", at_least=1.3)),
    Row("cpu", "broker CPU for 1 GB in and 1 GB out", "CPU-s", Bar("ratio", at_most=0.5)),
    Row(
        "produce-durable",
        "produce, acks=all, defaults (Penstock fsyncs, Kafka does not)",
        "MB/s",
        Bar("ratio", at_least=1.0),
    ),
    Row("cpu-durable", "broker CPU for 1 GB in, acks=all, defaults", "CPU-s"),
    Row("ready", "start to ready", "s", Bar("absolute", at_most=1.0)),
    Row("rss-idle", "memory, idle", "MB", Bar("absolute", at_most=100.0)),
    Row("rss-loaded", "memory, after the load", "MB"),
    Row("latency-p50", f"produce latency p50 at {LATENCY_RATE}/s, page cache, acks=1", "ms"),
    Row("latency-p99", f"produce latency p99 at {LATENCY_RATE}/s, page cache, acks=1", "ms"),
    Row("latency-p999", f"produce latency p99.9 at {LATENCY_RATE}/s, page cache, acks=1", "ms"),
    Row("latency-durable-p50", f"produce latency p50 at {LATENCY_RATE}/s, acks=all, defaults", "ms"),
    Row("latency-durable-p99", f"produce latency p99 at {LATENCY_RATE}/s, acks=all, defaults", "ms"),
    Row("latency-durable-p999", f"produce latency p99.9 at {LATENCY_RATE}/s, acks=all, defaults", "ms"),
]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work a round is; a pass of warming up is half of the megabytes."""

    megabytes: int
    warm_passes: int
    latency_s: int

    @property
    def records(self) -> int:
        return self.megabytes * MEGABYTE // RECORD_BYTES


def settle(directory: Path, megabytes: int = 0) -> None:
    """Make the disk and the memory as they were before every other measurement.

    What earlier work left dirty is written out. Then as many pages as the next work needs are written once and
    freed: under a hypervisor that takes back free memory, the first touch of a page costs up to ten times the
    write itself, and would be charged to whichever broker comes first.
    """
    os.sync()
    scratch = directory / "scratch.dat"
    block = bytes(MEGABYTE)
    with scratch.open("wb", buffering=0) as file:
        for _ in range(megabytes * 5 // 4):
            file.write(block)
    scratch.unlink()


def measure_start(subject: Subject, scale: Scale) -> dict[str, float]:
    time.sleep(IDLE_S)
    return {"ready": subject.broker.ready_s, "rss-idle": subject.rss_mb()}


def measure_throughput(subject: Subject, scale: Scale) -> dict[str, float]:
    """Produce and consume through the page cache, and the CPU both took."""
    topic = "throughput"
    subject.create_topic(topic, PARTITIONS, PAGE_CACHE)
    place = (subject.bootstrap, topic, PARTITIONS, scale.records, RECORD_BYTES)
    settle(subject.directory, scale.megabytes)
    before_s = subject.cpu_s()
    produced = native.run("load", "produce", *place, "1")
    between_s = subject.cpu_s()
    consumed = native.run("load", "consume", *place)
    after_s = subject.cpu_s()
    gigabytes = produced["bytes"] / 1e9
    subject.delete_topic(topic)
    return {
        "produce": produced["bytes"] / MEGABYTE / produced["seconds"],
        "consume": consumed["bytes"] / MEGABYTE / consumed["seconds"],
        "cpu": (after_s - before_s) / gigabytes,
        "cpu-produce": (between_s - before_s) / gigabytes,
        "cpu-consume": (after_s - between_s) / gigabytes,
        "rss-loaded": subject.rss_mb(),
    }


def measure_durable(subject: Subject, scale: Scale) -> dict[str, float]:
    """Produce with acks=all and each broker's defaults; read back to be sure that all of it is there."""
    topic = "durable"
    subject.create_topic(topic, PARTITIONS, {})
    place = (subject.bootstrap, topic, PARTITIONS, scale.records, RECORD_BYTES)
    settle(subject.directory, scale.megabytes)
    before_s = subject.cpu_s()
    produced = native.run("load", "produce", *place, "all")
    after_s = subject.cpu_s()
    native.run("load", "consume", *place)
    subject.delete_topic(topic)
    return {
        "produce-durable": produced["bytes"] / MEGABYTE / produced["seconds"],
        "cpu-durable": (after_s - before_s) / (produced["bytes"] / 1e9),
    }


def measure_latency(subject: Subject, scale: Scale) -> dict[str, float]:
    figures: dict[str, float] = {}
    for stem, config, acks in (("latency", PAGE_CACHE, "1"), ("latency-durable", {}, "all")):
        subject.create_topic(stem, PARTITIONS, config)
        settle(subject.directory)
        records = LATENCY_RATE * scale.latency_s
        found = native.run(
            "load", "latency", subject.bootstrap, stem, PARTITIONS, records, RECORD_BYTES, acks, LATENCY_RATE
        )
        for point in ("p50", "p99", "p999"):
            figures[f"{stem}-{point}"] = found[f"{point}_ms"]
        subject.delete_topic(stem)
    return figures


def warm_up(subject: Subject, scale: Scale) -> None:
    """The same work, not measured: a JVM needs some gigabytes until its hot paths are compiled."""
    for number in range(scale.warm_passes):
        topic, acks = f"warm-{number}", ("1", "all")[number % 2]
        subject.create_topic(topic, PARTITIONS, PAGE_CACHE if acks == "1" else {})
        place = (subject.bootstrap, topic, PARTITIONS, scale.records // 2, RECORD_BYTES)
        native.run("load", "produce", *place, acks)
        native.run("load", "consume", *place)
        subject.delete_topic(topic)


Measure = Callable[[Subject, Scale], dict[str, float]]
# In this order: memory is read before the load, latency after it.
GROUPS: dict[str, Measure] = {
    "start": measure_start,
    "throughput": measure_throughput,
    "durable": measure_durable,
    "latency": measure_latency,
}


def measure_floor(directory: Path, scale: Scale) -> dict[str, float]:
    """The C program that only receives, writes and sends back."""
    settle(directory, scale.megabytes)
    found = native.run("floor", str(directory / "floor.dat"), scale.megabytes * MEGABYTE)
    return {
        "produce": scale.megabytes / found["in_s"],
        "consume": scale.megabytes / found["out_s"],
        "cpu": found["cpu_s"] / (scale.megabytes / 1000),
    }
