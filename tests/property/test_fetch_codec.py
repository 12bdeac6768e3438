"""Fetch requests and responses of every version against kio."""

import random
from dataclasses import replace
from uuid import UUID

import pytest
from tests.doors.kio_values import entity_of, plain, random_entity, read, write

from penstock.net.connection import Part, PeerError
from penstock.protocols.kafka import fetch_codec
from penstock.protocols.kafka.fetch_codec import Row
from penstock.protocols.kafka.fetch_sessions import Wanted
from penstock.protocols.kafka.handlers import fetch
from penstock.storage.log.segment import FileSlice

ROUNDS = 60
VERSIONS = range(fetch.API.oldest, fetch.API.newest + 1)


class ReadFile:
    """A file of random bytes."""

    path = "file"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]


def joined(parts: list[Part]) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part[0].read_at(part[2], part[1]) for part in parts)


def wire_topic(topic: dict, version: int) -> bytes:
    return topic["topic_id"].bytes if version >= 13 else topic["topic"].encode()


@pytest.mark.parametrize("version", VERSIONS)
def test_decode_reads_what_kio_writes(version: int) -> None:
    for seed in range(ROUNDS):
        original = random_entity(random.Random(seed), entity_of("fetch", version, "request"))
        found = fetch_codec.decode(memoryview(b"head" + write(original)), 4, version)
        expected = plain(original)
        assert found.max_wait_ms == expected["max_wait"]
        assert found.min_bytes == expected["min_bytes"]
        assert found.max_bytes == expected["max_bytes"]
        assert found.isolation_level == expected["isolation_level"]
        assert found.session_id == expected.get("session_id", 0)
        assert found.session_epoch == expected.get("session_epoch", -1)
        state = expected.get("replica_state", {"replica_id": expected.get("replica_id", -1), "replica_epoch": -1})
        assert (found.replica_id, found.replica_epoch) == (state["replica_id"], state["replica_epoch"])
        assert found.wanted == [
            Wanted(
                wire_topic(topic, version),
                each["partition"],
                each["fetch_offset"],
                each["partition_max_bytes"],
                each.get("current_leader_epoch", -1),
                each.get("last_fetched_epoch", -1),
            )
            for topic in expected["topics"]
            for each in topic["partitions"]
        ], f"seed {seed}"
        assert found.forgotten == [
            (wire_topic(topic, version), index)
            for topic in expected.get("forgotten_topics_data", ())
            for index in topic["partitions"]
        ], f"seed {seed}"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shorter_prefix_of_what_is_read_is_refused(version: int) -> None:
    original = random_entity(random.Random(5), entity_of("fetch", version, "request"))
    read_to = len(write(original))
    if 11 <= version < fetch_codec.STATE_TAG_FROM:  # the rack and the tags behind it are not looked at
        original = replace(original, rack_id="the-rack")
        read_to = write(original).index(b"the-rack") - (1 if version >= 12 else 2)
    data = write(original)
    for size in range(min(read_to, 1500)):
        with pytest.raises(PeerError):
            fetch_codec.decode(memoryview(data[:size]), 0, version)


def random_rows(rng: random.Random, version: int, file: ReadFile, size: int) -> list[Row]:
    rows = []
    for number in range(rng.choice((0, 1, 2, 3))):
        topic = (number + 1).to_bytes(16, "big") if version >= 13 else f"topic-{number}".encode() * rng.choice((1, 20))
        for index in range(rng.choice((1, 2, 130))):
            data = None
            if rng.random() < 0.5:
                position = rng.randint(0, size - 1)
                data = FileSlice(file, position, rng.randint(1, min(size - position, 300)))  # type: ignore[arg-type]
            diverging = (rng.randint(0, 9), rng.randint(0, 1 << 60)) if version >= 12 and rng.random() < 0.2 else None
            code = rng.choice((0, 0, 1, 3, 100))
            high, stable, start = (rng.randint(-1, 1 << 60) for _ in range(3))
            rows.append(Row(topic, index, code, high, stable, start, data, diverging))
    return rows


@pytest.mark.parametrize("version", VERSIONS)
def test_kio_reads_what_encode_writes(version: int) -> None:
    file = ReadFile(random.Random(0).randbytes(5000))
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        rows = random_rows(rng, version, file, 5000)
        code, session_id = rng.choice((0, 70, 71)), rng.randint(0, (1 << 31) - 1)
        parts, size = fetch_codec.encode(rows, version, code, session_id)
        data = joined(parts)
        assert len(data) == size
        found = plain(read(entity_of("fetch", version, "response"), data))
        assert found["throttle_time"] == 0
        if version >= 7:
            assert (found["error_code"], found["session_id"]) == (code, session_id)
        answers = [
            (wire_topic(topic, version), answer) for topic in found["responses"] for answer in topic["partitions"]
        ]
        topics = [wire_topic(topic, version) for topic in found["responses"]]
        assert len(topics) == len(set(topics)), "a topic is listed twice"
        for row, (topic, answer) in zip(rows, answers, strict=True):
            assert topic == row.topic
            assert answer["partition_index"] == row.partition_index
            assert answer["error_code"] == row.code
            assert answer["high_watermark"] == row.high_watermark
            assert answer["last_stable_offset"] == row.stable_offset
            assert answer["records"] == (file.read_at(row.data.size, row.data.position) if row.data else b"")
            assert not answer["aborted_transactions"]
            if version >= 5:
                assert answer["log_start_offset"] == row.log_start
            if version >= 11:
                assert answer["preferred_read_replica"] == -1
            if version >= 12:
                epoch, end = row.diverging or (-1, -1)
                assert answer["diverging_epoch"] == {"epoch": epoch, "end_offset": end}
                assert answer["current_leader"] == {"leader_id": -1, "leader_epoch": -1}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_refusal_names_every_partition_once(version: int) -> None:
    topics = [bytes([number]) * 16 for number in (2, 1, 2)]
    wanted = [Wanted(topic, index, 0, 0) for index, topic in enumerate(topics)]
    request = fetch_codec.FetchRequest(0, 0, 0, 0, 0, -1, wanted, [])
    found = plain(read(entity_of("fetch", version, "response"), fetch_codec.encode_refusal(request, version, 29)))
    answers = [
        (wire_topic(topic, version), row["partition_index"], row["error_code"])
        for topic in found["responses"]
        for row in topic["partitions"]
    ]
    assert answers == [(topics[1], 1, 29), (topics[0], 0, 29), (topics[2], 2, 29)]


def test_ids_are_sent_as_they_came() -> None:
    topic = UUID(int=77)
    parts, _ = fetch_codec.encode([Row(topic.bytes, 0, 100, -1, -1, -1, None)], 13, 0, 0)
    assert read(entity_of("fetch", 13, "response"), joined(parts)).responses[0].topic_id == topic


@pytest.mark.parametrize("version", [4, 11, 12, 13, 18])
def test_a_claim_of_more_than_is_there(version: int) -> None:
    head = (b"" if version >= 15 else b"\xff\xff\xff\xff") + bytes(13) + (bytes(8) if version >= 7 else b"")
    count = b"\xff\xff\xff\xff\x0f" if version >= 12 else b"\x7f\xff\xff\xff"
    with pytest.raises(PeerError, match="elements claimed"):
        fetch_codec.decode(memoryview(head + count + bytes(50)), 0, version)


def test_more_partitions_than_a_request_may_have() -> None:
    head = b"\xff\xff\xff\xff" + bytes(13)
    topics = (200_001).to_bytes(4, "big") + b"\0\1t\0\0\0\0" * 200_001
    with pytest.raises(PeerError, match="elements claimed"):
        fetch_codec.decode(memoryview(head + topics), 0, 4)


def test_names_that_no_topic_can_have_end_the_connection() -> None:
    """A session would keep them."""
    head, one = b"\xff\xff\xff\xff" + bytes(13), b"\0\0\0\1"

    def ask(size: int) -> fetch_codec.FetchRequest:
        topic = size.to_bytes(2, "big") + b"t" * size + one + bytes(16)
        return fetch_codec.decode(memoryview(head + one + topic), 0, 4)

    assert ask(249).wanted[0].topic == b"t" * 249
    with pytest.raises(PeerError, match="a name of 5000 bytes"):
        ask(5000)
