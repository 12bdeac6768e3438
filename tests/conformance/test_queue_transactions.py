"""Queues whose messages are acknowledged in transactions, with the transactional producers of real clients."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.peers.broker import Broker

from .clients.confluent_transactions import ConfluentProducer
from .clients.groups import READ_COMMITTED, wait_until
from .clients.java_transactions import JavaProducer
from .clients.members_groups import Members
from .clients.producers_transactions import Producers
from .clients.transactions import Aborted
from .conftest import PEER, Judges, fresh_name

pytestmark = pytest.mark.skipif(PEER == "kafka", reason="Kafka's queues have no receipts")
DEADLINE_S = 60
Producer = ConfluentProducer | JavaProducer


class Queue:
    """One of a partition, by the command line."""

    def __init__(self, broker: Broker) -> None:
        self._server = broker.bootstrap
        self.name = fresh_name("jobs")
        self.place = self.name, 0
        self._run("create", self.name, "--partitions", "1", "--backoff", "none")

    def _run(self, verb: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "penstock.cli.main", "queue", verb, *arguments, "--server", self._server]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        return done.stdout

    def send(self, *values: str) -> None:
        self._run("send", self.name, *values)

    def receive(self, most: int) -> list[dict[str, Any]]:
        told = self._run("receive", self.name, "--max", str(most), "-o", "json")
        return [json.loads(line) for line in told.splitlines()]

    def release(self, receipt: str) -> None:
        self._run("release", self.name, receipt)

    def counts(self) -> tuple[int, int, int]:
        """What is ready, what is leased, and how much of that is in transactions."""
        (told,) = json.loads(self._run("describe", self.name, "-o", "json"))
        return told["ready"], told["leased"], told["in_transactions"]


@pytest.fixture(params=["confluent", "java"])
def producer(broker: Broker, judges: Judges, request: pytest.FixtureRequest) -> Iterator[Producer]:
    """Of both versions of transactions."""
    with Producers(request.param, broker.bootstrap, judges) as made:
        opened = made.open(fresh_name("transformer"))
        assert isinstance(opened, ConfluentProducer | JavaProducer)
        yield opened


def test_consume_transform_produce(broker: Broker, judges: Judges, members: Members, producer: Producer) -> None:
    queue, made = Queue(broker), fresh_name("made")
    judges["confluent"].create_topic(made, 1, {})
    queue.send("a", "b", "c", "d", "e")
    taken = queue.receive(5)
    receipts = [each["receipt"] for each in taken]

    producer.begin()
    producer.send(made, 0, b"A", b"B", b"C")
    producer.send_receipts({queue.place: f"{receipts[0]}, {receipts[1]}+1"}, queue.name)
    assert queue.counts() == (0, 5, 3)
    producer.commit()
    wait_until(lambda: queue.counts() == (0, 2, 0), lambda: str(queue.counts()))

    producer.begin()
    producer.send(made, 0, b"never")
    producer.send_receipts({queue.place: receipts[3]}, queue.name)
    producer.send_receipts({queue.place: receipts[4]}, queue.name)
    producer.abort()
    wait_until(lambda: queue.counts() == (0, 2, 0), lambda: str(queue.counts()))
    queue.release(receipts[3])  # it is in its lease again
    (again,) = queue.receive(1)
    assert (again["value"], again["deliveries"], again["attempts"]) == ("d", 2, 0)

    for wrong in (receipts[3], "", "nonsense", f"{again['receipt']}+7", receipts[0]):
        producer.begin()
        producer.send(made, 0, b"never")
        with pytest.raises(Aborted):
            producer.send_receipts({queue.place: wrong}, queue.name)
        producer.abort()

    producer.begin()
    producer.send(made, 0, b"D", b"E")
    producer.send_receipts({queue.place: f"{again['receipt']},{receipts[4]}"}, queue.name)
    producer.commit()
    wait_until(lambda: queue.counts() == (0, 0, 0), lambda: str(queue.counts()))

    reader = members.join("confluent-range", fresh_name("r"), places=((made, 0),), isolation=READ_COMMITTED)
    wait_until(lambda: len(reader.values()) == 5, lambda: f"only {reader.values()}")
    assert reader.values() == [b"A", b"B", b"C", b"D", b"E"]
