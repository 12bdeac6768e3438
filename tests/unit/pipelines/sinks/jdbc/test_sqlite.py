"""What is SQLite's alone: its storage classes, its locks, and crashes at every statement."""

import contextlib
import datetime
import decimal
import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.contract import BatchId
from penstock.pipelines.sinks.jdbc import sqlite as sqlite_sink
from penstock.pipelines.sinks.jdbc.spool import SpoolPart
from penstock.pipelines.sinks.parts import WritePart

from .stand_in import Letters, Rows, open_jdbc

DDL = "id bigint, v string"
FIRST = BatchId("q", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def look(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        yield connection


def test_values_of_all_types(path: Path, look: sqlite3.Connection, letters: Letters) -> None:
    berlin = datetime.timezone(datetime.timedelta(hours=2))
    row = {
        "b": True,
        "i": -(2**63),
        "d": math.inf,
        "m": decimal.Decimal("12345678901234567890.123456789012345678"),
        "s": "ä\0\U0001f600\n",
        "x": b"\x00\xff",
        "day": datetime.date(1, 1, 1),
        "at": datetime.datetime(2024, 7, 1, 2, 3, 4, 5, tzinfo=berlin),
        "wall": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
        "l": [],
        "o": {"a": [1, None]},
    }
    ddl = (
        "b boolean, i bigint, d double, m decimal(38,18), s string, x binary, day date, at timestamp, "
        "wall timestamp_ntz, l array<int>, o struct<a:array<int>>"
    )
    sink = open_jdbc(f"sqlite:{path}")
    rows = Rows(ddl, [[row, {"d": math.nan}]])
    sink.prepare(rows.schema)
    sink.write(rows, FIRST, letters)
    first, second = look.execute("SELECT * FROM items").fetchall()
    assert first == (
        1,
        -(2**63),
        math.inf,
        "12345678901234567890.123456789012345678",
        "ä\0\U0001f600\n",
        b"\x00\xff",
        "0001-01-01",
        "2024-07-01 00:03:04.000005Z",
        "9999-12-31 23:59:59.999999",
        "[]",
        '{"a": [1, null]}',
    )
    assert second == (None,) * 11
    sink.prepare(rows.schema)  # what was made does for the rows it was made for


def test_text_does_not_become_a_number(path: Path, look: sqlite3.Connection) -> None:
    look.execute("CREATE TABLE items (id bigint, v UUID)")
    with pytest.raises(SinkError, match=r"column v is UUID, the rows have string.*TEXT"):
        open_jdbc(f"sqlite:{path}").prepare(Rows(DDL, []).schema)


def test_order_by_a_decimal_is_refused(path: Path) -> None:
    sink = open_jdbc(f"sqlite:{path}", mode="upsert", keys=["id"], order_by=["n"])
    with pytest.raises(SinkError, match="order_by: n is decimal"):
        sink.prepare(Rows("id bigint, n decimal(9,2)", []).schema)


def test_rowid_fills_itself(path: Path, look: sqlite3.Connection, letters: Letters) -> None:
    look.execute("CREATE TABLE items (row INTEGER PRIMARY KEY NOT NULL, id bigint, v text)")
    sink = open_jdbc(f"sqlite:{path}")
    rows = Rows(DDL, [[{"id": 5, "v": "a"}]])
    sink.prepare(rows.schema)
    sink.write(rows, FIRST, letters)
    assert look.execute("SELECT * FROM items").fetchall() == [(1, 5, "a")]


_DIES = """
import os, sys
from pathlib import Path
from penstock.pipelines.sinks.jdbc.spool import spooling
from tests.unit.pipelines.sinks.jdbc.stand_in import open_jdbc
sink = open_jdbc("sqlite:" + sys.argv[1])
with spooling(Path(sys.argv[1]), sink._options) as directory:
    (directory / "rows.arrow").write_bytes(b"half")
    os._exit(7)
"""


def test_spooled_rows_of_a_dead_driver_are_removed(path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", _DIES, str(path)], cwd=Path(__file__).parents[5], check=False)
    assert died.returncode == 7
    assert len(list(path.parent.iterdir())) == 1
    open_jdbc(f"sqlite:{path}", sink="other").prepare(Rows(DDL, []).schema)
    assert len(list(path.parent.glob(".shop.db.*"))) == 1
    open_jdbc(f"sqlite:{path}").prepare(Rows(DDL, []).schema)
    assert list(path.parent.iterdir()) == [path]


def test_busy_database_is_waited_for(path: Path, look: sqlite3.Connection, letters: Letters) -> None:
    sink = open_jdbc(f"sqlite:{path}")
    assert isinstance(sink, sqlite_sink.SqliteSink)
    sink.busy_s = 0.01
    rows: Any = Rows(DDL, [[{"id": 1, "v": "a"}]])
    sink.prepare(rows.schema)
    look.execute("BEGIN IMMEDIATE")
    with pytest.raises(SinkUnavailable, match="locked"):
        sink.write(rows, FIRST, letters)
    look.execute("ROLLBACK")
    assert sink.write(rows, FIRST, letters) == 1


def test_full_database_is_waited_for(path: Path, letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite_sink.connect

    def small(path: Path, busy_s: float) -> sqlite3.Connection:
        connection = connect(path, busy_s)
        connection.execute("PRAGMA max_page_count = 6")
        return connection

    monkeypatch.setattr(sqlite_sink, "connect", small)
    sink = open_jdbc(f"sqlite:{path}")
    rows = Rows(DDL, [[{"id": 1, "v": "a" * 100_000}]])
    sink.prepare(rows.schema)
    with pytest.raises(SinkUnavailable, match="full"):
        sink.write(rows, FIRST, letters)
    monkeypatch.undo()


def test_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(SinkError, match="not a database") as caught:
        open_jdbc(f"sqlite:{path}").probe()
    assert not caught.value.retriable


def test_directory_that_is_not_there(path: Path) -> None:
    with pytest.raises(SinkError, match=r"directory .* is not there"):
        open_jdbc(f"sqlite:{path.parent}/no/shop.db").probe()


def test_probe_makes_nothing(path: Path) -> None:
    open_jdbc(f"sqlite:{path}").probe()
    assert not path.exists()


def test_constraint_that_rolls_back_is_an_error(path: Path, look: sqlite3.Connection, letters: Letters) -> None:
    """There is no transaction left to reject rows in."""
    look.execute("CREATE TABLE items (id bigint UNIQUE ON CONFLICT ROLLBACK, v text)")
    sink = open_jdbc(f"sqlite:{path}")
    rows = Rows(DDL, [[{"id": 1}, {"id": 1}]])
    sink.prepare(rows.schema)
    with pytest.raises(SinkError, match="UNIQUE"):
        sink.write(rows, FIRST, letters)
    assert look.execute("SELECT count(*) FROM items").fetchall() == [(0,)]


def test_file_of_a_worker_elsewhere(path: Path, letters: Letters) -> None:
    def lose(write: WritePart) -> None:
        assert isinstance(write, SpoolPart)
        for each in Path(write.directory).glob("*.arrow"):
            each.unlink()

    sink = open_jdbc(f"sqlite:{path}")
    rows = Rows(DDL, [[{"id": 1}]], lose)
    sink.prepare(rows.schema)
    with pytest.raises(SinkError, match=r"local\[\*\]"):
        sink.write(rows, FIRST, letters)
    assert not sink.is_written(FIRST)


class Crash(BaseException):
    """The process is gone."""


class Fragile(sqlite3.Connection):
    """Breaks before or after one of its statements; what a dead process did not commit is rolled back, and it does no
    more."""

    statements = 0
    break_at = -1
    after = False
    is_dead = False

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return self._guarded(lambda: super(Fragile, self).execute(sql, *arguments))

    def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return self._guarded(lambda: super(Fragile, self).executemany(sql, *arguments))

    def _guarded(self, act: Any) -> sqlite3.Cursor:
        if self.is_dead:
            raise Crash
        number = Fragile.statements
        Fragile.statements += 1
        breaks = number == Fragile.break_at
        if breaks and not Fragile.after:
            self._die()
        cursor: sqlite3.Cursor = act()
        if breaks:
            cursor.close()  # an open one would hold its lock
            self._die()
        return cursor

    def _die(self) -> None:
        self.rollback()
        self.is_dead = True
        raise Crash


# A change that is made twice leaves the same table, but not the same log.
_WATCH = """
CREATE TABLE log (what);
CREATE TRIGGER i AFTER INSERT ON items BEGIN INSERT INTO log VALUES ('INSERT ' || new.id); END;
CREATE TRIGGER u AFTER UPDATE ON items BEGIN INSERT INTO log VALUES ('UPDATE ' || new.id); END;
CREATE TRIGGER d AFTER DELETE ON items BEGIN INSERT INTO log VALUES ('DELETE ' || old.id); END;
"""


def run_batch(path: Path, rows: Rows, batch: int, letters: Letters) -> None:
    """As a driver does, from its start."""
    sink = open_jdbc(f"sqlite:{path}", mode="upsert", keys=["id"], order_by=["n"], delete_when="gone")
    identity = BatchId("q", batch)
    try:
        sink.prepare(rows.schema)
        if not sink.is_written(identity):
            sink.write(rows, identity, letters)
    finally:
        sink.close()


def test_crash_at_every_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after each: the batch is there whole or not at all, and once when it is repeated."""
    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, **k, factory=Fragile))
    monkeypatch.setattr(Fragile, "break_at", -1)
    ddl = "id bigint, n bigint, gone boolean"
    before = Rows(ddl, [[{"id": id_, "n": 0} for id_ in range(4)]])
    changes = [{"id": 1, "n": 5}, {"id": 1, "n": 4}, {"id": 9, "n": 9}]
    after = Rows(ddl, [changes, [{"id": 2, "_penstock_delete": True}]])

    def attempt(number: int, after_it: bool) -> bool:
        path = tmp_path / f"shop-{number}-{after_it}.db"
        Fragile.break_at = -1
        run_batch(path, before, 0, Letters())
        with contextlib.closing(real(path)) as connection:
            connection.executescript(_WATCH)
        Fragile.statements, Fragile.break_at, Fragile.after = 0, number, after_it
        crashed = False
        try:
            run_batch(path, after, 1, Letters())
        except Crash:
            crashed = True
            Fragile.break_at = -1
            run_batch(path, after, 1, Letters())
        with contextlib.closing(real(path)) as connection:
            table = connection.execute("SELECT id, n FROM items ORDER BY id").fetchall()
            assert table == [(0, 0), (1, 5), (3, 0), (9, 9)], (number, after_it)
            log = sorted(each[0] for each in connection.execute("SELECT what FROM log"))
            assert log == ["DELETE 2", "INSERT 9", "UPDATE 1"], (number, after_it)
            assert connection.execute("SELECT batch, rows FROM _penstock_commits").fetchall() == [(1, 3)]
        assert [each.name for each in tmp_path.iterdir() if "penstock" in each.name] == []
        return crashed

    number = 0
    while attempt(number, False):
        assert attempt(number, True)
        number += 1
    assert number > 20
