"""The `jdbc` sink with Spark's own tasks, against PostgreSQL and SQLite."""

import contextlib
import json
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.model import SinkSpec
from penstock.pipelines.sinks.contract import BatchId, Context, Rejected, Sink
from penstock.pipelines.sinks.jdbc import open_sink
from tests.peers import postgres
from tests.peers.ports import free_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    started = postgres.start()
    yield started
    started.stop()


def opened(url: str, table: str, directory: Path, **keys: Any) -> Sink:
    spec = SinkSpec("shop", "jdbc", "rows", {"jdbc": url, "table": table, **keys})
    return open_sink(spec, Context("revenue", "", {}, directory, directory))


@pytest.fixture
def first() -> BatchId:
    """The first batch of a query of its own."""
    return BatchId(str(uuid.uuid4()), 0)


class Letters:
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def __call__(self, rejected: Sequence[Rejected]) -> None:
        self.rows += [json.loads(each.row) for each in rejected]


ALL_TYPES = """
SELECT true AS b, 1Y AS t, 2S AS s, 3 AS i, 4L AS l, 1.5F AS f, double('NaN') AS d, 1.23BD AS m, 'ä\\n\\\\.' AS c,
       X'00ff' AS x, DATE'2024-02-29' AS day, TIMESTAMP'2024-07-01 02:03:04.000005+02:00' AS at,
       TIMESTAMP_NTZ'2024-07-01 02:03:04' AS wall, array(1, null) AS a, map('k', 1.5D) AS mp,
       named_struct('n', 1, 'none', null) AS o
"""


def test_all_types(spark: "SparkSession", server: postgres.Postgres, tmp_path: Path, first: BatchId) -> None:
    rows = spark.sql(ALL_TYPES.replace("'none', null", "'none', CAST(null AS INT)"))
    letters = Letters()
    sink = opened(server.url, "typed", tmp_path)
    sink.prepare(rows.schema)
    assert sink.write(rows, first, letters) == 1
    with psycopg.connect(server.url) as look:
        asked = "SELECT row_to_json(typed)::text, x, at = '2024-07-01T00:03:04.000005Z' FROM typed"
        (got,) = look.execute(asked).fetchall()
    row = json.loads(got[0])
    assert (row["f"], row["d"], row["m"], row["c"]) == (1.5, "NaN", 1.23, "ä\n\\.")
    assert (row["day"], row["wall"]) == ("2024-02-29", "2024-07-01T02:03:04")
    assert (row["a"], row["mp"], row["o"]) == ([1, None], {"k": 1.5}, {"n": 1, "none": None})
    assert got[1:] == (b"\x00\xff", True)
    assert letters.rows == []


def test_changes_are_followed(spark: "SparkSession", server: postgres.Postgres, tmp_path: Path, first: BatchId) -> None:
    """Upserts, deletes by a predicate and refused rows, from several partitions."""
    with psycopg.connect(server.url, autocommit=True) as look:
        look.execute("CREATE TABLE followed (id bigint PRIMARY KEY, v text CHECK (v <> 'v7'))")
        sink = opened(
            server.url,
            "public.followed",
            tmp_path,
            mode="upsert",
            keys=["id"],
            order_by=["lsn"],
            delete_when="op = 'd'",
            without=["op", "lsn"],
        )
        rows = spark.range(40, numPartitions=4).selectExpr(
            "id % 20 AS id", "concat('v', id) AS v", "id AS lsn", "IF(id IN (3, 25), 'd', 'c') AS op"
        )
        letters = Letters()
        sink.prepare(rows.schema)
        assert not sink.is_written(first)
        # 20 keys; the last change of 5 deletes what is not there, that of 3 (lsn 23) does not.
        assert sink.write(rows, first, letters) == 19
        assert sink.is_written(first)
        found: dict[int, str] = dict(look.execute("SELECT id, v FROM followed ORDER BY id").fetchall())
        assert found == {number: f"v{number + 20}" for number in range(20) if number != 5}
        changes = [(7, "v7", 99, "c"), (8, None, 99, "d")]
        again = spark.createDataFrame(changes, "id bigint, v string, lsn bigint, op string")
        assert sink.write(again, BatchId(first.query, 1), letters) == 1
        assert letters.rows == [{"id": 7, "v": "v7"}]
        assert look.execute("SELECT count(*) FROM followed").fetchone() == (18,)


def test_sqlite_file(spark: "SparkSession", tmp_path: Path, first: BatchId) -> None:
    rows = spark.range(1000, numPartitions=3).selectExpr("id", "id % 2 = 0 AS gone", "array(id) AS a")
    sink = opened("sqlite:shop.db", "items", tmp_path, mode="upsert", keys=["id"], delete_when="gone", batch_rows=100)
    sink.prepare(rows.schema)
    assert sink.write(rows, first, Letters()) == 500
    assert sink.is_written(first)
    assert [each.name for each in tmp_path.iterdir()] == ["shop.db"]
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as look:
        assert look.execute("SELECT count(*), sum(id), min(a) FROM items").fetchone() == (500, 250_000, "[101]")


def test_server_that_is_away_for_tasks_alone(
    spark: "SparkSession",
    server: postgres.Postgres,
    tmp_path: Path,
    first: BatchId,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a task meets comes back as what it is, not as a failed Spark job."""
    rows = spark.range(20_000, numPartitions=2).selectExpr("id")
    sink = opened(server.url, "away", tmp_path)
    sink.prepare(rows.schema)
    address = sink._address  # type: ignore[attr-defined]
    (port,) = free_ports(1)
    monkeypatch.setitem(address.parameters, "port", str(port))
    with pytest.raises(SinkUnavailable, match="refused"):
        sink.write(rows, first, Letters())
    monkeypatch.undo()
    assert sink.write(rows, first, Letters()) == 20_000


def test_predicate_that_is_none(spark: "SparkSession", tmp_path: Path, first: BatchId) -> None:
    rows = spark.range(1)
    sink = opened("sqlite:shop.db", "items", tmp_path, mode="upsert", keys=["id"], delete_when="op = 'd'")
    sink.prepare(rows.schema)
    with pytest.raises(SinkError, match=r"delete_when: op = 'd': .*op"):
        sink.write(rows, first, Letters())
