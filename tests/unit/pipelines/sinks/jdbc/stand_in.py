"""Rows and tasks without Spark: what `run_tasks` would hand to each task, in this process."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock.pipelines.model import SinkSpec
from penstock.pipelines.sinks.contract import Context, Rejected
from penstock.pipelines.sinks.jdbc import open_sink
from penstock.pipelines.sinks.jdbc.columns import Column, Family, Shape
from penstock.pipelines.sinks.jdbc.options import Options
from penstock.pipelines.sinks.parts import Task, WritePart
from penstock.spark.formats.ddl import parse_schema

Row = dict[str, Any]

_ARROW = {
    Family.BOOLEAN: pa.bool_(),
    Family.SMALLINT: pa.int16(),
    Family.INT: pa.int32(),
    Family.BIGINT: pa.int64(),
    Family.FLOAT: pa.float32(),
    Family.DOUBLE: pa.float64(),
    Family.TEXT: pa.string(),
    Family.JSON: pa.string(),
    Family.BINARY: pa.binary(),
    Family.DATE: pa.date32(),
    Family.INSTANT: pa.timestamp("us", "Europe/Berlin"),
    Family.CLOCK: pa.timestamp("us"),
}


@dataclass
class Rows:
    """A DataFrame's stand-in: the rows of each partition, a row that deletes having `_penstock_delete`."""

    ddl: str
    partitions: Sequence[Sequence[Row]]
    after_tasks: Callable[[WritePart], None] = lambda write: None
    schema: StructType = field(init=False)

    def __post_init__(self) -> None:
        self.schema = parse_schema(self.ddl)


def run_tasks(rows: Rows, shape: Shape, options: Options, write: WritePart) -> list[bytes]:
    """Every task twice, as Spark may; the first one's answer is lost."""
    answers = []
    for number, partition in enumerate(rows.partitions):
        batches = [arrow_batch(partition[start : start + 7], shape.staged) for start in range(0, len(partition), 7)]
        sent = copy.deepcopy(write)
        for attempt in range(2):
            answer = sent(Task(number, attempt), iter(batches))
        if answer is not None:
            answers.append(answer)
    rows.after_tasks(write)
    return answers


def arrow_batch(rows: Sequence[Row], columns: Sequence[Column]) -> pa.RecordBatch:
    arrays = []
    for column in columns:
        values = [row.get(column.name, False if column.name == "_penstock_delete" else None) for row in rows]
        if column.family is Family.JSON:
            values = [None if each is None else json.dumps(each) for each in values]
        decimal = column.family is Family.DECIMAL
        kind = pa.decimal128(column.precision, column.scale) if decimal else _ARROW[column.family]
        arrays.append(pa.array(values, kind))
    return pa.record_batch(arrays, names=[column.name for column in columns])


def open_jdbc(url: str, *, sink: str = "shop", directory: Path = Path("/nowhere"), **keys: Any) -> Any:
    """A sink that takes `Rows` for a DataFrame."""
    keys = {"table": "items", **keys}
    spec = SinkSpec(name=sink, kind="jdbc", source="rows", options={"jdbc": url, **keys})
    return open_sink(spec, Context("revenue", "", {}, directory, directory))


class Letters:
    """Takes rejected rows."""

    def __init__(self) -> None:
        self.rejected: list[Rejected] = []

    def __call__(self, rejected: Sequence[Rejected]) -> None:
        self.rejected += rejected

    @property
    def rows(self) -> list[Row]:
        return [json.loads(each.row) for each in self.rejected]
