"""The columns that leave Spark: what they are, and the frame that holds just them in a form a database can take."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.pipelines.errors import SinkError
from penstock.pipelines.sinks.parts import WritePart, write_parts

from .options import Options

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

OWN_PREFIX: Final = "_penstock_"
DELETE: Final = "_penstock_delete"
"""The flag of rows that delete their key."""


class Family(StrEnum):
    """What a value is, whichever database names the type."""

    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INT = "int"
    BIGINT = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    INSTANT = "instant"
    """A point in time: Spark's `timestamp`."""
    CLOCK = "clock"
    """A date and a time without a zone: Spark's `timestamp_ntz`."""
    JSON = "json"
    """An array, a map or a struct; it leaves Spark as JSON text."""


# By the classes' `typeName()`, of which a collation is cut off.
_FAMILIES: Final = {
    "boolean": Family.BOOLEAN,
    "byte": Family.SMALLINT,
    "tinyint": Family.SMALLINT,
    "short": Family.SMALLINT,
    "smallint": Family.SMALLINT,
    "integer": Family.INT,
    "int": Family.INT,
    "long": Family.BIGINT,
    "bigint": Family.BIGINT,
    "float": Family.FLOAT,
    "double": Family.DOUBLE,
    "decimal": Family.DECIMAL,
    "string": Family.TEXT,
    "char": Family.TEXT,
    "varchar": Family.TEXT,
    "binary": Family.BINARY,
    "date": Family.DATE,
    "timestamp": Family.INSTANT,
    "timestamp_ntz": Family.CLOCK,
    "array": Family.JSON,
    "map": Family.JSON,
    "struct": Family.JSON,
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the rows.

    Attributes:
        spark: its type as Spark writes it.
        precision, scale: of a decimal.
    """

    name: str
    family: Family
    spark: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """What of the rows leaves Spark.

    Attributes:
        written: columns of the table.
        extra: columns that `order_by` needs and the table does not have.
        deletes: whether the flag `DELETE` comes with every row.
    """

    written: tuple[Column, ...]
    extra: tuple[Column, ...]
    deletes: bool

    @property
    def staged(self) -> tuple[Column, ...]:
        """All, in the order in which they leave Spark."""
        return (*self.written, *self.extra, *((Column(DELETE, Family.BOOLEAN, "boolean"),) if self.deletes else ()))


def shape_of(schema: "StructType", options: Options) -> Shape:
    """What of rows with `schema` leaves Spark.

    Raises:
        SinkError: a column has a type that no database takes, or one that the options name is missing.
    """
    types = {field.name: field.dataType for field in schema.fields}
    for key, names in (("keys", options.keys), ("order_by", options.order_by), ("without", options.without)):
        for name in names:
            if name not in types:
                raise SinkError(f"sink {options.sink}: {key}: the rows have no column {name}; {_listed(types)}")
    unwritten = set(options.without)
    if options.delete_when in types:
        if types[options.delete_when].typeName() != "boolean":
            raise SinkError(
                f"sink {options.sink}: delete_when: the column {options.delete_when} is "
                f"{types[options.delete_when].simpleString()}, not boolean: give a predicate, as op = 'd'"
            )
        unwritten.add(options.delete_when)
    for name in types:
        if name.startswith(OWN_PREFIX):
            raise SinkError(f"sink {options.sink}: column {name}: names in {OWN_PREFIX} are the sink's: rename it")
    written = tuple(_column(name, kind, options.sink) for name, kind in types.items() if name not in unwritten)
    if not written:
        raise SinkError(f"sink {options.sink}: no column is left to write")
    for column in written:
        if column.name in options.keys and column.family is Family.JSON:
            raise SinkError(
                f"sink {options.sink}: keys: {column.name} is {column.spark}; a key is one value: take a field of it"
            )
    extra = tuple(
        _column(name, types[name], options.sink) for name in dict.fromkeys(options.order_by) if name in unwritten
    )
    return Shape(written, extra, bool(options.delete_when))


def _column(name: str, kind: "DataType", sink: str) -> Column:
    family = _FAMILIES.get(kind.typeName().partition(" ")[0])
    if family is None:
        raise SinkError(
            f"sink {sink}: column {name} has the type {kind.simpleString()}, which has no place in a table: cast it to "
            "another, as string, in a step"
        )
    return Column(name, family, kind.simpleString(), getattr(kind, "precision", 0), getattr(kind, "scale", 0))


def _listed(types: "dict[str, DataType]") -> str:
    return "they have " + ", ".join(types)


def run_tasks(rows: "DataFrame", shape: Shape, options: Options, write: WritePart) -> list[bytes]:
    """Hand the columns of `shape` to `write` in Spark's tasks; what it returned in each."""
    from pyspark.errors import AnalysisException

    try:
        frame = rows.select(*_selected(shape, options.delete_when, rows.columns))
    except AnalysisException as error:
        raise SinkError(f"sink {options.sink}: delete_when: {options.delete_when}: {error}") from error
    return write_parts(frame, write)


def _selected(shape: Shape, delete_when: str, names: list[str]) -> "list[SparkColumn]":
    from pyspark.sql import functions

    selected = []
    for column in (*shape.written, *shape.extra):
        value = functions.col(_backquoted(column.name))
        if column.family is Family.JSON:
            value = functions.to_json(value, {"ignoreNullFields": "false"})
        selected.append(value.alias(column.name))
    if shape.deletes:
        when = functions.expr(_backquoted(delete_when) if delete_when in names else delete_when)
        selected.append(functions.coalesce(when.cast("boolean"), functions.lit(False)).alias(DELETE))
    return selected


def _backquoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
