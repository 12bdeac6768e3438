"""Rows without a Spark session, and where refused ones go."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from penstock.pipelines.sinks.contract import BatchId, Rejected
from penstock.spark.formats.ddl import parse_schema

TABLE = "shop.sales.orders"
QUERY = "0b5e3a52-3c3a-4f0e-9a51-0e8c2c8e6a11"
FIRST = BatchId(QUERY, 0)


class Frame:
    """As much of a DataFrame as a sink needs: partitions of Arrow batches."""

    def __init__(self, schema: str, *partitions: list[pa.RecordBatch]) -> None:
        self.schema = parse_schema(schema)
        self.partitions = partitions
        self.coalesced = 0

    def coalesce(self, count: int) -> "Frame":
        self.coalesced = count
        return self

    def mapInArrow(self, run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> Any:  # noqa: N802 - the name is Spark's
        made = [each for part in self.partitions for each in run(iter(part))]
        rows = [SimpleNamespace(**row) for each in made for row in each.to_pylist()]
        return SimpleNamespace(collect=lambda: rows)


class Letters(list[Rejected]):
    """Dead letters."""

    def take(self, rows: "list[Rejected]") -> None:
        self.extend(rows)

    @property
    def reasons(self) -> list[str]:
        return [each.reason for each in self]


def orders(*ids: int | None, name: str = "n") -> Frame:
    return Frame("id BIGINT, name STRING", [batch_of(*ids, name=name)])


def batch_of(*ids: int | None, name: str = "n") -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": pa.array([name] * len(ids), pa.string())})
