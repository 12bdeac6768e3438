"""What is measured in Spark with Penstock's source and with Spark's Kafka connector: reads, writes, streams, decoding.

Every query is timed as a whole, as its user sees it: planning, tasks, commit. What came out of it is looked at after
the clock has stopped; a row lost, doubled or changed ends the run instead of giving a figure.
"""

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.progress import say
from bench.scale import settle
from bench.spark_clock import Timing, timed
from bench.subject import Subject

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
TRIGGER_OFFSETS = 500_000
_STREAM_LIMIT_S = 600
_MEGABYTE = 1_000_000
_TUNED_READ = {
    "kafka.max.partition.fetch.bytes": str(8 * _MEGABYTE),
    "kafka.fetch.max.bytes": str(100 * _MEGABYTE),
    "kafka.max.poll.records": "5000",
    "kafka.receive.buffer.bytes": str(_MEGABYTE),
}
_TUNED_WRITE = {"kafka.batch.size": str(_MEGABYTE), "kafka.linger.ms": "20"}
_JSON_SCHEMA = "id BIGINT, customer STRING, amount DOUBLE, item STRING, paid BOOLEAN"
_JSON_ROW = """to_json(named_struct('id', id, 'customer', concat('customer-', lpad(id % 100000, 8, '0')),
    'amount', (id % 100000) / 8.0, 'item', 'a thing like others', 'paid', id % 3 = 0))"""
_JSON_SUMS = (
    *("count(id)", "sum(id)", "sum(amount)", "sum(crc32(CAST(customer AS BINARY)))"),
    *("sum(crc32(CAST(item AS BINARY)))", "count_if(paid)", "sum(offset)"),
)

Figures = dict[str, dict[str, float]]
"""By subject and row."""


class WrongRows(Exception):
    """A query gave or wrote other rows than it should."""


class Load(NamedTuple):
    """Rows of one size; `records` are those of this run."""

    name: str
    title: str
    records: int
    record_bytes: int

    @property
    def megabytes(self) -> int:
        return self.records * self.record_bytes // _MEGABYTE


LOADS = (Load("100", "100 B", 2_000_000, 100), Load("1k", "1 KB", 1_000_000, 1_000))
JSON_LOAD = Load("json", "JSON", 1_000_000, 100)


class Way(NamedTuple):
    """How a query reads or writes: the format's name and its options beside address and topic."""

    format: str
    options: Mapping[str, str]


READS = {
    "penstock": Way("penstock", {}),
    "connector": Way("kafka", {}),
    "tuned": Way("kafka", _TUNED_READ),
    "direct": Way("penstock", {}),  # with the path of the run's data
    "value": Way("penstock", {"columns": "value"}),
}
WRITES = {
    "penstock": Way("penstock", {}),
    "connector": Way("kafka", {}),
    "tuned": Way("kafka", _TUNED_WRITE),
    "exactly-once": Way("penstock", {"delivery": "exactly-once"}),
}
STREAMS = {"penstock": Way("penstock", {}), "connector": Way("kafka", {})}
# Spark's connector, as what Penstock's writer has written is for another reader to judge.
_JUDGE = Way("kafka", {**_TUNED_READ, "kafka.isolation.level": "read_committed"})


class Summary(NamedTuple):
    """What is compared of two sets of rows; `places` counts different (partition, offset)."""

    rows: int
    value_bytes: int
    checksum: int
    places: int | None = None


@dataclass(slots=True)
class Workbench:
    """The one broker, the one session and the data of a run."""

    spark: "SparkSession"
    subject: Subject
    directory: Path
    scale: float
    written: dict[str, Summary] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def scaled(self, load: Load) -> Load:
        """At least a row for each partition."""
        return load._replace(records=max(PARTITIONS, int(load.records * self.scale)))

    def loads(self) -> list[Load]:
        return [self.scaled(load) for load in LOADS]

    def options(self, way: Way, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.subject.bootstrap, **way.options, **more}

    def read(self, way: Way, topic: str, **more: str) -> "DataFrame":
        return self.spark.read.format(way.format).options(**self.options(way, subscribe=topic, **more)).load()

    def time(self, row: str, subject: str, rows: int, query: Callable[[], None], *, megabytes: int = 0) -> Timing:
        """Run a query by the clock, after the disk is quiet and what other queries left in the heap is gone."""
        settle(self.directory, megabytes)
        jvm: Any = self.spark._jvm
        jvm.System.gc()
        found = timed(query, self.subject)
        say(f"{row}, {subject}: {rows / found.seconds / 1000:,.0f} k rows/s in {found.seconds:.2f} s")
        return found

    @contextlib.contextmanager
    def new_topic(self, stem: str) -> Iterator[str]:
        topic = f"{stem}-{next(self._numbers)}"
        self.subject.create_topic(topic, PARTITIONS, "defaults")
        yield topic
        self.subject.delete_topic(topic)

    @contextlib.contextmanager
    def new_directory(self, stem: str) -> Iterator[Path]:
        made = self.directory / f"{stem}-{next(self._numbers)}"
        made.mkdir()
        yield made
        shutil.rmtree(made)


def summarise(rows: "DataFrame", *, places: bool = False) -> Summary:
    """Sums of the values' lengths and checksums do not depend on the order of the rows."""
    wanted = ["count(1)", "coalesce(sum(length(value)), 0)", "coalesce(sum(crc32(value)), 0)"]
    # A bigint for the pair: far cheaper to tell apart than a struct. Offsets here need fewer than 48 bits.
    wanted += ["count(DISTINCT shiftleft(CAST(partition AS BIGINT), 48) + offset)"] if places else []
    found = rows.selectExpr(*wanted).first()
    assert found is not None
    return Summary(*found)


def expect(what: str, found: object, wanted: object) -> None:
    """Raises:
    WrongRows: they differ.
    """
    if found != wanted:
        raise WrongRows(f"{what}: {found}, but it should be {wanted}")


def turned(ways: Mapping[str, Way], number: int) -> Iterator[tuple[str, Way]]:
    """Each way once; every round begins with another one."""
    names = list(ways)
    start = number % len(names)
    for name in names[start:] + names[:start]:
        yield name, ways[name]


def put(figures: Figures, subject: str, row: str, rows: int, timing: Timing) -> None:
    """Thousand rows a second; microseconds of CPU a row."""
    found = figures.setdefault(subject, {})
    found[row] = rows / timing.seconds / 1e3
    found[f"{row}-cpu"] = timing.spark_cpu_s / rows * 1e6
    found[f"{row}-broker"] = timing.broker_cpu_s / rows * 1e6


def read_with(bench: Workbench, name: str, topic: str) -> "DataFrame":
    more = {"path": str(bench.subject.directory / "data")} if name == "direct" else {}
    return bench.read(READS[name], topic, **more)


def check_reads(bench: Workbench) -> None:
    """All readers see the same rows: as many as were written, in as many places, with the same bytes."""
    for load in bench.loads():
        wanted: Summary | None = None
        for name in READS:
            has_places = name != "value"
            found = summarise(read_with(bench, name, f"sp{load.name}"), places=has_places)
            if wanted is None:
                size = load.records * load.record_bytes
                wanted = Summary(load.records, size, found.checksum, load.records)
            expect(f"rows of sp{load.name} by {name}", found, wanted if has_places else wanted._replace(places=None))
            bench.written[f"sp{load.name}"] = wanted._replace(places=None)
        say(f"sp{load.name}: {len(READS)} readers see the same {load.records:,} rows")


def measure_reads(bench: Workbench, number: int) -> Figures:
    figures: Figures = {}
    for load in bench.loads():
        for name, _way in turned(READS, number):
            rows = read_with(bench, name, f"sp{load.name}")
            row = f"read-{load.name}"
            found = bench.time(row, name, load.records, rows.write.format("noop").mode("overwrite").save)
            put(figures, name, row, load.records, found)
    return figures


def made_rows(spark: "SparkSession", load: Load) -> "DataFrame":
    """Keys and values that are all different; four slices, as a topic of four partitions would give."""
    return spark.range(0, load.records, 1, PARTITIONS).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key",
        f"CAST(substr(repeat(sha2(CAST(id AS STRING), 256), {load.record_bytes // 64 + 1}), 1, {load.record_bytes}) "
        "AS BINARY) AS value",
    )


def measure_writes(bench: Workbench, number: int) -> Figures:
    figures: Figures = {}
    for load in bench.loads():
        rows = made_rows(bench.spark, load).cache()
        try:
            wanted = summarise(rows)  # and now they are in memory
            for name, way in turned(WRITES, number):
                put(figures, name, f"write-{load.name}", load.records, _write(bench, load, name, way, rows, wanted))
        finally:
            rows.unpersist(blocking=True)
    return figures


def _write(bench: Workbench, load: Load, name: str, way: Way, rows: "DataFrame", wanted: Summary) -> Timing:
    row = f"write-{load.name}"
    with bench.new_topic(row) as topic:
        writer = rows.write.format(way.format).mode("append").options(**bench.options(way, topic=topic))
        found = bench.time(row, name, load.records, writer.save, megabytes=load.megabytes)
        expect(f"rows written by {name}", summarise(bench.read(_JUDGE, topic)), wanted)
    return found


def measure_parquet(bench: Workbench, number: int) -> Figures:
    figures: Figures = {}
    for load in bench.loads():
        row, topic = f"parquet-{load.name}", f"sp{load.name}"
        for name, way in turned(STREAMS, number):
            with bench.new_directory(row) as place:
                target = place / "rows"
                writer = _stream(bench, way, topic).writeStream.format("parquet").option("path", str(target))
                query = _ending(writer, place)
                found = bench.time(row, name, load.records, query, megabytes=load.megabytes)
                expect(
                    f"rows in Parquet by {name}", summarise(bench.spark.read.parquet(str(target))), _of(bench, topic)
                )
            put(figures, name, row, load.records, found)
    return figures


def measure_copies(bench: Workbench, number: int) -> Figures:
    """From topic to topic: Penstock exactly once, the connector as it can."""
    figures: Figures = {}
    load = bench.loads()[0]
    for name, way in turned(STREAMS, number):
        with bench.new_topic("copy") as topic, bench.new_directory("copy") as place:
            rows = _stream(bench, way, f"sp{load.name}").select("key", "value")
            writer = rows.writeStream.format(way.format).options(**bench.options(way, topic=topic))
            query = _ending(writer, place)
            found = bench.time("copy", name, load.records, query, megabytes=load.megabytes)
            expect(f"rows copied by {name}", summarise(bench.read(_JUDGE, topic)), _of(bench, f"sp{load.name}"))
        put(figures, name, "copy", load.records, found)
    return figures


def _stream(bench: Workbench, way: Way, topic: str) -> "DataFrame":
    limit = max(1, int(TRIGGER_OFFSETS * bench.scale))
    more = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(limit)}
    return bench.spark.readStream.format(way.format).options(**bench.options(way, **more)).load()


def _ending(writer: Any, place: Path) -> Callable[[], None]:
    """The query from its start until it has read what is there."""

    def run() -> None:
        ready = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
        query = ready.start()
        if not query.awaitTermination(_STREAM_LIMIT_S):
            query.stop()
            raise WrongRows(f"a stream did not end in {_STREAM_LIMIT_S} s: {query.status}")

    return run


def _of(bench: Workbench, topic: str) -> Summary:
    """What the topic holds, by the connector, if the check of the readers has not told."""
    if topic not in bench.written:
        bench.written[topic] = summarise(bench.read(_JUDGE, topic))
    return bench.written[topic]


def fill_json(bench: Workbench) -> None:
    load = bench.scaled(JSON_LOAD)
    bench.subject.create_topic("json", PARTITIONS, "defaults")
    rows = bench.spark.range(0, load.records, 1, PARTITIONS).selectExpr(f"{_JSON_ROW} AS value")
    rows.write.format("kafka").options(**bench.options(WRITES["tuned"], topic="json")).save()
    sums = [tuple(decoded(bench, name).selectExpr(*_JSON_SUMS).first() or ()) for name in STREAMS]
    expect("rows decoded by the connector", sums[1], sums[0])
    expect("rows decoded", sums[0][0], load.records)


def decoded(bench: Workbench, name: str) -> "DataFrame":
    """The fields, and where the record was: in the source, or by Spark's from_json."""
    if name == "penstock":
        more = {"value.format": "json", "value.schema": _JSON_SCHEMA, "columns": "partition,offset"}
        return bench.read(STREAMS[name], "json", **more).drop("_error")
    rows = bench.read(STREAMS[name], "json")
    fields = f"from_json(CAST(value AS STRING), '{_JSON_SCHEMA}') AS fields"
    return rows.selectExpr("partition", "offset", fields).select("partition", "offset", "fields.*")


def measure_json(bench: Workbench, number: int) -> Figures:
    figures: Figures = {}
    load = bench.scaled(JSON_LOAD)
    for name, _way in turned(STREAMS, number):
        rows = decoded(bench, name)
        found = bench.time("json", name, load.records, rows.write.format("noop").mode("overwrite").save)
        put(figures, name, "json", load.records, found)
    return figures


class Group(NamedTuple):
    """Measured in every `every`-th round, the first included; `prepare` comes once, before anything is measured."""

    measure: Callable[[Any, int], Figures]
    prepare: Callable[[Any], None] | None = None
    every: int = 1

    def is_due(self, round_number: int) -> bool:
        return round_number % self.every == 0


GROUPS = {
    "read": Group(measure_reads, check_reads),
    "write": Group(measure_writes),
    "parquet": Group(measure_parquet),
    "copy": Group(measure_copies, every=3),
    "json": Group(measure_json, fill_json, every=3),
}
