"""Files of a real broker, while it runs and after it ended, against what it sends for the same offsets."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from tests.peers import penstock
from tests.unit.spark.segments.stored_topic import Row, read_piece

from penstock.client.cluster import LATEST, Cluster
from penstock.client.settings import Settings
from penstock.spark.errors import DataLossError, OptionError, SourceError
from penstock.spark.segments import segments
from penstock.spark.segments.segments import Piece

DEADLINE_S = 60.0
SETTINGS = "storage: {upkeep_ms: 50}\n"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Stage:
    """A broker of one's own and a topic of one partition on it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.data = str(path / "data")
        self.broker = penstock.start(path, settings=SETTINGS)

    @property
    def bootstrap(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.broker.bootstrap}

    def create(self, topic: str, **config: str) -> uuid.UUID:
        config = {"segment.bytes": "4096", **{name.replace("_", "."): value for name, value in config.items()}}
        admin = AdminClient(self.bootstrap)
        admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(DEADLINE_S)
        with Cluster(Settings(self.broker.bootstrap)) as cluster:
            return cluster.topics([topic])[topic].id

    def end(self, topic: str, *, read_committed: bool) -> int:
        with Cluster(Settings(self.broker.bootstrap)) as cluster:
            return cluster.list_offsets({(topic, 0): LATEST}, read_committed=read_committed)[topic, 0]

    def fetch(self, topic: str, start: int, end: int, *, read_committed: bool) -> list[Row]:
        """What a client gets."""
        level = "read_committed" if read_committed else "read_uncommitted"
        consumer = Consumer({**self.bootstrap, "group.id": "g", "isolation.level": level, "enable.partition.eof": True})
        consumer.assign([TopicPartition(topic, 0, start)])
        rows: list[Row] = []
        deadline = time.monotonic() + DEADLINE_S
        try:
            while consumer.position([TopicPartition(topic, 0)])[0].offset < end:
                assert time.monotonic() < deadline, f"{topic} is not fetched up to {end}"
                for message in consumer.consume(1000, 0.2):
                    if message.error() is not None:
                        if message.error().name() == "_PARTITION_EOF":
                            return [row for row in rows if row[0] < end]
                        raise AssertionError(str(message.error()))
                    rows.append((message.offset(), message.timestamp()[1], message.key(), message.value()))
        finally:
            consumer.close()
        return [row for row in rows if row[0] < end]

    def files(self, topic: str, suffix: str) -> list[Path]:
        return sorted(Path(self.data, "logs", topic, "0").glob(f"{'[0-9]' * 20}{suffix}"))

    def until_sealed(self, topic: str) -> None:
        wait_until(lambda: len(self.files(topic, ".index")) == len(self.files(topic, ".log")) - 1 > 1, "not sealed")


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("broker"))
    yield made
    assert made.broker.stop() == 0


@pytest.fixture
def own_stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.broker.stop()


def fill(producer: Producer, topic: str) -> None:
    for number in range(400):
        producer.produce(topic, b"v" * 100, partition=0)
        if number % 20 == 19:
            producer.flush(DEADLINE_S)  # no batch may be larger than a segment


def send(stage: Stage, topic: str, seed: int, transactions: int = 12) -> None:
    """Plain and compressed records and transactions of two producers, some of them aborted, interleaved."""
    random = Random(seed)
    plain = [Producer({**stage.bootstrap, "compression.type": codec, "linger.ms": 20}) for codec in CODECS]
    writers = [Producer({**stage.bootstrap, "transactional.id": f"{topic} {number}"}) for number in range(2)]
    for writer in writers:
        writer.init_transactions(DEADLINE_S)
    busy: set[int] = set()
    for _ in range(transactions * 3):
        number = random.randrange(3)
        producer = random.choice(plain) if number == 2 else writers[number]
        if number < 2 and number not in busy:
            producer.begin_transaction()
            busy.add(number)
        for _ in range(random.randrange(1, 12)):
            value = random.randbytes(random.choice((0, 10, 300))) if random.random() < 0.9 else None
            producer.produce(topic, value, b"%d" % random.randrange(20), partition=0)
        producer.flush(DEADLINE_S)
        if number < 2 and random.random() < 0.5:
            (producer.commit_transaction if random.random() < 0.6 else producer.abort_transaction)(DEADLINE_S)
            busy.discard(number)
    for number in busy:
        writers[number].commit_transaction(DEADLINE_S)
    # A commit is answered before its markers are in the partitions.
    wait_until(lambda: stage.end(topic, read_committed=True) == stage.end(topic, read_committed=False), "undecided")
    fill(plain[0], topic)  # so that the markers lie in sealed segments


def direct(
    stage: Stage, topic: str, topic_id: uuid.UUID, start: int, end: int, *, read_committed: bool
) -> tuple[list[Row], int]:
    pieces, reached = segments.plan(stage.data, topic, topic_id, 0, start, end, read_committed=read_committed)
    return [row for piece in pieces for row in read_piece(stage.data, piece, read_committed=read_committed)], reached


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_that_the_broker_sends(stage: Stage, seed: int) -> None:
    topic = f"rows-{seed}"
    topic_id = stage.create(topic)
    send(stage, topic, seed)
    stage.until_sealed(topic)
    random = Random(seed)
    for read_committed in (True, False):
        end = stage.end(topic, read_committed=read_committed)
        fetched = stage.fetch(topic, 0, end, read_committed=read_committed)
        rows, reached = direct(stage, topic, topic_id, 0, end, read_committed=read_committed)
        assert reached > end // 2, "most of it is sealed"
        assert rows == [row for row in fetched if row[0] < reached]
        for _ in range(20):
            start, stop = sorted(random.sample(range(end + 1), 2))
            rows, reached = direct(stage, topic, topic_id, start, stop, read_committed=read_committed)
            assert rows == [row for row in fetched if start <= row[0] < reached]


def test_a_compacted_topic_beside_its_broker(stage: Stage) -> None:
    topic_id = stage.create("compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0")
    producer = Producer(stage.bootstrap)
    latest: dict[bytes, bytes] = {}
    compacted = False
    deadline = time.monotonic() + DEADLINE_S
    while not compacted or len(latest) < 50:
        assert time.monotonic() < deadline, "never compacted"
        for number in range(100):
            key, value = b"%d" % (number % 50), os.urandom(100)
            producer.produce("compacted", value, key, partition=0)
            latest[key] = value
        producer.flush(DEADLINE_S)
        end = stage.end("compacted", read_committed=True)
        rows, reached = direct(stage, "compacted", topic_id, 0, end, read_committed=True)
        assert [row[0] for row in rows] == sorted({row[0] for row in rows})
        later = stage.fetch("compacted", reached, end, read_committed=True)
        assert {row[2]: row[3] for row in (*rows, *later)} == latest, "the last value of a key is missing"
        compacted = len(rows) < reached
    stage.until_sealed("compacted")


def test_retention_is_told_and_never_passed_over(stage: Stage) -> None:
    topic_id = stage.create("expiring")
    producer = Producer(stage.bootstrap)
    fill(producer, "expiring")
    stage.until_sealed("expiring")
    pieces, reached = segments.plan(stage.data, "expiring", topic_id, 0, 0, 1 << 40)
    assert len(pieces) == 1 and reached == pieces[0].end
    reading = segments.read(stage.data, pieces[0], read_committed=True)
    shorter = ConfigEntry("retention.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, "expiring", incremental_configs=[shorter])
    admin = AdminClient(stage.bootstrap)
    admin.incremental_alter_configs([topic])[topic].result(DEADLINE_S)
    fill(producer, "expiring")
    wait_until(lambda: int(stage.files("expiring", ".log")[0].stem) > reached, "nothing expires")
    found = sum(place.header.record_count for _, places in reading for place in places)
    assert found == reached, "what was open is not read to its end"
    with pytest.raises(segments.SegmentsGone):
        segments.read(stage.data, pieces[0], read_committed=True)
    assert segments.plan(stage.data, "expiring", topic_id, 0, 0, 1 << 40) == ([], 0)


def test_a_topic_made_anew_is_another_one(stage: Stage) -> None:
    old_id = stage.create("anew")
    producer = Producer(stage.bootstrap)
    fill(producer, "anew")
    stage.until_sealed("anew")
    pieces, _ = segments.plan(stage.data, "anew", old_id, 0, 0, 1 << 40)
    admin = AdminClient(stage.bootstrap)
    admin.delete_topics(["anew"])["anew"].result(DEADLINE_S)
    with pytest.raises(SourceError):
        segments.read(stage.data, pieces[0], read_committed=True)
    new_id = stage.create("anew")
    with pytest.raises(SourceError, match=f"{new_id}.*has id {old_id}"):
        segments.plan(stage.data, "anew", old_id, 0, 0, 1 << 40)
    with pytest.raises(DataLossError, match="made anew"):
        segments.read(stage.data, pieces[0], read_committed=True)
    assert segments.plan(stage.data, "anew", new_id, 0, 0, 1 << 40) == ([], 0)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_without_its_broker_a_directory_is_read_up_to_the_last_checkpoint(own_stage: Stage, how: int) -> None:
    topic_id = own_stage.create("left")
    send(own_stage, "left", 5, transactions=6)
    own_stage.until_sealed("left")
    end = own_stage.end("left", read_committed=True)
    fetched = own_stage.fetch("left", 0, end, read_committed=True)
    with pytest.raises(OptionError, match="in use by a running broker"):
        segments.stopped_topics(own_stage.data)
    sealed_end = int(own_stage.files("left", ".log")[-1].stem)
    own_stage.broker.process.send_signal(how)
    own_stage.broker.process.wait(DEADLINE_S)
    assert segments.stopped_topics(own_stage.data)["left"] == segments.StoredTopic("left", topic_id, (0,))
    start, stop = segments.stopped_range(own_stage.data, "left", topic_id, 0, read_committed=True)
    assert start == 0
    if how == signal.SIGTERM:
        assert stop == end
    pieces, reached = segments.plan(own_stage.data, "left", topic_id, 0, start, stop, stopped=True)
    assert reached == stop
    rows = [row for piece in pieces for row in read_piece(own_stage.data, piece)]
    assert rows == [row for row in fetched if row[0] < stop]
    assert read_uncommitted_end(own_stage, topic_id) >= sealed_end
    other_files_are_untouched(own_stage, pieces)


def read_uncommitted_end(stage: Stage, topic_id: uuid.UUID) -> int:
    return segments.stopped_range(stage.data, "left", topic_id, 0, read_committed=False)[1]


def other_files_are_untouched(stage: Stage, pieces: list[Piece]) -> None:
    """A broker starts on the directory as if nobody had read it, and what was planned before is still there."""
    rows = [row for piece in pieces for row in read_piece(stage.data, piece)]
    stage.broker = penstock.start(Path(stage.data).parent, settings=SETTINGS)
    assert rows == stage.fetch("left", 0, pieces[-1].end, read_committed=True)
    assert rows == [row for piece in pieces for row in read_piece(stage.data, piece)]
