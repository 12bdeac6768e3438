"""What a Delta log says of a data file, from the file's footer: rows, nulls, and bounds of columns.

A bound that is wrong hides rows from readers, so a column whose bounds cannot be told surely has none: floats (NaN is
in no bound), long texts (cut in the log by some writers), decimals, nested columns. Timestamps are rounded outwards to
milliseconds, as readers differ in how they treat the rest.
"""

import json
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_COLUMNS: Final = 32  # Delta's default of delta.dataSkippingNumIndexedCols
_TEXT: Final = 32
_MILLISECOND: Final = timedelta(milliseconds=1)


def delta_stats(footer: "pq.FileMetaData") -> str:
    """The `stats` of an add action, as JSON."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    schema = footer.schema.to_arrow_schema()
    positions = {footer.schema.column(index).path: index for index in range(footer.num_columns)}
    for name in schema.names[:_COLUMNS]:
        index = positions.get(name)
        if index is None or "." in name:
            continue
        chunks = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if any(each is None or not each.has_null_count for each in chunks):
            continue
        nulls[name] = sum(each.null_count for each in chunks)
        try:
            bounds = _bounds([each for each in chunks if each.num_values], str(schema.field(name).type))
        except (ValueError, OverflowError):  # a date that Python has none for
            continue
        if bounds:
            least[name], most[name] = bounds
    return json.dumps({"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _bounds(chunks: list[Any], kind: str) -> tuple[Any, Any] | None:
    if not chunks or any(not each.has_min_max for each in chunks):
        return None
    low, high = min(each.min for each in chunks), max(each.max for each in chunks)
    if kind in ("int8", "int16", "int32", "int64"):
        return low, high
    if kind == "string" and len(low) <= _TEXT and len(high) <= _TEXT:
        return low, high
    if kind == "date32[day]" and isinstance(low, date):
        return low.isoformat(), high.isoformat()
    if kind.startswith("timestamp[us") and isinstance(low, datetime):
        zone = "Z" if "tz=" in kind else ""
        return _text(low, zone), _text(high + _MILLISECOND - timedelta(microseconds=1), zone)
    return None


def _text(moment: datetime, zone: str) -> str:
    if moment.tzinfo:
        moment = moment.astimezone(UTC)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='milliseconds')}{zone}"
