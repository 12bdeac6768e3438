"""Rows into a PostgreSQL table: tasks COPY them aside, and one transaction of the driver's moves them with the mark.

driver  staging table ──┐                                   ┌── lock the mark, see that rows are whole and new
tasks                   └── COPY, each attempt by its name ─┤   INSERT … SELECT, rejects, the mark
driver                                                      └── COMMIT ── drop the staging table
"""

import contextlib
from collections.abc import Iterator
from string import Template
from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.contract import BatchId, Reject

from .address import PostgresAddress
from .columns import Shape, run_tasks, shape_of
from .loading import Loader, too_many
from .options import Options
from .parts import Part, decode_parts
from .postgres_errors import as_sink_error, row_fault
from .postgres_table import Place, check_table, locate, make_table
from .staging import CopyPart, Stage, lock_number, make_stage, sweep
from .statements import Plan, quoted

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    Connection = psycopg.Connection[tuple[object, ...]]

COMMITS: Final = "_penstock_commits"
_MAKE_COMMITS = Template(
    "CREATE TABLE IF NOT EXISTS $commits (query text, sink text, batch bigint NOT NULL, rows bigint NOT NULL, "
    "at timestamptz NOT NULL, PRIMARY KEY (query, sink))"
)
_FIND_MARK = Template("SELECT batch FROM $commits WHERE query = %s AND sink = %s")
_HAVE_MARK = Template("INSERT INTO $commits VALUES (%s, %s, -1, 0, now()) ON CONFLICT DO NOTHING")
_LOCK_MARK = Template("SELECT batch, rows FROM $commits WHERE query = %s AND sink = %s FOR UPDATE")
_SAVE_MARK = Template("UPDATE $commits SET batch = %s, rows = %s, at = now() WHERE query = %s AND sink = %s")


def _about(statement: Template, place: Place) -> bytes:
    """The statement for `place`; it is run with parameters, so a percent sign of the schema's name is doubled."""
    return statement.substitute(commits=place.beside(COMMITS).replace("%", "%%")).encode()


class PostgresSession:
    """What the loader needs of an open transaction."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection

    def run(self, sql: str) -> int:
        return self._connection.execute(sql.encode()).rowcount

    def rows(self, sql: str) -> list[dict[str, Any]]:
        from psycopg.rows import dict_row

        with self._connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(sql.encode()).fetchall()

    def fault(self, error: Exception) -> str | None:
        return row_fault(error)

    def index_temporary(self, table: str, column: str) -> None:
        self.run(f"CREATE UNIQUE INDEX ON {quoted(table)} ({quoted(column)})")


class PostgresSink:
    """A table of a PostgreSQL database; see `penstock.pipelines.sinks.contract`.

    Attributes:
        lock_wait_s: how long somebody else's transaction on the mark or the table's rows is waited for.
    """

    def __init__(self, options: Options, address: PostgresAddress, *, lock_wait_s: float = 60.0) -> None:
        self._options = options
        self._address = address
        self.lock_wait_s = lock_wait_s
        self._connection: Connection | None = None
        self._place: Place | None = None

    def probe(self) -> None:
        with self._connected() as connection:
            locate(connection, self._options)

    def prepare(self, schema: "StructType") -> None:
        shape = shape_of(schema, self._options)
        with self._connected() as connection:
            with connection.transaction():
                # CREATE … IF NOT EXISTS of two sinks at once would fail for one of them.
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(COMMITS),))
                place = locate(connection, self._options)
                if place.oid is None:
                    make_table(connection, place, shape, self._options)
                else:
                    check_table(connection, place, shape, self._options)
                connection.execute(_about(_MAKE_COMMITS, place), ())
            self._place = place
            sweep(connection, place, self._options)

    def is_written(self, identity: BatchId) -> bool:
        with self._connected() as connection:
            find = _about(_FIND_MARK, self._placed(connection))
            row = connection.execute(find, (identity.query, self._options.sink)).fetchone()
        return identity.repeats(None if row is None else int(str(row[0])), self._options.sink)

    def write(self, rows: "DataFrame", identity: BatchId, reject: Reject) -> int:
        options = self._options
        shape = shape_of(rows.schema, options)
        with self._connected() as connection:
            place = self._placed(connection)
            sweep(connection, place, options)
            stage = make_stage(connection, place, shape, options, identity.batch)
        try:
            write = CopyPart(
                stage=stage.name,
                columns=shape.staged,
                parameters=self._address.parameters,
                shown=self._address.shown,
                sink=options.sink,
                batch_rows=options.batch_rows,
                max_rejects=options.max_rejects,
            )
            parts = decode_parts(run_tasks(rows, shape, options, write))
            with self._connected() as connection, connection.transaction():
                return self._commit(connection, place, shape, stage, parts, identity, reject)
        finally:
            self._let_go(stage)

    def _commit(
        self,
        connection: "Connection",
        place: Place,
        shape: Shape,
        stage: Stage,
        parts: list[Part],
        identity: BatchId,
        reject: Reject,
    ) -> int:
        """All of it is one transaction; whoever has the mark's row locked is the only one at work."""
        options = self._options
        # A constraint that is checked at COMMIT could not be laid to a row.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        connection.execute(f"SET LOCAL lock_timeout = {int(self.lock_wait_s * 1000)}".encode())
        last, there = self._lock_mark(connection, place, identity)
        if identity.repeats(last, options.sink):
            return there
        rejected = [each for part in parts for each in part.refused]
        changed = 0
        if parts:
            stage.check_whole(connection, parts, options.sink)
            plan = Plan(
                table=place.quoted,
                stage=stage.name,
                counts=stage.counts(parts),
                columns=tuple(column.name for column in shape.written),
                keys=options.keys,
                order_by=options.order_by,
                extra=tuple(column.name for column in shape.extra),
                deletes=shape.deletes,
            )
            most = options.max_rejects
            loaded = Loader(PostgresSession(connection), plan, shape.written, options.sink, most).load()
            changed = loaded.rows
            rejected += loaded.rejected
            if len(rejected) > most:
                raise too_many(options.sink, most, rejected[0].reason)
        if rejected:
            reject(rejected)
        mark = (identity.batch, changed, identity.query, options.sink)
        connection.execute(_about(_SAVE_MARK, place), mark)
        return changed

    def _lock_mark(self, connection: "Connection", place: Place, identity: BatchId) -> tuple[int | None, int]:
        """The last batch written and its rows; a second driver waits here until the first is done or gone."""
        mark = (identity.query, self._options.sink)
        connection.execute(_about(_HAVE_MARK, place), mark)
        row = connection.execute(_about(_LOCK_MARK, place), mark).fetchone()
        if row is None:
            raise SinkUnavailable(f"sink {self._options.sink}: its mark in {COMMITS} was removed just now")
        last, rows = int(str(row[0])), int(str(row[1]))
        return None if last < 0 else last, rows

    def _placed(self, connection: "Connection") -> Place:
        if self._place is None:
            self._place = locate(connection, self._options)
        return self._place

    def _let_go(self, stage: Stage) -> None:
        """What cannot be dropped now is dropped by the next sweep; a connection that is gone held no lock any more."""
        if self._connection is not None:
            with contextlib.suppress(SinkError), self._connected() as connection:
                stage.drop(connection)

    @contextlib.contextmanager
    def _connected(self) -> "Iterator[Connection]":
        """The connection, kept from one call to the next; one that is broken or within something is given up."""
        import psycopg

        try:
            if self._connection is None:
                self._connection = psycopg.connect(**self._address.parameters, autocommit=True, prepare_threshold=None)  # type: ignore[arg-type]
                self._connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            yield self._connection
        except psycopg.Error as error:
            raise as_sink_error(error, self._options.sink, self._address.shown) from error
        finally:
            if self._connection is not None:
                status = self._connection.info.transaction_status
                if status is not psycopg.pq.TransactionStatus.IDLE:
                    self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
