"""The Iceberg sink, without Spark, over an SQLite catalog, read back by pyiceberg."""

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.contract import BatchId
from penstock.pipelines.sinks.parts import Task

from .lake import (
    EDGE,
    EMPTY,
    EVERY,
    FULL,
    PLAIN,
    QUERY,
    batches,
    columns,
    ids,
    in_order,
    put,
    sink_of,
    write_task,
    written,
)


def table(directory: Path, schema: Any = PLAIN, **options: Any) -> Any:
    sink = sink_of("iceberg", directory, iceberg="shop.orders", warehouse="house", **options)
    sink.prepare(schema)
    return sink


def catalog(directory: Path) -> Catalog:
    house = directory / "house"
    return load_catalog("penstock", type="sql", uri=f"sqlite:///{house}/catalog.db", warehouse=house.as_uri())


def there(directory: Path) -> Table:
    return catalog(directory).load_table("shop.orders")


def seen(directory: Path) -> list[int]:
    return sorted(there(directory).scan().to_arrow()["id"].to_pylist())


def test_rows_are_there_once_however_often_a_batch_is_written(tmp_path: Path) -> None:
    sink = table(tmp_path)
    assert put(sink, 0, ids(1, 2)) == 2
    assert put(sink, 0, ids(1, 2)) is None
    sink.close()
    again = table(tmp_path)
    assert put(again, 0, ids(1, 2)) is None
    assert put(again, 1, ids(3)) == 1
    assert seen(tmp_path) == [1, 2, 3]
    found = there(tmp_path)
    assert found.properties[f"penstock.mark.{QUERY}/lake"] == "1"
    snapshot = found.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert (snapshot.summary["penstock.query"], snapshot.summary["penstock.batch"]) == (QUERY, "1")


@pytest.mark.parametrize(
    "by", [(), ("day",), ("text", "flag"), ("day(at)", "hour(local)"), ("month(day)", "year(at)"), ("at",)]
)
def test_every_type_comes_back(tmp_path: Path, by: tuple[str, ...]) -> None:
    sink = table(tmp_path, EVERY, partition_by=by)
    rows = [FULL, EMPTY, EDGE]
    assert put(sink, 0, rows, EVERY) == 3
    read = there(tmp_path).scan().to_arrow().to_pylist()
    assert in_order(read, "double") == in_order(rows, "double")
    kinds = there(tmp_path).schema()
    assert [str(kinds.find_type(name)) for name in ("tiny", "small", "at", "local")] == [
        "int",
        "int",
        "timestamptz",
        "timestamp",
    ]


def test_partition_values_of_all_kinds_come_back(tmp_path: Path) -> None:
    sink = table(tmp_path, partition_by=("day",))
    odd = ["a/b=c d%é?#&+", "..", "x" * 300, "x" * 299 + "y", "mon", None, ""]
    rows = [row for number, day in enumerate(odd) for row in ids(number, day=day)]
    assert put(sink, 0, rows) == len(odd)
    assert [row["day"] for row in in_order(there(tmp_path).scan().to_arrow().to_pylist())] == odd
    for number, day in enumerate(odd):
        wanted = IsNull("day") if day is None else EqualTo("day", day)
        assert there(tmp_path).scan(row_filter=wanted).to_arrow()["id"].to_pylist() == [number]


@pytest.mark.parametrize(("unit", "partitions"), [("year", 2), ("month", 2), ("day", 2), ("hour", 4)])
def test_times_are_partitioned_before_and_after_1970(tmp_path: Path, unit: str, partitions: int) -> None:
    schema = columns(id="long", at="timestamp")
    sink = table(tmp_path, schema, partition_by=(f"{unit}(at)",))
    moments = [datetime(1969, 12, 31, 23, 30, tzinfo=UTC) + timedelta(minutes=17 * number) for number in range(12)]
    put(sink, 0, [{"id": number, "at": moment} for number, moment in enumerate(moments)], schema)
    found = there(tmp_path)
    spec = [(str(field.transform), field.name) for field in found.spec().fields]
    assert spec == [(unit, f"at_{unit}")]
    assert len(list(found.scan().plan_files())) == partitions
    for number, moment in enumerate(moments):
        scan = found.scan(row_filter=EqualTo("at", moment.isoformat()))
        assert scan.to_arrow()["id"].to_pylist() == [number]


def test_stats_hide_no_row(tmp_path: Path) -> None:
    schema = columns(id="long", text="string", money="decimal(9,2)", at="timestamp")
    sink = table(tmp_path, schema)
    moments = [datetime(2026, 1, 1, 0, 0, number, 999_600 + number, UTC) for number in range(4)]
    for number, moment in enumerate(moments):
        put(sink, number, [{"id": number, "text": "t" * (15 + number), "money": number, "at": moment}], schema)
    for number, moment in enumerate(moments):
        for wanted in (
            EqualTo("id", number),
            EqualTo("text", "t" * (15 + number)),
            EqualTo("money", f"{number}.00"),
            EqualTo("at", moment.isoformat()),
        ):
            assert there(tmp_path).scan(row_filter=wanted).to_arrow()["id"].to_pylist() == [number]
        assert len(list(there(tmp_path).scan(row_filter=EqualTo("id", number)).plan_files())) == 1


def test_files_that_were_not_committed_are_in_no_snapshot(tmp_path: Path) -> None:
    sink = table(tmp_path)
    identity = BatchId(QUERY, 0)
    write_task(sink, identity, batches(ids(1, 2)), Task(0, 0))
    assert seen(tmp_path) == []
    again = table(tmp_path)
    assert put(again, 0, ids(1, 2)) == 2
    write_task(sink, identity, batches(ids(1, 2)), Task(0, 1))
    assert seen(tmp_path) == [1, 2]


def test_two_drivers_of_one_batch_commit_one(tmp_path: Path) -> None:
    one, two = table(tmp_path), table(tmp_path)
    identity = BatchId(QUERY, 0)
    first, second = written(one, identity, ids(1)), written(two, identity, ids(1))
    assert not two.is_written(identity)
    one.commit(first, identity)
    two.commit(second, identity)
    assert seen(tmp_path) == [1]


def test_other_writers_do_not_hinder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)
    append = sink._append

    def others_first(*given: Any) -> None:
        there(tmp_path).append(pa.table({"id": [100], "day": ["x"]}))
        append(*given)

    monkeypatch.setattr(sink, "_append", others_first)
    for number in range(3):
        assert put(sink, number, ids(number)) == 1
    assert seen(tmp_path) == [0, 1, 2, 100, 100, 100]
    assert put(table(tmp_path), 2, ids(2)) is None


def test_manifests_are_merged_and_no_row_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)
    there(tmp_path).transaction().set_properties({"commit.manifest.min-count-to-merge": "3"}).commit_transaction()
    append = sink._append

    def others_first(*given: Any) -> None:
        there(tmp_path).append(pa.table({"id": [100], "day": ["x"]}))
        append(*given)

    for number in range(8):
        if number == 5:
            monkeypatch.setattr(sink, "_append", others_first)
        assert put(sink, number, ids(number)) == 1
    assert seen(tmp_path) == [*range(8), 100, 100, 100]
    snapshot = there(tmp_path).current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(there(tmp_path).io)) < 5


@pytest.mark.parametrize("error", [CommitStateUnknownException, CommitFailedException])
def test_a_commit_that_was_made_and_not_told_is_not_made_again(
    tmp_path: Path, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table(tmp_path)
    append = sink._append

    def silent(*given: Any) -> None:
        append(*given)
        raise error("the answer was lost")

    monkeypatch.setattr(sink, "_append", silent)
    assert put(sink, 0, ids(1)) == 1
    assert seen(tmp_path) == [1]


def test_a_commit_that_was_not_made_and_not_told_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)
    append = sink._append

    def lost(*given: Any) -> None:
        monkeypatch.setattr(sink, "_append", append)
        raise CommitStateUnknownException("the request was lost")

    monkeypatch.setattr(sink, "_append", lost)
    assert put(sink, 0, ids(1)) == 1
    assert seen(tmp_path) == [1]


def test_commits_that_fail_for_ever_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)

    def never(*given: Any) -> None:
        raise CommitFailedException("always somebody else")

    monkeypatch.setattr(sink, "_append", never)
    with pytest.raises(SinkUnavailable, match="always somebody else"):
        put(sink, 0, ids(1))


def test_files_that_a_full_disk_could_not_commit_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)

    def full(*given: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(sink, "_append", full)
        with pytest.raises(SinkUnavailable, match=r"shop\.orders in file:.*house: No space left on device"):
            put(sink, 0, ids(1))
    assert list(tmp_path.rglob("*.parquet")) == []
    append = sink._append

    def late(*given: Any) -> None:
        append(*given)
        raise OSError("No space left on device")

    monkeypatch.setattr(sink, "_append", late)
    with pytest.raises(SinkUnavailable):
        put(sink, 0, ids(1))
    assert put(sink, 0, ids(1)) is None
    assert seen(tmp_path) == [1]


def test_marks_outlast_snapshots(tmp_path: Path) -> None:
    sink = table(tmp_path)
    put(sink, 0, ids(1), query="old")
    for number in range(3):
        put(sink, number, ids(number))
    there(tmp_path).maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
    assert len(there(tmp_path).snapshots()) == 1
    assert put(table(tmp_path), 0, ids(1), query="old") is None


def test_a_batch_without_rows_is_no_snapshot(tmp_path: Path) -> None:
    sink = table(tmp_path)
    assert put(sink, 0, []) == 0
    assert there(tmp_path).current_snapshot() is None


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (columns(id="string", day="string"), r"column id is string in the rows and bigint in .*CAST\(id AS bigint\)"),
        (
            columns(id="long", day="string", more="date"),
            r"a column more \(date\) that the Iceberg table shop.orders lacks",
        ),
        (columns(id="long", day="interval"), "column day is of type interval"),
    ],
)
def test_columns_that_do_not_fit_are_told(tmp_path: Path, rows: Any, text: str) -> None:
    table(tmp_path)
    with pytest.raises(SinkError, match=text):
        table(tmp_path, rows)


def test_a_column_that_the_rows_lack_is_null_or_told(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    made = catalog(tmp_path)
    made.create_namespace("shop")
    made.create_table(
        "shop.orders", Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "day", StringType()))
    )
    narrow = columns(id="long")
    assert put(table(tmp_path, narrow), 0, [{"id": 1}], narrow) == 1
    assert there(tmp_path).scan().to_arrow().to_pylist() == [{"id": 1, "day": None}]
    with pytest.raises(SinkError, match=r"a column id \(bigint\) that must not be null, and the rows lack it"):
        table(tmp_path, columns(day="string"))
    with pytest.raises(SinkError, match="column id is null in a row"):
        put(table(tmp_path), 1, [{"id": None, "day": "x"}])


def test_partitioning_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    made = catalog(tmp_path)
    made.create_namespace("shop")
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", StringType()))
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"))
    made.create_table("shop.orders", schema, partition_spec=spec)
    with pytest.raises(SinkError, match=r"is partitioned by bucket\[4\] of id"):
        table(tmp_path)


def test_another_partitioning_is_told(tmp_path: Path) -> None:
    table(tmp_path, partition_by=("day",))
    with pytest.raises(
        SinkError, match=r"partition_by is \[\], and the Iceberg table shop.orders is partitioned by \[day\]"
    ):
        table(tmp_path)
    with pytest.raises(SinkError, match="partition_by names nix"):
        table(tmp_path, partition_by=("day(nix)",))


@pytest.mark.parametrize(("unit", "kind"), [("day", "long"), ("hour", "date")])
def test_a_unit_that_a_column_has_not_is_told(tmp_path: Path, unit: str, kind: str) -> None:
    with pytest.raises(SinkError, match=rf"partition_by names {unit}\(when\), and when is "):
        table(tmp_path, columns(id="long", when=kind), partition_by=(f"{unit}(when)",))


def test_a_table_that_may_not_be_made_is_told_and_a_probe_makes_nothing(tmp_path: Path) -> None:
    sink = sink_of("iceberg", tmp_path, iceberg="shop.orders", warehouse="house", create=False)
    with pytest.raises(SinkError, match="create: true"):
        sink.probe()
    sink_of("iceberg", tmp_path, iceberg="shop.orders", warehouse="house").probe()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SinkError, match="create: true"):
        sink.prepare(PLAIN)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"iceberg": "orders", "warehouse": "house"}, "not of the form namespace.table"),
        ({"iceberg": "shop.orders"}, "nothing says where the catalog is"),
        ({"iceberg": "shop.orders", "warehouse": "s3://bucket"}, "nothing says where the catalog is"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(SinkError, match=text):
        sink_of("iceberg", tmp_path, **options)


def test_a_catalog_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    own = {"name": "mine", "type": "sql", "uri": f"sqlite:///{tmp_path}/elsewhere/c.db"}
    sink = table(tmp_path, catalog=own)
    assert put(sink, 0, ids(1)) == 1
    found = load_catalog("mine", type="sql", uri=own["uri"], warehouse=(tmp_path / "house").as_uri())
    assert found.load_table("shop.orders").scan().to_arrow()["id"].to_pylist() == [1]


def test_a_catalog_that_is_away_is_waited_for(tmp_path: Path) -> None:
    rest = {"type": "rest", "uri": "http://127.0.0.1:9"}
    with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1"):
        sink_of("iceberg", tmp_path, iceberg="shop.orders", catalog=rest).probe()


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)
    with monkeypatch.context() as patched:

        def full(*given: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(os, "fsync", full)
        with pytest.raises(SinkUnavailable, match=f"{tmp_path}/house.*No space left on device"):
            put(sink, 0, ids(1))
    assert put(sink, 0, ids(1)) == 1
    assert seen(tmp_path) == [1]


def test_an_object_store_takes_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path, partition_by=("day",))
    monkeypatch.setattr("penstock.pipelines.sinks.iceberg.local_path", lambda text: None)
    assert type(sink.part_writer(BatchId(QUERY, 0)).storage).__name__ == "IcebergStorage"
    assert put(sink, 0, ids(1, 2)) == 2
    assert seen(tmp_path) == [1, 2]
