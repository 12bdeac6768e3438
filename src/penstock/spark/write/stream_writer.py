"""Streaming writes: every micro-batch is one transaction with a mark, so that a repeated one is written once.

Spark makes a writer for each micro-batch on the driver and pickles it for the tasks, and another one, in another
process, to commit or abort. Only the first kind may begin a transaction: beginning is what pickling does. The
committing one learns of it from the tasks.
"""

import os
from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.spark.errors import OptionError, SourceError
from penstock.spark.options.options import WriteOptions
from penstock.spark.write.exactly_once import abort
from penstock.spark.write.writer import Lender, PlainDoor, Written, check, write_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def open_stream_writer(options: WriteOptions, schema: "StructType", *, overwrite: bool) -> DataSourceStreamArrowWriter:
    check(options, schema, overwrite=overwrite, patient=True)
    if options.delivery == "at-least-once":
        return PlainStreamWriter(options)
    return ExactlyOnceWriter(options, transactional_id(options))


def transactional_id(options: WriteOptions) -> str:
    """The query's: one checkpoint, one id, so that a new run shuts out the one before."""
    if options.transactional_id is not None:
        return options.transactional_id
    if options.checkpoint is None:
        raise OptionError(
            "an exactly-once write must know its query again: set the option checkpointLocation or transactional.id "
            "on the writer, or choose delivery=at-least-once"
        )
    return f"penstock-spark-{sha256(normal_path(options.checkpoint).encode()).hexdigest()[:32]}"


def normal_path(place: str) -> str:
    """A checkpoint's place, however it is spelled: with a scheme or without, with a slash at its end or without."""
    scheme, colon, rest = place.partition(":")
    if colon and scheme != "file":
        return place.rstrip("/")
    local = rest if colon else place
    return os.path.abspath("/" + local.lstrip("/") if local.startswith("//") else local)


class PlainStreamWriter(DataSourceStreamArrowWriter):
    """Every task for itself; a repeated micro-batch is written again."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return write_rows(self._options, iterator, PlainDoor(self._options))


class ExactlyOnceWriter(Lender, DataSourceStreamArrowWriter):
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        return self.write_batch(*batch_of_task(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self.commit_batch(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Frees the topics' readers from an open transaction; if nobody can, the query's next start does."""
        for message in messages:
            if isinstance(message, Written) and message.loan is not None:
                abort(self._options.settings, message.loan)
                return


def batch_of_task() -> tuple[str, int]:
    """Which query's and which micro-batch a task works for."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if query is None or batch is None:
        raise SourceError("Spark does not tell the task its query and batch; exactly-once needs Spark 4.2 or 4.3")
    return query, int(batch)
