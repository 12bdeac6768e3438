"""Where a micro-batch's rows wait in PostgreSQL until they count: an unlogged table of the driver's, filled by COPY.

The table is made anew for every try of a micro-batch, and every attempt of a task marks its rows with a name of its
own: what a task of a dead driver, or a task that Spark ran twice, puts somewhere is never picked. The driver holds an
advisory lock as long as it needs the table; a staging table whose lock is free is nobody's, and is dropped by whoever
finds it.
"""

import contextlib
import hashlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING, Final

from penstock.pipelines.errors import SinkUnavailable
from penstock.pipelines.sinks.contract import Rejected
from penstock.pipelines.sinks.parts import Task

from .columns import Column, Shape
from .loading import too_many
from .options import Options
from .parts import Part
from .postgres_errors import as_sink_error, row_fault
from .postgres_table import Place, type_of
from .rendering import copy_text, row_json
from .statements import listed, quoted

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

    Connection = psycopg.Connection[tuple[object, ...]]

ATTEMPT: Final = "_penstock_attempt"
_MAKE = Template("CREATE UNLOGGED TABLE $stage AS SELECT $columns FROM $table WITH NO DATA")
_COUNT = Template("SELECT count(*) FROM $stage WHERE $counts")
_STALE = """
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)"""


def _prefix(options: Options) -> str:
    whose = hashlib.sha256(f"{options.pipeline}/{options.sink}".encode()).hexdigest()[:16]
    return f"_penstock_stage_{whose}_"


def lock_number(name: str) -> int:
    """The advisory lock that stands for `name`."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)


@dataclass(frozen=True, slots=True)
class Stage:
    """A staging table; `name` is quoted, with its schema."""

    name: str
    lock: int

    def counts(self, parts: list[Part]) -> str:
        """The condition that holds for the rows of `parts`."""
        names = ", ".join(f"'{uuid.UUID(part.attempt)}'" for part in parts)
        return f"{quoted(ATTEMPT)} IN ({names})"

    def check_whole(self, connection: "Connection", parts: list[Part], sink: str) -> None:
        """See that all rows are there: a server that crashed comes back with unlogged tables empty.

        Raises:
            SinkUnavailable: some are not.
        """
        expected = sum(part.rows for part in parts)
        row = connection.execute(_COUNT.substitute(stage=self.name, counts=self.counts(parts)).encode()).fetchone()
        assert row is not None
        if row[0] != expected:
            raise SinkUnavailable(
                f"sink {sink}: {row[0]} of {expected} staged rows are there: the server seems to have crashed"
            )

    def drop(self, connection: "Connection") -> None:
        """Let go of it; a table that a straggler holds is left to the next sweep."""
        connection.execute("SELECT pg_advisory_unlock(%s)", (self.lock,))
        _drop(connection, self.name)


def make_stage(connection: "Connection", place: Place, shape: Shape, options: Options, batch: int) -> Stage:
    """A staging table with the types of the table's columns, so that a value that does not fit is found by COPY."""
    name = f"{_prefix(options)}{batch}_{uuid.uuid4().hex[:8]}"
    lock = lock_number(f"{place.schema}.{name}")
    connection.execute("SELECT pg_advisory_lock(%s)", (lock,))
    extra = shape.staged[len(shape.written) :]
    selected = [
        f"NULL::uuid AS {quoted(ATTEMPT)}",
        *(quoted(column.name) for column in shape.written),
        *(f"NULL::{type_of(column)} AS {quoted(column.name)}" for column in extra),
    ]
    stage = place.beside(name)
    make = _MAKE.substitute(stage=stage, columns=", ".join(selected), table=place.quoted)
    connection.execute(make.encode())
    return Stage(stage, lock)


def sweep(connection: "Connection", place: Place, options: Options) -> None:
    """Drop staging tables of drivers that are gone."""
    for (name,) in connection.execute(_STALE, (place.schema, _prefix(options))).fetchall():
        lock = lock_number(f"{place.schema}.{name}")
        held = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock,)).fetchone()
        if held is not None and held[0]:
            Stage(place.beside(str(name)), lock).drop(connection)


def _drop(connection: "Connection", name: str) -> None:
    import psycopg

    with contextlib.suppress(psycopg.errors.LockNotAvailable), connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '300ms'")
        connection.execute(f"DROP TABLE IF EXISTS {name}".encode())


@dataclass(frozen=True, slots=True)
class CopyPart:
    """Copies a task's rows into a staging table; it is pickled and runs in a worker."""

    stage: str
    columns: tuple[Column, ...]
    parameters: Mapping[str, str]
    shown: str
    sink: str
    batch_rows: int
    max_rejects: int

    def __call__(self, task: Task, batches: "Iterator[pa.RecordBatch]") -> bytes | None:
        import psycopg

        attempt = str(uuid.uuid4())
        rows = 0
        refused: list[Rejected] = []
        connection: Connection | None = None
        try:
            for chunk in gathered(batches, self.batch_rows):
                if connection is None:
                    connection = psycopg.connect(**self.parameters, autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]
                    # Staged rows do not outlive a crash anyway.
                    connection.execute("SET synchronous_commit = off")
                rows += self._copy(connection, chunk, attempt, refused)
                if len(refused) > self.max_rejects:
                    trouble = too_many(self.sink, self.max_rejects, refused[0].reason)
                    return Part(attempt, trouble=str(trouble)).encode()
        except psycopg.Error as error:
            told = as_sink_error(error, self.sink, self.shown)
            # A staging table that is gone was nobody's: this driver has lost its connection, or is dead.
            retriable = told.retriable or isinstance(error, psycopg.errors.UndefinedTable)
            return Part(attempt, trouble=str(told), retriable=retriable).encode()
        finally:
            if connection is not None:
                connection.close()
        return Part(attempt, rows, tuple(refused)).encode() if rows or refused else None

    def _copy(self, connection: "Connection", chunk: "pa.Table", attempt: str, refused: list[Rejected]) -> int:
        """Every COPY is a transaction of its own; what is refused is halved until the guilty rows are alone."""
        import psycopg

        names = listed((ATTEMPT, *(column.name for column in self.columns)))
        statement = f"COPY {self.stage} ({names}) FROM STDIN".encode()
        rows = 0
        waiting = [chunk]
        while waiting and len(refused) <= self.max_rejects:
            piece = waiting.pop()
            try:
                with connection.cursor() as cursor, cursor.copy(statement) as copy:
                    copy.write(copy_text(piece, self.columns, attempt))
                rows += piece.num_rows
            except psycopg.Error as error:
                reason = row_fault(error)
                if reason is None:
                    raise
                if piece.num_rows == 1:
                    refused.append(Rejected(row_json(piece.to_pylist()[0], self.columns), reason))
                else:
                    middle = piece.num_rows // 2
                    waiting += [piece.slice(middle), piece.slice(0, middle)]
        return rows


def gathered(batches: "Iterator[pa.RecordBatch]", most: int) -> "Iterator[pa.Table]":
    """The same rows in tables of about `most` rows; one is never larger."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        for start in range(0, batch.num_rows, most):
            piece = batch.slice(start, most)
            if rows + piece.num_rows > most:
                yield pa.Table.from_batches(waiting)
                waiting, rows = [], 0
            waiting.append(piece)
            rows += piece.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)
