"""Produce requests and responses of every version against kio."""

import random
from uuid import UUID

import pytest
from tests.doors.kio_values import entity_of, plain, random_entity, read, write

from penstock.net.connection import PeerError
from penstock.protocols.kafka import produce_codec
from penstock.protocols.kafka.handlers import produce
from penstock.protocols.kafka.produce_codec import Result

ROUNDS = 60
VERSIONS = range(produce.API.oldest, produce.API.newest + 1)
_TEXTS = (None, "", "x", "no such thing " * 30, "grüße ☃")


def wire_topic(topic: dict, version: int) -> bytes:
    return topic["topic_id"].bytes if version >= 13 else topic["name"].encode()


@pytest.mark.parametrize("version", VERSIONS)
def test_decode_reads_what_kio_writes(version: int) -> None:
    for seed in range(ROUNDS):
        original = random_entity(random.Random(seed), entity_of("produce", version, "request"))
        found = produce_codec.decode(memoryview(b"head" + write(original)), 4, version)
        expected = plain(original)
        wanted_id = expected["transactional_id"]
        assert found.transactional_id == (None if wanted_id is None else wanted_id.encode()), f"seed {seed}"
        assert (found.acks, found.timeout_ms) == (expected["acks"], expected["timeout"]), f"seed {seed}"
        assert found.topics == [
            (
                wire_topic(topic, version),
                [(each["index"], each["records"]) for each in topic["partition_data"]],
            )
            for topic in expected["topic_data"]
        ], f"seed {seed}"


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_are_views_of_the_frame(version: int) -> None:
    kind = entity_of("produce", version, "request")
    for seed in range(100):
        frame = bytearray(write(random_entity(random.Random(seed), kind)))
        found = produce_codec.decode(memoryview(frame), 0, version)
        batches = [batch for _, parts in found.topics for _, batch in parts if batch is not None and len(batch)]
        if batches:
            assert all(batch.obj is frame and not batch.readonly for batch in batches)
            return
    raise AssertionError("no message with a batch")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shorter_prefix_is_refused(version: int) -> None:
    data = write(random_entity(random.Random(3), entity_of("produce", version, "request")))
    # The last byte of a flexible request is its tag section, which nobody reads.
    end = len(data) - 1 if version >= produce_codec.FLEXIBLE_FROM else len(data)
    for size in range(end):
        with pytest.raises(PeerError):
            produce_codec.decode(memoryview(data[:size]), 0, version)


def random_results(rng: random.Random, version: int) -> list[tuple[bytes, list[Result]]]:
    results = []
    for _ in range(rng.choice((0, 1, 2, 3, 130))):
        topic = rng.randbytes(16) if version >= 13 else rng.choice((b"", b"topic", b"n" * 249))
        rows = [
            Result(
                rng.randint(0, 1 << 30),
                rng.choice((0, 2, 3, 10, 87)),
                rng.randint(-1, 1 << 60),
                rng.choice((-1, rng.randint(0, 1 << 42))),
                rng.randint(-1, 1 << 60),
                rng.choice(_TEXTS),
            )
            for _ in range(rng.choice((0, 1, 2, 5)))
        ]
        results.append((topic, rows))
    return results


@pytest.mark.parametrize("version", VERSIONS)
def test_kio_reads_what_encode_writes(version: int) -> None:
    for seed in range(ROUNDS):
        results = random_results(random.Random(seed), version)
        found = plain(read(entity_of("produce", version, "response"), produce_codec.encode(results, version)))
        assert found["throttle_time"] == 0
        assert len(found["responses"]) == len(results)
        for (topic, rows), response in zip(results, found["responses"], strict=True):
            assert wire_topic(response, version) == topic or (version >= 13 and response["topic_id"] == UUID(int=0))
            for row, answer in zip(rows, response["partition_responses"], strict=True):
                assert answer["index"] == row.partition_index
                assert answer["error_code"] == row.code
                assert answer["base_offset"] == row.base_offset
                time = answer["log_append_time"]
                assert (-1 if time is None else time) == row.append_time, f"seed {seed}"
                if version >= 5:
                    assert answer["log_start_offset"] == row.log_start
                if version >= 8:
                    assert answer["error_message"] == row.text
                    assert answer["record_errors"] == ()


def test_a_text_too_long_for_an_old_string_still_makes_a_message() -> None:
    results = [(b"topic", [Result(0, 87, -1, -1, -1, "ä" * 40_000)])]
    answer = read(entity_of("produce", 8, "response"), produce_codec.encode(results, 8))
    assert answer.responses[0].partition_responses[0].error_message.startswith("ää")


@pytest.mark.parametrize("version", [8, 9, 13])
def test_more_elements_than_a_request_may_have(version: int) -> None:
    count = 20_001
    if version < 9:
        body = b"\xff\xff" + b"\0\1\0\0\0\0" + count.to_bytes(4, "big") + b"\0\0\0\0\0\0" * count
    else:
        topic = (b"\1" if version == 9 else bytes(16)) + b"\1\0"
        body = b"\0" + b"\0\1\0\0\0\0" + b"\xa2\x9c\x01" + topic * count + b"\0"
    with pytest.raises(PeerError, match="20001 elements claimed"):
        produce_codec.decode(memoryview(body), 0, version)
