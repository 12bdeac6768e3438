"""A broker all command tests share, and the command line run against it inside this process."""

import os
import socket
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from penstock.cli.main import main
from penstock.testing import EmbeddedBroker, embedded_broker


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _nobody_s_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the contexts of whoever runs it."""
    for name in os.environ:
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """Shared: a test keeps to topics of its own."""
    with embedded_broker(partitions=3, topic_defaults={"flush": "os", "segment.ms": "3600000"}) as running:
        yield running


@pytest.fixture
def run(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls `penstock WORDS...` with the shared broker as its server."""
    monkeypatch.setenv("PENSTOCK_SERVER", broker.bootstrap)

    def call(*words: str) -> Result:
        capsys.readouterr()
        code = main(words)
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def topic() -> str:
    """A name no other test has."""
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections: bound, so nobody else gets it, but not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
