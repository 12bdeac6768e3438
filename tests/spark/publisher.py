"""Writes records of known content with confluent-kafka: compressed, in transactions kept, aborted or left open."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.records import Record

DEADLINE_S = 30.0


class Publisher:
    """One broker's writer. Every call waits until the broker has all of it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producers: dict[str, Producer] = {}
        self._open: list[Producer] = []

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        self._admin.create_topics([new], operation_timeout=DEADLINE_S)[name].result(DEADLINE_S)
        # Kafka answers before it leads the new partitions.
        deadline = time.monotonic() + DEADLINE_S
        while True:
            found = self._admin.list_topics(name, timeout=DEADLINE_S).topics[name]
            leaders = [each.leader for each in found.partitions.values()]
            if len(leaders) == partitions and min(leaders) >= 0:
                return
            assert time.monotonic() < deadline, f"{name}: {found.error}, leaders {leaders}"

    def send(self, topic: str, records: Iterable[Record | bytes], *, partition: int = 0, codec: str = "none") -> int:
        """Write records to a partition, in order; returns how many. Plain bytes are values without a key."""
        if codec not in self._producers:
            self._producers[codec] = self._make(codec=codec)
        return _write(self._producers[codec], topic, partition, records)

    def fill(self, topic: str, count: int, *, partitions: int = 1, size: int = 100, codec: str = "none") -> int:
        """Write `count` records to each partition: key `k-OFFSET`, value `PARTITION-OFFSET` padded with dots to `size`.

        With `value_at` a test says what it expects, without keeping what was sent.
        """
        for partition in range(partitions):
            records = (Record(value_at(partition, at, size), b"k-%d" % at) for at in range(count))
            self.send(topic, records, partition=partition, codec=codec)
        return count * partitions

    @contextmanager
    def transaction(self, end: str = "commit", *, codec: str = "none") -> Iterator[Callable[..., int]]:
        """Hands out a `send(topic, records, partition=0)`; ends it by `commit` or `abort`, or leaves it `open`.

        Records are with the broker when the block ends, whichever way the transaction does. One left open ends when the
        publisher is closed.
        """
        producer = self._make(
            codec=codec, **{"transactional.id": f"publisher-{uuid.uuid4().hex}", "transaction.timeout.ms": 900_000}
        )
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()

        def send(topic: str, records: Iterable[Record | bytes], partition: int = 0) -> int:
            return _write(producer, topic, partition, records)

        yield send
        if end == "commit":
            producer.commit_transaction(DEADLINE_S)
        elif end == "abort":
            producer.abort_transaction(DEADLINE_S)
        else:
            assert end == "open", f"{end}: commit, abort or open"
            self._open.append(producer)

    def close(self) -> None:
        for producer in self._open:
            producer.abort_transaction(DEADLINE_S)

    def _make(self, *, codec: str, **more: Any) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.codec": codec,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "queue.buffering.max.messages": 10_000_000,
                "message.max.bytes": 8 << 20,
                **more,
            }
        )


def value_at(partition: int, offset: int, size: int = 100) -> bytes:
    """The value that `Publisher.fill` writes there."""
    return (b"%d-%d" % (partition, offset)).ljust(size, b".")


def _write(producer: Producer, topic: str, partition: int, records: Iterable[Record | bytes]) -> int:
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            errors.append(error)

    count = 0
    for each in records:
        record = Record(each) if isinstance(each, bytes) else each
        more: dict[str, Any] = {"headers": list(record.headers)} if record.headers else {}
        if record.timestamp_ms is not None:
            more["timestamp"] = record.timestamp_ms
        producer.produce(topic, record.value, record.key, partition, on_delivery=delivered, **more)
        count += 1
    left = producer.flush(DEADLINE_S)
    assert not errors, f"{topic}: {errors[0]}"
    assert left == 0, f"{topic}: {left} records were not delivered in {DEADLINE_S:.0f} s"
    return count
