"""kafka-python 3: a pure Python client, idempotent by default."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.codec import has_snappy
from kafka.errors import KafkaError, OffsetOutOfRangeError

from tests.conformance.records import CODECS, Received, Record

from .client import DEADLINE_S, NO_MATCH, Client, ClientError

_TIMEOUT_MS = int(DEADLINE_S * 1000)


def _client_error(failure: KafkaError) -> ClientError:
    return ClientError(getattr(failure, "errno", NO_MATCH), repr(failure))


class KafkaPythonClient(Client):
    name = "kafka-python"
    null_headers = False
    # Its snappy comes from a package of its own that may be missing.
    codecs = tuple(codec for codec in CODECS if codec != "snappy" or has_snappy())

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
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=max_bytes,
            linger_ms=5,
            max_block_ms=_TIMEOUT_MS,
            request_timeout_ms=_TIMEOUT_MS // 2,
            delivery_timeout_ms=_TIMEOUT_MS,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    each.value,
                    each.key,
                    list(each.headers),
                    partition=partition,
                    timestamp_ms=each.timestamp_ms,
                )
                for each in records
            ]
            producer.flush(DEADLINE_S)
            return [future.get(DEADLINE_S).offset for future in futures]
        except KafkaError as failure:
            raise _client_error(failure) from failure
        finally:
            producer.close(DEADLINE_S)

    def read(self, topic: str, partition: int, offset: int, count: int, *, reset: str = "none") -> list[Received]:
        consumer = self._consumer(reset)
        place = TopicPartition(topic, partition)
        received: list[Received] = []
        deadline = time.monotonic() + DEADLINE_S
        try:
            consumer.assign([place])
            consumer.seek(place, offset)
            while len(received) < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(received)} of {count} records came")
                polled = consumer.poll(200, max_records=count - len(received))
                received += [_received(each) for each in polled.get(place, [])]
        except OffsetOutOfRangeError as failure:
            raise ClientError(OffsetOutOfRangeError.errno, repr(failure)) from failure
        except KafkaError as failure:
            raise _client_error(failure) from failure
        finally:
            consumer.close()
        return received

    def earliest(self, topic: str, partition: int) -> int:
        return self._ask(lambda consumer, place: consumer.beginning_offsets([place])[place], topic, partition)

    def latest(self, topic: str, partition: int) -> int:
        return self._ask(lambda consumer, place: consumer.end_offsets([place])[place], topic, partition)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        def ask(consumer: KafkaConsumer, place: TopicPartition) -> int:
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
            return NO_MATCH if found is None else found.offset

        return self._ask(ask, topic, partition)

    def max_timestamp(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        admin = self._admin()
        try:
            found = admin.list_partition_offsets({place: OffsetSpec.MAX_TIMESTAMP})[place]
            return found.offset, found.timestamp
        except KafkaError as failure:
            raise _client_error(failure) from failure
        finally:
            admin.close()

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        options = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config or {})}
        admin = self._admin()
        try:
            admin.create_topics({topic: options}, timeout_ms=_TIMEOUT_MS)
        except KafkaError as failure:
            raise _client_error(failure) from failure
        finally:
            admin.close()

    def delete_topic(self, topic: str) -> None:
        admin = self._admin()
        try:
            admin.delete_topics([topic], timeout_ms=_TIMEOUT_MS)
        except KafkaError as failure:
            raise _client_error(failure) from failure
        finally:
            admin.close()

    def topics(self) -> dict[str, int]:
        admin = self._admin()
        try:
            return {each["name"]: len(each["partitions"]) for each in admin.describe_topics()}
        finally:
            admin.close()

    def _admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=_TIMEOUT_MS)

    def _consumer(self, reset: str) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset=reset,
            allow_auto_create_topics=False,
        )

    def _ask(self, question: Callable[[KafkaConsumer, TopicPartition], int], topic: str, partition: int) -> int:
        consumer = self._consumer("none")
        try:
            return question(consumer, TopicPartition(topic, partition))
        except KafkaError as failure:
            raise _client_error(failure) from failure
        finally:
            consumer.close()


def _received(record: Any) -> Received:
    return Received(
        record.offset,
        record.timestamp,
        record.value,
        record.key,
        tuple(record.headers),
        record.timestamp_type,
    )
