"""aiokafka: asyncio, and the oldest request versions any living client sends."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from tests.conformance.records import Received, Record

from .client import DEADLINE_S, NO_MATCH, Client, ClientError

T = TypeVar("T")


def run(work: Coroutine[None, None, T]) -> T:
    """The work's result, within the deadline. Raises `ClientError`."""

    async def bounded() -> T:
        return await asyncio.wait_for(work, DEADLINE_S)

    try:
        return asyncio.run(bounded())
    except OffsetOutOfRangeError as failure:
        raise ClientError(OffsetOutOfRangeError.errno, repr(failure)) from failure
    except KafkaError as failure:
        raise ClientError(getattr(failure, "errno", NO_MATCH), repr(failure)) from failure


class AioClient(Client):
    name = "aiokafka"
    has_max_timestamp = False

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
        async def work() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if codec == "none" else codec,
                acks=acks if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                max_request_size=max_bytes,
                linger_ms=5,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        each.value,
                        each.key,
                        partition,
                        each.timestamp_ms,
                        list(each.headers),
                    )
                    for each in records
                ]
                acknowledged = [await future for future in futures]
            finally:
                await producer.stop()
            # With acks=0 there is nothing to report.
            return [NO_MATCH if each is None else each.offset for each in acknowledged]

        return run(work())

    def read(self, topic: str, partition: int, offset: int, count: int, *, reset: str = "none") -> list[Received]:
        async def work() -> list[Received]:
            place = TopicPartition(topic, partition)
            received: list[Received] = []
            async with self._consumer(reset) as consumer:
                consumer.assign([place])
                consumer.seek(place, offset)
                while len(received) < count:
                    polled = await consumer.getmany(place, timeout_ms=200, max_records=count - len(received))
                    received += [_received(each) for each in polled.get(place, [])]
            return received

        return run(work())

    def earliest(self, topic: str, partition: int) -> int:
        async def work() -> int:
            place = TopicPartition(topic, partition)
            async with self._consumer("none") as consumer:
                return (await consumer.beginning_offsets([place]))[place]

        return run(work())

    def latest(self, topic: str, partition: int) -> int:
        async def work() -> int:
            place = TopicPartition(topic, partition)
            async with self._consumer("none") as consumer:
                return (await consumer.end_offsets([place]))[place]

        return run(work())

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int:
        async def work() -> int:
            place = TopicPartition(topic, partition)
            async with self._consumer("none") as consumer:
                found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return NO_MATCH if found is None else found.offset

        return run(work())

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        async def work() -> None:
            new = NewTopic(topic, partitions, 1, topic_configs=dict(config or {}))
            async with self._admin() as admin:
                answer = await admin.create_topics([new])
            _check(answer.topic_errors[0][1], topic)

        run(work())

    def delete_topic(self, topic: str) -> None:
        async def work() -> None:
            async with self._admin() as admin:
                answer = await admin.delete_topics([topic])
            _check(answer.topic_error_codes[0][1], topic)

        run(work())

    def topics(self) -> dict[str, int]:
        async def work() -> dict[str, int]:
            async with self._admin() as admin:
                return {each["topic"]: len(each["partitions"]) for each in await admin.describe_topics()}

        return run(work())

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()

    @asynccontextmanager
    async def _consumer(self, reset: str) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset=reset,
        )
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()


def _check(code: int, topic: str) -> None:
    if code:
        raise ClientError(code, topic)


def _received(record: Any) -> Received:
    return Received(
        record.offset,
        record.timestamp,
        record.value,
        record.key,
        tuple(record.headers),
        record.timestamp_type,
    )
