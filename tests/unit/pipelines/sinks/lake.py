"""Rows of every type, and sinks without Spark: a task's function is called with record batches."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.pipelines.model import SinkSpec
from penstock.pipelines.sinks import kind_of, open_sink
from penstock.pipelines.sinks.arrow_columns import arrow_schema
from penstock.pipelines.sinks.contract import BatchId, Context
from penstock.pipelines.sinks.datafiles import Written, read_answers
from penstock.pipelines.sinks.parts import Task

QUERY = "5b6a7f0e-8d8c-4f0e-9a51-0e8c2c8e6a11"
FIRST = Task(0, 0)
Rows = list[dict[str, Any]]


def columns(**types: Any) -> StructType:
    """A schema by Spark's JSON names: `columns(id="long", day="date")`."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return StructType.fromJson({"type": "struct", "fields": fields})


PLAIN = columns(id="long", day="string")
EVERY = columns(
    flag="boolean",
    tiny="byte",
    small="short",
    number="integer",
    big="long",
    single="float",
    double="double",
    money="decimal(20,3)",
    text="string",
    raw="binary",
    day="date",
    at="timestamp",
    local="timestamp_ntz",
    many={"type": "array", "elementType": "string", "containsNull": True},
    named={"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
    inner=columns(a="integer", t="timestamp").jsonValue(),
)
FULL: dict[str, Any] = {
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "number": -(2**31),
    "big": 2**63 - 1,
    "single": 1.5,
    "double": float("inf"),
    "money": Decimal("-12345678901234567.891"),
    "text": "Größe \U0001f600",
    "raw": b"\x00\xff",
    "day": date(2026, 11, 16),
    "at": datetime(2026, 11, 16, 23, 59, 59, 999999, UTC),
    "local": datetime(1969, 12, 31, 23, 59, 59, 123456),
    "many": ["a", None, ""],
    "named": [("k", 1), ("l", None)],
    "inner": {"a": 7, "t": datetime(2026, 1, 1, tzinfo=UTC)},
}
EMPTY: dict[str, Any] = dict.fromkeys(FULL)
EDGE: dict[str, Any] = {
    **EMPTY,
    "text": "",
    "day": date(9999, 12, 31),
    "at": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    "local": datetime(1, 1, 1),
    "double": float("-inf"),
    "many": [],
    "named": [],
    "inner": {"a": None, "t": None},
}


def sink_of(kind: str, directory: Path, name: str = "lake", **options: Any) -> Any:
    """A sink of a kind with its defaults, relative to a directory."""
    table = {key.name: key.default for key in kind_of(kind).KEYS}
    spec = SinkSpec(name, kind, "clean", {**table, **options})
    return open_sink(spec, Context("revenue", "", {}, directory, directory / "state"))


def batches(rows: Rows, schema: StructType = PLAIN, pieces: int = 1) -> list[pa.RecordBatch]:
    """The rows as Spark's tasks get them."""
    size = -(-len(rows) // pieces) or 1
    arrow = arrow_schema(schema, "test")
    return [pa.RecordBatch.from_pylist(rows[at : at + size], schema=arrow) for at in range(0, len(rows), size)]


def write_task(sink: Any, identity: BatchId, given: Sequence[pa.RecordBatch], task: Task = FIRST) -> list[bytes]:
    answer = sink.part_writer(identity)(task, iter(given))
    return [] if answer is None else [answer]


def written(sink: Any, identity: BatchId, rows: Rows, schema: StructType = PLAIN) -> list[Written]:
    """What one task writes, not yet committed."""
    answers = write_task(sink, identity, batches(rows, schema))
    return read_answers(answers, sink.part_writer(identity).storage, "lake")


def put(sink: Any, batch: int, rows: Rows, schema: StructType = PLAIN, query: str = QUERY) -> int | None:
    """A whole micro-batch, as the driver does it; None where the sink has it."""
    identity = BatchId(query, batch)
    if sink.is_written(identity):
        return None
    return int(sink.commit(written(sink, identity, rows, schema), identity))


def ids(*numbers: int, day: str | None = "mon") -> Rows:
    return [{"id": number, "day": day} for number in numbers]


def in_order(rows: Rows, key: str = "id") -> Rows:
    return sorted(rows, key=lambda row: (row[key] is not None, row[key] or 0))
