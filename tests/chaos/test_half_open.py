"""Peers that connect and never say who they are, or say it wrong: they cost little, and whoever does say it gets in
all the while.
"""

import contextlib
import os
import re
import selectors
import socket
import ssl
import struct
import time
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
AHEAD = 62
SEND_BYTES = 64 * 1024  # that a peer's own kernel keeps


def request(key: int, version: int, body: bytes) -> bytes:
    """Of one of Kafka's APIs, with a length in front."""
    frame = struct.pack(">hhih", key, version, 1, 1) + b"x" + body
    return struct.pack(">i", len(frame)) + frame


def bad_logins(size: int) -> bytes:
    """SaslHandshake, and many a SaslAuthenticate that is none, all at once."""
    mechanism = b"SCRAM-SHA-256"
    handshake = request(17, 1, struct.pack(">h", len(mechanism)) + mechanism)
    return handshake + request(36, 0, struct.pack(">i", size) + bytes(size)) * AHEAD


class Attacked:
    def __init__(self, directory: Path) -> None:
        self.files = Authority.make(directory / "ours").sign("broker")
        self._trusting = ssl.create_default_context(cafile=self.files.authority)
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

    @contextlib.contextmanager
    def most_bytes(self) -> Iterator[list[int]]:
        """How much memory there was at most, more than at the beginning."""
        process, found = Path(f"/proc/{self.broker.process.pid}"), list[int]()
        before = self.resident_bytes()
        (process / "clear_refs").write_text("5")  # forgets what was the most before
        yield found
        status = (process / "status").read_text()
        found.append(int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) * 1024 - before)

    def come_in(self, listener: str) -> socket.socket:
        """As a client does, under TLS where the listener has it; nothing is said yet."""
        made = self.call(listener, b"")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        if listener == "hidden":
            made = self._trusting.wrap_socket(made, server_hostname="localhost")
        made.setblocking(False)
        return made

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


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[Attacked]:
    """Each has a broker of its own: memory that was used before would be used again, and not be seen."""
    made = Attacked(tmp_path)
    made.log_in("secret")
    made.log_in("hidden")
    yield made
    assert made.broker.stop() == 0


@pytest.mark.parametrize(
    ("listener", "said"), [("secret", "nothing"), ("secret", "most of a frame"), ("hidden", "the beginning of TLS")]
)
def test_many_that_never_say_who_they_are(attacked: Attacked, listener: str, said: str) -> None:
    with contextlib.ExitStack() as stack:
        with attacked.most_bytes() as most:
            for _ in range(HALF_OPEN):
                stack.enter_context(attacked.call(listener, SAID[said]))
            attacked.log_in(listener)
        assert most[0] < min(HALF_OPEN, MOST) * PEER_BYTES
    attacked.log_in(listener)


@pytest.mark.parametrize("size", [7_900, 60_000])
@pytest.mark.parametrize("listener", ["secret", "hidden"])
def test_many_that_say_it_wrong_and_much_of_it(attacked: Attacked, listener: str, size: int) -> None:
    """Each waits a second to be told, and by then has said all that it could."""
    said = bad_logins(size)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(attacked.come_in(listener)) for _ in range(min(HALF_OPEN, MOST))]
        with attacked.most_bytes() as most:
            say_all(peers, said)
        assert most[0] < len(peers) * PEER_BYTES
        attacked.log_in(listener)


def say_all(peers: list[socket.socket], said: bytes) -> None:
    """As much as is taken, until they are refused."""
    deadline = time.monotonic() + CALL_S
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer, selectors.EVENT_WRITE, [memoryview(said)])
        while selector.get_map():
            assert time.monotonic() < deadline
            for key, _ in selector.select(CALL_S):
                with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
                    if not say_more(key.fileobj, key.data):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)


def say_more(peer: socket.socket, left: list[memoryview]) -> bool:
    """Whether there is more to say, to somebody who listens."""
    try:
        left[0] = left[0][peer.send(left[0]) :]
    except (BlockingIOError, ssl.SSLWantWriteError):
        raise
    except OSError:
        return False
    return bool(left[0])
