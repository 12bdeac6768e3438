"""The cluster under test: Penstock, or Apache Kafka with PENSTOCK_TEST_PEER=kafka."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.transactional_load import HEARTBEAT_MS, SESSION_MS
from tests.chaos.transactional_run import BROKER_SETTINGS
from tests.cluster.cluster_process import ClusterProcess
from tests.cluster.kafka_cluster import KafkaCluster
from tests.cluster.penstock_cluster import PenstockCluster

PEER = os.environ.get("PENSTOCK_TEST_PEER", "penstock")
# Dead members and dead brokers are found out soon; Kafka's own values, made for a data centre, would have a test wait.
_KAFKA = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
}


def make_cluster(directory: Path) -> ClusterProcess:
    if PEER == "kafka":
        return KafkaCluster(directory, properties=_KAFKA)
    if PEER == "penstock":
        return PenstockCluster(directory, settings=BROKER_SETTINGS)
    raise pytest.UsageError(f"PENSTOCK_TEST_PEER={PEER}: kafka or penstock")


@pytest.fixture(scope="session")
def started_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with make_cluster(tmp_path_factory.mktemp(PEER)) as made:
        made.start()
        yield made


@pytest.fixture
def cluster(started_cluster: ClusterProcess) -> ClusterProcess:
    """Three live brokers, also after a test that failed between a kill and a start."""
    for node in started_cluster.nodes.values():
        if node.paused:
            node.resume()
    started_cluster.start()
    return started_cluster
