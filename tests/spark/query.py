"""Reads of a test, as batches and as streams, and what came out of them in plain Python."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.streaming.query import StreamingQuery

DEADLINE_S = 120.0

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class Read(NamedTuple):
    """One row, whichever source gave it."""

    topic: str
    partition: int
    offset: int
    time_ms: int
    time_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None = None


def read_rows(frame: DataFrame) -> list[Read]:
    """All rows in the order of topics, partitions and offsets, those that are there twice twice."""
    timed = frame.withColumn("time_ms", F.unix_millis("timestamp")).drop("timestamp")
    return sorted((_plain(row) for row in timed.collect()), key=lambda each: each[:3])


def read_values(frame: DataFrame) -> list[bytes | None]:
    """The values in that order."""
    rows = frame.select("topic", "partition", "offset", "value").collect()
    return [_bytes(row.value) for row in sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))]


def _plain(row: Row) -> Read:
    found = row.asDict()
    headers = found.get("headers")
    return Read(
        row.topic,
        row.partition,
        row.offset,
        row.time_ms,
        row.timestampType,
        _bytes(row.key),
        _bytes(row.value),
        None if headers is None else tuple((each.key, _bytes(each.value)) for each in headers),
    )


def _bytes(found: bytearray | None) -> bytes | None:
    return None if found is None else bytes(found)


def wait_for(condition: Callable[[], bool], told: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)


@dataclass
class Stream:
    """A streaming read whose rows end up here, batch by batch; it may be run again and again.

    Attributes:
        batches: rows of each micro-batch, by its number; one that is repeated must have the rows it had.
        crash: called with a batch's number before the batch counts as done.
    """

    spark: SparkSession
    checkpoint: Path
    options: Mapping[str, str]
    batches: dict[int, list[Read]] = field(default_factory=dict)
    crash: Callable[[int], None] = lambda _: None

    def rows(self) -> list[Read]:
        return sorted((row for rows in list(self.batches.values()) for row in rows), key=lambda each: each[:3])

    def values(self) -> list[bytes | None]:
        return [row.value for row in self.rows()]

    def start(self, *, available_now: bool = False, **changes: str) -> StreamingQuery:
        stream = self.spark.readStream.format("penstock").options(**{**self.options, **changes}).load()
        sink = stream.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        return (sink.trigger(availableNow=True) if available_now else sink).start()

    def run(self, **changes: str) -> list[dict[str, Any]]:
        """Read what is there and end; returns the progress of each micro-batch. Raises what the query failed with."""
        query = self.start(available_now=True, **changes)
        try:
            assert query.awaitTermination(int(DEADLINE_S)), query.status
        finally:
            query.stop()
        return [json.loads(each.json) for each in query.recentProgress]

    @contextmanager
    def running(self, **changes: str) -> Iterator[Callable[[Callable[[], bool]], None]]:
        """Reads until the block is left; hands out a function that waits for a condition."""
        query = self.start(available_now=False, **changes)

        def wait(condition: Callable[[], bool]) -> None:
            def holds() -> bool:
                assert query.isActive, query.exception()
                return condition()

            wait_for(holds, lambda: f"{query.status}, {len(self.rows())} rows, last {self.rows()[-1:]}")

        try:
            yield wait
        finally:
            query.stop()

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = read_rows(frame)
        assert self.batches.setdefault(number, rows) == rows, f"batch {number} was another one the first time"
        self.crash(number)
