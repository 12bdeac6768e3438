"""Rows into the form of a table: paths, defaults, nested values, and what is refused before the first row."""

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.pipelines.errors import SinkError
from penstock.pipelines.sinks.bigquery.fields import Field, Rules
from penstock.pipelines.sinks.bigquery.mapping import new_table, plan
from penstock.pipelines.sinks.bigquery.projection import project
from penstock.spark.formats.ddl import parse_schema

STRING = "STRING"
ADDRESS = Field("address", "RECORD", fields=(Field("city", STRING), Field("zip", STRING)))
CUSTOMER = Field("customer", "RECORD", fields=(Field("name", STRING), ADDRESS))
RULES = Rules("warehouse")


def mapped(
    schema: str,
    rows: list[dict[str, Any]],
    table: tuple[Field, ...],
    mapping: dict[str, str] | None = None,
    defaults: dict[str, Any] | None = None,
    rules: Rules = RULES,
) -> list[dict[str, Any]]:
    columns = parse_schema(schema)
    made = plan(columns, table, mapping or {}, defaults or {}, rules)
    batch = pa.RecordBatch.from_pylist(rows, to_arrow_schema(columns))
    # A slice that does not begin at 0 is what tasks see after a cut.
    padded = pa.concat_batches([batch.slice(0, 1), batch]).slice(1)
    done, refused = project(made, padded)
    assert refused == {}
    return list(done.ready.to_pylist())


def refusal(
    schema: str, table: tuple[Field, ...], mapping: Any = None, defaults: Any = None, rules: Any = RULES
) -> str:
    with pytest.raises(SinkError) as caught:
        plan(parse_schema(schema), table, mapping or {}, defaults or {}, rules)
    return str(caught.value)


def test_by_name_whatever_the_case_in_the_spelling_of_the_table() -> None:
    assert mapped("ID BIGINT", [{"ID": 1}], (Field("Id", "INTEGER"),)) == [{"Id": 1}]


def test_paths_on_both_sides() -> None:
    got = mapped(
        "`order` STRUCT<id: BIGINT>, city STRING, name STRING",
        [{"order": {"id": 7}, "city": "Rome", "name": "Ann"}, {"order": None, "city": None, "name": None}],
        (Field("id", "INTEGER"), CUSTOMER),
        {"id": "order.id", "customer.address.city": "city", "customer.name": "name"},
    )
    assert got == [
        {"id": 7, "customer": {"address": {"city": "Rome"}, "name": "Ann"}},
        {"id": None, "customer": {"address": {"city": None}, "name": None}},
    ]


def test_a_column_with_a_dot_in_its_name_comes_before_a_path() -> None:
    got = mapped(
        "`a.b` STRING, a STRUCT<b: STRING>",
        [{"a.b": "column", "a": {"b": "path"}}],
        (Field("x", STRING),),
        {"x": "a.b"},
    )
    assert got == [{"x": "column"}]


def test_structs_and_arrays_go_whole() -> None:
    lines = Field("lines", "RECORD", repeated=True, fields=(Field("sku", STRING), Field("count", "INTEGER")))
    row = {"c": {"name": "Ann", "address": {"city": "Rome", "zip": None}}, "l": [{"sku": "a", "count": 1}]}
    got = mapped(
        "c STRUCT<name: STRING, address: STRUCT<city: STRING, zip: STRING>>, l ARRAY<STRUCT<sku: STRING, count: INT>>",
        [row, {"c": None, "l": []}, {"c": {"name": None, "address": None}, "l": None}],
        (CUSTOMER, lines),
        {"customer": "c", "lines": "l"},
    )
    assert got == [
        {"customer": row["c"], "lines": row["l"]},
        {"customer": None, "lines": []},
        {"customer": {"name": None, "address": None}, "lines": []},
    ]


def test_a_struct_may_lack_fields_of_the_record_and_have_them_in_another_order() -> None:
    got = mapped(
        "customer STRUCT<ADDRESS: STRUCT<zip: STRING>>", [{"customer": {"ADDRESS": {"zip": "1"}}}], (CUSTOMER,)
    )
    assert got == [{"customer": {"address": {"zip": "1"}}}]


def test_maps_become_repeated_records() -> None:
    pairs = Field("tags", "RECORD", repeated=True, fields=(Field("key", STRING), Field("value", "INTEGER")))
    got = mapped("tags MAP<STRING, INT>", [{"tags": [("a", 1), ("b", None)]}, {"tags": None}], (pairs,))
    assert got == [{"tags": [{"key": "a", "value": 1}, {"key": "b", "value": None}]}, {"tags": []}]


@pytest.mark.parametrize(
    ("field", "value", "filled"),
    [
        (Field("x", "INTEGER"), 5, 5),
        (Field("x", "NUMERIC"), 1.5, Decimal("1.500000000")),
        (Field("x", "DATE"), "2026-01-02", datetime.date(2026, 1, 2)),
        (Field("x", STRING), "?", "?"),
        (Field("x", STRING, repeated=True), ["a", "b"], ["a", "b"]),
    ],
)
def test_a_default_stands_for_null_and_for_a_missing_column(field: Field, value: Any, filled: Any) -> None:
    kinds = {"INTEGER": "INT", "NUMERIC": "DECIMAL(5,2)", "DATE": "DATE", STRING: "STRING"}
    kind = f"ARRAY<{kinds[field.type]}>" if field.repeated else kinds[field.type]
    assert mapped(f"x {kind}", [{"x": None}], (field,), defaults={"x": value}) == [{"x": filled}]
    missing = mapped("y INT", [{"y": 1}], (field,), {"x": "nowhere"}, {"x": value})
    assert missing == [{"x": filled}]


def test_a_default_leaves_what_is_there() -> None:
    assert mapped("x INT", [{"x": 0}, {"x": None}], (Field("x", "INTEGER"),), defaults={"x": 9}) == [{"x": 0}, {"x": 9}]


def test_a_default_below_a_struct_holds_also_where_the_struct_is_null() -> None:
    got = mapped(
        "customer STRUCT<name: STRING, address: STRUCT<city: STRING, zip: STRING>>",
        [
            {"customer": {"name": "Ann", "address": {"city": "Rome", "zip": "1"}}},
            {"customer": {"name": "Bob", "address": None}},
            {"customer": None},
        ],
        (CUSTOMER,),
        defaults={"customer.address.city": "?"},
    )
    assert got == [
        {"customer": {"name": "Ann", "address": {"city": "Rome", "zip": "1"}}},
        {"customer": {"name": "Bob", "address": {"city": "?", "zip": None}}},
        {"customer": {"name": None, "address": {"city": "?", "zip": None}}},
    ]


def test_a_default_alone_fills_a_field() -> None:
    table = (Field("id", "INTEGER"), Field("source", STRING, required=True))
    assert mapped("id INT", [{"id": 1}], table, defaults={"source": "web"}) == [{"id": 1, "source": "web"}]


def test_what_the_table_lacks_may_be_left_out_also_inside_structs() -> None:
    loose = Rules("warehouse", ignore_unknown=True)
    row = {"customer": {"name": "Ann", "age": 3}, "more": 1}
    got = mapped("customer STRUCT<name: STRING, age: INT>, more INT", [row], (CUSTOMER,), rules=loose)
    assert got == [{"customer": {"name": "Ann"}}]


def test_null_inside_an_array_refuses_its_row_alone() -> None:
    inner = Field("tags", STRING, repeated=True)
    table = (Field("lines", "RECORD", repeated=True, fields=(inner,)),)
    columns = parse_schema("lines ARRAY<STRUCT<tags: ARRAY<STRING>>>")
    rows = [{"lines": [{"tags": ["a"]}]}, {"lines": None}, {"lines": [{"tags": []}, {"tags": ["a", None]}]}]
    batch = pa.RecordBatch.from_pylist(rows, to_arrow_schema(columns))
    done, refused = project(plan(columns, table, {}, {}, RULES), batch)
    assert refused == {2: "field tags: an array in BigQuery holds no null"}
    assert done.without(refused).ready.to_pylist() == [{"lines": [{"tags": ["a"]}]}, {"lines": []}]


REFUSALS: list[tuple[str, tuple[Field, ...], dict[str, str], dict[str, Any], list[str]]] = [
    ("a INT, b INT", (Field("a", "INTEGER"),), {}, {}, ["no field b", "ignore_unknown"]),
    ("c STRUCT<x: INT>", (Field("c", "RECORD", fields=(Field("y", "INTEGER"),)),), {}, {}, ["no field c.x", "c.x"]),
    ("a STRING", (Field("a", "INTEGER"),), {}, {}, ["column a is string", "field a is INTEGER"]),
    ("a ARRAY<INT>", (Field("a", "INTEGER"),), {}, {}, ["array<int>", "ARRAY<INTEGER>", "field a is INTEGER"]),
    ("a INT", (Field("a", "INTEGER", repeated=True),), {}, {}, ["column a is int", "ARRAY<INTEGER>"]),
    ("a ARRAY<ARRAY<INT>>", (Field("a", "INTEGER", repeated=True),), {}, {}, ["column a", "no arrays of arrays"]),
    ("a DECIMAL(38,18)", (Field("a", "NUMERIC"),), {}, {}, ["decimal(38,18)", "NUMERIC", "BIGNUMERIC"]),
    ("a STRING", (Field("a", "TIME"),), {}, {}, ["TIME", "method: insert_all"]),
    ("a INTERVAL DAY TO SECOND", (Field("a", STRING),), {}, {}, ["column a is interval day to second", "Cast"]),
    ("a INT", (Field("a", "INTEGER"), Field("b", STRING, required=True)), {}, {}, ["requires field b", "defaults"]),
    ("a INT", (Field("x", "INTEGER"),), {"x": "z"}, {}, ["mapping.x names column z", "they have a"]),
    ("a INT", (Field("x", "INTEGER"),), {"x": "a.b"}, {}, ["names column a.b"]),
    ("a INT", (Field("x", "INTEGER"),), {"y": "a"}, {}, ["no field y", "column a"]),
    ("a STRING", (CUSTOMER,), {"customer": "a", "customer.name": "a"}, {}, ["fills customer.name twice"]),
    ("a STRING", (CUSTOMER,), {"customer.name": "a", "customer": "a"}, {}, ["fills customer twice"]),
    ("a INT", (Field("a", "INTEGER"),), {}, {"a": "many"}, ["defaults.a is 'many'", "INTEGER"]),
    ("a INT", (Field("a", "INTEGER"),), {}, {"a": None}, ["defaults.a is empty"]),
    ("a INT", (Field("a", "INTEGER"),), {}, {"a.b": 1}, ["defaults.a.b", "not a struct"]),
    ("a STRING", (CUSTOMER,), {"customer.name": "a"}, {"customer": "x"}, ["defaults.customer", "name its fields"]),
    ("a INT, A INT", (Field("a", "INTEGER"),), {}, {}, ["columns a and A", "Rename"]),
    ("a STRING", (Field("customer", STRING),), {"customer.name": "a"}, {}, ["mapped as a record", "STRING"]),
]


@pytest.mark.parametrize(
    ("schema", "table", "mapping", "defaults", "words"), REFUSALS, ids=[each[4][0] for each in REFUSALS]
)
def test_what_does_not_fit_is_named_with_both_types_and_a_way_out(
    schema: str, table: tuple[Field, ...], mapping: dict[str, str], defaults: dict[str, Any], words: list[str]
) -> None:
    text = refusal(schema, table, mapping, defaults)
    assert text.startswith("sink warehouse: ")
    for word in words:
        assert word in text


def test_nothing_left_to_write_is_told() -> None:
    assert "no column goes into the table" in refusal(
        "a INT", (Field("b", "INTEGER"),), rules=Rules("warehouse", ignore_unknown=True)
    )


def test_time_goes_by_insert_all() -> None:
    got = mapped("a STRING", [{"a": "12:30:00"}], (Field("a", "TIME"),), rules=Rules("warehouse", rest=True))
    assert got == [{"a": "12:30:00"}]


def test_a_new_table_has_the_types_of_the_rows() -> None:
    made = new_table(
        parse_schema(
            "b BOOLEAN, i TINYINT, f FLOAT, d DECIMAL(10,2), big DECIMAL(38,18), s STRING, y BINARY, day DATE, "
            "at TIMESTAMP, local TIMESTAMP_NTZ, list ARRAY<INT>, pairs MAP<STRING, DOUBLE>, inner STRUCT<x: BIGINT>"
        ),
        {},
        {"source": "web"},
        "warehouse",
    )
    assert [(each.name, str(each)) for each in made] == [
        ("b", "BOOLEAN"),
        ("i", "INTEGER"),
        ("f", "FLOAT"),
        ("d", "NUMERIC"),
        ("big", "BIGNUMERIC"),
        ("s", "STRING"),
        ("y", "BYTES"),
        ("day", "DATE"),
        ("at", "TIMESTAMP"),
        ("local", "DATETIME"),
        ("list", "ARRAY<INTEGER>"),
        ("pairs", "ARRAY<RECORD<key STRING, value FLOAT>>"),
        ("inner", "RECORD<x INTEGER>"),
        ("source", "STRING"),
    ]


def test_a_new_table_of_a_mapping_has_its_records() -> None:
    made = new_table(parse_schema("city STRING, id INT"), {"customer.city": "city", "id": "id"}, {}, "warehouse")
    assert [(each.name, str(each)) for each in made] == [("customer", "RECORD<city STRING>"), ("id", "INTEGER")]
