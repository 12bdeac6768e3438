"""Batch writes: every kind of row arrives as it was, where Kafka's own clients would put it, or the reason is told."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from penstock.client.cluster import Cluster
from penstock.client.fetching import PartitionFetcher
from penstock.client.settings import Settings
from penstock.records.batch import decode_header
from tests.conformance.records import CODECS
from tests.peers.broker import Broker

from .observer import Observer

DEADLINE_S = 60.0
BOTH = pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
NewTopic = Callable[..., str]
Write = Callable[..., None]
HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


@pytest.fixture
def write(broker: Broker) -> Write:
    """`write(rows, topic=topic, **{"kafka.acks": "1"})`."""

    def save(rows: DataFrame, *, mode: str = "append", **options: str) -> None:
        brokers = {"kafka.bootstrap.servers": broker.bootstrap}
        rows.write.format("penstock").mode(mode).options(**brokers, **options).save()

    return save


@pytest.fixture
def observer(broker: Broker) -> Observer:
    return Observer(broker.bootstrap)


@BOTH
def test_every_column(
    spark: SparkSession, new_topic: NewTopic, write: Write, observer: Observer, delivery: str
) -> None:
    one, other = (new_topic("written", partitions=2) for _ in range(2))
    rows = [
        (one, 1, b"k", b"v", [("a", b"1"), ("a", b"2"), ("empty", b""), ("none", None)]),
        (other, 0, None, None, None),
        (other, 1, b"", b"", []),
        (one, 0, b"\x00\xff", b"x" * 100_000, None),
        (one, 1, b"k", None, None),
    ]
    frame = spark.createDataFrame(
        rows, f"topic STRING, partition INT, key BINARY, value BINARY, headers {HEADERS}"
    ).coalesce(1)
    before_ms = int(time.time() * 1000)
    write(frame, delivery=delivery)
    for topic in (one, other):
        for partition, found in enumerate(observer.read(topic)):
            wanted = [
                (key, value, tuple(headers or ()))
                for *place, key, value, headers in rows
                if place == [topic, partition]
            ]
            assert [(each.key, each.value, each.headers) for each in found] == wanted
            assert all(before_ms <= each.timestamp_ms <= time.time() * 1000 for each in found)


@BOTH
def test_text(spark: SparkSession, new_topic: NewTopic, write: Write, observer: Observer, delivery: str) -> None:
    topic = new_topic("text")
    rows = [("ключ", "wert ✓"), (None, "no key"), ("no value", None), ("", "")]
    write(spark.createDataFrame(rows, "key STRING, value STRING").coalesce(1), topic=topic, delivery=delivery)
    (found,) = observer.read(topic)
    wanted = [tuple(None if text is None else text.encode() for text in row) for row in rows]
    assert [(each.key, each.value) for each in found] == wanted


def test_values_alone(spark: SparkSession, new_topic: NewTopic, write: Write, observer: Observer) -> None:
    topic = new_topic("values", partitions=2)
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value").repartition(2)
    write(frame, topic=topic)
    assert observer.values(topic) == sorted(b"%d" % number for number in range(100))
    assert min(observer.ends(topic)) > 0  # tasks begin at different partitions


def test_the_option_wins_over_the_column(
    spark: SparkSession, new_topic: NewTopic, write: Write, observer: Observer
) -> None:
    topic = new_topic("option")
    write(spark.createDataFrame([("elsewhere", b"v")], "topic STRING, value BINARY"), topic=topic)
    assert observer.values(topic) == [b"v"]


def test_rows_that_name_a_partition_and_rows_that_do_not(
    spark: SparkSession, new_topic: NewTopic, write: Write, observer: Observer
) -> None:
    topic = new_topic("placed", partitions=3)
    # Java's murmur2 of "0", "1" and "2" modulo three is 2, 0 and 2.
    rows = [(1, "0", "named"), (None, "0", "by key"), (None, "1", "by key"), (0, "2", "named")]
    write(spark.createDataFrame(rows, "partition INT, key STRING, value STRING"), topic=topic)
    found = [{(each.key, each.value) for each in part} for part in observer.read(topic)]
    assert found == [{(b"1", b"by key"), (b"2", b"named")}, {(b"0", b"named")}, {(b"0", b"by key")}]


def test_keys_go_where_other_clients_put_them(
    spark: SparkSession, broker: Broker, new_topic: NewTopic, write: Write, observer: Observer
) -> None:
    """Kafka's Java client by Spark's own connector, librdkafka with the partitioner that is like Java's."""
    keys = ["", *(f"{'é' * (number % 7)}{number}" for number in range(500))]
    ours, java, librdkafka = (new_topic("keys", partitions=7) for _ in range(3))
    frame = spark.createDataFrame([(key, "v") for key in keys], "key STRING, value STRING")
    write(frame, topic=ours)
    brokers = {"kafka.bootstrap.servers": broker.bootstrap}
    frame.write.format("kafka").options(**brokers, topic=java).save()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(librdkafka, "v", key)
    assert producer.flush(DEADLINE_S) == 0

    def places(topic: str) -> list[set[bytes | None]]:
        return [{each.key for each in part} for part in observer.read(topic)]

    assert places(ours) == places(java) == places(librdkafka)
    assert all(places(ours))


@pytest.mark.parametrize("acks", ["0", "1", "all", "-1"])
def test_acks(spark: SparkSession, new_topic: NewTopic, write: Write, observer: Observer, acks: str) -> None:
    topic = new_topic("acks", partitions=2)
    frame = spark.range(1000).selectExpr("CAST(id AS STRING) AS key", "repeat('x', 100) AS value")
    write(frame, topic=topic, **{"kafka.acks": acks, "kafka.batch.size": "16384"})
    deadline = time.monotonic() + DEADLINE_S
    while acks == "0" and sum(observer.ends(topic)) < 1000:  # nobody told the writer when they were there
        assert time.monotonic() < deadline
    keys = [each.key for part in observer.read(topic) for each in part]
    assert sorted(keys) == sorted(b"%d" % number for number in range(1000))


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(
    spark: SparkSession, broker: Broker, new_topic: NewTopic, write: Write, observer: Observer, codec: str
) -> None:
    topic = new_topic("codecs")
    frame = spark.range(1000).coalesce(1).selectExpr("CAST(id AS STRING) AS key", "repeat('x', 100) AS value")
    write(frame, topic=topic, **{"kafka.compression.type": codec})
    (found,) = observer.read(topic)
    assert [each.key for each in found] == [b"%d" % number for number in range(1000)]
    assert {each.value for each in found} == {b"x" * 100}
    assert _codec_of(broker, topic) == CODECS.index(codec)


def _codec_of(broker: Broker, topic: str) -> int:
    """Of the first batch, as it is in the log."""
    settings = Settings(broker.bootstrap)
    with Cluster(settings) as cluster:
        made = cluster.topics([topic])[topic]
        fetcher = PartitionFetcher(settings, cluster, made, 0, read_committed=False, max_bytes=1 << 20)
        fetcher.send(0)
        header = decode_header(fetcher.receive().records)
        fetcher.close()
    return header.attributes & 7


@BOTH
def test_more_than_a_batch_holds(
    spark: SparkSession, new_topic: NewTopic, write: Write, observer: Observer, delivery: str
) -> None:
    """Rows larger than a batch is meant to be, and many batches of one task; all in order."""
    topic = new_topic("large")
    sizes = [20_000, 1, 900_000, 1, *[15_000] * 60]
    rows = [(f"{at:03d}", b"x" * size) for at, size in enumerate(sizes)]
    frame = spark.createDataFrame(rows, "key STRING, value BINARY").coalesce(1)
    write(frame, topic=topic, delivery=delivery, **{"kafka.batch.size": "16384"})
    (found,) = observer.read(topic)
    assert [(each.key, len(each.value or b"")) for each in found] == [(key.encode(), len(value)) for key, value in rows]


@BOTH
def test_a_record_that_is_too_large(
    spark: SparkSession, new_topic: NewTopic, write: Write, observer: Observer, delivery: str
) -> None:
    topic = new_topic("too-large", **{"max.message.bytes": "10000"})
    frame = spark.createDataFrame([(b"x" * 20_000,)], "value BINARY").select(F.lit("k").alias("key"), "value")
    with pytest.raises(
        Exception, match=rf"rows were not written: 20\d+ bytes for partition 0 of topic '{topic}': message too large"
    ):
        write(frame, topic=topic, delivery=delivery)
    assert observer.values(topic) == []


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("value INT", "column 'value' is int, but must be string or binary; cast it"),
        ("key BIGINT, value STRING", "column 'key' is bigint, but must be string or binary; cast it"),
        ("value STRING, partition BIGINT", "column 'partition' is bigint, but must be integer; cast it"),
        ("value STRING, topic BINARY", "column 'topic' is binary, but must be string; cast it"),
        ("value STRING, headers ARRAY<STRING>", r"column 'headers' is array<string>, but must be array<struct<key:"),
        ("value STRING, offset BIGINT", "column 'offset' has no place in a record; key, value, headers, topic, partit"),
        ("key STRING", "rows to write have no column 'value'"),
    ],
)
def test_columns_that_cannot_be_written(
    spark: SparkSession, new_topic: NewTopic, write: Write, columns: str, told: str
) -> None:
    with pytest.raises(Exception, match=told):
        write(spark.createDataFrame([], columns), topic=new_topic("columns"))


def refused(write: Write, frame: DataFrame, told: str, **options: Any) -> None:
    with pytest.raises(Exception, match=told):
        write(frame, **options)


def test_what_cannot_be_written_to(spark: SparkSession, broker: Broker, new_topic: NewTopic, write: Write) -> None:
    topic = new_topic("there", partitions=2)
    value = spark.createDataFrame([("v",)], "value STRING")
    refused(write, value, "no topic to write to: set the option topic, or give rows a column 'topic'")
    refused(write, value, f"no topic 'not-there' at {broker.bootstrap} to write to; create it first", topic="not-there")
    refused(write, value, "records are never overwritten; write with mode", topic=topic, mode="overwrite")

    def named(*names: str | None) -> DataFrame:
        return spark.createDataFrame([(name, "v") for name in names], "topic STRING, value STRING")

    refused(write, named(topic, None), "a row names no topic: its column 'topic' is null")
    refused(write, named(topic, "not-there"), f"no topic 'not-there' at {broker.bootstrap} to write to; create it")
    placed = spark.createDataFrame([(2, "v")], "partition INT, value STRING")
    refused(write, placed, rf"topic '{topic}': .*2", topic=topic)


def keys_of(observer: Observer, topic: str) -> Sequence[bytes | None]:
    return sorted(each.key or b"" for part in observer.read(topic) for each in part)


def test_all_or_nothing(spark: SparkSession, new_topic: NewTopic, write: Write, observer: Observer) -> None:
    """Four tasks share two partitions in one transaction; one of them fails, and then none does."""
    topic = new_topic("atomic", partitions=2)
    rows = spark.range(2000).repartition(4).selectExpr("CAST(id AS STRING) AS key", "'v' AS value")
    late = F.when(F.spark_partition_id() == 3, F.raise_error(F.lit("broken on purpose"))).otherwise(F.col("key"))
    with pytest.raises(Exception, match="broken on purpose"):
        write(rows.select(late.cast("string").alias("key"), "value"), topic=topic, delivery="exactly-once")
    assert sum(observer.ends(topic)) > 0, "it did not fail in the middle"
    assert keys_of(observer, topic) == []

    write(rows, topic=topic, delivery="exactly-once")
    write(rows.limit(10), topic=topic, delivery="exactly-once")
    found = keys_of(observer, topic)
    assert len(found) == 2010
    assert set(found) == {b"%d" % number for number in range(2000)}


@BOTH
def test_no_rows(spark: SparkSession, new_topic: NewTopic, write: Write, observer: Observer, delivery: str) -> None:
    topic = new_topic("empty")
    write(spark.createDataFrame([], "key STRING, value STRING"), topic=topic, delivery=delivery)
    assert observer.ends(topic) == [0]
