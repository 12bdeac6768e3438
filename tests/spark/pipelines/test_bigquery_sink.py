"""The BigQuery sink in real Spark tasks, against the stand-in server (`tests/peers/bigquery.py`), not BigQuery."""

from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipelines.errors import SinkUnavailable
from penstock.pipelines.model import SinkSpec
from penstock.pipelines.sinks import kind_of, open_sink
from penstock.pipelines.sinks.contract import BatchId, Context, Rejected, Sink
from tests.peers.bigquery import BigQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METHODS = ("storage_write", "insert_all")
QUERY = "6d1c2a44-7f52-4a43-9f5f-2f0a2d6a7c11"
EVERY = """
    SELECT true AS flag, tinyint(-128) AS tiny, smallint(5) AS small, 7 AS number, id AS big, float(1.5) AS single,
    0.1D AS wide, CAST(12.345 AS DECIMAL(20,3)) AS money, CAST(1.000000000000000001 AS DECIMAL(38,18)) AS huge,
    concat('ä', id) AS text, X'00ff' AS raw, DATE'2026-11-16' AS day, TIMESTAMP'2026-11-16 23:59:59.999999Z' AS at,
    TIMESTAMP_NTZ'1969-12-31 00:00:00.000001' AS local, array('a', 'b') AS many, map('x', id) AS named,
    named_struct('a', 1, 'list', array(0.5D)) AS inside, CAST(null AS ARRAY<INT>) AS none
    FROM range(0, 200, 1, 4)
"""


@pytest.fixture
def server() -> Iterator[BigQuery]:
    with BigQuery() as started:
        started.datasets.add("shop.sales")
        yield started


@pytest.fixture
def sink(server: BigQuery, tmp_path: Path) -> Iterator[Callable[..., Sink]]:
    made: list[Sink] = []

    def make(**options: Any) -> Sink:
        defaults = {key.name: key.default for key in kind_of("bigquery").KEYS}
        values = (
            defaults | {"bigquery": "shop.sales.orders", "create": True, "retry_from": 0.0} | server.options | options
        )
        context = Context("revenue", "", {}, tmp_path, tmp_path / "state")
        made.append(open_sink(SinkSpec("warehouse", "bigquery", "orders", values), context))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("method", METHODS)
def test_every_type_from_several_tasks(
    spark: "SparkSession", server: BigQuery, sink: Callable[..., Sink], method: str
) -> None:
    rows = spark.sql(EVERY)
    made = sink(method=method, batch_rows=30)
    made.probe()
    made.prepare(rows.schema)
    identity = BatchId(QUERY, 0)
    assert not made.is_written(identity)
    assert made.write(rows, identity, lambda _: None) == 200
    assert made.is_written(identity)
    got = sorted(server.tables["shop.sales.orders"].rows, key=lambda row: row["big"])
    expected = [row.asDict(recursive=True) for row in rows.orderBy("big").collect()]
    assert len(got) == 200
    for ours, theirs in zip(got, expected, strict=True):
        pairs = [{"key": key, "value": value} for key, value in theirs["named"].items()]
        at = theirs["at"].astimezone(UTC)  # Spark hands times to Python without a zone, in the local one
        assert ours == theirs | {"named": pairs, "none": [], "at": at}
    if method == "storage_write":
        assert len(server.streams) == 4
        assert all(each.committed for each in server.streams.values())


def test_equal_rows_of_several_tasks_are_all_there(
    spark: "SparkSession", server: BigQuery, sink: Callable[..., Sink]
) -> None:
    rows = spark.range(0, 40, 1, 4).selectExpr("'same' AS name")
    assert sink(method="insert_all").write(rows, BatchId(QUERY, 0), lambda _: None) == 40
    assert len(server.tables["shop.sales.orders"].rows) == 40


@pytest.mark.parametrize("method", METHODS)
def test_refused_rows_come_back_to_the_driver_and_the_others_are_written(
    spark: "SparkSession", server: BigQuery, sink: Callable[..., Sink], method: str
) -> None:
    server.refuse = lambda row: "no sevens" if row["id"] % 7 == 0 else None
    letters: list[Rejected] = []
    rows = spark.range(0, 50, 1, 2)
    assert sink(method=method).write(rows, BatchId(QUERY, 0), letters.extend) == 42
    assert sorted(each.row for each in letters) == sorted(b'{"id":%d}' % number for number in range(0, 50, 7))
    assert {each.reason for each in letters} == {"no sevens"}
    assert len(server.tables["shop.sales.orders"].rows) == 42


def test_trouble_in_a_task_reaches_the_driver_as_what_it_is_and_the_batch_can_be_written_again(
    spark: "SparkSession", server: BigQuery, sink: Callable[..., Sink]
) -> None:
    made = sink(retries=0, streams=1)
    rows = spark.range(0, 10, 1, 4)
    made.prepare(rows.schema)
    server.fail("AppendRows", 1, status="UNAVAILABLE")
    with pytest.raises(SinkUnavailable, match="sink warehouse: writing to table"):
        made.write(rows, BatchId(QUERY, 0), lambda _: None)
    assert server.tables["shop.sales.orders"].rows == []
    assert not made.is_written(BatchId(QUERY, 0))
    assert made.write(rows, BatchId(QUERY, 0), lambda _: None) == 10
    assert len(server.tables["shop.sales.orders"].rows) == 10
    assert len(server.streams) == 2  # one per try: `streams: 1` bounds the tasks


def test_a_streaming_query_whose_driver_dies_behind_the_commit(
    spark: "SparkSession", server: BigQuery, sink: Callable[..., Sink], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1}\n{"id": 2}\n')
    deaths = [True]

    def once_each(rows: Any, batch: int) -> None:
        made = sink()
        identity = BatchId(QUERY, batch)
        if made.is_written(identity):
            return
        if deaths:
            server.fail("BatchCommitWriteStreams", 1, after=True)
            deaths.clear()
            sink(retries=0).write(rows, identity, lambda _: None)
        made.write(rows, identity, lambda _: None)

    def run() -> None:
        source = spark.readStream.schema("id BIGINT").json(str(tmp_path / "in"))
        writing = source.writeStream.foreachBatch(once_each).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writing.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="committing 1 streams"):
        run()
    (tmp_path / "in" / "b.json").write_text('{"id": 3}\n')
    run()
    assert sorted(row["id"] for row in server.tables["shop.sales.orders"].rows) == [1, 2, 3]
