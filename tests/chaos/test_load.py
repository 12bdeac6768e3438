"""The load against librdkafka's own mock cluster: it records what a broker that keeps its word gives."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.chaos.history import History, Kind, Outcome
from tests.chaos.load import ProducerLoad, ReaderLoad, read_everything, wait_until
from tests.chaos.wire import Wire

PARTITIONS = 3


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """The mock cluster lives in the process of the client that asked for it."""
    owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(owner.list_topics(timeout=10).brokers.values()))
    owner.list_topics("t", timeout=10)
    yield f"{broker.host}:{broker.port}"
    del owner


def test_a_run_without_faults_is_clean(bootstrap: str) -> None:
    history = History()
    with (
        ProducerLoad(bootstrap, "t", PARTITIONS, history) as load,
        ReaderLoad(bootstrap, "t", PARTITIONS, history),
    ):
        load.wait_for_acks(300)
        load.settle()
        acked = history.acked
        wait_until(lambda: len(history.seen["r"]) >= acked, 20, "the reader saw everything")
        load.resume()
        load.wait_for_acks(100)
        load.settle()
        logs = read_everything(bootstrap, "t", PARTITIONS)
    assert sum(len(log.records) for log in logs.values()) == len(history.sends()) == history.acked
    assert all(send.outcome is Outcome.OK for send in history.sends())
    assert history.check(logs) == []
    assert load.failed == []


def test_a_record_taken_away_is_noticed(bootstrap: str) -> None:
    history = History()
    with ProducerLoad(bootstrap, "t", 1, history) as load:
        load.wait_for_acks(10)
        load.settle()
        log = read_everything(bootstrap, "t", 1)[0]
    assert {v.kind for v in history.check({0: log})} == set()
    shorter = type(log)(log.start_offset, log.end_offset - 1, log.records[:-1])
    assert {v.kind for v in history.check({0: shorter})} == {Kind.LOST}


def test_the_wire_produces_and_numbers_producers(bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        first = wire.produce("t", {0: [b"a:", b"b:"], 1: [b"c:"]})
        assert [(part.partition, part.error_code, part.base_offset) for part in first] == [
            (0, 0, 0),
            (1, 0, 0),
        ]
        assert wire.produce_one("t", b"d:").base_offset == 2
        assert wire.produce("unknown-\0", {0: [b"x"]})[0].error_code != 0
        assert wire.init_producer_id() != wire.init_producer_id()
    logs = read_everything(bootstrap, "t", 2)
    assert [record.value for record in logs[0].records] == ["a", "b", "d"]
    assert [record.value for record in logs[1].records] == ["c"]
