"""JSON and MessagePack: values that name their fields, read against a schema the user gives.

msgspec compiles the schema, so that a value is checked while it is parsed and fields nobody asked for are skipped:
twice as fast as parsing everything (orjson), decimals come exact, and an error names its place. pyarrow's own JSON
reader is no faster once every value is proven to be a row of its own, has no decimals or maps, and refuses a whole
chunk for one bad record.

Rules: a field that is missing or null is null, unknown fields are ignored, of a field named twice the last counts.
NOT NULL in the schema is not enforced (as in from_json). Numbers must be in range and of the right kind (1.0 is no
INT), decimals must fit without rounding. In JSON, BINARY is base64, DATE and TIMESTAMP are ISO 8601 texts (without
a zone: UTC). MessagePack has bytes and timestamps of its own; its texts for dates and times are those of RFC 3339.
"""

from __future__ import annotations

import datetime
import decimal
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from penstock.spark.errors import OptionError
from penstock.spark.formats import arrays
from penstock.spark.formats.ddl import parse_schema
from penstock.spark.formats.fields import Decoded, arrow_type, nullable, output_fields, reject_unknown

Kind = Literal["json", "msgpack"]

_BAD_VALUE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, decimal.DecimalException)
_BITS: Mapping[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_PLAIN: Mapping[type[t.DataType], type] = {
    t.BooleanType: bool,
    t.DoubleType: float,
    t.DecimalType: decimal.Decimal,
    t.StringType: str,
    t.BinaryType: bytes,
}


def open_documents(kind: Kind, options: Mapping[str, str]) -> DocumentFormat:
    """The format of `value.format=json` or `msgpack` with `value.schema`.

    Raises:
        OptionError: an option is missing, unknown or asks for a type the format has no values for.
        FormatError: the schema cannot be read.
    """
    reject_unknown(options, ["schema"])
    if not options.get("schema", "").strip():
        raise OptionError(f"value.format={kind} needs value.schema, as in: id BIGINT, name STRING, at TIMESTAMP")
    return DocumentFormat(kind, parse_schema(options["schema"]), options.get("prefix", ""))


class DocumentFormat:
    """Values of one schema; travels as schema and prefix, compiles where it arrives."""

    fields: t.StructType

    def __init__(self, kind: Kind, schema: t.StructType, prefix: str) -> None:
        self._made_of = (kind, schema, prefix)
        self._kind = kind
        schema = nullable(schema)
        self.fields = output_fields(schema, prefix)
        self._names = [field.name for field in schema]
        shape = _Compiler(kind).struct(schema, "")
        self._record = shape.column
        decoder = msgspec.json.Decoder if kind == "json" else msgspec.msgpack.Decoder
        self._decode_value = decoder(shape.type).decode

    def __reduce__(self) -> tuple[type[DocumentFormat], tuple[Kind, t.StructType, str]]:
        return DocumentFormat, self._made_of

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """One array for each field and the errors; see `formats.ValueFormat`."""
        text = self._kind == "json"
        errors = _invalid_texts(values) if text else {}
        return arrays.decode_each(
            self._kind, values, self._decode_value, _BAD_VALUE, self._names, self._record, errors=errors, text=text
        )


def _invalid_texts(values: pa.BinaryArray) -> dict[int, str]:
    """The decoder looks only at the texts it keeps, but JSON is UTF-8 throughout (RFC 8259 §8.1)."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    else:
        return {}
    errors = {}
    for place, value in enumerate(values.to_pylist()):
        try:
            if value is not None:
                value.decode()
        except UnicodeDecodeError as problem:
            errors[place] = str(problem)
    return errors


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a Spark type is decoded, and how the decoded values become a column."""

    type: Any
    column: Any


@dataclass(frozen=True, slots=True)
class _Compiler:
    kind: Kind

    def struct(self, schema: t.StructType, place: str) -> _Shape:
        if not schema.fields:
            raise OptionError(f"value.schema: the STRUCT {place} has no fields; name at least one, or leave it out")
        # Fields go by number inside: a column's name need not be a Python one.
        inner = {f"f{number}": field for number, field in enumerate(schema)}
        shapes = [self.shape(field.dataType, f"{place}.{field.name}".lstrip(".")) for field in schema]
        try:
            made = msgspec.defstruct(
                "Row",
                [(name, shape.type | None, None) for name, shape in zip(inner, shapes, strict=True)],
                rename={name: field.name for name, field in inner.items()},
                gc=False,
            )
        except ValueError as problem:
            raise OptionError(
                f"value.schema: {place or 'it'} has a field whose name cannot be read: {problem}"
            ) from problem
        getters = tuple(operator.attrgetter(name) for name in inner)
        return _Shape(made, arrays.Record(arrow_type(schema), getters, tuple(shape.column for shape in shapes)))

    def shape(self, kind: t.DataType, place: str) -> _Shape:
        match kind:
            case t.StructType():
                return self.struct(kind, place)
            case t.ArrayType():
                item = self.shape(kind.elementType, f"{place}[]")
                return _Shape(list[item.type | None], arrays.ListOf(arrow_type(kind), item.column))  # type: ignore[name-defined]
            case t.MapType():
                return self.map(kind, place)
            case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
                limit = 1 << (_BITS[type(kind)] - 1)
                return _Shape(Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)], arrays.Plain(arrow_type(kind)))
            case t.FloatType():
                return _Shape(float, arrays.Narrow())
            case t.TimestampType() | t.TimestampNTZType() | t.DateType():
                return self.time(kind)
        if type(kind) not in _PLAIN:
            raise OptionError(
                f"value.schema: {place} is {kind.simpleString()}, which {self.kind} has no values for; take STRING"
            )
        return _Shape(_PLAIN[type(kind)], arrays.Plain(arrow_type(kind)))

    def map(self, kind: t.MapType, place: str) -> _Shape:
        if not isinstance(kind.keyType, t.StringType | t.IntegralType):
            raise OptionError(f"value.schema: {place} has keys of {kind.keyType.simpleString()}; take STRING or BIGINT")
        key = self.shape(kind.keyType, f"{place}{{}}")
        item = self.shape(kind.valueType, f"{place}{{}}")
        return _Shape(dict[key.type, item.type | None], arrays.MapOf(arrow_type(kind), key.column, item.column))  # type: ignore[name-defined]

    def time(self, kind: t.DataType) -> _Shape:
        if self.kind == "json":
            return _Shape(str, arrays.Dates() if isinstance(kind, t.DateType) else arrays.Instants(arrow_type(kind)))
        if isinstance(kind, t.DateType):
            return _Shape(datetime.date, arrays.Plain(arrow_type(kind)))
        if isinstance(kind, t.TimestampNTZType):
            return _Shape(Annotated[datetime.datetime, msgspec.Meta(tz=False)], arrays.Plain(arrow_type(kind)))
        return _Shape(datetime.datetime, arrays.Plain(arrow_type(kind)))
