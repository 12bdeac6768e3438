"""A queue on three brokers is transformed in transactions while one of them is killed: each message once."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.cluster.penstock_cluster import PenstockCluster

PARTITIONS = 6
MESSAGES = 120
QUEUE, MADE = "jobs", "made"
_AT_ONCE = 30
_DEADLINE_S = 120.0


class Queue:
    """By the command line."""

    def __init__(self, cluster: PenstockCluster) -> None:
        self._cluster = cluster

    def run(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock.cli.main", "queue", verb, QUEUE, *arguments]
        return subprocess.run(
            [*command, "--server", self._cluster.bootstrap], capture_output=True, text=True, timeout=60, check=False
        )

    def receive(self) -> list[dict[str, Any]]:
        """Nothing while a leader is missing: the command is run again."""
        told = self.run("receive", "--max", str(_AT_ONCE), "-o", "json")
        return [json.loads(line) for line in told.stdout.splitlines()]

    def left(self) -> int:
        told = self.run("describe", "-o", "json")
        if told.returncode:
            return MESSAGES
        (found,) = json.loads(told.stdout)
        return MESSAGES if found["silent"] else found["ready"] + found["leased"] + found["delayed"]


def transform(producer: Producer, consumer: Consumer, taken: list[dict[str, Any]]) -> bool:
    """Whether it is committed."""
    receipts: dict[int, list[str]] = {}
    producer.begin_transaction()
    for message in taken:
        producer.produce(MADE, message["value"].encode())
        receipts.setdefault(message["partition"], []).append(message["receipt"])
    offsets = [TopicPartition(QUEUE, number, 0, ",".join(each)) for number, each in receipts.items()]
    try:
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        assert error.txn_requires_abort(), error
        producer.abort_transaction(30)
        return False
    return True


def read(cluster: PenstockCluster, least: int) -> Counter[bytes]:
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    reader.subscribe([MADE])
    found: Counter[bytes] = Counter()
    deadline, quiet_since = time.monotonic() + _DEADLINE_S, time.monotonic()
    while sum(found.values()) < least or time.monotonic() - quiet_since < 2:
        assert time.monotonic() < deadline, f"{len(found)} of {least}"
        message = reader.poll(0.5)
        if message is not None and message.error() is None:
            found[message.value() or b""] += 1
            quiet_since = time.monotonic()
    reader.close()
    return found


def test_each_message_is_transformed_once_though_a_leader_is_killed(tmp_path: Path) -> None:
    with PenstockCluster(tmp_path, members=1) as cluster:
        cluster.start()
        queue = Queue(cluster)
        assert (
            queue.run("create", "--partitions", str(PARTITIONS), "--visibility", "5s", "--backoff", "none").returncode
            == 0
        )
        cluster.create_topic(MADE, 2)
        values = [f"{number}" for number in range(MESSAGES)]
        assert queue.run("send", *values).returncode == 0
        server = {"bootstrap.servers": cluster.bootstrap}
        producer = Producer({**server, "transactional.id": "transformer", "transaction.timeout.ms": 20_000})
        consumer = Consumer({**server, "group.id": QUEUE})
        producer.init_transactions(60)
        victim, rounds = cluster.nodes[2], 0
        deadline = time.monotonic() + _DEADLINE_S
        while (taken := queue.receive()) or queue.left():
            assert time.monotonic() < deadline, f"{queue.left()} are left"
            rounds += 1
            if rounds == 2:
                victim.kill()
            if taken:
                transform(producer, consumer, taken)
        victim.start()
        consumer.close()
        found = read(cluster, MESSAGES)
    assert found == Counter(value.encode() for value in values)
    assert rounds > 2
