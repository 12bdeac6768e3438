"""JSON and MessagePack values against a schema."""

import datetime as dt
import decimal
import json
import math
import pickle
import struct
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark.formats import ValueFormat, open_format

UTC = dt.UTC
SCHEMA = (
    "flag BOOLEAN, tiny TINYINT, small SMALLINT, i INT, id BIGINT, f FLOAT, d DOUBLE, price DECIMAL(10,2), "
    "name STRING, raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<STRING>, "
    "place STRUCT<x: INT, inner: STRUCT<y: DOUBLE>>, counts MAP<STRING, BIGINT>, deep ARRAY<MAP<STRING, ARRAY<INT>>>"
)


def opened(schema: str, kind: str = "json", **more: str) -> ValueFormat:
    return open_format({"format": kind, "schema": schema, **more})


def rows(form: ValueFormat, values: list[bytes | None]) -> list[dict[str, Any]]:
    """Each row's fields by name, with its error, types checked."""
    arrays, errors = form.decode(pa.array(values, pa.binary()))
    schema = to_arrow_schema(form.fields, timezone="UTC")
    assert [array.type for array in arrays] == [field.type for field in schema]
    assert errors.type == pa.string() and len(errors) == len(values)
    for array in arrays:
        array.validate(full=True)
        assert len(array) == len(values)
    table = pa.table([*arrays, errors], [*schema.names, "_error"])
    return table.to_pylist(maps_as_pydicts="strict")


def one(schema: str, value: bytes, kind: str = "json") -> object:
    """The only column's value; fails on an error."""
    (row,) = rows(opened(schema, kind), [value])
    assert row.pop("_error") is None, row
    return row.popitem()[1]


def error(schema: str, value: bytes, kind: str = "json") -> str:
    """The reason; every field must be null."""
    (row,) = rows(opened(schema, kind), [value])
    reason = row.pop("_error")
    assert isinstance(reason, str) and reason.startswith(kind + ": ")
    assert set(row.values()) == {None}
    return reason


def test_every_type_from_json() -> None:
    value = (
        b'{"flag":true,"tiny":-128,"small":32767,"i":-5,"id":9223372036854775807,"f":1.5,"d":2,"price":12345678.90,'
        b'"name":"\xc3\xa9","raw":"aGk=","day":"2024-02-29","at":"2024-02-29T10:00:00.5+02:00",'
        b'"local":"2024-02-29 10:00:00","tags":["a",null,""],"place":{"x":1,"inner":{"y":0.5}},'
        b'"counts":{"a":1,"b":null},"deep":[{"k":[1,null]},null,{}],'
        b'"unknown":[{"x":1}]}'
    )
    (row,) = rows(opened(SCHEMA), [value])
    assert row == {
        "flag": True,
        "tiny": -128,
        "small": 32767,
        "i": -5,
        "id": 2**63 - 1,
        "f": 1.5,
        "d": 2.0,
        "price": decimal.Decimal("12345678.90"),
        "name": "é",
        "raw": b"hi",
        "day": dt.date(2024, 2, 29),
        "at": dt.datetime(2024, 2, 29, 8, 0, 0, 500000, UTC),
        "local": dt.datetime(2024, 2, 29, 10),
        "tags": ["a", None, ""],
        "place": {"x": 1, "inner": {"y": 0.5}},
        "counts": {"a": 1, "b": None},
        "deep": [{"k": [1, None]}, None, {}],
        "_error": None,
    }


def test_every_type_from_msgpack() -> None:
    at = dt.datetime(2024, 2, 29, 8, 0, 0, 500000, UTC)
    value = {
        "flag": False,
        "tiny": 127,
        "small": -1,
        "i": 2**31 - 1,
        "id": -(2**63),
        "f": math.inf,
        "d": math.nan,
        "price": "1.5",
        "name": "",
        "raw": b"\x00\xff",
        "day": "2024-02-29",
        "at": at,
        "local": "2024-02-29T10:00:00",
        "tags": [],
        "place": {"inner": None},
        "counts": {"a": 1},
        "deep": [],
        "unknown": {"x": [1]},
    }
    (row,) = rows(opened(SCHEMA, "msgpack"), [msgspec.msgpack.encode(value)])
    assert math.isnan(row.pop("d"))
    assert row == {
        **{name: found for name, found in value.items() if name not in ("unknown", "d")},
        "price": decimal.Decimal("1.50"),
        "day": dt.date(2024, 2, 29),
        "local": dt.datetime(2024, 2, 29, 10),
        "place": {"x": None, "inner": None},
        "_error": None,
    }


@pytest.mark.parametrize(("kind", "empty"), [("json", b"{}"), ("msgpack", b"\x80")])
def test_missing_fields_and_tombstones_are_null_without_error(kind: str, empty: bytes) -> None:
    for row in rows(opened(SCHEMA, kind), [empty, None]):
        assert set(row.values()) == {None}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("a TINYINT", b'{"a":128}'),
        ("a SMALLINT", b'{"a":-32769}'),
        ("a INT", b'{"a":2147483648}'),
        ("a BIGINT", b'{"a":9223372036854775808}'),
        ("a BIGINT", b'{"a":123456789012345678901234567890}'),
        ("a INT", b'{"a":1.0}'),
        ("a INT", b'{"a":true}'),
        ("a INT", b'{"a":"1"}'),
        ("a BOOLEAN", b'{"a":1}'),
        ("a STRING", b'{"a":1}'),
        ("a STRING", b'{"a":{}}'),
        ("a DOUBLE", b'{"a":NaN}'),
        ("a DOUBLE", b'{"a":"NaN"}'),
        ("a DOUBLE", b'{"a":1e999}'),
        ("a FLOAT", b'{"a":1e39}'),
        ("a DECIMAL(4,2)", b'{"a":1.234}'),
        ("a DECIMAL(4,2)", b'{"a":100}'),
        ("a DECIMAL(4,2)", b'{"a":"NaN"}'),
        ("a DECIMAL(4,2)", b'{"a":1e999999999}'),
        ("a BINARY", b'{"a":"a b"}'),
        ("a DATE", b'{"a":"2024-02-30"}'),
        ("a DATE", b'{"a":"2024-02-20T00:00:00"}'),
        ("a DATE", b'{"a":19000}'),
        ("a TIMESTAMP", b'{"a":"yesterday"}'),
        ("a TIMESTAMP", b'{"a":1700000000}'),
        ("a TIMESTAMP", b'{"a":"2024-01-01T25:00:00Z"}'),
        ("a TIMESTAMP_NTZ", b'{"a":"2024-01-01T00:00:00Z"}'),
        ("a ARRAY<INT>", b'{"a":[1,"x"]}'),
        ("a ARRAY<INT>", b'{"a":{}}'),
        ("a STRUCT<x: INT>", b'{"a":[1]}'),
        ("a MAP<STRING,INT>", b'{"a":{"x":"y"}}'),
        ("a INT", b""),
        ("a INT", b" "),
        ("a INT", b"null"),
        ("a INT", b"[]"),
        ("a INT", b"1"),
        ("a INT", b'{"a":1'),
        ("a INT", b'{"a":1} {"a":2}'),
        ("a INT", b'{"a":1}\n{"a":2}'),
        ("a INT", b'{"a":1},'),
        ("a INT", b'{"a":01}'),
        ("a INT", b'\xef\xbb\xbf{"a":1}'),
        ("a INT", b'{"a":1,"b":"\xff"}'),
        ("a STRING", b'{"a":"\xff"}'),
        ("a STRING", b'{"a":"\\ud800"}'),
        ("a STRING", b'{"a":"x\ny"}'),
        ("a INT", b'{"b":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ],
)
def test_what_json_does_not_fit(schema: str, value: bytes) -> None:
    assert len(error(schema, value)) < 360


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("a INT", b""),
        ("a INT", b"\xc0"),
        ("a INT", b"\x90"),
        ("a INT", b"\x81\xa1a"),
        ("a INT", b"\x81\xa1a\x01\x00"),
        ("a INT", msgspec.msgpack.encode({"a": 2**31})),
        ("a BIGINT", msgspec.msgpack.encode({"a": 2**63})),
        ("a INT", msgspec.msgpack.encode({"a": 1.0})),
        ("a STRING", msgspec.msgpack.encode({"a": b"x"})),
        ("a STRING", b"\x81\xa1a\xa1\xff"),
        ("a BINARY", msgspec.msgpack.encode({"a": 1})),
        ("a TIMESTAMP", msgspec.msgpack.encode({"a": 1})),
        ("a TIMESTAMP_NTZ", msgspec.msgpack.encode({"a": dt.datetime(2024, 1, 1, tzinfo=UTC)})),
        ("a FLOAT", msgspec.msgpack.encode({"a": 1e39})),
        ("a ARRAY<INT>", b"\x81\xa1a\xdd\xff\xff\xff\xff"),
        ("a INT", b"\x81\xa1b" + b"\x91" * 100_000 + b"\x00"),
    ],
)
def test_what_msgpack_does_not_fit(schema: str, value: bytes) -> None:
    assert len(error(schema, value, "msgpack")) < 360


def test_a_reason_names_the_place_and_shows_the_beginning() -> None:
    assert error("a STRUCT<x: ARRAY<INT>>", b'{"a":{"x":[1,"no"]}}') == (
        'json: Expected `int | null`, got `str` - at `$.a.x[1]`; the value (20 bytes) begins {"a":{"x":[1,"no"]}}'
    )
    assert error("p DECIMAL(3,2)", b'{"p":10}').startswith("json: p: ")
    assert error("a INT", b"\xc1\x00", "msgpack").endswith("the value (2 bytes) begins c100")


def test_a_long_value_is_cut_in_its_reason() -> None:
    assert error("a DATE", b'{"a":"' + b"x" * 10_000 + b'"}').count("x") < 300


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00", 0),
        ("1970-01-01 00:00", 0),
        ("1970-01-01", 0),
        ("1970-01-01T01:30:00+01:30", 0),
        ("1970-01-01T00:00:00-0100", 3_600_000_000),
        ("1970-01-01T00:00:00+01", -3_600_000_000),
        ("1970-01-01T00:00:00.1", 100_000),
        ("1970-01-01T00:00:00.123456789Z", 123_456),
        ("1969-12-31T23:59:59.999999999", -1),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
    ],
)
def test_timestamps(text: str, micros: int) -> None:
    """Alone, where the quick way may do, and beside one that forces the long way."""
    value = json.dumps({"a": text}).encode()
    other = b'{"a":"1970-01-01T00:00:00.1234567"}'
    for values in ([value], [value, other], [other, value, b'{"a":"1970-01-01T00:00:00Z"}']):
        (found,), errors = opened("a TIMESTAMP").decode(pa.array(values, pa.binary()))
        assert errors.null_count == len(values)
        assert found.cast(pa.int64())[values.index(value)].as_py() == micros


def test_decimals_come_exact() -> None:
    digits = "12345678901234567890123456789012345.678"
    assert one("a DECIMAL(38,3)", b'{"a":%s}' % digits.encode()) == decimal.Decimal(digits)
    assert one("a DECIMAL(38,3)", b'{"a":"%s"}' % digits.encode()) == decimal.Decimal(digits)
    assert one("a DECIMAL(4,2)", b'{"a":1.5000}') == decimal.Decimal("1.50")


def test_names_python_does_not_have() -> None:
    form = opened("`class` INT, `a.b` INT, `with``tick` INT")
    (row,) = rows(form, [b'{"class":1,"a.b":2,"with`tick":3}'])
    assert row == {"class": 1, "a.b": 2, "with`tick": 3, "_error": None}


def test_the_last_of_two_fields_counts() -> None:
    assert one("a INT", b'{"a":1,"a":2}') == 2


def test_map_keys_may_be_numbers() -> None:
    assert one("a MAP<INT,STRING>", b'{"a":{"5":"x"}}') == {5: "x"}


def test_slices_of_arrays_are_read_from_where_they_begin() -> None:
    values = pa.array([b'{"a":1}', b"bad", b'{"a":3}', None, b'{"a":5}'], pa.binary())[2:]
    (found,), errors = opened("a INT").decode(values)
    assert found.to_pylist() == [3, None, 5]
    assert errors.null_count == 3


def test_no_values() -> None:
    assert rows(opened(SCHEMA), []) == []


def test_a_pickled_format_reads_alike_and_is_small() -> None:
    form = opened(SCHEMA, prefix="v_")
    sent = pickle.dumps(form)
    assert len(sent) < 5_000
    arrived = pickle.loads(sent)  # noqa: S301
    assert arrived.fields == form.fields and arrived.fields.names[0] == "v_flag"
    assert rows(arrived, [b'{"flag":true}'])[0]["v_flag"] is True


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcx"), inner, max_size=3),
    max_leaves=8,
)
_schemas = st.sampled_from(
    [
        "a INT, b STRING, c DOUBLE",
        "a ARRAY<INT>, b MAP<STRING, DOUBLE>, c STRUCT<x: BOOLEAN, a: FLOAT>",
        "a DECIMAL(10,2), b TIMESTAMP, c DATE, x BINARY",
    ]
)
_values = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.dictionaries(st.sampled_from("abcx"), _json, max_size=4).map(lambda value: json.dumps(value).encode()),
    st.dictionaries(
        st.sampled_from("abcx"), st.none() | st.floats() | st.text() | st.binary() | st.integers(-(2**63), 2**64 - 1)
    ).map(msgspec.msgpack.encode),
)


@settings(deadline=None)
@given(st.sampled_from(["json", "msgpack"]), _schemas, st.lists(_values, max_size=8))
def test_rows_are_independent_and_nothing_raises(kind: str, schema: str, values: list[bytes | None]) -> None:
    form = opened(schema, kind)
    together = rows(form, values)
    alone = [rows(form, [value])[0] for value in values]
    assert repr(together) == repr(alone)
    for value, row in zip(values, together, strict=True):
        if row["_error"] is not None or value is None:
            assert set(row.values()) == {None, row["_error"]}


_good = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "d": st.floats(allow_nan=False, allow_infinity=False),
        "name": st.text(),
        "tags": st.lists(st.none() | st.text(max_size=5), max_size=4) | st.none(),
        "place": st.fixed_dictionaries({"x": st.integers(-(2**31), 2**31 - 1) | st.none()}) | st.none(),
        "counts": st.dictionaries(st.text(max_size=5), st.integers(-100, 100), max_size=4),
        "at": st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), timezones=st.just(UTC)),
    }
)
GOOD_SCHEMA = (
    "id BIGINT, d DOUBLE, name STRING, tags ARRAY<STRING>, "
    "place STRUCT<x: INT>, counts MAP<STRING, BIGINT>, at TIMESTAMP"
)


@settings(deadline=None)
@given(st.sampled_from(["json", "msgpack"]), st.lists(_good, max_size=6), st.data())
def test_good_values_round_trip_whatever_stands_between(
    kind: str, good: list[dict[str, object]], data: st.DataObject
) -> None:
    encode = msgspec.json.encode if kind == "json" else msgspec.msgpack.encode
    values = [encode(value) for value in good]
    bad = data.draw(st.integers(0, len(values)))
    form = opened(GOOD_SCHEMA, kind)
    found = rows(form, [*values[:bad], b"\xc1 no value", *values[bad:]])
    assert found.pop(bad)["_error"] is not None
    assert found == [{**value, "_error": None} for value in good]


def test_one_bad_value_among_many_costs_little() -> None:
    """Building again for each row would take minutes here."""
    values = [b'{"a":%d.5,"f":1}' % row for row in range(30_000)]
    values[7] = b'{"a":1.23,"f":1}'
    values[20_000] = b'{"a":1,"f":1e300}'
    (found, _), errors = opened("a DECIMAL(10,1), f FLOAT").decode(pa.array(values, pa.binary()))
    assert [row for row, text in enumerate(errors.to_pylist()) if text] == [7, 20_000]
    assert found.null_count == 2


def test_floats_keep_every_bit() -> None:
    for number in (0.1, 5e-324, 1.7976931348623157e308, -0.0, 123456789.123456789):
        found = one("a DOUBLE", json.dumps({"a": number}).encode())
        assert struct.pack("<d", found) == struct.pack("<d", number)
