"""One run: feeds a pipeline, follows its sinks from outside, strikes as a seed says, starts again, and judges."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]
import yaml

from tests.chaos_spark.kills import resume
from tests.peers import penstock, postgres
from tests.peers.bigquery import BigQuery
from tests.peers.broker import Broker
from tests.peers.ports import free_ports
from tests.spark.publisher import Publisher

from . import rows
from .databases import PostgresTable, SqliteTable
from .destinations import Destination, Look
from .process import PipelineHome, PipelineProcess
from .services import BigQueryTable, Topic, read_values
from .strikes import BROKER, NEW_DRIVER, RUN, STOP, Phases, Strike
from .tables import DeltaLake, IcebergTable, ParquetTable
from .verdict import Verdict, compare, disorder, miscounted

PIPELINE = "chaos"
SINKS = ("topic", "parquet", "delta", "iceberg", "sqlite", "sqlite_upsert", "postgres", "bigquery")
LIMIT = 120
"""A micro-batch of rows of one partition alone still has less than `rows.SLOTS` numbers between its first and last."""
_AHEAD = 2 * LIMIT
_MISSED = 12
"""After so many micro-batches without the moment that is waited for, any will do."""
_LOOK_EVERY_S = 0.002
_TEND_EVERY_S = 0.1
_STUCK_S = 400.0
"""Longer than a slow start of Spark and the patience of a task together."""


class Stuck(Exception):
    """Nothing moved for too long."""


class Line(NamedTuple):
    """What became of a sink."""

    sink: str
    kills: Counter[str]
    repeats: int
    verdict: Verdict


class Run:
    """Use as a context manager, so that nothing is left running."""

    def __init__(self, directory: Path, sinks: Sequence[str], *, seed: int) -> None:
        self._directory = directory
        self._names = sinks
        self._coin = random.Random(seed)
        self._held = ExitStack()
        self._ghosts: list[psutil.Process] = []
        self._tended_s = 0.0
        self._moved_s = time.monotonic()
        self._committed = -1
        self.kills: dict[str, Counter[str]] = {name: Counter() for name in (*sinks, RUN)}
        self.met: Counter[str] = Counter()
        """Strikes at the moment they were meant for, not at any."""
        self.repeats: Counter[str] = Counter()
        """Micro-batches that a sink had when a driver died, and that Spark gave the next one again."""
        self.complaints: list[str] = []
        """What a process did that it ought not to."""

    def __enter__(self) -> "Run":
        with self._held:
            self._set_up()
            self._held = self._held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def phases(self) -> Phases:
        return {name: tuple(each) for name, each in self._looks.items()}

    def play(self, strikes: Sequence[Strike]) -> None:
        self._process.start()
        for number, strike in enumerate(strikes, 1):
            self._await(strike)
            resume(self._ghosts)
            self._ghosts = []
            self._strike(number, strike)
            self._await_batches(strike.rest)
        self._feed.send(LIMIT)
        self._feed.flush()
        while self.home.position() < self._feed.count:
            self._tend(feeding=False)
            time.sleep(_TEND_EVERY_S)
        resume(self._ghosts)
        code = self._process.stop()
        if code != 0:
            self.complaints.append(f"the last SIGTERM: exit code {code}\n{self._process.tail()}")

    def lines(self) -> list[Line]:
        """The verdict on every way to read every sink, and on the dead letters."""
        found = []
        for each in self._destinations:
            wanted = rows.latest(self._feed.count) if each.upserts else list(rows.good(self._feed.count))
            for name, partitions in each.read().items():
                verdict = compare(name, wanted, (row for part in partitions for row in part))
                if len(partitions) > 1:
                    verdict.disorder.extend(disorder(partitions))
                found.append(Line(each.name, self.kills[each.name], self.repeats[each.name], verdict))
        letters = read_values(self._broker.bootstrap, f"{PIPELINE}.dead")
        verdict = compare("dead letters", rows.dead(self._feed.count), letters)
        return [*found, Line(RUN, self.kills[RUN], self.repeats[RUN], verdict)]

    def miscounted(self) -> list[str]:
        numbers, counters = range(self._feed.count), self.home.counters()
        undecodable = sum(map(rows.is_undecodable, numbers))
        unwanted = sum(map(rows.is_unwanted, numbers))
        taken = len(numbers) - undecodable - unwanted
        wanted: dict[str, Any] = {
            "dead_letters": undecodable + unwanted,
            "failed": {"fed": {"": undecodable}, "good": {"positive": unwanted}},
            "batches": self.home.committed() + 1,
        }
        return miscounted(wanted, counters) + miscounted(dict.fromkeys(self._names, taken), counters["sinks"])

    # --- the stage

    def _set_up(self) -> None:
        self.home = PipelineHome(self._directory / "home", PIPELINE)
        self._port = free_ports(1)[0]
        self._broker = self._start_broker()
        self._held.callback(lambda: self._broker.stop())
        Publisher(self._broker.bootstrap).create_topic("fed", rows.PARTITIONS)
        self._feed = rows.Feed(self._broker.bootstrap, "fed")
        self._destinations = [self._open(name) for name in self._names]
        self._looks: dict[str, dict[str, Look]] = {each.name: dict(each.phases()) for each in self._destinations}
        self._looks[RUN] = dict(self.home.phases())
        self._process = PipelineProcess(self._write_spec(), self._directory / "home")
        self._held.callback(self._process.end)

    def _open(self, name: str) -> Destination:
        directory = self._directory
        match name:
            case "topic":
                return Topic(self._broker.bootstrap, PIPELINE)
            case "parquet":
                return ParquetTable(directory)
            case "delta":
                return DeltaLake(directory)
            case "iceberg":
                return IcebergTable(directory)
            case "sqlite" | "sqlite_upsert":
                return SqliteTable(directory, upserts=name.endswith("upsert"))
            case "postgres" | "postgres_upsert":
                server = postgres.start()
                self._held.callback(server.stop)
                return PostgresTable(server.url, upserts=name.endswith("upsert"))
            case _:
                return BigQueryTable(self._held.enter_context(BigQuery()), self.home.path / "sinks" / name)

    def _write_spec(self) -> Path:
        spec = {
            "name": PIPELINE,
            "server": self._broker.bootstrap,
            # A turn that a dead task holds is not given back: those behind it wait so long, then try again.
            "client": {"delivery.timeout.ms": 8000},
            "every": 0,
            "limit": LIMIT,
            "sources": {"fed": {"topic": "fed", "format": "json", "schema": rows.SCHEMA}},
            "steps": {"good": {"sql": rows.QUERY, "expect": rows.EXPECTED}},
            "sinks": {each.name: each.keys() for each in self._destinations},
        }
        file = self._directory / f"{PIPELINE}.yaml"
        file.write_text(yaml.safe_dump(spec, sort_keys=False))
        return file

    def _start_broker(self) -> Broker:
        return penstock.start(self._directory / "broker", flags=["--kafka", f"127.0.0.1:{self._port}"])

    # --- strikes

    def _strike(self, number: int, strike: Strike) -> None:
        told = f"strike {number}: {strike}"
        if strike.kind == BROKER:
            self._broker.process.kill()
            self._broker.process.wait()
            self._broker = self._start_broker()
        elif strike.kind == STOP:
            code = self._process.stop()
            if code != 0:
                self.complaints.append(f"{strike}: exit code {code}\n{self._process.tail()}")
        else:
            count, self._ghosts = self._process.kill(strike.kind, self._coin)
            told += f", {count} processes"
        self.kills[strike.sink][strike.kind] += 1
        self._moved_s = time.monotonic()
        if strike.kind in NEW_DRIVER:
            if strike.kind != STOP and self._process.wait() is None:
                self.complaints.append(f"{strike}: the command goes on without its JVM\n{self._process.tail()}")
            told += self._count_repeats()
            self._process.start()
        print(f"{told}; {self.home.position()} of {self._feed.count} in batches up to {self._committed}", flush=True)

    def _count_repeats(self) -> str:
        """Which sinks have a micro-batch that Spark does not know to be written, and will give them again."""
        committed, query = self.home.committed(), self.home.query
        marks = {each.name: each.mark(query) for each in self._destinations}
        repeated = [name for name, mark in marks.items() if mark is not None and mark > committed]
        self.repeats.update(repeated)
        return f", batch {committed + 1} is already in {', '.join(repeated)}" if repeated else ""

    # --- the pipeline's progress

    def _await(self, strike: Strike) -> None:
        look = self._looks[strike.sink][strike.phase]
        before, until = look(), self._committed + _MISSED
        # Some moments are short: a busy machine may miss them for ever.
        while not (met := look() - before) and self._committed < until:
            self._tend(feeding=True)
            time.sleep(_LOOK_EVERY_S)
        self.met[strike.sink] += bool(met)
        if strike.delay_s:
            time.sleep(strike.delay_s)  # not waiting for anything: the moment is what the seed chooses

    def _await_batches(self, count: int) -> None:
        until = self.home.committed() + count
        while self.home.committed() < until:
            self._tend(feeding=True)
            time.sleep(_TEND_EVERY_S)

    def _tend(self, *, feeding: bool) -> None:
        """From time to time: feeds, and sees to it that the pipeline is running and gets on."""
        now = time.monotonic()
        if now - self._tended_s < _TEND_EVERY_S:
            return
        self._tended_s = now
        if feeding and self._feed.count - self.home.position() < _AHEAD:
            self._feed.send(LIMIT)
        if self._process.has_ended:
            self.complaints.append(f"the command ended by itself\n{self._process.tail()}")
            self._process.start()
        if (committed := self.home.committed()) != self._committed:
            self._committed, self._moved_s = committed, now
        if now - self._moved_s > _STUCK_S:
            events = "\n".join(str(each) for each in self.home.events()[-10:])
            raise Stuck(f"nothing moved for {_STUCK_S:.0f} s\n{events}\n{self._process.tail()}")
