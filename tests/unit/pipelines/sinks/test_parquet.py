"""The Parquet sink: commits, crashes in the middle of them, repeats, and what readers see."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks import parquet, parquet_manifest
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


class Crash(Exception):
    """The driver dies here."""


def table(directory: Path, **options: Any) -> Any:
    sink = sink_of("parquet", directory, parquet="table", **options)
    sink.prepare(PLAIN)
    return sink


def seen(directory: Path) -> list[int]:
    """The ids that a reader sees who knows nothing of the manifest."""
    return sorted(ds.dataset(directory / "table", format="parquet", partitioning="hive").to_table()["id"].to_pylist())


def told(directory: Path) -> list[int]:
    """The ids in the files of the manifest."""
    return sorted(value for path in parquet.files(directory / "table") for value in ids_in(path))


def ids_in(path: str | Path) -> list[int]:
    with open(path, "rb") as file:
        found: list[int] = pq.read_table(file, columns=["id"])["id"].to_pylist()
    return found


def test_rows_are_there_once_however_often_a_batch_is_written(tmp_path: Path) -> None:
    sink = table(tmp_path)
    assert put(sink, 0, ids(1, 2)) == 2
    assert put(sink, 0, ids(1, 2)) is None
    again = table(tmp_path)
    assert put(again, 0, ids(1, 2)) is None
    assert put(again, 1, ids(3)) == 1
    assert seen(tmp_path) == told(tmp_path) == [1, 2, 3]


def test_every_type_comes_back(tmp_path: Path) -> None:
    sink = sink_of("parquet", tmp_path, parquet="table")
    sink.prepare(EVERY)
    rows = [FULL, EMPTY, EDGE]
    assert put(sink, 0, rows, EVERY) == 3
    assert pq.read_table(parquet.files(tmp_path / "table")[0]).to_pylist() == rows


def test_partitions_are_directories_that_spark_reads(tmp_path: Path) -> None:
    sink = table(tmp_path, partition_by=("day",))
    rows = [*ids(1, 2, day="a/b=c%"), *ids(3, day=None), *ids(4, day=""), *ids(5, day="tue")]
    assert put(sink, 0, rows) == 5
    names = sorted(path.name for path in (tmp_path / "table").iterdir() if path.name != "_penstock")
    assert names == ["day=__HIVE_DEFAULT_PARTITION__", "day=a%2Fb%3Dc%25", "day=tue"]
    values: dict[Any, list[Any]] = {file.partition["day"]: [] for file in parquet.read_manifest(tmp_path / "table")}
    for file in parquet.read_manifest(tmp_path / "table"):
        values[file.partition["day"]] += ids_in(tmp_path / "table" / file.path)
    assert {day: sorted(found) for day, found in values.items()} == {"a/b=c%": [1, 2], None: [3, 4], "tue": [5]}


STEPS = ("before the entry", "after the entry", "in the moves", "after the moves", "before the clean-up")


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_in_the_commit_leaves_all_or_nothing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table(tmp_path, partition_by=("day",))
    put(sink, 0, ids(1))
    rows = [row for day in ("a", "b", "c", "d") for row in ids(2, 3, day=day)]
    with monkeypatch.context() as patched:
        crash_at(step, patched)
        with pytest.raises(Crash):
            put(sink, 1, rows)
    expected = sorted([1, *(row["id"] for row in rows)])
    committed = step != "before the entry"
    before = seen(tmp_path)
    assert told(tmp_path) == (expected if committed else [1])
    assert set(before) <= {1, 2, 3} and len(before) <= len(expected)
    if not committed:
        assert before == [1]

    again = table(tmp_path, partition_by=("day",))
    assert seen(tmp_path) == (expected if committed else [1])
    assert put(again, 1, rows) == (None if committed else len(rows))
    assert seen(tmp_path) == told(tmp_path) == expected
    assert put(again, 2, ids(9)) == 1
    assert leftovers(tmp_path) == []


def test_a_writer_that_runs_finishes_what_another_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, dying = table(tmp_path), table(tmp_path)
    with monkeypatch.context() as patched:
        crash_at("after the entry", patched)
        with pytest.raises(Crash):
            put(dying, 0, ids(1), query="dying")
    assert list((tmp_path / "table").glob("*.parquet")) == []
    assert not running.is_written(BatchId("running", 0))
    assert seen(tmp_path) == [1]


def crash_at(step: str, patched: pytest.MonkeyPatch) -> None:
    link, rename = os.link, os.rename
    moved: list[str] = []

    def no_link(*given: Any) -> None:
        raise Crash

    def half_way(source: Any, target: Any) -> None:
        if len(moved) == 2:
            raise Crash
        moved.append(source)
        rename(source, target)

    def crash(*given: Any, **named: Any) -> None:
        raise Crash

    if step == "before the entry":
        patched.setattr(os, "link", no_link)
    elif step == "after the entry":
        patched.setattr(os, "link", lambda *given: (link(*given), crash()))
    elif step == "in the moves":
        patched.setattr(os, "rename", half_way)
    elif step == "after the moves":
        patched.setattr(shutil, "rmtree", crash)
    else:
        patched.setattr(parquet_manifest.Manifest, "drop_staging", crash)


def test_each_step_is_durable_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path, partition_by=("day",))
    identity, calls = BatchId(QUERY, 0), []
    real = {name: getattr(os, name) for name in ("fsync", "link", "rename")}

    def kind(path: str | os.PathLike[str]) -> str:
        text = os.fspath(path).removeprefix(str(tmp_path / "table")).strip("/")
        text = text.replace(sink._manifest.staging_of(f"{QUERY}/lake").name, "KEY")
        return "/".join(part.split("-")[0] for part in text.split("/"))

    def fsync(handle: int) -> None:
        calls.append(f"sync {kind(os.readlink(f'/proc/self/fd/{handle}'))}")
        real["fsync"](handle)

    def two(name: str) -> Any:
        def call(source: Any, target: Any) -> None:
            calls.append(f"{name} {kind(source)}")
            real[name](source, target)

        return call

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", two("link"))
    monkeypatch.setattr(os, "rename", two("rename"))
    files = written(sink, identity, ids(1))
    assert calls[-2:] == ["sync _penstock/staging/KEY/0/part", "sync _penstock/staging/KEY/0"]
    calls.clear()
    sink.commit(files, identity)
    assert calls == [
        "sync _penstock/staging/entry",
        "link _penstock/staging/entry",
        "sync _penstock/entries",
        "sync _penstock/entries",
        "sync ",
        "rename _penstock/staging/KEY/0/part",
        "sync day=mon",
    ]


def leftovers(directory: Path) -> list[str]:
    return [str(path) for path in (directory / "table" / "_penstock" / "staging").rglob("*") if path.is_file()]


def test_a_task_of_a_dead_driver_adds_nothing(tmp_path: Path) -> None:
    sink = table(tmp_path)
    identity = BatchId(QUERY, 0)
    write_task(sink, identity, batches(ids(1, 2)), Task(0, 0))
    assert put(sink, 0, ids(1, 2)) == 2
    write_task(sink, identity, batches(ids(1, 2)), Task(0, 1))
    assert seen(tmp_path) == told(tmp_path) == [1, 2]
    put(sink, 1, ids(3))
    assert leftovers(tmp_path) == []
    assert seen(tmp_path) == told(tmp_path) == [1, 2, 3]


def test_two_drivers_of_one_batch_commit_one(tmp_path: Path) -> None:
    one, two = table(tmp_path), table(tmp_path)
    identity = BatchId(QUERY, 0)
    first, second = written(one, identity, ids(1)), written(two, identity, ids(1))
    one.commit(first, identity)
    two.commit(second, identity)
    assert seen(tmp_path) == told(tmp_path) == [1]


def test_two_pipelines_write_one_directory(tmp_path: Path) -> None:
    one, two = table(tmp_path), table(tmp_path)
    for number in range(20):
        assert put(one, number, ids(number), query="one") == 1
        assert put(two, number, ids(100 + number), query="two") == 1
    assert seen(tmp_path) == told(tmp_path) == [*range(20), *range(100, 120)]
    assert put(table(tmp_path), 19, ids(19), query="one") is None


def test_a_number_taken_by_another_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, other = table(tmp_path), table(tmp_path)
    files = written(sink, BatchId("one", 0), ids(1))
    link = os.link

    def other_first(*given: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        put(other, 0, ids(2), query="two")
        link(*given)

    monkeypatch.setattr(os, "link", other_first)
    assert sink.commit(files, BatchId("one", 0)) == 1
    assert seen(tmp_path) == told(tmp_path) == [1, 2]


def test_an_older_batch_is_refused(tmp_path: Path) -> None:
    sink = table(tmp_path)
    put(sink, 4, ids(1))
    with pytest.raises(SinkError, match=r"batch 3 of query .* comes after batch 4"):
        sink.is_written(BatchId(QUERY, 3))


def test_a_batch_without_rows_leaves_nothing(tmp_path: Path) -> None:
    sink = table(tmp_path)
    assert put(sink, 0, []) == 0
    assert parquet.files(tmp_path / "table") == []
    assert put(sink, 1, ids(1)) == 1


def test_entries_become_snapshots_and_marks_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "SNAPSHOT_EVERY", 4)
    sink = table(tmp_path)
    put(sink, 0, ids(1000), query="old")
    for number in range(50):
        put(sink, number, ids(number))
    entries = sorted((tmp_path / "table" / "_penstock" / "entries").iterdir())
    assert len(entries) <= 4 + 6  # the last ones, and a chain of log2(51 / 4) snapshots
    assert seen(tmp_path) == told(tmp_path) == [*range(50), 1000]
    in_files = [ids_in(tmp_path / "table" / file.path) for file in parquet.read_manifest(tmp_path / "table")]
    assert in_files == [[1000], *([number] for number in range(50))]
    fresh = table(tmp_path)
    assert put(fresh, 49, ids(49)) is None
    assert put(fresh, 0, ids(1000), query="old") is None


def test_a_writer_follows_the_snapshots_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "SNAPSHOT_EVERY", 3)
    slow, busy = table(tmp_path), table(tmp_path)
    put(slow, 0, ids(100), query="slow")
    for number in range(20):
        put(busy, number, ids(number), query="busy")
    assert put(slow, 0, ids(100), query="slow") is None
    assert put(slow, 1, ids(101), query="slow") == 1
    assert seen(tmp_path) == told(tmp_path) == [*range(20), 100, 101]


def test_a_crash_after_a_snapshot_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "SNAPSHOT_EVERY", 4)
    sink = table(tmp_path)
    unlink, deleted = Path.unlink, []

    def one_only(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".json":
            deleted.append(path)
            if len(deleted) == 3:
                raise Crash
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", one_only)
        for number in range(3):
            put(sink, number, ids(number))
        with pytest.raises(Crash):
            put(sink, 3, ids(3))
    assert told(tmp_path) == [0, 1, 2, 3]
    again = table(tmp_path)
    assert put(again, 3, ids(3)) is None
    for number in range(4, 12):
        put(again, number, ids(number))
    assert seen(tmp_path) == told(tmp_path) == [*range(12)]
    assert len(list((tmp_path / "table" / "_penstock" / "entries").iterdir())) <= 4 + 3


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (columns(id="string", day="string"), r"column id is string in the rows and bigint in .*CAST\(id AS bigint\)"),
        (columns(id="long", day="string", more="date"), r"a column more \(date\) that the table in .*table lacks"),
        (columns(ID="long", day="string"), "it has id; upper and lower case count"),
        (columns(id="long", Id="long"), "columns id and Id have the same name but for case"),
        (columns(id="long", day="void"), "column day is of type void"),
    ],
)
def test_columns_that_do_not_fit_are_told(tmp_path: Path, rows: Any, text: str) -> None:
    table(tmp_path)
    with pytest.raises(SinkError, match=text) as told_error:
        sink_of("parquet", tmp_path, parquet="table").prepare(rows)
    assert "sink lake" in str(told_error.value)
    assert not told_error.value.retriable


def test_a_column_that_the_rows_lack_is_null(tmp_path: Path) -> None:
    put(table(tmp_path), 0, ids(1))
    narrow = columns(id="long")
    sink = sink_of("parquet", tmp_path, parquet="table")
    sink.prepare(narrow)
    put(sink, 1, [{"id": 2}], narrow)
    read = [row for path in parquet.files(tmp_path / "table") for row in pq.read_table(path).to_pylist()]
    assert in_order(read) == [{"id": 1, "day": "mon"}, {"id": 2, "day": None}]


@pytest.mark.parametrize("by", [("nix",), ("id", "day"), ("id", "id")])
def test_partitioning_that_cannot_be_is_told(tmp_path: Path, by: tuple[str, ...]) -> None:
    with pytest.raises(SinkError, match="partition_by"):
        table(tmp_path, partition_by=by)


def test_another_partitioning_is_told(tmp_path: Path) -> None:
    table(tmp_path, partition_by=("day",))
    with pytest.raises(SinkError, match=r"partition_by is \[\], and the table in .* is partitioned by \['day'\]"):
        table(tmp_path)


def test_files_of_others_are_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "theirs.parquet").touch()
    sink = sink_of("parquet", tmp_path, parquet="table")
    with pytest.raises(SinkError, match=r"theirs\.parquet"):
        sink.probe()
    with pytest.raises(SinkError, match=r"theirs\.parquet"):
        sink.prepare(PLAIN)


def test_a_probe_changes_nothing(tmp_path: Path) -> None:
    sink_of("parquet", tmp_path, parquet="deep/table").probe()
    assert list(tmp_path.iterdir()) == []


def test_a_file_uri_is_a_path_and_an_object_store_is_none(tmp_path: Path) -> None:
    sink = sink_of("parquet", Path("/nowhere"), parquet=(tmp_path / "with space").as_uri())
    sink.prepare(PLAIN)
    assert (tmp_path / "with space" / "_penstock").is_dir()
    with pytest.raises(SinkError, match="use delta or iceberg"):
        sink_of("parquet", tmp_path, parquet="s3://bucket/table")


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_full_disk_is_waited_for(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table(tmp_path)
    with monkeypatch.context() as patched:

        def full(*given: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(os, call, full)
        with pytest.raises(SinkUnavailable, match="No space left on device") as told_error:
            put(sink, 0, ids(1))
        assert str(tmp_path / "table") in str(told_error.value)
    assert put(sink, 0, ids(1)) == 1
    assert seen(tmp_path) == told(tmp_path) == [1]


def test_a_directory_that_may_not_be_written_needs_a_person(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("a file")
    with pytest.raises(SinkError, match="not a directory") as told_error:
        sink_of("parquet", tmp_path, parquet="table").probe()
    assert not told_error.value.retriable
