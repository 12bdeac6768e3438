"""Rows as JSON: as `insertAll` takes them, and as they go to the dead letters."""

import base64
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from penstock.pipelines.sinks.bigquery.fields import Field

if TYPE_CHECKING:
    import pyarrow as pa

_AS_TEXT: Final = ("INTEGER", "NUMERIC", "BIGNUMERIC", "DATE", "DATETIME", "TIMESTAMP")
"""As text no reader of JSON takes a number for a double or a time for a local one."""


def for_insert(batch: "pa.RecordBatch", fields: tuple[Field, ...]) -> list[dict[str, Any]]:
    """Rows in the table's form as objects that are JSON values throughout."""
    import pyarrow as pa

    columns = [_ready(batch.column(at), field) for at, field in enumerate(fields)]
    return list(pa.RecordBatch.from_arrays(columns, [each.name for each in fields]).to_pylist())


def _ready(array: "pa.Array", field: Field) -> "pa.Array":
    import pyarrow as pa

    if field.repeated:
        return pa.ListArray.from_arrays(_offsets(array), _ready(array.flatten(), field.element))
    if field.type == "RECORD":
        from pyarrow import compute

        columns = [_ready(compute.struct_field(array, [at]), each) for at, each in enumerate(field.fields)]
        return pa.StructArray.from_arrays(columns, [each.name for each in field.fields], mask=array.is_null())
    if field.type in _AS_TEXT:
        return array.cast(pa.string())
    if field.type == "BYTES":
        return pa.array(
            [None if each is None else base64.b64encode(each).decode() for each in array.to_pylist()], pa.string()
        )
    if field.type == "FLOAT":
        return _finite(array)
    return array


def _offsets(lists: "pa.Array") -> "pa.Array":
    import pyarrow as pa
    from pyarrow import compute

    lengths = compute.fill_null(compute.list_value_length(lists), 0).cast(pa.int32())  # null: inside a null record
    return pa.concat_arrays([pa.array([0], pa.int32()), compute.cumulative_sum(lengths)])


def _finite(array: "pa.Array") -> "pa.Array":
    """JSON has no NaN and no infinity; BigQuery reads their names."""
    import pyarrow as pa
    from pyarrow import compute

    if compute.all(compute.is_finite(array)).as_py() is not False:
        return array
    text = array.cast(pa.string())
    text = compute.if_else(compute.is_nan(array), "NaN", text)
    infinite = compute.if_else(compute.greater(array, 0.0), "Infinity", "-Infinity")
    return compute.if_else(compute.is_inf(array), infinite, text)


def for_letter(batch: "pa.RecordBatch", row: int) -> bytes:
    """One row as it came, for a person or a program that repairs it."""
    (values,) = batch.slice(row, 1).to_pylist(maps_as_pydicts="lossy")
    return orjson.dumps(_plain(values))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain_key(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if value is None or isinstance(value, bool | int | float | str | datetime | date):
        return value
    return str(value)


def _plain_key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else str(plain)
