"""Avro values, all at once and one by one; fastavro's writer and reader are the judges."""

import datetime as dt
import decimal
import io
import json
import pickle
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark.errors import FormatError, OptionError
from penstock.spark.formats import open_format
from penstock.spark.formats.avro import AvroFormat
from penstock.spark.formats.scanning import MAX_ITEMS

UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": part, "type": kind} for part, kind in fields]}


def opened(schema: Any, **more: str) -> AvroFormat:
    form = open_format({"format": "avro", "schema": json.dumps(schema), **more})
    assert isinstance(form, AvroFormat)
    return form


def encoded(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def tables(form: AvroFormat, values: list[bytes | None]) -> tuple[pa.Table, pa.Table]:
    """What `decode` says and what the slow way says."""
    schema = to_arrow_schema(form.fields, timezone="UTC")
    found = []
    for arrays, errors in (
        form.decode(pa.array(values, pa.binary())),
        form.decode_slowly(pa.array(values, pa.binary())),
    ):
        assert [array.type for array in arrays] == [field.type for field in schema]
        for array in arrays:
            array.validate(full=True)
        found.append(pa.table([*arrays, errors], [*schema.names, "_error"]))
    return found[0], found[1]


def plain(kind: pa.DataType) -> pa.DataType:
    """The type with numbers for dates and times: Python has none beyond the year 9999."""
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain(field.type)) for field in kind])
    return kind


def raw_rows(form: AvroFormat, values: list[bytes | None]) -> list[str]:
    """Each row as text, dates and times as numbers; both ways, which must agree."""
    quick, slow = (
        [repr(row) for row in table.cast(pa.schema([(f.name, plain(f.type)) for f in table.schema])).to_pylist()]
        for table in tables(form, values)
    )
    assert quick == slow
    return quick


def rows(form: AvroFormat, values: list[bytes | None]) -> list[dict[str, Any]]:
    raw_rows(form, values)
    return tables(form, values)[0].to_pylist(maps_as_pydicts="strict")


FLAT = record(
    ("flag", "boolean"),
    ("i", "int"),
    ("id", "long"),
    ("f", "float"),
    ("d", "double"),
    ("name", "string"),
    ("raw", "bytes"),
    ("maybe", ["null", "string"]),
    ("number", ["long", "null"]),
    ("colour", {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}),
    ("mac", {"type": "fixed", "name": "Mac", "size": 6}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("millis", {"type": "long", "logicalType": "timestamp-millis"}),
    ("micros", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    ("fee", {"type": "fixed", "name": "Fee", "size": 5, "logicalType": "decimal", "precision": 8, "scale": 3}),
    ("uuid", {"type": "string", "logicalType": "uuid"}),
    ("time", {"type": "int", "logicalType": "time-millis"}),
    ("tags", {"type": "array", "items": ["null", "string"]}),
    ("place", ["null", record(("x", "int"), ("deep", record(("y", ["null", "double"]), name="Deep")), name="Place")]),
    ("places", {"type": "array", "items": "Place"}),
)


def test_columns_of_every_type() -> None:
    assert opened(FLAT, prefix="v_").fields.simpleString() == (
        "struct<v_flag:boolean,v_i:int,v_id:bigint,v_f:float,v_d:double,v_name:string,v_raw:binary,v_maybe:string,v_number:bigint,"
        "v_colour:string,v_mac:binary,v_day:date,v_millis:timestamp,v_micros:timestamp,v_local:timestamp_ntz,v_price:decimal(10,2),"
        "v_fee:decimal(8,3),v_uuid:string,v_time:int,v_tags:array<string>,v_place:struct<x:int,deep:struct<y:double>>,"
        "v_places:array<struct<x:int,deep:struct<y:double>>>>"
    )


_flat_values = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "i": st.integers(-(2**31), 2**31 - 1),
        "id": st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "name": st.text(max_size=200),
        "raw": st.binary(max_size=100),
        "maybe": st.none() | st.text(max_size=10),
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "colour": st.sampled_from(["RED", "BLUE"]),
        "mac": st.binary(min_size=6, max_size=6),
        "day": st.dates(),
        "millis": st.integers(0, 253402300799999).map(lambda ms: EPOCH + dt.timedelta(milliseconds=ms)),
        "micros": st.none() | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(UTC)),
        "local": st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)),
        "price": st.integers(-(10**10) + 1, 10**10 - 1).map(lambda cents: decimal.Decimal(cents).scaleb(-2)),
        "fee": st.integers(-(10**8) + 1, 10**8 - 1).map(lambda cents: decimal.Decimal(cents).scaleb(-3)),
        "uuid": st.uuids().map(str),
        "time": st.integers(0, 86399999).map(lambda ms: (dt.datetime.min + dt.timedelta(milliseconds=ms)).time()),
        "tags": st.lists(st.none() | st.text(max_size=5), max_size=MAX_ITEMS + 2),
        "place": st.none()
        | st.fixed_dictionaries(
            {"x": st.integers(-5, 5), "deep": st.fixed_dictionaries({"y": st.none() | st.floats(allow_nan=False)})}
        ),
        "places": st.lists(st.fixed_dictionaries({"x": st.integers(-5, 5), "deep": st.just({"y": None})}), max_size=3),
    }
)


def _expected(value: dict[str, Any]) -> dict[str, Any]:
    time = value["time"]
    millis = ((time.hour * 60 + time.minute) * 60 + time.second) * 1000 + time.microsecond // 1000
    return {**value, "time": millis, "_error": None}


@settings(deadline=None)
@given(st.lists(_flat_values, max_size=5), st.data())
def test_good_values_round_trip_whatever_stands_between(good: list[dict[str, Any]], data: st.DataObject) -> None:
    values: list[bytes | None] = [encoded(FLAT, value) for value in good]
    place = data.draw(st.integers(0, len(good)))
    bad = data.draw(st.none() | st.just(b"\xff" * 12))
    found = rows(opened(FLAT), [*values[:place], bad, *values[place:]])
    between = found.pop(place)
    assert (between.pop("_error") is None) == (bad is None)
    assert set(between.values()) == {None}
    assert found == [_expected(value) for value in good]


@settings(deadline=None)
@given(st.lists(_flat_values, min_size=1, max_size=4), st.data())
def test_damaged_values_mean_the_same_both_ways(good: list[dict[str, Any]], data: st.DataObject) -> None:
    damaged: list[bytes | None] = []
    for value in good:
        raw = bytearray(encoded(FLAT, value))
        for place in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=2)):
            raw[place] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        cut = data.draw(st.integers(0, len(raw) * 2))
        damaged.append(bytes(raw[:cut]) + data.draw(st.binary(max_size=2)))
    form = opened(FLAT)
    assert raw_rows(form, damaged) == [raw_rows(form, [value])[0] for value in damaged]


SMALL = [
    record(("a", "long")),
    record(("a", "int"), ("b", ["null", "string"])),
    record(("a", {"type": "enum", "name": "E", "symbols": ["x", "y"]}), ("b", "boolean")),
    record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1})),
    record(("a", {"type": "array", "items": "int"}), ("b", ["null", "bytes"])),
    record(("a", {"type": "map", "values": "long"})),
    record(("a", {"type": "long", "logicalType": "timestamp-millis"}), ("b", "float")),
    record(("a", ["int"])),
]


@settings(deadline=None)
@given(st.sampled_from(SMALL), st.lists(st.none() | st.binary(max_size=12), max_size=6))
def test_random_bytes_never_raise_and_mean_the_same_both_ways(schema: Any, values: list[bytes | None]) -> None:
    form = opened(schema)
    assert raw_rows(form, values) == [raw_rows(form, [value])[0] for value in values]


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        (record(("a", "long")), b"", "ends too early"),
        (record(("a", "long")), b"\x02\x02", "1 bytes too many"),
        (record(("a", "string")), b"\x08abc", "ends too early"),
        (record(("a", "string")), b"\x01abc", "ends too early"),
        (record(("a", "string")), b"\x02\xff", "utf-8"),
        (record(("a", "int")), b"\x80\x80\x80\x80\x20", "a: "),
        (record(("a", ["null", "int"])), b"\x04\x00", "branch"),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["x"]})), b"\x02", "a: 1"),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["x"]})), b"\x01", "a: -1"),
        (record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 2})), b"\x02\x64", "a: "),
        (record(("a", {"type": "long", "logicalType": "timestamp-millis"})), b"\xff" * 9 + b"\x01", "a: "),
        (record(("a", {"type": "array", "items": "long"})), b"\xfe" + b"\xff" * 8 + b"\x01", "ends too early"),
    ],
)
def test_reasons(schema: Any, value: bytes, words: str) -> None:
    (row,) = rows(opened(schema), [value])
    assert row["a"] is None
    assert row["_error"].startswith("avro: ") and words in row["_error"]
    assert value.hex() in row["_error"] if value else row["_error"].endswith("the value is empty")


def test_blocks_with_sizes_and_long_arrays_are_read_too() -> None:
    schema = record(("a", {"type": "array", "items": "int"}))
    values: list[bytes | None] = [
        b"\x03\x04\x02\x04\x00",
        b"\x02\x02\x02\x04\x00",
        encoded(schema, {"a": list(range(500))}),
        b"\x00",
    ]
    assert [row["a"] for row in rows(opened(schema), values)] == [[1, 2], [1, 2], list(range(500)), []]


def test_what_only_looks_like_a_plain_array_is_read_as_what_it_is() -> None:
    """Two blocks; taking the second for the end of the array would leave a text of just the bytes that are left."""
    schema = record(("a", {"type": "array", "items": "int"}), ("b", "string"))
    assert rows(opened(schema), [b"\x02\x02\x02\x06\x00\x02x"]) == [{"a": [1, 3], "b": "x", "_error": None}]


def test_any_byte_but_zero_is_true() -> None:
    assert [row["a"] for row in rows(opened(record(("a", "boolean"))), [b"\x00", b"\x01", b"\x02"])] == [
        False,
        True,
        True,
    ]


def test_maps_take_the_last_of_two_keys() -> None:
    (row,) = rows(opened(record(("a", {"type": "map", "values": "int"}))), [b"\x04\x02k\x02\x02k\x04\x00"])
    assert row == {"a": {"k": 2}, "_error": None}


def test_decimals_beyond_64_bits() -> None:
    schema = record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 4}))
    numbers = [
        decimal.Decimal(digits)
        for digits in ("12345678901234567890123456789012.3456", "-0.0001", "0", "922337203685477.5808")
    ]
    found = rows(opened(schema), [encoded(schema, {"a": number}) for number in numbers])
    assert [row["a"] for row in found] == numbers


def test_plain_values_are_all_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {
        "flag": True,
        "i": -(2**31),
        "id": 2**63 - 1,
        "f": 1.5,
        "d": -0.0,
        "name": "é" * 70,
        "raw": b"",
        "maybe": None,
        "number": -1,
        "colour": "BLUE",
        "mac": b"abcdef",
        "day": dt.date(1900, 1, 1),
        "millis": EPOCH,
        "micros": EPOCH,
        "local": dt.datetime(2024, 1, 1),
        "price": decimal.Decimal("-12345678.90"),
        "fee": decimal.Decimal("0.001"),
        "uuid": "x",
        "time": dt.time(),
        "tags": ["x", None] * (MAX_ITEMS // 2),
        "place": {"x": 1, "deep": {"y": None}},
        "places": [{"x": 1, "deep": {"y": 0.5}}],
    }
    form = opened(FLAT)
    monkeypatch.setattr(form, "decode_slowly", lambda values: pytest.fail(f"{len(values)} values the slow way"))
    values = pa.array(
        [encoded(FLAT, value), None, encoded(FLAT, {**value, "maybe": "", "place": None, "tags": []})], pa.binary()
    )
    assert form.decode(values)[1].null_count == 3


def test_one_bad_value_among_many_is_alone() -> None:
    schema = record(("a", "string"), ("b", ["null", "long"]))
    values: list[bytes | None] = [
        encoded(schema, {"a": str(row), "b": row if row % 3 else None}) for row in range(5_000)
    ]
    values[4_000] = b"\x02"
    values[17] = None
    (names, numbers), errors = opened(schema).decode(pa.array(values, pa.binary()))
    assert [row for row, text in enumerate(errors.to_pylist()) if text] == [4_000]
    gone = (17, 4_000)
    assert names.to_pylist() == [None if row in gone else str(row) for row in range(5_000)]
    assert numbers.to_pylist() == [row if row % 3 and row not in gone else None for row in range(5_000)]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (record(("a", ["null", "int", "string"])), "union of 2 types"),
        (record(("a", ["int", "string"])), "union of 2 types"),
        (record(("a", ["null"])), "union of 0 types"),
        (record(("a", "null")), "null"),
        (record(("a", record(name="Empty"))), "without fields"),
        (record(("a", {"type": "fixed", "name": "F", "size": 0})), "fixed of 0 bytes"),
        (record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 0})), "up to 38 digits"),
        (record(("next", ["null", "R"])), "contains itself"),
        (record(("all", {"type": "array", "items": "R"})), "contains itself"),
        (record(("A", "int"), ("a", "int")), "twice for Spark"),
        (record(("offset", "int")), "value.prefix"),
    ],
)
def test_schemas_without_columns_are_refused(schema: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        opened(schema)


def test_a_small_schema_that_is_huge_is_refused() -> None:
    level: Any = record(("a", "int"), name="L0")
    for depth in range(1, 20):
        level = record(("a", level), ("b", f"L{depth - 1}"), name=f"L{depth}")
    with pytest.raises(OptionError, match="more than 5000 types"):
        opened(level)


@pytest.mark.parametrize(
    "text",
    ["{", '"string"', "[]", '{"type":"record"}', '{"type":"record","name":"R","fields":[{"name":"a","type":"nix"}]}'],
)
def test_what_is_no_record_schema_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="Avro schema"):
        open_format({"format": "avro", "schema": text})


def test_names_in_namespaces_and_used_again() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "namespace": "org.x",
        "fields": [
            {"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["p", "q"]}},
            {"name": "b", "type": ["null", "org.x.E"]},
            {"name": "c", "type": {"type": "array", "items": "E"}},
        ],
    }
    value = {"a": "q", "b": "p", "c": ["q", "q"]}
    assert rows(opened(schema), [encoded(schema, value)]) == [{**value, "_error": None}]


def test_the_schema_from_a_file_travels_with_the_format(tmp_path: Path) -> None:
    file = tmp_path / "r.avsc"
    file.write_text(json.dumps(FLAT))
    form = open_format({"format": "avro", "schema.file": str(file)})
    file.unlink()
    arrived = pickle.loads(pickle.dumps(form))  # noqa: S301
    assert arrived.fields == form.fields
    assert arrived.decode(pa.array([b""], pa.binary()))[1].null_count == 0


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_schema_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "r.avsc"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(FormatError, match=r"r\.avsc"):
        open_format({"format": "avro", "schema.file": str(file)})


def test_a_slice_is_read_from_where_it_begins() -> None:
    schema = record(("a", "string"))
    values = pa.array([encoded(schema, {"a": text}) for text in ("x", "yy", "zzz")], pa.binary())
    assert opened(schema).decode(values[1:])[0][0].to_pylist() == ["yy", "zzz"]
    assert opened(schema).decode(values[3:])[0][0].to_pylist() == []
