"""Records that are gone before they are read: told, or passed over where that was asked for, and never in silence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, SparkSession

from tests.peers.broker import Broker

from .publisher import DEADLINE_S, Publisher, value_at
from .query import Stream, read_values, wait_for

NewTopic = Callable[..., str]
Load = Callable[..., DataFrame]


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> Callable[..., Stream]:
    def make(**options: str) -> Stream:
        given = {"kafka.bootstrap.servers": broker.bootstrap, "startingOffsets": "earliest", **options}
        return Stream(spark, tmp_path / "checkpoint", given)

    return make


@pytest.fixture
def load(spark: SparkSession, broker: Broker) -> Load:
    def read(source: str = "penstock", **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
        return spark.read.format(source).options(**given).load()

    return read


def delete_records(broker: Broker, topic: str, before: int, partition: int = 0) -> None:
    """As retention does, but at once; by a client that has not heard of the topic before, as it may have grown."""
    place = TopicPartition(topic, partition, before)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (done,) = admin.delete_records([place], operation_timeout=DEADLINE_S).values()
    assert done.result(DEADLINE_S).low_watermark == before


def delete_topic(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic], operation_timeout=DEADLINE_S)[topic].result(DEADLINE_S)
    wait_for(lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, lambda: f"{topic} is still there")


def sent(start: int, end: int, partition: int = 0) -> list[bytes]:
    return [value_at(partition, at) for at in range(start, end)]


def test_retention_overtakes_a_stream(
    stream: Callable[..., Stream], broker: Broker, admin: AdminClient, publisher: Publisher, new_topic: NewTopic
) -> None:
    topic = new_topic("overtaken")
    publisher.send(topic, sent(0, 10))
    overtaken = stream(subscribe=topic)
    overtaken.run()
    assert overtaken.values() == sent(0, 10)

    publisher.send(topic, sent(10, 30))
    delete_records(broker, topic, 20)
    told = rf"offsets 10 to 30 of partition 0 of topic '{topic}': 10 is gone, the log now begins at 20"
    with pytest.raises(Exception, match=rf"{told}.*failOnDataLoss=false goes on"):
        overtaken.run()
    assert overtaken.values() == sent(0, 10)

    # A partition that is new, and of which something is gone already.
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(DEADLINE_S)
    with publisher.transaction() as send:  # a producer that has not heard of the topic before
        send(topic, sent(0, 5, partition=1), partition=1)
    delete_records(broker, topic, 2, partition=1)
    overtaken.run(failOnDataLoss="false")
    assert overtaken.values() == sent(0, 10) + sent(20, 30) + sent(2, 5, partition=1)


def test_a_topic_deleted_and_made_anew_during_a_stream(
    stream: Callable[..., Stream], admin: AdminClient, publisher: Publisher, new_topic: NewTopic
) -> None:
    """With more records than the old one had, so that offsets alone would not tell."""
    kept, topic = new_topic("kept"), new_topic("again")
    publisher.send(topic, sent(0, 10))
    again = stream(subscribe=f"{topic},{kept}")
    query = again.start()
    wait_for(lambda: len(again.rows()) == 10 or not query.isActive, lambda: query.status)
    delete_topic(admin, topic)
    publisher.send(kept, sent(0, 1))
    wait_for(lambda: not query.isActive, lambda: query.status)
    assert f"topic '{topic}' is gone. Records may be lost; failOnDataLoss=false goes on" in str(query.exception())

    publisher.create_topic(topic)
    publisher.send(topic, sent(100, 120))
    with pytest.raises(Exception, match=rf"topic '{topic}' was deleted and made anew: its id was .* and is "):
        again.run()
    assert {row.value for row in again.rows()} <= {*sent(0, 10)}
    again.run(failOnDataLoss="false")
    assert sorted(again.values()) == sorted(sent(0, 10) + sent(100, 120) + sent(0, 1))


def test_batch_reads(load: Load, broker: Broker, publisher: Publisher, new_topic: NewTopic) -> None:
    topic = new_topic("trimmed")
    publisher.send(topic, sent(0, 10))  # one record batch, cut in its middle
    delete_records(broker, topic, 4)
    assert read_values(load(subscribe=topic)) == sent(4, 10)
    assert read_values(load(source="kafka", subscribe=topic)) == sent(4, 10)

    def begin_at(offset: int) -> dict[str, str]:
        return {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": offset}})}

    with pytest.raises(Exception, match=rf"offset 1 of partition 0 of topic '{topic}' is gone, its log begins at 4"):
        load(**begin_at(1)).count()
    assert read_values(load(**begin_at(1), failOnDataLoss="false")) == sent(4, 10)
    assert read_values(load(**begin_at(10))) == []
    with pytest.raises(Exception, match=rf"offset 11 of partition 0 of topic '{topic}' is behind its end, 10"):
        load(**begin_at(11)).count()
    with pytest.raises(Exception, match=r"endingOffsets: offset 12 of partition 0 .* is behind its end, 10"):
        load(subscribe=topic, endingOffsets=json.dumps({topic: {"0": 12}})).count()
