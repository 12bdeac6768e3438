"""How rows leave Spark: every task hands its rows, as Arrow batches, to a function, and what that says comes back to
the driver.

Only answers of tasks that Spark counts come back, one each. A task that failed, or ran twice, may have written
something too; nobody learns of it, so it must not count until the driver says so.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class Task(NamedTuple):
    """A task and which try it is."""

    partition: int
    attempt: int


WritePart = Callable[[Task, "Iterator[pa.RecordBatch]"], bytes | None]
"""Runs in a worker: pickled with all it holds, so it holds no connection. None: nothing to say."""


def write_parts(rows: "DataFrame", write: WritePart) -> list[bytes]:
    """What `write` returned in each task, in no order."""

    def run(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        task = Task(context.partitionId(), context.attemptNumber()) if context else Task(0, 0)
        answer = write(task, (batch for batch in batches if batch.num_rows))
        yield pa.record_batch({"answer": pa.array([] if answer is None else [answer], pa.binary())})

    return [bytes(row.answer) for row in rows.mapInArrow(run, "answer binary").collect()]
