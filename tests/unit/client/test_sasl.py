"""The exchange of passwords with a server that does what a test says."""

from collections.abc import Callable
from typing import Any

import pytest
import scramp
from tests.unit.cli.scripted_broker import Script, scripted_broker

from penstock.client.connection import Connection
from penstock.client.errors import ClientError, Refused, Unsupported
from penstock.client.sasl import Sasl
from penstock.client.security import Security
from penstock.client.settings import Settings

PROVEN = {"error_code": 0, "error_message": None, "session_lifetime": 0}
METADATA = Script(3, 4, 12, lambda _: {"brokers": [], "topics": []})


def handshake(code: int = 0) -> Script:
    return Script(17, 0, 1, lambda _: {"error_code": code, "mechanisms": ["PLAIN", "SCRAM-SHA-512"]})


def open_connection(address: str, mechanism: str) -> Connection:
    settings = Settings(address, Security(sasl=Sasl(mechanism, "ada", "hush")), timeout_s=10)
    return Connection(settings, settings.addresses()[0])


def test_plain() -> None:
    said = []

    def authenticate(request: Any) -> dict[str, Any]:
        said.append(request.auth_bytes)
        return PROVEN | {"auth_bytes": b""}

    scripts = {"sasl_handshake": handshake(), "sasl_authenticate": Script(36, 0, 2, authenticate), "metadata": METADATA}
    with scripted_broker(**scripts) as broker:
        connection = open_connection(broker.address, "PLAIN")
        connection.call("metadata", topics=[])
        connection.close()
    assert said == [b"\0ada\0hush"]
    assert [name for name, _ in broker.asked] == ["api_versions", "sasl_handshake", "sasl_authenticate", "metadata"]


@pytest.mark.parametrize(
    ("scripts", "kind", "told"),
    [
        ({}, Unsupported, "does not have SaslHandshake"),
        ({"sasl_handshake": handshake(33)}, Refused, "the server has PLAIN, SCRAM-SHA-512"),
        (
            {
                "sasl_handshake": handshake(),
                "sasl_authenticate": Script(
                    36, 0, 2, lambda _: PROVEN | {"auth_bytes": b"", "error_code": 58, "error_message": "who?"}
                ),
            },
            Refused,
            r"user 'ada' at 127.0.0.1:\d+: sasl authentication failed \(who\?\)",
        ),
    ],
)
def test_plain_refused(scripts: dict[str, Script], kind: type[ClientError], told: str) -> None:
    with scripted_broker(**scripts) as broker, pytest.raises(kind, match=told) as raised:
        open_connection(broker.address, "PLAIN")
    assert "hush" not in str(raised.value)


def scram_server(password: str, change: Callable[[str], str]) -> Script:
    """A server that knows a password, and changes what it would say."""
    mechanism = scramp.ScramMechanism("SCRAM-SHA-512")
    salt, stored, server_key, count = mechanism.make_auth_info(password)
    server = mechanism.make_server(lambda _: (salt, stored, server_key, count))
    said = []

    def authenticate(request: Any) -> dict[str, Any]:
        message = request.auth_bytes.decode()
        said.append(message)
        if len(said) == 1:
            server.set_client_first(message)
            answer = server.get_server_first()
        else:
            server.set_client_final(message)
            answer = server.get_server_final()
        return PROVEN | {"auth_bytes": change(answer).encode("latin-1")}

    return Script(36, 0, 2, authenticate)


def test_scram() -> None:
    scripts = {"sasl_handshake": handshake(), "sasl_authenticate": scram_server("hush", str)}
    with scripted_broker(**scripts) as broker:
        open_connection(broker.address, "SCRAM-SHA-512").close()


@pytest.mark.parametrize(
    "change",
    [
        lambda said: "v=AAAA" if said.startswith("v=") else said,  # it does not know the password
        lambda said: said.replace("r=", "r=x"),  # the answer to somebody else's question
        lambda said: said.rpartition("i=")[0] + "i=1" if "i=" in said else said,  # a password easy to find out
        lambda said: said.rpartition("i=")[0] + "i=999999999" if "i=" in said else said,  # work for hours
        lambda said: "e=other-error",
        lambda said: "",
        lambda said: "\xff",
    ],
)
def test_scram_with_a_server_that_proves_nothing(change: Callable[[str], str]) -> None:
    scripts = {"sasl_handshake": handshake(), "sasl_authenticate": scram_server("hush", change)}
    with scripted_broker(**scripts) as broker, pytest.raises(ClientError, match="SCRAM-SHA-512 with the server at"):
        open_connection(broker.address, "SCRAM-SHA-512")
