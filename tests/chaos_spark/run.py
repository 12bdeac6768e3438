"""One run: feeds the job, follows it by the log of its marks, kills it as a seed says, starts it again, and judges."""

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.spark.observer import Observer
from tests.spark.publisher import Publisher

from .job import ROWS_PER_BATCH
from .kills import DRIVER, GHOSTS, JVM, Kill, Processes, end, family, plan, resume
from .verdict import Output, key_of, value_of, violations

ROOT = Path(__file__).parents[2]
MARKS = "__penstock_spark_marks"
KEYS = 12
SOURCE_PARTITIONS, TARGET_PARTITIONS = 3, 2
_AHEAD = 3 * ROWS_PER_BATCH
_STUCK_S = 150.0
"""Longer than a slow start of Spark and the patience of a task together."""
_LAST_WORDS_S = 60.0
# Nothing is left running when the test process itself is killed.
_DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


class Stuck(Exception):
    """No batch was committed for too long."""


class Step(NamedTuple):
    """What the job wrote to the log of its marks."""

    kind: str
    batch: int | None


class Run:
    """Use as a context manager, so that nothing is left running."""

    def __init__(self, bootstrap: str, directory: Path, *, seed: int, kills: int) -> None:
        self._bootstrap, self._directory = bootstrap, directory
        self._coin = random.Random(seed)
        self._plan = list(plan(seed, kills))
        self.source, self.target = f"in-{seed}", f"out-{seed}"
        publisher = Publisher(bootstrap)
        publisher.create_topic(self.source, SOURCE_PARTITIONS)
        publisher.create_topic(self.target, TARGET_PARTITIONS)
        self._checkpoint = directory / "checkpoint"
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._marks = _follow(bootstrap, MARKS, 1, "read_uncommitted")
        self._output = _follow(bootstrap, self.target, TARGET_PARTITIONS, "read_committed")
        self._job: subprocess.Popen[bytes] | None = None
        self._ghosts: list[psutil.Process] = []
        self._seen: set[psutil.Process] = set()
        self._moved = time.monotonic()
        self._unsure: int | None = None
        """A batch that was marked when the driver died, and that Spark does not know to be written."""
        self.written: Counter[int] = Counter()
        self.copied = 0
        self.starts = 0
        self.marked: list[int] = []
        """The number of each batch marked, in order; one that was given up and written anew is there twice."""
        self.kills: Counter[str] = Counter()
        self.repeats = 0
        """Batches that were committed when the driver died, and that Spark gave the next one again."""

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self._end_job()
        self._marks.close()
        self._output.close()

    def play(self) -> None:
        self._start_job()
        for number, kill in enumerate(self._plan, 1):
            self._until_marked(kill.batches, feeding=True)
            self._until(kill.phase, kill.nth)
            if kill.delay_s:
                time.sleep(kill.delay_s)  # not waiting for anything: the moment is what the seed chooses
            self._strike(number, kill)
            self._until_marked(1, feeding=True)
            resume(self._ghosts)
        self._until_marked(1, feeding=True)
        while self.copied < self.written.total():
            for _ in self._steps(feeding=False):
                pass
        self._end_job()

    def verdict(self) -> list[str]:
        read = Observer(self._bootstrap).read(self.target, settled=False)
        return violations(
            self.written, [[Output(each.key or b"", each.value or b"") for each in part] for part in read]
        )

    def failures(self) -> Counter[str]:
        """Why queries ended, by the first words."""
        lines = [line for path in self._directory.glob("job-*.out") for line in path.read_text().splitlines()]
        return Counter(line.removeprefix("failed: ")[:90] for line in lines if line.startswith("failed: "))

    # --- the job

    def _start_job(self) -> None:
        self.starts += 1
        arguments = [self._bootstrap, self.source, self.target, str(self._checkpoint)]
        with (self._directory / f"job-{self.starts}.out").open("wb") as out:
            self._job = subprocess.Popen(
                [*_DIES_WITH_US, sys.executable, "-m", "tests.chaos_spark.job", *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _strike(self, number: int, kill: Kill) -> None:
        assert self._job is not None
        driver = psutil.Process(self._job.pid)
        self._seen.update(family(driver))
        count, self._ghosts = Processes(driver).kill(kill.kind, self._coin)
        self.kills[kill.kind] += 1
        told = f"kill {number}: {kill}, {count} processes"
        if kill.kind in (DRIVER, JVM, GHOSTS):
            self._job.wait(_LAST_WORDS_S)
            told += self._tell_repeat()
            self._start_job()
        print(f"{told}; {self.copied} of {self.written.total()} copied", flush=True)

    def _tell_repeat(self) -> str:
        """Whether Spark will repeat the batch that was marked last, which may be committed or not."""
        commits = [int(each.name) for each in (self._checkpoint / "commits").glob("[0-9]*")]
        known = max(commits, default=-1)
        if self.marked and self.marked[-1] > known:
            self._unsure = self.marked[-1]
            return f", batch {self.marked[-1]} marked and not in the checkpoint"
        return ""

    def _end_job(self) -> None:
        if self._job is not None:
            with suppress(psutil.NoSuchProcess):
                self._seen.update(family(psutil.Process(self._job.pid)))
            end([each for each in self._seen if each.is_running()])
            self._job.wait()
        self._job = None

    # --- its progress

    def _until_marked(self, count: int, *, feeding: bool) -> None:
        self._until("mark", count, feeding=feeding)

    def _until(self, kind: str, count: int, *, feeding: bool = True) -> None:
        """So many entries of a kind from now on."""
        while True:
            for step in self._steps(feeding=feeding):
                count -= step.kind == kind
                if not count:
                    return

    def _steps(self, *, feeding: bool) -> Iterator[Step]:
        """What is new in the log of marks. Meanwhile feeds, counts, and sees to it that a job is running."""
        if feeding:
            self._feed()
        self._count_output()
        for message in self._marks.consume(100, 0.01):
            if _is_record(message):
                yield self._read_step(message)
        self._check_alive()

    def _read_step(self, message: Message) -> Step:
        kind = json.loads(message.key() or b"")[0]
        batch = json.loads(message.value() or b"").get("batch")
        if kind == "mark":
            if self._unsure is not None:
                # A batch that was not committed is marked once more; one that was is passed over.
                self.repeats += batch > self._unsure
                self._unsure = None
            self.marked.append(batch)
        return Step(kind, batch)

    def _feed(self) -> None:
        while self.written.total() - self.copied < _AHEAD:
            for key in range(KEYS):
                value = value_of(key, self.written[key])
                self._producer.produce(self.source, value, key_of(key), key % SOURCE_PARTITIONS)
                self.written[key] += 1
        left = self._producer.flush(30)
        assert not left, f"{left} records of the input were not delivered"

    def _count_output(self) -> None:
        new = sum(map(_is_record, self._output.consume(5000, 0)))
        if new:
            self.copied += new
            self._moved = time.monotonic()

    def _check_alive(self) -> None:
        assert self._job is not None
        if self._job.poll() is not None:
            self._start_job()  # it lost its JVM, or had enough of its workers' deaths
        if time.monotonic() - self._moved > _STUCK_S:
            tail = (self._directory / f"job-{self.starts}.out").read_text(errors="replace")[-3000:]
            raise Stuck(
                f"nothing was committed for {_STUCK_S:.0f} s, {self.copied} of {self.written.total()} copied\n{tail}"
            )


def _follow(bootstrap: str, topic: str, partitions: int, isolation: str) -> Consumer:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "never-joined",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 500,
        # The log of marks is made by the job's first batch.
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 500,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    return consumer


def _is_record(message: Message) -> bool:
    error = message.error()
    assert error is None or error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC), error
    return error is None
