"""One PostgreSQL server for all tests here, a schema of its own for each; tasks run in this process."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.peers import postgres
from tests.peers.postgres import Postgres

from penstock.pipelines.sinks.jdbc import postgres as postgres_sink
from penstock.pipelines.sinks.jdbc import sqlite as sqlite_sink

from .database import Database
from .stand_in import Letters, run_tasks


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (postgres_sink, sqlite_sink):
        monkeypatch.setattr(module, "run_tasks", run_tasks)


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    started = postgres.start(hba="host all locked 127.0.0.1/32 scram-sha-256")
    yield started
    started.stop()


@pytest.fixture
def admin(server: Postgres) -> Iterator[psycopg.Connection]:
    """Somebody else's connection; its search path is the test's schema."""
    schema = f"s{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        connection.execute(f"SET search_path = {schema}".encode())
        yield connection
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.fixture
def schema(admin: psycopg.Connection) -> str:
    row = admin.execute("SELECT current_schema()").fetchone()
    assert row is not None
    return str(row[0])


@pytest.fixture
def url(server: Postgres, schema: str) -> str:
    """The server's, with the test's schema as the one where tables are made."""
    return f"jdbc:{server.url}?currentSchema={schema}"


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database("sqlite", f"sqlite:{tmp_path}/shop.db")
    return Database("postgres", request.getfixturevalue("url"))
