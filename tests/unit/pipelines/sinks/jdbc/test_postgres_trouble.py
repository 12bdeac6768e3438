"""PostgreSQL that is away, dies, cuts connections at any message or lets nobody in; tasks and drivers that are late."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import psycopg
import pytest
from tests.peers.postgres import Postgres

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.contract import BatchId
from penstock.pipelines.sinks.jdbc.staging import CopyPart
from penstock.pipelines.sinks.parts import Task, WritePart

from .database import all_of, open_postgres, stages, sweep_all
from .relay import Relay
from .stand_in import Letters, Rows, arrow_batch

DDL = "id bigint, v string"
FIRST = BatchId("q", 0)


def test_zombie_counts_nowhere(url: str, admin: psycopg.Connection, letters: Letters) -> None:
    """A task that Spark has given up copies rows after the others; so does one of a driver that is dead."""

    def haunt(write: WritePart) -> None:
        assert isinstance(write, CopyPart)
        batch = arrow_batch([{"id": 66, "v": "late"}], write.columns)
        assert write(Task(0, 3), iter([batch])) is not None
        assert all_of(admin, f"TABLE {write.stage}")[-1][1:] == (66, "late")
        old.append(write)

    old: list[CopyPart] = []
    sink = open_postgres(url)
    rows = Rows(DDL, [[{"id": 1, "v": "a"}]], haunt)
    sink.prepare(rows.schema)
    assert sink.write(rows, FIRST, letters) == 1
    assert all_of(admin, "SELECT id FROM items") == [(1,)]
    late = arrow_batch([{"id": 66, "v": "late"}], old[0].columns)
    answer = old[0](Task(0, 4), iter([late]))
    assert answer is not None and b"does not exist" in answer
    assert all_of(admin, "SELECT id FROM items") == [(1,)]


def test_straggler_that_holds_the_staging_table_holds_nobody_up(
    url: str, admin: psycopg.Connection, server: Postgres, letters: Letters
) -> None:
    sink = open_postgres(url)
    with psycopg.connect(server.url) as straggler:

        def hold(write: WritePart) -> None:
            assert isinstance(write, CopyPart)
            straggler.execute(f"LOCK TABLE {write.stage} IN ROW EXCLUSIVE MODE".encode())

        rows = Rows(DDL, [[{"id": 1, "v": "a"}]], hold)
        sink.prepare(rows.schema)
        assert sink.write(rows, FIRST, letters) == 1
        assert len(stages(admin)) == 1
    sweep_all(sink, rows.schema, lambda: stages(admin))


def test_second_driver_waits_for_the_first_and_gives_up(url: str, admin: psycopg.Connection, letters: Letters) -> None:
    sink = open_postgres(url)
    sink.lock_wait_s = 0.05
    rows = Rows(DDL, [[{"id": 1, "v": "a"}]])
    sink.prepare(rows.schema)
    with admin.transaction():
        admin.execute("INSERT INTO _penstock_commits VALUES ('q', 'shop', 0, 1, now())")
        with pytest.raises(SinkUnavailable, match="lock timeout"):
            sink.write(rows, FIRST, letters)
    assert sink.is_written(FIRST)
    assert all_of(admin, "SELECT * FROM items") == []


def test_server_that_crashes_forgets_staged_rows(
    url: str, server: Postgres, admin: psycopg.Connection, letters: Letters, schema: str
) -> None:
    """The staging table is there again, and empty; the batch must not pass for written."""

    def crash(write: WritePart) -> None:
        server.crash()
        sink.close()

    sink = open_postgres(url)
    rows = Rows(DDL, [[{"id": 1, "v": "a"}], [{"id": 2, "v": "b"}]], crash)
    sink.prepare(rows.schema)
    with pytest.raises(SinkUnavailable, match="0 of 2 staged rows"):
        sink.write(rows, FIRST, letters)
    assert not sink.is_written(FIRST)
    assert sink.write(Rows(DDL, rows.partitions), FIRST, letters) == 2
    with psycopg.connect(server.url) as other:
        assert len(all_of(other, f"TABLE {schema}.items")) == 2


def test_backend_that_is_terminated(url: str, admin: psycopg.Connection, letters: Letters) -> None:
    def terminate(write: WritePart) -> None:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'")

    sink = open_postgres(url)
    rows = Rows(DDL, [[{"id": 1, "v": "a"}]], terminate)
    sink.prepare(rows.schema)
    with pytest.raises(SinkUnavailable):
        sink.write(rows, FIRST, letters)
    assert not sink.is_written(FIRST)
    assert sink.write(Rows(DDL, rows.partitions), FIRST, letters) == 1
    sweep_all(sink, rows.schema, lambda: stages(admin))


@contextlib.contextmanager
def relayed(server: Postgres) -> Iterator[Relay]:
    relay = Relay(server.port)
    try:
        yield relay
    finally:
        relay.close()


class Cut(NamedTuple):
    """What came of a batch with a cut in it.

    Attributes:
        was_reached: the message was sent; otherwise it lies behind the last one.
        was_unknown: `write` failed, and the batch was there nevertheless.
    """

    was_reached: bool
    was_unknown: bool


def cut_batch(relay: Relay, schema: str, admin: psycopg.Connection, cut_at: int, answered: bool) -> Cut:
    """Write a batch with a cut in it, going on as the run does."""
    admin.execute("DROP TABLE IF EXISTS items, _penstock_commits")
    parameters = f"currentSchema={schema}&sslmode=disable&gssencmode=disable"
    sink = open_postgres(f"postgresql://postgres@127.0.0.1:{relay.port}/postgres?{parameters}")
    rows = Rows(DDL, [[{"id": 1, "v": "a"}]])
    relay.messages, relay.cut_at, relay.answered = 0, cut_at, answered
    was_unknown = False
    for attempt in range(2):
        try:
            sink.prepare(rows.schema)
            if sink.is_written(FIRST):
                was_unknown = True
            else:
                assert sink.write(rows, FIRST, Letters()) == 1
            break
        except SinkUnavailable:
            assert attempt == 0
    sink.close()
    was_reached, relay.cut_at = relay.messages > cut_at, -1
    sweep_all(sink, rows.schema, lambda: stages(admin))
    sink.close()
    where = (cut_at, answered)
    assert all_of(admin, "SELECT id FROM items ORDER BY id") == [(1,)], where
    assert all_of(admin, "SELECT batch, rows FROM _penstock_commits") == [(0, 1)], where
    return Cut(was_reached, was_unknown)


@pytest.mark.parametrize("answered", [False, True])
def test_connection_is_cut_at_every_message(
    server: Postgres, schema: str, admin: psycopg.Connection, answered: bool
) -> None:
    """Before the server has it, and after, before its answer has come."""
    cuts: list[Cut] = []
    with relayed(server) as relay:
        while not cuts or cuts[-1].was_reached:
            cuts.append(cut_batch(relay, schema, admin, len(cuts), answered))
    assert len(cuts) > 30
    # COMMIT, and nothing else, leaves the driver in doubt.
    assert sum(cut.was_unknown for cut in cuts) == (1 if answered else 0)


def test_server_that_is_away(server: Postgres) -> None:
    with relayed(server) as relay:
        port = relay.port
    with pytest.raises(SinkUnavailable, match="refused"):
        open_postgres(f"postgresql://127.0.0.1:{port}/postgres").probe()


def test_connections_are_used_up(url: str, admin: psycopg.Connection) -> None:
    admin.execute("CREATE ROLE crowded LOGIN CONNECTION LIMIT 0")
    try:
        with pytest.raises(SinkUnavailable, match="too many connections"):
            open_postgres(url, user="crowded").probe()
    finally:
        admin.execute("DROP ROLE crowded")


def test_no_entry(url: str, admin: psycopg.Connection) -> None:
    admin.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
    login = {"user": "locked", "password": "right"}
    try:
        with pytest.raises(SinkError, match="authentication failed") as caught:
            open_postgres(url, **{**login, "password": "wrong"}).probe()
        assert not caught.value.retriable
        assert "wrong" not in str(caught.value)
        open_postgres(url, **login, table="pg_catalog.pg_class").probe()
    finally:
        admin.execute("DROP ROLE locked")


@pytest.mark.parametrize(("user", "database"), [("postgres", "nowhere"), ("nobody", "postgres")])
def test_unknown_database_or_role(server: Postgres, user: str, database: str) -> None:
    with pytest.raises(SinkError, match="does not exist") as caught:
        open_postgres(f"postgresql://{user}@127.0.0.1:{server.port}/{database}").probe()
    assert not caught.value.retriable


def test_no_permission(url: str, schema: str, admin: psycopg.Connection, letters: Letters) -> None:
    admin.execute("CREATE ROLE guest LOGIN")
    admin.execute("CREATE TABLE items (id bigint, v text)")
    admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO guest".encode())
    admin.execute("GRANT SELECT ON items TO guest")
    try:
        with pytest.raises(SinkError, match=r"permission denied.*CREATE on its schema") as caught:
            open_postgres(url, user="guest").prepare(Rows(DDL, []).schema)
        assert not caught.value.retriable
    finally:
        admin.execute("DROP OWNED BY guest")
        admin.execute("DROP ROLE guest")


def test_schema_that_is_not_there(url: str) -> None:
    with pytest.raises(SinkError, match="the schema nowhere is not there"):
        open_postgres(url, table="nowhere.items").probe()
