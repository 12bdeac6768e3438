"""Three brokers of an older version, brought to this one after the other while they are written to.

    python -m tests.cluster.upgrade --old REF [--one-way]

REF is anything git knows: a tag, a branch, a commit. Its sources run with the packages that are installed here. Two of
the brokers go back and come again, before the third one is of this version: then the cluster's feature level is raised,
and who knows less is let in no more (ADR 18). Between two steps the brokers are of both versions, and a leader is
killed. Every acknowledged record must be there once, and every transaction whole; and each message of a queue, which is
worked on all the time, acknowledged or one dead letter. Prints a line for each step; exits with 1 when something is
wrong.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer

from tests.chaos.history import History, Outcome, report
from tests.chaos.load import ProducerLoad, read_everything
from tests.chaos.queue_history import QueueHistory, Rules, Verdict
from tests.chaos.queue_load import QueueLoad, make_queue, read_letters
from tests.chaos.transactional_run import read_committed

from .cluster_process import Node
from .penstock_cluster import PenstockCluster

ROOT = Path(__file__).parents[2]
TOPIC, WHOLE, PARTITIONS = "upgraded", "whole", 4
QUEUE, QUEUE_PARTITIONS = "worked", 2
_KNOWS_QUEUES = "src/penstock/protocols/kafka/verbs/queues.py"
_RULES = Rules(limit=3, visibility_s=3.0, backoff_s=1.0)
_QUEUE_SETTINGS = {"visibility": "3s", "backoff": "fixed:1s", "max-attempts": str(_RULES.limit)}
_MESSAGES_S = 40
"""Messages a second; each step takes some seconds."""
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


class Working:
    """A queue while it is worked on: a producer, and consumers. Use as a context manager."""

    def __init__(self, cluster: PenstockCluster) -> None:
        self._bootstrap = cluster.bootstrap
        make_queue(cluster.bootstrap, QUEUE, _QUEUE_SETTINGS, partitions=QUEUE_PARTITIONS)
        cluster.wait_whole(QUEUE)
        self.sends, self.history = History(), QueueHistory(_RULES)
        self._producer = _Paced(
            cluster.bootstrap, QUEUE, QUEUE_PARTITIONS, self.sends, name="q", window=10, config=_CAREFUL
        )
        self.load = QueueLoad(cluster.bootstrap, QUEUE, QUEUE_PARTITIONS, self.history, seed=1)

    def __enter__(self) -> "Working":
        self._producer.__enter__()
        self.load.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.load.__exit__()
        self._producer.__exit__()

    def finish(self) -> list[str]:
        """What is wrong when all is settled."""
        self._producer.settle(_TIMEOUT_S)
        self.load.drain(_TIMEOUT_S)
        letters = read_letters(self._bootstrap, QUEUE)
        sends = self.sends.sends()
        sent = {
            (each.partition, each.offset): each.value
            for each in sends
            if each.outcome is Outcome.OK and each.offset is not None
        }
        said = [each.verdict for each in self.history.deliveries]
        print(
            f"queue: {len(sent):,} messages sent, {self.history.acked:,} acknowledged, {len(letters):,} dead letters, "
            f"{len(said):,} deliveries, {said.count(Verdict.NACK):,} nacks, {said.count(None):,} leases left to end",
            flush=True,
        )
        wrong = [f"consumer: {text}" for text in self.load.broken]
        found = self.history.check(sent, {each.value: each.partition for each in sends}, letters)
        return wrong + [f"queue: {kind} {text}" for kind, text in found]


class _Paced(ProducerLoad):
    """No faster than consumers are."""

    def _send(self) -> None:
        time.sleep(1 / _MESSAGES_S)
        super()._send()


class Story:
    def __init__(
        self, cluster: PenstockCluster, versions: Versions, load: ProducerLoad, working: Working | None
    ) -> None:
        self._cluster, self._versions, self._load, self._working = cluster, versions, load, working
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
        worked = "" if self._working is None else f", {self._work(self._working, victim):,} messages of the queue"
        print(
            f"{time.monotonic() - self._began:5.1f} s  broker {broker_id} runs the {'old' if old else 'new'} version, "
            f"leader {victim} was killed, {self._load.history.acked:,} acked{worked}",
            flush=True,
        )

    def _work(self, working: Working, victim: int) -> int:
        """The leader of a queue dies, if that was not the one. How many messages were acknowledged by now."""
        leader = self._cluster.leader(QUEUE, 0)
        if leader != victim:
            self._cluster.nodes[leader].kill()
            self._cluster.wait_moved(leader, QUEUE)
            self._cluster.nodes[leader].start()
        self._cluster.wait_whole(QUEUE)
        after = time.monotonic()
        working.load.wait_for_acks(20, range(QUEUE_PARTITIONS), _TIMEOUT_S, after)
        return working.history.acked

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
            with ExitStack() as closing:
                load = closing.enter_context(
                    ProducerLoad(
                        cluster.bootstrap, TOPIC, PARTITIONS, history, value_bytes=200, window=10, config=_CAREFUL
                    )
                )
                load.wait_for_acks(100, _TIMEOUT_S)
                working = None
                if (directory / "old" / _KNOWS_QUEUES).exists():
                    working = closing.enter_context(Working(cluster))
                    working.load.wait_for_acks(20, range(QUEUE_PARTITIONS), _TIMEOUT_S)
                else:
                    print("the old version has no queues", flush=True)
                story = Story(cluster, versions, load, working)
                if back:
                    for broker_id, old in ((1, False), (2, False), (2, True), (1, True)):
                        story.step(broker_id, old=old)
                for broker_id in cluster.nodes:
                    story.step(broker_id, old=False)
                load.settle(_TIMEOUT_S)
                wrong = working.finish() if working is not None else []
            return wrong + _judge(cluster, load, history, story.transactions)


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
