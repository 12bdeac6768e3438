"""The Kafka connector that Spark ships works unchanged, so a Spark job moves to Penstock by its address alone."""

import json
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from tests.conformance.clients import ConfluentClient
from tests.conformance.records import CODECS, CREATE_TIME, LOG_APPEND_TIME, Record, sample
from tests.peers.broker import Broker

from .publisher import Publisher, value_at

NewTopic = Callable[..., str]
STREAM_DEADLINE_S = 120.0


@pytest.fixture
def read(spark: SparkSession, broker: Broker) -> Callable[..., DataFrame]:
    """A batch read: `read(subscribe=topic, startingOffsets="earliest", **{"kafka.isolation.level": ...})`."""

    def load(**options: Any) -> DataFrame:
        return _with(spark.read.format("kafka"), broker, options).load()

    return load


def _with(made: Any, broker: Broker, options: dict[str, Any]) -> Any:
    return made.options(**{"kafka.bootstrap.servers": broker.bootstrap}, **options)


def _values(rows: DataFrame) -> list[bytes]:
    """The values in the order of partitions and offsets."""
    return [bytes(row.value) for row in rows.orderBy("partition", "offset").select("value").collect()]


def _bytes(found: bytearray | None) -> bytes | None:
    return None if found is None else bytes(found)


def _expected(topic: str, partition: int, records: Iterable[Record]) -> list[tuple[object, ...]]:
    return [
        (topic, partition, at, each.timestamp_ms, CREATE_TIME, each.key, each.value, each.headers or None)
        for at, each in enumerate(records)
    ]


def _seen(row: Row) -> tuple[object, ...]:
    headers = None if row.headers is None else tuple((each.key, _bytes(each.value)) for each in row.headers)
    time_ms = row.milliseconds
    place = (row.topic, row.partition, row.offset)
    return (*place, time_ms, row.timestampType, _bytes(row.key), _bytes(row.value), headers)


def _rows(found: DataFrame) -> list[tuple[object, ...]]:
    timed = found.withColumn("milliseconds", F.unix_millis("timestamp"))
    return [_seen(row) for row in timed.orderBy("partition", "offset").collect()]


def test_every_column_of_every_codec(read: Callable[..., DataFrame], new_topic: NewTopic, publisher: Publisher) -> None:
    topic = new_topic("codecs", partitions=len(CODECS))
    wanted: list[tuple[object, ...]] = []
    for partition, codec in enumerate(CODECS):
        records = sample(partition, start_ms=int(time.time() * 1000))
        publisher.send(topic, records, partition=partition, codec=codec)
        wanted += _expected(topic, partition, records)
    assert _rows(read(subscribe=topic, includeHeaders="true")) == wanted


def test_log_append_time(read: Callable[..., DataFrame], new_topic: NewTopic, publisher: Publisher) -> None:
    topic = new_topic("appended", **{"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    publisher.send(topic, [Record(b"x", timestamp_ms=1)])
    (row,) = read(subscribe=topic).withColumn("milliseconds", F.unix_millis("timestamp")).collect()
    assert row.timestampType == LOG_APPEND_TIME
    assert before_ms <= row.milliseconds <= int(time.time() * 1000)


def test_ranges(read: Callable[..., DataFrame], new_topic: NewTopic, publisher: Publisher) -> None:
    topic = new_topic("ranges", partitions=2)
    publisher.fill(topic, 100, partitions=2)
    found = read(
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 90, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 5}}),
    )
    assert _values(found) == [value_at(0, at) for at in range(90, 100)] + [value_at(1, at) for at in range(5)]

    one = read(assign=json.dumps({topic: [1]}), startingOffsets="earliest", endingOffsets="latest", minPartitions="4")
    assert one.rdd.getNumPartitions() == 4
    assert _values(one) == [value_at(1, at) for at in range(100)]

    assert read(subscribePattern=f"{topic[:-1]}.").count() == 200


def test_times(read: Callable[..., DataFrame], new_topic: NewTopic, publisher: Publisher) -> None:
    topic = new_topic("times", partitions=2)
    start_ms = int(time.time() * 1000) - 3_600_000
    for partition in range(2):
        records = [Record(value_at(partition, at), timestamp_ms=start_ms + 1000 * at) for at in range(20)]
        publisher.send(topic, records, partition=partition)

    def between(first: int, end: int) -> list[bytes]:
        return [value_at(partition, at) for partition in range(2) for at in range(first, end)]

    # Between two records: the next one begins.
    found = read(subscribe=topic, startingTimestamp=str(start_ms + 4500), endingTimestamp=str(start_ms + 8000))
    assert _values(found) == between(5, 8)

    by_partition = json.dumps({topic: {"0": start_ms + 18_000, "1": start_ms + 19_000}})
    found = read(subscribe=topic, startingOffsetsByTimestamp=by_partition)
    assert _values(found) == [value_at(0, 18), value_at(0, 19), value_at(1, 19)]

    late = datetime.now(UTC).timestamp() * 1000 + 3_600_000
    found = read(subscribe=topic, startingTimestamp=str(int(late)), startingOffsetsByTimestampStrategy="latest")
    assert _values(found) == []


def test_write(spark: SparkSession, broker: Broker, new_topic: NewTopic) -> None:
    topics = [new_topic("written", partitions=2) for _ in range(2)]
    rows = [
        (topics[0], 1, b"k", b"v", [("a", b"1"), ("a", b"2")]),
        (topics[1], 0, None, None, None),
        (topics[1], 1, b"", b"x" * 100_000, []),
    ]
    fields = "topic STRING, partition INT, key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    made = spark.createDataFrame(rows, fields)
    _with(made.write.format("kafka"), broker, {"includeHeaders": "true", "kafka.compression.type": "zstd"}).save()
    client = ConfluentClient(broker.bootstrap)
    for topic, partition, key, value, headers in rows:
        (found,) = client.read(topic, partition, 0, 1)
        assert (found.key, found.value, found.headers) == (key, value, tuple(headers or ()))
    assert [client.latest(topic, partition) for topic in topics for partition in range(2)] == [0, 1, 1, 1]


def test_keys_choose_partitions_as_kafka_does(spark: SparkSession, broker: Broker, new_topic: NewTopic) -> None:
    """Many rows: several batches of the connector's own producer, which is idempotent."""
    topic = new_topic("keyed", partitions=3)
    made = spark.range(20_000).selectExpr("CAST(id AS STRING) AS key", "repeat('x', 100) AS value")
    _with(made.write.format("kafka"), broker, {"topic": topic}).save()
    found = _with(spark.read.format("kafka"), broker, {"subscribe": topic}).load()
    summary = found.selectExpr("count(1) n", "count(DISTINCT key) keys", "sum(length(value)) bytes").first()
    assert summary is not None
    assert tuple(summary) == (20_000, 20_000, 2_000_000)
    # Java's murmur2 of "0", "1" and "2", modulo three.
    chosen = {bytes(row.key): row.partition for row in found.where("key IN ('0', '1', '2')").collect()}
    assert chosen == {b"0": 2, b"1": 0, b"2": 2}


def _copy(spark: SparkSession, broker: Broker, source: str, target: str, checkpoint: Path) -> list[dict[str, Any]]:
    """Stream everything there is from one topic to another; returns the progress of each micro-batch with rows."""
    options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    stream = _with(spark.readStream.format("kafka"), broker, options).load().select("key", "value")
    sink = stream.writeStream.format("kafka").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = _with(sink, broker, {"topic": target}).start()
    assert query.awaitTermination(int(STREAM_DEADLINE_S)), query.status
    return [each for each in map(_plain, query.recentProgress) if each["numInputRows"]]


def _plain(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.json)
    return found


def test_stream_from_topic_to_topic(
    spark: SparkSession,
    broker: Broker,
    read: Callable[..., DataFrame],
    new_topic: NewTopic,
    publisher: Publisher,
    tmp_path: Path,
) -> None:
    source, target = new_topic("in", partitions=2), new_topic("out", partitions=1)
    publisher.fill(source, 50, partitions=2)
    first = _copy(spark, broker, source, target, tmp_path / "checkpoint")
    assert sum(each["numInputRows"] for each in first) == 100
    assert len(first) == 3  # of at most 40
    assert first[-1]["sources"][0]["endOffset"] == {source: {"0": 50, "1": 50}}

    publisher.send(source, [b"later"], partition=1)
    (second,) = _copy(spark, broker, source, target, tmp_path / "checkpoint")
    assert second["sources"][0]["startOffset"] == {source: {"0": 50, "1": 50}}
    sent = [value_at(partition, at) for partition in range(2) for at in range(50)]
    assert sorted(_values(read(subscribe=target))) == sorted([*sent, b"later"])


def test_isolation(read: Callable[..., DataFrame], new_topic: NewTopic, publisher: Publisher) -> None:
    topic = new_topic("isolation")
    for number, end in enumerate(("commit", "abort", "commit", "abort")):
        with publisher.transaction(end) as send:
            send(topic, [b"%s-%d-%d" % (end.encode(), number, at) for at in range(50)])
    kept = [b"commit-%d-%d" % (number, at) for number in (0, 2) for at in range(50)]
    assert _values(read(subscribe=topic, **{"kafka.isolation.level": "read_committed"})) == kept
    assert read(subscribe=topic).count() == 200

    with publisher.transaction("open") as send:
        send(topic, [b"undecided"])
    publisher.send(topic, [b"behind it"])
    assert _values(read(subscribe=topic, **{"kafka.isolation.level": "read_committed"})) == kept
    assert _values(read(subscribe=topic))[-2:] == [b"undecided", b"behind it"]


def test_unknown_topic(read: Callable[..., DataFrame]) -> None:
    with pytest.raises(Exception, match="UnknownTopicOrPartition"):
        read(subscribe="no-such-topic").count()
