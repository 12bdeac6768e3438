"""What of the rows leaves Spark, and the types it becomes."""

from typing import Any

import pytest

from penstock.pipelines.errors import SinkError
from penstock.pipelines.model import SinkSpec
from penstock.pipelines.sinks.jdbc import postgres_table, sqlite_table
from penstock.pipelines.sinks.jdbc.columns import Shape, shape_of
from penstock.pipelines.sinks.jdbc.options import read_options
from penstock.spark.formats.ddl import parse_schema


def shape(ddl: str, **keys: Any) -> Shape:
    if keys.get("keys"):
        keys["mode"] = "upsert"
    spec = SinkSpec("shop", "jdbc", "rows", {"jdbc": "", "table": "items", **keys})
    return shape_of(parse_schema(ddl), read_options(spec, "revenue"))


@pytest.mark.parametrize(
    ("spark", "postgres", "sqlite"),
    [
        ("boolean", "boolean", "BOOLEAN"),
        ("tinyint", "smallint", "INTEGER"),
        ("smallint", "smallint", "INTEGER"),
        ("int", "integer", "INTEGER"),
        ("bigint", "bigint", "INTEGER"),
        ("float", "real", "REAL"),
        ("double", "double precision", "REAL"),
        ("decimal(20,4)", "numeric(20,4)", "TEXT"),
        ("string", "text", "TEXT"),
        ("binary", "bytea", "BLOB"),
        ("date", "date", "TEXT"),
        ("timestamp", "timestamp with time zone", "TEXT"),
        ("timestamp_ntz", "timestamp without time zone", "TEXT"),
        ("array<int>", "jsonb", "TEXT"),
        ("map<string,int>", "jsonb", "TEXT"),
        ("struct<a:int>", "jsonb", "TEXT"),
    ],
)
def test_type(spark: str, postgres: str, sqlite: str) -> None:
    (column,) = shape(f"a {spark}").written
    assert (postgres_table.type_of(column), sqlite_table.type_of(column)) == (postgres, sqlite)


@pytest.mark.parametrize("spark", ["interval day to second", "variant", "void"])
def test_type_without_a_place(spark: str) -> None:
    with pytest.raises(SinkError, match=r"sink shop: column a has the type .* cast it"):
        shape(f"id bigint, a {spark}")


def test_extra_columns_are_staged_and_not_written() -> None:
    made = shape("id bigint, op string, lsn bigint", keys=["id"], order_by=["lsn"], without=["op", "lsn"])
    assert [column.name for column in made.written] == ["id"]
    assert [column.name for column in made.staged] == ["id", "lsn"]


def test_flag_that_is_a_column_is_not_written() -> None:
    made = shape("id bigint, gone boolean", keys=["id"], delete_when="gone")
    assert [column.name for column in made.staged] == ["id", "_penstock_delete"]


def test_predicate_keeps_its_columns() -> None:
    made = shape("id bigint, op string", keys=["id"], delete_when="op = 'd'")
    assert [column.name for column in made.staged] == ["id", "op", "_penstock_delete"]


@pytest.mark.parametrize(
    ("ddl", "keys", "says"),
    [
        ("id bigint", {"keys": ["no"]}, "keys: the rows have no column no; they have id"),
        ("id bigint", {"keys": ["id"], "order_by": ["no"]}, "order_by: .* no;"),
        ("id bigint", {"without": ["no"]}, "without: .* no;"),
        ("id bigint", {"without": ["id"]}, "no column is left"),
        ("id bigint, op string", {"keys": ["id"], "delete_when": "op"}, "op is string, not boolean"),
        ("id array<int>", {"keys": ["id"]}, "a key is one value"),
        ("_penstock_delete int", {}, "rename it"),
    ],
)
def test_columns_that_do_not_do(ddl: str, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(SinkError, match=says):
        shape(ddl, **keys)


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("BIGINT", "INTEGER"),
        ("varchar(20)", "TEXT"),
        ("DOUBLE PRECISION", "REAL"),
        ("", "BLOB"),
        ("UUID", "NUMERIC"),
        ("CHARINT", "INTEGER"),
    ],
)
def test_affinity(declared: str, kind: str) -> None:
    assert sqlite_table.affinity(declared) == kind
