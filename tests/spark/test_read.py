"""Batch reads: the rows that were written, and those Spark's own connector reads in the same session."""

import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, Row, SparkSession

from penstock.cli.authority import Authority, make_authority, now_utc
from tests.conformance.records import CODECS, CREATE_TIME, LOG_APPEND_TIME, Record, sample
from tests.peers import penstock
from tests.peers.broker import Broker

from .publisher import DEADLINE_S, Publisher, value_at
from .query import Read, read_rows, read_values

MakeTopic = Callable[..., str]
Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, broker: Broker) -> Load:
    """A read: `load(subscribe=topic, startingOffsets="earliest")`; with `source="kafka"` by Spark's own connector."""

    def read(source: str = "penstock", **options: str) -> DataFrame:
        given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
        return spark.read.format(source).options(**given).load()

    return read


@pytest.fixture
def read_twice(load: Load) -> Callable[..., list[bytes | None]]:
    """The values of a read, which both sources must give."""

    def read(**options: str) -> list[bytes | None]:
        found = read_values(load(**options))
        assert found == read_values(load("kafka", **options))
        return found

    return read


def sent(start: int, end: int, partition: int = 0) -> list[bytes]:
    return [value_at(partition, at) for at in range(start, end)]


class Scan(NamedTuple):
    """How a read was done."""

    ranges: int
    fetched: int
    """Rows that came out of the source, before Spark's own filters."""
    rows: list[Row]


def scan(frame: DataFrame) -> Scan:
    rows = frame.collect()
    execution = frame._jdf.queryExecution()
    leaf = execution.executedPlan().collectLeaves().apply(0)
    return Scan(int(execution.toRdd().getNumPartitions()), int(leaf.metrics().apply("numOutputRows").value()), rows)


def test_every_column_of_every_codec(load: Load, publisher: Publisher, new_topic: MakeTopic) -> None:
    """Keys, values and headers that are null, empty, odd, large."""
    topic = new_topic("codecs", partitions=len(CODECS) + 1)
    wanted: list[Read] = []
    for number, codec in enumerate(CODECS):
        records = sample(number, start_ms=int(time.time() * 1000))
        publisher.send(topic, records, partition=number, codec=codec)
        wanted += [
            Read(topic, number, at, each.timestamp_ms or 0, CREATE_TIME, each.key, each.value, each.headers or None)
            for at, each in enumerate(records)
        ]
    ours, theirs = (load(source, subscribe=topic, includeHeaders="true") for source in ("penstock", "kafka"))
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    assert read_rows(ours) == wanted
    assert read_rows(theirs) == wanted

    narrow = load(subscribe=topic, columns="offset, VALUE, partition")
    assert narrow.columns == ["offset", "value", "partition"]
    assert sorted((row.partition, row.offset) for row in narrow.collect()) == [each[1:3] for each in wanted]
    assert load(subscribe=topic).columns == load("kafka", subscribe=topic).columns


def test_log_append_time_and_two_topics(load: Load, publisher: Publisher, new_topic: MakeTopic) -> None:
    stamped = new_topic("stamped", **{"message.timestamp.type": "LogAppendTime"})
    empty = new_topic("empty", partitions=2)
    before_ms = int(time.time() * 1000)
    publisher.send(stamped, [Record(None, b"k", timestamp_ms=1), Record(b"", timestamp_ms=1)], codec="zstd")
    found = read_rows(load(subscribe=f"{empty}, {stamped}"))
    assert found == read_rows(load("kafka", subscribe=f"{empty},{stamped}"))
    assert [(row.offset, row.key, row.value, row.time_type) for row in found] == [
        (0, b"k", None, LOG_APPEND_TIME),
        (1, None, b"", LOG_APPEND_TIME),
    ]
    assert before_ms <= found[0].time_ms <= int(time.time() * 1000)

    nothing = load(subscribe=empty)
    assert (nothing.count(), nothing.collect()) == (0, [])
    assert load(subscribePattern="^no-such-topic-ever$").count() == 0


def test_offsets(load: Load, read_twice: Callable[..., Any], publisher: Publisher, new_topic: MakeTopic) -> None:
    topic = new_topic("offsets", partitions=2)
    publisher.fill(topic, 100, partitions=2)
    found = read_twice(
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 90, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 5}}),
    )
    assert found == sent(90, 100) + sent(0, 5, partition=1)
    assert read_twice(assign=json.dumps({topic: [1]}), startingOffsets="earliest", endingOffsets="latest") == sent(
        0, 100, partition=1
    )
    assert read_twice(subscribePattern=f"{topic[:-1]}.$") == sent(0, 100) + sent(0, 100, partition=1)

    for options, count in (({"minPartitions": "7"}, 7), ({"maxRecordsPerPartition": "30"}, 8), ({}, 2)):
        cut = scan(load(subscribe=topic, columns="partition,offset", **options))
        assert cut.ranges == count
        assert sorted(map(tuple, cut.rows)) == [(number, at) for number in range(2) for at in range(100)]


def test_times(load: Load, read_twice: Callable[..., Any], publisher: Publisher, new_topic: MakeTopic) -> None:
    topic = new_topic("times", partitions=2)
    start_ms = int(time.time() * 1000) - 3_600_000
    for number in range(2):
        records = [Record(value_at(number, at), timestamp_ms=start_ms + 1000 * at) for at in range(20)]
        publisher.send(topic, records, partition=number)

    between = read_twice(subscribe=topic, startingTimestamp=str(start_ms + 4500), endingTimestamp=str(start_ms + 8000))
    assert between == sent(5, 8) + sent(5, 8, partition=1)
    by_partition = read_twice(
        subscribe=topic,
        startingOffsetsByTimestamp=json.dumps({topic: {"0": start_ms + 18_000, "1": start_ms + 16_001}}),
        endingOffsetsByTimestamp=json.dumps({topic: {"0": start_ms + 90_000, "1": start_ms + 19_000}}),
    )
    assert by_partition == sent(18, 20) + sent(17, 19, partition=1)

    late = {"subscribe": topic, "startingTimestamp": str(start_ms + 20_000)}
    assert read_twice(**late, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(Exception, match=rf"startingTimestamp: partition {topic}-0 has no record at or after"):
        load(**late).count()


def test_filters_cut_what_is_fetched(load: Load, publisher: Publisher, new_topic: MakeTopic) -> None:
    topic = new_topic("filtered", partitions=3)
    start_ms = int(time.time() * 1000) - 3_600_000
    for number in range(3):
        records = [Record(value_at(number, at), timestamp_ms=start_ms + 1000 * at) for at in range(100)]
        publisher.send(topic, records, partition=number)
    whole = load(subscribe=topic, pushdown="true")
    moment = datetime.fromtimestamp(start_ms / 1000 + 60, UTC).isoformat()
    for filters, ranges, fetched, kept in (
        ("partition IN (0, 2) AND offset >= 95", 2, 10, 10),
        ("partition = 1 AND offset < 10 AND offset % 2 = 0", 1, 10, 5),
        (f"timestamp >= TIMESTAMP '{moment}'", 3, 120, 120),
        (f"timestamp < TIMESTAMP '{moment}'", 3, 300, 180),
        ("partition = 1 OR offset = 3", 3, 300, 102),
        ("partition = 7", 1, 0, 0),  # Spark has a range of its own for nothing
    ):
        done = scan(whole.where(filters))
        assert (done.ranges, done.fetched, len(done.rows)) == (ranges, fetched, kept), filters
    assert scan(load(subscribe=topic).where("partition = 1")).fetched == 300  # unless it was asked for


def test_transactions(load: Load, publisher: Publisher, new_topic: MakeTopic) -> None:
    topic = new_topic("transactions")
    for number, end in enumerate(("commit", "abort", "commit", "abort")):
        with publisher.transaction(end, codec="lz4" if number % 2 else "none") as send:
            send(topic, [b"%s-%d-%d" % (end.encode(), number, at) for at in range(50)])
    publisher.send(topic, [b"between"])
    kept = [b"commit-%d-%d" % (number, at) for number in (0, 2) for at in range(50)] + [b"between"]
    with publisher.transaction("abort") as send:
        send(topic, [b"undecided"])
        publisher.send(topic, [b"behind it"])
        committed = load(subscribe=topic)  # by default, unlike Kafka
        assert read_values(committed) == kept
        theirs = load("kafka", subscribe=topic, **{"kafka.isolation.level": "read_committed"})
        assert read_rows(committed) == read_rows(theirs)
        everything = load(subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"})
        assert read_rows(everything) == read_rows(load("kafka", subscribe=topic))
        assert read_values(everything)[-3:] == [b"between", b"undecided", b"behind it"]

        # An end among what is undecided cannot be reached.
        beyond = {"endingOffsets": json.dumps({topic: {"0": 206}}), "kafkaConsumer.pollTimeoutMs": "500"}
        told = r"nothing new behind offset 205 for 0\.5 s; the log ends at 207, last stable offset 205"
        with pytest.raises(Exception, match=told):
            load(subscribe=topic, **beyond).count()
    assert read_values(load(subscribe=topic)) == [*kept, b"behind it"]


def test_transactions_of_one_producer_cut_anywhere(load: Load, broker: Broker, new_topic: MakeTopic) -> None:
    """A range that begins behind an aborted transaction's records, and sees only how it ended."""
    topic = new_topic("alternating")
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "linger.ms": 0, "batch.num.messages": 1}
    )
    producer.init_transactions(DEADLINE_S)
    kept: list[bytes] = []
    for number in range(6):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, at) for at in range(2)]
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(DEADLINE_S) == 0  # an abort would take back what is not with the broker
        if number % 2:
            producer.commit_transaction(DEADLINE_S)
            kept += values
        else:
            producer.abort_transaction(DEADLINE_S)
    assert read_values(load(subscribe=topic, maxRecordsPerPartition="1")) == kept  # 18 ranges
    behind = json.dumps({topic: {"0": 2}})
    assert read_values(load(subscribe=topic, startingOffsets=behind)) == kept
    small = {"kafka.max.partition.fetch.bytes": "250"}
    assert read_values(load(subscribe=topic, **small)) == kept


def test_more_than_one_fetch(load: Load, publisher: Publisher, new_topic: MakeTopic) -> None:
    """Sums in place of rows; small fetches cut the answers within batches."""
    topic = new_topic("many", partitions=2)
    publisher.fill(topic, 15_000, partitions=2, codec="snappy")
    sums = (
        "count(1)",
        "count(DISTINCT partition, offset)",
        "sum(length(value))",
        "sum(hash(key, value, partition, offset))",
    )
    ours = load(subscribe=topic, minPartitions="5", **{"kafka.max.partition.fetch.bytes": "20000"}).selectExpr(*sums)
    found = ours.first()
    assert found is not None
    assert tuple(found)[:3] == (30_000, 30_000, 3_000_000)
    assert found == load("kafka", subscribe=topic).selectExpr(*sums).first()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "no-such-topic"}, r"no topic 'no-such-topic' at .*; create it first, or correct subscribe"),
        ({"subscribe": "a", "startingOfsets": "latest"}, r"no option 'startingofsets'; did you mean 'startingOffsets'"),
        ({"subscribe": "a", "kafka.bootstrap.servers": "127.0.0.1:1"}, r"no broker answers at 127\.0\.0\.1:1"),
    ],
)
def test_mistakes_are_told(load: Load, options: dict[str, str], told: str) -> None:
    with pytest.raises(Exception, match=told):
        load(**options).count()


_SECRET = "swordfish-4711"  # noqa: S105 - nobody else's


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Options for a listener with TLS and SCRAM, whose user's password is in a file."""
    now = now_utc()
    make_authority(tmp_path / "tls", now, 1, replace=False)
    Authority.load(tmp_path / "tls", now).issue("broker", ("127.0.0.1",), now, 1, replace=False)
    password = tmp_path / "admin.password"
    password.touch(0o600)
    password.write_text(f"{_SECRET}\n")
    tls = f"{{certificate: {tmp_path}/tls/broker.pem, key: {tmp_path}/tls/broker.key}}"
    listener = f'{{name: secured, protocol: kafka, address: "127.0.0.1:0", auth: scram, tls: {tls}}}'
    settings = f"security: {{admin_password_file: {password}}}\nlisteners:\n- {listener}\n"
    broker = penstock.start(tmp_path / "broker", settings=settings)
    try:
        ready = (tmp_path / "broker" / "penstock.stdout").read_text()
        (address,) = re.findall(r"\bsecured=(\S+)", ready)
        login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin", "sasl.password": _SECRET}
        where = {"bootstrap.servers": address, "security.protocol": "SASL_SSL"}
        admin = AdminClient({**where, **login, "ssl.ca.location": f"{tmp_path}/tls/ca.pem"})
        for made in admin.create_topics([NewTopic("safe", 2), NewTopic("copied", 1)]).values():
            made.result(DEADLINE_S)
        yield {
            "kafka.bootstrap.servers": address,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.username": "admin",
            "kafka.sasl.password.file": str(password),
            "kafka.ssl.ca.location": str(tmp_path / "tls" / "ca.pem"),
        }
        assert _SECRET not in (tmp_path / "broker" / "penstock.log").read_text()
    finally:
        broker.stop()


def test_a_login_under_tls_shows_its_password_nowhere(
    spark: SparkSession, secured: dict[str, str], tmp_path: Path
) -> None:
    rows = spark.range(20).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("penstock").options(**secured, topic="safe", delivery="exactly-once").option(
        "transactional.id", "once"
    ).mode("append").save()
    read = spark.read.format("penstock").options(**secured, subscribe="safe").load()
    assert sorted(map(int, filter(None, read_values(read)))) == list(range(20))
    plans = [read._jdf.queryExecution().toString()]

    stream = spark.readStream.format("penstock").options(**secured, subscribe="safe", startingOffsets="earliest").load()
    query = (
        stream.select("value")
        .writeStream.format("penstock")
        .options(**secured, topic="copied", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    plans += [
        query._jsq.explainInternal(True) or "",
        json.dumps([dict(each) for each in map(_plain, query.recentProgress)]),
    ]
    copied = spark.read.format("penstock").options(**secured, subscribe="copied").load()
    assert copied.count() == 20
    for file in (tmp_path / "checkpoint").rglob("*"):
        plans.append(file.read_bytes().decode(errors="replace") if file.is_file() else "")
    assert _SECRET not in "".join(plans)

    wrong = {**secured, "kafka.sasl.username": "mallory"}
    with pytest.raises(Exception, match="user 'mallory' at") as refused:
        spark.read.format("penstock").options(**wrong, subscribe="safe").load().count()
    assert _SECRET not in str(refused.value)


def _plain(progress: Any) -> Any:
    return json.loads(progress.json)
