"""A follower's Fetch against kio, and against what our own leader reads and writes."""

import random
from dataclasses import replace

import pytest
from tests.doors.kio_values import entity_of, plain, random_entity, read, write

from penstock.cluster.replication.source import FetchedRow, Position
from penstock.net.connection import Part, PeerError
from penstock.protocols.internal import replica_fetch_codec
from penstock.protocols.internal.replica_fetch_codec import VERSION
from penstock.protocols.kafka import fetch_codec, fetch_sessions
from penstock.protocols.kafka.fetch_codec import Row
from penstock.protocols.kafka.fetch_sessions import Wanted
from penstock.storage.log.segment import FileSlice

ROUNDS = 60
OFFSETS = (0, 1, 77, 1 << 40, (1 << 63) - 1)


def random_positions(rng: random.Random) -> list[Position]:
    topics = [rng.randbytes(16) for _ in range(rng.choice((0, 1, 3, 130)))]
    return [
        Position(
            topic_id,
            index,
            rng.randint(0, 9),
            rng.choice(OFFSETS),
            rng.randint(-1, 9),
            rng.choice(OFFSETS),
            rng.randint(0, 1 << 30),
        )
        for topic_id in topics
        for index in range(rng.choice((1, 2, 130 if len(topics) < 5 else 3)))
    ]


def encode(rng: random.Random, positions: list[Position]) -> tuple[bytes, dict[str, int], list[tuple[bytes, int]]]:
    numbers = {
        "replica_id": rng.randint(0, 1000),
        "replica_epoch": rng.choice(OFFSETS),
        "max_wait_ms": rng.randint(0, 1000),
        "min_bytes": rng.randint(0, 9),
        "max_bytes": rng.randint(0, 1 << 30),
        "session_id": rng.randint(0, 1 << 30),
        "session_epoch": rng.randint(-1, 1 << 30),
    }
    forgotten = [(rng.randbytes(16), rng.randint(0, 9)) for _ in range(rng.choice((0, 1, 5)))]
    return replica_fetch_codec.encode(positions, forgotten=forgotten, **numbers), numbers, forgotten


def test_kio_reads_what_encode_writes() -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        positions = random_positions(rng)
        data, numbers, forgotten = encode(rng, positions)
        found = plain(read(entity_of("fetch", VERSION, "request"), data))
        state = {"replica_id": numbers["replica_id"], "replica_epoch": numbers["replica_epoch"]}
        assert found["replica_state"] == state
        assert found["max_wait"] == numbers["max_wait_ms"]
        for name in ("min_bytes", "max_bytes", "session_id", "session_epoch"):
            assert found[name] == numbers[name]
        assert found["isolation_level"] == 0
        assert found["rack_id"] == ""
        assert found["cluster_id"] is None
        asked = [
            Position(
                topic["topic_id"].bytes,
                each["partition"],
                each["current_leader_epoch"],
                each["fetch_offset"],
                each["last_fetched_epoch"],
                each["log_start_offset"],
                each["partition_max_bytes"],
            )
            for topic in found["topics"]
            for each in topic["partitions"]
        ]
        assert asked == positions, f"seed {seed}"
        dropped = [
            (topic["topic_id"].bytes, n) for topic in found["forgotten_topics_data"] for n in topic["partitions"]
        ]
        assert dropped == forgotten


def test_partitions_of_a_topic_that_stand_apart_are_put_together() -> None:
    one, two = bytes(16), b"x" * 16
    mixed = [Position(topic, n, 1, 2, 3, 4, 5) for n in range(3) for topic in (one, two)]
    data, _, _ = encode(random.Random(1), mixed)
    found = plain(read(entity_of("fetch", VERSION, "request"), data))
    assert [len(topic["partitions"]) for topic in found["topics"]] == [3, 3]


def test_our_leader_reads_what_a_follower_writes() -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        positions = random_positions(rng)
        data, numbers, forgotten = encode(rng, positions)
        found = fetch_codec.decode(memoryview(data), 0, VERSION)
        assert (found.replica_id, found.replica_epoch) == (numbers["replica_id"], numbers["replica_epoch"])
        assert found.wanted == [
            Wanted(
                at.topic_id,
                at.partition_index,
                at.fetch_offset,
                at.max_bytes,
                at.leader_epoch,
                at.last_fetched_epoch,
            )
            for at in positions
        ]
        assert found.forgotten == forgotten


def test_decode_reads_what_kio_writes() -> None:
    for seed in range(ROUNDS):
        original = random_entity(random.Random(seed), entity_of("fetch", VERSION, "response"))
        found = replica_fetch_codec.decode(memoryview(write(original)))
        expected = plain(original)
        assert (found.code, found.session_id) == (expected["error_code"], expected["session_id"])
        rows = [(topic["topic_id"].bytes, row) for topic in expected["responses"] for row in topic["partitions"]]
        assert [plain_row(row) for row in found.rows] == [
            (
                topic_id,
                row["partition_index"],
                row["error_code"],
                row["high_watermark"],
                row["log_start_offset"],
                row["records"] or b"",
                pair(row["diverging_epoch"], "epoch", "end_offset"),
                pair(row["current_leader"], "leader_id", "leader_epoch"),
            )
            for topic_id, row in rows
        ], f"seed {seed}"


def plain_row(row: FetchedRow) -> tuple[object, ...]:
    return (*row[:5], bytes(row.records), row.diverging, row.leader)


def pair(values: dict[str, int], first: str, second: str) -> tuple[int, int] | None:
    """kio leaves a tag out that is all defaults."""
    return None if (values[first], values[second]) == (-1, -1) else (values[first], values[second])


class ReadFile:
    path = "file"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]


def joined(parts: list[Part]) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part[0].read_at(part[2], part[1]) for part in parts)


def test_a_follower_reads_what_our_leader_writes() -> None:
    file = ReadFile(random.Random(0).randbytes(5000))
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        rows = []
        for at in random_positions(rng):
            data = FileSlice(file, rng.randint(0, 999), rng.randint(1, 999)) if rng.random() < 0.5 else None  # type: ignore[arg-type]
            diverging = (rng.randint(0, 9), rng.choice(OFFSETS)) if rng.random() < 0.3 else None
            leader = (rng.randint(-1, 9), rng.randint(0, 9)) if rng.random() < 0.3 else None
            places = (rng.choice((0, 6, 74)), rng.choice(OFFSETS), rng.choice(OFFSETS), rng.choice(OFFSETS))
            rows.append(Row(at.topic_id, at.partition_index, *places, data, diverging, (), leader))
        parts, size = fetch_codec.encode(rows, VERSION, 70, 5)
        body = joined(parts)
        assert len(body) == size
        assert read(entity_of("fetch", VERSION, "response"), body) is not None
        found = replica_fetch_codec.decode(memoryview(body))
        assert (found.code, found.session_id) == (70, 5)
        assert [plain_row(row) for row in found.rows] == [
            (
                row.topic,
                row.partition_index,
                row.code,
                row.high_watermark,
                row.log_start,
                file.read_at(row.data.size, row.data.position) if row.data else b"",
                row.diverging,
                row.leader,
            )
            for row in rows
        ]


def test_every_shorter_response_is_refused() -> None:
    original = random_entity(random.Random(5), entity_of("fetch", VERSION, "response"))
    original = replace(original, node_endpoints=())
    data = write(original)
    assert replica_fetch_codec.decode(memoryview(data)).rows
    for size in range(min(len(data), 1500)):
        with pytest.raises(PeerError):
            replica_fetch_codec.decode(memoryview(data[:size]))


def test_claims_of_more_than_is_there() -> None:
    for count in (b"\xff\xff\xff\xff\x0f", b"\x64"):
        with pytest.raises(PeerError, match="elements claimed"):
            replica_fetch_codec.decode(memoryview(bytes(10) + count + bytes(50)))


def test_garbage_is_refused_or_read_and_nothing_else() -> None:
    rng = random.Random(3)
    original = write(random_entity(random.Random(5), entity_of("fetch", VERSION, "response")))
    for _ in range(2000):
        data = bytearray(original)
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(min(len(data), 400))] = rng.randrange(256)
        try:
            replica_fetch_codec.decode(memoryview(data))
        except PeerError:
            continue


@pytest.mark.parametrize("epoch", [0, 1, 2, (1 << 31) - 2, (1 << 31) - 1])
def test_leader_and_follower_count_a_session_alike(epoch: int) -> None:
    assert replica_fetch_codec.next_epoch(epoch) == fetch_sessions.next_epoch(epoch)
