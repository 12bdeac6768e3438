"""Three brokers of an older version, brought to this one after the other while they are written to.

    python -m tests.cluster.upgrade --old REF [--one-way]

REF is anything git knows: a tag, a branch, a commit. Its sources run with the packages that are installed here. Two of
the brokers go back and come again, before the third one is of this version: then the cluster's feature level is raised,
and who knows less is let in no more (ADR 18). Between two steps the brokers are of both versions, and a leader is
killed. Every acknowledged record must be there once, and every transaction whole. Prints a line for each step; exits
with 1 when something is wrong.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import Producer

from tests.chaos.history import History, report
from tests.chaos.load import ProducerLoad, read_everything
from tests.chaos.transactional_run import read_committed

from .cluster_process import Node
from .penstock_cluster import PenstockCluster

ROOT = Path(__file__).parents[2]
TOPIC, WHOLE, PARTITIONS = "upgraded", "whole", 4
_CAREFUL = {"max.in.flight.requests.per.connection": 1, "socket.timeout.ms": 5000, "request.timeout.ms": 5000}
_TIMEOUT_S = 60.0
_ROWS = 10


def unpack(ref: str, directory: Path) -> str:
    """Put a version's sources there; its full name."""
    commit = subprocess.run(["git", "rev-parse", f"{ref}^{{commit}}"], cwd=ROOT, check=True, capture_output=True)
    packed = subprocess.run(["git", "archive", ref, "src"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return commit.stdout.decode().strip()


class Versions:
    """Which sources a broker is started with."""

    def __init__(self, cluster: PenstockCluster, old: Path) -> None:
        self._old = {"PYTHONPATH": str(old / "src")}
        self._plain: dict[int, tuple[Sequence[str], Mapping[str, str]]] = {
            node.id: (node.command, node.environment) for node in cluster.nodes.values()
        }

    def use(self, node: Node, *, old: bool) -> None:
        command, environment = self._plain[node.id]
        # The installed program would put its own sources first.
        started = command[command.index("serve") :]
        node.command = [sys.executable, "-m", "penstock.cli.main", *started] if old else command
        node.environment = {**environment, **(self._old if old else {})}


class Story:
    def __init__(self, cluster: PenstockCluster, versions: Versions, load: ProducerLoad) -> None:
        self._cluster, self._versions, self._load = cluster, versions, load
        self._began = time.monotonic()
        self.transactions = 0

    def step(self, broker_id: int, *, old: bool) -> None:
        """Stop a broker, start it with the other version, and have a leader killed."""
        node = self._cluster.nodes[broker_id]
        code = node.stop()
        assert code == 0, f"broker {broker_id} ended with {code}"
        self._versions.use(node, old=old)
        node.start()
        self._cluster.wait_whole(TOPIC, WHOLE)
        self._transact()
        victim = self._cluster.leader(TOPIC, self.transactions % PARTITIONS)
        self._cluster.nodes[victim].kill()
        self._cluster.wait_moved(victim, TOPIC, WHOLE)
        self._transact()
        self._cluster.nodes[victim].start()
        self._cluster.wait_whole(TOPIC, WHOLE)
        self._load.wait_for_acks(100, _TIMEOUT_S)
        print(
            f"{time.monotonic() - self._began:5.1f} s  broker {broker_id} runs the {'old' if old else 'new'} version, "
            f"leader {victim} was killed, {self._load.history.acked:,} acked",
            flush=True,
        )

    def _transact(self) -> None:
        """A new producer each time, with the same id: its predecessor's state comes from whoever coordinates now."""
        producer = Producer(
            {"bootstrap.servers": self._cluster.bootstrap, "transactional.id": "upgrade", "log_level": 2}
        )
        producer.init_transactions(_TIMEOUT_S)
        producer.begin_transaction()
        for number in range(_ROWS):
            producer.produce(WHOLE, f"{self.transactions} {number}".encode(), partition=number % PARTITIONS)
        producer.commit_transaction(_TIMEOUT_S)
        self.transactions += 1


def play(ref: str, *, back: bool) -> list[str]:
    """What is wrong in the end."""
    with tempfile.TemporaryDirectory(prefix="penstock-upgrade-") as name:
        directory = Path(name)
        print(f"old: {unpack(ref, directory / 'old')}", flush=True)
        with PenstockCluster(directory / "cluster") as cluster:
            versions = Versions(cluster, directory / "old")
            for node in cluster.nodes.values():
                versions.use(node, old=True)
            cluster.start()
            for topic in (TOPIC, WHOLE):
                cluster.create_topic(topic, PARTITIONS, cluster.smallest_segments)
            history = History()
            with ProducerLoad(
                cluster.bootstrap, TOPIC, PARTITIONS, history, value_bytes=200, window=10, config=_CAREFUL
            ) as load:
                load.wait_for_acks(100, _TIMEOUT_S)
                story = Story(cluster, versions, load)
                if back:
                    for broker_id, old in ((1, False), (2, False), (2, True), (1, True)):
                        story.step(broker_id, old=old)
                for broker_id in cluster.nodes:
                    story.step(broker_id, old=False)
                load.settle(_TIMEOUT_S)
            return _judge(cluster, load, history, story.transactions)


def _judge(cluster: PenstockCluster, load: ProducerLoad, history: History, transactions: int) -> list[str]:
    wrong = [f"refused: {failure}" for failure in load.failed]
    violations = history.check(read_everything(cluster.bootstrap, TOPIC, PARTITIONS))
    if violations:
        wrong.append(report(violations))
    logs = read_committed(cluster.bootstrap, WHOLE, PARTITIONS)
    found = sorted(record.value for log in logs.values() for record in log.records)
    if found != sorted(f"{each} {number}" for each in range(transactions) for number in range(_ROWS)):
        wrong.append(f"{len(found)} records of {transactions} transactions of {_ROWS} each")
    print(
        f"{history.acked:,} records and {transactions} transactions acknowledged, {len(wrong)} things wrong", flush=True
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.upgrade", description=__doc__.splitlines()[0])
    parser.add_argument("--old", required=True, metavar="REF", help="the older version, as git knows it")
    parser.add_argument("--one-way", action="store_true", help="do not go back to the older version in between")
    arguments = parser.parse_args()
    wrong = play(arguments.old, back=not arguments.one_way)
    for text in wrong:
        print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
