"""Streaming reads: whatever is restarted, crashes or grows meanwhile, each record is in one micro-batch."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from tests.conformance.records import CODECS, Record
from tests.peers import kafka, penstock
from tests.peers.broker import Broker
from tests.peers.ports import free_ports

from .conftest import PEER
from .publisher import DEADLINE_S, Publisher, value_at
from .query import Read, Stream, read_rows, wait_for

NewTopic = Callable[..., str]
NewStream = Callable[..., Stream]


@pytest.fixture
def new_stream(spark: SparkSession, broker: Broker, tmp_path: Path) -> NewStream:
    """A stream with a checkpoint of its own: `new_stream("name", subscribe=topic)`."""

    def make(name: str = "checkpoint", **options: str) -> Stream:
        return Stream(spark, tmp_path / name, {"kafka.bootstrap.servers": broker.bootstrap, **options})

    return make


def sent(start: int, end: int, partition: int = 0) -> list[bytes]:
    return [value_at(partition, at) for at in range(start, end)]


def crash_in(number: int) -> Callable[[int], None]:
    def crash(batch: int) -> None:
        if batch == number:
            raise RuntimeError(f"crash in batch {number}")

    return crash


def of_batches(progress: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["sources"][0] for each in progress if each["numInputRows"]]


def offsets(told: dict[str, Any]) -> dict[str, Any]:
    return {topic: by_partition for topic, by_partition in told.items() if topic != "#ids"}


def test_limits_crashes_and_progress(new_stream: NewStream, publisher: Publisher, new_topic: NewTopic) -> None:
    """A batch that is repeated has the same rows under the same number (`Stream` checks it); the next run goes on."""
    topic = new_topic("limited", partitions=2)
    publisher.fill(topic, 50, partitions=2, codec="lz4")
    stream = new_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40", minPartitions="3")
    stream.crash = crash_in(1)
    with pytest.raises(Exception, match="crash in batch 1"):
        stream.run()
    assert {number: len(rows) for number, rows in stream.batches.items()} == {0: 40, 1: 40}

    stream.crash = lambda _: None
    progress = of_batches(stream.run())
    assert {number: len(rows) for number, rows in stream.batches.items()} == {0: 40, 1: 40, 2: 20}
    assert stream.values() == sent(0, 50) + sent(0, 50, partition=1)
    assert offsets(progress[-1]["endOffset"]) == {topic: {"0": 50, "1": 50}}
    assert offsets(progress[0]["endOffset"]) == {topic: {"0": 40, "1": 40}}

    publisher.send(topic, [b"later"], partition=1)
    (last,) = of_batches(stream.run())
    assert (offsets(last["startOffset"]), last["numInputRows"]) == ({topic: {"0": 50, "1": 50}}, 1)
    assert stream.rows()[-1][1:3] == (1, 50)


def test_a_first_batch_from_the_latest_offsets_that_crashes(
    new_stream: NewStream, publisher: Publisher, new_topic: NewTopic
) -> None:
    """What is written between the crash and the next run must be read: the stream had begun."""
    topic = new_topic("latest")
    publisher.send(topic, sent(0, 5))
    stream = new_stream(subscribe=topic)  # the default is the latest
    stream.crash = crash_in(0)
    with pytest.raises(Exception, match="crash in batch 0"):
        stream.run()
    publisher.send(topic, sent(5, 10))
    stream.crash = lambda _: None
    stream.run()
    assert stream.values() == sent(5, 10)


def test_bytes_are_a_limit_too(new_stream: NewStream, publisher: Publisher, new_topic: NewTopic) -> None:
    topic = new_topic("bytes", partitions=2)
    publisher.fill(topic, 60, partitions=2, size=1000)
    stream = new_stream(subscribe=topic, startingOffsets="earliest", maxBytesPerTrigger="40000")
    progress = of_batches(stream.run())
    assert stream.values() == [value_at(number, at, 1000) for number in range(2) for at in range(60)]
    sizes = [sum(len(row.value or b"") for row in rows) for rows in stream.batches.values()]
    assert len(sizes) in (3, 4)
    assert max(sizes) <= 44_000
    # How far it is behind: each batch tells the end of the log beside its own.
    ends = [offsets(each["endOffset"])[topic]["0"] for each in progress]
    assert [offsets(each["latestOffset"])[topic]["0"] for each in progress] == [60] * len(progress)
    assert ends[0] < ends[-1] == 60


def test_starts(new_stream: NewStream, publisher: Publisher, new_topic: NewTopic) -> None:
    """Each partition at its own, and by time; the connector's names of options."""
    topic = new_topic("starts", partitions=3)
    start_ms = int(time.time() * 1000) - 3_600_000
    for number in range(3):
        records = [Record(value_at(number, at), timestamp_ms=start_ms + 1000 * at) for at in range(10)]
        publisher.send(topic, records, partition=number)

    chosen = json.dumps({topic: {"0": -2, "1": 7, "2": -1}})
    by_offset = new_stream("offsets", subscribe=topic, startingOffsets=chosen)
    by_offset.run()
    assert by_offset.values() == sent(0, 10) + sent(7, 10, partition=1)

    times = json.dumps({topic: {"1": start_ms + 8500, "2": start_ms + 60_000}})
    by_time = new_stream(
        "times",
        assign=json.dumps({topic: [1, 2]}),
        startingOffsetsByTimestamp=times,
        startingOffsetsByTimestampStrategy="latest",
    )
    by_time.run()
    publisher.send(topic, sent(10, 11, partition=2), partition=2)
    by_time.run()
    assert by_time.values() == sent(9, 10, partition=1) + sent(10, 11, partition=2)


def test_topics_and_partitions_that_come_later(
    new_stream: NewStream, publisher: Publisher, new_topic: NewTopic, broker: Broker
) -> None:
    """Read from their beginning, although the stream is from the latest offsets; compressed in every way."""
    first = new_topic("stem")
    stem = first.rsplit("-", 1)[0]
    publisher.send(first, [b"before"])
    stream = new_stream(subscribePattern=f"^{stem}")
    with stream.running() as wait:
        wait(lambda: 0 in stream.batches)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_partitions([NewPartitions(first, 2)])[first].result(DEADLINE_S)
        with publisher.transaction() as send:  # a producer that has not heard of the topic before
            send(first, sent(0, 5, partition=1), partition=1)
        later = f"{stem}-later"
        publisher.create_topic(later, len(CODECS))
        for number, codec in enumerate(CODECS):
            publisher.send(later, sent(0, 5, partition=number), partition=number, codec=codec)
        wait(lambda: len(stream.rows()) >= 5 + 5 * len(CODECS))
    wanted = [(first, 1, at, value_at(1, at)) for at in range(5)]
    wanted += [(later, number, at, value_at(number, at)) for number in range(len(CODECS)) for at in range(5)]
    assert sorted((row.topic, row.partition, row.offset, row.value) for row in stream.rows()) == sorted(wanted)


def test_transactions(new_stream: NewStream, publisher: Publisher, new_topic: NewTopic) -> None:
    """Neither what is undecided nor what was aborted is read, however batches are cut; then what is behind it."""
    topic = new_topic("transactions")
    publisher.send(topic, sent(0, 3))
    with publisher.transaction("abort") as send:
        send(topic, [b"never"] * 3)
    stream = new_stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    eager = new_stream(
        "eager", subscribe=topic, startingOffsets="earliest", **{"kafka.isolation.level": "read_uncommitted"}
    )
    with stream.running() as wait:
        with publisher.transaction("commit") as send:
            send(topic, sent(7, 10))
            publisher.send(topic, sent(10, 12))
            wait(lambda: len(stream.rows()) == 3)
            eager.run()
            assert eager.values() == sent(0, 3) + [b"never"] * 3 + sent(7, 12)
        wait(lambda: len(stream.rows()) == 8)
    assert stream.values() == sent(0, 3) + sent(7, 12)


class OwnBroker:
    """A broker that may be killed and started again at the address it had, and is quick to compact."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = free_ports(2)
        self.bootstrap = f"127.0.0.1:{self._ports[0]}"
        self._broker = self._start()

    def _start(self) -> Broker:
        if PEER == "kafka":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kafka, "free_ports", lambda _: self._ports)
                quick = {"log.cleaner.backoff.ms": "100"}
                return kafka.start(self._directory, heap="512m", properties=quick)
        flags = ("--kafka", self.bootstrap, "--set", "storage.upkeep_ms=100")
        return penstock.start(self._directory, flags=flags)

    def kill(self) -> None:
        self._broker.process.kill()
        self._broker.process.wait()

    def start(self) -> None:
        self._broker = self._start()

    def stop(self) -> None:
        self._broker.stop()


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnBroker]:
    made = OwnBroker(tmp_path_factory.mktemp("own"))
    yield made
    made.stop()


def test_the_broker_is_killed_and_comes_back(spark: SparkSession, own_broker: OwnBroker, tmp_path: Path) -> None:
    publisher = Publisher(own_broker.bootstrap)
    publisher.create_topic("restarted")
    publisher.send("restarted", sent(0, 100))
    given = {"kafka.bootstrap.servers": own_broker.bootstrap, "subscribe": "restarted", "startingOffsets": "earliest"}
    stream = Stream(spark, tmp_path / "checkpoint", given)
    with stream.running() as wait:
        wait(lambda: len(stream.rows()) == 100)
        own_broker.kill()
        own_broker.start()
        publisher.send("restarted", sent(100, 200))
        wait(lambda: len(stream.rows()) >= 200)
    assert stream.values() == sent(0, 200)
    publisher.close()


def test_a_compacted_topic_with_gaps(spark: SparkSession, own_broker: OwnBroker, tmp_path: Path) -> None:
    """Also where a range has nothing left in it; as Spark's own connector reads it."""
    publisher = Publisher(own_broker.bootstrap)
    quick = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "segment.bytes": str(1 << 20)}
    publisher.create_topic("compacted", 1, **quick)
    records = [
        Record(value_at(0, at, 1000), b"key %d" % (at % 7), timestamp_ms=int(time.time() * 1000)) for at in range(3000)
    ]
    records += [Record(value_at(0, at, 1000), b"one %d" % at) for at in range(3000, 3010)]
    for start in range(0, len(records), 100):
        publisher.send("compacted", records[start : start + 100])

    def load(source: str) -> list[Read]:
        given = {"kafka.bootstrap.servers": own_broker.bootstrap, "subscribe": "compacted"}
        return read_rows(spark.read.format(source).options(**given).load())

    given = {
        "kafka.bootstrap.servers": own_broker.bootstrap,
        "subscribe": "compacted",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "700",
        "minPartitions": "4",
    }
    wait_for(lambda: len(load("penstock")) < 2000, lambda: "nothing was compacted")
    stream = Stream(spark, tmp_path / "checkpoint", given)
    stream.run()
    found = load("penstock")
    assert [(row.key, row.value) for row in found] == [
        (records[row.offset].key, records[row.offset].value) for row in found
    ]
    assert {row.offset for row in found} >= set(range(2993, 3010))
    assert stream.rows() == found
    assert load("kafka") == found
    publisher.close()
