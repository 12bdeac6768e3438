"""Listeners that speak TLS and ask who somebody is, by librdkafka: passwords, certificates, and their renewal."""

import os
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.peers import penstock
from tests.unit.net.certificates import Authority

pytestmark = pytest.mark.skipif(
    os.environ.get("PENSTOCK_TEST_PEER", "penstock") != "penstock", reason="the listeners are ours"
)
PASSWORD = "correct horse"  # noqa: S105 - of a test's broker
DEADLINE_S = 30.0
RECORDS = 500


class House:
    """A broker with a listener for passwords, one for certificates, one for either, and the authority behind them."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.make(directory / "ours")
        server = self.authority.sign("server")
        self.certificate, self.key = directory / "shown.pem", directory / "shown.key"
        self.show(server.certificate, server.key)
        password = directory / "admin.password"
        password.write_text(PASSWORD)
        password.chmod(0o600)
        tls = f"certificate: {self.certificate}, key: {self.key}, authority: {self.authority.certificate}"
        settings = f"""\
security: {{admin_password_file: {password}}}
listeners:
- {{name: secret, protocol: kafka, address: "127.0.0.1:0", auth: [scram, plain], tls: {{{tls}}}}}
- name: mutual
  protocol: kafka
  address: 127.0.0.1:0
  auth: certificate
  tls: {{{tls}, client_auth: require, names: "RULE:CN=(.*)/$1/L"}}
- name: either
  protocol: kafka
  address: 127.0.0.1:0
  auth: [certificate, scram, plain]
  tls: {{{tls}, client_auth: request, names: "RULE:CN=(.*)/$1/L"}}
"""
        self.broker = penstock.start(directory / "broker", settings=settings)
        ready = (directory / "broker" / "penstock.stdout").read_text().split()
        self.addresses = dict(word.split("=", 1) for word in ready if "=" in word)

    def show(self, certificate: str, key: str) -> None:
        """Put other files in place, as who renews certificates does: each at once."""
        for source, target in ((certificate, self.certificate), (key, self.key)):
            made = target.with_suffix(".new")
            shutil.copy(source, made)
            made.chmod(0o600)
            made.rename(target)

    def by_password(self, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.addresses["secret"],
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": self.authority.certificate,
            "sasl.mechanism": mechanism,
            "sasl.username": "admin",
            "sasl.password": password,
            "log_level": 0,
        }

    def by_certificate(self, name: str, authority: Authority | None = None) -> dict[str, Any]:
        files = (authority or self.authority).sign(name)
        return {
            "bootstrap.servers": self.addresses["mutual"],
            "security.protocol": "ssl",
            "ssl.ca.location": self.authority.certificate,
            "ssl.certificate.location": files.certificate,
            "ssl.key.location": files.key,
            "log_level": 0,
        }

    def serial(self) -> str:
        """Of the certificate that the next connection is shown."""
        host, _, port = self.addresses["secret"].rpartition(":")
        context = ssl.create_default_context(cafile=self.authority.certificate)
        with (
            socket.create_connection((host, int(port)), DEADLINE_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as spoken,
        ):
            return str(spoken.getpeercert()["serialNumber"])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("tls"))
    admin = AdminClient(made.by_password())
    for made_topic in admin.create_topics([NewTopic("t", 3)]).values():
        made_topic.result(DEADLINE_S)
    rule = (ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:alice", "*")
    for created in admin.create_acls([AclBinding(*rule, AclOperation.WRITE, AclPermissionType.ALLOW)]).values():
        created.result(DEADLINE_S)
    yield made
    assert made.broker.stop() == 0


def produce(settings: dict[str, Any], count: int = 1, topic: str = "t", size: int = 1000) -> list[Any]:
    """What became of each record: None if it is there."""
    told: list[Any] = []
    producer = Producer({**settings, "message.timeout.ms": 15_000})
    for number in range(count):
        producer.produce(topic, b"%d" % number + b"x" * size, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(DEADLINE_S) == 0
    return told


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_records_come_and_go_over_tls(house: House, mechanism: str) -> None:
    settings = house.by_password(mechanism)
    assert produce(settings, RECORDS, size=20_000) == [None] * RECORDS
    consumer = Consumer({**settings, "group.id": f"readers-{mechanism}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    deadline, found = time.monotonic() + DEADLINE_S, 0
    while found < RECORDS and time.monotonic() < deadline:
        found += sum(message.error() is None for message in consumer.consume(RECORDS, 1.0))
    consumer.close()
    assert found >= RECORDS


def test_a_wrong_password_is_refused(house: House) -> None:
    errors: list[str] = []
    settings = {**house.by_password(password="wrong"), "error_cb": lambda error: errors.append(str(error))}  # noqa: S106
    client = AdminClient(settings)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=5)
    client.poll(0)
    assert any("authentication failed" in error for error in errors)


def test_a_certificate_says_who_somebody_is_and_rules_what_that_one_may(house: House) -> None:
    assert produce(house.by_certificate("Alice")) == [None]
    (refused,) = produce(house.by_certificate("eve"))
    assert refused.name() == "TOPIC_AUTHORIZATION_FAILED"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
@pytest.mark.parametrize("name", ["eve", None])
def test_who_logs_in_is_not_whom_its_certificate_names(house: House, name: str | None, mechanism: str) -> None:
    shown = {} if name is None else house.by_certificate(name)
    either = {**shown, **house.by_password(mechanism), "bootstrap.servers": house.addresses["either"]}
    assert produce(either) == [None]
    errors: list[str] = []
    wrong: dict[str, Any] = {
        "sasl.username": "alice",
        "sasl.password": "wrong",
        "error_cb": lambda error: errors.append(str(error)),
    }
    client = AdminClient({**either, **wrong})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=5)
    client.poll(0)
    assert any("authentication failed" in error for error in errors)


def test_where_either_is_taken_a_certificate_is_enough(house: House) -> None:
    either: dict[str, Any] = {"bootstrap.servers": house.addresses["either"]}
    assert produce({**house.by_certificate("alice"), **either}) == [None]
    (refused,) = produce({**house.by_certificate("eve"), **either})
    assert refused.name() == "TOPIC_AUTHORIZATION_FAILED"


def test_strangers_get_nothing(house: House, tmp_path: Path) -> None:
    strange = Authority.make(tmp_path / "theirs")
    without = {key: value for key, value in house.by_certificate("x").items() if "certificate" not in key}
    for settings in (house.by_certificate("alice", strange), {**without, "ssl.key.location": None}):
        chosen = {key: value for key, value in settings.items() if value is not None}
        with pytest.raises(KafkaException):
            AdminClient(chosen).list_topics(timeout=3)


def test_a_certificate_is_renewed_while_records_are_written(house: House) -> None:
    producer, told = Producer(house.by_password()), []
    before = house.serial()
    renewed = house.authority.sign("renewed")
    for number in range(RECORDS):
        if number == RECORDS // 2:
            producer.flush(DEADLINE_S)
            house.show(renewed.certificate, renewed.key)
            house.broker.process.send_signal(signal.SIGHUP)
        producer.produce("t", b"x" * 1000, on_delivery=lambda error, _: told.append(error))
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    assert told == [None] * RECORDS
    deadline = time.monotonic() + DEADLINE_S
    while house.serial() == before:
        assert time.monotonic() < deadline, "the old certificate is shown still"
    house.show(str(house.authority.certificate), renewed.key)  # not a pair
    house.broker.process.send_signal(signal.SIGHUP)
    while "certificates cannot be loaded" not in house.broker.log.read_text():
        assert time.monotonic() < deadline, "nobody says that the files are no pair"
    assert produce(house.by_password()) == [None]
