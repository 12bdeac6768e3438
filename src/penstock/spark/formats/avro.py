"""Avro: the schema's columns, and its values one by one with fastavro (all at once in `avro_scan`, where the schema
allows).

Values are bare records (no container file, no schema registry's header) written with exactly the schema given.
Spark types as Spark's own Avro reader has them: int INT, long BIGINT, date, timestamp-millis and -micros TIMESTAMP,
their local- kin TIMESTAMP_NTZ, decimal DECIMAL, enum and uuid STRING, fixed BINARY. Other logical types count as
what they are kept in.

fastavro is the judge of what a value means; only enums are checked here, as it takes negative numbers for symbols
from the end.
"""

from __future__ import annotations

import io
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType
from pyspark.sql import types as t

from penstock.spark.errors import FormatError, OptionError
from penstock.spark.formats import arrays, avro_scan
from penstock.spark.formats.fields import Decoded, arrow_type, output_fields, read_schema_file, reject_unknown
from penstock.spark.formats.scanning import decode_quickly

MAX_TYPES = 5_000
"""Types of one schema, each use counted: named types can refer to each other to make small text a huge tree."""


def open_avro(options: Mapping[str, str]) -> AvroFormat:
    """The format of `value.format=avro` with `value.schema` (JSON) or `value.schema.file`.

    Raises:
        OptionError: an option is missing or unknown, or the schema has what Spark has no columns for.
        FormatError: the schema cannot be read.
    """
    reject_unknown(options, ["schema", "schema.file"])
    text, path = options.get("schema", "").strip(), options.get("schema.file", "").strip()
    if bool(text) == bool(path):
        raise OptionError(
            "value.format=avro needs the schema in one of value.schema (its JSON) and value.schema.file (an .avsc file)"
        )
    try:
        return AvroFormat(text or read_schema_file(path).decode(), options.get("prefix", ""))
    except UnicodeDecodeError as problem:
        raise FormatError(f"value.schema.file={path} is not a text: {problem}") from problem


class AvroFormat:
    """Values of one Avro schema; travels as the schema's text, compiles where it arrives."""

    fields: t.StructType

    def __init__(self, schema: str, prefix: str) -> None:
        self._made_of = (schema, prefix)
        try:
            parsed = fastavro.parse_schema(json.loads(schema))
        except (ValueError, SchemaParseException, UnknownType, TypeError, KeyError, RecursionError) as problem:
            raise FormatError(f"the Avro schema cannot be read: {problem!r}; it begins {schema[:100]!r}") from problem
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise FormatError(f"the Avro schema is no record, so it has no columns; it begins {schema[:100]!r}")
        reading = _Compiler().reading(parsed, "")
        assert isinstance(reading.spark, t.StructType)
        self.fields = output_fields(reading.spark, prefix)
        self._names = reading.spark.names
        self._record: arrays.Record = reading.column
        self._parts: avro_scan.Parts | None = reading.step
        self._raw_schema = fastavro.parse_schema(reading.raw)

    def __reduce__(self) -> tuple[type[AvroFormat], tuple[str, str]]:
        return AvroFormat, self._made_of

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """One array for each field and the errors; see `formats.ValueFormat`."""
        if self._parts is None:
            return self.decode_slowly(values)
        return decode_quickly(values, self._parts.scan_rows, self.decode_slowly)

    def decode_slowly(self, values: pa.BinaryArray) -> Decoded:
        """As `decode`, value by value: for all schemas, and for values that are out of the common."""
        return arrays.decode_each("avro", values, self._read, (ValueError,), self._names, self._record)

    def _read(self, value: bytes) -> object:
        file = io.BytesIO(value)
        try:
            row = fastavro.schemaless_reader(file, self._raw_schema, None)
        except EOFError as problem:
            raise ValueError("the value ends too early; was it written with another schema?") from problem
        except IndexError as problem:
            raise ValueError("a union's branch that the schema does not have") from problem
        except (ArithmeticError, RecursionError) as problem:
            raise ValueError(f"{type(problem).__name__} {problem}") from problem
        if file.tell() != len(value):
            raise ValueError(f"{len(value) - file.tell()} bytes too many; was it written with another schema?")
        return row


@dataclass(frozen=True, slots=True)
class _Reading:
    """A type in Spark, for fastavro, as a column of its values, and as a step over all rows if it has one."""

    spark: t.DataType
    raw: Any
    column: Any
    step: Any

    @property
    def arrow(self) -> pa.DataType:
        return self.column.type


class _Compiler:
    """Walks a parsed schema.

    For fastavro, named types are written out where they are used, and only decimal keeps its logical type.
    """

    def __init__(self) -> None:
        self._named: dict[str, dict[str, Any]] = {}
        self._open: list[str] = []
        self._count = 0

    def reading(self, schema: Any, place: str) -> _Reading:
        self._count += 1
        if self._count > MAX_TYPES:
            raise OptionError(
                f"the Avro schema comes to more than {MAX_TYPES} types when written out; read a smaller record"
            )
        if isinstance(schema, list):
            return self._union(schema, place)
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.reading(kind, place)
        if "name" in schema:
            self._named[schema["name"]] = schema
        match kind:
            case "record" | "error":
                return self._record(schema, place)
            case "array":
                item = self.reading(schema["items"], f"{place}[]")
                spark: t.DataType = t.ArrayType(item.spark)
                step = None if item.step is None else avro_scan.Items(arrow_type(spark), item.step)
                return _Reading(
                    spark, {"type": "array", "items": item.raw}, arrays.ListOf(arrow_type(spark), item.column), step
                )
            case "map":
                item = self.reading(schema["values"], f"{place}{{}}")
                spark = t.MapType(t.StringType(), item.spark)
                column = arrays.MapOf(arrow_type(spark), arrays.Plain(pa.string()), item.column)
                return _Reading(spark, {"type": "map", "values": item.raw}, column, None)
            case "enum":
                symbols = tuple(schema["symbols"])
                return _Reading(
                    t.StringType(), "int", arrays.Named(dict(enumerate(symbols))), avro_scan.Symbol(symbols)
                )
            case "fixed":
                return self._fixed(schema, place)
        return self._primitive(schema, kind, place)

    def _record(self, schema: dict[str, Any], place: str) -> _Reading:
        name = schema["name"]
        if name in self._open:
            raise OptionError(
                f"the Avro schema's {place or name} contains itself ({name}); Spark has no columns without an end"
            )
        if not schema["fields"]:
            raise OptionError(f"the Avro schema's {place or name} is a record without fields, which Spark cannot show")
        self._open.append(name)
        parts = [
            (part["name"], self.reading(part["type"], f"{place}.{part['name']}".lstrip(".")))
            for part in schema["fields"]
        ]
        self._open.pop()
        spark = t.StructType([t.StructField(part, reading.spark) for part, reading in parts])
        raw = {
            "type": "record",
            "name": self._new_name(),
            "fields": [{"name": part, "type": reading.raw} for part, reading in parts],
        }
        getters = tuple(operator.itemgetter(part) for part, _ in parts)
        column = arrays.Record(arrow_type(spark), getters, tuple(reading.column for _, reading in parts))
        steps = tuple(reading.step for _, reading in parts)
        return _Reading(spark, raw, column, None if None in steps else avro_scan.Parts(column.type, steps))

    def _union(self, schema: list[Any], place: str) -> _Reading:
        others = [branch for branch in schema if branch not in ("null", {"type": "null"})]
        if len(others) != 1:
            raise OptionError(
                f"the Avro schema's {place} is a union of {len(others)} types beside null, which Spark has no column "
                "for; only a type with null, or alone, can be read"
            )
        inner = self.reading(others[0], place)
        raw = ["null" if branch is not others[0] else inner.raw for branch in schema]
        if len(schema) == 1:
            return _Reading(inner.spark, raw, inner.column, None)
        step = None if inner.step is None else avro_scan.Nullable(inner.step, 1 - schema.index(others[0]))
        return _Reading(inner.spark, raw, inner.column, step)

    def _fixed(self, schema: dict[str, Any], place: str) -> _Reading:
        size = schema["size"]
        if size < 1:
            raise OptionError(f"the Avro schema's {place} is a fixed of {size} bytes; it needs at least one")
        raw = {"type": "fixed", "name": self._new_name(), "size": size}
        if schema.get("logicalType") == "decimal":
            return self._decimal(schema, raw, place, size)
        return _Reading(t.BinaryType(), raw, arrays.Plain(pa.binary()), avro_scan.Bytes(size=size))

    def _decimal(self, schema: dict[str, Any], raw: dict[str, Any], place: str, size: int | None) -> _Reading:
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        if not 0 < precision <= 38 or not 0 <= scale <= precision:
            raise OptionError(f"the Avro schema's {place} is a decimal({precision},{scale}); Spark has up to 38 digits")
        spark = t.DecimalType(precision, scale)
        marked = {**raw, "logicalType": "decimal", "precision": precision, "scale": scale}
        step = None if size is not None and size > 8 else avro_scan.Decimal(arrow_type(spark), size)
        return _Reading(spark, marked, arrays.Plain(arrow_type(spark)), step)

    def _primitive(self, schema: dict[str, Any], kind: str, place: str) -> _Reading:
        logical = schema.get("logicalType")
        spark: t.DataType
        match kind, logical:
            case "bytes", "decimal":
                return self._decimal(schema, {"type": "bytes"}, place, None)
            case "boolean", _:
                return _Reading(t.BooleanType(), kind, arrays.Plain(pa.bool_()), avro_scan.Boolean())
            case "string", _:
                return _Reading(t.StringType(), kind, arrays.Plain(pa.string()), avro_scan.Bytes(text=True))
            case "bytes", _:
                return _Reading(t.BinaryType(), kind, arrays.Plain(pa.binary()), avro_scan.Bytes())
            case "float", _:
                return _Reading(t.FloatType(), kind, arrays.Plain(pa.float32()), avro_scan.Fraction(pa.float32()))
            case "double", _:
                return _Reading(t.DoubleType(), kind, arrays.Plain(pa.float64()), avro_scan.Fraction(pa.float64()))
            case "int", _:
                spark = t.DateType() if logical == "date" else t.IntegerType()
                return _Reading(spark, kind, arrays.Plain(arrow_type(spark)), avro_scan.Whole(arrow_type(spark)))
            case "long", "timestamp-millis" | "local-timestamp-millis":
                spark = t.TimestampType() if logical == "timestamp-millis" else t.TimestampNTZType()
                return _Reading(
                    spark, kind, arrays.Millis(arrow_type(spark)), avro_scan.Whole(arrow_type(spark), factor=1000)
                )
            case "long", _:
                spark = {"timestamp-micros": t.TimestampType(), "local-timestamp-micros": t.TimestampNTZType()}.get(
                    logical or "", t.LongType()
                )
                return _Reading(spark, kind, arrays.Plain(arrow_type(spark)), avro_scan.Whole(arrow_type(spark)))
        raise OptionError(f"the Avro schema's {place} is {kind}, which Spark has no column for")

    def _new_name(self) -> str:
        self._count += 1
        return f"N{self._count}"
