"""What PostgreSQL's error codes mean to a sink. Errors of connecting have none; a real server shows those."""

import psycopg
import pytest

from penstock.pipelines.sinks.jdbc.postgres_errors import as_sink_error, row_fault


@pytest.mark.parametrize(
    "state",
    [
        "40001",  # serialization
        "40P01",  # deadlock
        "53100",  # disk full
        "53200",  # out of memory
        "53300",  # too many connections
        "55P03",  # lock not available
        "57014",  # cancelled
        "57P01",  # shut down by an operator
        "57P03",  # starting
        "58030",  # I/O error
        "25006",  # a standby
        "08006",  # connection failure
    ],
)
def test_what_passes(state: str) -> None:
    error = psycopg.errors.lookup(state)("told")
    assert as_sink_error(error, "shop", "url").retriable
    assert row_fault(error) is None


@pytest.mark.parametrize("state", ["42501", "42P01", "42703", "3D000", "28P01", "0A000", "XX001"])
def test_what_needs_a_person(state: str) -> None:
    error = psycopg.errors.lookup(state)("told")
    told = as_sink_error(error, "shop", "url")
    assert not told.retriable
    assert str(told).startswith(f"sink shop: url: told ({state})")
    assert row_fault(error) is None


@pytest.mark.parametrize("state", ["22003", "22P02", "23502", "23505", "23514", "44000", "54000", "P0001"])
def test_what_is_a_rows_fault(state: str) -> None:
    assert row_fault(psycopg.errors.lookup(state)("told")) == f"told ({state})"
