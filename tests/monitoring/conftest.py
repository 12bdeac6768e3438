"""One small cluster with a little of everything in it, and a Prometheus that watches it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from penstock.cli.main import main
from tests.cluster.cluster_process import Node
from tests.cluster.penstock_cluster import PenstockCluster
from tests.monitoring.prometheus import Prometheus
from tests.unit.net.certificates import Authority
from tests.unit.net.test_certificates import revoke

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "penstock.rules.yml"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
_RECORDS = 50
QUEUED = 5


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority.make(directory / "ours")
    files, revoked = authority.sign("broker", days=60), revoke(authority, directory / "crl.pem")
    tls = {"certificate": files.certificate, "key": files.key, "authority": files.authority, "revoked": revoked}
    settings = {
        "groups": {"initial_rebalance_delay_ms": 0},
        "listeners": [{"name": "secure", "protocol": "kafka", "address": "127.0.0.1:0", "tls": tls}],
    }
    with PenstockCluster(tmp_path_factory.mktemp("watched"), members=1, settings=settings) as made:
        assert isinstance(made, PenstockCluster)
        made.start()
        _use(made)
        yield made


@pytest.fixture(scope="session")
def prometheus(cluster: PenstockCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    targets = [http_of(node) for node in cluster.nodes.values()]
    with Prometheus(tmp_path_factory.mktemp("prometheus") / "home", targets, [RULES]) as started:
        yield started


def http_of(node: Node) -> str:
    return node.command[list(node.command).index("--http") + 1]


def _use(cluster: PenstockCluster) -> None:
    """Records in and out, a group that has read some of them, and a queue with messages."""
    cluster.create_topic("orders", 3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(_RECORDS):
        producer.produce("orders", str(number).encode(), key=str(number).encode())
    assert producer.flush(60) == 0
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    try:
        consumer.subscribe(["orders"])
        for record in consumer.consume(5, timeout=60):
            assert record.error() is None
            consumer.commit(message=record, asynchronous=False)
    finally:
        consumer.close()
    tell(cluster, "queue", "create", "jobs", "--partitions", "3")
    for number in range(QUEUED):
        tell(cluster, "queue", "send", "jobs", "--priority", str(number), str(number))


def tell(cluster: PenstockCluster, *words: str) -> None:
    """Run a command of `penstock`."""
    assert main([*words, "--server", cluster.bootstrap]) == 0, words
