"""confluent-kafka's transactional producers: the first version of the transaction protocol."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from .client import DEADLINE_S, ClientError
from .confluent import QUIET, settle
from .confluent_groups import ConfluentMember
from .groups import READ_COMMITTED, Member, Place
from .transactions import TIMEOUT_MS, Aborted, Fenced, TransactionalProducer, Transactions

_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


def _fail(error: KafkaError) -> None:
    if error.code() in _FENCED:
        raise Fenced(error.code(), error.str())
    if error.txn_requires_abort():
        raise Aborted(error.code(), error.str())
    raise ClientError(error.code(), error.str())


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except KafkaException as failure:
        _fail(failure.args[0])


class ConfluentProducer(TransactionalProducer):
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                # No record may outlive its transaction.
                "message.timeout.ms": min(timeout_ms, TIMEOUT_MS),
                "linger.ms": 0,
            },
            logger=QUIET,
        )

    def _run(self, verb: Callable[..., Any], *arguments: Any) -> None:
        with _translated():
            verb(*arguments)

    def init(self) -> None:
        self._run(self._producer.init_transactions, DEADLINE_S)

    def begin(self) -> None:
        self._run(self._producer.begin_transaction)

    def send(self, topic: str, partition: int, *values: bytes) -> None:
        # Without a callback for each record: a fatal error is raised in whichever is called next, and not only there.
        # What could not be sent makes the commit fail.
        with _translated():
            for value in values:
                self._producer.produce(topic, value, partition=partition)
            assert self._producer.flush(DEADLINE_S) == 0

    def send_offsets(self, offsets: Mapping[Place, int], member: Member) -> None:
        assert isinstance(member, ConfluentMember)
        wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        self._run(self._producer.send_offsets_to_transaction, wanted, member.group_metadata(), DEADLINE_S)

    def send_receipts(self, receipts: Mapping[Place, str], group: str) -> None:
        """Of messages of a queue, as metadata of an offset that says nothing; in the name of nobody in the group."""
        wanted = [TopicPartition(*place, 0, metadata=text) for place, text in receipts.items()]
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group}, logger=QUIET)
        try:
            metadata = consumer.consumer_group_metadata()
            self._run(self._producer.send_offsets_to_transaction, wanted, metadata, DEADLINE_S)
        finally:
            consumer.close()

    def commit(self) -> None:
        self._run(self._producer.commit_transaction, DEADLINE_S)

    def abort(self) -> None:
        self._run(self._producer.abort_transaction, DEADLINE_S)

    def close(self) -> None:
        self._producer.purge()
        self._producer.close()


class ConfluentTransactions(Transactions):
    name = "confluent"
    reader = "confluent-range"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        # Kept for good: a future of a collected AdminClient fails instead of waiting.
        self._admin = AdminClient({"bootstrap.servers": bootstrap}, logger=QUIET)

    def open(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> ConfluentProducer:
        return ConfluentProducer(self._bootstrap, transactional_id, timeout_ms)

    def end(self, topic: str, partition: int, isolation: str) -> int:
        place = TopicPartition(topic, partition)
        level = IsolationLevel.READ_COMMITTED if isolation == READ_COMMITTED else IsolationLevel.READ_UNCOMMITTED
        found = self._admin.list_offsets(
            {place: OffsetSpec.latest()}, isolation_level=level, request_timeout=DEADLINE_S
        )
        return int(settle(found[place]).offset)
