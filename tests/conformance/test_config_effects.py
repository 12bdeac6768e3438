"""Settings changed while the topic is in use act on what comes after, whichever client changed them."""

import random
import time
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.peers.broker import Broker

from .clients import ADMINS, CLIENTS, ClientError
from .clients.admin import DELETE, SET, Change
from .clients.client import DEADLINE_S
from .conftest import Admins, Judges, eventually, segment_files
from .records import LOG_APPEND_TIME, Record, matches, sample
from .wire import Wire, batch, batch_headers, producer_id

MESSAGE_TOO_LARGE = 10
INVALID_CONFIG = 40
INVALID_RECORD = 87
MIB = 1 << 20
CHANGING = [name for name, each in ADMINS.items() if each.can_increment]
CODEC_NUMBERS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that no codec makes smaller."""
    return random.Random(seed).randbytes(size)


def fill(judges: Judges, topic: str, mib: int, timestamp_ms: int | None = None) -> int:
    """Write that much in batches of about 200 KiB, each record with a key of its own; returns the partition's end."""
    writer = judges["confluent"]
    start = writer.latest(topic, 0)
    for first in range(start, start + 5 * mib):
        writer.produce(topic, 0, [Record(noise(200 << 10, first), b"key %d" % first, (), timestamp_ms)])
    return start + 5 * mib


@pytest.mark.parametrize("name", CHANGING)
def test_max_message_bytes(judges: Judges, admins: Admins, new_topic: Callable[..., str], name: str) -> None:
    topic, writer = new_topic("limit"), judges["confluent"]
    large = [Record(noise(20_000), b"k")]
    writer.produce(topic, 0, large)

    def refused() -> int:
        try:
            writer.produce(topic, 0, large)
        except ClientError as failure:
            return failure.code
        return 0

    admins[name].alter(topic, Change(SET, "max.message.bytes", "10000"))
    assert eventually(refused, bool) == MESSAGE_TOO_LARGE
    writer.produce(topic, 0, [Record(b"small")])
    admins[name].alter(topic, Change(DELETE, "max.message.bytes"))
    assert eventually(refused, lambda code: not code) == 0


@pytest.mark.parametrize("name", CHANGING)
def test_timestamp_type(
    judges: Judges, admins: Admins, new_topic: Callable[..., str], yesterday_ms: int, now_ms: int, name: str
) -> None:
    topic = new_topic("stamp")

    def stamped() -> bool:
        (offset,) = judges["java"].produce(topic, 0, [Record(b"v", b"k", (), yesterday_ms)])
        (received,) = judges["java"].read(topic, 0, offset, 1)
        by_broker = received.timestamp_type == LOG_APPEND_TIME
        assert by_broker == (received.timestamp_ms >= now_ms)
        assert by_broker != (received.timestamp_ms == yesterday_ms)
        return by_broker

    assert not stamped()
    admins[name].alter(topic, Change(SET, "message.timestamp.type", "LogAppendTime"))
    assert eventually(stamped, bool)
    assert judges["confluent"].read(topic, 0, 0, 1)[0].timestamp_ms == yesterday_ms, "what was there stays"
    admins[name].alter(topic, Change(DELETE, "message.timestamp.type"))
    assert not eventually(stamped, lambda by_broker: not by_broker)


def stored_codec(wire: Wire, topic: str, offset: int) -> int:
    """The codec of the batch that holds the offset, as it is kept."""
    return batch_headers(wire.fetch(topic, 0, offset).records or b"")[0].codec


@pytest.mark.parametrize("configured", CODEC_NUMBERS)
def test_compression_by_the_broker(
    judges: Judges, admins: Admins, new_topic: Callable[..., str], wire: Wire, yesterday_ms: int, configured: str
) -> None:
    number = CODEC_NUMBERS[configured]
    topic = new_topic("squeeze")
    written: list[Record] = []

    def write(
        records: list[Record], *, writer: str = "confluent", codec: str = "none", idempotent: bool = False
    ) -> int:
        first = judges[writer].produce(topic, 0, records, codec=codec, idempotent=idempotent)[0]
        assert first == len(written)
        written.extend(records)
        return stored_codec(wire, topic, first)

    probe = [Record(b"probe " * 20, b"k")]
    assert write(probe) == 0
    assert write(probe, codec="lz4") == CODEC_NUMBERS["lz4"], "compression.type=producer keeps the producer's"
    changer = admins[CHANGING[number % len(CHANGING)]]
    changer.alter(topic, Change(SET, "compression.type", configured))
    other = "lz4" if configured == "uncompressed" else "none"
    assert eventually(lambda: write(probe, codec=other), lambda codec: codec == number) == number
    for seed, (writer, codec) in enumerate((("confluent", "none"), ("java", "gzip"), ("aiokafka", "zstd"))):
        records = sample(seed, start_ms=yesterday_ms, null_headers=False)
        assert write(records, writer=writer, codec=codec) == number, (writer, codec)
    name = "none" if configured == "uncompressed" else configured
    for reader, client in CLIENTS.items():
        if name in client.codecs:
            matches(written, judges[reader].read(topic, 0, 0, len(written)))


def test_times_inside_recompressed_batches(judges: Judges, new_topic: Callable[..., str], yesterday_ms: int) -> None:
    topic = new_topic("squeezed-times", **{"compression.type": "lz4"})
    records = [Record(b"value %d" % n, None, (), yesterday_ms + n * 1000) for n in range(100)]
    judges["java"].produce(topic, 0, records, codec="gzip")
    for position in (0, 1, 50, 99):
        assert judges["java"].offset_for_time(topic, 0, yesterday_ms + position * 1000) == position
    assert judges["java"].max_timestamp(topic, 0) == (99, yesterday_ms + 99_000)
    matches(records[37:], judges["kcat"].read(topic, 0, 37, 63), 37)


def test_repeats_are_known_after_recompression(wire: Wire, new_topic: Callable[..., str], now_ms: int) -> None:
    topic = new_topic("again", **{"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"})
    own = producer_id(wire)
    batches = [batch([b"v%d" % n] * 4, producer=(own, 0, 4 * n), timestamp_ms=now_ms, codec=1) for n in range(3)]
    for _round in range(2):
        for number, each in enumerate(batches):
            answer = wire.produce(topic, {0: each})[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 4 * number)
    found = wire.fetch(topic, 0, 0)
    assert found.high_watermark == 12
    assert [tuple(each) for each in batch_headers(found.records or b"")] == [
        (4 * n, CODEC_NUMBERS["zstd"], True, (own, 0, 4 * n), 4) for n in range(3)
    ]


def test_a_batch_may_grow_too_large(judges: Judges, new_topic: Callable[..., str]) -> None:
    topic = new_topic("grown", **{"compression.type": "uncompressed", "max.message.bytes": "10000"})
    with pytest.raises(ClientError) as failure:
        judges["confluent"].produce(topic, 0, [Record(b"a" * 50_000, b"k")], codec="gzip")
    assert failure.value.code == MESSAGE_TOO_LARGE
    assert judges["confluent"].latest(topic, 0) == 0


def test_retention_bytes(broker: Broker, judges: Judges, admins: Admins, new_topic: Callable[..., str]) -> None:
    topic = new_topic("less", **{"segment.bytes": str(MIB)})
    end = fill(judges, topic, 5)
    assert judges["java"].earliest(topic, 0) == 0
    admins.java.alter(topic, Change(SET, "retention.bytes", str(2 * MIB)))
    first = eventually(lambda: judges["confluent"].earliest(topic, 0), lambda at: at > 0)
    assert 0 < first <= end - 10, "at least the bytes asked for stay"
    assert judges["confluent"].latest(topic, 0) == end
    received = judges["java"].read(topic, 0, first, end - first)
    assert [each.key for each in received] == [b"key %d" % n for n in range(first, end)]
    eventually(lambda: segment_files(broker, topic, 0), lambda files: int(files[0].stem) == first)  # one by one


def test_retention_time(
    broker: Broker, judges: Judges, admins: Admins, new_topic: Callable[..., str], yesterday_ms: int
) -> None:
    topic = new_topic("short", **{"segment.bytes": str(MIB)})
    old = fill(judges, topic, 2, yesterday_ms)
    end = fill(judges, topic, 2)
    admins["confluent"].alter(topic, Change(SET, "retention.ms", "3600000"))
    # Whole segments go; the one where old and new meet stays.
    first = eventually(lambda: judges["confluent"].earliest(topic, 0), lambda at: at > 0)
    assert 0 < first <= old
    assert judges["java"].read(topic, 0, end - 1, 1)[0].key == b"key %d" % (end - 1)
    admins["kafka-python"].alter(topic, Change(SET, "retention.ms", "1"))
    assert eventually(lambda: judges["confluent"].earliest(topic, 0), lambda at: at == end) == end
    assert judges["confluent"].latest(topic, 0) == end
    admins["kafka-python"].alter(topic, Change(DELETE, "retention.ms"))
    assert judges["java"].produce(topic, 0, [Record(b"next")]) == [end]


def test_smaller_segments(broker: Broker, judges: Judges, admins: Admins, new_topic: Callable[..., str]) -> None:
    topic = new_topic("roll")
    fill(judges, topic, 2)
    assert len(segment_files(broker, topic, 0)) == 1
    admins["kafka-python"].alter(topic, Change(SET, "segment.bytes", str(MIB)))

    def count() -> int:
        fill(judges, topic, 1)
        return len(segment_files(broker, topic, 0))

    assert eventually(count, lambda files: files >= 3) >= 3
    end = judges["java"].latest(topic, 0)
    received = judges["java"].read(topic, 0, 0, end)
    assert [each.key for each in received] == [b"key %d" % n for n in range(end)]


def test_shorter_segments(
    broker: Broker, judges: Judges, admins: Admins, new_topic: Callable[..., str], yesterday_ms: int, now_ms: int
) -> None:
    topic = new_topic("roll-time")
    judges["java"].produce(topic, 0, [Record(b"old", None, (), yesterday_ms)])
    assert len(segment_files(broker, topic, 0)) == 1
    admins.java.alter(topic, Change(SET, "segment.ms", "1000"))

    def count() -> int:
        # Kafka takes a segment's age from its records' times, and looks at it when more come.
        judges["java"].produce(topic, 0, [Record(b"new", None, (), now_ms)])
        return len(segment_files(broker, topic, 0))

    assert eventually(count, lambda files: files >= 2) >= 2


def test_compacted_topics_want_keys(
    judges: Judges, admins: Admins, new_topic: Callable[..., str], wire: Wire, now_ms: int
) -> None:
    topic = new_topic("compact")

    def refused() -> int:
        try:
            judges["java"].produce(topic, 0, [Record(b"no key")])
        except ClientError as failure:
            return failure.code
        return 0

    assert refused() == 0
    admins["confluent"].alter(topic, Change(SET, "cleanup.policy", "compact"))
    assert eventually(refused, bool) == INVALID_RECORD
    for writer in ("confluent", "java"):
        with pytest.raises(ClientError) as failure:
            judges[writer].produce(topic, 0, [Record(b"no key")], codec="zstd")
        assert failure.value.code == INVALID_RECORD, writer
    end = judges["confluent"].latest(topic, 0)
    mixed = batch([b"a", b"b", b"c", b"d"], keys=[b"k", None, b"k", None], timestamp_ms=now_ms)
    answer = wire.produce(topic, {0: mixed})[0]
    assert answer.error_code is ErrorCode.invalid_record
    assert [each.batch_index for each in answer.record_errors] == [1, 3], "KIP-467 names the records at fault"
    assert judges["confluent"].latest(topic, 0) == end
    keyed = [Record(b"value", b"key")]
    assert judges["confluent"].produce(topic, 0, keyed) == [end]
    matches(keyed, judges["java"].read(topic, 0, end, 1), end)
    admins["kafka-python"].alter(topic, Change(SET, "cleanup.policy", "delete"))
    assert eventually(refused, lambda code: not code) == 0


def test_compacted_topics_keep_every_key(judges: Judges, admins: Admins, new_topic: Callable[..., str]) -> None:
    kept = new_topic("kept", **{"segment.bytes": str(MIB)})
    control = new_topic("control", **{"segment.bytes": str(MIB)})
    fill(judges, kept, 3)
    admins.java.alter(kept, Change(SET, "cleanup.policy", "compact"), Change(SET, "retention.bytes", "1"))
    admins.java.alter(control, Change(SET, "retention.bytes", "1"))
    # Retention's second look at one topic proves its first look at the other.
    seen = 0
    for _look in range(2):
        fill(judges, control, 3)
        first = eventually(lambda: judges["confluent"].earliest(control, 0), lambda at, seen=seen: at > seen)
        assert first > seen
        seen = first
    assert judges["confluent"].earliest(kept, 0) == 0
    assert [each.key for each in judges["java"].read(kept, 0, 0, 15)] == [b"key %d" % n for n in range(15)]
    admins.java.alter(kept, Change(SET, "cleanup.policy", "delete"))
    assert eventually(lambda: judges["confluent"].earliest(kept, 0), lambda at: at > 0) > 0


def test_more_replicas_than_there_are(wire: Wire, admins: Admins, new_topic: Callable[..., str], now_ms: int) -> None:
    """A topic of one replica never waits for a second one, whatever min.insync.replicas says."""
    topic = new_topic("replicas")
    admins.java.alter(topic, Change(SET, "min.insync.replicas", "2"))
    assert wire.produce(topic, {0: batch([b"v"], timestamp_ms=now_ms)}, -1)[0].error_code is ErrorCode.none


def test_flush(broker: Broker, judges: Judges, admins: Admins, new_topic: Callable[..., str]) -> None:
    if broker.name != "penstock":
        pytest.skip("a setting of Penstock's own")
    topic = new_topic("flush")
    for position, (name, flush) in enumerate(zip(CHANGING, ("os", "interval", "commit"), strict=True)):
        admins[name].alter(topic, Change(SET, "flush", flush))
        assert admins["confluent"].settings(topic)["flush"].value == flush
        records = [Record(flush.encode())]
        started = time.monotonic()
        assert judges["java"].produce(topic, 0, records) == [position]
        matches(records, judges["java"].read(topic, 0, position, 1), position)
        assert time.monotonic() - started < DEADLINE_S
    with pytest.raises(ClientError) as failure:
        admins.java.alter(topic, Change(SET, "flush", "never"))
    assert failure.value.code == INVALID_CONFIG
