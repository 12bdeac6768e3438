"""The small client for what librdkafka cannot ask: versions, answers that are none, servers that are away."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from tests.unit.cli.scripted_broker import Script, ScriptedBroker, scripted_broker

from penstock.cli.connection import Refused, Server
from penstock.cli.failure import FAILED, UNREACHABLE, USAGE, CommandError
from penstock.cli.main import main
from penstock.cli.wire import TRANSACTION, Cluster, check, is_plaintext
from penstock.client.errors import Failure, Unreachable
from penstock.client.settings import Settings
from penstock.testing import EmbeddedBroker

LOADING = 14
LISTED = {"error_code": 0, "transaction_states": []}


def server_at(*addresses: str, timeout_s: float = 30.0) -> Server:
    return Server(",".join(addresses), "a test", timeout_s=timeout_s)


class Reached(NamedTuple):
    broker: ScriptedBroker
    cluster: Cluster


@contextmanager
def reached(timeout_s: float = 30.0, **scripts: Script) -> Iterator[Reached]:
    """A server that does what its scripts say, and our client for it."""
    with scripted_broker(**scripts) as broker, Cluster(server_at(broker.address, timeout_s=timeout_s)) as cluster:
        yield Reached(broker, cluster)


def listing(oldest: int = 0, newest: int = 1, answer: Any = LISTED) -> Script:
    return Script(66, oldest, newest, lambda _: answer)


def metadata(**answer: Any) -> Script:
    return Script(3, 0, 13, lambda _: {"brokers": [], "topics": [], **answer})


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Connects, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize(("newest", "used"), [(0, 0), (1, 1), (9, 1)])
def test_the_newest_version_both_know(newest: int, used: int) -> None:
    with reached(list_transactions=listing(0, newest)) as (broker, cluster):
        for _ in range(2):
            assert cluster.ask(None, "list_transactions").transaction_states == ()
    assert broker.asked == [("api_versions", 0), ("list_transactions", used), ("list_transactions", used)]


@pytest.mark.parametrize(
    ("scripts", "told"),
    [
        ({}, "does not have ListTransactions"),
        ({"list_transactions": listing(2, 3)}, "ListTransactions in versions 2 to 3; 0 to 1 are known here"),
        ({"list_transactions": listing(answer=b"\0\0\0\x06\xff\0\0\0\0\0")}, "another question"),
        ({"list_transactions": listing(answer=b"HTTP/1.1 400 Bad Request")}, "1213486160 bytes"),
        ({"list_transactions": listing(answer=b"\0\0\0\x05\0\0\0\x02\0")}, "ListTransactions"),
    ],
)
def test_an_answer_that_is_none(scripts: dict[str, Any], told: str) -> None:
    with reached(**scripts) as (broker, cluster), pytest.raises(CommandError, match=told) as raised:
        cluster.ask(None, "list_transactions")
    assert broker.address in str(raised.value)
    assert raised.value.code == FAILED


def test_a_server_that_hangs_up() -> None:
    with reached(list_transactions=listing(answer=None)) as (broker, cluster), pytest.raises(CommandError) as raised:
        cluster.ask(None, "list_transactions")
    assert str(raised.value).startswith(
        f"no server at {broker.address} (from a test): the server closed the connection"
    )
    assert raised.value.code == UNREACHABLE


@pytest.mark.parametrize("said", [None, b"\0\0\0\x20\0"])
def test_a_server_that_stops_talking(said: bytes | None, silent_port: int) -> None:
    begun = time.monotonic()
    with reached(0.2, list_transactions=listing(answer=said)) as (broker, cluster):
        address = (broker.host, broker.port) if said else ("127.0.0.1", silent_port)
        with pytest.raises(CommandError, match=r"no answer within 0\.2 s") as raised:
            cluster.ask(address, "list_transactions")
    assert raised.value.code == UNREACHABLE
    assert time.monotonic() - begun < 10


def test_the_next_address_where_one_refuses(closed_port: int) -> None:
    refusing = f"127.0.0.1:{closed_port}"
    with scripted_broker(list_transactions=listing()) as broker, Cluster(server_at(refusing, broker.address)) as both:
        assert both.ask(None, "list_transactions").error_code == 0
    told = r"\(from a test\): Connection refused; "
    with Cluster(server_at(refusing, refusing)) as neither, pytest.raises(CommandError, match=told) as raised:
        neither.brokers()
    assert raised.value.code == UNREACHABLE


def test_an_address_that_swallows_packets_costs_one_timeout(silent_port: int) -> None:
    silent = f"127.0.0.1:{silent_port}"
    with scripted_broker(list_transactions=listing()) as broker:
        with Cluster(server_at(silent, broker.address, timeout_s=0.5)) as cluster:
            cluster.ask(None, "list_transactions")
            begun = time.monotonic()
            for _ in range(3):
                cluster.ask(None, "list_transactions")
            assert time.monotonic() - begun < 0.5
            broker.asked.clear()
            cluster.__exit__()
            cluster.ask(None, "list_transactions")
        assert broker.asked == [("api_versions", 0), ("list_transactions", 1)]


def test_the_one_that_failed_last_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    away = {"a"}

    def connect(_: Settings, place: tuple[str, int]) -> Any:
        tried.append(place[0])
        if place[0] in away:
            raise Unreachable(Failure(place[0], "refused"))
        return SimpleNamespace(usable=False, call=lambda api: api, close=lambda: None)

    monkeypatch.setattr("penstock.cli.wire.Connection", connect)
    with Cluster(server_at("a:1", "b:1", "c:1")) as cluster:
        for now_away in ({"a"}, {"a"}, {"a", "b"}, {"b", "c"}):
            away.clear()
            away |= now_away
            cluster.ask(None, "list_transactions")
    assert tried == ["a", "b", "b", "b", "c", "c", "a"]


def test_a_brief_question_waits_no_longer_than_it_says(silent_port: int) -> None:
    begun = time.monotonic()
    told = r"no answer within 0\.2 s"
    with Cluster(server_at(f"127.0.0.1:{silent_port}")) as one, pytest.raises(CommandError, match=told) as raised:
        one.ask_briefly(0.2, "list_transactions")
    assert raised.value.code == UNREACHABLE
    assert time.monotonic() - begun < 10


def test_a_broker_that_the_server_named_and_nobody_reaches(closed_port: int) -> None:
    named = metadata(brokers=[{"node_id": 7, "host": "127.0.0.1", "port": closed_port}])
    with reached(metadata=named) as (_, cluster), pytest.raises(CommandError) as raised:
        cluster.ask(cluster.brokers()[7], "list_transactions")
    assert str(raised.value) == f"no broker at 127.0.0.1:{closed_port}, which the server named: Connection refused"
    assert raised.value.code == UNREACHABLE


@pytest.mark.parametrize("newest", [3, 4, 6])
def test_a_coordinator_is_asked_for_until_it_has_loaded(newest: int) -> None:
    answers = [LOADING, LOADING, 0]

    def find(request: Any) -> dict[str, Any]:
        assert request.key_type == TRANSACTION
        assert request.get("coordinator_keys", (request.get("key"),)) == ("payments",)
        found = {"key": "payments", "node_id": 1, "host": "there", "port": 9, "error_code": answers.pop(0)}
        return {**found, "coordinators": [found]}

    with reached(find_coordinator=Script(10, 0, newest, find)) as (_, cluster):
        assert cluster.find_coordinator(TRANSACTION, "payments") == ("there", 9)
    assert answers == []


def test_a_coordinator_that_never_loads_is_told() -> None:
    found = {"key": "g", "node_id": -1, "host": "", "port": -1, "error_code": LOADING}
    script = Script(10, 0, 4, lambda _: {"coordinators": [found]})
    told = "transactional id 'g': coordinator load in progress"
    with reached(0.3, find_coordinator=script) as (_, cluster), pytest.raises(Refused, match=told):
        cluster.find_coordinator(TRANSACTION, "g")


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ({"error_code": 3, "partitions": []}, "topic 'orders': unknown topic or partition"),
        ({"partitions": [{"partition_index": 0, "leader_id": 1}]}, "no partition 4; it has 0 to 0"),
        ({"partitions": [{"partition_index": 4, "leader_id": -1}]}, "partition 4 of topic 'orders' has no leader"),
    ],
)
def test_a_leader_that_is_missing(topic: dict[str, Any], told: str) -> None:
    brokers = [{"node_id": 1, "host": "there", "port": 9}]
    script = metadata(brokers=brokers, topics=[{"name": "orders", **topic}])
    with reached(metadata=script) as (_, cluster), pytest.raises(CommandError, match=told):
        cluster.find_leader("orders", 4)


@pytest.mark.parametrize(("said", "plain"), [("plaintext", True), ("PLAINTEXT", True), ("ssl", False)])
def test_plaintext_only(said: str, plain: bool) -> None:
    server = Server("127.0.0.1:9", "a test", {"security.protocol": said})
    assert is_plaintext(server) == plain
    if not plain:
        with pytest.raises(CommandError, match=r"security\.protocol=ssl") as raised:
            Cluster(server)
        assert raised.value.code == USAGE


def test_errors_in_kafka_s_words() -> None:
    check(0, "nothing")
    with pytest.raises(Refused, match="group 'g': group id not found") as raised:
        check(69, "group 'g'")
    assert raised.value.name == "GROUP_ID_NOT_FOUND"
    with pytest.raises(Refused, match="group 'g': error 9999"):
        check(9999, "group 'g'")


def test_a_real_broker(broker: EmbeddedBroker, topic: str) -> None:
    assert main(["topic", "create", topic, "--partitions", "2", "--server", broker.bootstrap]) == 0
    with Cluster(server_at(broker.bootstrap)) as cluster:
        ((host, port),) = cluster.brokers().values()
        assert f"{host}:{port}" == broker.bootstrap
        assert cluster.find_leader(topic, 1) == (host, port)
        with pytest.raises(CommandError, match="no partition 2; it has 0 to 1"):
            cluster.find_leader(topic, 2)
        with pytest.raises(CommandError, match=f"topic '{topic}x': unknown topic"):
            cluster.find_leader(f"{topic}x", 0)
