"""Ways to write: sizes, acknowledgements, idempotence, auto-created topics, broker-made timestamps."""

import random
import time
from collections.abc import Callable

import pytest

from .clients import CLIENTS, NO_MATCH, Client
from .clients.client import DEADLINE_S
from .conftest import Judges, fresh_name
from .records import LOG_APPEND_TIME, Record, matches

SIZES = [0, 1, 127, 128, 16_383, 16_384, 65_536, 1_000_000, 1 << 20]
WHOLE = [name for name, each in CLIENTS.items() if each.whole_records]
WIDE = {"max.message.bytes": str(3 << 20)}


def numbered(count: int) -> list[Record]:
    return [Record(b"value %d" % n, b"key %d" % n) for n in range(count)]


def settled_end(client: Client, topic: str, partition: int, end: int) -> int:
    """The partition's end once it has reached `end`; for writers that get no acknowledgement."""
    deadline = time.monotonic() + DEADLINE_S
    found = client.latest(topic, partition)
    while found < end and time.monotonic() < deadline:
        found = client.latest(topic, partition)
    return found


@pytest.mark.parametrize("writer", WHOLE)
def test_values_of_every_size(judges: Judges, new_topic: Callable[..., str], writer: str) -> None:
    source = random.Random(7)
    records = [Record(source.randbytes(size), b"%d" % size) for size in SIZES]
    topic = new_topic("sizes", **WIDE)
    assert judges[writer].produce(topic, 0, records) == list(range(len(records)))
    for reader in CLIENTS:
        matches(records, judges[reader].read(topic, 0, 0, len(records)))


def test_kcat_sends_a_mebibyte(judges: Judges, new_topic: Callable[..., str]) -> None:
    records = [Record(b"m" * (1 << 20), b"large"), Record(b"s", b"small")]
    topic = new_topic("sizes-kcat", **WIDE)
    judges["kcat"].produce(topic, 0, records, codec="none")
    matches(records, judges["java"].read(topic, 0, 0, 2))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("writer", CLIENTS)
def test_every_level_of_acknowledgement(judges: Judges, new_topic: Callable[..., str], writer: str, acks: str) -> None:
    records = numbered(50)
    topic = new_topic(f"acks-{acks}")
    offsets = judges[writer].produce(topic, 0, records, acks=acks)
    if acks != "0":
        assert offsets == list(range(len(records)))
    assert settled_end(judges["confluent"], topic, 0, len(records)) == len(records)
    matches(records, judges["aiokafka"].read(topic, 0, 0, len(records)))


@pytest.mark.parametrize("writer", CLIENTS)
def test_idempotent_producer(judges: Judges, new_topic: Callable[..., str], writer: str) -> None:
    topic = new_topic("idempotent", partitions=3)
    # Values large enough for many batches, so that several sequence numbers are in flight.
    records = [Record(b"%06d " % n + b"x" * 2000, b"k") for n in range(400)]
    for round_number in range(2):  # a second producer id on the same partition
        offsets = judges[writer].produce(topic, 2, records, idempotent=True)
        first = round_number * len(records)
        assert offsets == list(range(first, first + len(records)))
    received = judges["java"].read(topic, 2, 0, 2 * len(records))
    matches(records * 2, received)
    assert judges["java"].latest(topic, 2) == 2 * len(records)


@pytest.mark.parametrize("writer", CLIENTS)
def test_first_record_creates_the_topic(judges: Judges, writer: str) -> None:
    topic = fresh_name("auto")
    records = numbered(5)
    assert judges[writer].produce(topic, 0, records) == list(range(5))
    matches(records, judges["confluent"].read(topic, 0, 0, 5))
    assert judges["java"].topics()[topic] >= 1


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("writer", CLIENTS)
def test_log_append_time(
    judges: Judges, new_topic: Callable[..., str], yesterday_ms: int, writer: str, codec: str
) -> None:
    client = judges[writer]
    topic = new_topic("append-time", **{"message.timestamp.type": "LogAppendTime"})
    claimed = yesterday_ms if client.whole_records else None
    before_ms = int(time.time() * 1000)
    records = [Record(value, b"k", (), claimed) for value in (b"one", b"two")]
    client.produce(topic, 0, records, codec=codec)
    after_ms = int(time.time() * 1000)
    for reader in CLIENTS:
        received = judges[reader].read(topic, 0, 0, 2)
        assert [each.value for each in received] == [b"one", b"two"]
        for each in received:
            assert before_ms <= each.timestamp_ms <= after_ms, reader
            if judges[reader].timestamp_types:
                assert each.timestamp_type == LOG_APPEND_TIME, reader
    assert judges["java"].offset_for_time(topic, 0, before_ms) == 0
    assert judges["java"].offset_for_time(topic, 0, after_ms + 60_000) == NO_MATCH


@pytest.mark.parametrize("writer", CLIENTS)
def test_writers_take_turns_on_one_partition(judges: Judges, new_topic: Callable[..., str], writer: str) -> None:
    topic = new_topic("turns")
    expected: list[Record] = []
    for name in (writer, *CLIENTS):
        batch = [Record(f"{name} {n}".encode(), b"k") for n in range(10)]
        offsets = judges[name].produce(topic, 0, batch, codec="lz4")
        assert offsets == list(range(len(expected), len(expected) + 10))
        expected += batch
    matches(expected, judges[writer].read(topic, 0, 0, len(expected)))
