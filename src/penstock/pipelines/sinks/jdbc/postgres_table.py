"""A PostgreSQL table as the rows need it: made, or compared with what they bring."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.pipelines.errors import SinkError

from .columns import Column, Family, Shape
from .options import Options
from .statements import create_table, listed, quoted

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[object, ...]]

_TYPES: Final = {
    Family.BOOLEAN: "boolean",
    Family.SMALLINT: "smallint",
    Family.INT: "integer",
    Family.BIGINT: "bigint",
    Family.FLOAT: "real",
    Family.DOUBLE: "double precision",
    Family.TEXT: "text",
    Family.BINARY: "bytea",
    Family.DATE: "date",
    Family.INSTANT: "timestamp with time zone",
    Family.CLOCK: "timestamp without time zone",
    Family.JSON: "jsonb",
}

_WHOLE: Final = ("int2", "int4", "int8", "numeric")
# Which columns take a family without changing values. A number too large is a row's fault; text goes elsewhere.
_TAKEN: Final = {
    Family.BOOLEAN: ("bool",),
    Family.SMALLINT: (*_WHOLE, "float4", "float8"),
    Family.INT: (*_WHOLE, "float8"),
    Family.BIGINT: _WHOLE,
    Family.FLOAT: ("float4", "float8"),
    Family.DOUBLE: ("float4", "float8"),
    Family.DECIMAL: ("numeric",),
    Family.BINARY: ("bytea",),
    Family.DATE: ("date",),
    Family.INSTANT: ("timestamptz",),
    Family.CLOCK: ("timestamp",),
    Family.JSON: ("jsonb", "json", "text", "varchar"),
}
# Text becomes whatever reads it (uuid, json, inet, an enum), but for what Spark has a type for.
_NO_TEXT_CATEGORIES: Final = ("N", "B", "D")

_FIND = """
SELECT n.nspname, c.oid::bigint FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s)"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(b.typname, t.typname), t.typcategory,
       a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attidentity = 'a' OR a.attgenerated <> '',
       CASE WHEN t.typname = 'numeric' AND a.atttypmod >= 4 THEN (((a.atttypmod - 4) & 2047) # 1024) - 1024 END
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_type b ON b.oid = nullif(t.typbasetype, 0)
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_UNIQUE = """
SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_catalog.pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
  AND k.place <= i.indnkeyatts GROUP BY i.indexrelid"""


class Place(NamedTuple):
    """Where the table is, or would be made."""

    schema: str
    table: str
    oid: int | None

    @property
    def quoted(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    def beside(self, name: str) -> str:
        """Another table of its schema."""
        return f"{quoted(self.schema)}.{quoted(name)}"


class Found(NamedTuple):
    """A column that is there."""

    name: str
    shown: str
    kind: str
    category: str
    is_required: bool
    has_default: bool
    is_generated: bool
    scale: int | None


def type_of(column: Column) -> str:
    """The type of a column that is made for `column`."""
    if column.family is Family.DECIMAL:
        return f"numeric({column.precision},{column.scale})"
    return _TYPES[column.family]


def locate(connection: "Connection", options: Options) -> Place:
    """Where the table is; without a schema, on the search path, and in its first schema where it would be made.

    Raises:
        SinkError: its schema is not there.
    """
    wanted = options.table
    name = f"{quoted(wanted.schema)}.{quoted(wanted.table)}" if wanted.schema else quoted(wanted.table)
    found = connection.execute(_FIND, (name,)).fetchone()
    if found is not None:
        return Place(str(found[0]), wanted.table, int(str(found[1])))
    asked = "SELECT to_regnamespace(%s)::text" if wanted.schema else "SELECT current_schema()"
    schema = connection.execute(asked, (quoted(wanted.schema),) if wanted.schema else None).fetchone()
    if schema is None or schema[0] is None:
        raise SinkError(
            f"sink {options.sink}: the schema {wanted.schema or 'of the search path'} is not there: CREATE SCHEMA, or "
            "name another in `table`"
        )
    if not options.create:
        raise SinkError(f"sink {options.sink}: the table {wanted} is not there: make it, or give create: true")
    return Place(wanted.schema or str(schema[0]), wanted.table, None)


def make_table(connection: "Connection", place: Place, shape: Shape, options: Options) -> None:
    definitions = [(column.name, type_of(column)) for column in shape.written]
    connection.execute(create_table(place.quoted, definitions, options.keys).encode())


def check_table(connection: "Connection", place: Place, shape: Shape, options: Options) -> None:
    """Compare the rows' columns with the table's.

    Raises:
        SinkError: they do not go there; every reason is named.
    """
    there = {found.name: found for found in (Found(*row) for row in connection.execute(_COLUMNS, (place.oid,)))}  # type: ignore[arg-type]
    findings = [*_findings(shape, there, place)]
    if options.keys:
        unique = [row[0] for row in connection.execute(_UNIQUE, (place.oid,))]
        if sorted(options.keys) not in unique:
            findings.append(
                f"keys: no unique index on {', '.join(options.keys)}: "
                f"CREATE UNIQUE INDEX ON {place.quoted} ({listed(options.keys)})"
            )
    if findings:
        raise SinkError(f"sink {options.sink}: table {options.table}: " + "; ".join(findings))


def _findings(shape: Shape, there: dict[str, Found], place: Place) -> Iterable[str]:
    for column in shape.written:
        found = there.get(column.name)
        if found is None:
            yield _missing(column, there, place)
        elif found.is_generated:
            yield f"column {column.name} is generated by the table: leave it out of the rows (`without`)"
        elif not _takes(found, column):
            yield f"column {column.name} is {found.shown}, the rows have {column.spark}: {_way_out(found, column)}"
    names = {column.name for column in shape.written}
    for found in there.values():
        if found.name not in names and found.is_required and not found.has_default and not found.is_generated:
            yield (
                f"column {found.name} must not be null, has no default and is not among the rows' columns: add it in a "
                f"step, or ALTER TABLE {place.quoted} ALTER {quoted(found.name)} DROP NOT NULL"
            )


def _missing(column: Column, there: dict[str, Found], place: Place) -> str:
    alike = next((name for name in there if name.lower() == column.name.lower()), None)
    if alike is not None:
        return f"column {column.name} is missing; there is {alike}: write it alike, SELECT {column.name} AS `{alike}`"
    return (
        f"column {column.name} ({column.spark}) is missing: leave it out of the rows (`without`), or "
        f"ALTER TABLE {place.quoted} ADD COLUMN {quoted(column.name)} {type_of(column)}"
    )


def _takes(found: Found, column: Column) -> bool:
    if column.family is Family.TEXT:
        return found.category not in _NO_TEXT_CATEGORIES and found.kind != "bytea"
    if column.family is Family.DECIMAL and found.scale is not None and found.scale < column.scale:
        return False
    return found.kind in _TAKEN[column.family]


def _way_out(found: Found, column: Column) -> str:
    if column.family is Family.DECIMAL and found.kind == "numeric":
        return f"digits would be lost: CAST({column.name} AS decimal({column.precision},{found.scale})) in a step"
    if column.family is Family.INSTANT and found.kind == "timestamp":
        return f"the zone would be lost: CAST({column.name} AS timestamp_ntz) in a step"
    if column.family is Family.CLOCK and found.kind == "timestamptz":
        return f"a zone is needed: CAST({column.name} AS timestamp) in a step"
    return f"cast it in a step, or make the column {type_of(column)}"
