"""Rows in the table's form: a plan of `mapping` put to work on Arrow batches, column by column.

A null array becomes an empty one, which is how BigQuery has it; maps become arrays of (key, value) records. Null inside
an array has no place there at all, so such rows are named.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.pipelines.sinks.bigquery.fields import Field, arrow_type
from penstock.pipelines.sinks.bigquery.mapping import Branch, Leaf, Plan

if TYPE_CHECKING:
    import pyarrow as pa

Refused = dict[int, str]
"""Row → why it cannot be written."""


class Rows(NamedTuple):
    """Rows as the table takes them, and as they came."""

    ready: "pa.RecordBatch"
    source: "pa.RecordBatch"

    def slice(self, start: int, count: int | None = None) -> "Rows":
        return Rows(self.ready.slice(start, count), self.source.slice(start, count))

    def without(self, rows: Mapping[int, Any]) -> "Rows":
        import pyarrow as pa

        kept = pa.array([at for at in range(len(self)) if at not in rows], pa.int64())
        return Rows(self.ready.take(kept), self.source.take(kept))

    def __len__(self) -> int:
        return int(self.ready.num_rows)


def join(parts: list[Rows]) -> Rows:
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]
    return Rows(pa.concat_batches([each.ready for each in parts]), pa.concat_batches([each.source for each in parts]))


def table_schema(plan: Plan) -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([(each.field.name, arrow_type(each.field)) for each in plan])


def project(plan: Plan, batch: "pa.RecordBatch") -> tuple[Rows, Refused]:
    """The rows in the table's form, and which of them (by place) cannot be written."""
    import pyarrow as pa

    work = _Projection(batch)
    columns = [work.node(each) for each in plan]
    return Rows(pa.record_batch(columns, schema=table_schema(plan)), batch), work.refused


class _Projection:
    """One batch at work."""

    def __init__(self, batch: "pa.RecordBatch") -> None:
        self._batch = batch
        self.refused: Refused = {}

    def node(self, node: Leaf | Branch) -> "pa.Array":
        import pyarrow as pa

        if isinstance(node, Branch):
            inner = [pa.field(each.name, arrow_type(each)) for each in node.field.fields]
            return pa.StructArray.from_arrays([self.node(each) for each in node.nodes], fields=inner)
        return self._leaf(node)

    def _leaf(self, leaf: Leaf) -> "pa.Array":
        import pyarrow as pa
        from pyarrow import compute

        if not leaf.source:
            return pa.repeat(leaf.default, self._batch.num_rows)
        source = self._column(leaf.source)
        rows = pa.array(range(len(source)), pa.int64())
        shaped = self._shape(source, leaf.field, rows)
        if leaf.default is None or not source.null_count:
            return shaped
        return compute.if_else(source.is_valid(), shaped, leaf.default)

    def _column(self, path: tuple[str, ...]) -> "pa.Array":
        from pyarrow import compute

        column = self._batch.column(path[0])
        for name in path[1:]:
            column = compute.struct_field(column, name)
        return column

    def _shape(self, array: "pa.Array", field: Field, rows: "pa.Array") -> "pa.Array":
        """The array as the field takes it; `rows` says which row each value belongs to."""
        import pyarrow as pa
        from pyarrow import compute

        if field.repeated:
            return self._shape_list(array, field, rows)
        if field.type != "RECORD":
            return array.cast(arrow_type(field))
        names = [each.name for each in array.type]
        columns = [
            self._shape(compute.struct_field(array, [_index(names, each.name)]), each, rows) for each in field.fields
        ]
        inner = [pa.field(each.name, arrow_type(each)) for each in field.fields]
        return pa.StructArray.from_arrays(columns, fields=inner, mask=array.is_null())

    def _shape_list(self, array: "pa.Array", field: Field, rows: "pa.Array") -> "pa.Array":
        import pyarrow as pa
        from pyarrow import compute

        if pa.types.is_map(array.type):
            pair = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
            array = array.cast(pa.list_(pair))
        values = array.flatten()
        owners = rows.take(compute.list_parent_indices(array).cast(pa.int64()))
        if values.null_count:
            for row in owners.filter(values.is_null()).to_pylist():
                self.refused.setdefault(row, f"field {field.name}: an array in BigQuery holds no null")
        lengths = compute.fill_null(compute.list_value_length(array), 0).cast(pa.int32())
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), compute.cumulative_sum(lengths)])
        return pa.ListArray.from_arrays(offsets, self._shape(values, field.element, owners), type=arrow_type(field))


def _index(names: list[str], name: str) -> int:
    folded = [each.casefold() for each in names]
    return names.index(name) if name in names else folded.index(name.casefold())
