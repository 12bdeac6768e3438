"""Clients of all kinds over TLS: a record goes there and back, or the client soon says in its own words why not."""

import asyncio
import logging
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from penstock.net.tls import TlsFiles
from tests.peers import penstock
from tests.unit.net.certificates import Authority

from .clients import JavaClient
from .conftest import PEER
from .secure_house import ADMIN, TOPIC, Entry, House

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="the listeners are ours")

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CLIENTS = ("confluent", "kafka-python", "aiokafka", "kcat", "java")
TOO_OLD = {("kcat", "SCRAM-SHA-256"), ("kcat", "SCRAM-SHA-512")}
"""Debian's librdkafka says its own nonce twice in the last message, and is refused (CVE-2024-56128)."""
PASSWORD = "s3cret"  # noqa: S105 - of a test's broker
REFUSED = "authentication failed"
SOON_S = 30.0
ALERTS = {"expired": "certificate expired", "foreign": "unknown ca", "none": "certificate required"}
"""What OpenSSL makes of them. Whose certificate is revoked is only parted with: the handshake was over."""
OWN_WORDS = {"java": "sslauthenticationexception", "aiokafka": "closed"}
"""Clients that do not say which alert it was."""
NOTHING = "nothing came"


def name_of(client: str, mechanism: str) -> str:
    """Each case has a user of its own, as who fails has to wait."""
    return f"{client}-{mechanism}".lower()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    users = {name_of(client, mechanism): PASSWORD for client in CLIENTS for mechanism in MECHANISMS}
    made = House(tmp_path_factory.mktemp("secure"))
    made.furnish(users)
    yield made
    log = made.log
    assert made.broker.stop() == 0
    assert "Traceback" not in log
    assert PASSWORD not in log and ADMIN not in log


# --- one record there and back, by each client; what is wrong if it cannot


def by_confluent(entry: Entry, value: bytes, directory: Path) -> str:
    told: list[KafkaError] = []
    settings = {**entry.librdkafka(), "log_level": 0, "error_cb": told.append}
    producer = Producer({**settings, "message.timeout.ms": int(SOON_S * 1000)})
    producer.produce(TOPIC, value, partition=0)
    deadline = time.monotonic() + SOON_S
    while producer.flush(0.1) and time.monotonic() < deadline:
        for error in told:
            if error.code() != KafkaError._ALL_BROKERS_DOWN or entry.files is not None:
                return str(error)
    consumer = Consumer({**settings, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.value() == value:
                return ""
    finally:
        consumer.close()
    return f"{NOTHING}; {told}"


class Said(logging.Handler):
    """What a library logs meanwhile: two of them tell there alone why they do not get in, and try again for ever."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger(name)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    def __enter__(self) -> "Said":
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)

    @property
    def text(self) -> str:
        return " | ".join(self._lines)


def python_settings(entry: Entry) -> dict[str, Any]:
    said: dict[str, Any] = {"bootstrap_servers": entry.address, "security_protocol": entry.protocol}
    if entry.mechanism:
        said["sasl_mechanism"] = entry.mechanism
        said |= {"sasl_plain_username": entry.user, "sasl_plain_password": entry.password}
    return said


def by_kafka_python(entry: Entry, value: bytes, directory: Path) -> str:
    settings = {**python_settings(entry), "ssl_cafile": entry.authority, "bootstrap_timeout_ms": 5000}
    if entry.files is not None:
        settings |= {"ssl_certfile": entry.files.certificate, "ssl_keyfile": entry.files.key}
    with Said("kafka") as said:
        try:
            producer = KafkaProducer(**settings)
            try:
                producer.send(TOPIC, value, partition=0).get(SOON_S)
            finally:
                producer.close(timeout=1)
            consumer = KafkaConsumer(**settings, consumer_timeout_ms=int(SOON_S * 1000))
            consumer.assign([PythonPartition(TOPIC, 0)])
            consumer.seek_to_beginning()
            found = any(message.value == value for message in consumer)
            consumer.close()
        except Exception as error:  # noqa: BLE001 - of several kinds
            return f"{error!r}; {said.text}"
    return "" if found else NOTHING


def by_aiokafka(entry: Entry, value: bytes, directory: Path) -> str:
    files = entry.files
    context = create_ssl_context(
        cafile=entry.authority,
        certfile=files.certificate if files is not None else None,
        keyfile=files.key if files is not None else None,
    )
    settings = {**python_settings(entry), "ssl_context": context}

    async def there_and_back() -> None:
        producer = AIOKafkaProducer(**settings)
        try:
            await producer.start()
            await producer.send_and_wait(TOPIC, value, partition=0)
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(**settings)
        try:
            await consumer.start()
            consumer.assign([AioPartition(TOPIC, 0)])
            await consumer.seek_to_beginning()
            while (await consumer.getone()).value != value:
                pass
        finally:
            await consumer.stop()

    with Said("aiokafka") as said:
        try:
            asyncio.run(asyncio.wait_for(there_and_back(), SOON_S))
        except Exception as error:  # noqa: BLE001 - of several kinds
            return f"{error!r}; {said.text}"
    return ""


def by_kcat(entry: Entry, value: bytes, directory: Path) -> str:
    given = entry.librdkafka()
    address = str(given.pop("bootstrap.servers"))
    file = directory / "kcat.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in given.items()))
    start = ["kcat", "-F", str(file), "-b", address, "-X", "message.timeout.ms=5000", "-m", "5"]
    for words in (["-L"], ["-P", "-t", TOPIC, "-p", "0"], ["-C", "-t", TOPIC, "-p", "0", "-o", "beginning", "-e"]):
        done = subprocess.run([*start, *words], input=value, capture_output=True, timeout=SOON_S, check=False)
        if done.returncode:
            return done.stderr.decode()
    return "" if value in done.stdout.splitlines() else NOTHING


class Java:
    """Kafka's own programs, in one JVM."""

    def __init__(self, bootstrap: str) -> None:
        self.client = JavaClient(bootstrap)

    def __call__(self, entry: Entry, value: bytes, directory: Path) -> str:
        file = directory / "java.properties"
        file.write_text(entry.properties())
        place = ("--bootstrap-server", entry.address, "--topic", TOPIC)
        producer = ("--sync", "--command-config", str(file), "--command-property", "max.block.ms=8000")
        wrote = self._run("ConsoleProducer", *place, *producer, text=value.decode())
        if wrote["code"] or "ERROR" in wrote["complaint"]:
            return str(wrote["output"] + wrote["complaint"])
        consumer = ("--partition", "0", "--offset", "earliest", "--command-config", str(file))
        read = self._run("consumer.ConsoleConsumer", *place, *consumer, "--timeout-ms", "1000")
        return "" if value.decode() in read["output"].splitlines() else f"{NOTHING}; {read}"

    def _run(self, tool: str, *words: str, text: str = "") -> dict[str, Any]:
        main = f"org.apache.kafka.tools.{tool}"
        return self.client.ask("tool", main=main, arguments=words, input=f"{text}\n")


class Cell(NamedTuple):
    """One attempt, and what the client has to say of it; empty: it is let in."""

    client: str
    what: str
    entry: Entry
    said: str | None


def is_told(said: str, text: str) -> bool:
    return bool(text) and said in text.lower() and NOTHING not in text


def run(house: House, cells: list[Cell], directory: Path) -> list[tuple[str, str, str]]:
    """Those that ended otherwise than they should. Clients side by side, the cells of each in turn."""
    java = Java(house.broker.bootstrap)
    ways: dict[str, Callable[[Entry, bytes, Path], str]] = dict(
        zip(CLIENTS, (by_confluent, by_kafka_python, by_aiokafka, by_kcat, java), strict=True)
    )

    def try_all(client: str) -> list[tuple[str, str, str]]:
        wrong = []
        place = directory / client
        place.mkdir()
        for cell in cells:
            if cell.client != client:
                continue
            began = time.monotonic()
            text = ways[client](cell.entry, f"{client} {cell.what}".encode(), place)
            is_right = not text if cell.said is None else is_told(cell.said, text)
            if not is_right or time.monotonic() - began > SOON_S:
                wrong.append((client, cell.what, text))
        return wrong

    try:
        with ThreadPoolExecutor(len(CLIENTS)) as pool:
            return [each for found in pool.map(try_all, CLIENTS) for each in found]
    finally:
        java.client.close()


def test_passwords(house: House, tmp_path: Path) -> None:
    cells = []
    for client in CLIENTS:
        for mechanism in MECHANISMS:
            user = name_of(client, mechanism)
            tries: list[tuple[str, str, str, str | None]]
            tries = [("right", user, PASSWORD, None)]  # first, as who fails has to wait
            tries += [("wrong", user, "wrong", REFUSED), ("unknown", f"no-{user}", PASSWORD, REFUSED)]
            if (client, mechanism) in TOO_OLD:
                tries = [("right", user, PASSWORD, REFUSED)]
            for what, who, password, said in tries:
                cells.append(Cell(client, f"{mechanism} {what}", house.by_password(mechanism, who, password), said))
    wrong = run(house, cells, tmp_path)
    assert not wrong, wrong


def test_certificates(house: House, tmp_path: Path) -> None:
    shown = {
        "right": house.authority.sign("Alice"),
        "expired": house.authority.sign("expired", days=-1),
        "revoked": house.lost,
        "foreign": Authority.make(tmp_path / "theirs").sign("Alice"),
        "none": None,
    }
    cells = [
        Cell(client, what, house.by_certificate(files), told_of(client, what))
        for client in CLIENTS
        for what, files in shown.items()
    ]
    wrong = run(house, cells, tmp_path)
    assert not wrong, wrong


def told_of(client: str, what: str) -> str | None:
    if what == "right":
        return None
    return OWN_WORDS.get(client, ALERTS[what]) if what in ALERTS else ""


# --- HTTP


def ask(house: House, listener: str, files: TlsFiles | None = None, **options: Any) -> int:
    """The status of an answer. Raises `httpx.TransportError`."""
    context = ssl.create_default_context(cafile=house.authority.certificate)
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    with httpx.Client(verify=context, trust_env=False, timeout=SOON_S) as client:
        return client.get(f"https://{house.addresses[listener]}/metrics", **options).status_code


def test_passwords_over_http(house: House) -> None:
    user = name_of("confluent", "PLAIN")
    assert ask(house, "web", auth=("admin", ADMIN)) == 200
    assert ask(house, "web", auth=(user, PASSWORD)) == 403
    assert ask(house, "web", auth=("admin", "wrong")) == 401
    assert ask(house, "web", auth=("nobody", PASSWORD)) == 401
    assert ask(house, "web", headers={"authorization": "Basic ?"}) == 401
    assert ask(house, "web") == 401


def test_api_keys_over_http(house: House, tmp_path: Path) -> None:
    properties = tmp_path / "admin.properties"
    properties.write_text(house.by_password("SCRAM-SHA-256", "admin", ADMIN).properties())

    def apikey(*words: str) -> str:
        command = [*penstock.command(), "apikey", *words, "-s", house.addresses["secret"]]
        command += ["--command-config", str(properties)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=SOON_S).stdout

    key = apikey("create", "--for", "admin", "--expires", "1d").split()[-1]
    assert ask(house, "web", headers={"authorization": f"Bearer {key}"}) == 200
    others = key[:-1] + ("A" if key[-1] != "A" else "B")
    for said in (f"Bearer {others}", f"Bearer {key[:-1]}", f"Basic {key}", f"bearer{key}", key):
        assert ask(house, "web", headers={"authorization": said}) == 401
    apikey("delete", key.split("_")[1], "--yes")
    assert ask(house, "web", headers={"authorization": f"Bearer {key}"}) == 401


def test_certificates_over_http(house: House, tmp_path: Path) -> None:
    assert ask(house, "strict", house.authority.sign("prober"), auth=("admin", ADMIN)) == 200
    strangers = (
        house.authority.sign("expired", days=-1),
        house.lost,
        Authority.make(tmp_path / "theirs").sign("prober"),
        None,
    )
    for files in strangers:
        with pytest.raises(httpx.TransportError):
            ask(house, "strict", files, auth=("admin", ADMIN))
