"""What every sink promises: a micro-batch, known by (query, batch), is in it once, however often it is written.

Spark repeats its last micro-batch after a crash, with the same rows and the same number. So a sink remembers the number
*in the same atomic step as the rows*, asks its memory before it writes, and a task that Spark runs twice, or that goes
on after its driver died, leaves nothing that counts.

    driver  is_written? ── tasks write parts ── reject rows ── commit parts and mark, at once
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.pipelines.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from penstock.pipelines.model import SinkSpec


class BatchId(NamedTuple):
    """A micro-batch as a sink knows it. Spark's queryId belongs to a checkpoint: a new one has a new id."""

    query: str
    batch: int

    def repeats(self, last: int | None, sink: str) -> bool:
        """Whether this batch is the one that was written last.

        Raises:
            SinkError: it is older than that. Spark repeats its last batch, never one before: the checkpoint is not the
                one of the last run, and what it calls a batch need not be what was written under that number.
        """
        if last is None or self.batch > last:
            return False
        if self.batch < last:
            raise SinkError(
                f"sink {sink}: batch {self.batch} of query {self.query} comes after batch {last} was written: the "
                "checkpoint is older than the sink. Restore the last one, or reset the pipeline"
            )
        return True


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that a sink does not take, as JSON, and why."""

    row: bytes
    reason: str


Reject = Callable[[Sequence[Rejected]], None]
"""Takes rejected rows to the dead letters. A sink calls it before it commits, so that a repeated batch rejects again
and nothing falls between."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a sink may know of the pipeline around it.

    Attributes:
        server, client: the pipeline's brokers and client properties.
        directory: what relative paths are relative to.
        state: a directory of the sink's own on the driver, kept between runs and gone with a reset.
    """

    pipeline: str
    server: str
    client: Mapping[str, str] = field(repr=False)
    directory: Path
    state: Path


class Sink(Protocol):
    """One destination, on the driver. Methods may be called again after they raised `SinkUnavailable`."""

    def probe(self) -> None:
        """Look whether the destination is there, without changing anything and without Spark.

        Raises:
            SinkUnavailable: it cannot be reached.
            SinkError: it can, and will not do.
        """
        ...

    def prepare(self, schema: "StructType") -> None:
        """Before the first row: check the rows' columns against what is there; make what is missing and may be made.

        Raises:
            SinkError: a column is missing, is too much or has another type; the message names it.
        """
        ...

    def is_written(self, identity: BatchId) -> bool:
        """Whether the micro-batch is in the destination."""
        ...

    def write(self, rows: "DataFrame", identity: BatchId, reject: Reject) -> int:
        """Write a micro-batch that is not there and remember it; returns how many rows are in the destination.

        Called only after `is_written` said no, by one process at a time.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Kind(Protocol):
    """What a sink's module has. Importing it must not import the client library it works with."""

    KEYS: Any
    """`Keys`: its keys; the first is the kind's own name and holds the destination."""
    ABOUT: str
    """A paragraph for the reference page, Markdown: what it writes, how once is kept, what to know."""
    EXAMPLE: str
    """YAML of one sink, as it stands under `sinks:`."""

    @staticmethod
    def open_sink(spec: "SinkSpec", context: Context) -> Sink:
        """Makes the sink; raises `SinkError` where options do not go together. Touches nothing outside."""
        ...
