"""Tables of databases: SQLite, watched by its files, and PostgreSQL, asked."""

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .destinations import Look, changes_of, paths_under
from .rows import Row

_ROWS = "SELECT id, who, n FROM fed"
_MARK = "SELECT batch FROM _penstock_commits WHERE query = {0} AND sink = {0}"
_UPSERT = {"mode": "upsert", "keys": ["slot"], "order_by": ["id"]}


class SqliteTable:
    def __init__(self, directory: Path, *, upserts: bool) -> None:
        self.name, self.upserts = ("sqlite_upsert" if upserts else "sqlite"), upserts
        self._file = directory / f"{self.name}.db"

    def keys(self) -> dict[str, Any]:
        return {"jdbc": f"jdbc:sqlite:{self._file}", "table": "fed", **(_UPSERT if self.upserts else {})}

    def phases(self) -> Mapping[str, Look]:
        spools = f".{self._file.name}.penstock-*"
        return {
            "spool": paths_under(self._file.parent, spools),
            "spooled": paths_under(self._file.parent, f"{spools}/*.arrow"),
            "journal": changes_of(self._file.with_name(f"{self._file.name}-journal")),
            "written": changes_of(self._file),
        }

    def mark(self, query: str) -> int | None:
        """Of a copy: whoever opens it first after a crash rolls back its journal, and that shall be the next run."""
        with tempfile.TemporaryDirectory() as copy:
            for path in self._file.parent.glob(f"{self._file.name}*"):
                shutil.copy(path, copy)
            with contextlib.suppress(sqlite3.OperationalError):  # it was not made yet
                marks = _ask(Path(copy, self._file.name), _MARK.format("?"), query, self.name)
                return next((batch for (batch,) in marks), None)
        return None

    def read(self) -> dict[str, Sequence[Sequence[Row]]]:
        return {self.name: [[Row(*row) for row in _ask(self._file, _ROWS)]]}


def _ask(file: Path, statement: str, *values: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return connection.execute(statement, values).fetchall()


class PostgresTable:
    def __init__(self, url: str, *, upserts: bool) -> None:
        import psycopg

        self.name, self.upserts = ("postgres_upsert" if upserts else "postgres"), upserts
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True)
        self._schema = self.name
        self._connection.execute(f"CREATE SCHEMA {self._schema}".encode())

    def keys(self) -> dict[str, Any]:
        return {"jdbc": f"jdbc:{self._url}", "table": f"{self._schema}.fed", **(_UPSERT if self.upserts else {})}

    def phases(self) -> Mapping[str, Look]:
        return {"stage": self._stages, "written": self._marks}

    def mark(self, query: str) -> int | None:
        return next((each for (each,) in self._ask(_MARK.format("%s"), query, self.name) if each >= 0), None)

    def read(self) -> dict[str, Sequence[Sequence[Row]]]:
        return {self.name: [[Row(*row) for row in self._ask(_ROWS)]]}

    def _stages(self) -> set[str]:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename LIKE '\\_penstock\\_stage%%'"
        return {name for (name,) in self._ask(tables, self._schema)}

    def _marks(self) -> set[str]:
        return {str(each) for each in self._ask("SELECT query, batch FROM _penstock_commits")}

    def _ask(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        import psycopg

        with contextlib.suppress(psycopg.errors.UndefinedTable):  # it was not made yet
            self._connection.execute(f"SET search_path = {self._schema}".encode())
            return self._connection.execute(statement.encode(), values or None).fetchall()
        return []
