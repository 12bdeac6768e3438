"""A broker for all but the Kafka door: users with rules, users with roles, and the command line as any of them."""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.cli.main import main

from .brokers import ADMIN, Addresses, log_in, make_rules, penstock_broker, settle
from .model import ROLES
from .questions import World
from .rules import parse

MADE_ROLE = "librarian"
"""One that is made; the others are always there."""
MADE_OF = ("allow ALL topic^books", "deny DELETE topic:books", "allow READ group:readers")


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


class House(NamedTuple):
    addresses: Addresses
    world: World


def with_role(role: str) -> str:
    """The user who has it."""
    return f"has-{role.replace(':', '-')}"


def with_its_rules(role: str) -> str:
    """The user who has rules that are the same."""
    return f"like-{role.replace(':', '-')}"


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    roles = {**ROLES, MADE_ROLE: MADE_OF}
    users = [name(role) for role in roles for name in (with_role, with_its_rules)]
    with penstock_broker(tmp_path_factory.mktemp("house"), users) as addresses:
        with log_in(addresses.kafka, ADMIN) as admin:
            for role, rules in roles.items():
                make_rules(admin, [parse(with_its_rules(role), text).creation() for text in rules])
        with pytest.MonkeyPatch.context() as patch:
            give_roles(lambda *words: run_command(patch, addresses, ADMIN, words))
        yield House(addresses, settle(addresses.kafka))


def give_roles(run: Callable[..., int]) -> None:
    made = ("role", "create", MADE_ROLE)
    for words in (
        (*made, "--allow", "all", "--topic", "books", "--prefix"),
        (*made, "--add", "--deny", "delete", "--topic", "books"),
        (*made, "--add", "--allow", "read", "--group", "readers"),
        *(("role", "grant", role, "--user", with_role(role)) for role in (*ROLES, MADE_ROLE)),
    ):
        assert run(*words) == 0, words


def run_command(patch: pytest.MonkeyPatch, addresses: Addresses, user: str, words: tuple[str, ...]) -> int:
    """Calls `penstock WORDS...` as a user, in this process."""
    said = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password.file": str(addresses.password_file),
    }
    properties = [word for key, value in said.items() for word in ("-X", f"{key}={value}")]
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a record\n")))
    return main([*words, "--server", addresses.kafka, *properties])


@pytest.fixture
def run(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("HOME", str(tmp_path))

    def call(user: str, *words: str) -> Result:
        capsys.readouterr()
        code = run_command(monkeypatch, house.addresses, user, words)
        return Result(code, *capsys.readouterr())

    return call
