"""ShareFetch and ShareAcknowledge of every version against kio, requests and answers."""

import random
from typing import Any
from uuid import UUID

import pytest
from tests.doors.kio_values import entity_of, plain, random_entity, read, write

from penstock.net.connection import Part, PeerError
from penstock.protocols.kafka import share_codec
from penstock.protocols.kafka.cluster_view import Endpoint
from penstock.protocols.kafka.share_codec import AckBatch, Acquired, Row
from penstock.storage.log.segment import FileSlice

ROUNDS = 100
VERSIONS = (1, 2)
APIS = ("share_fetch", "share_acknowledge")


class ReadFile:
    """A file of random bytes."""

    path = "file"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, size: int, position: int) -> bytes:
        return self._data[position : position + size]


def joined(parts: list[Part]) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part[0].read_at(part[2], part[1]) for part in parts)


def acks(topics: Any) -> list[Any]:
    return [
        (
            (topic["topic_id"].bytes, each["partition_index"]),
            [
                AckBatch(
                    batch["first_offset"],
                    batch["last_offset"],
                    bytes(kind & 0xFF for kind in batch["acknowledge_types"]),
                )
                for batch in each["acknowledgement_batches"]
            ],
        )
        for topic in topics
        for each in topic["partitions"]
    ]


def listed(found: Any) -> list[Any]:
    return [(place, list(batches)) for place, batches in found]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_is_read_as_kio_writes_it(version: int) -> None:
    for seed in range(ROUNDS):
        original = random_entity(random.Random(seed), entity_of("share_fetch", version, "request"))
        found = share_codec.decode_fetch(memoryview(b"head" + write(original)), 4, version)
        expected = plain(original)
        assert (found.group, found.member) == (expected["group_id"], expected["member_id"])
        assert found.epoch == expected["share_session_epoch"]
        assert found.max_wait_ms == expected["max_wait"]
        assert found.min_bytes == expected["min_bytes"]
        assert found.max_bytes == expected["max_bytes"]
        assert found.max_records == expected["max_records"]
        assert found.batch_size == expected["batch_size"]
        assert found.acquire_mode == expected.get("share_acquire_mode", 0)
        assert found.renews == expected.get("is_renew_ack", False)
        assert listed(found.wanted) == acks(expected["topics"]), f"seed {seed}"
        assert found.forgotten == [
            (topic["topic_id"].bytes, index)
            for topic in expected["forgotten_topics_data"]
            for index in topic["partitions"]
        ], f"seed {seed}"


@pytest.mark.parametrize("version", VERSIONS)
def test_acknowledgements_are_read_as_kio_writes_them(version: int) -> None:
    for seed in range(ROUNDS):
        original = random_entity(random.Random(seed), entity_of("share_acknowledge", version, "request"))
        found = share_codec.decode_acknowledge(memoryview(b"head" + write(original)), 4, version)
        expected = plain(original)
        assert (found.group, found.member) == (expected["group_id"], expected["member_id"])
        assert found.epoch == expected["share_session_epoch"]
        assert found.renews == expected.get("is_renew_ack", False)
        assert listed(found.acked) == acks(expected["topics"]), f"seed {seed}"


def decode(api: str, data: bytes, version: int) -> object:
    if api == "share_fetch":
        return share_codec.decode_fetch(memoryview(data), 0, version)
    return share_codec.decode_acknowledge(memoryview(data), 0, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("api", APIS)
def test_every_shorter_prefix_is_refused(api: str, version: int) -> None:
    for seed in (5, 6, 7):
        data = write(random_entity(random.Random(seed), entity_of(api, version, "request")))
        for size in range(min(len(data), 1500)):
            with pytest.raises(PeerError):
                decode(api, data[:size], version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("api", APIS)
def test_what_was_damaged_is_read_or_refused(api: str, version: int) -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        data = bytearray(write(random_entity(rng, entity_of(api, version, "request"))))
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        try:
            decode(api, bytes(data), version)
        except PeerError:
            continue


@pytest.mark.parametrize("version", VERSIONS)
def test_a_claim_of_more_than_is_there(version: int) -> None:
    head = b"\2g\2m" + bytes(24) + (b"\0\0" if version >= 2 else b"")
    huge = b"\xff\xff\xff\xff\x0f"
    topic = b"\2" + bytes(16)
    batches = topic + b"\2" + bytes(4)
    for claim in (huge, topic + huge, batches + huge, batches + b"\2" + bytes(16) + huge, b"\1" + huge):
        with pytest.raises(PeerError, match="claimed"):
            share_codec.decode_fetch(memoryview(head + claim + bytes(60)), 0, version)


def test_more_elements_than_a_request_may_have() -> None:
    head = b"\2g\2m" + bytes(24)
    count = b"\xa1\x9c\x01"  # 20,000 and one
    body = b"\2" + bytes(16) + count + bytes(6) * 20_000 + b"\0\1\0"
    with pytest.raises(PeerError, match="20000 elements claimed"):
        share_codec.decode_fetch(memoryview(head + body), 0, 1)
    with pytest.raises(PeerError, match="4 elements claimed"):
        share_codec.decode_fetch(memoryview(head + b"\2" + bytes(16) + b"\5" + bytes(6) * 4 + b"\0\1\0"), 0, 1, 4)


def test_names_that_are_too_long_or_no_text() -> None:
    with pytest.raises(PeerError, match="a name of 40000 bytes"):
        share_codec.decode_fetch(memoryview(b"\xc1\xb8\x02" + b"g" * 40_000 + bytes(60)), 0, 1)
    with pytest.raises(PeerError, match="UTF-8"):
        share_codec.decode_fetch(memoryview(b"\2\xff" + bytes(60)), 0, 1)


def random_rows(rng: random.Random, file: ReadFile, size: int) -> list[Row]:
    rows = []
    for number in range(rng.choice((0, 1, 2, 3))):
        for index in range(rng.choice((1, 2, 130))):
            slices = []
            for _ in range(rng.choice((0, 0, 1, 3))):
                position = rng.randint(0, size - 1)
                slices.append(FileSlice(file, position, rng.randint(1, min(size - position, 300))))  # type: ignore
            acquired = [
                Acquired(rng.randint(0, 1 << 60), rng.randint(0, 1 << 60), rng.choice((1, 2, 32767)))
                for _ in range(rng.choice((0, 1, 4)))
            ]
            leader = (rng.randint(0, 9), rng.randint(0, 99)) if rng.random() < 0.3 else None
            code, ack_code = rng.choice((0, 0, 6, 100)), rng.choice((0, 42, 121))
            rows.append(Row((bytes([number]) * 16, index), code, ack_code, leader, slices, acquired))
    rng.shuffle(rows)
    return rows


def random_endpoints(rng: random.Random) -> list[Endpoint]:
    return [
        Endpoint(number, rng.choice(("h", "x" * 200, "grüße")), rng.randint(1, 65535), rng.choice((None, "", "rack")))
        for number in range(rng.choice((0, 1, 3)))
    ]


def check_common(found: Any, rows: list[Row], code: int, endpoints: list[Endpoint]) -> list[Any]:
    """What both answers have; returns the partitions' answers in the rows' order."""
    assert (found["throttle_time"], found["error_code"], found["error_message"]) == (0, code, None)
    assert [tuple(each.values()) for each in found["node_endpoints"]] == [tuple(each) for each in endpoints]
    topics = [topic["topic_id"].bytes for topic in found["responses"]]
    assert len(topics) == len(set(topics)), "a topic is listed twice"
    answers = {
        (topic["topic_id"].bytes, answer["partition_index"]): answer
        for topic in found["responses"]
        for answer in topic["partitions"]
    }
    assert answers.keys() == {row.place for row in rows}
    for row in rows:
        answer = answers[row.place]
        assert (answer["error_code"], answer["error_message"]) == (row.code, None)
        leader_id, leader_epoch = row.leader or (-1, -1)
        assert answer["current_leader"] == {"leader_id": leader_id, "leader_epoch": leader_epoch}
    return [answers[row.place] for row in rows]


@pytest.mark.parametrize("version", VERSIONS)
def test_kio_reads_what_a_fetch_is_answered(version: int) -> None:
    file = ReadFile(random.Random(0).randbytes(5000))
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        rows, endpoints = random_rows(rng, file, 5000), random_endpoints(rng)
        code, lock_ms = rng.choice((0, 122, 133)), rng.choice((0, 30_000))
        parts, size = share_codec.encode_fetch(rows, code, lock_ms, endpoints)
        data = joined(parts)
        assert len(data) == size
        found = plain(read(entity_of("share_fetch", version, "response"), data))
        assert found["acquisition_lock_timeout"] == lock_ms
        for row, answer in zip(rows, check_common(found, rows, code, endpoints), strict=True):
            assert (answer["acknowledge_error_code"], answer["acknowledge_error_message"]) == (row.ack_code, None)
            assert answer["records"] == b"".join(file.read_at(each.size, each.position) for each in row.slices)
            assert [tuple(each.values()) for each in answer["acquired_records"]] == list(row.acquired)


@pytest.mark.parametrize("version", VERSIONS)
def test_kio_reads_what_acknowledgements_are_answered(version: int) -> None:
    file = ReadFile(b"unread")
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        rows, endpoints = random_rows(rng, file, 6), random_endpoints(rng)
        code, lock_ms = rng.choice((0, 122, 123)), rng.choice((0, 30_000))
        data = share_codec.encode_acknowledge(rows, version, code, lock_ms, endpoints)
        found = plain(read(entity_of("share_acknowledge", version, "response"), data))
        assert found.get("acquisition_lock_timeout") == (lock_ms if version >= 2 else None)
        check_common(found, rows, code, endpoints)


def test_more_deliveries_than_kafka_can_count() -> None:
    row = Row((UUID(int=7).bytes, 0), 0, acquired=[Acquired(5, 6, 40_000)])
    parts, _ = share_codec.encode_fetch([row], 0)
    (topic,) = plain(read(entity_of("share_fetch", 2, "response"), joined(parts)))["responses"]
    assert topic["partitions"][0]["acquired_records"][0]["delivery_count"] == 32767
