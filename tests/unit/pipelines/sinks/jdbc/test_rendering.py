"""Arrow columns as COPY's text and rows as JSON."""

import datetime
import decimal
import json
from typing import Any

import pyarrow as pa

from penstock.pipelines.sinks.jdbc.columns import Column, Family
from penstock.pipelines.sinks.jdbc.rendering import copy_text, row_json
from penstock.pipelines.sinks.jdbc.staging import gathered

from .stand_in import arrow_batch

ID = Column("id", Family.BIGINT, "bigint")
NAME = Column("name", Family.TEXT, "string")
DATA = Column("data", Family.BINARY, "binary")


def test_copy_text_escapes_and_tells_null_from_empty() -> None:
    rows: list[dict[str, Any]] = [
        {"id": 1, "name": "tab\there", "data": b"\x00\\"},
        {"id": 2, "name": ""},
        {"id": None, "name": "\\N\r\n\\."},
    ]
    text = bytes(copy_text(arrow_batch(rows, [ID, NAME, DATA]), [ID, NAME, DATA], "me"))
    assert text.split(b"\n") == [
        b"me\t1\ttab\\there\t\\\\x005c",
        b"me\t2\t\t\\N",
        b"me\t\\N\t\\\\N\\r\\n\\\\.\t\\N",
        b"",
    ]


def test_copy_text_of_a_slice_has_its_rows_alone() -> None:
    batch = arrow_batch([{"id": number, "name": f"n{number}"} for number in range(5)], [ID, NAME])
    assert bytes(copy_text(batch.slice(2, 2), [ID, NAME], "me")) == b"me\t2\tn2\nme\t3\tn3\n"


def test_copy_text_of_several_chunks() -> None:
    table = pa.Table.from_batches([arrow_batch([{"id": number}], [ID]) for number in range(3)])
    assert bytes(copy_text(table, [ID], "me")) == b"me\t0\nme\t1\nme\t2\n"


def test_row_json() -> None:
    columns = [
        ID,
        DATA,
        Column("amount", Family.DECIMAL, "decimal(4,2)", 4, 2),
        Column("at", Family.INSTANT, "timestamp"),
        Column("tags", Family.JSON, "array<int>"),
    ]
    at = datetime.datetime(2024, 5, 6, 7, tzinfo=datetime.UTC)
    row = {"id": 1, "data": b"\xff", "amount": decimal.Decimal("1.50"), "at": at, "tags": "[1, 2]"}
    assert json.loads(row_json(row, columns)) == {
        "id": 1,
        "data": "/w==",
        "amount": "1.50",
        "at": "2024-05-06T07:00:00+00:00",
        "tags": [1, 2],
    }


def test_gathered_tables_are_never_larger() -> None:
    batches = [arrow_batch([{"id": number} for number in range(size)], [ID]) for size in (3, 4, 11, 1)]
    tables = list(gathered(iter(batches), 5))
    assert [table.num_rows for table in tables] == [3, 4, 5, 5, 2]
    assert pa.concat_tables(tables).equals(pa.Table.from_batches(batches))
