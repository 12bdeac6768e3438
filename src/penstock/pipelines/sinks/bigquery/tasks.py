"""What runs in Spark's tasks: rows are brought into the table's form, gathered, and sent by one of the methods."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.bigquery import answers, inserts, streams
from penstock.pipelines.sinks.bigquery.access import Access
from penstock.pipelines.sinks.bigquery.answers import Written
from penstock.pipelines.sinks.bigquery.batcher import Batcher, Limits, timed
from penstock.pipelines.sinks.bigquery.mapping import Plan
from penstock.pipelines.sinks.bigquery.projection import Rows, join, project, table_schema
from penstock.pipelines.sinks.bigquery.rows_json import for_letter
from penstock.pipelines.sinks.bigquery.trouble import Backoff, foreign_errors, told
from penstock.pipelines.sinks.contract import BatchId, Rejected

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.pipelines.sinks.parts import Task, WritePart


@dataclass(frozen=True, slots=True)
class Job:
    """All that a task must know.

    Attributes:
        fresh: the table was made just now, so that not all of BigQuery may know it yet.
    """

    access: Access
    plan: Plan
    limits: Limits
    backoff: Backoff
    identity: BatchId
    sink: str
    ignore_unknown: bool = False
    fresh: bool = False

    def run(self, write: "Callable[[Task, Iterator[pa.RecordBatch]], Written | None]") -> "WritePart":
        """The same with failures as answers."""

        def part(task: "Task", batches: "Iterator[pa.RecordBatch]") -> bytes | None:
            try:
                written = write(task, batches)
            except SinkError as error:
                return answers.encode(self._told(error))
            except foreign_errors() as error:
                return answers.encode(self._told(told(error, f"opening table {self.access}")))
            return None if written is None else answers.encode(written)

        return part

    def _told(self, error: SinkError) -> SinkError:
        from google.api_core.exceptions import NotFound

        text = f"sink {self.sink}: {error}"
        passes = error.retriable or (self.fresh and isinstance(error.__cause__, NotFound))
        return SinkUnavailable(text) if passes else SinkError(text)


def stream_writer(job: Job, sleep: Callable[[float], None] = time.sleep) -> "WritePart":
    """Writes a part into a pending stream; no rows, no stream."""

    def write(task: "Task", batches: "Iterator[pa.RecordBatch]") -> Written | None:
        rejected: list[Rejected] = []
        batcher: Batcher[Rows] = Batcher(job.limits, time.monotonic)
        client, stream = job.access.open_grpc(), None
        try:
            for batch in _full(_pieces(job, timed(batches, batcher.left_s), rejected), batcher):
                if stream is None:
                    schema = table_schema(job.plan)
                    stream = streams.Stream(client, job.access, schema, job.backoff, job.limits.at_once, sleep)
                stream.append(batch)
            if stream is None:
                return Written("", 0, tuple(rejected)) if rejected else None
            rows = stream.finish()
            rejected += stream.rejected
            return Written(stream.name if rows else "", rows, tuple(rejected))
        finally:
            if stream is not None:
                stream.close()
            client.transport.close()

    return job.run(write)


def insert_writer(job: Job, sleep: Callable[[float], None] = time.sleep) -> "WritePart":
    """Writes a part by insertAll."""

    def write(task: "Task", batches: "Iterator[pa.RecordBatch]") -> Written | None:
        rejected: list[Rejected] = []
        batcher: Batcher[inserts.Row] = Batcher(job.limits, time.monotonic)
        prefix = f"{job.identity.query}/{job.identity.batch}/{job.sink}/{task.partition}"
        maker = inserts.RowMaker(tuple(each.field for each in job.plan), prefix)
        client = job.access.open_rest()
        sender = inserts.Inserts(
            client,
            job.access,
            job.backoff,
            job.limits.at_once,
            ignore_unknown=job.ignore_unknown,
            sleep=sleep,
        )
        try:
            for batch in timed(batches, batcher.left_s):
                for rows in [] if batch is None else maker.make(_usable(job.plan, batch, rejected)):
                    if rows.size_bytes > job.limits.size_bytes:
                        rejected.append(rows.reject(_too_large(rows.size_bytes, job.limits)))
                        continue
                    for full in batcher.add(rows, 1, rows.size_bytes):
                        sender.send(full)
                for full in batcher.due():
                    sender.send(full)
            for full in batcher.flush():
                sender.send(full)
            sender.finish()
        finally:
            sender.close()
            client.close()
        rejected += sender.rejected
        return Written("", sender.rows, tuple(rejected)) if sender.rows or rejected else None

    return job.run(write)


def _full(pieces: "Iterator[Rows | None]", batcher: Batcher[Rows]) -> Iterator[Rows]:
    """Requests' worth of rows."""
    for piece in pieces:
        start = 0
        while piece is not None and start < len(piece):
            part = piece.slice(start, batcher.room)
            start += len(part)
            yield from map(join, batcher.add(part, len(part), _size_bytes(part)))
        yield from map(join, batcher.due())
    yield from map(join, batcher.flush())


def _pieces(job: Job, batches: "Iterator[pa.RecordBatch | None]", rejected: list[Rejected]) -> Iterator[Rows | None]:
    """Rows in the table's form, cut so that each piece fits a request. None: time has passed."""
    for batch in batches:
        if batch is None:
            yield None
            continue
        yield from _cut(_usable(job.plan, batch, rejected), job.limits, rejected)


def _usable(plan: Plan, batch: "pa.RecordBatch", rejected: list[Rejected]) -> Rows:
    rows, refused = project(plan, batch)
    rejected += [Rejected(for_letter(batch, at), refused[at]) for at in sorted(refused)]
    return rows.without(refused) if refused else rows


def _cut(rows: Rows, limits: Limits, rejected: list[Rejected]) -> Iterator[Rows]:
    if not len(rows):
        return
    size = _size_bytes(rows)
    if size <= limits.size_bytes:
        yield rows
    elif len(rows) == 1:
        rejected.append(Rejected(for_letter(rows.source, 0), _too_large(size, limits)))
    else:
        half = len(rows) // 2
        yield from _cut(rows.slice(0, half), limits, rejected)
        yield from _cut(rows.slice(half), limits, rejected)


def _size_bytes(rows: Rows) -> int:
    import pyarrow as pa

    return int(pa.ipc.get_record_batch_size(rows.ready))


def _too_large(size_bytes: int, limits: Limits) -> str:
    return f"the row takes {size_bytes:,} bytes; a request may hold {limits.size_bytes:,}"
