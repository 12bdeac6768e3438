"""The embedded broker: a stranger's test can write and read, and what was written outlives the block."""

import socket
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from penstock.errors import Code, PenstockError, StartupError
from penstock.testing import EmbeddedBroker, embedded_broker
from penstock.testing.held_port import HeldPort


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


def settings_of(broker: EmbeddedBroker, topic: str) -> dict[str, str | None]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = admin.describe_configs([resource])
    return {name: entry.value for name, entry in asked[resource].result(30).items()}


def partitions_of(broker: EmbeddedBroker, topic: str) -> int:
    return len(
        AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(topic, timeout=30).topics[topic].partitions
    )


def test_a_topic_is_made_in_one_call() -> None:
    with embedded_broker(partitions=2) as broker:
        assert (
            broker.create_topic("orders", 3, cleanup_policy="compact", retention_ms=60_000, preallocate=True)
            == "orders"
        )
        assert partitions_of(broker, "orders") == 3
        found = settings_of(broker, "orders")
        assert (found["cleanup.policy"], found["retention.ms"], found["preallocate"]) == ("compact", "60000", "true")
        assert partitions_of(broker, broker.create_topic("payments")) == 2


def test_a_topic_that_cannot_be_made_is_told_with_the_way_out() -> None:
    with embedded_broker() as broker:
        broker.create_topic("orders")
        with pytest.raises(PenstockError, match=r"'orders' exists already; choose another name, or .* of its own"):
            broker.create_topic("orders")
        with pytest.raises(PenstockError, match=r"cleanup\.polcy.*did you mean cleanup\.policy"):
            broker.create_topic("payments", cleanup_polcy="compact")
        broker.stop()
        with pytest.raises(PenstockError, match=r"is stopped; start\(\) it first") as refused:
            broker.create_topic("payments")
        assert refused.value.code is Code.NOT_AVAILABLE


def clean_mark(broker: EmbeddedBroker) -> Path:
    return broker.data_dir / "clean-shutdown"


@pytest.mark.parametrize("cleanly", [True, False])
def test_it_comes_back_at_the_same_place_with_its_records(cleanly: bool) -> None:
    with embedded_broker(partitions=1) as broker:
        place = (broker.bootstrap, broker.http, broker.data_dir)
        produce(broker.bootstrap, "orders", [b"before"])
        broker.stop() if cleanly else broker.kill()
        assert clean_mark(broker).exists() == cleanly
        broker.start()
        assert (broker.bootstrap, broker.http, broker.data_dir) == place
        produce(broker.bootstrap, "orders", [b"after"])
        assert consume(broker.bootstrap, "orders", 2) == [b"before", b"after"]
        broker.restart()
        assert consume(broker.bootstrap, "orders", 2) == [b"before", b"after"]


def test_a_stopped_broker_refuses_and_keeps_its_port() -> None:
    with embedded_broker() as broker:
        broker.stop()
        broker.stop()
        host, _, port = broker.bootstrap.partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=30)
        taken = socket.socket()
        with taken, pytest.raises(OSError, match="in use"):
            taken.bind((host, int(port)))


def test_a_port_of_ones_choice() -> None:
    held = HeldPort()
    held.release()
    with embedded_broker(port=held.number) as broker:
        assert broker.bootstrap == f"127.0.0.1:{held.number}"
        with pytest.raises(
            StartupError, match=rf"127\.0\.0\.1:{held.number} .* in use; stop what uses it, name another"
        ):
            embedded_broker(port=held.number).__enter__()


def test_a_port_that_is_none() -> None:
    with pytest.raises(StartupError, match=r"127\.0\.0\.1:70000 cannot be used"):
        embedded_broker(port=70_000).__enter__()


def test_an_unusable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=rf"{tmp_path}/file"):
        embedded_broker(tmp_path / "file").__enter__()
