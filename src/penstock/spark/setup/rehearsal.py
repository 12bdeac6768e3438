"""What a first pipeline has Spark do, so that its JVM keeps those classes: `python -m` this module with a FILE.

What runs here decides which classes are in the archive, nothing else; the results are thrown away.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from penstock.spark.setup.sessions import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIELDS = "key STRING, value BINARY, at TIMESTAMP"


def main(archive: str) -> None:
    spark = session(
        "penstock-rehearsal", "local[2]", **{"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}
    )
    spark.dataSource.register(_Rows)
    with tempfile.TemporaryDirectory() as directory:
        _query(spark, Path(directory))
        _stream(spark, Path(directory))
    spark.stop()


def _query(spark: "SparkSession", directory: Path) -> None:
    files = str(directory / "table")
    spark.read.format(_Rows.name()).load().write.partitionBy("key").parquet(files)
    table = spark.read.parquet(files)
    table.createOrReplaceTempView("rehearsed")
    spark.sql("SELECT key, count(*) AS n, max(at) FROM rehearsed GROUP BY key ORDER BY n").collect()
    table.join(spark.range(3).selectExpr("CAST(id AS STRING) AS key"), "key").toPandas()
    table.selectExpr("from_json(CAST(value AS STRING), 'a INT').a", "key").write.json(str(directory / "json"))


def _stream(spark: "SparkSession", directory: Path) -> None:
    rows = spark.readStream.format(_Rows.name()).load()
    counted = rows.withWatermark("at", "1 minute").groupBy("key").count()
    _run(rows, "append", directory / "rows", lambda _batch, _number: None)
    _run(counted, "update", directory / "counts", None)


def _run(stream: "DataFrame", mode: str, checkpoint: Path, each_batch: Any) -> None:
    writer = (
        stream.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    )
    writer = writer.format("noop") if each_batch is None else writer.foreachBatch(each_batch)
    writer.start().awaitTermination()


def _batch() -> pa.RecordBatch:
    at = pa.array([0, 1], pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_pydict({"key": pa.array(["0", "1"]), "value": pa.array([b"{}", b"x"]), "at": at})


class _Rows(DataSource):
    """Two rows, read as Penstock's own source is."""

    @classmethod
    def name(cls) -> str:
        return "penstock-rehearsal"

    def schema(self) -> str:
        return _FIELDS

    def reader(self, schema: object) -> "_Reader":
        return _Reader()

    def streamReader(self, schema: object) -> "_StreamReader":  # noqa: N802 - Spark's name
        return _StreamReader()


class _Reader(DataSourceReader):
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        yield _batch()


class _StreamReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"at": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"at": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield _batch()


if __name__ == "__main__":
    main(sys.argv[1])
