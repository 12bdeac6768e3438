"""Batches out: their order, how many are under way, and what becomes of them when something breaks."""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.relay import ANSWER, PRODUCE, REQUEST, Cut, Relay, relayed_broker

from penstock.client.cluster import LATEST, Cluster
from penstock.client.errors import ClientError, Failure, Refused, Unreachable
from penstock.client.producer import IN_FLIGHT, Parcel, Producer
from penstock.client.settings import Settings
from penstock.client.transaction import identify
from penstock.protocols.kafka_wire.messages import decode, encode, schema_of
from penstock.records.build import build_batch

DEADLINE_S = 30.0
NOW_MS = int(time.time() * 1000)  # older records would go by retention while a slow test looks on
TOO_LARGE, NOT_LEADER, OUT_OF_ORDER, DUPLICATE = 10, 6, 45, 46


class ScriptedConnection:
    """Takes requests and answers them, in order, with the codes a test says; 0 where it says nothing."""

    def __init__(self, world: "ScriptedCluster") -> None:
        self._world = world
        self._unanswered: deque[tuple[int, Any]] = deque()
        self._sent = 0

    def send(self, api: int, version: int, parts: list[bytes], *, flexible: bool) -> int:
        assert (api, version, flexible) == (0, 9, True)
        request = decode(schema_of("produce", 9, "request"), memoryview(b"".join(parts)), 0)
        self._sent += 1
        self._unanswered.append((self._sent, request))
        self._world.sent.append(request)
        self._world.most = max(self._world.most, len(self._unanswered))
        return self._sent

    def receive(self, correlation: int, *, flexible: bool) -> memoryview:
        expected, request = self._unanswered.popleft()
        assert (correlation, flexible) == (expected, True)
        code = self._world.codes.popleft() if self._world.codes else 0
        if code is None:
            raise Unreachable(Failure("here", "cut"))
        (topic,) = request.topic_data
        row = {"index": topic.partition_data[0].index, "error_code": code, "error_message": self._world.detail}
        answer = {"responses": [{"name": topic.name, "partition_responses": [row | OFFSETS]}], "throttle_time": 0}
        return memoryview(encode(schema_of("produce", 9, "response"), answer))


OFFSETS = {"base_offset": 0, "log_append_time": -1, "log_start_offset": 0, "record_errors": []}


class ScriptedCluster:
    """One connection until it is closed. `codes` are those of the answers to come; None breaks the connection."""

    def __init__(self, *codes: int | None) -> None:
        self.codes = deque(codes)
        self.detail: str | None = None
        self.sent: list[Any] = []
        self.most = 0
        """Requests under way at once."""
        self._connection: ScriptedConnection | None = None

    def leader(self, topic: str, partition: int) -> ScriptedConnection:
        self._connection = self._connection or ScriptedConnection(self)
        return self._connection

    def close(self) -> None:
        self._connection = None

    def refresh(self) -> None:
        return

    def batches(self) -> list[bytes]:
        return [bytes(each.topic_data[0].partition_data[0].records) for each in self.sent]


def make_producer(*codes: int | None, **options: Any) -> tuple[ScriptedCluster, Producer]:
    cluster = ScriptedCluster(*codes)
    return cluster, Producer(cluster, **options)  # type: ignore[arg-type]


def numbered(count: int) -> list[bytes]:
    return [b"batch-%d" % number for number in range(count)]


def send_all(producer: Producer, batches: list[bytes]) -> None:
    for each in batches:
        producer.send(Parcel("orders", 3, each))
    producer.flush()


def test_a_request_is_what_kafka_expects() -> None:
    cluster, producer = make_producer(transactional_id="t" * 200, timeout_s=7)
    producer.send(Parcel("orders", 3, b"x" * 300))
    producer.flush()
    (request,) = cluster.sent
    assert (request.transactional_id, request.acks, request.timeout) == ("t" * 200, -1, 7000)
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index, bytes(partition.records)) == ("orders", 3, b"x" * 300)


def test_five_are_under_way_at_most() -> None:
    cluster, producer = make_producer()
    for number, batch in enumerate(numbered(12), 1):
        producer.send(Parcel("orders", 3, batch))
        assert len(cluster.sent) == number
    assert cluster.most == IN_FLIGHT == 5
    producer.flush()
    assert cluster.batches() == numbered(12)


def test_a_failure_that_may_pass_is_repeated_in_order() -> None:
    """The second is refused; those behind it, refused for overtaking it, come again behind it, one by one."""
    cluster, producer = make_producer(0, NOT_LEADER, *[0] * 5)
    send_all(producer, numbered(6))
    # The sixth waited for the first answer; the flush met the second.
    assert cluster.batches() == numbered(6) + numbered(6)[1:]


def test_a_failure_met_while_sending_keeps_the_order() -> None:
    cluster, producer = make_producer(NOT_LEADER, NOT_LEADER)
    send_all(producer, numbered(6))
    first_five, again = numbered(6)[:5], numbered(6)
    assert cluster.batches() == [*first_five, again[0], *again]


def test_a_cut_is_repeated() -> None:
    cluster, producer = make_producer(0, None, None)
    send_all(producer, numbered(3))
    assert cluster.batches() == [*numbered(3), b"batch-1", b"batch-1", b"batch-2"]


def test_what_the_broker_has_already_is_not_an_error() -> None:
    cluster, producer = make_producer(DUPLICATE)
    send_all(producer, numbered(1))
    assert len(cluster.sent) == 1


@pytest.mark.parametrize("code", [TOO_LARGE, OUT_OF_ORDER])
def test_a_refusal_that_does_not_pass_is_raised(code: int) -> None:
    cluster, producer = make_producer(code)
    cluster.detail = "because"
    producer.send(Parcel("orders", 3, b"x" * 1234))
    with pytest.raises(Refused, match=r"1234 bytes for partition 3 of topic 'orders': .* \(because\)") as raised:
        producer.flush()
    assert raised.value.code == code
    assert len(cluster.sent) == 1


def test_a_refusal_of_a_repeat_is_raised() -> None:
    cluster, producer = make_producer(NOT_LEADER, TOO_LARGE)
    with pytest.raises(Refused, match="message too large"):
        send_all(producer, numbered(2))
    assert len(cluster.sent) == 3


def test_time_is_up_some_day() -> None:
    cluster, producer = make_producer(*[NOT_LEADER] * 1000, timeout_s=0.2)
    told = r"7 bytes for partition 3 of topic 'orders' did not arrive within 0.2 s: .*not leader"
    with pytest.raises(ClientError, match=told):
        send_all(producer, numbered(2))
    assert len(cluster.sent) > 2


def test_without_acks_nothing_is_waited_for() -> None:
    cluster, producer = make_producer(TOO_LARGE, acks=0)
    send_all(producer, numbered(20))
    assert cluster.batches() == numbered(20)
    assert {each.acks for each in cluster.sent} == {0}
    assert cluster.codes  # nobody asked for an answer


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with relayed_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture
def cluster(relay: Relay) -> Iterator[Cluster]:
    with Cluster(Settings(relay.address)) as made:
        yield made
    assert not relay.cuts, "a cut never happened"


def records(*values: bytes, identity: tuple[int, int] = (-1, -1), sequence: int = -1) -> bytes:
    producer_id, epoch = identity
    return build_batch(
        [(None, value, (), NOW_MS) for value in values],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def read(relay: Relay, topic: str, partition: int, count: int) -> list[bytes]:
    """All there is, which are so many."""
    consumer = Consumer(
        {"bootstrap.servers": relay.address, "group.id": "none", "enable.partition.eof": True, "fetch.wait.max.ms": 50}
    )
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        while message := consumer.poll(DEADLINE_S):
            if message.error() is not None:
                break
            found.append(message.value() or b"")
    finally:
        consumer.close()
    assert len(found) == count
    return found


@pytest.mark.parametrize("where", [REQUEST, ANSWER])
@pytest.mark.parametrize("skip", [0, 2, 7])
def test_a_cut_neither_doubles_nor_loses(relay: Relay, cluster: Cluster, topic: str, where: str, skip: int) -> None:
    """Whether the broker had the batch, or not, when the connection ended; with others under way behind it."""
    cluster.create_topic(topic, 2, {})
    identity = identify(cluster)
    with Producer(cluster) as producer:
        producer.send(Parcel(topic, 0, records(b"0", identity=identity, sequence=0)))
        producer.flush()
        relay.cuts.append(Cut(PRODUCE, where, skip))
        for number in range(1, 10):
            for partition in (0, 1):
                sequence = number if partition == 0 else number - 1
                batch = records(b"%d" % number, identity=identity, sequence=sequence)
                producer.send(Parcel(topic, partition, batch))
        producer.flush()
    assert read(relay, topic, 0, 10) == [b"%d" % number for number in range(10)]
    assert read(relay, topic, 1, 9) == [b"%d" % number for number in range(1, 10)]


def test_cut_after_cut(relay: Relay, cluster: Cluster, topic: str) -> None:
    """A repeat is cut as well, before and behind the broker."""
    cluster.create_topic(topic, 1, {})
    identity = identify(cluster)
    relay.cuts += [Cut(PRODUCE, ANSWER, 1), Cut(PRODUCE, ANSWER), Cut(PRODUCE, REQUEST, 1), Cut(PRODUCE, ANSWER)]
    with Producer(cluster) as producer:
        for number in range(8):
            producer.send(Parcel(topic, 0, records(b"%d" % number, identity=identity, sequence=number)))
        producer.flush()
    assert read(relay, topic, 0, 8) == [b"%d" % number for number in range(8)]


def test_without_a_producer_id_a_cut_may_double_but_loses_nothing(relay: Relay, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1, {})
    relay.cuts.append(Cut(PRODUCE, ANSWER))
    with Producer(cluster, acks=1) as producer:
        producer.send(Parcel(topic, 0, records(b"twice")))
        producer.flush()
    assert read(relay, topic, 0, 2) == [b"twice"] * 2


def test_without_acks_everything_arrives(relay: Relay, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1, {})
    with Producer(cluster, acks=0) as producer:
        for number in range(20):
            producer.send(Parcel(topic, 0, records(b"%d" % number)))
        producer.flush()
    place, deadline = (topic, 0), time.monotonic() + DEADLINE_S
    while cluster.list_offsets({place: LATEST}, read_committed=False)[place] < 20:
        assert time.monotonic() < deadline
    assert read(relay, topic, 0, 20) == [b"%d" % number for number in range(20)]


def test_refusals_of_a_real_broker(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, 1, {"max.message.bytes": "1000"})
    with pytest.raises(Refused, match=r"bytes for partition 0 of topic '.*': message too large"):
        send_to(cluster, Parcel(topic, 0, records(b"x" * 2000)))
    with pytest.raises(ClientError, match=r"partition 1 of topic .*, which has 1: unknown topic or partition"):
        send_to(cluster, Parcel(topic, 1, records(b"x")), timeout_s=0.3)
    identity = identify(cluster)
    send_to(cluster, Parcel(topic, 0, records(b"x", identity=identity, sequence=0)))
    with pytest.raises(Refused, match="out of order sequence number"):
        send_to(cluster, Parcel(topic, 0, records(b"x", identity=identity, sequence=7)))


def send_to(cluster: Cluster, parcel: Parcel, **options: Any) -> None:
    producer = Producer(cluster, **options)
    producer.send(parcel)
    producer.flush()
