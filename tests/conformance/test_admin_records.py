"""Partitions added to a topic and records deleted from its front, through every client that can."""

from collections.abc import Callable

import pytest

from tests.peers.broker import Broker

from .clients import ADMINS, CLIENTS, ClientError
from .conftest import Admins, Judges, eventually, fresh_name
from .records import Record, matches

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_PARTITIONS = 37


def numbered(first: int, count: int) -> list[Record]:
    return [Record(b"value %d" % n, b"key %d" % n) for n in range(first, first + count)]


@pytest.mark.parametrize("name", ADMINS)
def test_more_partitions(judges: Judges, admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic = new_topic("grow", partitions=2)
    kept = numbered(0, 5)
    judges["confluent"].produce(topic, 1, kept)

    admins[name].create_partitions(topic, 3, validate_only=True)
    assert judges["confluent"].topics()[topic] == 2, "only asked, not done"

    admins[name].create_partitions(topic, 4)
    for each in ("confluent", "aiokafka", "java"):
        assert eventually(lambda each=each: judges[each].topics()[topic], lambda count: count == 4) == 4, each
    added = numbered(100, 5)
    judges["java"].produce(topic, 3, added)
    matches(added, judges["confluent"].read(topic, 3, 0, 5))
    matches(kept, judges["confluent"].read(topic, 1, 0, 5))
    assert judges["java"].latest(topic, 2) == 0


@pytest.mark.parametrize("name", ADMINS)
def test_refused_partitions(judges: Judges, admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic = new_topic("three", partitions=3)

    def refusal(where: str, total: int) -> int:
        with pytest.raises(ClientError) as failure:
            admins[name].create_partitions(where, total)
        return failure.value.code

    assert refusal(topic, 2) == INVALID_PARTITIONS
    assert refusal(topic, 3) == INVALID_PARTITIONS
    assert refusal(fresh_name("never-made"), 3) == UNKNOWN_TOPIC_OR_PARTITION
    assert judges["confluent"].topics()[topic] == 3


def test_absurd_totals_are_refused(
    broker: Broker, judges: Judges, admins: Admins, new_topic: Callable[..., str]
) -> None:
    # Only the Java client leaves the check of a count to the broker.
    topic = new_topic("absurd")
    # Apache Kafka tries the large ones and is busy with its failure for a minute and more.
    for total in (-1, 0, 100_001, 2_000_000_000) if broker.name == "penstock" else (-1, 0):
        with pytest.raises(ClientError) as failure:
            admins.java.create_partitions(topic, total)
        assert failure.value.code == INVALID_PARTITIONS, total
    assert judges["confluent"].topics()[topic] == 1


@pytest.mark.parametrize("name", ADMINS)
def test_deleted_records(judges: Judges, admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic, admin = new_topic("trim", partitions=3), admins[name]
    records = numbered(0, 20)
    for partition in (0, 1, 2):
        for first in range(0, 20, 10):  # two batches, so that one offset below is inside a batch
            judges["confluent"].produce(topic, partition, records[first : first + 10])

    assert admin.delete_records(topic, {0: 5, 1: -1}) == {0: 5, 1: 20}
    for reader in CLIENTS if name == "java" else ("java",):
        found = [judges[reader].earliest(topic, partition) for partition in (0, 1, 2)]
        assert found == [5, 20, 0], reader
        matches(records[5:], judges[reader].read(topic, 0, 5, 15), 5)
        with pytest.raises(ClientError) as failure:
            judges[reader].read(topic, 0, 4, 1)
        assert failure.value.code == OFFSET_OUT_OF_RANGE, reader
        assert judges[reader].latest(topic, 1) == 20, reader

    assert admin.delete_records(topic, {0: 3}) == {0: 5}, "below the first offset left: nothing to do"
    assert admin.delete_records(topic, {0: 10}) == {0: 10}
    more = numbered(20, 1)
    assert judges["java"].produce(topic, 1, more) == [20]
    matches(more, judges["java"].read(topic, 1, 20, 1), 20)


@pytest.mark.parametrize("name", ADMINS)
def test_refused_deletions(judges: Judges, admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic, admin = new_topic("keep"), admins[name]
    judges["confluent"].produce(topic, 0, numbered(0, 5))
    with pytest.raises(ClientError) as failure:
        admin.delete_records(topic, {0: 6})
    assert failure.value.code == OFFSET_OUT_OF_RANGE
    assert judges["confluent"].earliest(topic, 0) == 0


def test_a_time_before_the_deleted_records(
    judges: Judges, admins: Admins, new_topic: Callable[..., str], yesterday_ms: int
) -> None:
    topic = new_topic("trim-times")
    records = [Record(b"%d" % n, None, (), yesterday_ms + n * 1000) for n in range(10)]
    judges["java"].produce(topic, 0, records)
    admins.java.delete_records(topic, {0: 6})
    assert judges["java"].offset_for_time(topic, 0, yesterday_ms) == 6
    assert judges["java"].offset_for_time(topic, 0, yesterday_ms + 8000) == 8
