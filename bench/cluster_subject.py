"""Two clusters under measurement, each of three brokers: Penstock with three etcd, Kafka with its controllers inside.

Everything a cluster needs counts as its CPU: Penstock's etcd as Kafka's controllers.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient
from tests.cluster.cluster_process import ClusterProcess
from tests.cluster.kafka_cluster import KafkaCluster
from tests.cluster.penstock_cluster import PenstockCluster

from bench.scale import settle
from bench.subject import _KAFKA_JVM, ADMIN_S, KAFKA_HEAP, cpu_of

# The etcd of the tests is killed alone, never with the machine, and does not sync; here it keeps what it promises.
_ETCD = ("--unsafe-no-fsync=false",)


def _penstock(directory: Path) -> ClusterProcess:
    return PenstockCluster(directory, etcd_arguments=_ETCD)


def _kafka(directory: Path) -> ClusterProcess:
    return KafkaCluster(directory, heap=KAFKA_HEAP, jvm=_KAFKA_JVM)


_MAKERS: dict[str, Callable[[Path], ClusterProcess]] = {"penstock": _penstock, "kafka": _kafka}


@contextmanager
def running(name: str, directory: Path) -> Iterator[ClusterProcess]:
    """A new cluster, all of it up; it and its data are gone afterwards."""
    settle(directory)
    place = directory / name
    try:
        with _MAKERS[name](place) as cluster:
            cluster.start()
            yield cluster
    finally:
        shutil.rmtree(place, ignore_errors=True)


def cpu_s(cluster: ClusterProcess) -> float:
    """User and system time of all brokers and of the etcd beside them."""
    processes = [psutil.Process(node.process.pid) for node in cluster.nodes.values()]
    processes += [child for child in psutil.Process().children() if child.name() == "etcd"]
    total = 0.0
    for each in processes:
        with contextlib.suppress(OSError):
            total += cpu_of(each.pid)
    return total


def delete_topic(cluster: ClusterProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 3})  # must outlive the answer
    admin.delete_topics([topic])[topic].result(ADMIN_S)
