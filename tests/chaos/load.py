"""Load that outlives the broker's deaths: an idempotent producer, a reader, and a read of everything."""

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chaos.history import History, Kind, Outcome, PartitionLog, Record, Send, Violation

# Find the restarted broker at once instead of after the usual back-off.
QUICK: dict[str, Any] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "socket.connection.setup.timeout.ms": 2000,
    "log_level": 0,
}
DOWN = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


def wait_until(condition: Callable[..., bool], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {what}")
        time.sleep(0.005)


def create_topic(bootstrap: str, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUICK})
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    admin.create_topics([wanted])[topic].result(20)


class ProducerLoad:
    """One idempotent acks=all producer in a thread; every value it sends and its fate go to the history."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        history: History,
        *,
        name: str = "p",
        value_bytes: int = 100,
        window: int = 100,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic, self.partitions, self.history, self.name = topic, partitions, history, name
        self._value_bytes = value_bytes
        self._window = window
        self._random = random.Random(name)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 10,
                "message.timeout.ms": 120_000,
                "error_cb": self._on_error,
                **QUICK,
                **(config or {}),
            }
        )
        self._sequence = 0
        self.outstanding = 0
        self.failed: list[KafkaError] = []
        self._paused = threading.Event()
        self._sending = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._producer.purge()
        self._producer.flush(5)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.history.errors.append(Violation(Kind.PRODUCER_FATAL, -1, str(error)))

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                with self._sending:
                    may_send = not self._paused.is_set() and self.outstanding < self._window
                    if may_send:
                        self._send()
                self._producer.poll(0 if may_send else 0.01)
        except (KafkaException, BufferError) as problem:
            # What is outstanding stays unknown; the check goes on with what is known.
            self.history.errors.append(Violation(Kind.PRODUCER_FATAL, -1, str(problem)))
            self._stopped.set()

    def _send(self) -> None:
        value = f"{self.name}-{self._sequence}"
        partition = self._random.randrange(self.partitions)
        self.history.sent(Send(self.name, self._sequence, partition, value))
        self._sequence += 1
        self.outstanding += 1

        def delivered(error: KafkaError | None, message: Message) -> None:
            self.outstanding -= 1
            if error is None:
                offset = message.offset()
                self.history.settled(value, Outcome.OK, offset if offset is not None and offset >= 0 else None)
            elif not self._stopped.is_set():
                # Whether the batch reached the log before the client gave up is not known.
                self.failed.append(error)

        payload = f"{value}:".ljust(self._value_bytes, "x").encode()
        said = self._say(value)
        self._producer.produce(self.topic, payload, partition=partition, on_delivery=delivered, **said)

    def _say(self, value: str) -> Mapping[str, Any]:
        """What else is sent with a value: key, headers, timestamp."""
        return {}

    def settle(self, timeout: float = 30) -> None:
        """Stop sending new values and wait until each one sent has its outcome."""
        self._paused.set()
        with self._sending:
            pass  # one that has begun counts
        wait_until(
            lambda: self.outstanding == 0 or self._stopped.is_set(),
            timeout,
            f"{self.outstanding} sends of {self.name} settled",
        )

    def resume(self) -> None:
        self._paused.clear()

    def wait_for_acks(self, number: int, timeout: float = 30) -> None:
        target = self.history.acked + number
        wait_until(
            lambda: self.history.acked >= target or self._stopped.is_set(),
            timeout,
            f"{number} more acks of {self.name}",
        )


class ReaderLoad:
    """One consumer in a thread, reading every partition from its start and never told to reset."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, history: History, *, name: str = "r") -> None:
        self.history, self.name = history, name
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"chaos-{name}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 20,
                **QUICK,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"read-{name}", daemon=True)

    def __enter__(self) -> "ReaderLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        seen = self.history.seen[self.name]
        while not self._stopped.is_set():
            for message in self._consumer.consume(500, 0.05):
                error = message.error()
                if error is None:
                    seen.append(_record(message))
                elif error.code() not in DOWN:
                    text = f"{self.name}: {error.name()} {error.str()}"
                    self.history.errors.append(Violation(Kind.READ_ERROR, message.partition() or -1, text))


def _record(message: Message) -> Record:
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    return Record(partition, offset, (value or b"").partition(b":")[0].decode())


def read_everything(bootstrap: str, topic: str, partitions: int, timeout: float = 60) -> dict[int, PartitionLog]:
    """Each partition from its first to its last offset at the time of the call.

    Retention may remove the start of a partition while it is read; then the reading begins again.
    """
    deadline = time.monotonic() + timeout
    while True:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "chaos-everything",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 50,
                **QUICK,
            }
        )
        try:
            logs = _read_once(consumer, topic, partitions, deadline)
        finally:
            consumer.close()
        if logs is not None:
            return logs


def _read_once(consumer: Consumer, topic: str, partitions: int, deadline: float) -> dict[int, PartitionLog] | None:
    bounds: dict[int, tuple[int, int]] = {}
    for index in range(partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=20)
        bounds[index] = (low, high)
    records: dict[int, list[Record]] = {index: [] for index in range(partitions)}
    waiting = {index for index, (low, high) in bounds.items() if low < high}
    consumer.assign([TopicPartition(topic, index, bounds[index][0]) for index in waiting])
    while waiting:
        if time.monotonic() > deadline:
            missing = {index: (bounds[index], len(records[index])) for index in waiting}
            raise TimeoutError(f"{topic} could not be read to its end; (start, end), read so far: {missing}")
        for message in consumer.consume(5000, 0.1):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    return None
                if error.code() not in DOWN:
                    raise KafkaException(error)
                continue
            record = _record(message)
            if record.offset < bounds[record.partition][1]:
                records[record.partition].append(record)
            if record.offset >= bounds[record.partition][1] - 1:
                waiting.discard(record.partition)
    return {index: PartitionLog(*bounds[index], records[index]) for index in range(partitions)}
