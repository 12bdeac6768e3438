"""Parquet, Delta and Iceberg sinks under a real session: rows of every type, repeated batches, streams that fail."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from penstock.pipelines.model import SinkSpec
from penstock.pipelines.sinks import kind_of, open_sink, parquet
from penstock.pipelines.sinks.contract import BatchId, Context, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("parquet", "delta", "iceberg")
EVERY = """
    SELECT id, id % 2 = 0 AS flag, CAST(id AS tinyint) AS tiny, CAST(id AS smallint) AS small,
        CAST(id AS int) AS number, CAST(id AS float) AS single,
        id / 3 AS double, CAST(id / 7 AS decimal(20, 3)) AS money, concat('ä', id) AS text,
        CAST('x' AS binary) AS raw, date_add(DATE '2026-11-16', CAST(id % 3 AS int)) AS day,
        TIMESTAMP '2026-11-16 23:59:59.123456' AS at, TIMESTAMP_NTZ '2026-11-16 23:59:59.123456' AS local,
        array(id, NULL) AS many, map('k', id) AS named, struct(id AS a, TIMESTAMP '2026-01-01 00:00:00' AS t) AS inner,
        CAST(NULL AS string) AS nothing
    FROM range({start}, {end}, 1, 3)
"""


def opened(kind: str, directory: Path, **options: Any) -> Sink:
    own = {"parquet": "table", "delta": "table", "iceberg": "shop.orders"}[kind]
    table = {key.name: key.default for key in kind_of(kind).KEYS}
    given = {**table, kind: own, **({"warehouse": "house"} if kind == "iceberg" else {}), **options}
    return open_sink(SinkSpec("lake", kind, "clean", given), Context("revenue", "", {}, directory, directory / "state"))


def read(kind: str, directory: Path) -> list[dict[str, Any]]:
    if kind == "parquet":
        found = ds.dataset(directory / "table", format="parquet", partitioning="hive").to_table()
    elif kind == "delta":
        found = DeltaTable(directory / "table").to_pyarrow_table()
    else:
        house = directory / "house"
        catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{house}/catalog.db", warehouse=house.as_uri())
        found = catalog.load_table("shop.orders").scan().to_arrow()
    return sorted(found.to_pylist(), key=lambda row: row["id"])


def no_reject(rows: Any) -> None:
    raise AssertionError(f"rejected {rows}")


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_through_tasks_and_a_repeated_batch(kind: str, spark: "SparkSession", tmp_path: Path) -> None:
    sink = opened(kind, tmp_path)
    frame = spark.sql(EVERY.format(start=0, end=30))
    sink.probe()
    sink.prepare(frame.schema)
    for batch, repeats in ((0, 2), (1, 1)):
        rows = spark.sql(EVERY.format(start=30 * batch, end=30 * batch + 30))
        for _ in range(repeats):
            if not sink.is_written(BatchId("query", batch)):
                assert sink.write(rows, BatchId("query", batch), no_reject) == 30
    sink.close()
    expected = spark.sql(EVERY.format(start=0, end=60)).toArrow().to_pylist()
    assert read(kind, tmp_path) == sorted(expected, key=lambda row: row["id"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_fails_after_its_commit_goes_on(kind: str, spark: "SparkSession", tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    spark.range(0, 300, 1, 3).selectExpr("id", "CAST(id % 4 AS int) AS day").write.parquet(str(rows))
    failed: list[int] = []

    def run(write: Callable[["DataFrame", BatchId], None]) -> None:
        def each(batch: "DataFrame", number: int) -> None:
            query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            write(batch, BatchId(str(query), number))

        stream = spark.readStream.schema("id BIGINT, day INT").option("maxFilesPerTrigger", 1).parquet(str(rows))
        started = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "checkpoint"))
        started.trigger(availableNow=True).start().awaitTermination()

    def once(batch: "DataFrame", identity: BatchId) -> None:
        sink = opened(kind, tmp_path, partition_by=("day",))
        sink.prepare(batch.schema)
        if not sink.is_written(identity):
            sink.write(batch, identity, no_reject)
        sink.close()
        if identity.batch == 1 and not failed:
            failed.append(identity.batch)
            raise RuntimeError("the driver dies after the commit")

    with pytest.raises(Exception, match="the driver dies after the commit"):
        run(once)
    run(once)
    assert failed == [1]
    assert [(row["id"], row["day"]) for row in read(kind, tmp_path)] == [(number, number % 4) for number in range(300)]


def test_spark_reads_the_directory_and_the_manifest(spark: "SparkSession", tmp_path: Path) -> None:
    sink = opened("parquet", tmp_path, partition_by=("day", "nothing"), compression="snappy", file_size=1024)
    frame = spark.sql(EVERY.format(start=0, end=30))
    sink.prepare(frame.schema)
    sink.write(frame, BatchId("query", 0), no_reject)
    table = tmp_path / "table"
    (table / "_penstock" / "staging" / "part-left-behind.parquet").write_bytes(b"half a file")
    by_directory = spark.read.parquet(str(table))
    assert by_directory.where("day = DATE '2026-11-17' AND nothing IS NULL").count() == 10
    expected = frame.orderBy("id").select("id", "local", "at", "named", "day").collect()
    assert by_directory.orderBy("id").select("id", "local", "at", "named", "day").collect() == expected
    by_manifest = spark.read.option("basePath", str(table)).parquet(*parquet.files(table))
    assert by_manifest.count() == 30
