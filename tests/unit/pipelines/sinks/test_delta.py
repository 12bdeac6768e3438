"""The Delta sink, without Spark, read back by deltalake's own readers."""

import errno
import json
import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, Schema, TableFeatures, write_deltalake
from deltalake.exceptions import CommitFailedError

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.contract import BatchId
from penstock.pipelines.sinks.delta_stats import delta_stats
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
    sink = sink_of("delta", directory, delta="table", **options)
    sink.prepare(schema)
    return sink


def seen(directory: Path) -> list[int]:
    return sorted(DeltaTable(directory / "table").to_pyarrow_table()["id"].to_pylist())


def asked(directory: Path, query: str) -> list[dict[str, Any]]:
    """What deltalake's query engine answers."""
    answer = QueryBuilder().register("t", DeltaTable(directory / "table")).execute(query)
    return pa.table(answer).to_pylist()


def test_rows_are_there_once_however_often_a_batch_is_written(tmp_path: Path) -> None:
    sink = table(tmp_path)
    assert put(sink, 0, ids(1, 2)) == 2
    assert put(sink, 0, ids(1, 2)) is None
    again = table(tmp_path)
    assert put(again, 0, ids(1, 2)) is None
    assert put(again, 1, ids(3)) == 1
    assert seen(tmp_path) == [1, 2, 3]
    assert DeltaTable(tmp_path / "table").transaction_version(f"{QUERY}/lake") == 1


@pytest.mark.parametrize("by", [(), ("day",), ("at",), ("local",), ("flag", "tiny", "number")])
def test_every_type_comes_back(tmp_path: Path, by: tuple[str, ...]) -> None:
    sink = table(tmp_path, EVERY, partition_by=by)
    rows = [FULL, EMPTY, EDGE]
    if "local" in by:
        rows = rows[:2]  # year 1 as a partition is beyond deltalake's reader
    assert put(sink, 0, rows, EVERY) == len(rows)
    read = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert in_order(read, "double") == in_order(rows, "double")
    (counted,) = asked(tmp_path, "SELECT count(*) AS n, max(big) AS big FROM t WHERE flag")
    assert counted == {"n": 1, "big": 2**63 - 1}


def test_partition_values_of_all_kinds_come_back(tmp_path: Path) -> None:
    sink = table(tmp_path, partition_by=("day",))
    odd = ["a/b=c d%é?#&+", "..", "x" * 300, "mon", None, ""]
    rows = [row for number, day in enumerate(odd) for row in ids(number, day=day)]
    assert put(sink, 0, rows) == len(odd)
    read = in_order(DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist())
    assert [row["day"] for row in read] == [*odd[:-1], None]
    assert asked(tmp_path, "SELECT id FROM t WHERE day = '..'") == [{"id": 1}]


def test_what_the_log_says_of_files_hides_no_row(tmp_path: Path) -> None:
    schema = columns(
        id="long", text="string", at="timestamp", local="timestamp_ntz", day="date", x="double", money="decimal(9,2)"
    )
    sink = table(tmp_path, schema)
    for number in range(6):
        moment = datetime(2026, 1, 1, 0, 0, number, 999_600 + number)
        row = {
            "id": number,
            "text": "t" * (30 + number),
            "at": moment.replace(tzinfo=UTC),
            "local": moment,
            "day": date(2026, 1, 1 + number),
            "x": float("nan") if number == 3 else number,
            "money": number,
        }
        put(sink, number, [row], schema)
    for number in range(6):
        for condition in (
            f"id = {number}",
            f"text = '{'t' * (30 + number)}'",
            f"at = timestamp '2026-01-01T00:00:0{number}.{999600 + number}Z'",
            f"local = timestamp '2026-01-01T00:00:0{number}.{999600 + number}'",
            f"day = date '2026-01-0{1 + number}'",
            f"money = {number}",
        ):
            query = f"SELECT id FROM t WHERE {condition}"  # noqa: S608 - the conditions above
            assert asked(tmp_path, query) == [{"id": number}], condition


def test_stats_come_from_the_footer(tmp_path: Path) -> None:
    at = datetime(2026, 1, 1, 0, 0, 0, 1, UTC)
    given = pa.table(
        {
            "id": pa.array([3, None, 1], pa.int32()),
            "text": ["b", "a", None],
            "long": ["x" * 33, "y", "z"],
            "at": pa.array([at, at, at], pa.timestamp("us", "UTC")),
            "last": pa.array([datetime(9999, 12, 31, 23, 59, 59, 999999)] * 3, pa.timestamp("us")),
            "x": [1.0, float("nan"), 2.0],
            "gone": pa.array([None] * 3, pa.date32()),
            "many": [[1], [], None],
        }
    )
    found: list[Any] = []
    with pq.ParquetWriter(tmp_path / "f", given.schema, metadata_collector=found) as writer:
        for start in range(3):
            writer.write_table(given.slice(start, 1))
    stats = json.loads(delta_stats(found[0]))
    assert stats == {
        "numRecords": 3,
        "minValues": {"id": 1, "text": "a", "at": "2026-01-01T00:00:00.000Z"},
        "maxValues": {"id": 3, "text": "b", "at": "2026-01-01T00:00:00.001Z"},
        "nullCount": {"id": 1, "text": 1, "long": 0, "at": 0, "last": 0, "x": 0, "gone": 3},
    }


def test_the_log_has_stats_and_the_batch(tmp_path: Path) -> None:
    put(table(tmp_path), 5, ids(1, 7))
    lines = (tmp_path / "table" / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    actions = {kind: action for line in lines for kind, action in json.loads(line).items()}
    assert json.loads(actions["add"]["stats"])["maxValues"]["id"] == 7
    assert actions["txn"]["appId"] == f"{QUERY}/lake" and actions["txn"]["version"] == 5
    assert actions["commitInfo"]["penstock.batch"] == "5"


def test_files_that_were_not_committed_are_in_no_version(tmp_path: Path) -> None:
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


def test_two_drivers_in_the_same_moment_commit_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = table(tmp_path), table(tmp_path)
    identity = BatchId(QUERY, 0)
    first, second = written(one, identity, ids(1)), written(two, identity, ids(1))
    append = two._append

    def late(*given: Any) -> None:
        monkeypatch.setattr(two, "_append", append)
        one.commit(first, identity)
        append(*given)

    monkeypatch.setattr(two, "_append", late)
    two.commit(second, identity)
    assert seen(tmp_path) == [1]


def test_other_writers_do_not_hinder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)
    append = sink._append

    def others_first(*given: Any) -> None:
        write_deltalake(tmp_path / "table", pa.table({"id": [100], "day": ["x"]}), mode="append")
        append(*given)

    monkeypatch.setattr(sink, "_append", others_first)
    for number in range(3):
        assert put(sink, number, ids(number)) == 1
    assert seen(tmp_path) == [0, 1, 2, 100, 100, 100]


def test_a_commit_that_was_made_and_not_told_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)
    append = sink._append

    def silent(*given: Any) -> None:
        append(*given)
        raise CommitFailedError("the answer was lost")

    monkeypatch.setattr(sink, "_append", silent)
    assert put(sink, 0, ids(1)) == 1
    assert seen(tmp_path) == [1]


def test_commits_that_fail_for_ever_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)

    def never(*given: Any) -> None:
        raise CommitFailedError("always somebody else")

    monkeypatch.setattr(sink, "_append", never)
    with pytest.raises(SinkUnavailable, match="always somebody else"):
        put(sink, 0, ids(1))


def test_files_that_a_full_disk_could_not_commit_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)

    def full(*given: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(sink, "_append", full)
    with pytest.raises(SinkUnavailable):
        put(sink, 0, ids(1))
    assert list((tmp_path / "table").glob("*.parquet")) == []


def test_files_are_kept_when_the_commit_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)
    append = sink._append

    def late(*given: Any) -> None:
        append(*given)
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(sink, "_append", late)
        with pytest.raises(SinkUnavailable):
            put(sink, 0, ids(1))
    assert put(sink, 0, ids(1)) is None
    assert seen(tmp_path) == [1]


def test_marks_outlast_checkpoints(tmp_path: Path) -> None:
    sink = table(tmp_path)
    put(sink, 0, ids(1), query="old")
    for number in range(5):
        put(sink, number, ids(number))
    DeltaTable(tmp_path / "table").create_checkpoint()
    for entry in sorted((tmp_path / "table" / "_delta_log").glob("0*.json"))[:-1]:
        entry.unlink()
    put(table(tmp_path), 5, ids(5))
    again = table(tmp_path)
    assert put(again, 0, ids(1), query="old") is None
    assert put(again, 5, ids(5)) is None


def test_a_batch_without_rows_is_no_version(tmp_path: Path) -> None:
    sink = table(tmp_path)
    assert put(sink, 0, []) == 0
    assert DeltaTable(tmp_path / "table").version() == 0


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (columns(id="string", day="string"), r"column id is string in the rows and bigint in .*CAST\(id AS bigint\)"),
        (
            columns(id="long", day="string", more="date"),
            r"a column more \(date\) that the Delta table .* lacks.*ALTER TABLE",
        ),
        (columns(id="long", day="variant"), "column day is of type variant"),
    ],
)
def test_columns_that_do_not_fit_are_told(tmp_path: Path, rows: Any, text: str) -> None:
    table(tmp_path)
    with pytest.raises(SinkError, match=text):
        table(tmp_path, rows)


def test_a_column_that_the_rows_lack_is_null_or_told(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string())])
    DeltaTable.create(tmp_path / "table", Schema.from_arrow(schema))
    narrow = columns(id="long")
    assert put(table(tmp_path, narrow), 0, [{"id": 1}], narrow) == 1
    assert DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist() == [{"id": 1, "day": None}]
    with pytest.raises(SinkError, match=r"a column id \(bigint\) that must not be null, and the rows lack it"):
        table(tmp_path, columns(day="string"))
    with pytest.raises(SinkError, match="column id is null in a row"):
        put(table(tmp_path), 1, [{"id": None, "day": "x"}])


def test_timestamp_ntz_into_a_table_without_the_feature_is_a_matter_of_types(tmp_path: Path) -> None:
    table(tmp_path, columns(at="timestamp"))
    with pytest.raises(SinkError, match="column at is timestamp_ntz in the rows and timestamp in"):
        table(tmp_path, columns(at="timestamp_ntz"))


def test_tables_with_rules_that_files_would_break_are_refused(tmp_path: Path) -> None:
    table(tmp_path)
    DeltaTable(tmp_path / "table").alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(SinkError, match="has constraint positive, which this sink does not obey"):
        table(tmp_path)
    with pytest.raises(SinkError, match="constraint positive"):
        sink_of("delta", tmp_path, delta="table").probe()


def test_tables_with_features_that_files_would_break_are_refused(tmp_path: Path) -> None:
    table(tmp_path)
    DeltaTable(tmp_path / "table").alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(SinkError, match="has table feature rowTracking"):
        table(tmp_path)


def test_another_partitioning_is_told(tmp_path: Path) -> None:
    table(tmp_path, partition_by=("day",))
    with pytest.raises(SinkError, match=r"partition_by is \[\], and the Delta table .* is partitioned by \['day'\]"):
        table(tmp_path)


def test_a_table_that_may_not_be_made_is_told(tmp_path: Path) -> None:
    sink = sink_of("delta", tmp_path, delta="table", create=False)
    for ask in (sink.probe, lambda: sink.prepare(PLAIN)):
        with pytest.raises(SinkError, match="create: true"):
            ask()
    sink_of("delta", tmp_path, delta="table").probe()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)
    with monkeypatch.context() as patched:

        def full(*given: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(os, "fsync", full)
        with pytest.raises(SinkUnavailable, match=f"{tmp_path}/table.*No space left on device"):
            put(sink, 0, ids(1))
    assert put(sink, 0, ids(1)) == 1
    assert seen(tmp_path) == [1]


def test_an_object_store_that_is_away_is_waited_for(tmp_path: Path) -> None:
    options = {
        "aws_endpoint": "http://127.0.0.1:9",
        "aws_access_key_id": "x",
        "aws_secret_access_key": "y",
        "aws_region": "z",
        "aws_allow_http": "true",
        "max_retries": "0",
        "timeout": "2s",
    }
    sink = sink_of("delta", tmp_path, delta="s3://bucket/table", storage_options=options)
    with pytest.raises(SinkUnavailable, match="s3://bucket/table"):
        sink.probe()


def test_an_object_store_takes_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = sink_of("delta", tmp_path, delta=f"file://localhost{tmp_path}/table")
    monkeypatch.setattr(sink, "_path", None)
    sink.prepare(PLAIN)
    assert type(sink.part_writer(BatchId(QUERY, 0)).storage).__name__ == "DeltaStorage"
    assert put(sink, 0, ids(1, 2)) == 2
    assert seen(tmp_path) == [1, 2]


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    sink = sink_of("delta", tmp_path, delta="table", storage_options={"password": "hush"})
    sink.prepare(PLAIN)
    monkey = sink.part_writer(BatchId(QUERY, 0))
    assert "hush" not in repr(monkey)
