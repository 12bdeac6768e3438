"""What is measured of pipelines within one Spark session: a backlog to a topic and to other sinks, and small batches.

Beside a pipeline stand the plainest programs that do the same without one, with `format("penstock")` and with Spark's
Kafka connector. As a module (`python -m bench.pipelines_queries`) this is such a program, for the figures that include
the start of a session. What came out of a query is looked at after the clock has stopped, as in spark_queries.py.
"""

import functools
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.peers import penstock
from tests.peers.postgres import Postgres

from bench.progress import say
from bench.spark_clock import Timing, timed
from bench.spark_queries import (
    PARTITIONS,
    WRITES,
    Figures,
    Group,
    Way,
    Workbench,
    WrongRows,
    expect,
    put,
    summarise,
    turned,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.pipelines.run.run import Run

MASTER = "local[2]"
RECORD_BYTES = 100
LIMIT = 500_000
SCHEMA = "id BIGINT, shop STRING, cents BIGINT, paid BOOLEAN, note STRING"
SELECT = "SELECT id, shop, cents * 119 DIV 100 AS gross FROM orders WHERE paid"
EXPECTATION = "gross > 0"
SMALL_ROWS = 20
SMALL_BATCHES = 20
_SMALL_WARM = 5
FEW = "few"
_LIMIT_S = 600.0
# Nine in ten are paid, and one in a thousand costs nothing: the filter and the expectation both have something to do.
_FIELDS = """concat('{"id":', id, ',"shop":"shop-', lpad(id % 500, 4, '0'), '","cents":', id % 1000,
    ',"paid":', id % 10 <> 9, ',"note":"')"""
_PAID_SHARE = 0.9
_BROKEN_SHARE = 0.001

WAYS = {"penstock": Way("pipeline", {}), "plain": Way("penstock", {}), "connector": Way("kafka", {})}
"""A pipeline, and programs without one."""
_JUDGE = Way("kafka", {"kafka.isolation.level": "read_committed"})


class Backlog(NamedTuple):
    """Records that wait in a topic."""

    topic: str
    records: int


FULL = Backlog("orders", 2_000_000)
MIDDLE = Backlog("orders-300k", 300_000)
SMALL = Backlog("orders-100k", 100_000)
SINKS = {"parquet": FULL, "delta": FULL, "sqlite": SMALL, "postgres": MIDDLE}


@dataclass(slots=True)
class Bench(Workbench):
    """The broker, the session and, for its sink, a PostgreSQL server."""

    postgres: Postgres | None = None

    def backlog(self, full: Backlog) -> Backlog:
        """As many records as this run has; a thousand at least, so that an expectation breaks."""
        return full._replace(records=max(1_000, int(full.records * self.scale) // 1_000 * 1_000))

    @property
    def limit(self) -> int:
        """Of a micro-batch: a quarter of the largest backlog, as by default in a full run."""
        return max(1_000, int(LIMIT * self.scale))


def record_rows(spark: "SparkSession", records: int) -> "DataFrame":
    """JSON of 100 bytes, spread evenly over the partitions."""
    rows = spark.range(0, records, 1, PARTITIONS).selectExpr("id", f"{_FIELDS} AS fields")
    value = f"concat(fields, repeat('x', {RECORD_BYTES} - 2 - length(fields)), '\"}}')"
    return rows.selectExpr(f"CAST(id % {PARTITIONS} AS INT) AS partition", f"{value} AS value")


def fill(bench: Bench) -> None:
    """Write the backlogs, and settle what every copy of them has to be."""
    small = Backlog(FEW, SMALL_ROWS * (_SMALL_WARM + SMALL_BATCHES))
    for topic, records in (*map(bench.backlog, (FULL, MIDDLE, SMALL)), small):
        bench.subject.create_topic(topic, PARTITIONS, "defaults")
        rows = record_rows(bench.spark, records)
        rows.write.format("kafka").options(**bench.options(WRITES["tuned"], topic=topic)).save()
        found = summarise(bench.read(_JUDGE, topic))
        expect(f"bytes of {topic}", (found.rows, found.value_bytes), (records, records * RECORD_BYTES))
        bench.written[topic] = summarise(selected(bench.spark, decoded(bench.read(_JUDGE, topic))))
        say(f"{topic}: {records:,} records written")


def decoded(rows: "DataFrame") -> "DataFrame":
    return rows.selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS fields").select("fields.*")


def selected(spark: "SparkSession", rows: "DataFrame") -> "DataFrame":
    """The pipeline's step and its sink, as a query."""
    rows.createOrReplaceTempView("orders")
    return spark.sql(SELECT).where(EXPECTATION).selectExpr("to_json(struct(*)) AS value")


def written_rows(records: int) -> int:
    """How many rows of a backlog reach a sink; backlogs are whole thousands."""
    return round(records * (_PAID_SHARE - _BROKEN_SHARE))


def save_pipeline(place: Path, bootstrap: str, source: str, sink: Mapping[str, Any], limit: int) -> Path:
    """The pipeline's file. Each place has a home of its own, so that a pipeline of one name begins anew."""
    expectation = {"name": "costs something", "that": EXPECTATION, "otherwise": "drop"}
    spec = {
        "name": "gross",
        "server": bootstrap,
        "every": "0s",
        "limit": limit,
        "sources": {"orders": {"topic": source, "format": "json", "schema": SCHEMA}},
        "steps": {"priced": {"sql": SELECT, "expect": [expectation]}},
        "sinks": {"out": sink},
    }
    file = place / "gross.yaml"
    file.write_text(json.dumps(spec))  # JSON is YAML
    return file


def make_run(spark: "SparkSession", file: Path, *, once: bool) -> "Run":
    from penstock.pipelines.home.directory import Home
    from penstock.pipelines.run.run import Run
    from penstock.pipelines.spec import load

    spec = load(file)
    return Run(spec, Home(file.parent / "home").pipeline(spec.name), spark, once=once)


def begin(run: "Run") -> None:
    """Raises:
    WrongRows: it does not start.
    """
    from penstock.pipelines.errors import PipelineError

    try:
        run.start()
    except PipelineError as error:
        raise WrongRows(f"a pipeline does not start: {error}") from error


def end(run: "Run") -> None:
    """Raises:
    WrongRows: it has not ended well, or not in time.
    """
    if not run.wait(_LIMIT_S):
        run.stop()
        raise WrongRows(f"a pipeline did not end in {_LIMIT_S:.0f} s: {run.status}")
    if run.error is not None:
        raise WrongRows(f"a pipeline failed: {run.error}")


def run_pipeline(spark: "SparkSession", file: Path) -> None:
    """What is there now, from the check of the file to the end."""
    run = make_run(spark, file, once=True)
    begin(run)
    end(run)


@dataclass(frozen=True, slots=True)
class Program:
    """From a topic to a topic without a pipeline, as `format` can."""

    format: str
    bootstrap: str
    source: str
    target: str
    checkpoint: str
    limit: int

    def start(self, spark: "SparkSession", *, once: bool) -> "StreamingQuery":
        broker = {"kafka.bootstrap.servers": self.bootstrap}
        options = {"subscribe": self.source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(self.limit)}
        reader = spark.readStream.format(self.format).options(**broker, **options)
        if self.format == "penstock":
            rows = reader.options(**{"value.format": "json", "value.schema": SCHEMA}).load()
        else:
            rows = decoded(reader.load())
        writer = selected(spark, rows).writeStream.format(self.format).options(**broker, topic=self.target)
        writer = writer.option("checkpointLocation", self.checkpoint)
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self, spark: "SparkSession") -> None:
        query = self.start(spark, once=True)
        if not query.awaitTermination(int(_LIMIT_S)):
            query.stop()
            raise WrongRows(f"a stream did not end in {_LIMIT_S:.0f} s: {query.status}")


def program(bench: Bench, name: str, source: str, target: str, place: Path, limit: int) -> Program:
    return Program(WAYS[name].format, bench.subject.bootstrap, source, target, str(place / "checkpoint"), limit)


def copy(bench: Bench, row: str, backlog: Backlog, number: int, ways: "Ways") -> Figures:
    """The backlog once by each way, each time into a new topic."""
    figures: Figures = {}
    for name, _way in turned(WAYS, number):
        with bench.new_topic("gross") as target, bench.new_directory("gross") as place:
            query = ways(bench, name, backlog.topic, target, place)
            megabytes = backlog.records * RECORD_BYTES // 1_000_000
            found = bench.time(row, name, backlog.records, query, megabytes=megabytes)
            expect(f"rows written by {name}", summarise(bench.read(_JUDGE, target)), bench.written[backlog.topic])
        put(figures, name, row, backlog.records, found)
    return figures


Ways = Callable[[Bench, str, str, str, Path], Callable[[], None]]
"""Makes a query by the name of a way, from a topic to a topic, with a place for what it keeps."""


def within(bench: Bench, name: str, source: str, target: str, place: Path) -> Callable[[], None]:
    """In the session that is there."""
    if name == "penstock":
        file = save_pipeline(place, bench.subject.bootstrap, source, {"topic": target}, bench.limit)
        return lambda: run_pipeline(bench.spark, file)
    made = program(bench, name, source, target, place, bench.limit)
    return lambda: made.run(bench.spark)


def cold(bench: Bench, name: str, source: str, target: str, place: Path) -> Callable[[], None]:
    """As a process of its own."""
    if name == "penstock":
        file = save_pipeline(place, bench.subject.bootstrap, source, {"topic": target}, bench.limit)
        words = [*penstock.command(), "pipeline", "run", str(file), "--once"]
        words += ["--home", str(place / "home"), "--master", MASTER]
    else:
        made = program(bench, name, source, target, place, bench.limit)
        words = [sys.executable, "-m", "bench.pipelines_queries", made.format, made.bootstrap, source, target]
        words += [made.checkpoint, str(made.limit)]

    def run() -> None:
        with (place / "output").open("wb") as output:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=_LIMIT_S, check=False
            )
        if done.returncode != 0:
            raise WrongRows(f"{' '.join(words)}: {(place / 'output').read_text(errors='replace')[-2000:]}")

    return run


def prepare_copies(bench: Bench) -> None:
    """A smaller backlog does to have the JVM's hot paths compiled, twice."""
    for number in range(2):
        copy(bench, "warming up", bench.backlog(MIDDLE), number, within)


def measure_copies(bench: Bench, number: int) -> Figures:
    return copy(bench, "copy", bench.backlog(FULL), number, within)


def measure_cold(bench: Bench, number: int) -> Figures:
    return copy(bench, "cold", bench.backlog(FULL), number, cold)


def prepare_sinks(bench: Bench) -> None:
    for kind in SINKS:
        write_sink(bench, kind, bench.backlog(SMALL))


def measure_sinks(bench: Bench, _number: int) -> Figures:
    figures: Figures = {}
    for kind, full in SINKS.items():
        backlog = bench.backlog(full)
        put(figures, "penstock", kind, backlog.records, write_sink(bench, kind, backlog))
    return figures


def write_sink(bench: Bench, kind: str, backlog: Backlog) -> Timing:
    with bench.new_directory(f"rows-{kind}") as place:
        target, table = str(place / "out"), place.name.replace("-", "_")
        keys = sink(bench, kind, target, table)
        file = save_pipeline(place, bench.subject.bootstrap, backlog.topic, keys, bench.limit)
        megabytes = backlog.records * RECORD_BYTES // 1_000_000
        query = functools.partial(run_pipeline, bench.spark, file)
        found = bench.time(kind, "pipeline", backlog.records, query, megabytes=megabytes)
        rows = written_rows(backlog.records)
        expect(f"rows in {kind}, with different ids", count_rows(bench, kind, target, table), (rows, rows))
    return found


def sink(bench: Bench, kind: str, target: str, table: str) -> dict[str, str]:
    if kind == "sqlite":
        return {"jdbc": f"jdbc:sqlite:{target}", "table": table}
    if kind == "postgres":
        assert bench.postgres is not None
        return {"jdbc": bench.postgres.url, "table": table}
    return {kind: target}


def count_rows(bench: Bench, kind: str, target: str, table: str) -> tuple[int, int]:
    """Rows and different ids, by a reader that is not ours."""
    query = f"SELECT count(*), count(DISTINCT id) FROM {table}"  # noqa: S608 - names of our own making
    if kind == "sqlite":
        with closing(sqlite3.connect(target)) as database:
            return tuple(database.execute(query).fetchone())
    if kind == "postgres":
        import psycopg

        assert bench.postgres is not None
        with psycopg.connect(bench.postgres.url) as connection:
            found = connection.execute(query).fetchone()
            connection.execute(f"DROP TABLE {table}")
            return tuple(found or ())
    if kind == "delta":
        from deltalake import DeltaTable

        files = DeltaTable(target).file_uris()
    else:
        files = [target]
    rows = bench.spark.read.parquet(*files).selectExpr("count(1)", "count(DISTINCT id)").first()
    return tuple(rows or ())


def measure_small(bench: Bench, number: int) -> Figures:
    """Micro-batches of twenty rows, one behind the other: what a micro-batch costs however little it has."""
    figures: Figures = {}
    for name, _way in turned(WAYS, number):
        with bench.new_topic("few-gross") as target, bench.new_directory("few") as place:
            figures[name] = follow_small(bench, name, target, place)
        say(f"small, {name}: {figures[name]['small']:.2f} micro-batches/s")
    return figures


def follow_small(bench: Bench, name: str, target: str, place: Path) -> dict[str, float]:
    """Stopped when nothing is left to read, so that no transaction stays open."""
    stop: Callable[[], object]
    failure: Callable[[], object]
    if name == "penstock":
        file = save_pipeline(place, bench.subject.bootstrap, FEW, {"topic": target}, SMALL_ROWS)
        run = make_run(bench.spark, file, once=False)
        checkpoint = place / "home" / "gross" / "checkpoint"
        begin(run)
        stop, failure = run.stop, lambda: run.error
    else:
        query = program(bench, name, FEW, target, place, SMALL_ROWS).start(bench.spark, once=False)
        checkpoint = place / "checkpoint"
        stop, failure = query.stop, query.exception
    try:
        wait_for_commits(checkpoint, _SMALL_WARM, failure)
        found = timed(lambda: wait_for_commits(checkpoint, _SMALL_WARM + SMALL_BATCHES, failure), bench.subject)
    finally:
        stop()
        if name == "penstock":
            end(run)
    expect(f"rows written by {name}", summarise(bench.read(_JUDGE, target)), bench.written[FEW])
    return {
        "small": SMALL_BATCHES / found.seconds,
        "small-ms": found.seconds / SMALL_BATCHES * 1e3,
        "small-cpu": found.spark_cpu_s / SMALL_BATCHES * 1e3,
        "small-broker": found.broker_cpu_s / SMALL_BATCHES * 1e3,
    }


def wait_for_commits(checkpoint: Path, batches: int, failure: Callable[[], object]) -> None:
    """Until so many micro-batches are in Spark's log of commits, which is the same for everybody."""
    deadline = time.monotonic() + _LIMIT_S
    while not (checkpoint / "commits" / str(batches - 1)).exists():
        if failure() is not None or time.monotonic() > deadline:
            raise WrongRows(f"micro-batch {batches - 1} of small ones does not come: {failure()}")
        time.sleep(0.005)


GROUPS = {
    "copy": Group(measure_copies, prepare_copies),
    "cold": Group(measure_cold, every=3),
    "sinks": Group(measure_sinks, prepare_sinks),
    "small": Group(measure_small),
}


def main(arguments: list[str]) -> None:
    """The program of a person who has no pipelines: FORMAT BOOTSTRAP SOURCE TARGET CHECKPOINT LIMIT."""
    from bench.spark import connector_jars
    from penstock.spark import session

    kind, bootstrap, source, target, checkpoint, limit = arguments
    made = Program(kind, bootstrap, source, target, checkpoint, int(limit))
    jars = connector_jars() if made.format == "kafka" else []
    spark = session("gross", MASTER, **({"spark.jars": ",".join(map(str, jars))} if jars else {}))
    made.run(spark)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
