"""Fields of a BigQuery table as plain data: what a Spark type may go into, and as which Arrow type it travels."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.pipelines.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, DecimalType, StructType

_LONG_NAMES: Final = {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN", "STRUCT": "RECORD"}
_INTEGERS: Final = ("INTEGER", "NUMERIC", "BIGNUMERIC")
_FITTING: Final[dict[str, tuple[str, ...]]] = {
    "boolean": ("BOOLEAN",),
    "byte": _INTEGERS,
    "tinyint": _INTEGERS,
    "short": _INTEGERS,
    "smallint": _INTEGERS,
    "integer": _INTEGERS,
    "long": _INTEGERS,
    "bigint": _INTEGERS,
    "float": ("FLOAT",),
    "double": ("FLOAT",),
    "decimal": ("NUMERIC", "BIGNUMERIC"),
    "string": ("STRING", "JSON", "GEOGRAPHY", "INTERVAL", "TIME"),
    "char": ("STRING",),
    "varchar": ("STRING",),
    "binary": ("BYTES",),
    "date": ("DATE",),
    "timestamp": ("TIMESTAMP",),
    "timestamp_ntz": ("DATETIME",),
}
"""By Spark's name: the types of a field that take it. The first one is what a table made here gets."""
_NUMERIC_WHOLE, _NUMERIC_SCALE = 29, 9
_REST_ONLY: Final = ("TIME", "RANGE")
"""Types that have no Arrow form in the Storage Write API."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a table or of a record in it.

    Attributes:
        type: BigQuery's long name: INTEGER, RECORD.
        fields: of a RECORD.
    """

    name: str
    type: str
    repeated: bool = False
    required: bool = False
    fields: tuple["Field", ...] = ()

    def __str__(self) -> str:
        inner = f"RECORD<{', '.join(f'{each.name} {each}' for each in self.fields)}>" if self.fields else self.type
        return f"ARRAY<{inner}>" if self.repeated else inner

    @property
    def element(self) -> "Field":
        """What one value of a repeated field is."""
        return replace(self, repeated=False)

    def child(self, name: str) -> "Field | None":
        return find(self.fields, name)


class Rules(NamedTuple):
    """How strictly rows are held against a table.

    Attributes:
        sink: its name, for errors.
        rest: the rows go by `insertAll`.
        ignore_unknown: what the table lacks is left out.
    """

    sink: str
    rest: bool = False
    ignore_unknown: bool = False


def find(fields: Iterable[Field], name: str) -> Field | None:
    """By name; BigQuery does not tell upper from lower case."""
    return next((each for each in fields if each.name.casefold() == name.casefold()), None)


def from_table(schema: Iterable[Any]) -> tuple[Field, ...]:
    """From the client's `SchemaField`s."""
    return tuple(
        Field(
            name=each.name,
            type=_LONG_NAMES.get(each.field_type.upper(), each.field_type.upper()),
            repeated=each.mode == "REPEATED",
            required=each.mode == "REQUIRED",
            fields=from_table(each.fields),
        )
        for each in schema
    )


def to_table(fields: Iterable[Field]) -> list[Any]:
    """The client's `SchemaField`s."""
    from google.cloud.bigquery import SchemaField

    return [
        SchemaField(
            each.name, each.type, mode="REPEATED" if each.repeated else "NULLABLE", fields=to_table(each.fields)
        )
        for each in fields
    ]


def from_column(name: str, kind: "DataType", at: str, sink: str) -> Field:
    """The field that a table made here has for a column.

    Raises:
        SinkError: BigQuery has no such type.
    """
    from pyspark.sql import types

    if isinstance(kind, types.ArrayType):
        element = from_column(name, kind.elementType, f"{at}[]", sink)
        if element.repeated:
            raise _no_nested_arrays(at, kind, sink)
        return replace(element, repeated=True)
    if isinstance(kind, types.MapType):
        pair = (
            from_column("key", kind.keyType, f"{at}'s keys", sink),
            from_column("value", kind.valueType, f"{at}'s values", sink),
        )
        return Field(name, "RECORD", repeated=True, fields=pair)
    if isinstance(kind, types.StructType) and kind.fields:
        inner = tuple(from_column(each.name, each.dataType, f"{at}.{each.name}", sink) for each in kind.fields)
        return Field(name, "RECORD", fields=inner)
    fitting = _FITTING.get(kind.typeName())
    if fitting is None:
        raise SinkError(
            f"sink {sink}: column {at} is {kind.simpleString()}, which BigQuery has no type for. Cast it in a step, or "
            "leave it out"
        )
    if isinstance(kind, types.DecimalType) and not _is_numeric(kind):
        return Field(name, "BIGNUMERIC")
    return Field(name, fitting[0])


def narrow(kind: "DataType", field: Field, at: str, rules: Rules) -> Field:
    """The part of a field that a column of this type fills: all of it, but for the fields that a struct lacks.

    Args:
        at: the column, for errors.

    Raises:
        SinkError: the column does not go into the field.
    """
    from pyspark.sql import types

    if isinstance(kind, types.ArrayType):
        if isinstance(kind.elementType, types.ArrayType | types.MapType):
            raise _no_nested_arrays(at, kind, rules.sink)
        if field.repeated:
            return replace(narrow(kind.elementType, field.element, f"{at}[]", rules), repeated=True)
    elif isinstance(kind, types.MapType):
        if field.repeated and field.type == "RECORD":
            pairs = types.StructType().add("key", kind.keyType).add("value", kind.valueType)
            return replace(_narrow_record(pairs, field.element, at, rules), repeated=True)
    elif isinstance(kind, types.StructType):
        if field.type == "RECORD" and not field.repeated:
            return _narrow_record(kind, field, at, rules)
    elif not field.repeated and field.type in _FITTING.get(kind.typeName(), ()):
        if field.type in _REST_ONLY and not rules.rest:
            raise SinkError(
                f"sink {rules.sink}: field {field.name} is {field.type}, which the Storage Write API takes no Arrow "
                f"column for. Set `method: insert_all`, or leave {at} out"
            )
        if isinstance(kind, types.DecimalType) and field.type == "NUMERIC" and not _is_numeric(kind):
            raise SinkError(
                f"sink {rules.sink}: column {at} is {kind.simpleString()} and field {field.name} is NUMERIC, which "
                f"holds {_NUMERIC_WHOLE} digits before and {_NUMERIC_SCALE} after the point. Make the field "
                f"BIGNUMERIC, or write CAST({at} AS decimal(38,{_NUMERIC_SCALE})) in a step"
            )
        return field
    wanted = from_column(field.name, kind, at, rules.sink)
    raise SinkError(
        f"sink {rules.sink}: column {at} is {kind.simpleString()}, which goes into a field of type {wanted}; field "
        f"{field.name} is {field}. Cast the column in a step, or change the table"
    )


def _narrow_record(kind: "StructType", field: Field, at: str, rules: Rules) -> Field:
    taken = []
    for column in kind.fields:
        inner = field.child(column.name)
        if inner is not None:
            taken.append(narrow(column.dataType, inner, f"{at}.{column.name}", rules))
        elif not rules.ignore_unknown:
            raise unknown(f"{field.name}.{column.name}", f"{at}.{column.name}", rules.sink)
    check_required(field.fields, taken, f"record {field.name}", rules.sink)
    if not taken:
        raise SinkError(f"sink {rules.sink}: struct {at} has no field that record {field.name} ({field}) has")
    return replace(field, fields=tuple(taken))


def check_required(wanted: Iterable[Field], given: Iterable[Field], what: str, sink: str) -> None:
    """Raises `SinkError` where a field that must not be null gets nothing."""
    filled = {each.name for each in given}
    for each in wanted:
        if each.required and each.name not in filled:
            raise SinkError(
                f"sink {sink}: {what} requires field {each.name} ({each}), and nothing goes into it. Add a column in a "
                f"step, map one to it, or name a value under `defaults`"
            )


def unknown(field: str, at: str, sink: str) -> SinkError:
    return SinkError(
        f"sink {sink}: the table has no field {field} for column {at}. Add it to the table, leave the column out in a "
        "step or in `mapping`, or set `ignore_unknown: true`"
    )


def arrow_type(field: Field) -> "pa.DataType":
    """The Arrow type that the Storage Write API takes for the field."""
    import pyarrow as pa

    if field.repeated:
        return pa.list_(pa.field("item", arrow_type(field.element)))
    if field.type == "RECORD":
        return pa.struct([(each.name, arrow_type(each)) for each in field.fields])
    plain = {
        "BOOLEAN": pa.bool_(),
        "INTEGER": pa.int64(),
        "FLOAT": pa.float64(),
        "NUMERIC": pa.decimal128(38, _NUMERIC_SCALE),
        "BIGNUMERIC": pa.decimal256(76, 38),
        "BYTES": pa.binary(),
        "DATE": pa.date32(),
        "DATETIME": pa.timestamp("us"),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
    }
    return plain.get(field.type, pa.string())


def _is_numeric(kind: "DecimalType") -> bool:
    return kind.scale <= _NUMERIC_SCALE and kind.precision - kind.scale <= _NUMERIC_WHOLE


def _no_nested_arrays(at: str, kind: "DataType", sink: str) -> SinkError:
    return SinkError(
        f"sink {sink}: column {at} is {kind.simpleString()}; BigQuery has no arrays of arrays or of maps. Put a struct "
        "between them in a step"
    )
