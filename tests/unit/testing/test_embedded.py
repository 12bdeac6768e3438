"""The embedded broker: a stranger's test can write and read, and what was written outlives the block."""

import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.errors import StartupError
from penstock.testing import embedded_broker


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(30) == 0
    assert failures == []


def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), timeout=30)
        assert messages, f"only {len(found)} of {count} records came"
        for message in messages:
            assert message.error() is None
            found.append(message.value() or b"")
    consumer.close()
    return found


def test_writes_and_reads() -> None:
    values = [b"%d" % number for number in range(100)]
    with embedded_broker(partitions=1) as broker:
        produce(broker.bootstrap, "orders", values)
        assert consume(broker.bootstrap, "orders", 100) == values
        with urllib.request.urlopen(f"{broker.http}/health/ready") as answer:  # noqa: S310
            assert answer.status == 200
        kept = broker.data_dir
    assert not kept.exists()


def test_a_named_directory_keeps_its_records(tmp_path: Path) -> None:
    with embedded_broker(tmp_path) as broker:
        produce(broker.bootstrap, "orders", [b"first"])
    with embedded_broker(tmp_path) as broker:
        produce(broker.bootstrap, "orders", [b"second"])
        assert consume(broker.bootstrap, "orders", 2) == [b"first", b"second"]


def test_two_brokers_on_one_directory(tmp_path: Path) -> None:
    with embedded_broker(tmp_path), pytest.raises(StartupError, match="in use by another broker"):
        embedded_broker(tmp_path).__enter__()


def test_a_bad_topic_default_is_named() -> None:
    with pytest.raises(StartupError, match=r"defaults\.topic.*flsh.*did you mean flush"):
        embedded_broker(topic_defaults={"flsh": "os"}).__enter__()
