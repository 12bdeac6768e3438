"""What is PostgreSQL's alone, against a real server: its types, and the rows that COPY refuses."""

import datetime
import decimal
import math
from typing import Any

import psycopg
import pytest

from penstock.pipelines.errors import SinkError
from penstock.pipelines.sinks.contract import BatchId

from .database import all_of, open_postgres, stages
from .stand_in import Letters, Rows

DDL = "id bigint, v string"
FIRST = BatchId("q", 0)


def test_values_of_all_types(url: str, admin: psycopg.Connection, letters: Letters) -> None:
    ddl = (
        "b boolean, t tinyint, sm smallint, i int, l bigint, f float, d double, m decimal(38,18), s string, x binary, "
        "day date, at timestamp, wall timestamp_ntz, a array<int>, o struct<a:array<int>>, mp map<string,int>"
    )
    summer = datetime.timezone(datetime.timedelta(hours=2))
    row = {
        "b": True,
        "t": -128,
        "sm": -32768,
        "i": 2**31 - 1,
        "l": -(2**63),
        "f": 1.1,
        "d": 0.1 + 0.2,
        "m": decimal.Decimal("-12345678901234567890.123456789012345678"),
        "s": "tab\t nl\n cr\r \\N \\. \"'% ä \U0001f600\n\\.\n",
        "x": bytes(range(256)),
        "day": datetime.date(9999, 12, 31),
        "at": datetime.datetime(2024, 7, 1, 2, 3, 4, 5, tzinfo=summer),
        "wall": datetime.datetime(1, 1, 1, 0, 0, 0, 1),
        "a": [],
        "o": {"a": [1, None]},
        "mp": {"k\t\\": 1},
    }
    edges = {"f": math.nan, "d": -math.inf, "s": "", "m": decimal.Decimal("0.000000000000000001"), "x": b"", "mp": {}}
    sink = open_postgres(url)
    rows = Rows(ddl, [[row, edges], [{"d": math.nan}]])
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 3
    first, second, third = all_of(admin, "SELECT * FROM items ORDER BY l, i, coalesce(s, 'z')")
    names = list(row)
    got = dict(zip(names, first, strict=True))
    assert got.pop("f") == pytest.approx(1.1, rel=1e-7)
    assert got == {name: value for name, value in row.items() if name != "f"}
    got = dict(zip(names, second, strict=True))
    assert math.isnan(got.pop("f"))
    assert got == {name: edges.get(name) for name in names if name != "f"}
    assert math.isnan(third[names.index("d")])
    sink.prepare(rows.schema)  # what was made does for the rows it was made for


def test_text_becomes_what_reads_it(url: str, admin: psycopg.Connection, letters: Letters) -> None:
    admin.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    admin.execute("CREATE DOMAIN short AS varchar(3) CHECK (VALUE <> 'no')")
    admin.execute("CREATE TABLE items (id numeric(6,2), u uuid, j jsonb, m mood, h inet, c char(2), s short)")
    sink = open_postgres(url)
    good = {"id": 1, "u": "0" * 32, "j": '{"a": 1}', "m": "ok", "h": "10.0.0.1", "c": "x", "s": "abc"}
    bad = [{**good, "id": 2, "u": "x"}, {**good, "id": 3, "m": "mad"}, {**good, "id": 4, "s": "abcd"}]
    bad += [{**good, "id": 5, "s": "no"}, {**good, "id": 10_000}, {**good, "id": 7, "j": "{"}, {**good, "c": "xyz"}]
    rows = Rows("id int, u string, j string, m string, h string, c string, s string", [[*bad[:4], good, *bad[4:]]])
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 1
    assert [row["id"] for row in letters.rows] == [2, 3, 4, 5, 10_000, 7, 1]
    assert all_of(admin, "SELECT id, m, j FROM items") == [(decimal.Decimal("1.00"), "ok", {"a": 1})]


@pytest.mark.parametrize(
    ("spark", "column", "says"),
    [
        ("timestamp", "timestamp", "zone would be lost.*timestamp_ntz"),
        ("timestamp_ntz", "timestamptz", "a zone is needed"),
        ("decimal(12,4)", "numeric(12,2)", r"digits would be lost: CAST\(a AS decimal\(12,2\)\)"),
        ("string", "date", "cast it in a step"),
        ("string", "bytea", "cast it in a step"),
        ("double", "numeric", "make the column double precision"),
        ("bigint", "double precision", "make the column bigint"),
        ("array<int>", "integer[]", "make the column jsonb"),
    ],
)
def test_column_of_another_type(url: str, admin: psycopg.Connection, spark: str, column: str, says: str) -> None:
    admin.execute(f"CREATE TABLE items (a {column})".encode())
    with pytest.raises(SinkError, match=f"sink shop: table items: column a .*{says}"):
        open_postgres(url).prepare(Rows(f"a {spark}", []).schema)


@pytest.mark.parametrize(
    ("spark", "column"),
    [
        ("int", "bigint"),
        ("bigint", "int"),
        ("bigint", "numeric"),
        ("int", "double precision"),
        ("decimal(9,2)", "numeric"),
    ],
)
def test_column_of_the_same_family(url: str, admin: psycopg.Connection, spark: str, column: str) -> None:
    admin.execute(f"CREATE TABLE items (a {column})".encode())
    open_postgres(url).prepare(Rows(f"a {spark}", []).schema)


def test_what_copy_refuses_is_rejected(url: str, admin: psycopg.Connection, letters: Letters) -> None:
    """A NUL character, a year before the first, a number too large for the column that is there."""
    admin.execute("CREATE TABLE items (id int, v text, day date)")
    sink = open_postgres(url, batch_rows=8)
    good: list[dict[str, Any]] = [{"id": number, "v": f"v{number}"} for number in range(40)]
    good[11]["v"] = "a\0b"
    good[12]["id"] = 2**31
    rows = Rows("id bigint, v string, day date", [good, [{"v": "\0"}]])
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 38
    assert [row["v"] for row in letters.rows] == ["a\0b", "v12", "\0"]
    assert "0x00" in letters.rejected[0].reason
    assert "out of range" in letters.rejected[1].reason
    assert all_of(admin, "SELECT count(*), count(DISTINCT id) FROM items") == [(38, 38)]


def test_too_many_rows_that_copy_refuses(url: str, admin: psycopg.Connection, letters: Letters) -> None:
    sink = open_postgres(url, max_rejects=2)
    rows = Rows(DDL, [[{"id": 1, "v": "\0"}, {"id": 2, "v": "\0"}], [{"id": 3, "v": "\0"}]])
    sink.prepare(rows.schema)
    with pytest.raises(SinkError, match=r"more than 2 rows.*0x00"):
        sink.write(rows, FIRST, letters)
    assert not sink.is_written(FIRST)
    assert stages(admin) == []


def test_constraint_that_is_checked_late_is_laid_to_its_row(
    url: str, admin: psycopg.Connection, letters: Letters
) -> None:
    admin.execute("CREATE TABLE kinds (id bigint PRIMARY KEY)")
    admin.execute("INSERT INTO kinds VALUES (1)")
    admin.execute("CREATE TABLE items (id bigint REFERENCES kinds DEFERRABLE INITIALLY DEFERRED, v text)")
    sink = open_postgres(url)
    rows = Rows(DDL, [[{"id": 1}, {"id": 2}]])
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 1
    assert [row["id"] for row in letters.rows] == [2]


def test_names_of_staging_tables_are_short(url: str, admin: psycopg.Connection, letters: Letters) -> None:
    seen: list[str] = []
    sink = open_postgres(url, sink="s" * 200)
    rows = Rows(DDL, [[{"id": 1}]], lambda write: seen.extend(each for (each,) in stages(admin)))
    sink.prepare(rows.schema)
    sink.write(rows, BatchId("q", 2**63 - 1), letters)
    assert len(seen) == 1 and len(seen[0]) <= 63
