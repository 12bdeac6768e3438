"""Doors of a real broker: several of one protocol, one that the table was given, ports that are taken, what is told."""

import asyncio
import re
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from tests.rules import Nothing
from tests.unit.net.certificates import Authority
from tests.unit.net.test_certificates import revoke

from penstock.errors import WrongSettings
from penstock.net.connection import Answer, Connection
from penstock.net.tcp import TcpNetwork
from penstock.observe.stats import Stats
from penstock.server.broker import Broker
from penstock.server.config import Address, Config, Limits, Listener, Listeners, ListenerTls, Security, ShownTls
from penstock.server.descriptors import share_out
from penstock.server.doors.door import Door, Entrance, House, StreamEntrance
from penstock.server.doors.opening import Doors
from penstock.server.doors.table import KINDS, Kind, Stage
from penstock.server.system_clock import SystemClock

FREE = Address("127.0.0.1", 0)
DEADLINE_S = 30


class Echo:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def handle(self, frame: memoryview, answer: Answer) -> None:
        answer.send([len(frame).to_bytes(4, "big") + bytes(frame)])

    def disconnected(self) -> None:
        return None


def make_echo(house: House, listener: Listener) -> Entrance:
    return StreamEntrance(Door(listener.name, "echo", listener.address, house.client_limits(), Echo), house)


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a new protocol needs here: one entry."""
    monkeypatch.setitem(KINDS, "echo", Kind("echo", "Echo", 1, "where frames are echoed", "Echo frames", make_echo))


@asynccontextmanager
async def running(directory: Path, *more: Listener, limits: Limits | None = None) -> AsyncIterator[Broker]:
    config = Config(
        data_dir=directory, listeners=Listeners(kafka=FREE, http=FREE, more=more), limits=limits or Limits()
    )
    broker = Broker(config)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


def parse(word: str) -> tuple[str, int]:
    host, _, port = word.rpartition(":")
    return host, int(port)


async def echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    writer.write(len(text).to_bytes(4, "big") + text)
    async with asyncio.timeout(DEADLINE_S):
        return (await reader.readexactly(4 + len(text)))[4:]


@pytest.mark.usefixtures("echo")
async def test_a_protocol_is_one_entry_in_the_table(tmp_path: Path) -> None:
    async with running(tmp_path, Listener("echo", "echo", FREE), Listener("second", "echo", FREE)) as broker:
        words = broker.ready_words
        assert list(words) == ["kafka", "http", "echo", "second"]
        for name in ("echo", "second"):
            reader, writer = await asyncio.open_connection(*parse(words[name]))
            assert await echoed(reader, writer, b"hello") == b"hello"
            writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*parse(words["echo"]))


@pytest.mark.usefixtures("echo")
async def test_doors_for_clients_share_the_limit_of_connections(tmp_path: Path) -> None:
    async with running(tmp_path, Listener("echo", "echo", FREE), limits=Limits(max_connections=1)) as broker:
        words = broker.ready_words
        reader, writer = await asyncio.open_connection(*parse(words["echo"]))
        assert await echoed(reader, writer, b"first") == b"first"
        refused, other = await asyncio.open_connection(*parse(words["kafka"]))
        async with asyncio.timeout(DEADLINE_S):
            assert await refused.read() == b""
        assert broker.stats.connections_refused == 1
        for each in (writer, other):
            each.close()


async def test_clients_of_each_kafka_listener_are_told_its_address(tmp_path: Path) -> None:
    outside = Listener("outside", "kafka", FREE, Address("broker.example", 9192))
    async with running(tmp_path, Listener("second", "kafka", FREE), outside) as broker:
        words = broker.ready_words
        assert list(words) == ["kafka", "http", "second", "outside"]

        def look() -> None:
            told = {}
            for name in ("kafka", "second", "outside"):
                admin = AdminClient({"bootstrap.servers": words[name], "log_level": 2})
                (node,) = admin.list_topics(timeout=DEADLINE_S).brokers.values()
                told[name] = f"{node.host}:{node.port}"
            assert told == {"kafka": words["kafka"], "second": words["second"], "outside": "broker.example:9192"}
            producer = Producer({"bootstrap.servers": words["second"], "log_level": 2})
            producer.produce("t", b"hello")
            assert producer.flush(DEADLINE_S) == 0
            admin = AdminClient({"bootstrap.servers": words["second"], "log_level": 2})
            (asked,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
            settings = asked.result(DEADLINE_S)
            assert settings["listeners"].value == (
                f"PLAINTEXT://{words['kafka']},SECOND://{words['second']},OUTSIDE://{words['outside']}"
            )
            assert settings["advertised.listeners"].value.endswith(",OUTSIDE://broker.example:9192")

        await asyncio.to_thread(look)


async def test_a_named_listener_whose_port_is_taken_is_refused_by_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(WrongSettings) as refusal:
            async with running(tmp_path, Listener("outside", "kafka", address)):
                pass
    assert str(refusal.value) == (
        f"listener outside = {address} cannot be used: Address already in use. Stop what uses it, or choose another "
        "one (its address in the list listeners)"
    )


async def test_what_is_left_of_certificates_is_measured_and_told_in_time(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ours")
    ending, renewed = authority.sign("broker", days=1), authority.sign("renewed", days=3)
    tls = ListenerTls(Path(ending.certificate), Path(ending.key), authority=Path(authority.certificate))
    other = replace(tls, certificate=Path(renewed.certificate), key=Path(renewed.key))
    listeners = [Listener("one", "kafka", FREE, tls=tls), Listener("two", "kafka", FREE, tls=other)]
    async with running(tmp_path / "data", *listeners) as broker, httpx.AsyncClient() as client:
        http = f"http://{broker.ready_words['http']}"
        text = (await client.get(f"{http}/metrics")).text
        found = re.findall(r'^penstock_tls_certificate_left_seconds\{file="(.+)"\} (\S+)$', text, re.MULTILINE)
        left_days = {path: float(left) / 86400 for path, left in found}
        assert left_days == {
            ending.certificate: pytest.approx(1, abs=0.01),
            renewed.certificate: pytest.approx(3, abs=0.01),
            authority.certificate: pytest.approx(30, abs=0.01),
        }
        told = (await client.get(f"{http}/health")).json()
        assert told["status"] == "degraded"
        (reason,) = told["reasons"]
        assert reason.startswith(f"certificate {ending.certificate} ends at ")
        for source, target in ((renewed.key, ending.key), (renewed.certificate, ending.certificate)):
            shutil.copy(source, target)
        await broker.reload()
        assert broker.health.verdict() == ("healthy", [])


async def test_a_list_of_revoked_certificates_that_is_old_is_measured_and_told(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ours")
    files = authority.sign("broker")
    path = revoke(authority, tmp_path / "crl.pem", days_ago=3)
    tls = ListenerTls(Path(files.certificate), Path(files.key), authority=Path(files.authority), revoked=Path(path))
    async with running(tmp_path / "data", Listener("one", "kafka", FREE, tls=tls)) as broker:
        assert broker.gauges()["revocation_list_left_s"] == {path: pytest.approx(-2 * 86400, abs=600)}
        status, (reason,) = broker.health.verdict()
        assert status == "degraded"
        assert reason.startswith(f"list of revoked certificates {path} was to be replaced at ")
        revoke(authority, tmp_path / "crl.pem")
        await broker.reload()
        assert broker.health.verdict() == ("healthy", [])
        assert broker.gauges()["revocation_list_left_s"] == {path: pytest.approx(86400, abs=600)}


async def test_a_listener_shows_the_certificate_of_the_name_that_is_asked_for(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ours")
    shown, other = authority.sign("broker"), authority.sign("other", "DNS:kafka.example.com")
    sni = {"kafka.example.com": ShownTls(Path(other.certificate), Path(other.key))}
    tls = ListenerTls(Path(shown.certificate), Path(shown.key), sni=sni)
    context = ssl.create_default_context(cafile=authority.certificate)
    async with running(tmp_path / "data", Listener("one", "kafka", FREE, tls=tls)) as broker:
        for name in ("kafka.example.com", "localhost"):  # whose certificate has to have the name
            _, writer = await asyncio.open_connection(
                *parse(broker.ready_words["one"]), ssl=context, server_hostname=name
            )
            writer.transport.abort()


async def test_a_broker_without_certificates_has_no_such_metric(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        assert not {"certificate_left_s", "revocation_list_left_s"} & broker.gauges().keys()


# --- the loop alone


class Notes:
    """Doors that only note what happens to them."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def warning(self, event: str, **words: object) -> None:
        self.said.append(" ".join([event, *(f"{key}={word}" for key, word in words.items())]))

    def make(self, house: House, listener: Listener) -> Entrance:
        notes = self

        class Noted(StreamEntrance):
            async def open(self) -> None:
                await super().open()
                notes.said.append(f"open {listener.name}")

            async def close(self) -> None:
                await super().close()
                notes.said.append(f"close {listener.name}")

        return Noted(Door(listener.name, listener.protocol, listener.address, house.client_limits(), Echo), house)


def make_house() -> House:
    return House(Config(), TcpNetwork(), SystemClock(), Stats(), share_out(1000, 100), lambda listener: None)  # type: ignore[arg-type, return-value]


def doors(monkeypatch: pytest.MonkeyPatch, notes: Notes, listeners: Sequence[Listener], may_lack: bool) -> Doors:
    for name, stage, is_needed in (
        ("kafka", Stage.CLIENTS, True),
        ("http", Stage.FIRST, False),
        ("internal", Stage.BROKERS, True),
    ):
        kind = Kind(name, name.capitalize(), 1, "", "", notes.make, stage=stage, is_needed=is_needed)
        monkeypatch.setitem(KINDS, name, kind)
    return Doors(make_house(), listeners, may_lack=may_lack, log=notes)  # type: ignore[arg-type]


async def test_doors_open_stage_by_stage_and_close_in_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    listeners = [Listener(name, name.partition("_")[0], FREE) for name in ("kafka", "http", "kafka_2", "internal")]
    row = doors(monkeypatch, notes, listeners, may_lack=False)
    assert row.not_open() == [
        "the Kafka listener is not open yet",
        "the Http listener is not open yet",
        "the Kafka listener kafka_2 is not open yet",
        "the Internal listener is not open yet",
    ]
    for stage in Stage:
        await row.open(stage)
    assert row.not_open() == []
    assert list(row.bound()) == ["kafka", "http", "kafka_2", "internal"]
    assert all(address.port for address in row.bound().values())
    assert row.of("kafka") == ["kafka", "kafka_2"]
    reader, writer = await asyncio.open_connection(*row.bound()["kafka_2"])
    assert await echoed(reader, writer, b"a") == b"a"
    await row.close(Stage.CLIENTS)
    assert await echoed(reader, writer, b"b") == b"b"
    row.sweep()
    await row.end()
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    writer.close()
    assert notes.said == [
        *("open http", "open internal", "open kafka", "open kafka_2"),
        *("close kafka_2", "close kafka", "close internal", "close http"),
    ]


@pytest.mark.parametrize("may_lack", [True, False])
@pytest.mark.parametrize("name", ["kafka", "http"])
async def test_only_a_standard_start_leaves_out_a_door_whose_port_is_taken(
    monkeypatch: pytest.MonkeyPatch, name: str, may_lack: bool
) -> None:
    notes = Notes()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        row = doors(monkeypatch, notes, [Listener(name, name, address)], may_lack)
        if name == "http" and may_lack:
            await row.open(Stage.FIRST)
            assert row.bound() == {} and row.not_open() == []
            assert notes.said == [
                "the Http port is taken, and the broker starts without it; --http names another "
                f"address={address} why=Address already in use"
            ]
        else:
            with pytest.raises(WrongSettings, match=f"listeners.{name} = {address} cannot be used: Address already"):
                await row.open(KINDS[name].stage)
            assert row.not_open()
        await row.end()


async def test_rules_are_asked_for_health_and_metrics(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        host, port = parse(broker.ready_words["http"])
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as client:
            assert (await client.get("/metrics")).status_code == 200
            assert broker._engine is not None
            broker._engine.access.policy = Nothing()
            for path in ("/health", "/metrics"):
                assert (await client.get(path)).status_code == 403
            assert (await client.get("/health/ready")).status_code == 200


async def test_a_password_or_a_key_opens_health_and_metrics(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("correct horse")
    secret.chmod(0o600)
    listeners = Listeners(kafka=FREE, http=FREE, is_named=True, auth={"http": ("basic", "key")})
    broker = Broker(
        Config(data_dir=tmp_path / "data", listeners=listeners, security=Security(admin_password_file=secret))
    )
    await broker.start()
    try:
        guard = broker._house.guard
        assert guard is not None
        key = await guard.keys.create("admin")
        narrow = await guard.keys.create("admin", rules=[])
        host, port = parse(broker.ready_words["http"])
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False) as client:

            async def status(**asked: Any) -> int:
                return (await client.get("/metrics", **asked)).status_code

            assert await status() == 401
            assert await status(auth=("admin", "correct horse")) == 200
            assert await status(headers={"authorization": f"Bearer {key.text.reveal().decode()}"}) == 200
            assert await status(headers={"authorization": f"Bearer {narrow.text.reveal().decode()}"}) == 403
            for wrong in ("Bearer pk_x_y", "Basic !", "Basic YQ==", "Digest x", "Bearer " + "x" * 5000):
                assert await status(headers={"authorization": wrong}) == 401
            assert (await client.get("/health/live")).status_code == 200
        await guard.users.delete("admin")
    finally:
        await broker.stop()


async def test_health_over_tls_with_a_certificate_that_is_renewed(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ca")
    files = authority.sign("first")
    tls = ListenerTls(Path(files.certificate), Path(files.key))
    listeners = Listeners(kafka=FREE, http=FREE, is_named=True, tls={"http": tls})
    broker = Broker(Config(data_dir=tmp_path / "data", listeners=listeners))
    await broker.start()
    try:
        host, port = parse(broker.ready_words["http"])
        trusted = ssl.create_default_context(cafile=authority.certificate)
        async with httpx.AsyncClient(base_url=f"https://{host}:{port}", verify=trusted, trust_env=False) as client:
            assert (await client.get("/health/ready")).status_code == 200
            assert (await client.get("/metrics")).status_code == 200
        before = await shown(host, port, trusted)
        second = authority.sign("second")
        for source, target in ((second.certificate, files.certificate), (second.key, files.key)):
            shutil.copy(source, target)
        await broker.reload()
        assert await shown(host, port, trusted) != before
        async with httpx.AsyncClient(trust_env=False) as plain:
            with pytest.raises(httpx.HTTPError):
                await plain.get(f"http://{host}:{port}/health/live")
    finally:
        await broker.stop()


async def shown(host: str, port: int, trusted: ssl.SSLContext) -> bytes:
    """The certificate that the next connection is shown."""
    _, writer = await asyncio.open_connection(host, port, ssl=trusted)
    spoken = writer.get_extra_info("ssl_object")
    writer.close()
    return bytes(spoken.getpeercert(binary_form=True))


def test_a_file_that_was_loaded_twice_ends_when_the_older_one_does() -> None:
    house = make_house()
    for ends_ms in ({"a": 2, "b": 5}, {"a": 1}, {"a": 3}):
        lists_end_ms = {path: end_ms + 10 for path, end_ms in ends_ms.items()}
        house.certificates.append(SimpleNamespace(ends_ms=ends_ms, lists_end_ms=lists_end_ms))  # type: ignore[arg-type]
    assert house.certificates_end_ms() == {"a": 1, "b": 5}
    assert house.revocation_lists_end_ms() == {"a": 11, "b": 15}
