"""Fetch by hand, with kio as the oracle of every byte, and against a real broker."""

import struct
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.unit.cli.scripted_broker import Script, scripted_broker

from penstock.client.cluster import Cluster, Topic
from penstock.client.errors import ClientError, Unreachable, Unsupported
from penstock.client.fetching import Fetched, PartitionFetcher, decode
from penstock.client.settings import Settings
from penstock.net.connection import PeerError
from penstock.protocols.kafka_wire.messages import encode, schema_of
from penstock.records.batch import HEADER_BYTES
from penstock.testing import EmbeddedBroker

ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
TOPIC = Topic("orders", ID, (1,))
ROW = {
    "partition_index": 0,
    "error_code": 0,
    "high_watermark": 900,
    "last_stable_offset": 800,
    "log_start_offset": 100,
    "aborted_transactions": [],
    "preferred_read_replica": -1,
    "records": b"batches",
}


def answer(topic_id: uuid.UUID = ID, count: int = 1, **changes: Any) -> dict[str, Any]:
    topics = [{"topic_id": topic_id, "partitions": [ROW | changes]}] * count
    return {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": topics}


class Asked(list[Any]):
    """Requests as kio reads them, each answered with the next answer."""

    def __init__(self, *answers: dict[str, Any] | bytes | None) -> None:
        super().__init__()
        self._answers = list(answers)

    def handle(self, request: Any) -> dict[str, Any] | bytes | None:
        self.append(request)
        return self._answers.pop(0)


def fetch(*answers: dict[str, Any] | bytes | None, newest: int = 13, **options: Any) -> tuple[Fetched, Asked]:
    """The answer to a question for offset 123; its records are copied, as the fetcher is closed."""
    asked = Asked(*answers)

    def metadata(_: Any) -> dict[str, Any]:
        partitions = [{"partition_index": 0, "leader_id": 1}]
        topics = [{"name": "orders", "topic_id": ID, "partitions": partitions}]
        return {"brokers": [{"node_id": 1, "host": broker.host, "port": broker.port}], "topics": topics}

    scripts = {"metadata": Script(3, 0, 12, metadata), "fetch": Script(1, 4, newest, asked.handle)}
    with scripted_broker(**scripts) as broker:
        settings = Settings(broker.address, timeout_s=options.pop("timeout_s", 10.0))
        with Cluster(settings) as cluster:
            chosen = {"read_committed": True, "max_bytes": 8 << 20} | options
            fetcher = PartitionFetcher(settings, cluster, TOPIC, 0, **chosen)
            try:
                fetcher.send(123)
                found = fetcher.receive()
            finally:
                fetcher.close()
    return found._replace(records=memoryview(bytes(found.records))), asked


def test_every_field_of_the_question() -> None:
    _, (request,) = fetch(answer(), max_wait_ms=250, max_bytes=1 << 20)
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (request.replica_id, request.max_wait, request.min_bytes, request.max_bytes) == (-1, 250, 1, 1 << 20)
    assert (request.isolation_level, request.session_id, request.session_epoch, request.rack_id) == (1, 0, -1, "")
    assert (topic.topic_id, request.forgotten_topics_data) == (ID, ())
    assert vars(partition) == {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 123,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }


def test_uncommitted_records_are_asked_for() -> None:
    _, (request,) = fetch(answer(), read_committed=False)
    assert request.isolation_level == 0


def test_a_broker_is_never_told_to_wait_longer_than_we_do() -> None:
    _, (request,) = fetch(answer(), max_wait_ms=60_000, timeout_s=5.0)
    assert request.max_wait == 2500


def test_every_field_of_the_answer() -> None:
    aborted = [{"producer_id": 4, "first_offset": 130}, {"producer_id": 1 << 40, "first_offset": 1 << 50}]
    found, _ = fetch(answer(aborted_transactions=aborted))
    assert found[:5] == (0, 900, 800, 100, [(4, 130), (1 << 40, 1 << 50)])
    assert bytes(found.records) == b"batches"


@pytest.mark.parametrize("size", [0, 126, 127, 128, 16_383, 3_000_000])
def test_records_of_any_size(size: int) -> None:
    found, _ = fetch(answer(records=bytes(range(256)) * (size // 256) + b"x" * (size % 256)))
    assert len(found.records) == size
    assert found.records[:1] == (b"\0" if size >= 256 else b"x"[:size])


@pytest.mark.parametrize("nothing", [{"records": None}, {"aborted_transactions": None}])
def test_null_is_nothing(nothing: dict[str, Any]) -> None:
    found, _ = fetch(answer(**nothing))
    assert found.aborted == []
    assert len(found.records) in (0, len("batches"))


def test_errors_are_the_caller_s() -> None:
    whole, _ = fetch({"throttle_time": 0, "error_code": 6, "session_id": 0, "responses": []})
    assert (whole.error_code, bytes(whole.records)) == (6, b"")
    one, _ = fetch(answer(error_code=1, records=None))
    assert (one.error_code, bytes(one.records)) == (1, b"")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (answer(count=0), "0 topics in place of one"),
        (answer(count=2), "2 topics in place of one"),
        (answer(topic_id=uuid.UUID(int=1)), "it is about another partition"),
        (answer(partition_index=1), "it is about another partition"),
        (b"\0\0\0\x09\0\0\0\x02\0\0\0\0\0", "no proper answer to Fetch"),
    ],
)
def test_an_answer_that_is_none(wrong: dict[str, Any] | bytes, told: str) -> None:
    with pytest.raises(ClientError, match=told) as raised:
        fetch(wrong)
    assert "partition 0 of 'orders'" in str(raised.value)


def test_every_cut_of_an_answer_is_refused() -> None:
    aborted = [{"producer_id": 4, "first_offset": 130}]
    body = encode(schema_of("fetch", 13, "response"), answer(aborted_transactions=aborted, records=b"r" * 200))
    whole = decode(memoryview(body), ID.bytes, 0)
    assert bytes(whole.records) == b"r" * 200
    end = body.index(b"r" * 200) + 200
    for size in range(end):
        with pytest.raises((PeerError, struct.error)):
            decode(memoryview(body)[:size], ID.bytes, 0)


def test_a_broker_that_is_too_old() -> None:
    with pytest.raises(Unsupported, match=r"Fetch in versions 4 to 12.*needs Kafka 3\.1 or newer"):
        fetch(answer(), newest=12)


def test_a_connection_that_breaks() -> None:
    with pytest.raises(Unreachable, match="the server closed the connection"):
        fetch(None)


def produce(bootstrap: str, topic: str, values: list[bytes], **properties: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, **properties})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def test_a_real_broker(broker: EmbeddedBroker, settings: Settings, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1, {})
    found = cluster.topics([topic])[topic]
    produce(broker.bootstrap, topic, [b"%05d" % number * 100 for number in range(1000)])
    fetcher = PartitionFetcher(settings, cluster, found, 0, read_committed=True, max_bytes=8 << 20, max_wait_ms=10)
    fetcher.send(0)
    first = fetcher.receive()
    assert (first.error_code, first.high_watermark, first.last_stable_offset, first.log_start_offset) == (
        0,
        1000,
        1000,
        0,
    )
    assert b"00999" in bytes(first.records)
    fetcher.send(1000)
    second = fetcher.receive()
    assert (second.error_code, len(second.records)) == (0, 0)
    fetcher.send(1001)
    assert fetcher.receive().error_code == 1
    fetcher.close()
    fetcher.send(0)  # connects again
    assert len(fetcher.receive().records) == len(first.records)
    fetcher.close()
    stranger = PartitionFetcher(
        settings, cluster, Topic(topic, ID, found.leaders), 0, read_committed=True, max_bytes=1 << 20
    )
    stranger.send(0)
    assert stranger.receive().error_code == 100
    stranger.close()


def test_records_are_received_into_one_buffer(
    broker: EmbeddedBroker, settings: Settings, cluster: Cluster, topic: str
) -> None:
    cluster.create_topic(topic, 1, {})
    produce(broker.bootstrap, topic, [b"first" * 100, b"other" * 100], **{"batch.num.messages": 1, "linger.ms": 0})
    fetcher = PartitionFetcher(
        settings, cluster, cluster.topics([topic])[topic], 0, read_committed=True, max_bytes=HEADER_BYTES
    )
    fetcher.send(0)
    first = fetcher.receive().records
    seen = bytes(first)
    fetcher.send(1)
    second = fetcher.receive().records
    fetcher.close()
    assert first.obj is second.obj
    assert bytes(first) == bytes(second) != seen  # the second answer lies where the first was


def test_aborted_transactions(broker: EmbeddedBroker, settings: Settings, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1, {})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for ending in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        assert producer.flush(30) == 0
        ending(30)
    fetcher = PartitionFetcher(
        settings, cluster, cluster.topics([topic])[topic], 0, read_committed=True, max_bytes=1 << 20
    )
    fetcher.send(0)
    found = fetcher.receive()
    fetcher.close()
    assert found.error_code == 0
    assert [first_offset for _, first_offset in found.aborted] == [2]
