"""Which database a URL means: `jdbc:postgresql://host:port/db`, `postgresql://…`, `jdbc:sqlite:path` or `sqlite:path`.

JDBC's names are understood although no JDBC driver is used: people copy these URLs from elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from penstock.pipelines.errors import SinkError

_WORKING: Final = "jdbc:postgresql://HOST:PORT/DATABASE or jdbc:sqlite:PATH (`jdbc:` may be left out)"

# What a URL may say after `?`: a parameter of libpq, under its own name or pgJDBC's.
_PARAMETERS: Final[Mapping[str, str]] = {
    "ApplicationName": "application_name",
    "application_name": "application_name",
    "channel_binding": "channel_binding",
    "connectTimeout": "connect_timeout",
    "connect_timeout": "connect_timeout",
    "gssencmode": "gssencmode",
    "host": "host",
    "options": "options",
    "port": "port",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "target_session_attrs": "target_session_attrs",
    "user": "user",
}

# A peer that vanished without a word must be noticed within minutes, in the driver and in every task.
_PATIENCE: Final[Mapping[str, str]] = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """Where a PostgreSQL server is and how to get in.

    Attributes:
        shown: the URL for messages; it holds no secret.
        parameters: libpq's connection parameters, the password among them.
    """

    shown: str
    parameters: Mapping[str, str]

    def __repr__(self) -> str:
        return f"PostgresAddress({self.shown})"


@dataclass(frozen=True, slots=True)
class SqliteAddress:
    """An SQLite database file; `path` is absolute."""

    path: Path


Address = PostgresAddress | SqliteAddress


def parse_address(url: str, *, sink: str, user: str, password: str, directory: Path) -> Address:
    """The database `url` means.

    Args:
        directory: what a relative path is relative to.

    Raises:
        SinkError: it is no URL of the two databases, or holds something that does not work.
    """
    scheme, colon, rest = url.strip().removeprefix("jdbc:").partition(":")
    if colon and scheme in ("postgresql", "postgres"):
        return _postgres(url.strip(), rest, sink, user, password)
    if colon and scheme == "sqlite":
        if user or password:
            raise SinkError(f"sink {sink}: SQLite knows no users: leave out `user` and `password`")
        return _sqlite(rest, sink, directory)
    raise SinkError(f"sink {sink}: jdbc: {scheme or url}: not a database that works here: give {_WORKING}")


def _sqlite(rest: str, sink: str, directory: Path) -> SqliteAddress:
    path = rest[2:] if rest.startswith("///") else rest
    if not path or path.startswith((":", "//", "?")):
        raise SinkError(f"sink {sink}: jdbc: sqlite:{rest}: give the path of a file, as jdbc:sqlite:data/shop.db")
    if "?" in path:
        raise SinkError(f"sink {sink}: jdbc: sqlite:{rest}: parameters after `?` do not work: leave them out")
    return SqliteAddress((directory / path).absolute())


def _postgres(url: str, rest: str, sink: str, user: str, password: str) -> PostgresAddress:
    place, _, query = rest.partition("?")
    authority, _, database = place.removeprefix("//").partition("/") if place.startswith("//") else ("", "", place)
    login, at, hosts = authority.rpartition("@")
    name, _, secret = login.partition(":")
    given = dict(parse_qsl(query, keep_blank_values=True))
    if secret or "password" in given:
        raise SinkError(f"sink {sink}: jdbc: a URL is shown to people: give the password as `password: ${{VARIABLE}}`")
    if not database:
        raise SinkError(f"sink {sink}: jdbc: {url} names no database: jdbc:postgresql://HOST:PORT/DATABASE")
    parameters = {**_PATIENCE, "dbname": unquote(database), "application_name": "penstock"}
    parameters |= _hosts(hosts if at else authority)
    parameters |= _translated(given, sink)
    parameters |= {"user": user or unquote(name)} if user or name else {}
    parameters |= {"password": password} if password else {}
    return PostgresAddress(url, parameters)


def _hosts(text: str) -> dict[str, str]:
    """Several, as `a:5432,b`, are tried in their order."""
    if not text:
        return {}
    hosts, ports = [], []
    for each in text.split(","):
        host, colon, port = each.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = each, ""
        hosts.append(unquote(host.strip("[]")))
        ports.append(port or "5432")
    return {"host": ",".join(hosts), "port": ",".join(ports)}


def _translated(given: Mapping[str, str], sink: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in given.items():
        if name == "currentSchema":
            parameters["options"] = f"-csearch_path={value}"
        elif name == "ssl":
            # pgJDBC's `ssl=true` checks the server's certificate and name.
            parameters["sslmode"] = "verify-full" if value in ("", "true") else "disable"
        elif name in _PARAMETERS:
            parameters[_PARAMETERS[name]] = value
        else:
            known = ", ".join(sorted({*_PARAMETERS, "currentSchema", "ssl"}))
            raise SinkError(f"sink {sink}: jdbc: the parameter {name} is not known; these are: {known}")
    return parameters
