"""kafka-python's transactional producers."""

from collections.abc import Callable, Mapping
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidProducerEpochError, KafkaError, ProducerFencedError
from kafka.structs import OffsetAndMetadata

from .client import DEADLINE_S, NO_MATCH, ClientError
from .groups import Member, Place
from .kafka_python_groups import KafkaPythonMember
from .transactions import TIMEOUT_MS, Fenced, TransactionalProducer, Transactions


class KafkaPythonProducer(TransactionalProducer):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=0,
            retry_backoff_ms=10,
            max_block_ms=TIMEOUT_MS,
            request_timeout_ms=TIMEOUT_MS // 2,
            delivery_timeout_ms=TIMEOUT_MS,
        )

    @staticmethod
    def _run(verb: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return verb(*arguments)
        except (ProducerFencedError, InvalidProducerEpochError) as failure:
            raise Fenced(failure.errno, repr(failure)) from failure
        except KafkaError as failure:
            raise ClientError(getattr(failure, "errno", NO_MATCH), repr(failure)) from failure

    def init(self) -> None:
        self._run(self._producer.init_transactions)

    def begin(self) -> None:
        self._run(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, *values: bytes) -> None:
        futures = [self._run(self._producer.send, topic, value, None, None, partition) for value in values]
        self._producer.flush(DEADLINE_S)
        for future in futures:
            self._run(future.get, DEADLINE_S)

    def send_offsets(self, offsets: Mapping[Place, int], member: Member) -> None:
        assert isinstance(member, KafkaPythonMember)
        wanted = {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction, wanted, member.group_metadata())

    def commit(self) -> None:
        self._run(self._producer.commit_transaction)

    def abort(self) -> None:
        self._run(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(timeout=0)


class KafkaPythonTransactions(Transactions):
    name = "kafka-python"
    reader = "kafka-python-range"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def open(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> KafkaPythonProducer:
        return KafkaPythonProducer(self._bootstrap, transactional_id, timeout_ms)

    def end(self, topic: str, partition: int, isolation: str) -> int:
        place = TopicPartition(topic, partition)
        consumer = KafkaConsumer(bootstrap_servers=self._bootstrap, group_id=None, isolation_level=isolation)
        try:
            return int(consumer.end_offsets([place])[place])
        finally:
            consumer.close()
