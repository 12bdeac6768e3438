"""Rows into an SQLite table: tasks spool them beside the database, and one transaction of the driver's moves them with
the mark. Rows are gathered in a temporary table first, so that the database is locked for the move alone."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.contract import BatchId, Reject

from .address import SqliteAddress
from .columns import Family, Shape, run_tasks, shape_of
from .loading import Loader
from .options import Options
from .parts import decode_parts
from .rendering import python_rows
from .spool import SpoolPart, read_spooled, spooling, sweep
from .sqlite_table import check_table, find_columns, make_table
from .statements import Plan, listed, quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_STAGE: Final = "_penstock_stage"
_MAKE_COMMITS = """
CREATE TABLE IF NOT EXISTS _penstock_commits (
    query TEXT, sink TEXT, batch INTEGER NOT NULL, rows INTEGER NOT NULL, at TEXT NOT NULL,
    PRIMARY KEY (query, sink))"""
_FIND_MARK = "SELECT batch, rows FROM _penstock_commits WHERE query = ? AND sink = ?"
_SAVE_MARK = "INSERT OR REPLACE INTO _penstock_commits VALUES (?, ?, ?, ?, strftime('%Y-%m-%d %H:%M:%fZ', 'now'))"
_STAGE_ROW = Template("INSERT INTO $stage VALUES ($marks)")

_PASSING: Final = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
)
_ROW: Final = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG)


def connect(path: Path, busy_s: float) -> sqlite3.Connection:
    """A connection where transactions begin and end by statements alone."""
    connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


class SqliteSession:
    """What the loader needs of an open transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, sql: str) -> int:
        return max(self._connection.execute(sql).rowcount, 0)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        cursor = self._connection.execute(sql)
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def fault(self, error: Exception) -> str | None:
        # A constraint declared ON CONFLICT ROLLBACK has ended the transaction: there is nothing to go on with.
        is_row = isinstance(error, sqlite3.Error) and _code(error) in _ROW and self._connection.in_transaction
        return str(error) if is_row else None

    def index_temporary(self, table: str, column: str) -> None:
        self.run(f"CREATE UNIQUE INDEX temp.{quoted(f'{table}_index')} ON {quoted(table)} ({quoted(column)})")


class SqliteSink:
    """A table of an SQLite file; see `penstock.pipelines.sinks.contract`.

    Attributes:
        busy_s: how long somebody else's transaction is waited for.
    """

    def __init__(self, options: Options, address: SqliteAddress, *, busy_s: float = 30.0) -> None:
        if options.table.schema not in ("", "main"):
            raise SinkError(
                f"sink {options.sink}: table: {options.table}: an SQLite file has one schema: name the table alone"
            )
        self._options = options
        self._path = address.path
        self.busy_s = busy_s
        self._connection: sqlite3.Connection | None = None

    def probe(self) -> None:
        sink, path = self._options.sink, self._path
        if not path.parent.is_dir():
            raise SinkError(f"sink {sink}: the directory {path.parent} is not there: make it, or change `jdbc`")
        if path.exists():
            with self._translated(), contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as there:
                found = find_columns(there, self._options.table.table)
        else:
            found = {}
        if not found and not self._options.create:
            raise SinkError(
                f"sink {sink}: the table {self._options.table} is not in {path}: make it, or give create: true"
            )

    def prepare(self, schema: "StructType") -> None:
        options = self._options
        shape = shape_of(schema, options)
        for column in (*shape.written, *shape.extra):
            if column.name in options.order_by and column.family in (Family.DECIMAL, Family.JSON):
                raise SinkError(
                    f"sink {options.sink}: order_by: {column.name} is {column.spark}, which SQLite cannot sort: take "
                    "a number or a timestamp"
                )
        self.probe()
        sweep(self._path, options)
        with self._connected() as connection, _transaction(connection):
            there = find_columns(connection, options.table.table)
            if there:
                check_table(connection, there, shape, options)
            else:
                make_table(connection, shape, options)
            connection.execute(_MAKE_COMMITS)

    def is_written(self, identity: BatchId) -> bool:
        with self._connected() as connection:
            return identity.repeats(self._mark(connection, identity)[0], self._options.sink)

    def write(self, rows: "DataFrame", identity: BatchId, reject: Reject) -> int:
        options = self._options
        shape = shape_of(rows.schema, options)
        sweep(self._path, options)
        with self._translated(), spooling(self._path, options) as directory:
            answers = run_tasks(rows, shape, options, SpoolPart(str(directory), options.sink))
            parts = decode_parts(answers)
            with self._connected() as connection:
                self._gather(connection, shape, read_spooled(directory, parts, options.sink))
                return self._commit(connection, shape, identity, reject)

    def _gather(self, connection: sqlite3.Connection, shape: Shape, batches: "Iterator[pa.RecordBatch]") -> None:
        """Fill the temporary table; its columns have no types, so that values stay what they are."""
        names = [column.name for column in shape.staged]
        connection.execute(f"DROP TABLE IF EXISTS temp.{_STAGE}")
        with _transaction(connection, "BEGIN"):
            connection.execute(f"CREATE TEMPORARY TABLE {_STAGE} ({listed(names)})")
            insert = _STAGE_ROW.substitute(stage=_STAGE, marks=", ".join("?" * len(names)))
            for batch in batches:
                for start in range(0, batch.num_rows, self._options.batch_rows):
                    piece = batch.slice(start, self._options.batch_rows)
                    connection.executemany(insert, python_rows(piece, shape.staged))

    def _commit(self, connection: sqlite3.Connection, shape: Shape, identity: BatchId, reject: Reject) -> int:
        options = self._options
        plan = Plan(
            table=quoted(options.table.table),
            stage=_STAGE,
            counts="true",
            columns=tuple(column.name for column in shape.written),
            keys=options.keys,
            order_by=options.order_by,
            extra=tuple(column.name for column in shape.extra),
            deletes=shape.deletes,
        )
        with _transaction(connection):
            last, there = self._mark(connection, identity)
            if identity.repeats(last, options.sink):
                return there
            session = SqliteSession(connection)
            loaded = Loader(session, plan, shape.written, options.sink, options.max_rejects).load()
            if loaded.rejected:
                reject(loaded.rejected)
            connection.execute(_SAVE_MARK, (identity.query, options.sink, identity.batch, loaded.rows))
        connection.execute(f"DROP TABLE temp.{_STAGE}")
        return loaded.rows

    def _mark(self, connection: sqlite3.Connection, identity: BatchId) -> tuple[int | None, int]:
        """The last batch written and its rows."""
        found = connection.execute(_FIND_MARK, (identity.query, self._options.sink)).fetchone()
        return (None, 0) if found is None else (int(found[0]), int(found[1]))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """The connection, kept from one call to the next; after an error it is given up."""
        with self._translated():
            try:
                if self._connection is None:
                    self._connection = connect(self._path, self.busy_s)
                yield self._connection
            except BaseException:
                self.close()
                raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turns the database's and the disk's errors into the run's."""
        try:
            yield
        except sqlite3.Error as error:
            text = f"sink {self._options.sink}: {self._path}: {error}"
            raise (SinkUnavailable if _code(error) in _PASSING else SinkError)(text) from error
        except OSError as error:
            raise SinkUnavailable(f"sink {self._options.sink}: {self._path.parent}: {error}") from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _code(error: sqlite3.Error) -> int:
    """Without what SQLite adds to tell kinds of it apart."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
