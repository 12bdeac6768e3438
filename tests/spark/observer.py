"""Reads whole topics with confluent-kafka: all there is, or what a reader of committed records sees."""

import time

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.conformance.records import Received

DEADLINE_S = 60.0


class Observer:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def read(self, topic: str, *, committed: bool = True, settled: bool = True) -> list[list[Received]]:
        """Every record of every partition, in order.

        Args:
            committed: leave out what is not.
            settled: wait first until no transaction holds readers up; else read to where one does.
        """
        if committed and settled:
            self.wait_until_free(topic)
        consumer = self._consumer(committed)
        deadline = time.monotonic() + DEADLINE_S
        try:
            partitions = len(consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
            found: list[list[Received]] = [[] for _ in range(partitions)]
            left = set(range(partitions))
            consumer.assign([TopicPartition(topic, number, 0) for number in left])
            while left:
                assert time.monotonic() < deadline, f"{topic}: partitions {left} were not read to their ends"
                for message in consumer.consume(5000, 0.1):
                    error, number = message.error(), message.partition() or 0
                    if error is None:
                        found[number].append(_received(message))
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        left.discard(number)
        finally:
            consumer.close()
        return found

    def values(self, topic: str, *, settled: bool = True) -> list[bytes]:
        """Those committed, of all partitions, sorted."""
        return sorted(each.value or b"" for part in self.read(topic, settled=settled) for each in part)

    def wait_until_free(self, topic: str) -> None:
        """Until no transaction holds readers up: Kafka answers the end of one before they hear of it."""
        deadline = time.monotonic() + DEADLINE_S
        while self.ends(topic, committed=True) != self.ends(topic):
            assert time.monotonic() < deadline, f"{topic}: a transaction stays open"

    def ends(self, topic: str, *, committed: bool = False) -> list[int]:
        """Each partition's end; of committed records where the first open transaction begins."""
        consumer = self._consumer(committed)
        try:
            partitions = len(consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
            places = [TopicPartition(topic, number) for number in range(partitions)]
            return [consumer.get_watermark_offsets(place, timeout=DEADLINE_S)[1] for place in places]
        finally:
            consumer.close()

    def _consumer(self, committed: bool) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "never-joined",  # librdkafka demands one; assign() never uses it
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 50,
            }
        )


def _received(message: object) -> Received:
    kind, timestamp_ms = message.timestamp()  # type: ignore[attr-defined]
    return Received(
        message.offset(),  # type: ignore[attr-defined]
        timestamp_ms,
        message.value(),  # type: ignore[attr-defined]
        message.key(),  # type: ignore[attr-defined]
        tuple(message.headers() or ()),  # type: ignore[attr-defined]
        kind - 1,  # librdkafka counts from "not available"
    )
