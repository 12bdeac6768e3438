"""Refusals: each client must see Kafka's own error for it."""

import random
from collections.abc import Callable

import pytest

from .clients import CLIENTS, ClientError
from .conftest import Judges, fresh_name
from .records import Record, matches

UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
# librdkafka's own codes for a topic or partition that the broker's metadata does not list.
LOCAL_UNKNOWN = {-188, -190}


@pytest.mark.parametrize("writer", CLIENTS)
def test_message_too_large(judges: Judges, new_topic: Callable[..., str], writer: str) -> None:
    topic = new_topic("narrow", **{"max.message.bytes": "10000"})
    client = judges[writer]
    large = random.Random(1).randbytes(20_000).replace(b"\x1e", b"").replace(b"\x1f", b"")
    with pytest.raises(ClientError) as failure:
        client.produce(topic, 0, [Record(large, b"k")])
    assert failure.value.code == MESSAGE_TOO_LARGE
    assert client.latest(topic, 0) == 0
    fits = [Record(large[:9000], b"k")]
    client.produce(topic, 0, fits)
    matches(fits, client.read(topic, 0, 0, 1))


@pytest.mark.parametrize("name", [name for name, each in CLIENTS.items() if each.has_admin])
def test_deleting_an_unknown_topic(judges: Judges, name: str) -> None:
    with pytest.raises(ClientError) as failure:
        judges[name].delete_topic(fresh_name("never-made"))
    assert failure.value.code == UNKNOWN_TOPIC_OR_PARTITION


def test_reading_an_unknown_topic(judges: Judges) -> None:
    topic = fresh_name("never-made")
    with pytest.raises(ClientError) as failure:
        judges["kcat"].read(topic, 0, 0, 1)
    assert failure.value.code == UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ClientError) as failure:
        judges["confluent"].latest(topic, 0)
    assert failure.value.code in {UNKNOWN_TOPIC_OR_PARTITION, *LOCAL_UNKNOWN}
    assert topic not in judges["java"].topics()


def test_writing_beyond_the_last_partition(judges: Judges, new_topic: Callable[..., str]) -> None:
    topic = new_topic("two", partitions=2)
    with pytest.raises(ClientError) as failure:
        judges["confluent"].produce(topic, 9, [Record(b"nowhere")])
    assert failure.value.code in LOCAL_UNKNOWN
    assert [judges["java"].latest(topic, partition) for partition in (0, 1)] == [0, 0]
