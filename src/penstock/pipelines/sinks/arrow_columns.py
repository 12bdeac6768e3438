"""The columns of a micro-batch as Arrow columns, and how they fit the columns of a table that is there.

A table is never changed by the rows that arrive: a column that it lacks or holds as another type is told, with the way
out, before the first row. A column that the rows lack is written as null where the table allows that.
"""

from typing import TYPE_CHECKING, Any

from penstock.pipelines.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


def arrow_schema(columns: "StructType", sink: str, *, widen: bool = False) -> "pa.Schema":
    """The Arrow columns that hold rows of a Spark schema, all of them nullable.

    Args:
        widen: tinyint and smallint become int, for formats that have no smaller one.

    Raises:
        SinkError: a column's type cannot be held, or two names differ in case only.
    """
    import pyarrow as pa

    seen: dict[str, str] = {}
    for name in columns.fieldNames():
        if (other := seen.setdefault(name.lower(), name)) != name or columns.fieldNames().count(name) > 1:
            raise SinkError(
                f"sink {sink}: columns {other} and {name} have the same name but for case, and readers of the table "
                "could not tell them apart. Rename one in a step"
            )
    return pa.schema(
        [pa.field(each.name, _arrow_type(each.dataType, each.name, sink, widen)) for each in columns.fields]
    )


def _arrow_type(spark_type: "DataType", column: str, sink: str, widen: bool) -> "pa.DataType":
    import pyarrow as pa
    from pyspark.sql import types

    if isinstance(spark_type, types.DecimalType):
        return pa.decimal128(spark_type.precision, spark_type.scale)
    if isinstance(spark_type, types.ArrayType):
        return pa.list_(pa.field("element", _arrow_type(spark_type.elementType, f"{column}[]", sink, widen)))
    if isinstance(spark_type, types.MapType):
        key = _arrow_type(spark_type.keyType, f"{column}'s keys", sink, widen)
        return pa.map_(key, _arrow_type(spark_type.valueType, f"{column}'s values", sink, widen))
    if isinstance(spark_type, types.StructType) and spark_type.fields:
        inner = ((each.name, each.dataType) for each in spark_type.fields)
        return pa.struct([(name, _arrow_type(kind, f"{column}.{name}", sink, widen)) for name, kind in inner])
    plain = _plain_types(widen).get(spark_type.typeName())
    if plain is None:
        raise SinkError(
            f"sink {sink}: column {column} is of type {spark_type.simpleString()}, which data files cannot hold. Cast "
            "it in a step, or leave it out"
        )
    return plain


def _plain_types(widen: bool) -> "dict[str, pa.DataType]":
    import pyarrow as pa

    return {
        "boolean": pa.bool_(),
        "byte": pa.int32() if widen else pa.int8(),
        "tinyint": pa.int32() if widen else pa.int8(),
        "short": pa.int32() if widen else pa.int16(),
        "smallint": pa.int32() if widen else pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "char": pa.string(),
        "varchar": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }


def plain_schema(schema: "pa.Schema") -> "pa.Schema":
    """The same columns in the types that this package writes: no large, view or dictionary types, no metadata."""
    import pyarrow as pa

    return pa.schema([_plain_field(each) for each in schema])


def _plain_field(field: "pa.Field") -> "pa.Field":
    import pyarrow as pa

    return pa.field(field.name, _plain_type(field.type), nullable=field.nullable)


def _plain_type(kind: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain_type(kind.value_type), nullable=kind.value_field.nullable))
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_field(kind.item_field))
    if types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(index)) for index in range(kind.num_fields)])
    return kind


_SQL_NAMES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
    "timestamp[us]": "timestamp_ntz",
}


def type_text(kind: "pa.DataType") -> str:
    """A plain Arrow type in SQL's words. Two types have the same text exactly when rows of one fit the other, but for
    nulls."""
    from pyarrow import types

    if types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{type_text(kind.key_type)},{type_text(kind.item_type)}>"
    if types.is_struct(kind):
        inner = (kind.field(index) for index in range(kind.num_fields))
        return f"struct<{','.join(f'{each.name}:{type_text(each.type)}' for each in inner)}>"
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SQL_NAMES.get(str(kind), str(kind))


def fit(rows: "pa.Schema", table: "pa.Schema", sink: str, what: str, *, add_column: str) -> "pa.Schema":
    """The columns to write into a table: the table's own.

    Args:
        what: the table, for people.
        add_column: how a column comes into such a table, for people.

    Raises:
        SinkError: a column is not there, is of another type, or must not be null and the rows lack it.
    """
    for field in rows:
        if field.name not in table.names:
            raise SinkError(
                f"sink {sink}: the rows have a column {field.name} ({type_text(field.type)}) that {what} lacks"
                f"{_other_case(field.name, table.names)}. {add_column}, or leave it out in a step"
            )
        wanted, found = type_text(table.field(field.name).type), type_text(field.type)
        if wanted != found:
            raise SinkError(
                f"sink {sink}: column {field.name} is {found} in the rows and {wanted} in {what}. Write "
                f"CAST({field.name} AS {wanted}) in a step, or another table"
            )
    for field in table:
        if field.name not in rows.names and not field.nullable:
            raise SinkError(
                f"sink {sink}: {what} has a column {field.name} ({type_text(field.type)}) that must not be null, and "
                "the rows lack it. Add it in a step, or allow null in the table"
            )
    return table


def _other_case(name: str, names: "Sequence[str]") -> str:
    alike = [each for each in names if each.lower() == name.lower()]
    return f" (it has {alike[0]}; upper and lower case count)" if alike else ""


_PARTITION_TYPES = ("boolean", "tinyint", "smallint", "int", "bigint", "string", "date", "timestamp", "timestamp_ntz")


def check_partitioning(schema: "pa.Schema", columns: "Sequence[str]", sink: str, *, kept: bool = False) -> None:
    """Raises `SinkError` where rows cannot be partitioned by these columns, which may be `kept` in the files."""
    for name in columns:
        if name not in schema.names:
            raise SinkError(
                f"sink {sink}: partition_by names {name}, which is not a column of the rows; they have "
                f"{', '.join(schema.names)}"
            )
        text = type_text(schema.field(name).type)
        if text not in _PARTITION_TYPES:
            raise SinkError(
                f"sink {sink}: partition_by names {name}, which is {text}; rows can be partitioned by "
                f"{', '.join(_PARTITION_TYPES)}. Cast it in a step"
            )
    if len(set(columns)) < len(columns):
        raise SinkError(f"sink {sink}: partition_by names a column twice: {', '.join(columns)}")
    if not kept and schema.names and len(columns) == len(schema.names):
        raise SinkError(f"sink {sink}: partition_by names every column of the rows; one must be left to be written")


def partition_text(value: Any) -> str | None:
    """A partition's value as text, in the form that Hive's directories and Delta's log share."""
    from datetime import datetime

    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        text = value.isoformat(" ")[:19]
        return f"{text}.{value.microsecond:06}" if value.microsecond else text
    return str(value)
