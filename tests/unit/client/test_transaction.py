"""A transaction lent to several writers: who is in it, who is shut out, and ends that are told twice."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.relay import ADD_PARTITIONS, ANSWER, END_TXN, INIT_PRODUCER_ID, REQUEST, Cut, Relay, relayed_broker
from tests.unit.cli.scripted_broker import Script, scripted_broker

from penstock.client.cluster import LATEST, Cluster
from penstock.client.errors import ClientError, Refused
from penstock.client.producer import Parcel, Producer
from penstock.client.settings import Settings
from penstock.client.transaction import OpenTransaction, add_partitions, begin, end, identify, shut_out
from penstock.records.build import build_batch

DEADLINE_S = 30.0
TIMEOUT_MS = 60_000
SHUT_OUT = r"producer fenced|invalid producer epoch"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with relayed_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made


@pytest.fixture
def cluster(relay: Relay) -> Iterator[Cluster]:
    with Cluster(Settings(relay.address)) as made:
        yield made
    assert not relay.cuts, "a cut never happened"


@pytest.fixture
def place(cluster: Cluster, topic: str) -> tuple[str, int]:
    cluster.create_topic(topic, 1, {})
    return topic, 0


def write(
    relay: Relay,
    transaction: OpenTransaction,
    place: tuple[str, int],
    value: bytes,
    sequence: int,
    *,
    added: bool = False,
) -> None:
    """As one of several who share the transaction: over connections of its own."""
    batch = build_batch(
        [(None, value, (), int(time.time() * 1000))],
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        base_sequence=sequence,
        transactional=True,
    )
    with Cluster(Settings(relay.address)) as cluster:
        if not added:
            add_partitions(cluster, transaction, [place])
        producer = Producer(cluster, transactional_id=transaction.transactional_id, timeout_s=10)
        producer.send(Parcel(*place, batch))
        producer.flush()


def decided(cluster: Cluster, relay: Relay, place: tuple[str, int]) -> list[bytes]:
    """What is committed when no transaction is open any more: Kafka answers an end before readers hear of it."""
    deadline = time.monotonic() + DEADLINE_S
    while (
        cluster.list_offsets({place: LATEST}, read_committed=True)[place]
        != cluster.list_offsets({place: LATEST}, read_committed=False)[place]
    ):
        assert time.monotonic() < deadline, "a transaction stays open"
    return committed(relay, place)


def committed(relay: Relay, place: tuple[str, int]) -> list[bytes]:
    """What a reader of committed records sees now."""
    settings: dict[str, Any] = {"bootstrap.servers": relay.address, "group.id": "none", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "fetch.wait.max.ms": 50})
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition(*place, 0)])
        while (message := consumer.poll(DEADLINE_S)) and message.error() is None:
            found.append(message.value() or b"")
        assert message is not None
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("commit", [True, False])
def test_those_who_share_a_lease_write_one_transaction(
    relay: Relay, cluster: Cluster, place: tuple[str, int], commit: bool
) -> None:
    transaction = begin(cluster, place[0], timeout_ms=TIMEOUT_MS)
    for number, value in enumerate((b"a", b"b", b"c")):
        write(relay, transaction, place, value, number)
        assert committed(relay, place) == []
    end(cluster, transaction, commit=commit)
    assert decided(cluster, relay, place) == ([b"a", b"b", b"c"] if commit else [])


def test_who_begins_shuts_out_the_one_before(relay: Relay, cluster: Cluster, place: tuple[str, int]) -> None:
    older = begin(cluster, place[0], timeout_ms=TIMEOUT_MS)
    write(relay, older, place, b"older", 0)
    newer = begin(cluster, place[0], timeout_ms=TIMEOUT_MS)
    assert (newer.producer_id, newer.epoch) > (older.producer_id, older.epoch)
    with pytest.raises(Refused, match=SHUT_OUT):
        add_partitions(cluster, older, [place])
    for commit in (True, False):
        with pytest.raises(Refused, match=SHUT_OUT):
            end(cluster, older, commit=commit)
    with pytest.raises(Refused, match=SHUT_OUT):
        write(relay, older, place, b"late", 1)
    write(relay, newer, place, b"newer", 0)
    end(cluster, newer, commit=True)
    assert decided(cluster, relay, place) == [b"newer"]


def test_a_batch_of_one_who_is_shut_out_is_refused(relay: Relay, cluster: Cluster, place: tuple[str, int]) -> None:
    """It had its partition added in time, and sends late."""
    older = begin(cluster, place[0], timeout_ms=TIMEOUT_MS)
    write(relay, older, place, b"older", 0)
    newer = begin(cluster, place[0], timeout_ms=TIMEOUT_MS)
    write(relay, newer, place, b"newer", 0)
    with pytest.raises(Refused, match=SHUT_OUT):
        write(relay, older, place, b"late", 1, added=True)
    end(cluster, newer, commit=True)
    assert decided(cluster, relay, place) == [b"newer"]


@pytest.mark.parametrize("where", [REQUEST, ANSWER])
@pytest.mark.parametrize("api", [INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN])
def test_a_cut_changes_nothing(relay: Relay, cluster: Cluster, place: tuple[str, int], api: int, where: str) -> None:
    relay.cuts += [Cut(api, where), Cut(api, where)]
    transaction = begin(cluster, place[0], timeout_ms=TIMEOUT_MS)
    write(relay, transaction, place, b"a", 0)
    write(relay, transaction, place, b"b", 1)
    end(cluster, transaction, commit=True)
    assert decided(cluster, relay, place) == [b"a", b"b"]


def test_an_end_told_twice_and_an_end_told_otherwise(relay: Relay, cluster: Cluster, place: tuple[str, int]) -> None:
    transaction = begin(cluster, place[0], timeout_ms=TIMEOUT_MS)
    write(relay, transaction, place, b"a", 0)
    end(cluster, transaction, commit=True)
    end(cluster, transaction, commit=True)
    with pytest.raises(Refused, match="invalid txn state"):
        end(cluster, transaction, commit=False)
    assert decided(cluster, relay, place) == [b"a"]


@pytest.mark.parametrize("where", [None, REQUEST, ANSWER])
@pytest.mark.parametrize("committed", [True, False])
def test_who_is_shut_out_stays_so(
    relay: Relay, cluster: Cluster, place: tuple[str, int], committed: bool, where: str | None
) -> None:
    """What was committed stays, what was open is aborted, and nobody begins another one in its name."""
    transaction = begin(cluster, place[0], timeout_ms=TIMEOUT_MS)
    write(relay, transaction, place, b"a", 0)
    if committed:
        end(cluster, transaction, commit=True)
    if where is not None:
        relay.cuts.append(Cut(INIT_PRODUCER_ID, where))
    with suppress(Refused):  # where the answer was cut: it is shut out already
        shut_out(cluster, transaction)
    assert decided(cluster, relay, place) == ([b"a"] if committed else [])
    with pytest.raises(Refused, match=SHUT_OUT):
        add_partitions(cluster, transaction, [place])
    with pytest.raises(Refused, match=SHUT_OUT):
        write(relay, transaction, place, b"late", 1, added=True)
    assert decided(cluster, relay, place) == ([b"a"] if committed else [])


def test_a_newer_one_is_not_shut_out_by_the_older(relay: Relay, cluster: Cluster, place: tuple[str, int]) -> None:
    """As long as it has not written: Kafka looks at the producer id alone when a transaction is open."""
    older = begin(cluster, place[0], timeout_ms=TIMEOUT_MS)
    write(relay, older, place, b"older", 0)
    newer = begin(cluster, place[0], timeout_ms=TIMEOUT_MS)
    with pytest.raises(Refused, match=SHUT_OUT):
        shut_out(cluster, older)
    write(relay, newer, place, b"newer", 0)
    end(cluster, newer, commit=True)
    assert decided(cluster, relay, place) == [b"newer"]


def test_identities_are_new_each_time(cluster: Cluster) -> None:
    first, second = identify(cluster), identify(cluster)
    assert first[0] >= 0 and first[1] == 0
    assert second[0] != first[0]


class Coordinator:
    """A scripted one: its answers' codes, the last of which stays, and how often it was looked for."""

    def __init__(self, *codes: Any) -> None:
        self.codes = list(codes)
        self.found = 0
        self.address = ("", 0)

    def find(self, request: Any) -> dict[str, Any]:
        self.found += 1
        (key,) = request.coordinator_keys
        host, port = self.address
        row = {"key": key, "node_id": 1, "host": host, "port": port, "error_code": 0, "error_message": None}
        return {"coordinators": [row]}

    def _next(self) -> Any:
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]

    def begin(self, request: Any) -> dict[str, Any]:
        return {"error_code": self._next(), "producer_id": 7, "producer_epoch": 3}

    def add(self, request: Any) -> dict[str, Any]:
        rows = [{"partition_index": n, "partition_error_code": code} for n, code in enumerate(self._next())]
        return {"results_by_topic_v3_and_below": [{"name": "orders", "results_by_partition": rows}]}


@contextmanager
def scripted(coordinator: Coordinator) -> Iterator[Cluster]:
    scripts = {
        "find_coordinator": Script(10, 0, 4, coordinator.find),
        "init_producer_id": Script(22, 0, 5, coordinator.begin),
        "add_partitions_to_txn": Script(24, 0, 3, coordinator.add),
    }
    with scripted_broker(**scripts) as broker:
        coordinator.address = (broker.host, broker.port)
        with Cluster(Settings(broker.address)) as cluster:
            yield cluster


@pytest.mark.parametrize("code", [16, 14, 15, 51])  # not the coordinator, loading, not available, one is still ending
def test_what_passes_is_waited_for(code: int) -> None:
    coordinator = Coordinator(code, code, 0)
    with scripted(coordinator) as cluster:
        assert begin(cluster, "t", timeout_ms=1000) == OpenTransaction("t", 7, 3, 1000)
    assert coordinator.found == 3  # it may be another one each time


def test_what_does_not_pass_is_raised() -> None:
    with scripted(Coordinator(53)) as cluster:
        with pytest.raises(Refused, match="transactional id 't': transactional id authorization failed"):
            begin(cluster, "t", timeout_ms=1000)
        with pytest.raises(Refused, match="a new producer id: transactional id authorization failed"):
            identify(cluster)


def test_time_is_up_some_day() -> None:
    told = "transactional id 't': still not to be had after 0.2 s: .*concurrent transactions"
    with scripted(Coordinator(51)) as cluster, pytest.raises(ClientError, match=told):
        begin(cluster, "t", timeout_ms=1000, patience_s=0.2)


@pytest.mark.parametrize("codes", [[55, 29, 55], [0, 29, 0], [29, 55]])
def test_the_partition_that_is_to_blame_is_named_by_its_code(codes: list[int]) -> None:
    """Where one is refused, none is added; 55 says of the others just that."""
    with scripted(Coordinator(codes)) as cluster, pytest.raises(Refused, match="topic authorization failed"):
        add_partitions(cluster, OpenTransaction("t", 7, 3, 1000), [("orders", n) for n in range(len(codes))])


def test_partitions_are_added_when_what_was_in_the_way_is_gone() -> None:
    with scripted(Coordinator([51, 51], [55, 3], [0, 0])) as cluster:
        add_partitions(cluster, OpenTransaction("t", 7, 3, 1000), [("orders", 0), ("orders", 1)])
