"""The columns a format yields: their names, their nullability, and the options every format understands."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from penstock.spark.errors import FormatError, OptionError

Decoded = tuple[list[pa.Array], pa.Array]
"""One array for each field, and the errors: null where the value was read."""

ENVELOPE = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "_error")
"""Columns of a read that are not fields of the value."""

MAX_SCHEMA_BYTES = 16 << 20
"""Schemas travel to every task with the plan."""


def reject_unknown(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Refuses options that the chosen format does not have."""
    names = ["format", "prefix", *known]
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1) or names
            raise OptionError(
                f"value.{name} is not an option of value.format={options['format']}; "
                f"did you mean {', '.join('value.' + other for other in near)}?"
            )


def nullable(schema: t.StructType) -> t.StructType:
    """The schema with everything nullable at every depth: what a peer leaves out is null, whatever was declared."""
    return t.StructType([t.StructField(f.name, _nullable(f.dataType), True, f.metadata) for f in schema])


def _nullable(kind: t.DataType) -> t.DataType:
    match kind:
        case t.ArrayType():
            return t.ArrayType(_nullable(kind.elementType), True)
        case t.MapType():
            return t.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
        case t.StructType():
            return nullable(kind)
    return kind


def arrow_type(kind: t.DataType) -> pa.DataType:
    """What Spark wants to get for a column of that type."""
    return to_arrow_type(kind, timezone="UTC")


def output_fields(schema: t.StructType, prefix: str) -> t.StructType:
    """The schema's columns under their final names.

    Raises:
        OptionError: two columns would have the same name for Spark, which does not tell upper case from lower.
    """
    taken = {name.lower() for name in ENVELOPE}
    for field in schema:
        if (prefix + field.name).lower() in taken:
            raise OptionError(
                f"the value's field {prefix + field.name!r} has the name of a column that every read has; "
                "set value.prefix to put something before the names of the value's fields, as in value.prefix=v_"
            )
    _reject_twins(schema)
    return t.StructType([t.StructField(prefix + f.name, f.dataType, True, f.metadata) for f in schema])


def _reject_twins(kind: t.DataType) -> None:
    match kind:
        case t.ArrayType():
            _reject_twins(kind.elementType)
        case t.MapType():
            _reject_twins(kind.keyType)
            _reject_twins(kind.valueType)
        case t.StructType():
            counts = Counter(field.name.lower() for field in kind)
            for field in kind:
                if counts[field.name.lower()] > 1:
                    raise OptionError(
                        f"the value's field {field.name!r} is there twice for Spark, which ignores case; rename one"
                    )
                _reject_twins(field.dataType)


def read_schema_file(path: str) -> bytes:
    """The bytes of `value.schema.file`.

    Raises:
        FormatError: it cannot be read, or is larger than a schema can be.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_SCHEMA_BYTES + 1)
    except (OSError, ValueError) as problem:
        raise FormatError(f"value.schema.file={path} cannot be read: {problem}") from problem
    if len(data) > MAX_SCHEMA_BYTES:
        raise FormatError(f"value.schema.file={path} is larger than {MAX_SCHEMA_BYTES} bytes; is it a schema?")
    return data
