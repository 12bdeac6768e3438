"""The broker under test (Apache Kafka with PENSTOCK_TEST_PEER=kafka) and the clients that judge it."""

import functools
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.conformance.wire import Wire, wait_for_leaders
from tests.peers import kafka, penstock
from tests.peers.broker import Broker

from .clients import ADMINS, CLIENTS, Admin, Client, JavaAdmin, JavaClient
from .clients.client import DEADLINE_S
from .clients.members_groups import Members

T = TypeVar("T")
PEER = os.environ.get("PENSTOCK_TEST_PEER", "penstock")

_SETTINGS = """\
storage: {upkeep_ms: 200}
groups: {initial_rebalance_delay_ms: 0, consumer_heartbeat_interval_ms: 200, consumer_session_timeout_ms: 6000}
"""


def start(directory: Path) -> Broker:
    """Start the peer on the data under `directory`; both look for old segments five times a second."""
    if PEER == "kafka":
        return kafka.start(directory, heap="512m", properties={"log.retention.check.interval.ms": "200"})
    if PEER == "penstock":
        return penstock.start(directory, settings=_SETTINGS)
    raise pytest.UsageError(f"PENSTOCK_TEST_PEER={PEER}: kafka or penstock")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = start(tmp_path_factory.mktemp(PEER))
    yield started
    alive = started.process.poll() is None
    code = started.stop()
    assert alive, f"the broker died during the run with {code}"
    if PEER == "penstock":
        assert code == 0, f"the broker ended with {code}"


class Judges(dict[str, Client]):
    """The clients by name, each made on first use."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap

    def __missing__(self, name: str) -> Client:
        self[name] = CLIENTS[name](self._bootstrap)
        return self[name]


@pytest.fixture(scope="session")
def judges(broker: Broker) -> Iterator[Judges]:
    made = Judges(broker.bootstrap)
    yield made
    for each in made.values():
        each.close()


@pytest.fixture
def members(broker: Broker, judges: Judges) -> Iterator[Members]:
    with Members(broker.bootstrap, judges) as made:
        yield made


class Admins(dict[str, Admin]):
    """The clients' admin sides by name, each made on first use."""

    def __init__(self, judges: Judges, bootstrap: str) -> None:
        super().__init__()
        self._judges = judges
        self._bootstrap = bootstrap

    def __missing__(self, name: str) -> Admin:
        self[name] = self.java if name == JavaAdmin.name else ADMINS[name](self._bootstrap)  # type: ignore[call-arg]
        return self[name]

    @functools.cached_property
    def java(self) -> JavaAdmin:
        client = self._judges["java"]
        assert isinstance(client, JavaClient)
        return JavaAdmin(client)


@pytest.fixture(scope="session")
def admins(broker: Broker, judges: Judges) -> Iterator[Admins]:
    made = Admins(judges, broker.bootstrap)
    yield made
    for each in made.values():
        each.close()


_numbers = itertools.count()


def fresh_name(stem: str) -> str:
    return f"{stem}-{next(_numbers)}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def new_topic(broker: Broker, judges: Judges) -> Callable[..., str]:
    """Makes a topic of its own for a case: `new_topic("sizes", partitions=2, **{"retention.ms": "-1"})`."""

    def make(stem: str, *, partitions: int = 1, **config: str) -> str:
        topic = fresh_name(stem)
        judges["confluent"].create_topic(topic, partitions, config)
        wait_for_leaders(broker.bootstrap, topic, partitions)
        return topic

    return make


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with Wire(broker.bootstrap) as connection:
        yield connection


@pytest.fixture
def node(wire: Wire) -> int:
    return int(wire.call("describe_cluster", 0, include_cluster_authorized_operations=False).brokers[0].broker_id)


@pytest.fixture
def now_ms() -> int:
    return int(time.time() * 1000)


def eventually(probe: Callable[..., T], wanted: Callable[..., bool]) -> T:
    """What `probe` finds once that is as wanted, or at the deadline.

    Kafka answers a change before every part of it acts on it.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not wanted(found := probe()) and time.monotonic() < deadline:
        pass
    return found


def run_tool(judges: Judges, name: str, *arguments: str, code: int = 0) -> str:
    """What one of Kafka's command line tools prints; it runs in the Java client's JVM."""
    java = judges["java"]
    assert isinstance(java, JavaClient)
    main = name if "." in name else f"org.apache.kafka.tools.{name}"
    answer = java.ask("tool", main=main, arguments=arguments)
    assert answer["code"] == code, answer
    return str(answer["output"])


def segment_files(broker: Broker, topic: str, partition: int) -> list[Path]:
    """The partition's `.log` files in the data directory, oldest first."""
    data = broker.log.parent / "data"
    kept = data / "logs" / topic / str(partition) if broker.name == "penstock" else data / f"{topic}-{partition}"
    return sorted(kept.glob("[0-9]*.log"))


@pytest.fixture(scope="session")
def yesterday_ms() -> int:
    """A timestamp well in the past, yet young enough that no retention touches it."""
    return int(time.time() * 1000) - 86_400_000
