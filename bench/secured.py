"""Brokers that speak TLS at one listener and ask who somebody is at another, beside the plain one; loads for each.

Both kinds show the same certificate and speak TLS 1.3 with AES-256-GCM: Kafka is told to, and Penstock's OpenSSL
prefers it.
"""

import socket
import ssl
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from tests.peers import kafka, penstock
from tests.peers.ports import free_ports

from bench import native
from bench.cells import MEGABYTE, Cell
from bench.scale import settle
from bench.subject import ADMIN_S, KAFKA_HEAP, Subject

USER, ADMIN, PASSWORD = "loader", "admin", "bench-password"
CIPHER = "TLS_AES_256_GCM_SHA384"
_KAFKA_JVM = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_PENSTOCK = """\
security: {{mode: {mode}, admin_password_file: {password}}}
listeners:
- {{name: tls, protocol: kafka, address: "127.0.0.1:0", tls: {{certificate: {certificate}, key: {key}}}}}
- {{name: logins, protocol: kafka, address: "127.0.0.1:0", auth: [scram, plain]}}
"""


@dataclass(frozen=True, slots=True)
class Files:
    """A certificate that is its own authority, and its key."""

    certificate: Path
    key: Path

    @classmethod
    def make(cls, directory: Path) -> "Files":
        made = cls(directory / "broker.pem", directory / "broker.key")
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "9")
        names = ("-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1")
        words = ("openssl", "req", "-x509", *kind, *names, "-keyout", str(made.key), "-out", str(made.certificate))
        subprocess.run(words, check=True, capture_output=True)
        return made


@dataclass(frozen=True, slots=True)
class Secured:
    """
    Attributes:
        tls: where TLS is spoken, and nobody is asked for anything.
        logins: where everybody has to log in, in plain.
    """

    subject: Subject
    files: Files
    tls: str
    logins: str

    def tls_properties(self) -> dict[str, str]:
        return {"security.protocol": "ssl", "ssl.ca.location": str(self.files.certificate)}

    def login_properties(self, user: str = USER) -> dict[str, str]:
        return {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": PASSWORD,
        }

    def connect(self) -> ssl.SSLSocket:
        host, _, port = self.tls.rpartition(":")
        context = ssl.create_default_context(cafile=str(self.files.certificate))
        return context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)


def start_secured(name: str, directory: Path, *, mode: str = "open") -> Secured:
    """
    Args:
        mode: whether Penstock's rules decide: open or closed.
    """
    directory.mkdir(parents=True)
    files = Files.make(directory)
    made = _start_kafka(directory, files) if name == "kafka" else _start_penstock(directory, files, mode)
    with made.connect() as peer:
        found = peer.cipher()
        assert found is not None and found[0] == CIPHER, f"{name} speaks {found}"
    _add_user(made, made.subject.bootstrap if name == "kafka" else made.logins, name)
    return made


def _start_penstock(directory: Path, files: Files, mode: str) -> Secured:
    password = directory / "admin.password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    settings = _PENSTOCK.format(mode=mode, password=password, certificate=files.certificate, key=files.key)
    broker = penstock.start(directory, settings=settings)
    ready = (directory / "penstock.stdout").read_text().split()
    addresses = dict(word.split("=", 1) for word in ready if "=" in word)
    return Secured(Subject(broker, directory), files, addresses["tls"], addresses["logins"])


def _start_kafka(directory: Path, files: Files) -> Secured:
    plain, controller, tls, logins = free_ports(4)
    both = directory / "both.pem"
    both.write_text(files.key.read_text() + files.certificate.read_text())
    clients = f"PLAINTEXT://127.0.0.1:{plain},TLS://127.0.0.1:{tls},LOGINS://127.0.0.1:{logins}"
    kinds = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,LOGINS:SASL_PLAINTEXT"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    properties = {
        "listeners": f"{clients},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": clients,
        "listener.security.protocol.map": kinds,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.cipher.suites": CIPHER,
        "listener.name.logins.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.logins.scram-sha-256.sasl.jaas.config": module,
    }
    broker = kafka.start(directory, heap=KAFKA_HEAP, jvm=_KAFKA_JVM, properties=properties, ports=(plain, controller))
    return Secured(Subject(broker, directory), files, f"127.0.0.1:{tls}", f"127.0.0.1:{logins}")


def _add_user(made: Secured, address: str, name: str) -> None:
    known = made.login_properties(ADMIN) if name == "penstock" else {}
    admin = AdminClient({"bootstrap.servers": address, **known})
    wanted: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), PASSWORD.encode())
    ]
    for added in admin.alter_user_scram_credentials(wanted).values():
        added.result(ADMIN_S)


def load(made: Secured, address: str, properties: Mapping[str, str], cell: Cell, share: float) -> dict[str, float]:
    """Write a new topic at a listener and read it back: rates, and the broker's CPU seconds for a GB each way."""
    subject, topic, records = made.subject, f"cell-{cell.name}", cell.records(share)
    file = subject.directory / "load.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    _create(made, address, properties, topic, cell)
    gigabytes = records * cell.record_bytes / MEGABYTE / 1000
    settle(subject.directory, int(gigabytes * 1000))
    place = (address, topic, cell.partitions, records, cell.record_bytes)
    figures: dict[str, float] = {}
    for deed, words in (("produce", (cell.acks,)), ("consume", ())):
        before_s = subject.cpu_s()
        found = native.run("load", deed, *place, *words, prefix=("env", f"LOAD_PROPERTIES={file}"))
        figures[deed] = found["bytes"] / MEGABYTE / found["seconds"]
        figures[f"cpu-{deed}"] = (subject.cpu_s() - before_s) / gigabytes
    _delete(made, address, properties, topic)
    return figures | {"cpu": figures["cpu-produce"] + figures["cpu-consume"]}


def _admin(made: Secured, address: str, properties: Mapping[str, Any]) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 3, **properties})


def _create(made: Secured, address: str, properties: Mapping[str, str], topic: str, cell: Cell) -> None:
    from confluent_kafka.admin import NewTopic

    from bench.cells import TOPIC_CONFIG

    settings = TOPIC_CONFIG[cell.durability][made.subject.name]
    admin = _admin(made, address, properties)
    (created,) = admin.create_topics([NewTopic(topic, cell.partitions, 1, config=settings)]).values()
    created.result(ADMIN_S)


def _delete(made: Secured, address: str, properties: Mapping[str, str], topic: str) -> None:
    admin = _admin(made, address, properties)
    (deleted,) = admin.delete_topics([topic]).values()
    deleted.result(ADMIN_S)
