"""What peers say stands in the broker's log as a quoted word: no line is theirs, and no terminal obeys them."""

import base64
import re
import socket
import ssl
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from penstock.net.tls import TlsFiles
from tests.doors.kafka import make
from tests.doors.kio_values import request_frame
from tests.unit.net.certificates import Authority

from .conftest import PEER
from .secure_house import ADMIN, WAIT_S, House

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="the listeners are ours")

FORGED = "2026-01-01T00:00:00.000Z critical serve    forged"
NASTY = (
    f"x\r\n{FORGED}\n{FORGED}",
    f"\x1b[2J\x1b]0;\x07\x9b2J\x85\u2028\u202e{FORGED}",
    f'" forged=yes {FORGED}',
)
_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug|info|warning|error|critical) +\S+ +\S.*|  \| .*")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("logged"), more="logging: {level: debug}\n")
    yield made
    made.broker.stop()


class Peer:
    """A client that says anything."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), WAIT_S)
        self._socket = context.wrap_socket(plain, server_hostname=host)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, api: str, version: int, client_id: str, **values: Any) -> None:
        """Waits for an answer, or the end."""
        frame = request_frame(make(api, version, values), 1, client_id)
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            with self._socket.makefile("rb") as file:
                head = file.read(4)
                file.read(int.from_bytes(head))
        except OSError:
            return


def certificate_of(authority: Authority, name: str, directory: Path) -> TlsFiles:
    """One whose common name openssl's command line would not write."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(Path(authority.certificate).read_bytes())
    signer = load_pem_private_key((authority.directory / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(1))
        .not_valid_after(now + timedelta(1))
        .sign(signer, SHA256())
    )
    shown, kept = directory / "nasty.pem", directory / "nasty.key"
    shown.write_bytes(made.public_bytes(Encoding.PEM))
    kept.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return TlsFiles(str(shown), str(kept), authority.certificate)


def speak_kafka(house: House, nasty: str, directory: Path) -> None:
    context = ssl.create_default_context(cafile=house.authority.certificate)
    said = f"\0{nasty}\0{nasty}".encode()
    software = {"client_software_name": nasty, "client_software_version": nasty}
    with Peer(house.addresses["secret"], context) as peer:
        peer.ask("api_versions", 3, nasty, **software)
        peer.ask("sasl_handshake", 1, nasty, mechanism=nasty)
    for mechanism, first in (("PLAIN", said), ("SCRAM-SHA-256", f"n,,n={nasty},r={nasty}".encode())):
        with Peer(house.addresses["secret"], context) as peer:
            peer.ask("sasl_handshake", 1, nasty, mechanism=mechanism)
            peer.ask("sasl_authenticate", 2, nasty, auth_bytes=first)
    with Peer(house.addresses["secret"], context) as peer:
        peer.ask("sasl_handshake", 1, nasty, mechanism="PLAIN")
        peer.ask("sasl_authenticate", 2, nasty, auth_bytes=f"\0admin\0{ADMIN}".encode())
        peer.ask("metadata", 9, nasty, topics=[{"name": nasty}], allow_auto_topic_creation=True)
        peer.ask("create_topics", 5, nasty, topics=[{"name": nasty, "num_partitions": 1, "replication_factor": 1}])
        peer.ask("find_coordinator", 4, nasty, key_type=0, coordinator_keys=[nasty])
        protocols = [{"name": nasty, "metadata": nasty.encode()}]
        joining = {"group_id": nasty, "session_timeout_ms": 6000, "member_id": "", "protocol_type": nasty}
        peer.ask("join_group", 2, nasty, rebalance_timeout_ms=100, protocols=protocols, **joining)
        peer.ask("init_producer_id", 2, nasty, transactional_id=nasty, transaction_timeout_ms=1000)
    shown = certificate_of(house.authority, nasty.encode()[:64].decode(errors="ignore"), directory)
    context.load_cert_chain(shown.certificate, shown.key)
    with Peer(house.addresses["mutual"], context) as peer:
        peer.ask("metadata", 9, nasty, topics=None)


def speak_http(house: House, nasty: str) -> None:
    context = ssl.create_default_context(cafile=house.authority.certificate)
    basic = base64.b64encode(f"{nasty}:{nasty}".encode()).decode()
    with httpx.Client(verify=context, trust_env=False, timeout=WAIT_S) as client:
        web = f"https://{house.addresses['web']}"
        assert client.get(f"{web}/metrics", headers={"authorization": f"Basic {basic}"}).status_code == 401
        assert client.get(web + "/", params={"q": nasty}).status_code == 200
        assert client.get(f"{web}/{quote(nasty)}").status_code == 404
    host, _, port = house.addresses["web"].rpartition(":")
    for head in (f"/{nasty} HTTP/1.1", f"/ HTTP/1.1\r\nx: {nasty}", f"/ HTTP/1.1\r\nauthorization: {nasty}"):
        plain = socket.create_connection((host, int(port)), WAIT_S)
        with context.wrap_socket(plain, server_hostname=host) as spoken:
            spoken.sendall(f"GET {head}\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            while spoken.recv(4096):
                pass


def test_nobody_writes_a_line_of_the_log(house: House, tmp_path: Path) -> None:
    for number, nasty in enumerate(NASTY):
        directory = tmp_path / str(number)
        directory.mkdir()
        speak_kafka(house, nasty, directory)
        speak_http(house, nasty)
        for listener in ("secret", "web"):
            host, _, port = house.addresses[listener].rpartition(":")
            with socket.create_connection((host, int(port)), WAIT_S) as plain:
                plain.sendall(nasty.encode())
    assert house.broker.stop() == 0
    lines = house.broker.log.read_bytes().decode().split("\n")
    assert lines.pop() == ""
    wrong = [line for line in lines if not (_LINE.fullmatch(line) and line.isprintable())]
    assert not wrong, wrong
    assert not [line for line in lines if "forged" in _QUOTED.sub("", line)]
    assert any("authentication failed" in line for line in lines)
    assert not [line for line in lines if ADMIN in line]
