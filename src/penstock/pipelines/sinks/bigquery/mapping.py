"""Which column fills which field of the table: worked out once, before the first row.

Without a mapping every column goes to the field of its name. A mapping names targets and sources, both of which may be
paths (`customer.address.city: order.city`); a target below which a default stands is taken apart, so that the default
holds also where the struct around it is null.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import SinkError
from penstock.pipelines.sinks.bigquery.fields import (
    Field,
    Rules,
    arrow_type,
    check_required,
    find,
    from_column,
    narrow,
    unknown,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field filled by a column, or by a value where the column is null or missing.

    Attributes:
        source: the path to the column; empty: only the default.
    """

    field: Field
    source: tuple[str, ...]
    default: "pa.Scalar | None" = None


@dataclass(frozen=True, slots=True)
class Branch:
    """A record put together of several sources; never null itself."""

    field: Field
    nodes: tuple["Leaf | Branch", ...]


Plan = tuple[Leaf | Branch, ...]


@dataclass(slots=True)
class _Target:
    """A place in the tree of targets."""

    source: tuple[str, ...] = ()
    kind: "DataType | None" = None
    default: Any = _NOTHING
    below: "dict[str, _Target]" = field(default_factory=dict)


def plan(
    columns: "StructType",
    table: tuple[Field, ...],
    mapping: Mapping[str, str],
    defaults: Mapping[str, Any],
    rules: Rules,
) -> Plan:
    """How the rows fill the table.

    Args:
        mapping: target path → source path; empty: by name.
        defaults: target path → value.

    Raises:
        SinkError: a source or a target is not there, a type does not fit, a required field gets nothing.
    """
    tree = _tree(columns, mapping, defaults, rules.sink)
    nodes = tuple(_nodes(tree, table, "", rules))
    check_required(table, [each.field for each in nodes], "the table", rules.sink)
    if not nodes:
        raise SinkError(
            f"sink {rules.sink}: no column goes into the table. It has {_names(each.name for each in table)}"
        )
    return nodes


def new_table(
    columns: "StructType", mapping: Mapping[str, str], defaults: Mapping[str, Any], sink: str
) -> tuple[Field, ...]:
    """The fields that a table has that is made for the rows."""
    return _new_fields(_tree(columns, mapping, defaults, sink), "", sink)


def _new_fields(tree: Mapping[str, _Target], above: str, sink: str) -> tuple[Field, ...]:
    made = []
    for name, target in tree.items():
        path = above + name
        if target.kind is not None:
            made.append(from_column(name, target.kind, ".".join(target.source), sink))
        elif target.below:
            made.append(Field(name, "RECORD", fields=_new_fields(target.below, f"{path}.", sink)))
        else:
            made.append(Field(name, _type_of(target.default, path, sink)))
    return tuple(made)


def _type_of(value: object, path: str, sink: str) -> str:
    known = {bool: "BOOLEAN", int: "INTEGER", float: "FLOAT", str: "STRING"}
    if type(value) not in known:
        raise SinkError(
            f"sink {sink}: the default of {path} is {value!r}; a new table's field is made of a text, a number or a "
            "flag. Make the table before"
        )
    return known[type(value)]


def _tree(
    columns: "StructType", mapping: Mapping[str, str], defaults: Mapping[str, Any], sink: str
) -> dict[str, _Target]:
    tree: dict[str, _Target] = {}
    if mapping:
        for path, source in mapping.items():
            if not isinstance(source, str) or not source:
                raise SinkError(f"sink {sink}: mapping.{path} is {source!r}; write the name of a column")
            found = _resolve(columns, source)
            if found is None and path not in defaults:
                raise SinkError(
                    f"sink {sink}: mapping.{path} names column {source}, which the rows lack; they have "
                    f"{_names(columns.fieldNames())}. Correct it, or name a value for {path} under `defaults`"
                )
            target = _place(tree, path, sink)
            target.source, target.kind = found if found else ((), None)
    else:
        for column in columns.fields:
            tree[column.name] = _Target((column.name,), column.dataType)
    for path, value in defaults.items():
        if value is None:
            raise SinkError(f"sink {sink}: defaults.{path} is empty; name a value, or take the line out")
        target = _place(tree, path, sink, through=True)
        if target.below:
            raise SinkError(f"sink {sink}: defaults.{path} is for a record that is put together; name its fields")
        target.default = value
    return tree


def _place(tree: dict[str, _Target], path: str, sink: str, *, through: bool = False) -> _Target:
    """The target at a path. `through`: it may lie below one that has a source, which is then taken apart."""
    first, *rest = path.split(".")
    target = _child(tree, first)
    for name in rest:
        if target.kind is not None:
            if not through:
                raise _both(path, sink)
            _take_apart(target, path, sink)
        target = _child(target.below, name)
    if not through and (target.kind is not None or target.below):
        raise _both(path, sink)
    return target


def _child(tree: dict[str, _Target], name: str) -> _Target:
    alike = next((each for each in tree if each.casefold() == name.casefold()), name)
    return tree.setdefault(alike, _Target())


def _take_apart(target: _Target, path: str, sink: str) -> None:
    from pyspark.sql.types import StructType

    if not isinstance(target.kind, StructType):
        raise SinkError(
            f"sink {sink}: defaults.{path} lies below column {'.'.join(target.source)}, which is not a struct"
        )
    for each in target.kind.fields:
        target.below[each.name] = _Target((*target.source, each.name), each.dataType)
    target.source, target.kind = (), None


def _resolve(columns: "StructType", source: str) -> "tuple[tuple[str, ...], DataType] | None":
    """The path to a column and its type: a column of just that name first, then fields of structs."""
    from pyspark.sql.types import StructType

    if source in columns.fieldNames():
        return (source,), columns[source].dataType
    path: list[str] = []
    kind: DataType = columns
    for name in source.split("."):
        if not isinstance(kind, StructType):
            return None
        found = next((each for each in kind.fields if each.name == name), None) or next(
            (each for each in kind.fields if each.name.casefold() == name.casefold()), None
        )
        if found is None:
            return None
        path.append(found.name)
        kind = found.dataType
    return tuple(path), kind


def _nodes(tree: Mapping[str, _Target], fields: tuple[Field, ...], above: str, rules: Rules) -> Iterable[Leaf | Branch]:
    filled: dict[str, str] = {}
    for name, target in tree.items():
        path = above + name
        into = find(fields, name)
        if into is not None:
            if (other := filled.setdefault(into.name, path)) != path:
                raise SinkError(
                    f"sink {rules.sink}: columns {other} and {path} go to one field, {into.name}: BigQuery does not "
                    "tell upper from lower case. Rename one in a step"
                )
            yield _node(target, into, path, rules)
        elif not rules.ignore_unknown:
            raise unknown(path, ".".join(target.source) or f"(default of {path})", rules.sink)


def _node(target: _Target, into: Field, path: str, rules: Rules) -> Leaf | Branch:
    if target.below:
        if into.type != "RECORD" or into.repeated:
            raise SinkError(f"sink {rules.sink}: {path} is mapped as a record, and field {into.name} is {into}")
        nodes = tuple(_nodes(target.below, into.fields, f"{path}.", rules))
        check_required(into.fields, [each.field for each in nodes], f"record {path}", rules.sink)
        return Branch(replace(into, fields=tuple(each.field for each in nodes)), nodes)
    shape = into if target.kind is None else narrow(target.kind, into, ".".join(target.source), rules)
    default = None if target.default is _NOTHING else _scalar(target.default, shape, path, rules.sink)
    return Leaf(shape, target.source, default)


def _scalar(value: object, into: Field, path: str, sink: str) -> "pa.Scalar":
    from decimal import Decimal, InvalidOperation

    import pyarrow as pa

    kind = arrow_type(into)
    try:
        if pa.types.is_decimal(kind):
            return pa.scalar(Decimal(str(value)), kind)
        if isinstance(value, str) and not pa.types.is_string(kind):
            return pa.scalar(value).cast(kind)
        return pa.scalar(value, kind)
    except (pa.ArrowException, InvalidOperation, TypeError, ValueError) as error:
        raise SinkError(f"sink {sink}: defaults.{path} is {value!r}, which is no {into}: {error}") from None


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _both(path: str, sink: str) -> SinkError:
    return SinkError(
        f"sink {sink}: mapping fills {path} twice: once whole and once by its fields. Leave one of the lines out"
    )
