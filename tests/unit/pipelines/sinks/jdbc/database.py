"""Both databases to a test that does not care which one it is."""

import contextlib
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql.types import StructType

from penstock.pipelines.sinks.contract import Sink
from penstock.pipelines.sinks.jdbc.postgres import PostgresSink

from .stand_in import open_jdbc


@dataclass(frozen=True)
class Database:
    """One that is empty."""

    kind: str
    url: str

    def sink(self, **keys: Any) -> Any:
        return open_jdbc(self.url, **keys)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Somebody else's statement."""
        if self.kind == "sqlite":
            with contextlib.closing(sqlite3.connect(Path(self.url.removeprefix("sqlite:")))) as own, own:
                return own.execute(sql).fetchall()
        with psycopg.connect(**_parameters(self.url), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def leftovers(self) -> list[str]:
        """What a sink has put aside and not taken away."""
        if self.kind == "sqlite":
            path = Path(self.url.removeprefix("sqlite:"))
            return [each.name for each in path.parent.iterdir() if each != path]
        found = self.run("SELECT relname FROM pg_class WHERE relname LIKE '%penstock_stage%'")
        return [row[0] for row in found]


def sweep_all(sink: Sink, schema: StructType, leftovers: Callable[[], list[Any]]) -> None:
    """Prepare until nothing is left: a server takes a moment to notice that a connection has ended, and holds its locks
    until then."""
    deadline = time.monotonic() + 30
    while leftovers():
        assert time.monotonic() < deadline, leftovers()
        sink.prepare(schema)


def _parameters(url: str) -> Any:
    server, _, schema = url.removeprefix("jdbc:").partition("?currentSchema=")
    return {"conninfo": server, "options": f"-csearch_path={schema}"}


def all_of(admin: psycopg.Connection, sql: str) -> list[Any]:
    return admin.execute(sql.encode()).fetchall()


def open_postgres(url: str, **keys: Any) -> Any:
    sink = open_jdbc(url, **keys)
    assert isinstance(sink, PostgresSink)
    return sink


def stages(admin: psycopg.Connection) -> list[Any]:
    """Staging tables of the test's schema."""
    return all_of(
        admin,
        "SELECT relname FROM pg_class WHERE relname LIKE '%penstock_stage%' "
        "AND relnamespace = current_schema()::regnamespace",
    )
