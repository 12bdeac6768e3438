"""Schema strings mean what Spark's own parser makes of them; expectations are StructType.fromDDL's, pyspark 4.3."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

from penstock.spark.errors import FormatError
from penstock.spark.formats.ddl import MAX_DEPTH, UnknownTypeError, parse_schema

ATOMS = {
    "boolean": t.BooleanType(),
    "tinyint": t.ByteType(),
    "byte": t.ByteType(),
    "smallint": t.ShortType(),
    "short": t.ShortType(),
    "int": t.IntegerType(),
    "integer": t.IntegerType(),
    "bigint": t.LongType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "real": t.FloatType(),
    "double": t.DoubleType(),
    "decimal": t.DecimalType(10, 0),
    "dec(5)": t.DecimalType(5, 0),
    "numeric( 38 , 18 )": t.DecimalType(38, 18),
    "string": t.StringType(),
    "binary": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamp_ltz": t.TimestampType(),
    "timestamp_ntz": t.TimestampNTZType(),
    "char(3)": t.CharType(3),
    "character(3)": t.CharType(3),
    "varchar(20)": t.VarcharType(20),
    "time": t.TimeType(),
    "time(3)": t.TimeType(3),
    "variant": t.VariantType(),
    "void": t.NullType(),
    "interval": t.CalendarIntervalType(),
    "interval day": t.DayTimeIntervalType(0, 0),
    "interval hour to second": t.DayTimeIntervalType(1, 3),
    "interval year to month": t.YearMonthIntervalType(0, 1),
}


@pytest.mark.parametrize("text", ATOMS)
def test_every_atomic_type_in_any_case(text: str) -> None:
    for spelt in (text, text.upper(), text.title()):
        assert parse_schema(f"a {spelt}") == t.StructType([t.StructField("a", ATOMS[text])])


def test_nested_types_closing_together() -> None:
    parsed = parse_schema("m MAP<STRING,ARRAY<STRUCT<x:INT,y ARRAY<DATE>>>>, n INT")
    inner = t.StructType([t.StructField("x", t.IntegerType()), t.StructField("y", t.ArrayType(t.DateType()))])
    assert parsed == t.StructType(
        [t.StructField("m", t.MapType(t.StringType(), t.ArrayType(inner))), t.StructField("n", t.IntegerType())]
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("`odd, name` int", "odd, name"),
        ("`a``b`:int", "a`b"),
        ("1x int", "1x"),
        ("struct int", "struct"),
        ("array: int", "array"),
    ],
)
def test_names(text: str, name: str) -> None:
    assert parse_schema(text).names == [name]


def test_not_null_and_comments() -> None:
    field = parse_schema("a INT NOT NULL COMMENT 'it\\'s\\nnew', b STRING comment \"q\"").fields
    assert (field[0].nullable, field[0].metadata) == (False, {"comment": "it's\nnew"})
    assert (field[1].nullable, field[1].metadata) == (True, {"comment": "q"})


def test_a_struct_alone_is_the_schema() -> None:
    assert parse_schema(" struct<a:int, b string> ") == parse_schema("a int, b string")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a",
        "a int,",
        "a int b int",
        "a array<int",
        "a array<>",
        "a array<int>>",
        "a map<int>",
        "a decimal(39,2)",
        "a decimal(5,6)",
        "a decimal(-1)",
        "a decimal(10,2,1)",
        "a int(3)",
        "a char",
        "a blob",
        "a.b int",
        "été int",
        "a int;",
        "a interval second to day",
        "a interval day to month",
        "a int not",
        "a int comment x",
        "a 'int'",
        "`a int",
        "struct<>",
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(FormatError, match=r"value\.schema"):
        parse_schema(text)


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> str:
        return "a " + "array<" * depth + "int" + ">" * depth

    parse_schema(nested(MAX_DEPTH - 1))
    parse_schema(", ".join(f"c{number} array<int>" for number in range(3 * MAX_DEPTH)))
    with pytest.raises(FormatError, match="deeper than 50"):
        parse_schema(nested(100_000))


def test_json_of_a_struct_type() -> None:
    schema = parse_schema(
        "id BIGINT NOT NULL, m MAP<STRING, STRUCT<x: DECIMAL(5,2)>> COMMENT 'c', i INTERVAL DAY TO SECOND"
    )
    assert parse_schema("\n" + schema.json()) == schema


@pytest.mark.parametrize("text", ["{", "{}", '{"type":"struct","fields":[{"name":1}]}', '{"type":"array"}'])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        parse_schema(text)


_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
_types = st.recursive(
    st.sampled_from(
        [kind for text, kind in ATOMS.items() if kind.simpleString() == text.replace(" ", "")] + [t.DecimalType(7, 3)]
    ),
    lambda inner: st.one_of(
        inner.map(t.ArrayType),
        st.tuples(inner, inner).map(lambda pair: t.MapType(*pair)),
        st.lists(st.tuples(_names, inner), max_size=3).map(
            lambda parts: t.StructType([t.StructField(name, kind) for name, kind in parts])
        ),
    ),
    max_leaves=6,
)


def _ddl(kind: t.DataType) -> str:
    match kind:
        case t.ArrayType():
            return f"ARRAY<{_ddl(kind.elementType)}>"
        case t.MapType():
            return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
        case t.StructType():
            return "STRUCT<" + ",".join(f"{_quoted(f.name)}: {_ddl(f.dataType)}" for f in kind) + ">"
    return kind.simpleString()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@settings(deadline=None)
@given(st.lists(st.tuples(_names, _types), min_size=1, max_size=4))
def test_what_is_written_is_read(parts: list[tuple[str, t.DataType]]) -> None:
    text = ", ".join(f"{_quoted(name)} {_ddl(kind)}" for name, kind in parts)
    assert parse_schema(text) == t.StructType([t.StructField(name, kind) for name, kind in parts])


@settings(deadline=None)
@given(st.text(max_size=60) | st.text(st.sampled_from(list("aint<>,:() `'array struct map")), max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(FormatError):
        assert parse_schema(text).fields


@pytest.mark.parametrize(
    ("text", "column", "word", "nearest"),
    [
        ("id BIGNIT", "id", "BIGNIT", "BIGINT"),
        ("id BIGINT, at STRUCT<day: DATE, `my hour`: itn>", "at.my hour", "itn", "INT"),
        ("names ARRAY<STRNG>", "names", "STRNG", "STRING"),
        ("a blob, b INT", "a", "blob", ""),
    ],
)
def test_a_type_that_does_not_exist_is_told_with_its_column(text: str, column: str, word: str, nearest: str) -> None:
    with pytest.raises(UnknownTypeError) as told:
        parse_schema(text)
    assert told.value.nearest == nearest
    assert str(told.value).startswith(f"value.schema: column {column!r}: there is no type {word} in Spark; ")
