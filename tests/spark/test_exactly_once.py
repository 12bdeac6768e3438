"""Streams into topics: each row once, whatever Spark repeats and whatever breaks."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.streaming.query import StreamingQuery

from penstock.client.cluster import Cluster
from penstock.client.settings import Settings
from penstock.client.transaction import begin
from tests.peers.broker import Broker

from .observer import Observer
from .publisher import Publisher, value_at

DEADLINE_S = 120
PARTITIONS = 2
NewTopic = Callable[..., str]


@dataclass
class Stream:
    """A query that copies one topic to another, and whatever it is made to suffer."""

    spark: SparkSession
    broker: Broker
    source: str
    target: str
    checkpoint: Path

    def start(self, change: Callable[[DataFrame], DataFrame] | None = None, **options: str) -> StreamingQuery:
        brokers = {"kafka.bootstrap.servers": self.broker.bootstrap}
        read = {"subscribe": self.source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
        rows = self.spark.readStream.format("penstock").options(**brokers, **read).load().select("key", "value")
        # Three tasks for two partitions, and two threads: tasks share partitions, and the third comes later.
        rows = rows.repartition(3)
        if change is not None:
            rows = change(rows)
        sink = rows.writeStream.format("penstock").options(**brokers, topic=self.target, **options)
        return sink.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def run(self, change: Callable[[DataFrame], DataFrame] | None = None, **options: str) -> list[int]:
        """To the end; returns the rows of each micro-batch."""
        query = self.start(change, **options)
        assert query.awaitTermination(DEADLINE_S), query.status
        return [json.loads(each.json)["numInputRows"] for each in query.recentProgress]

    def forget_last_commit(self) -> int:
        """As if the driver had died between the sink's commit and the checkpoint's; returns the batch."""
        last = max(int(each.name) for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        return last

    def restore(self, copy: Path) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(copy, self.checkpoint)


@pytest.fixture
def stream(spark: SparkSession, broker: Broker, new_topic: NewTopic, tmp_path: Path) -> Stream:
    source, target = new_topic("in", partitions=PARTITIONS), new_topic("out", partitions=PARTITIONS)
    return Stream(spark, broker, source, target, tmp_path / "checkpoint")


@pytest.fixture
def observer(broker: Broker) -> Observer:
    return Observer(broker.bootstrap)


def sent(count: int, start: int = 0) -> list[bytes]:
    """What `Publisher.fill` and `fill_on` have written."""
    return sorted(value_at(partition, at) for partition in range(PARTITIONS) for at in range(start, count))


def fill_on(publisher: Publisher, topic: str, start: int, end: int) -> None:
    for partition in range(PARTITIONS):
        publisher.send(topic, [value_at(partition, at) for at in range(start, end)], partition=partition)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_repeated_batch(stream: Stream, publisher: Publisher, observer: Observer, delivery: str) -> None:
    """Spark repeats its last batch if it is not sure of it. That writes nothing, or everything again."""
    publisher.fill(stream.source, 50, partitions=PARTITIONS)
    assert stream.run(delivery=delivery) == [40, 40, 20]
    assert observer.values(stream.target) == sent(50)
    ends = observer.ends(stream.target)

    assert stream.forget_last_commit() == 2
    assert stream.run(delivery=delivery) == [20]
    if delivery == "at-least-once":
        assert len(observer.values(stream.target)) == 120
        assert sorted(set(observer.values(stream.target))) == sent(50)
        return
    assert observer.ends(stream.target) == ends
    assert observer.values(stream.target) == sent(50)

    # The batch that was not written again and the one behind it are told apart.
    fill_on(publisher, stream.source, 50, 60)
    stream.forget_last_commit()
    assert stream.run(delivery=delivery) == [20, 20]
    assert observer.values(stream.target) == sent(60)


def test_what_fails_in_the_middle_is_not_there(stream: Stream, publisher: Publisher, observer: Observer) -> None:
    publisher.fill(stream.source, 20, partitions=PARTITIONS)
    stream.run()

    def fail(rows: DataFrame) -> DataFrame:
        """In the third task, when one at least of the other two is through."""
        broken = F.when(F.spark_partition_id() == 2, F.raise_error(F.lit("broken on purpose"))).otherwise(F.col("key"))
        return rows.select(broken.cast("binary").alias("key"), "value")

    fill_on(publisher, stream.source, 20, 40)
    before = observer.ends(stream.target)
    with pytest.raises(StreamingQueryException, match="broken on purpose"):
        stream.run(fail)
    assert sum(observer.ends(stream.target)) > sum(before), "it did not fail in the middle"
    assert observer.values(stream.target, settled=False) == sent(20)

    assert stream.run() == [40]
    assert observer.values(stream.target) == sent(40)


def test_an_older_run_is_shut_out(stream: Stream, publisher: Publisher, observer: Observer, tmp_path: Path) -> None:
    publisher.fill(stream.source, 10, partitions=PARTITIONS)
    reached, go = tmp_path / "reached", tmp_path / "go"

    def wait(rows: DataFrame) -> DataFrame:
        @F.udf("binary")
        def hold(value):  # Spark takes hints for a choice of its own
            reached.touch()
            deadline = time.monotonic() + DEADLINE_S
            while not go.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            return value

        return rows.select("key", hold("value").alias("value"))

    name = f"mine-{stream.target}"
    query = stream.start(wait, **{"transactional.id": name})
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not reached.exists():
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
        with Cluster(Settings(stream.broker.bootstrap)) as cluster:
            begin(cluster, name, timeout_ms=60_000)  # what a newer run does first
    finally:
        go.touch()
    told = rf"transactional id '{name}': .*another run of this query has begun, or another query has the same"
    with pytest.raises(StreamingQueryException, match=told):
        query.awaitTermination(DEADLINE_S)
    assert observer.values(stream.target) == []

    named: dict[str, Any] = {"transactional.id": name}
    assert stream.run(**named) == [20]
    assert observer.values(stream.target) == sent(10)


def test_a_repeat_that_is_not_the_same(stream: Stream, publisher: Publisher, observer: Observer) -> None:
    """As many rows, but others: a query that gives other rows each time must say so."""

    def other(rows: DataFrame) -> DataFrame:
        return rows.select("key", F.translate(F.col("value").cast("string"), "-", "+").alias("value"))

    publisher.fill(stream.source, 10, partitions=PARTITIONS)
    assert stream.run() == [20]
    stream.forget_last_commit()
    told = "batch 0 was written before, with 20 rows, and comes again with 20 rows that are not the same"
    with pytest.raises(StreamingQueryException, match=told):
        stream.run(other)
    assert stream.run(other, checkRepeats="false") == [20]
    assert observer.values(stream.target) == sent(10)


def test_an_older_checkpoint(stream: Stream, publisher: Publisher, observer: Observer, tmp_path: Path) -> None:
    """What it calls a batch is not what was written under that number: nothing is written, and it says so."""
    first, second = tmp_path / "first", tmp_path / "second"
    publisher.fill(stream.source, 10, partitions=PARTITIONS)
    assert stream.run() == [20]  # batch 0
    shutil.copytree(stream.checkpoint, first)
    fill_on(publisher, stream.source, 10, 15)
    assert stream.run() == [10]  # batch 1
    shutil.copytree(stream.checkpoint, second)

    fill_on(publisher, stream.source, 15, 25)
    stream.restore(first)
    told = "batch 1 was written before, with 10 rows, and comes again with 30 rows that are not the same"
    with pytest.raises(StreamingQueryException, match=told):
        stream.run()
    assert observer.values(stream.target) == sent(15)

    stream.restore(second)
    assert stream.run() == [20]  # batch 2
    stream.restore(first)
    with pytest.raises(StreamingQueryException, match=r"batch 1 of query \S+ comes after batch 2 was written"):
        stream.run()
    assert observer.values(stream.target) == sent(25)
