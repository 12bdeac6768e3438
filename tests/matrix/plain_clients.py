"""Clients as somebody writes them who has read the first page: addresses, a topic, a group, and idempotence.

A producer of librdkafka's and a consumer that is given its partitions by its group and commits by itself. Whatever
error reaches either of them is told: an application would have to do something about it.
"""

import threading
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from tests.chaos.history import History, Outcome, PartitionLog, Send
from tests.chaos.load import wait_until

from .judge import SENDS_FAILED, Finding, judge_history

RATE = 100
_POLL_S = 0.01
_LEAVE_S = 30.0


class PlainClients:
    """Use as a context manager."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic, self._partitions = topic, partitions
        self.history = History()
        self.errors: list[Finding] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "error_cb": self._on_fatal, "log_level": 0}
        )
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0}
        )
        self._consumed: set[str] = set()
        self._stopped, self._sent_all = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=run, name=run.__name__, daemon=True) for run in (self._produce, self._consume)
        ]

    def __enter__(self) -> "PlainClients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sent_all.set()
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._producer.purge()
        self._producer.flush(_LEAVE_S)
        self._consumer.close()

    def warm_up(self, acks: int, timeout_s: float = 60.0) -> None:
        wait_until(lambda: len(self._consumed) >= acks, timeout_s, f"{acks} records came through {self.topic}")

    def finish(self, timeout_s: float) -> list[Finding]:
        """No new sends; every one that was acked has been consumed."""
        self._sent_all.set()
        acked: set[str] = set()

        def is_through() -> bool:
            acked.update(send.value for send in self.history.sends() if send.outcome is Outcome.OK)
            return acked <= self._consumed and len(self._producer) == 0

        try:
            wait_until(is_through, timeout_s, "each acked record was consumed")
        except TimeoutError as late:
            return [*self.errors, Finding("unconsumed", f"{late}; {len(acked - self._consumed)} are missing")]
        return self.errors

    def judge(self, logs: Mapping[int, PartitionLog]) -> list[Finding]:
        return [Finding(kind, f"plain clients: {text}") for kind, text in judge_history(self.history, logs)]

    def _produce(self) -> None:
        number, due = 0, time.monotonic()
        while not self._sent_all.is_set():
            value, partition = f"d-{number}", number % self._partitions
            self.history.sent(Send("d", number, partition, value))
            number += 1
            self._send(value, partition)
            due += 1 / RATE
            while (left := due - time.monotonic()) > 0 and not self._sent_all.is_set():
                self._producer.poll(min(left, _POLL_S))
        while not self._stopped.is_set():
            self._producer.poll(_POLL_S)

    def _send(self, value: str, partition: int) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.history.settled(value, Outcome.OK, message.offset())
            elif not self._stopped.is_set():
                self.errors.append(Finding(SENDS_FAILED, f"{value}: {error}"))

        try:
            self._producer.produce(self.topic, f"{value}:".encode(), partition=partition, on_delivery=delivered)
        except (BufferError, KafkaException) as problem:
            self.errors.append(Finding(SENDS_FAILED, f"{value}: {problem}"))

    def _consume(self) -> None:
        self._consumer.subscribe([self.topic])
        while not self._stopped.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._consumed.add((message.value() or b"").partition(b":")[0].decode())
            elif not self._stopped.is_set():
                self.errors.append(Finding("consume_failed", str(error)))

    def _on_fatal(self, error: KafkaError) -> None:
        """Others are the client's own business, as it says: it tries again."""
        if error.fatal():
            self.errors.append(Finding(SENDS_FAILED, str(error)))
