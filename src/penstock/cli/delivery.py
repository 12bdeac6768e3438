"""Sending records and keeping account of what became of each.

librdkafka queues without being asked to wait, and calls back for every record. What is under way is bounded here, in
records and in bytes, so that an input of any size needs the same memory, and so that its own queue is never full: a
refused record in the middle of a batch would be overtaken by those behind it.

A message with an id and no key goes to the partition of its id: sent again, it meets itself there.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.cli.failure import CommandError
from penstock.cli.record_input import Record

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

MAX_RECORDS = 100_000
MAX_BYTES = 64 * 1024 * 1024
_BATCH = 1000
_POLL_S = 0.1
_METADATA_S = 30.0

QUEUE_PROPERTIES: Mapping[str, object] = {
    # Above what is ever under way; see the top.
    "queue.buffering.max.messages": 2 * MAX_RECORDS,
    "queue.buffering.max.kbytes": 2_097_151,
}


@dataclass(slots=True)
class Written:
    """What a partition took."""

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    def add(self, offset: int | None) -> None:
        self.records += 1
        if offset is None or offset < 0:  # acks=0: nobody said
            return
        self.first_offset = offset if self.first_offset is None else min(self.first_offset, offset)
        self.last_offset = offset if self.last_offset is None else max(self.last_offset, offset)


@dataclass(slots=True)
class Account:
    """What was delivered, and what was not: the first failure in full, the others by number."""

    delivered: int = 0
    size: int = 0
    failed: int = 0
    partitions: dict[tuple[str, int], Written] = field(default_factory=dict)
    failure: str | None = None
    unreachable: bool = False


class Sender:
    """Hands records to a producer, in order, and waits when too much is under way."""

    def __init__(self, producer: "Producer", topic: str) -> None:
        self.account = Account()
        self._producer = producer
        self._topic = topic
        self._pending_bytes = 0
        self._counts: dict[str, int] = {}
        """Partitions of topics to which messages with ids go."""
        self._is_fatal = False  # the first failure says no more than that: the producer's own reason comes behind it

    def send(self, records: Sequence[Record]) -> None:
        """Queue them. Raises `CommandError` naming the first record that could not be delivered."""
        for at in range(0, len(records), _BATCH):
            self._send_batch(records[at : at + _BATCH])
            self.poll(0)

    def poll(self, timeout_s: float) -> None:
        """Hear what became of records sent before. Raises like `send`."""
        with self._hearing():
            self._producer.poll(timeout_s)
        if self.account.failure is not None:
            raise CommandError(self.account.failure)

    def flush(self) -> None:
        """Wait until the fate of every record is known; librdkafka gives up on one after its own timeout."""
        with self._hearing():
            while self._producer.flush(_POLL_S):
                pass

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """What ends the producer itself, which then delivers nothing any more, is a failure like that of a record."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            if self.account.failure is None or self._is_fatal:
                self.account.failure = f"nothing can be delivered: {_explain(error.args[0])}"
                self._is_fatal = False

    @property
    def pending(self) -> int:
        return len(self._producer)

    def _send_batch(self, records: Sequence[Record]) -> None:
        plain: list[dict[str, Any]] = []
        partition = -1
        for record in records:
            size = record.size
            while self._pending_bytes and self._pending_bytes + size > MAX_BYTES:
                self._send_plain(plain, partition)
                self.poll(_POLL_S)
            self._pending_bytes += size
            # librdkafka's batches have neither headers nor times, and one partition; nothing may overtake.
            alone = record.headers or record.timestamp_ms or record.topic is not None
            if alone or record.partition != partition:
                self._send_plain(plain, partition)
                partition = record.partition
            if alone:
                self._send_one(record)
            else:
                plain.append({"value": record.value, "key": record.key, "callback": partial(self._settle, record)})
        self._send_plain(plain, partition)

    def _wait_for_room(self, count: int) -> None:
        while len(self._producer) + count > MAX_RECORDS:
            self.poll(_POLL_S)

    def _send_plain(self, messages: list[dict[str, Any]], partition: int) -> None:
        if not messages:
            return
        self._wait_for_room(len(messages))
        taken = self._producer.produce_batch(self._topic, messages, partition)
        if taken < len(messages):
            for message in messages:
                if (error := message.get("_error")) is not None:
                    self._refuse(message["callback"].args[0], error)
        messages.clear()

    def _send_one(self, record: Record) -> None:
        from confluent_kafka import KafkaException

        self._wait_for_room(1)
        try:
            self._producer.produce(
                record.topic or self._topic,
                record.value,
                record.key,
                record.partition if record.partition >= 0 else self._partition_by_id(record),
                on_delivery=partial(self._settle, record),
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
            )
        except KafkaException as error:
            self._refuse(record, error.args[0])
        except BufferError as error:
            self._fail(record, str(error))

    def _partition_by_id(self, record: Record) -> int:
        """-1 leaves the choice to librdkafka, which sends records without a key, or with an empty one, anywhere."""
        from penstock.engine.queues.headers import routing_key
        from penstock.records.partitioning import WITHOUT_SIGN, murmur2

        wanted = None if record.key else routing_key(None, record.headers)
        if wanted is None:
            return -1
        topic = record.topic or self._topic
        if topic not in self._counts:
            found = self._producer.list_topics(topic, timeout=_METADATA_S).topics[topic]
            if not found.partitions:  # it is about to be made; nothing can be there already
                return -1
            self._counts[topic] = len(found.partitions)
        return (murmur2(wanted) & WITHOUT_SIGN) % self._counts[topic]

    def _settle(self, record: Record, error: "KafkaError | None", message: "Message") -> None:
        self._pending_bytes -= record.size
        account = self.account
        if error is not None:
            self._refuse(record, error)
            return
        account.delivered += 1
        account.size += record.size
        place = (message.topic() or "", message.partition() or 0)
        written = account.partitions.get(place)
        if written is None:
            written = account.partitions[place] = Written()
        written.add(message.offset())

    def _refuse(self, record: Record, error: "KafkaError") -> None:
        name = error.name()
        if name == "MSG_SIZE_TOO_LARGE":
            reason = (
                f"its {record.size:,} bytes are more than a record may have; -X message.max.bytes=N raises the "
                "client's limit, the topic's setting max.message.bytes the server's"
            )
        elif name == "_UNKNOWN_PARTITION":
            reason = f"the topic has no partition {record.partition}"
        elif name == "_MSG_TIMED_OUT":
            reason = "the server did not confirm it in time (-X message.timeout.ms=N waits longer)"
            self.account.unreachable = True
        elif name == "POLICY_VIOLATION":
            reason = (
                "the server has no room for it: a queue of the topic is full ('penstock queue describe'), or a limit"
            )
        elif name == "_FATAL":
            self._is_fatal = self._is_fatal or self.account.failure is None
            reason = "the producer has ended"
        else:
            reason = _explain(error)
        self._fail(record, reason)

    def _fail(self, record: Record, reason: str) -> None:
        self.account.failed += 1
        if self.account.failure is None:
            self.account.failure = f"{record.place}: not delivered: {reason}"


def _explain(error: "KafkaError") -> str:
    if error.name().endswith("_AUTHORIZATION_FAILED"):
        told = error.str().removeprefix("Broker: ")
        return f"{told}; it takes a rule that allows write on the topic ('penstock acl explain', 'penstock acl add')"
    return error.str()
