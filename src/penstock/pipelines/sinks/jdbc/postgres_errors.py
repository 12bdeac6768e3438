"""PostgreSQL's errors, by what they mean to a sink: a row is refused, something is away, or a person is needed."""

from typing import TYPE_CHECKING, Final

from penstock.pipelines.errors import SinkError, SinkUnavailable

if TYPE_CHECKING:
    import psycopg

# Classes and codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
_ROW_CLASSES: Final = ("22", "23", "44", "54")
_ROW_CODES: Final = ("P0001",)
"""RAISE in a trigger."""

_PASSING_CLASSES: Final = ("08", "40", "53", "57", "58")
"""Connections, serialization and deadlocks, no room, an operator's interference, the server's disk."""
_PASSING_CODES: Final = (
    "25P02",  # an earlier statement failed
    "25P03",  # idle in a transaction for too long
    "25P04",  # a transaction for too long
    "25006",  # read only: a standby, until it takes over
    "55006",  # in use
    "55P03",  # a lock waited for too long
)

# libpq tells of an attempt to connect in words alone.
_REFUSALS: Final = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "permission denied",
    "is not permitted to log in",
    "not currently accepting connections",
    "does not support ssl",
    "certificate",
    "invalid connection option",
    "invalid sslmode",
    "invalid port",
)


def row_fault(error: Exception) -> str | None:
    """Why a row is refused; None where the error is not about a row."""
    import psycopg

    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    if state is None or not (state[:2] in _ROW_CLASSES or state in _ROW_CODES):
        return None
    assert isinstance(error, psycopg.Error)
    return _words(error)


def as_sink_error(error: "psycopg.Error", sink: str, shown: str) -> SinkError:
    """What the run is to be told."""
    text = f"sink {sink}: {shown}: {_words(error)}"
    state = error.sqlstate
    if state is None:
        passing = _is_lost(error) and not any(each in str(error).lower() for each in _REFUSALS)
    else:
        passing = state[:2] in _PASSING_CLASSES or state in _PASSING_CODES
    if passing:
        return SinkUnavailable(text)
    return SinkError(text + _way_out(state))


def _is_lost(error: "psycopg.Error") -> bool:
    """The connection could not be made or is gone; psycopg has two classes for it, depending on who noticed."""
    import psycopg

    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def _words(error: "psycopg.Error") -> str:
    parts = [error.diag.message_primary, error.diag.message_detail]
    said = ". ".join(part for part in parts if part) or " ".join(str(error).split())
    return f"{said} ({error.sqlstate})" if error.sqlstate else said or type(error).__name__


def _way_out(state: str | None) -> str:
    if state == "42501":
        return (
            ". The role needs SELECT, INSERT, UPDATE and DELETE on the table, and USAGE and CREATE on its schema, "
            "where the sink keeps `_penstock_commits` and stages rows"
        )
    if state == "42P01":
        return ". Somebody removed it while the pipeline ran: start the pipeline again"
    return ""
