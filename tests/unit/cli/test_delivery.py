"""The account of what was sent, with a producer that answers when asked."""

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from penstock.cli import delivery
from penstock.cli.delivery import Sender
from penstock.cli.failure import CommandError
from penstock.cli.record_input import Record
from penstock.records.partitioning import new_partitioner


class SlowProducer:
    """Confirms a few records at each poll; what a batch cannot carry fails here as it would be lost there."""

    def __init__(self, *, refuse: dict[bytes, int] | None = None) -> None:
        self.order: list[tuple[bytes | None, int]] = []
        self.most = self.most_bytes = 0
        self._refuse = refuse or {}
        self._waiting: list[tuple[bytes | None, int, Callable[[KafkaError | None, Message], None]]] = []
        self._offset = 0
        self.partitions = 6
        self.asked = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def produce_batch(self, topic: str, messages: list[dict[str, Any]], partition: int) -> int:
        assert all(set(message) == {"value", "key", "callback"} for message in messages)
        taken = 0
        for message in messages:
            if (code := self._refuse.get(message["value"])) is not None:
                message["_error"] = KafkaError(code)
            else:
                self._take(message["value"], partition, message["callback"])
                taken += 1
        return taken

    def produce(
        self, topic: str, value: bytes, key: bytes, partition: int, *, on_delivery: Any, timestamp: int, headers: Any
    ) -> None:
        self._take(value, partition, on_delivery)

    def _take(self, value: bytes | None, partition: int, settle: Callable[[KafkaError | None, Message], None]) -> None:
        self.order.append((value, partition))
        self._waiting.append((value, partition, settle))
        self.most = max(self.most, len(self._waiting))
        self.most_bytes = max(self.most_bytes, sum(len(value or b"") for value, _, _ in self._waiting))

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        self.asked += 1
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=dict.fromkeys(range(self.partitions)))})

    def poll(self, timeout_s: float) -> None:
        for _ in range(min(7, len(self._waiting))):
            value, partition, settle = self._waiting.pop(0)
            settle(None, Message(topic="t", partition=max(partition, 0), offset=self._offset, value=value))
            self._offset += 1

    def flush(self, timeout_s: float) -> int:
        self.poll(timeout_s)
        return len(self._waiting)


def sender(producer: SlowProducer) -> Sender:
    stand_in: Any = producer
    return Sender(stand_in, "t")


def test_the_number_under_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_BATCH", 10)
    monkeypatch.setattr(delivery, "MAX_RECORDS", 25)
    for headers in ((), [("h", b"")]):
        producer = SlowProducer()
        sending = sender(producer)
        sending.send([Record("f", line, b"", headers=headers) for line in range(300)])
        assert producer.most <= 25
        sending.flush()
        assert sending.account.delivered == 300


def test_the_bytes_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_BATCH", 10)
    monkeypatch.setattr(delivery, "MAX_BYTES", 100)
    producer = SlowProducer()
    sending = sender(producer)
    records = [Record("f", line, b"x" * (line % 13)) for line in range(1, 300)]
    records.append(Record("f", 300, b"y" * 500))  # larger than all that may wait: goes alone
    sending.send(records)
    sending.flush()
    assert producer.most_bytes == 500
    assert producer.most < 100
    assert sending.account.delivered == 300
    assert sending.account.size == sum(record.size for record in records)
    assert sending.pending == 0
    assert [value for value, _ in producer.order] == [record.value for record in records]


def test_nothing_overtakes_and_every_record_keeps_its_partition() -> None:
    producer = SlowProducer()
    sending = sender(producer)
    records = [
        Record("f", 1, b"a"),
        Record("f", 2, b"b", partition=1),
        Record("f", 3, b"c", partition=1),
        Record("f", 4, b"d", headers=[("h", b"1")], partition=1),
        Record("f", 5, b"e", timestamp_ms=5),
        Record("f", 6, b"f"),
        Record("f", 7, b"g", topic="u"),
        Record("f", 8, None, partition=2),
    ]
    sending.send(records)
    assert producer.order == [(record.value, record.partition) for record in records]


def test_a_refused_record_is_named() -> None:
    sending = sender(SlowProducer(refuse={b"2": KafkaError.MSG_SIZE_TOO_LARGE}))
    with pytest.raises(CommandError, match=r"^f:2: not delivered: its 1 bytes are more than a record may have"):
        sending.send([Record("f", line, str(line).encode()) for line in (1, 2, 3)])
    sending.flush()
    assert (sending.account.delivered, sending.account.failed) == (2, 1)


def test_a_full_queue_is_told_of() -> None:
    sending = sender(SlowProducer(refuse={b"x": KafkaError.POLICY_VIOLATION}))
    with pytest.raises(CommandError, match=r"a queue of the topic is full \('penstock queue describe'\)"):
        sending.send([Record("f", 1, b"x")])


def test_offsets_of_each_partition() -> None:
    sending = sender(SlowProducer())
    sending.send([Record("f", line, b"v", partition=line % 2) for line in range(6)])
    sending.flush()
    written = sending.account.partitions
    assert {at: (each.records, each.first_offset, each.last_offset) for at, each in written.items()} == {
        ("t", 0): (3, 0, 4),
        ("t", 1): (3, 1, 5),
    }


def test_a_message_with_an_id_goes_to_the_partition_of_its_id() -> None:
    ids = [b"order-%d" % number for number in range(40)]
    places = []
    for _ in range(2):
        producer = SlowProducer()
        sending = sender(producer)
        sending.send([Record("f", 1, b"", headers=[("penstock-id", b"x"), ("penstock-id", each)]) for each in ids])
        places.append([partition for _, partition in producer.order])
        assert producer.asked == 1
    assert places[0] == places[1]
    assert set(places[0]) == set(range(6))
    assert places[0] == [new_partitioner("murmur2", Random(1)).choose(each, 6) for each in ids]


def test_a_key_and_a_partition_come_before_an_id() -> None:
    with_id, unread = [("penstock-id", b"a")], [("penstock-id", b"\xff")]
    for record, partition in (
        (Record("f", 1, b"", b"key", headers=with_id), -1),
        (Record("f", 1, b"", headers=with_id, partition=5), 5),
        (Record("f", 1, b"", headers=unread), -1),
        (Record("f", 1, b"", b"", headers=with_id), 0),  # librdkafka takes an empty key for none
    ):
        producer = SlowProducer()
        producer.partitions = 1
        sender(producer).send([record])
        assert [each for _, each in producer.order] == [partition]


def test_of_a_topic_that_is_not_there_yet_nobody_knows_the_partitions() -> None:
    producer = SlowProducer()
    producer.partitions = 0
    sender(producer).send([Record("f", 1, b"", headers=[("penstock-id", b"a")])] * 2)
    assert [partition for _, partition in producer.order] == [-1, -1] and producer.asked == 2
