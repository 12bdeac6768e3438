"""Which database a URL means, and which do not work."""

from pathlib import Path

import pytest

from penstock.pipelines.errors import SinkError
from penstock.pipelines.sinks.jdbc.address import PostgresAddress, SqliteAddress, parse_address


def parse(url: str, user: str = "", password: str = "") -> PostgresAddress | SqliteAddress:
    return parse_address(url, sink="shop", user=user, password=password, directory=Path("/home/ann"))


@pytest.mark.parametrize("prefix", ["jdbc:", ""])
def test_postgres_url(prefix: str) -> None:
    address = parse(f"{prefix}postgresql://db.example.com:5433/shop%20one", "ann", "secret")
    assert isinstance(address, PostgresAddress)
    wanted = {"host": "db.example.com", "port": "5433", "dbname": "shop one", "user": "ann", "password": "secret"}
    assert wanted.items() <= address.parameters.items()


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("postgresql://db/shop", {"host": "db", "port": "5432"}),
        ("postgresql://ann@db/shop", {"host": "db", "user": "ann"}),
        ("postgresql://a:1,b,[::1]:3,[::2]/shop", {"host": "a,b,::1,::2", "port": "1,5432,3,5432"}),
        ("postgresql:///shop?host=/run/postgresql", {"host": "/run/postgresql", "dbname": "shop"}),
        ("jdbc:postgresql:shop", {"dbname": "shop"}),
        ("postgresql://db/shop?ssl=true", {"sslmode": "verify-full"}),
        ("postgresql://db/shop?sslmode=require&connectTimeout=3", {"sslmode": "require", "connect_timeout": "3"}),
        ("postgresql://db/shop?currentSchema=sales", {"options": "-csearch_path=sales"}),
    ],
)
def test_postgres_parameters(url: str, wanted: dict[str, str]) -> None:
    address = parse(url)
    assert isinstance(address, PostgresAddress)
    assert wanted.items() <= address.parameters.items()


def test_user_key_wins_over_the_url() -> None:
    address = parse("postgresql://ann@db/shop", "ben")
    assert isinstance(address, PostgresAddress)
    assert address.parameters["user"] == "ben"


def test_address_shows_no_password() -> None:
    assert "secret" not in repr(parse("postgresql://db/shop", "ann", "secret"))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("jdbc:sqlite:data/shop.db", "/home/ann/data/shop.db"),
        ("sqlite:shop.db", "/home/ann/shop.db"),
        ("sqlite:/var/shop.db", "/var/shop.db"),
        ("sqlite:///var/shop.db", "/var/shop.db"),
    ],
)
def test_sqlite_url(url: str, path: str) -> None:
    assert parse(url) == SqliteAddress(Path(path))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("jdbc:mysql://db/shop", "mysql.*jdbc:postgresql://.*jdbc:sqlite:"),
        ("shop", "jdbc:postgresql://.*jdbc:sqlite:"),
        ("postgresql://db", "names no database"),
        ("postgresql://ann:secret@db/shop", "password: "),
        ("postgresql://db/shop?password=secret", "password: "),
        ("postgresql://db/shop?loginTimeout=3", "loginTimeout is not known.*connectTimeout"),
        ("sqlite::memory:", "path of a file"),
        ("sqlite:", "path of a file"),
        ("sqlite://shop.db", "path of a file"),
        ("sqlite:shop.db?mode=ro", "leave them out"),
    ],
)
def test_url_that_does_not_work(url: str, says: str) -> None:
    with pytest.raises(SinkError, match=says) as caught:
        parse(url)
    assert "secret" not in str(caught.value)


def test_sqlite_knows_no_users() -> None:
    with pytest.raises(SinkError, match="no users"):
        parse("sqlite:shop.db", "ann")
