"""Three brokers that ask who comes: a listener for passwords, one for certificates, one over HTTP, all with TLS.

The plain listener stays for whoever looks at the cluster from outside: it is nobody's, and may see topics and no more.
"""

import http.client
import json
import random
import shutil
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from penstock.security.secret_files import load_key
from tests.conformance.wire import Wire, batch, entity_of, make
from tests.peers.ports import free_port
from tests.unit.net.certificates import BROKER, Authority

from .cluster_process import MIN_ISR, REPLICAS, Node
from .penstock_cluster import PenstockCluster

ADMIN, PASSWORD = "admin", "correct horse"
CALL_S = 20.0
ALLOWED, REFUSED = 0, 29
_MECHANISMS = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
_ITERATIONS = 4096
_FETCH_VERSION, _METADATA_VERSION = 12, 9


class SecuredCluster(PenstockCluster):
    """`start` it, then `begin`.

    Args:
        is_certified: brokers know each other by certificates, of an authority of their own; else by a secret alone.
    """

    def __init__(
        self, directory: Path, *, is_certified: bool = False, settings: Mapping[str, Any] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.clients = Authority.make(directory / "clients")
        self.brokers = Authority.make(directory / "brokers") if is_certified else None
        self.files = directory / "files"
        self.files.mkdir()
        load_key(str(self.files / "sealing.key"), random.SystemRandom())
        self.revoked = self.files / "revoked.pem"
        self.revoke()
        self.addresses: dict[int, dict[str, str]] = {}
        self._issued = 0
        password = directory / "admin.password"
        password.write_text(PASSWORD)
        password.chmod(0o600)
        security = {"security": {"admin_password_file": str(password)}}
        super().__init__(directory, settings={**(settings or {}), **security})

    def _node(self, number: int, directory: Path, config: Path, environment: Mapping[str, str]) -> Node:
        self.renew(number)
        addresses = {name: f"127.0.0.1:{free_port()}" for name in ("secret", "mutual", "web")}
        self.addresses[number] = addresses
        tls = {
            "certificate": str(self.file(number, "shown.pem")),
            "key": str(self.file(number, "shown.key")),
            "authority": self.clients.certificate,
        }
        known = {**tls, "client_auth": "require", "names": "RULE:CN=(.*)/$1/", "revoked": str(self.revoked)}
        listeners = [
            {"name": "secret", "protocol": "kafka", "auth": ["scram", "plain"], "tls": tls},
            {"name": "mutual", "protocol": "kafka", "auth": "certificate", "tls": known},
            {"name": "web", "protocol": "http", "auth": ["basic", "key"], "tls": tls},
        ]
        listed = [{**each, "address": addresses[str(each["name"])]} for each in listeners]
        more = {"PENSTOCK_LISTENERS": json.dumps(listed)}
        if self.brokers is not None:
            more |= {
                "PENSTOCK_CLUSTER__TLS_CERT": str(self.file(number, "broker.pem")),
                "PENSTOCK_CLUSTER__TLS_KEY": str(self.file(number, "broker.key")),
                "PENSTOCK_CLUSTER__TLS_CA": self.brokers.certificate,
            }
            more["PENSTOCK_SECURITY__SEAL_KEY_FILE"] = str(self.files / "sealing.key")
            environment = {}  # no secret
        node = super()._node(number, directory, config, {**environment, **more})
        addresses["internal"] = node.command[node.command.index("--internal") + 1]
        return node

    # --- certificates

    def file(self, number: int, name: str) -> Path:
        return self.files / f"{number}-{name}"

    def renew(self, number: int) -> None:
        """New certificates of one broker, for clients and for brokers, in the place of those from before."""
        self._issued += 1
        for authority, name in ((self.clients, "shown"), (self.brokers, "broker")):
            if authority is not None:
                made = authority.sign(f"broker-{number}", BROKER)
                self.put(made.certificate, self.file(number, f"{name}.pem"))
                self.put(made.key, self.file(number, f"{name}.key"))

    def put(self, source: str, target: Path) -> None:
        made = target.with_suffix(".new")
        shutil.copy(source, made)
        made.chmod(0o600)
        made.rename(target)

    def revoke(self, *names: str) -> None:
        """The list of revoked certificates of clients."""
        now = datetime.now(UTC)
        issuer = x509.load_pem_x509_certificate(Path(self.clients.certificate).read_bytes()).subject
        made = x509.CertificateRevocationListBuilder().issuer_name(issuer).last_update(now)
        made = made.next_update(now + timedelta(days=1))
        for name in names:
            found = x509.load_pem_x509_certificate((self.clients.directory / f"{name}.pem").read_bytes())
            entry = x509.RevokedCertificateBuilder().serial_number(found.serial_number).revocation_date(now)
            made = made.add_revoked_certificate(entry.build())
        key = load_pem_private_key((self.clients.directory / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        new = self.revoked.with_suffix(".new")
        new.write_bytes(made.sign(key, SHA256()).public_bytes(Encoding.PEM))
        new.rename(self.revoked)

    def serial(self, number: int, door: str) -> int:
        """Of the certificate that the next one who connects is shown."""
        is_internal = door == "internal"
        trusted = self.brokers if is_internal else self.clients
        assert trusted is not None
        context = ssl.create_default_context(cafile=trusted.certificate)
        if is_internal:
            context.load_cert_chain(self.file(number, "broker.pem"), self.file(number, "broker.key"))
        with (
            _connect(self.addresses[number][door]) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as it,
        ):
            shown = it.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number

    # --- clients

    def by_password(self, user: str = ADMIN, password: str = PASSWORD, *, broker: int | None = None) -> dict[str, Any]:
        """librdkafka's settings, at one broker or at all of them."""
        chosen = [broker] if broker is not None else list(self.addresses)
        return {
            "bootstrap.servers": ",".join(self.addresses[each]["secret"] for each in chosen),
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": self.clients.certificate,
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }

    def admin(self) -> AdminClient:
        return AdminClient(self.by_password())

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        admin = self.admin()  # must outlive the answer
        settings = {"min.insync.replicas": str(MIN_ISR), **(config or {})}
        admin.create_topics([NewTopic(topic, partitions, REPLICAS, config=settings)])[topic].result(CALL_S)
        self._wait(lambda: len(self.view(topic) or {}) == partitions, f"all know {topic}")
        self.wait_whole(topic)

    def begin(self) -> None:
        """Let whoever looks at the cluster from outside see it."""
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
            self.allow("ANONYMOUS", AclOperation.DESCRIBE, "*", kind)

    @contextmanager
    def wire(self, broker: int, user: str, password: str = PASSWORD) -> Iterator["SecureWire"]:
        """A connection of somebody who has proved who it is by a password."""
        with SecureWire(self.addresses[broker]["secret"], self._context()) as wire:
            wire.log_in(user, password)
            yield wire

    @contextmanager
    def wire_by_certificate(self, broker: int, name: str) -> Iterator["SecureWire"]:
        context = self._context()
        context.load_cert_chain(self.clients.directory / f"{name}.pem", self.clients.directory / f"{name}.key")
        with SecureWire(self.addresses[broker]["mutual"], context) as wire:
            yield wire

    def ask_web(self, broker: int, key: str) -> int:
        """The status of what an API key is told of the cluster's health."""
        host, _, port = self.addresses[broker]["web"].rpartition(":")
        asked = http.client.HTTPSConnection(host, int(port), timeout=CALL_S, context=self._context())
        try:
            asked.request("GET", "/metrics", headers={"authorization": f"Bearer {key}"})
            return asked.getresponse().status
        finally:
            asked.close()

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.clients.certificate)

    # --- users and rules

    def add_user(self, name: str, password: str = PASSWORD) -> None:
        """Or give it another password."""
        self._alter(
            [
                UserScramCredentialUpsertion(name, ScramCredentialInfo(each, _ITERATIONS), password.encode())
                for each in _MECHANISMS
            ]
        )

    def delete_user(self, name: str) -> None:
        self._alter([UserScramCredentialDeletion(name, each) for each in _MECHANISMS])

    def _alter(self, wanted: "list[UserScramCredentialAlteration]") -> None:
        admin = self.admin()
        for each in wanted:  # a request may name a user once
            for done in admin.alter_user_scram_credentials([each]).values():
                done.result(CALL_S)

    def allow(self, user: str, operation: AclOperation, name: str, kind: ResourceType = ResourceType.TOPIC) -> None:
        admin = self.admin()
        rule = (kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*")
        for done in admin.create_acls([AclBinding(*rule, operation, AclPermissionType.ALLOW)]).values():
            done.result(CALL_S)

    def disallow(self, user: str) -> int:
        """Remove all rules about a user; how many there were."""
        admin = self.admin()
        anything = (ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None)
        wanted = AclBindingFilter(*anything, AclOperation.ANY, AclPermissionType.ANY)
        (done,) = admin.delete_acls([wanted]).values()
        return len(done.result(CALL_S))


class SecureWire(Wire):
    """One connection under TLS."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        host, _, _ = address.rpartition(":")
        plain = _connect(address)
        try:
            self._socket = context.wrap_socket(plain, server_hostname=host)
        except OSError:
            plain.close()
            raise
        self._stream = self._socket.makefile("rb")
        self._correlation = 0

    def __enter__(self) -> "SecureWire":
        return self

    def log_in(self, user: str, password: str) -> None:
        """Raises `PermissionError` when refused."""
        self.call("sasl_handshake", 1, mechanism="PLAIN")
        said = b"\0" + user.encode() + b"\0" + password.encode()
        answer = self.call("sasl_authenticate", 1, auth_bytes=said)
        if answer.error_code.value != 0:
            raise PermissionError(answer.error_message)

    def describe(self, topic: str) -> int:
        """The error that one is told who asks for a topic."""
        answer = self.call(
            "metadata",
            _METADATA_VERSION,
            topics=[{"name": topic}],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        return int(answer.topics[0].error_code.value)

    def write(self, topic: str, partition: int, value: bytes = b"x") -> int:
        return int(self.produce(topic, {partition: batch([value])})[partition].error_code.value)

    def park(self, topic: str, partition: int, offset: int, *, wait_s: float, replica: int = -1) -> None:
        """Ask for what comes next, and do not wait for the answer."""
        wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        more = {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
        self.send(
            make(
                "fetch",
                _FETCH_VERSION,
                replica_id=replica,
                max_wait=int(wait_s * 1000),
                min_bytes=1,
                max_bytes=1 << 20,
                isolation_level=0,
                session_id=0,
                session_epoch=-1,
                topics=[{"topic": topic, "partitions": [{**wanted, **more}]}],
                forgotten_topics_data=[],
                rack_id="",
            )
        )

    def fetched(self) -> Any:
        """The answer to that, of its one partition."""
        _, answer = self.receive(entity_of("fetch", _FETCH_VERSION, "response"))
        return answer.responses[0].partitions[0]

    def is_ended(self, timeout_s: float) -> bool:
        """Whether the broker ends the connection within that time, and says nothing before."""
        self._socket.settimeout(timeout_s)
        try:
            return self._socket.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=CALL_S)
