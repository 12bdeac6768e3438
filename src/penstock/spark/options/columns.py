"""The columns of a read and their types: those of Spark's Kafka connector, so that a query need not change."""

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

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
ENVELOPE = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(_HEADER)),
    ]
)
"""What a record has besides the fields of its value."""

ERROR = StructField("_error", StringType())
"""Why a value could not be decoded; the last column of a typed read."""

_BY_NAME = {field.name.lower(): field for field in ENVELOPE}
_HEADERS = "headers"


def select_columns(asked: str | None, *, headers: bool, typed: bool) -> tuple[str, ...]:
    """
    Args:
        asked: names with commas between; None for all but headers.
        headers: whether headers come last if they are not among them.
        typed: whether the value's fields follow, so that none may be asked for.

    Raises:
        OptionError: a name is no column's, or there twice, or there is none.
    """
    if asked is None:
        columns = [name for name in ENVELOPE.names if name != _HEADERS]
    else:
        columns = []
        for word in filter(None, map(str.strip, asked.split(","))):
            field = _BY_NAME.get(word.lower())
            if field is None:
                raise OptionError(f"columns names {word!r}, which no record has; there is {', '.join(ENVELOPE.names)}")
            if field.name in columns:
                raise OptionError(f"columns names {field.name!r} twice; leave one out")
            columns.append(field.name)
    if headers and _HEADERS not in columns:
        columns.append(_HEADERS)
    if not columns and not typed:
        raise OptionError(f"columns = {asked!r} names no column; there is {', '.join(ENVELOPE.names)}")
    return tuple(columns)


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
    taken = {*_BY_NAME, ERROR.name}
    for field in fields:
        if field.name.lower() in taken:
            raise OptionError(
                f"the value's field {field.name!r} has the name of another column; set value.prefix, such as v_, which "
                "is put before the name of each field"
            )
        taken.add(field.name.lower())
    return StructType([*envelope, *fields, ERROR])
