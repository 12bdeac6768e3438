"""A key's partition is the one that clients' own partitioners choose."""

import random
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message, Producer

from penstock.records.partitioning import new_partitioner
from tests.peers.broker import Broker

from .clients import JavaClient
from .clients.client import DEADLINE_S
from .clients.confluent import QUIET
from .conftest import Judges

COUNTS = (1, 2, 6, 7, 64)
LIBRDKAFKA = {
    "murmur2": "murmur2",
    "murmur2_random": "murmur2",
    "fnv1a": "fnv1a",
    "fnv1a_random": "fnv1a",
    "consistent": "crc32",
}
"""Its partitioners, and ours that are to choose alike."""


def some_keys() -> list[bytes]:
    """Every length up to 20 and some above, high bytes and low ones."""
    source = random.Random(11)
    sizes = [*range(21), *range(21), *range(21), 31, 32, 33, 100, 1000]
    drawn = [source.randbytes(size) for size in sizes]
    high = [bytes(source.randrange(0x80, 0x100) for _ in range(size)) for size in sizes]
    words = [b"key-%d" % number for number in range(60)]
    # Of the last one FNV-1a is -2^31, which has no opposite.
    return list(dict.fromkeys([*drawn, *high, *words, b"\x00", b"\x00" * 4, b"\xff" * 7, b";K$25"]))


KEYS = some_keys()


def ours(name: str, count: int) -> list[int]:
    chooser = new_partitioner(name, random.Random(1))
    return [chooser.choose(key, count) for key in KEYS]


def placed_by_librdkafka(bootstrap: str, topic: str, name: str) -> list[int]:
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": name, "linger.ms": 5}, logger=QUIET)
    found: dict[bytes, int] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        found[message.key() or b""] = message.partition()

    for key in KEYS:
        producer.produce(topic, b"", key, on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    return [found[key] for key in KEYS]


@pytest.fixture(scope="module")
def topics(new_topic: Callable[..., str]) -> dict[int, str]:
    """By how many partitions they have."""
    return {count: new_topic("placed", partitions=count) for count in COUNTS}


@pytest.mark.parametrize("name", LIBRDKAFKA)
def test_keys_go_where_librdkafka_puts_them(broker: Broker, topics: dict[int, str], name: str) -> None:
    for count, topic in topics.items():
        assert placed_by_librdkafka(broker.bootstrap, topic, name) == ours(LIBRDKAFKA[name], count), count


def test_keys_go_where_librdkafka_puts_them_unless_told_otherwise(broker: Broker, topics: dict[int, str]) -> None:
    """But for the empty key, which it takes for none."""
    for count, topic in topics.items():
        chosen = dict(zip(KEYS, placed_by_librdkafka(broker.bootstrap, topic, "consistent_random"), strict=True))
        wanted = dict(zip(KEYS, ours("crc32", count), strict=True))
        assert chosen | {b"": 0} == wanted | {b"": 0}, count


def test_keys_go_where_the_java_client_puts_them(judges: Judges, topics: dict[int, str]) -> None:
    java = judges["java"]
    assert isinstance(java, JavaClient)
    for count, topic in topics.items():
        assert java.place(topic, KEYS) == ours("murmur2", count), count
