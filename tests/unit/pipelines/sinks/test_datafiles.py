"""A task's files: how rows are split, rolled and named, and what a task says when it cannot write."""

import errno
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks import datafiles
from penstock.pipelines.sinks.datafiles import Layout, PartWriter, Split, read_answers
from penstock.pipelines.sinks.parts import Task
from penstock.pipelines.sinks.storage import LocalStorage, local_path, may_pass

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("text", pa.string())])

FIRST = Task(0, 0)


def layout(*by: str, **named: Any) -> Layout:
    return Layout(SCHEMA, tuple(map(Split, by)), "snappy", named.pop("file_size", 2**20), **named)


def run(part: PartWriter, *batches: pa.RecordBatch, task: Task = FIRST) -> list[datafiles.Written]:
    answer = part(task, iter(batches))
    return read_answers([] if answer is None else [answer], part.storage, "lake")


def rows(numbers: Iterator[int] | range, day: str | None = "mon", width: int = 1) -> pa.RecordBatch:
    found = [{"id": number, "day": day, "text": str(number).zfill(width)} for number in numbers]
    return pa.RecordBatch.from_pylist(found, schema=SCHEMA)


def test_a_file_is_rolled_at_its_size_and_keeps_the_order(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    noise = [generator.bytes(3000).hex() for _ in range(200)]
    many = [
        pa.RecordBatch.from_pylist([{"id": at, "day": "", "text": text}], schema=SCHEMA)
        for at, text in enumerate(noise)
    ]
    files = run(PartWriter(LocalStorage(str(tmp_path)), layout(file_size=64 * 1024), "part"), *many)
    assert len(files) > 3
    read = []
    for each in sorted(files, key=lambda file: int(file.path.rpartition("-")[2].removesuffix(".parquet"))):
        table = pq.read_table(tmp_path / each.path)
        assert (each.rows, each.size) == (table.num_rows, (tmp_path / each.path).stat().st_size)
        assert each.size < 2.5 * 64 * 1024
        read += table["id"].to_pylist()
    assert read == list(range(200))


def test_small_batches_share_a_row_group(tmp_path: Path) -> None:
    part = PartWriter(LocalStorage(str(tmp_path)), layout(), "part")
    (file,) = run(part, *[rows(range(at, at + 10)) for at in range(0, 500, 10)])
    assert pq.read_metadata(tmp_path / file.path).num_row_groups == 1


def test_rows_that_wait_are_bounded_over_all_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datafiles, "_PENDING_BYTES", 4000)
    part = PartWriter(LocalStorage(str(tmp_path)), layout("day"), "part")
    files = run(part, *[rows(range(at, at + 40), f"d{at % 3}") for at in range(30)])
    assert len(files) == 3
    assert sum(pq.read_metadata(tmp_path / each.path).num_row_groups for each in files) > 3
    assert sum(each.rows for each in files) == 30 * 40


def test_more_partitions_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datafiles, "_OPEN_FILES", 4)
    given = pa.RecordBatch.from_pylist(
        [{"id": number, "day": f"d{number % 10}", "text": ""} for number in range(100)], schema=SCHEMA
    )
    files = run(PartWriter(LocalStorage(str(tmp_path)), layout("day"), "part"), given, given)
    assert sum(each.rows for each in files) == 200
    assert len(files) > 10
    found: dict[str | None, list[int]] = {}
    for each in files:
        found.setdefault(each.partition["day"], []).extend(
            pq.read_table(tmp_path / each.path, partitioning=None)["id"].to_pylist()
        )
    assert {day: sorted(set(numbers)) for day, numbers in found.items()} == {
        f"d{day}": list(range(day, 100, 10)) for day in range(10)
    }


def test_partition_values_are_written_as_text(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("flag", pa.bool_()),
            ("number", pa.int16()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    row = {
        "id": 1,
        "flag": False,
        "number": -3,
        "day": date(26, 1, 2),
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    }
    by = tuple(map(Split, schema.names[1:]))
    part = PartWriter(LocalStorage(str(tmp_path)), Layout(schema, by, "zstd", 2**20), "part")
    (file,) = run(part, pa.RecordBatch.from_pylist([row], schema=schema))
    assert file.partition == {
        "flag": "false",
        "number": "-3",
        "day": "0026-01-02",
        "at": "2026-01-02 03:04:05.000006",
    }
    assert pq.read_metadata(tmp_path / file.path).schema.names == ["id"]


def test_many_partition_columns_are_told_apart() -> None:
    first, *others = names = [f"c{number}" for number in range(70)]
    given = [{first: one, **dict.fromkeys(others, other)} for one in (0, 1) for other in (0, 1)]
    batch = pa.RecordBatch.from_pylist(given, schema=pa.schema([(name, pa.int64()) for name in names]))
    split = list(datafiles._split(batch, tuple(map(Split, names))))
    assert [(values[0], values[1], rows.to_pylist()) for values, rows in split] == [
        (str(row[first]), str(row["c1"]), [row]) for row in given
    ]


def test_odd_arrow_types_become_plain_ones(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {
            "id": pa.array([1, 2], pa.int64()),
            "day": pa.array(["a", "b"]).dictionary_encode(),
            "text": pa.array(["x", None], pa.large_string()),
        }
    )
    (file,) = run(PartWriter(LocalStorage(str(tmp_path)), layout(), "part"), batch)
    table = pq.read_table(tmp_path / file.path)
    assert table.schema.equals(SCHEMA)
    assert table.to_pydict() == {"id": [1, 2], "day": ["a", "b"], "text": ["x", None]}


def test_no_two_tasks_have_a_name_in_common(tmp_path: Path) -> None:
    part = PartWriter(LocalStorage(str(tmp_path)), layout(), "part")
    names = {
        file.path
        for _ in range(3)
        for task in (Task(0, 0), Task(0, 1), Task(1, 0))
        for file in run(part, rows(range(2)), task=task)
    }
    assert len(names) == 9


def test_a_task_without_rows_says_nothing(tmp_path: Path) -> None:
    assert PartWriter(LocalStorage(str(tmp_path)), layout(), "part")(Task(0, 0), iter(())) is None


def test_what_tasks_run_is_plain_data(tmp_path: Path) -> None:
    part = PartWriter(LocalStorage(str(tmp_path)), layout("day"), "part")
    (file,) = run(pickle.loads(pickle.dumps(part)), rows(range(2)))  # noqa: S301 - what was pickled here
    assert file.rows == 2


class FullStorage(LocalStorage):
    """A disk with room for some bytes."""

    room = 20_000

    def create(self, path: str) -> IO[bytes]:
        return _Counted(super().create(path), self)  # type: ignore[return-value]

    def seal(self, path: str, file: Any) -> None:
        super().seal(path, file.inner)


class _Counted:
    def __init__(self, inner: IO[bytes], disk: FullStorage) -> None:
        self.inner = inner
        self._disk = disk

    def write(self, data: bytes) -> int:
        if self._disk.room < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        FullStorage.room -= len(data)
        return self.inner.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_a_full_disk_is_told_and_gets_its_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FullStorage, "room", 20_000)
    part = PartWriter(FullStorage(str(tmp_path)), layout("day", file_size=4096), "part")
    answer = part(Task(0, 0), iter([rows(range(at, at + 500), f"d{at % 2}", 20) for at in range(0, 20_000, 500)]))
    assert answer is not None and "trouble" in json.loads(answer)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with pytest.raises(SinkUnavailable, match=rf"sink lake: cannot write {tmp_path}/.*No space left on device"):
        read_answers([answer], part.storage, "lake")


def test_files_of_other_tasks_are_taken_back(tmp_path: Path) -> None:
    part = PartWriter(LocalStorage(str(tmp_path)), layout(), "part")
    good = part(Task(0, 0), iter([rows(range(2))]))
    assert good is not None
    bad = json.dumps({"trouble": "cannot write x: Input/output error", "may_pass": True}).encode()
    with pytest.raises(SinkUnavailable):
        read_answers([good, bad], part.storage, "lake")
    assert list(tmp_path.iterdir()) == []


def test_null_where_the_table_wants_a_value_is_told(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), *list(SCHEMA)[1:]])
    part = PartWriter(LocalStorage(str(tmp_path)), Layout(strict, (), "snappy", 2**20), "part")
    given = pa.RecordBatch.from_pylist([{"id": None, "day": "", "text": ""}], schema=SCHEMA)
    with pytest.raises(SinkError, match="column id is null in a row"):
        run(part, given)
    assert list(tmp_path.iterdir()) == []


def test_what_the_source_of_rows_says_is_not_taken_for_the_sinks(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield rows(range(2))
        raise OSError("the source")

    with pytest.raises(OSError, match="the source"):
        PartWriter(LocalStorage(str(tmp_path)), layout(), "part")(Task(0, 0), broken())


@pytest.mark.parametrize(
    ("number", "passes"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, True), (errno.EACCES, False)]
)
def test_what_may_be_asked_again(number: int, passes: bool) -> None:
    assert may_pass(OSError(number, "")) is passes


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("lake/x", Path("lake/x")),
        ("/a b", Path("/a b")),
        ("file:///a%20b", Path("/a b")),
        ("file:/a", Path("/a")),
        ("s3://bucket/x", None),
        ("file://host/x", None),
    ],
)
def test_paths_and_uris(text: str, path: Path | None) -> None:
    assert local_path(text) == path
