"""aiokafka's transactional producers: version 0 of every request of a transaction."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from .aio import run
from .client import DEADLINE_S, NO_MATCH, ClientError
from .groups import Member, Place
from .transactions import TIMEOUT_MS, Fenced, TransactionalProducer, Transactions


class AioProducer(TransactionalProducer):
    """Its tasks go on between the verbs, so its event loop runs in a thread of its own."""

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def make() -> AIOKafkaProducer:
            return AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                request_timeout_ms=TIMEOUT_MS,
            )

        self._producer = self._run(make())

    def _run(self, work: Coroutine[None, None, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, DEADLINE_S), self._loop).result()
        except (ProducerFenced, InvalidProducerEpoch) as failure:
            raise Fenced(getattr(failure, "errno", NO_MATCH), repr(failure)) from failure
        except KafkaError as failure:
            raise ClientError(getattr(failure, "errno", NO_MATCH), repr(failure)) from failure

    def init(self) -> None:
        self._run(self._producer.start())

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, *values: bytes) -> None:
        async def work() -> None:
            for future in [await self._producer.send(topic, value, partition=partition) for value in values]:
                await future

        self._run(work())

    def send_offsets(self, offsets: Mapping[Place, int], member: Member) -> None:
        wanted = {TopicPartition(*place): offset for place, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(wanted, member.options.group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        async def stop() -> None:
            # Its own stop waits for what a fenced producer can never send.
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            await self._producer.client.close()
            self._producer._closed = True

        self._run(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)


class AioTransactions(Transactions):
    name = "aiokafka"
    reader = "aiokafka-roundrobin"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def open(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> AioProducer:
        return AioProducer(self._bootstrap, transactional_id, timeout_ms)

    def end(self, topic: str, partition: int, isolation: str) -> int:
        async def work() -> int:
            place = TopicPartition(topic, partition)
            consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, group_id=None, isolation_level=isolation)
            await consumer.start()
            try:
                return int((await consumer.end_offsets([place]))[place])
            finally:
                await consumer.stop()

        return run(work())
