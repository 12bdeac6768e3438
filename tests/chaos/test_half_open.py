"""Peers that connect and never say who they are: they cost little, and whoever does say it gets in all the while."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka.admin import AdminClient

from tests.peers import penstock
from tests.peers.broker import Broker
from tests.unit.net.certificates import Authority

HALF_OPEN = int(os.environ.get("HALF_OPEN", "500"))
MOST = 1000  # `net.limits.Limits.strangers`, `net.handshakes.CONNECTED`
PEER_BYTES = 128 * 1024
CALL_S = 15.0
PASSWORD = "correct horse"  # noqa: S105 - of a test's broker
_SETTINGS = """\
security: {{admin_password_file: {password}}}
listeners:
- {{name: secret, protocol: kafka, address: "127.0.0.1:0", auth: scram}}
- name: hidden
  protocol: kafka
  address: 127.0.0.1:0
  auth: scram
  tls: {{certificate: {files.certificate}, key: {files.key}}}
"""
SAID = {
    "nothing": b"",
    "most of a frame": struct.pack(">i", 64 * 1024) + bytes(60_000),
    "the beginning of TLS": bytes.fromhex("16030102000100fc0303") + bytes(200),
}


class Attacked:
    def __init__(self, directory: Path) -> None:
        self.files = Authority.make(directory / "ours").sign("broker")
        password = directory / "password"
        password.write_text(PASSWORD)
        password.chmod(0o600)
        self.broker: Broker = penstock.start(
            directory / "broker", settings=_SETTINGS.format(password=password, files=self.files)
        )
        ready = (directory / "broker" / "penstock.stdout").read_text().split()
        self.addresses = dict(word.split("=", 1) for word in ready if "=" in word)

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.broker.process.pid).memory_info().rss)

    def call(self, listener: str, said: bytes) -> socket.socket:
        host, _, port = self.addresses[listener].rpartition(":")
        made = socket.create_connection((host, int(port)), CALL_S)
        with contextlib.suppress(ConnectionError):  # turned away
            made.sendall(said)
        return made

    def log_in(self, listener: str) -> None:
        """Raises `KafkaException` if that cannot be done in time."""
        security = {"secret": "SASL_PLAINTEXT", "hidden": "SASL_SSL"}[listener]
        client = AdminClient(
            {
                "bootstrap.servers": self.addresses[listener],
                "security.protocol": security,
                "ssl.ca.location": self.files.authority,
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "admin",
                "sasl.password": PASSWORD,
                "log_level": 0,
            }
        )
        assert client.list_topics(timeout=CALL_S).brokers


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    made = Attacked(tmp_path_factory.mktemp("half-open"))
    made.log_in("secret")
    made.log_in("hidden")
    yield made
    assert made.broker.stop() == 0


@pytest.mark.parametrize(
    ("listener", "said"), [("secret", "nothing"), ("secret", "most of a frame"), ("hidden", "the beginning of TLS")]
)
def test_many_that_never_say_who_they_are(attacked: Attacked, listener: str, said: str) -> None:
    before = attacked.resident_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(HALF_OPEN):
            stack.enter_context(attacked.call(listener, SAID[said]))
        attacked.log_in(listener)
        grown = attacked.resident_bytes() - before
        assert grown < min(HALF_OPEN, MOST) * PEER_BYTES
    attacked.log_in(listener)
