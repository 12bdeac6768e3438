"""Arrow columns as text: for COPY, for SQLite and for rows that are rejected.

No Python object is made per value (binary values apart): a task's time is the database's.
"""

import base64
import datetime
import decimal
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from .columns import Column, Family

if TYPE_CHECKING:
    import pyarrow as pa

_ESCAPED: Final = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def as_text(values: "pa.Array", family: Family) -> "pa.Array":
    """The values as large strings that PostgreSQL and SQLite read back; nulls stay null. Not for binary ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if family is Family.INSTANT:
        values = values.cast(pa.timestamp("us", "UTC"))
    return pc.cast(values, pa.large_string())


def copy_text(batch: "pa.RecordBatch | pa.Table", columns: Sequence[Column], first: str) -> memoryview:
    """Rows as the text format of PostgreSQL's COPY, `first` being the value of one more column in front.

    Not CSV: servers before 18 take a line `\\.` within a quoted value for the end of the data.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    fields = [_copied(_contiguous(batch.column(at)), column.family) for at, column in enumerate(columns)]
    tab, newline, nothing = (pa.scalar(each, pa.large_string()) for each in ("\t", "\n", ""))
    # A null would make its whole line null, so it is replaced before anything that must not be is joined.
    lines = pc.binary_join_element_wise(
        pa.scalar(first, pa.large_string()), *fields, tab, null_handling="replace", null_replacement="\\N"
    )
    lines = pc.binary_join_element_wise(lines, nothing, newline)
    _, offsets, data = lines.buffers()
    if data is None:
        return memoryview(b"")
    begin, end = (int.from_bytes(memoryview(offsets)[at * 8 : at * 8 + 8], "little") for at in (0, len(lines)))
    return memoryview(data)[begin:end]


def _contiguous(values: "pa.Array | pa.ChunkedArray") -> "pa.Array":
    import pyarrow as pa

    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _copied(values: "pa.Array", family: Family) -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    if family is Family.BINARY:
        hexes = [None if each is None else f"\\\\x{each.hex()}" for each in values.to_pylist()]
        return pa.array(hexes, pa.large_string())
    texts = as_text(values, family)
    has_special = (
        family in (Family.TEXT, Family.JSON) and pc.any(pc.match_substring_regex(texts, r"[\\\n\r\t]")).as_py()
    )
    if has_special:
        for plain, escaped in _ESCAPED:
            texts = pc.replace_substring(texts, plain, escaped)
    return texts


def python_rows(batch: "pa.RecordBatch", columns: Sequence[Column]) -> list[tuple[Any, ...]]:
    """Rows as SQLite takes them: what it has no storage class for is text."""
    values = []
    for at, column in enumerate(columns):
        array = batch.column(at)
        if column.family in (Family.DECIMAL, Family.DATE, Family.INSTANT, Family.CLOCK):
            array = as_text(array, column.family)
        values.append(array.to_pylist())
    return list(zip(*values, strict=True))


def row_json(row: Mapping[str, object], columns: Sequence[Column]) -> bytes:
    """A row that is rejected, for the dead letters; binary values are base64, as Spark's JSON has them."""
    shown = {
        column.name: _fragment(row[column.name]) if column.family is Family.JSON else row[column.name]
        for column in columns
    }
    return orjson.dumps(shown, default=_plain)


def _fragment(value: object) -> object:
    return orjson.Fragment(value) if isinstance(value, str) else value


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal | datetime.timedelta | uuid.UUID):
        return str(value)
    return repr(value)
