"""confluent-kafka: the current librdkafka."""

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.conformance.records import Received, Record

from .client import DEADLINE_S, Client, ClientError

T = TypeVar("T")
QUIET = logging.getLogger("conformance.confluent")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


def _raise(error: KafkaError) -> None:
    raise ClientError(error.code(), error.str())


class ConfluentClient(Client):
    name = "confluent"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        # Kept for good: a future of a collected AdminClient fails instead of waiting.
        self._admin = AdminClient({"bootstrap.servers": bootstrap}, logger=QUIET)

    def produce(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        max_bytes: int = 8 << 20,
    ) -> list[int]:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "compression.codec": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "message.max.bytes": max_bytes,
                "linger.ms": 5,
                "message.timeout.ms": int(DEADLINE_S * 1000),
            },
            logger=QUIET,
        )
        offsets: dict[int, int] = {}
        errors: list[KafkaError] = []

        for position, record in enumerate(records):

            def delivered(error: KafkaError | None, message: Message, position: int = position) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    offsets[position] = message.offset()

            extra: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            producer.produce(
                topic,
                record.value,
                record.key,
                partition,
                on_delivery=delivered,
                headers=list(record.headers),
                **extra,
            )
        left = producer.flush(DEADLINE_S)
        if errors:
            _raise(errors[0])
        if left:
            raise TimeoutError(f"{left} records were not delivered")
        return [offsets[position] for position in range(len(records))]

    def read(self, topic: str, partition: int, offset: int, count: int, *, reset: str = "none") -> list[Received]:
        consumer = self._consumer("error" if reset == "none" else reset)
        received: list[Received] = []
        deadline = time.monotonic() + DEADLINE_S
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            while len(received) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(received)} of {count} records came")
                for message in consumer.consume(count - len(received), 0.2):
                    error = message.error()
                    if error is not None:
                        if error.code() == KafkaError._AUTO_OFFSET_RESET:
                            # librdkafka wraps the broker's code in one of its own and keeps only the text.
                            assert "Offset out of range" in error.str(), error.str()
                            raise ClientError(KafkaError.OFFSET_OUT_OF_RANGE, error.str())
                        _raise(error)
                    received.append(_received(message))
        finally:
            consumer.close()
        return received

    def earliest(self, topic: str, partition: int) -> int:
        return self._watermarks(topic, partition)[0]

    def latest(self, topic: str, partition: int) -> int:
        return self._watermarks(topic, partition)[1]

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        consumer = self._consumer("error")
        try:
            found = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=DEADLINE_S)[0]
        finally:
            consumer.close()
        if found.error is not None:
            _raise(found.error)
        return int(found.offset)

    def max_timestamp(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        futures = self._admin.list_offsets({place: OffsetSpec.max_timestamp()}, request_timeout=DEADLINE_S)
        found = settle(futures[place])
        return found.offset, found.timestamp

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        settle(self._admin.create_topics([new], operation_timeout=DEADLINE_S)[topic])

    def delete_topic(self, topic: str) -> None:
        settle(self._admin.delete_topics([topic], operation_timeout=DEADLINE_S)[topic])

    def topics(self) -> dict[str, int]:
        found = self._admin.list_topics(timeout=DEADLINE_S)
        return {name: len(each.partitions) for name, each in found.topics.items()}

    def _consumer(self, reset: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "never-joined",  # librdkafka demands one; assign() never uses it
                "enable.auto.commit": False,
                "auto.offset.reset": reset,
                "allow.auto.create.topics": False,
                "check.crcs": True,
                # How long an unknown topic may be one that is just being made.
                "topic.metadata.propagation.max.ms": 1000,
            },
            logger=QUIET,
        )

    def _watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self._consumer("error")
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)
        except KafkaException as failure:
            raise ClientError(failure.args[0].code(), str(failure)) from failure
        finally:
            consumer.close()


def settle(future: "Future[T]") -> T:
    """The future's result. Raises `ClientError`."""
    try:
        return future.result(timeout=DEADLINE_S)
    except KafkaException as failure:
        raise ClientError(failure.args[0].code(), str(failure)) from failure


def _received(message: Message) -> Received:
    kind, timestamp_ms = message.timestamp()
    headers: Any = message.headers() or ()
    return Received(
        message.offset(),
        timestamp_ms,
        message.value(),
        message.key(),
        tuple(headers),
        kind - 1,  # librdkafka counts from "not available"
    )
