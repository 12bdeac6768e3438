"""Clients of all kinds log in, or are told that they have not, and do what their rights are for and nothing else."""

import asyncio
import contextlib
import logging
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from kafka import KafkaAdminClient

from tests.peers import penstock
from tests.peers.broker import Broker

from .clients import JavaClient
from .conftest import PEER

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="its users are ours")

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CLIENTS = ("confluent", "kafka-python", "aiokafka", "kcat")
WAYS = ("right", "wrong", "unknown")
TOO_OLD = (("kcat", "SCRAM-SHA-256"), ("kcat", "SCRAM-SHA-512"))
"""Debian's librdkafka says its own nonce twice in the last message; who compares nonces refuses it, as Kafka does since
CVE-2024-56128."""
PASSWORD, ADMIN, TOOLS = "s3cret", "adm1n", "t00ls"
REFUSED = "authentication failed"
TOPIC, GROUP, TXN = "ledger", "readers", "tx"
CALL_S = 15.0
_SETTINGS = """\
listeners:
- {{name: secure, protocol: kafka, address: "127.0.0.1:0", auth: [scram, plain]}}
security: {{admin_password_file: {password}}}
groups: {{initial_rebalance_delay_ms: 0}}
"""


class Secured(NamedTuple):
    broker: Broker
    address: str

    def librdkafka(self, user: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }

    def python(self, user: str, password: str, mechanism: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    password = directory / "admin.password"
    password.write_text(ADMIN)
    password.chmod(0o600)
    broker = penstock.start(directory, settings=_SETTINGS.format(password=password))
    found = re.search(r"\bsecure=(\S+)", (directory / "penstock.stdout").read_text())
    assert found is not None
    yield Secured(broker, found.group(1))
    assert broker.stop() == 0


@pytest.fixture(scope="module")
def admin(secured: Secured) -> AdminClient:
    return AdminClient(secured.librdkafka("admin", ADMIN))


def add_users(admin: AdminClient, *names: str) -> None:
    asked: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for name in names
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for at in range(2):  # a request may name a user once
        for done in admin.alter_user_scram_credentials(asked[at::2]).values():
            done.result(CALL_S)


# --- who somebody is; every one is a user of its own, as who fails has to wait


def name_of(client: str, mechanism: str) -> str:
    return f"{client}-{mechanism}".lower()


@pytest.fixture(scope="module")
def users(admin: AdminClient) -> None:
    add_users(admin, *(name_of(client, mechanism) for client in (*CLIENTS, "java") for mechanism in MECHANISMS))


def by_confluent(secured: Secured, user: str, password: str, mechanism: str) -> str:
    told: list[KafkaError] = []
    client = Producer({**secured.librdkafka(user, password, mechanism), "error_cb": told.append})
    deadline = time.monotonic() + CALL_S
    while time.monotonic() < deadline:
        with contextlib.suppress(KafkaException):
            client.list_topics(timeout=0.2)
            return ""
        client.poll(0.1)
        for error in told:
            if error.code() == KafkaError._AUTHENTICATION:
                return error.str()
    return "nothing was told"


def by_kafka_python(secured: Secured, user: str, password: str, mechanism: str) -> str:
    """It tries again until its time is up, and tells why in its log alone."""
    said = Said("kafka")
    with said:
        try:
            client = KafkaAdminClient(**secured.python(user, password, mechanism), bootstrap_timeout_ms=5000)
            client.list_topics()
            client.close()
        except Exception as error:  # noqa: BLE001 - of several kinds
            return f"{error}; {said.of(secured.address)}"
    return ""


def by_aiokafka(secured: Secured, user: str, password: str, mechanism: str) -> str:
    async def ask() -> None:
        client = AIOKafkaAdminClient(**secured.python(user, password, mechanism))
        try:
            await client.start()
            await client.list_topics()
        finally:
            await client.close()

    said = Said("aiokafka")
    with said:
        try:
            asyncio.run(asyncio.wait_for(ask(), CALL_S))
        except Exception as error:  # noqa: BLE001 - of several kinds
            return f"{error}; {said.of(secured.address)}"
    return ""


class Said(logging.Handler):
    """What a library logs meanwhile."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.DEBUG)
        self._logger = logging.getLogger(name)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    def __enter__(self) -> None:
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)

    def of(self, address: str) -> str:
        return " | ".join(self._lines)


def by_kcat(secured: Secured, user: str, password: str, mechanism: str) -> str:
    given = {**secured.librdkafka(user, password, mechanism), "sasl.mechanisms": mechanism}
    del given["log_level"], given["sasl.mechanism"], given["bootstrap.servers"]
    options = [word for name, value in given.items() for word in ("-X", f"{name}={value}")]
    command = ["kcat", "-b", secured.address, "-L", "-m", "3", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=False)
    return done.stderr if done.returncode else ""


BY: dict[str, Callable[[Secured, str, str, str], str]] = dict(
    zip(CLIENTS, (by_confluent, by_kafka_python, by_aiokafka, by_kcat), strict=True)
)


@pytest.mark.usefixtures("users")
def test_who_says_it_right_is_in_and_who_does_not_is_told_so(secured: Secured) -> None:
    def ask(client: str, mechanism: str, way: str) -> str:
        user = name_of(client, mechanism) if way != "unknown" else f"no-{name_of(client, mechanism)}"
        return BY[client](secured, user, PASSWORD if way != "wrong" else "wrong", mechanism)

    wrong = []
    for way in WAYS:  # the right one first, as who fails has to wait
        cases = [(client, mechanism, way) for client in CLIENTS for mechanism in MECHANISMS]
        with ThreadPoolExecutor(len(cases)) as pool:
            told = dict(zip(cases, pool.map(lambda case: ask(*case), cases), strict=True))
        wrong += [(case, text) for case, text in told.items() if bool(text) != (way != "right" or case[:2] in TOO_OLD)]
        wrong += [(case, text) for case, text in told.items() if text and REFUSED not in text]
    assert not wrong, wrong


# --- what somebody may do

NEEDED = {
    "write": (ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
    "read": (ResourceType.TOPIC, TOPIC, AclOperation.READ),
    "group": (ResourceType.GROUP, GROUP, AclOperation.READ),
    "transaction": (ResourceType.TRANSACTIONAL_ID, TXN, AclOperation.WRITE),
}
CODES = {
    "write": KafkaError.TOPIC_AUTHORIZATION_FAILED,
    "read": KafkaError.TOPIC_AUTHORIZATION_FAILED,
    "group": KafkaError.GROUP_AUTHORIZATION_FAILED,
    "transaction": KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


@pytest.fixture(scope="module")
def workers(secured: Secured, admin: AdminClient) -> None:
    """One who may do all that it needs, and for each right one that lacks it."""
    from confluent_kafka.admin import NewTopic

    for made in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        made.result(CALL_S)
    add_users(admin, "worker", *(f"no-{right}" for right in NEEDED))
    rules = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for right, (kind, name, operation) in NEEDED.items()
        for user in ("worker", *(f"no-{other}" for other in NEEDED if other != right))
    ]
    for done in admin.create_acls(rules).values():
        done.result(CALL_S)


def produce(secured: Secured, user: str) -> int | None:
    told: list[KafkaError | None] = []
    producer = Producer({**secured.librdkafka(user), "message.timeout.ms": 10_000})
    producer.produce(TOPIC, b"x", callback=lambda error, _: told.append(error))
    producer.flush(CALL_S)
    (error,) = told
    return None if error is None else error.code()


def consume(secured: Secured, user: str) -> int | None:
    consumer = Consumer({**secured.librdkafka(user), "group.id": GROUP, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    try:
        deadline = time.monotonic() + CALL_S
        while time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is not None:
                return message.error().code()
            try:
                consumer.commit(message=message, asynchronous=False)
            except KafkaException as error:
                return error.args[0].code()
            return None
    finally:
        consumer.close()
    raise AssertionError("nothing came, no record and no error")


def transact(secured: Secured, user: str) -> int | None:
    producer = Producer({**secured.librdkafka(user), "transactional.id": TXN})
    try:
        producer.init_transactions(CALL_S)
        producer.begin_transaction()
        producer.produce(TOPIC, b"y")
        producer.commit_transaction(CALL_S)
    except KafkaException as error:
        return error.args[0].code()
    return None


@pytest.mark.usefixtures("workers")
def test_exactly_the_rights_that_work_needs(secured: Secured) -> None:
    assert [work(secured, "worker") for work in (produce, transact, consume)] == [None] * 3


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize(
    ("right", "work"), [("write", produce), ("read", consume), ("group", consume), ("transaction", transact)]
)
def test_work_without_a_right(secured: Secured, right: str, work: Callable[[Secured, str], int | None]) -> None:
    produce(secured, "worker")
    assert work(secured, f"no-{right}") == CODES[right]


# --- Kafka's own tools


@pytest.mark.usefixtures("users")
def test_kafkas_tools(secured: Secured, admin: AdminClient, tmp_path: Path) -> None:
    java = JavaClient(secured.broker.bootstrap)

    def run(tool: str, *arguments: str, user: str = "admin", password: str = ADMIN, mechanism: str = "PLAIN") -> Any:
        module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        file = tmp_path / "client.properties"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\ndefault.api.timeout.ms=10000\nrequest.timeout.ms=8000\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.{module}LoginModule required "
            f'username="{user}" password="{password}";\n'
        )
        server = ("--bootstrap-server", secured.address, "--command-config", str(file))
        return java.ask("tool", main=tool, arguments=[*server, *arguments])

    topics, acls = "org.apache.kafka.tools.TopicCommand", "org.apache.kafka.tools.AclCommand"
    try:
        for mechanism in MECHANISMS:
            user = name_of("java", mechanism)
            assert run(topics, "--list", user=user, password=PASSWORD, mechanism=mechanism)["code"] == 0
            for who, password in ((user, "wrong"), (f"no-{user}", PASSWORD)):
                answer = run(topics, "--list", user=who, password=password, mechanism=mechanism)
                assert answer["code"] == 1
                assert REFUSED in answer["output"] + answer["complaint"]

        passwords = f"SCRAM-SHA-256=[iterations=8192,password={TOOLS}],SCRAM-SHA-512=[password={TOOLS}]"
        place = ("--entity-type", "users", "--entity-name", "tools")
        answer = run("kafka.admin.ConfigCommand", "--alter", "--add-config", passwords, *place)
        assert answer["code"] == 0, answer
        told = admin.describe_user_scram_credentials(["tools"])
        assert isinstance(told, dict)
        kept = told["tools"].result(CALL_S)
        assert {(each.mechanism, each.iterations) for each in kept.scram_credential_infos} == {
            (ScramMechanism.SCRAM_SHA_256, 8192),
            (ScramMechanism.SCRAM_SHA_512, 4096),
        }

        def make(topic: str) -> Any:
            return run(topics, "--create", "--topic", topic, user="tools", password=TOOLS, mechanism="SCRAM-SHA-256")

        refused = make("made-by-tools")
        assert refused["code"] == 1, refused
        assert "User:tools may not create topic 'made-by-tools'" in refused["output"], refused
        rule = ("--allow-principal", "User:tools", "--operation", "Create", "--topic", "made-by", *PREFIXED)
        answer = run(acls, "--add", *rule)
        assert answer["code"] == 0, answer
        assert "User:tools" in run(acls, "--list")["output"]
        answer = make("made-by-tools")
        assert answer["code"] == 0, answer
        answer = run(acls, "--remove", "--force", *rule)
        assert answer["code"] == 0, answer
        assert make("made-by-others")["code"] == 1
        answer = run("kafka.admin.ConfigCommand", "--alter", "--delete-config", "SCRAM-SHA-256", *place)
        assert answer["code"] == 0, answer
        assert REFUSED in str(make("made-by-tools"))
    finally:
        java.close()


PREFIXED = ("--resource-pattern-type", "prefixed")
