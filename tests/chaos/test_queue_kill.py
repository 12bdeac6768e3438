"""kill -9 while a queue is worked on: each message ends acknowledged, or as one dead letter, and never as both."""

import os
import random
import threading
import time
from collections import Counter
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.cli.connection import Server
from penstock.cli.failure import CommandError
from penstock.cli.verbs import Verbs
from tests.chaos.broker_process import BrokerProcess
from tests.chaos.load import wait_until

MESSAGES = int(os.environ.get("QUEUE_MESSAGES", "4000"))
KILLS = 4
SEED = int(os.environ.get("CHAOS_SEED", "1"))
WORKERS = 3
LIMIT = 3
_DEADLINE_S = 240.0
_VERDICTS = (("ack", 0.7), ("nack", 0.15), ("release", 0.05), ("reject", 0.05))
"""How likely each is; otherwise a lease is left to end."""


class Worker(threading.Thread):
    """Leases and settles until it is told to end; whatever fails is tried again.

    Attributes:
        acked: offsets whose acknowledgement was confirmed; `may_be` has those nobody knows of.
        again: what came although its acknowledgement was confirmed.
    """

    def __init__(self, bootstrap: str, name: str, is_over: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._server = Server(bootstrap, "a test", {}, 5.0)
        self._coin = random.Random(f"{SEED}-{name}")
        self._is_over = is_over
        self.acked: set[int] = set()
        self.may_be: set[int] = set()
        self.again: list[int] = []

    def run(self) -> None:
        while not self._is_over.is_set():
            try:
                with Verbs(self._server) as verbs:
                    while not self._is_over.is_set():
                        self._work(verbs)
            except CommandError:  # it was killed
                time.sleep(0.05)

    def _work(self, verbs: Verbs) -> None:
        told = verbs.ask("lease", "queue.lease", most=50, wait_ms=200, consumer=self.name, queue="jobs")
        rows, offsets = [], {}
        for each in told["messages"]:
            if each["offset"] in self.acked:
                self.again.append(each["offset"])
            verdict = self._verdict()
            if verdict is not None:
                rows.append({"receipt": each["receipt"], "verdict": verdict})
                offsets[each["receipt"]] = each["offset"], verdict
        if not rows:
            return
        acks = {offset for offset, verdict in offsets.values() if verdict == "ack"}
        self.may_be |= acks
        for row in verbs.ask("settle", "queue.settle", receipts=rows, queue="jobs")["results"]:
            offset, verdict = offsets[row["receipt"]]
            if verdict == "ack" and row["error"] is None:
                self.acked.add(offset)

    def _verdict(self) -> str | None:
        chance = self._coin.random()
        for verdict, share in _VERDICTS:
            if chance < share:
                return verdict
            chance -= share
        return None


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_message_ends_in_one_place(broker: BrokerProcess) -> None:
    broker.start()
    with Verbs(Server(broker.bootstrap, "a test", {}, 10.0)) as verbs:
        settings = {"visibility": "1s", "backoff": "fixed:100ms", "max-attempts": str(LIMIT)}
        verbs.ask("create", "queue.create", partitions=1, settings=settings, queue="jobs")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for number in range(MESSAGES):
        producer.produce("jobs", b"%d" % number)
    assert producer.flush(60) == 0
    is_over = threading.Event()
    workers = [Worker(broker.bootstrap, f"w{number}", is_over) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    acked_at_last = 0
    for _ in range(KILLS):
        wait_until(lambda: len(_acked(workers)) > acked_at_last + MESSAGES // 20, 60, "messages are acknowledged")  # noqa: B023
        acked_at_last = len(_acked(workers))
        broker.kill()
        broker.start()
    wait_until(lambda: _open(broker) == 0, _DEADLINE_S, "every message is settled")
    is_over.set()
    for worker in workers:
        worker.join(30)
    assert [offset for worker in workers for offset in worker.again] == []
    letters = _letters(broker)
    acked, may_be = _acked(workers), set().union(*(worker.may_be for worker in workers))
    assert {offset: times for offset, times in letters.items() if times > 1} == {}
    assert acked & set(letters) == set(), "acknowledged, and a dead letter"
    assert set(range(MESSAGES)) - set(letters) - may_be == set(), "neither acknowledged nor a dead letter"
    assert len(letters) > MESSAGES // 50


def _acked(workers: list[Worker]) -> set[int]:
    return set[int]().union(*(worker.acked.copy() for worker in workers))


def _open(broker: BrokerProcess) -> int:
    try:
        with Verbs(Server(broker.bootstrap, "a test", {}, 10.0)) as verbs:
            told: Any = verbs.ask("describe", "queue.describe", queue="jobs")
    except CommandError:
        return -1
    return sum(row[name] for row in told["partitions"] for name in ("ready", "leased", "delayed", "dying"))


def _letters(broker: BrokerProcess) -> Counter[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "letters", "enable.auto.commit": False})
    try:
        place = TopicPartition("dlq.jobs", 0)
        _, end = consumer.get_watermark_offsets(place, 30)
        consumer.assign([TopicPartition("dlq.jobs", 0, 0)])
        found: Counter[int] = Counter()
        deadline = time.monotonic() + 60
        while consumer.position([place])[0].offset < end:
            assert time.monotonic() < deadline
            for each in consumer.consume(500, 1.0):
                assert each.error() is None, each.error()
                found[int(dict(each.headers() or [])["penstock-sys-offset"])] += 1
        return found
    finally:
        consumer.close()
