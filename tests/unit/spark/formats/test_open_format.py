"""Which options open a format, and what the others are told."""

import pytest

from penstock.spark.errors import OptionError
from penstock.spark.formats import open_format


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "take one of json, avro, protobuf, msgpack"),
        ({"format": "jsn"}, "did you mean json"),
        ({"format": "json"}, "needs value.schema"),
        ({"format": "msgpack", "schema": " "}, "needs value.schema"),
        ({"format": "json", "schema": "a int", "message": "x"}, "value.message is not an option of value.format=json"),
        ({"format": "json", "schema": "a int", "prefx": "x"}, "did you mean value.prefix"),
        ({"format": "avro"}, "one of value.schema .* and value.schema.file"),
        ({"format": "avro", "schema": "{}", "schema.file": "x"}, "one of value.schema .* and value.schema.file"),
        ({"format": "protobuf"}, "needs value.schema.file"),
        ({"format": "protobuf", "schema": "a int"}, "value.schema is not an option"),
        ({"format": "json", "schema": "Offset INT"}, "'Offset' .* value.prefix"),
        ({"format": "json", "schema": "type INT", "prefix": "timestamp"}, "'timestamptype'"),
        ({"format": "json", "schema": "_error STRING"}, "value.prefix"),
        ({"format": "json", "schema": "a INT, A STRING"}, "twice for Spark"),
        ({"format": "json", "schema": "s STRUCT<a: INT, A: INT>"}, "twice for Spark"),
        ({"format": "json", "schema": "s ARRAY<STRUCT<a: INT, a: INT>>"}, "twice for Spark"),
        ({"format": "json", "schema": "s STRUCT<>"}, "no fields"),
        ({"format": "json", "schema": "s STRUCT<v: VARIANT>"}, r"s\.v is variant"),
        ({"format": "msgpack", "schema": "i ARRAY<INTERVAL DAY>"}, r"i\[\] is interval day"),
        ({"format": "json", "schema": "c CHAR(3)"}, r"c is char\(3\)"),
        ({"format": "json", "schema": "m MAP<DOUBLE, INT>"}, "keys of double"),
        ({"format": "json", "schema": '`a"b` INT'}, "name cannot be read"),
    ],
)
def test_options(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        open_format(options)


def test_the_prefix_makes_room_for_fields_named_like_columns() -> None:
    form = open_format({"format": "JSON", "schema": "offset BIGINT NOT NULL, key STRING", "prefix": "v_"})
    assert form.fields.simpleString() == "struct<v_offset:bigint,v_key:string>"
    assert all(field.nullable for field in form.fields)


def test_everything_is_nullable_inside_too() -> None:
    form = open_format(
        {"format": "json", "schema": "s STRUCT<a: INT NOT NULL> NOT NULL, l ARRAY<STRUCT<b: INT NOT NULL>>"}
    )
    nested = open_format({"format": "json", "schema": "s STRUCT<a: INT>, l ARRAY<STRUCT<b: INT>>"})
    assert form.fields == nested.fields
