"""The types of a read's columns: those of Spark's Kafka connector, so that a query need not change."""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark.errors import OptionError
from penstock.spark.options.selection import NAMES

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES = (
    BinaryType(),
    BinaryType(),
    StringType(),
    IntegerType(),
    LongType(),
    TimestampType(),
    IntegerType(),
    ArrayType(_HEADER),
)
ENVELOPE = StructType([StructField(name, kind) for name, kind in zip(NAMES, _TYPES, strict=True)])
"""What a record has besides the fields of its value."""

ERROR = StructField("_error", StringType())
"""Why a value could not be decoded; the last column of a typed read."""


def schema_of(columns: tuple[str, ...], fields: StructType | None) -> StructType:
    """
    Args:
        columns: of the envelope, as `select_columns` returns them.
        fields: of the value in a typed read, with their prefix.

    Returns:
        The envelope's columns; in a typed read then the fields and `_error`.

    Raises:
        OptionError: a field has a name that is taken.
    """
    envelope = [ENVELOPE[name] for name in columns]
    if fields is None:
        return StructType(envelope)
    # Also against columns that are not asked for: a filter on `offset` must mean one thing.
    taken = {*map(str.lower, NAMES), ERROR.name}
    for field in fields:
        if field.name.lower() in taken:
            raise OptionError(
                f"the value's field {field.name!r} has the name of another column; set value.prefix, such as v_, which "
                "is put before the name of each field"
            )
        taken.add(field.name.lower())
    return StructType([*envelope, *fields, ERROR])
