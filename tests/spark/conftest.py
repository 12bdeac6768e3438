"""One Spark session and one broker (Apache Kafka with PENSTOCK_TEST_PEER=kafka) for all tests here."""

import itertools
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.peers import kafka, penstock
from tests.peers.broker import Broker

from .publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PEER = os.environ.get("PENSTOCK_TEST_PEER", "penstock")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp(PEER)
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


@pytest.fixture(scope="session")
def publisher(broker: Broker) -> Iterator[Publisher]:
    made = Publisher(broker.bootstrap)
    yield made
    made.close()


_numbers = itertools.count()


@pytest.fixture(scope="session")
def new_topic(publisher: Publisher) -> Callable[..., str]:
    """Makes a topic of its own for a case: `new_topic("sizes", partitions=2, **{"retention.ms": "-1"})`."""

    def make(stem: str, *, partitions: int = 1, **config: str) -> str:
        topic = f"{stem}-{next(_numbers)}-{uuid.uuid4().hex[:8]}"
        publisher.create_topic(topic, partitions, **config)
        return topic

    return make


@pytest.fixture(scope="session")
def connector_jars() -> list[Path]:
    """Spark's own Kafka connector and what it needs beside pyspark."""
    done = subprocess.run([ROOT / "scripts" / "jars", "spark-connector"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"scripts/jars failed:\n{done.stderr}"
    return sorted(Path(done.stdout.strip().splitlines()[-1]).glob("*.jar"))


@pytest.fixture(scope="session")
def spark(connector_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The session every test shares: two threads, a small heap, both connectors. Change its settings in no test."""
    from penstock.spark.setup.sessions import session

    made = session(
        "penstock-tests",
        "local[2]",
        **{
            "spark.driver.memory": "2g",
            "spark.jars": ",".join(map(str, connector_jars)),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield made
    made.stop()
