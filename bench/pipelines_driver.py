"""What is measured of the background driver: how soon a pipeline runs, cold and warm, and how old a copy is.

The driver is a process of its own, begun by `penstock pipeline start` in a home of its own; this process only asks,
writes records and reads their copies with librdkafka, committed ones only.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.peers import penstock

from bench.pipelines_queries import EXPECTATION, FEW, MASTER, SCHEMA, SELECT, Bench
from bench.progress import say
from bench.scale import settle
from bench.spark_clock import Watch
from bench.spark_queries import PARTITIONS, Figures, Group, WrongRows
from bench.subject import Subject

if TYPE_CHECKING:
    from penstock.pipelines.home import Home, PipelineDirectory

RATE = 2_000
PACE_S = 30.0
POINTS = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
_WARM_S = 5.0
_LEAST_PACE_S = 3.0
_TICK_S = 0.005
_KEPT_SHARE = 0.9
_PATIENCE_S = 120.0
_PACE_SCHEMA = "id BIGINT, at BIGINT, note STRING"
_PACE_SELECT = "SELECT id, at FROM orders WHERE id % 10 <> 9"
_NOTE = "x" * 50


@dataclass(slots=True)
class Background:
    """A home, and the driver that comes to be in it."""

    subject: Subject
    place: Path

    @property
    def home(self) -> "Home":
        from penstock.pipelines.home.directory import Home

        return Home(self.place / "home")

    @property
    def pid(self) -> int:
        from penstock.pipelines.driver.presence import Presence

        holder = Presence(self.home).holder()
        return holder.pid if holder is not None else 0

    def save_pipeline(self, name: str, source: Mapping[str, Any], sql: str, that: str, **keys: Any) -> Path:
        """Its sink is the topic of its name, with the partitions it has."""
        self.subject.create_topic(name, PARTITIONS, "defaults")
        expect = [{"name": "holds", "that": that, "otherwise": "drop"}]
        spec = {
            "name": name,
            "server": self.subject.bootstrap,
            "sources": {"orders": {"format": "json", **source}},
            "steps": {"made": {"sql": sql, "expect": expect}},
            "sinks": {"out": {"topic": name}},
            **keys,
        }
        file = self.place / f"{name}.yaml"
        file.write_text(json.dumps(spec))
        return file

    def command(self, *words: str) -> "subprocess.Popen[str]":
        words = (*penstock.command(), "pipeline", *words, "--home", str(self.home.path))
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def end(self) -> None:
        """All pipelines and the driver, in order if it can be."""
        stopping = self.command("stop", "--all", "--driver")
        try:
            stopping.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            stopping.kill()
        if pid := self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # it leads a session of its own, with the JVM and the workers in it


@contextlib.contextmanager
def background(bench: Bench) -> Iterator[Background]:
    with bench.new_directory("driver") as place:
        made = Background(bench.subject, place)
        try:
            yield made
        finally:
            made.end()


@contextlib.contextmanager
def reader(bootstrap: str, topic: str) -> Iterator[Consumer]:
    """At the beginning of a topic, connected."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-joined",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        consumer.poll(1.0)  # nothing is there yet; now it waits at the broker
        yield consumer
    finally:
        consumer.close()


@dataclass(slots=True)
class Beginning:
    """Seconds on the wall clock at which a pipeline was asked for, was made, ran, had a first row in its sink."""

    asked: float
    begun: float = 0.0
    running: float = 0.0
    written: float = 0.0
    returned: float = 0.0


def watch_beginning(
    consumer: Consumer, directory: "PipelineDirectory", asked: float, command: "subprocess.Popen[str] | None" = None
) -> Beginning:
    """Look at status, sink and command until all of it has happened."""
    from penstock.pipelines.home.status import State

    found = Beginning(asked)
    deadline = time.monotonic() + _PATIENCE_S
    while not (found.running and found.written and (command is None or found.returned)):
        if time.monotonic() > deadline:
            raise WrongRows(f"pipeline {directory.name} does not begin: {directory.load_status()}")
        message = consumer.poll(0.01)
        if message is not None and message.error() is None and not found.written:
            found.written = time.time()
        status = None if found.running else directory.load_status()
        if status is not None and status.state is State.FAILED:
            raise WrongRows(f"pipeline {directory.name} failed: {status.reason}")
        if status is not None and status.state is State.RUNNING:
            found.running, found.begun = time.time(), status.started_ms / 1e3
        if command is not None and not found.returned and command.poll() is not None:
            found.returned = time.time()
            if command.returncode != 0:
                raise WrongRows(f"penstock pipeline start: {command.communicate()[0]}")
    return found


def begin_by_command(driver: Background, file: Path, *words: str) -> Beginning:
    with reader(driver.subject.bootstrap, file.stem) as consumer:
        asked = time.time()
        command = driver.command("start", str(file), *words)
        return watch_beginning(consumer, driver.home.pipeline(file.stem), asked, command)


def begin_by_wish(driver: Background, file: Path) -> Beginning:
    from penstock.pipelines.home import Wanted, Wish

    directory = driver.home.pipeline(file.stem)
    with reader(driver.subject.bootstrap, file.stem) as consumer:
        asked = time.time()
        directory.save_wanted(Wanted(str(file), Wish.RUNNING))
        return watch_beginning(consumer, directory, asked)


def stop_pipelines(driver: Background, names: Sequence[str]) -> None:
    stopping = driver.command("stop", *names)
    said, _ = stopping.communicate(timeout=_PATIENCE_S)
    if stopping.returncode != 0:
        raise WrongRows(f"penstock pipeline stop: {said}")


def measure_starts(driver: Background, number: int) -> dict[str, float]:
    """The first pipeline of a driver, a second one by a wish, a third one by the command."""
    names = [f"{word}-{number}" for word in ("first", "second", "third")]
    # Some hundred rows: what is measured is the way to the first one, not the work.
    source = {"topic": FEW, "schema": SCHEMA}
    files = [driver.save_pipeline(name, source, SELECT, EXPECTATION) for name in names]
    first = begin_by_command(driver, files[0], "--master", MASTER)
    second = begin_by_wish(driver, files[1])
    third = begin_by_command(driver, files[2])
    stop_pipelines(driver, names)
    found = {
        "cold-driver": first.begun - first.asked,
        "cold-run": first.written - first.begun,
        "cold-written": first.written - first.asked,
        "warm-running": second.running - second.asked,
        "warm-written": second.written - second.asked,
        "command-returned": third.returned - third.asked,
        "command-written": third.written - third.asked,
    }
    say(", ".join(f"{name} {value:.2f} s" for name, value in found.items()))
    return found


@dataclass(slots=True)
class Traffic:
    """Records at a steady rate, and how old each copy was when it was read."""

    bootstrap: str
    topic: str
    seconds: float
    sent: int = 0
    ages_ms: dict[int, float] = field(default_factory=dict)
    _failures: list[str] = field(default_factory=list)

    def send(self) -> None:
        """Every record has its own moment, in its value by the microsecond and as its timestamp."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 3})
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < self.seconds:
            for number in range(self.sent, int(passed * RATE)):
                at = time.time_ns() // 1_000
                value = json.dumps({"id": number, "at": at, "note": _NOTE})
                producer.produce(self.topic, value, timestamp=at // 1_000, on_delivery=self._note)
                self.sent = number + 1
            producer.poll(0)
            time.sleep(_TICK_S)
        if left := producer.flush(_PATIENCE_S):
            self._failures.append(f"{left} records were not written")

    def receive(self, consumer: Consumer, sending: threading.Thread) -> None:
        """Until every record that the pipeline lets through has its copy."""
        deadline = time.monotonic() + self.seconds + _PATIENCE_S
        while sending.is_alive() or len(self.ages_ms) < self.expected:
            first = consumer.poll(0.1)
            now = time.time_ns() // 1_000
            messages = [] if first is None else [first, *consumer.consume(100_000, 0)]
            for message in messages:
                if message.error() is not None:
                    raise WrongRows(f"copies cannot be read: {message.error()}")
                row = json.loads(message.value() or b"{}")
                if row["id"] in self.ages_ms:
                    raise WrongRows(f"record {row['id']} has two copies")
                self.ages_ms[row["id"]] = (now - row["at"]) / 1e3
            if self._failures or time.monotonic() > deadline:
                told = self._failures or [f"{len(self.ages_ms)} copies of {self.expected} came"]
                raise WrongRows(f"records at a steady rate: {told[0]}")

    @property
    def expected(self) -> int:
        return sum(1 for number in range(self.sent) if number % 10 != 9)

    def check_rate(self) -> None:
        """Raises:
        WrongRows: the sender fell behind, or ended early.
        """
        wanted = int(self.seconds * RATE)
        if self.sent < _KEPT_SHARE * wanted:
            raise WrongRows(f"records at a steady rate: {self.sent:,} of {wanted:,} records were sent in time")

    def counted(self) -> list[float]:
        """Sorted, without those of the first seconds."""
        return sorted(age for number, age in self.ages_ms.items() if number >= _WARM_S * RATE)

    def _note(self, error: object, _message: object) -> None:
        if error is not None:
            self._failures.append(f"a record was not written: {error}")


def point(ages: Sequence[float], share: float) -> float:
    """The smallest age that `share` of all do not exceed."""
    return ages[max(0, math.ceil(share * len(ages)) - 1)]


def measure_latency(bench: Bench, driver: Background, number: int) -> dict[str, float]:
    name, source = f"copies-{number}", f"pace-{number}"
    bench.subject.create_topic(source, PARTITIONS, "defaults")
    file = driver.save_pipeline(name, {"topic": source, "schema": _PACE_SCHEMA}, _PACE_SELECT, "at > 0", every="0s")
    begun = driver.command("start", str(file))
    said, _ = begun.communicate(timeout=_PATIENCE_S)
    if begun.returncode != 0:
        raise WrongRows(f"penstock pipeline start: {said}")
    settle(bench.directory)
    traffic = Traffic(bench.subject.bootstrap, source, _WARM_S + max(_LEAST_PACE_S, PACE_S * bench.scale))
    sending = threading.Thread(target=traffic.send, daemon=True)
    with reader(bench.subject.bootstrap, name) as consumer, Watch(driver.pid) as watch:
        broker_s, started = bench.subject.cpu_s(), time.monotonic()
        sending.start()
        traffic.receive(consumer, sending)
        seconds = time.monotonic() - started
        broker_s = bench.subject.cpu_s() - broker_s
    traffic.check_rate()
    ages = traffic.counted()
    found = {f"latency-{name}": point(ages, share) for name, share in POINTS.items()}
    say(", ".join(f"{name} {value:.0f} ms" for name, value in found.items()))
    return found | {"latency-cpu": watch.cpu_s() / seconds, "latency-broker": broker_s / seconds}


def measure_driver(bench: Bench, number: int) -> Figures:
    """A driver for each round, of which nothing is warm but what the machine keeps in memory."""
    settle(bench.directory)
    with background(bench) as driver:
        return {"penstock": measure_starts(driver, number) | measure_latency(bench, driver, number)}


GROUPS = {"driver": Group(measure_driver)}
