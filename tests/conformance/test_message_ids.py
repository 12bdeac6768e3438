"""A queue that drops duplicates, with Kafka's clients: producers that send again, and readers of what is left out."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from penstock.cli.connection import Server
from penstock.cli.verbs import Verbs
from tests.peers.broker import Broker

from .clients import CLIENTS
from .clients.client import DEADLINE_S
from .conftest import PEER, Judges
from .records import Record

pytestmark = pytest.mark.skipif(PEER != "penstock", reason="Kafka takes what comes")
WRITERS = [name for name, each in CLIENTS.items() if each.whole_records]
MANY = 40
"""So many fetches with nothing in them librdkafka does not take without errors."""


def message(each: str | None, value: str) -> Record:
    headers = (("other", b"1"), *((("penstock-id", each.encode()),) if each else ()))
    return Record(value.encode(), b"k", headers)


@pytest.fixture
def new_queue(broker: Broker, new_topic: Callable[..., str]) -> Callable[[str], str]:
    def make(stem: str) -> str:
        queue = new_topic(stem)
        with Verbs(Server(broker.bootstrap, "a test", {}, DEADLINE_S)) as verbs:
            verbs.ask("create", "queue.create", queue=queue, partitions=None, settings={"dedup-window": "5m"})
        return queue

    return make


def values(received: Any) -> list[tuple[int, bytes | None]]:
    return [(each.offset, each.value) for each in received]


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_sent_again_is_there_once(
    judges: Judges, new_queue: Callable[[str], str], writer: str, idempotent: bool
) -> None:
    queue, client = new_queue("ids"), judges[writer]
    sent = [message(f"order-{number}", f"{number}") for number in range(10)]
    assert client.produce(queue, 0, sent, idempotent=idempotent) == list(range(10))
    assert client.produce(queue, 0, sent, idempotent=idempotent, codec="gzip")[0] == 0
    client.produce(queue, 0, [*sent[5:], message("order-10", "10"), message(None, "11")], idempotent=idempotent)
    end = judges["confluent"].latest(queue, 0)
    expected = None
    for reader in CLIENTS:
        found = values(judges[reader].read(queue, 0, 0, 12))
        assert [value for _, value in found] == [b"%d" % number for number in range(12)]
        assert [offset for offset, _ in found[:10]] == list(range(10)) and found[11][0] == end - 1
        assert expected in (None, found), f"{reader} reads them at other offsets"
        expected = found


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_readers_pass_what_was_left_out(judges: Judges, new_queue: Callable[[str], str], codec: str) -> None:
    """Batches of which some, or all, was dropped, of producers that number what they send."""
    queue, client = new_queue("gaps"), judges["java"]
    client.produce(queue, 0, [message("a", "a"), message("b", "b")], idempotent=True, codec=codec)
    for number in range(3):
        client.produce(queue, 0, [message("b", "again"), message("a", "again")], idempotent=True, codec=codec)
        part = [message("a", "again"), message(f"{number}", f"{number}"), message("b", "again")]
        client.produce(queue, 0, part, idempotent=True, codec=codec)
    for reader in CLIENTS:
        every = values(judges[reader].read(queue, 0, 0, 5))
        assert [value for _, value in every] == [b"a", b"b", b"0", b"1", b"2"]
        for at in (2, 4):  # from within what was left out, too
            offset = every[at - 1][0] + at // 2
            assert values(judges[reader].read(queue, 0, offset, 5 - at)) == every[at:], (reader, offset)


def test_a_reader_at_the_end_sees_nothing_of_it(broker: Broker, new_queue: Callable[[str], str]) -> None:
    """Each fetch has what one duplicate has left, and no record; its consumer must not take that for an error."""
    queue = new_queue("tail")
    told: list[tuple[KafkaError | None, int | None]] = []

    def hear(error: KafkaError | None, sent: Message) -> None:
        told.append((error, sent.offset()))

    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": queue, "enable.auto.commit": False})
    reader.assign([TopicPartition(queue, 0, 0)])
    had: list[bytes | None] = []

    def read(wait_s: float) -> None:
        found = reader.poll(wait_s)
        if found is not None:
            assert found.error() is None, found.error()
            had.append(found.value())

    try:
        for number in range(MANY + 2):
            each, value = (b"b", b"last") if number == MANY + 1 else (b"a", b"%d" % number)
            producer.produce(queue, value, headers=[("penstock-id", each)], partition=0, on_delivery=hear)
            assert producer.flush(DEADLINE_S) == 0
            read(DEADLINE_S if number == 0 else 0.01)
        while len(had) < 2:
            read(DEADLINE_S)
    finally:
        reader.close()
    assert had == [b"0", b"last"]
    assert told == [(None, 0)] * (MANY + 1) + [(None, MANY + 1)]
