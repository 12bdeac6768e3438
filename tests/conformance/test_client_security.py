"""Our client against brokers that want TLS or credentials: Apache Kafka whatever PENSTOCK_TEST_PEER says.

That is, what Apache Kafka answered when golden/client_security.json was made (`make golden`: RECORD=1). With
PENSTOCK_TEST_PEER=kafka it is asked again.
"""

import os
import pickle
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.client import scram
from penstock.client.cluster import LATEST, Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError, Refused
from penstock.client.fetching import PartitionFetcher
from penstock.client.security import parse_security
from penstock.client.settings import Settings
from tests.peers import kafka
from tests.peers.ports import free_ports

from .conftest import PEER
from .recorded_kafka import RecordedKafka, Recording

TOPIC = "ledger"
RECORDS = 50
VALUE = b"v" * 10_000  # all together several TLS records
PASSWORD = 'p"ä\\ss'  # noqa: S105 - what quoting has to survive
JAAS = "org.apache.kafka.common.security"
QUOTED = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
PROTOCOLS = {
    "PLAINTEXT": "PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
    "PASSWORDS": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "BOTH": "SASL_SSL",
}
Files = Mapping[str, Path]
RECORDED = Path(__file__).with_name("golden") / "client_security.json"
RECORD = bool(os.environ.get("RECORD"))


class Secured(NamedTuple):
    ports: Mapping[str, int]
    files: Files

    def settings(self, listener: str, properties: Mapping[str, str], host: str = "127.0.0.1") -> Settings:
        said = {"security.protocol": PROTOCOLS[listener], **properties}
        made = Settings(f"{host}:{self.ports[listener]}", parse_security(said), timeout_s=10)
        return pickle.loads(pickle.dumps(made))  # noqa: S301 - as a worker gets them


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Two identities, each its own authority: certificate, key, both in one file; the client's key also locked."""
    directory = tmp_path_factory.mktemp("certificates")
    found = {}
    for who in ("broker", "client"):
        found[who], found[f"{who}-key"] = directory / f"{who}.pem", directory / f"{who}-key.pem"
        run_openssl(
            *("req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"),
            *("-subj", f"/CN={who}", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(found[f"{who}-key"]), "-out", str(found[who])),
        )
        found[f"{who}-both"] = directory / f"{who}-both.pem"
        found[f"{who}-both"].write_text(found[f"{who}-key"].read_text() + found[who].read_text())
    found["locked-key"] = directory / "locked-key.pem"
    run_openssl(
        *("pkcs8", "-topk8", "-in", str(found["client-key"]), "-out", str(found["locked-key"])),
        *("-passout", "pass:lock"),
    )
    return found


def run_openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, files: Files
) -> Iterator[Secured]:
    with ExitStack() as stack:
        # A client that chose another nonce each time would never ask the same again.
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(scram, "draw_nonce", lambda: "0123456789abcdef")
        if not RECORD and PEER != "kafka":
            server = stack.enter_context(RecordedKafka(Recording.load(RECORDED), tls_contexts(files)))
            yield Secured(server.ports, files)
            assert server.unknown == [], "Kafka was never asked this: run make golden"
            return
        made = stack.enter_context(live(tmp_path_factory.mktemp("kafka"), files))
        if RECORD:
            recording = Recording(made.ports, alert_of(made.ports["TLS"]))
            stack.enter_context(recording.listening())
        yield made
        if RECORD and not request.session.testsfailed:
            recording.save(RECORDED)


def alert_of(port: int) -> bytes:
    """What is said there to somebody who does not speak TLS."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(bytes(64))
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as file:
            return file.read()


def tls_contexts(files: Files) -> dict[str, ssl.SSLContext]:
    """As the real broker is told to be below."""
    made = {}
    for listener in ("TLS", "MUTUAL", "BOTH"):
        made[listener] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made[listener].load_cert_chain(files["broker"], files["broker-key"])
    made["MUTUAL"].load_verify_locations(files["client"])
    made["MUTUAL"].verify_mode = ssl.CERT_REQUIRED
    return made


@contextmanager
def live(directory: Path, files: Files) -> Iterator[Secured]:
    ports = dict(zip(PROTOCOLS, free_ports(len(PROTOCOLS)), strict=True))
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
    passwords = "listener.name.passwords"
    properties = {
        "listeners": listeners,
        "advertised.listeners": ",".join(word for word in listeners.split(",") if not word.startswith("CONTROLLER")),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        f"{passwords}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{passwords}.plain.sasl.jaas.config": f'{JAAS}.plain.PlainLoginModule required user_ada="secret";',
        **{
            f"{name}.scram-sha-{size}.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required;"
            for name, size in ((passwords, 256), (passwords, 512), ("listener.name.both", 512))
        },
        "listener.name.both.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files["broker-both"]),
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files["client"]),
    }
    with pytest.MonkeyPatch.context() as patch:  # one property names all ports, so all are chosen here
        patch.setattr(kafka, "free_ports", lambda _: [ports["PLAINTEXT"], ports["CONTROLLER"]])
        broker = kafka.start(directory, heap="384m", partitions=1, properties=properties)
    try:
        made = Secured(ports, files)
        fill(broker.bootstrap)
        wait_for_user(made)
        yield made
    finally:
        broker.stop()


def fill(bootstrap: str) -> None:
    with Cluster(Settings(bootstrap)) as cluster:
        cluster.create_topic(TOPIC, 1, {})
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(RECORDS):
        producer.produce(TOPIC, VALUE)
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        change = UserScramCredentialUpsertion("grace", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        (done,) = admin.alter_user_scram_credentials([change]).values()
        done.result(30)


def wait_for_user(secured: Secured) -> None:
    """Kafka answers a change of users before its listeners know them."""
    settings = secured.settings("PASSWORDS", scram_512(secured.files))
    deadline = time.monotonic() + 30
    while True:
        try:
            Connection(settings, settings.addresses()[0]).close()
            return
        except Refused:
            if time.monotonic() > deadline:
                raise


def plain(_: Files) -> dict[str, str]:
    return {"sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": "secret"}


def scram_256(_: Files) -> dict[str, str]:
    return {"sasl.mechanisms": "SCRAM-SHA-256", "sasl.username": "grace", "sasl.password": PASSWORD}


def scram_512(_: Files) -> dict[str, str]:
    login = f'{JAAS}.scram.ScramLoginModule required username="grace" password="{QUOTED}";'
    return {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": login}


def trusting(files: Files) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(files["broker"])}


def known(files: Files) -> dict[str, str]:
    return {
        "ssl.ca.location": str(files["broker"]),
        "ssl.certificate.location": str(files["client"]),
        "ssl.key.location": str(files["locked-key"]),
        "ssl.key.password": "lock",
    }


def known_by_store(files: Files) -> dict[str, str]:
    return {"ssl.ca.pem": files["broker"].read_text(), "ssl.keystore.location": str(files["client-both"])}


def trusting_scram(files: Files) -> dict[str, str]:
    return trusting(files) | scram_512(files)


def nobody(_: Files) -> dict[str, str]:
    return {}


@pytest.mark.parametrize(
    ("listener", "properties"),
    [
        ("PASSWORDS", plain),
        ("PASSWORDS", scram_256),
        ("PASSWORDS", scram_512),
        ("TLS", trusting),
        ("MUTUAL", known),
        ("MUTUAL", known_by_store),
        ("BOTH", trusting_scram),
    ],
)
def test_reading(secured: Secured, listener: str, properties: Callable[[Files], dict[str, str]]) -> None:
    settings = secured.settings(listener, properties(secured.files))
    with Cluster(settings) as cluster:
        topic = cluster.topics([TOPIC])[TOPIC]
        assert cluster.list_offsets({(TOPIC, 0): LATEST}, read_committed=True) == {(TOPIC, 0): RECORDS}
        fetcher = PartitionFetcher(settings, cluster, topic, 0, read_committed=True, max_bytes=8 << 20)
        fetcher.send(0)
        fetched = fetcher.receive()
        fetcher.close()
    assert (fetched.error_code, fetched.high_watermark) == (0, RECORDS)
    assert bytes(fetched.records).count(VALUE) == RECORDS


@pytest.mark.parametrize("properties", [plain, scram_256, scram_512])
def test_a_wrong_password(secured: Secured, properties: Callable[[Files], dict[str, str]]) -> None:
    said = properties(secured.files) | {"sasl.username": "ada", "sasl.password": "guessed"}
    said.pop("sasl.jaas.config", None)
    with (
        Cluster(secured.settings("PASSWORDS", said)) as cluster,
        pytest.raises(Refused, match=r"user 'ada' at 127\.0\.0\.1:\d+: sasl authentication failed") as raised,
    ):
        cluster.topics(None)
    assert not raised.value.retriable
    assert "guessed" not in str(raised.value)


def test_a_mechanism_the_server_lacks(secured: Secured) -> None:
    settings = secured.settings("BOTH", trusting(secured.files) | plain(secured.files))
    with Cluster(settings) as cluster, pytest.raises(Refused, match="the server has SCRAM-SHA-512"):
        cluster.topics(None)


@pytest.mark.parametrize(
    ("listener", "properties", "host", "told"),
    [
        ("TLS", nobody, "127.0.0.1", "is not trusted: self-signed certificate; ssl.ca.location"),
        ("TLS", trusting, "localhost", "is not trusted: .*'localhost'"),
        ("MUTUAL", trusting, "127.0.0.1", "no TLS with the server at .*certificate.*; .*ssl.certificate.location"),
    ],
)
def test_strangers(
    secured: Secured, listener: str, properties: Callable[[Files], dict[str, str]], host: str, told: str
) -> None:
    settings = secured.settings(listener, properties(secured.files), host)
    with Cluster(settings) as cluster, pytest.raises(ClientError, match=told) as raised:
        cluster.topics(None)
    assert not raised.value.retriable


@pytest.mark.parametrize(
    "leniency", [{"ssl.endpoint.identification.algorithm": ""}, {"enable.ssl.certificate.verification": "false"}]
)
def test_a_host_nobody_checks(secured: Secured, leniency: dict[str, str]) -> None:
    trusted = trusting(secured.files) if "ssl.endpoint.identification.algorithm" in leniency else {}
    settings = secured.settings("TLS", trusted | leniency, "localhost")
    connection = Connection(settings, settings.addresses()[0])
    assert connection.call("metadata", topics=[]).brokers
    connection.close()


def test_the_wrong_door(secured: Secured) -> None:
    plaintext = Settings(f"127.0.0.1:{secured.ports['TLS']}", timeout_s=10)
    with Cluster(plaintext) as cluster, pytest.raises(ClientError, match=r"it wants TLS: security\.protocol=SSL"):
        cluster.topics(None)
    closing = Settings(f"127.0.0.1:{secured.ports['PLAINTEXT']}", parse_security({"security.protocol": "SSL"}))
    with Cluster(closing) as cluster, pytest.raises(ClientError, match="does it speak TLS at this port"):
        cluster.topics(None)
