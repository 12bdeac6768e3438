"""The broker under test (Apache Kafka with PENSTOCK_TEST_PEER=kafka) and the clients that judge it."""

import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.wire import wait_for_leaders
from tests.peers import kafka, penstock
from tests.peers.broker import Broker

from .clients import CLIENTS, Client

PEER = os.environ.get("PENSTOCK_TEST_PEER", "penstock")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory: Path = tmp_path_factory.mktemp(PEER)
    if PEER == "kafka":
        started = kafka.start(directory, heap="512m")
    elif PEER == "penstock":
        started = penstock.start(directory)
    else:
        raise pytest.UsageError(f"PENSTOCK_TEST_PEER={PEER}: kafka or penstock")
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


@pytest.fixture(scope="session")
def yesterday_ms() -> int:
    """A timestamp well in the past, yet young enough that no retention touches it."""
    return int(time.time() * 1000) - 86_400_000
