"""The columns of raw and typed reads."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.spark.errors import OptionError
from penstock.spark.options.columns import ENVELOPE, schema_of
from penstock.spark.options.selection import select_columns

SEVEN = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
FIELDS = StructType([StructField("id", LongType()), StructField("name", StringType())])


def select(asked: str | None, *, headers: bool = False, typed: bool = False) -> tuple[str, ...]:
    return select_columns(asked, headers=headers, typed=typed)


def test_the_connectors_columns() -> None:
    assert select(None) == SEVEN
    assert select(None, headers=True) == (*SEVEN, "headers")
    assert schema_of((*SEVEN, "headers"), None).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in ENVELOPE)


def test_the_columns_asked_for_in_the_order_asked_for() -> None:
    assert select(" VALUE, timestamptype,,offset ") == ("value", "timestampType", "offset")
    assert schema_of(("value", "offset"), None).names == ["value", "offset"]


def test_headers_come_last_unless_they_have_a_place() -> None:
    assert select("offset", headers=True) == ("offset", "headers")
    assert select("headers,offset", headers=True) == ("headers", "offset")
    assert select("headers,offset") == ("headers", "offset")


def test_a_typed_read_may_have_nothing_but_its_fields() -> None:
    assert select("", typed=True) == ()
    assert schema_of((), FIELDS).names == ["id", "name", "_error"]


def test_fields_and_their_error_follow_the_envelope() -> None:
    assert schema_of(("offset", "value"), FIELDS).simpleString() == (
        "struct<offset:bigint,value:binary,id:bigint,name:string,_error:string>"
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("offset,size", "columns names 'size', which no record has; there is key, value, topic"),
        ("offset,OFFSET", "columns names 'offset' twice"),
        (" , ", "columns = ' , ' names no column"),
    ],
)
def test_columns_that_cannot_be(asked: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        select(asked)


@pytest.mark.parametrize("names", [["Offset"], ["timestamp"], ["headers"], ["_ERROR"], ["a", "A"]])
def test_a_field_must_not_have_a_columns_name(names: list[str]) -> None:
    fields = StructType([StructField(name, LongType()) for name in names])
    with pytest.raises(OptionError, match=f"field '{names[-1]}' has the name of another column; set value.prefix"):
        schema_of(("value",), fields)
