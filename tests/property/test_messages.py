"""Our message codec against kio's reader and writer, for every API and version that is served by schema."""

import asyncio
import random
from functools import cache
from unittest.mock import patch

import pytest
from tests.doors.kio_values import entity_of, plain, random_entity, read, write

from penstock.net.connection import PeerError
from penstock.protocols.kafka.session import APIS
from penstock.protocols.kafka_wire import messages
from penstock.protocols.kafka_wire.messages import (
    MAX_ELEMENTS,
    Message,
    Schema,
    decode,
    decode_in_steps,
    encode,
    schema_of,
)

ROUNDS = 25
BY_SCHEMA = [api for api in APIS if api.name not in ("produce", "fetch")]  # those two have codecs of their own
VERSIONS = [
    pytest.param(api.name, version, direction, id=f"{api.name}-{version}-{direction}")
    for api in BY_SCHEMA
    for version in range(api.oldest, api.newest + 1)
    for direction in ("request", "response")
]


@pytest.mark.parametrize(("api", "version", "direction"), VERSIONS)
def test_decode_reads_what_kio_writes(api: str, version: int, direction: str) -> None:
    schema = schema_of(api, version, direction)
    entity = entity_of(api, version, direction)
    for seed in range(ROUNDS):
        original = random_entity(random.Random(seed), entity)
        data = write(original)
        decoded = decode(schema, memoryview(data))
        assert plain(decoded) == plain(original), f"seed {seed}"


@cache
def _written(api: str, version: int, direction: str, seed: int) -> bytes:
    return write(random_entity(random.Random(seed), entity_of(api, version, direction)))


async def _in_steps(schema: Schema, data: bytes) -> tuple[Message, int]:
    """The message, and in how many steps it was decoded."""
    steps = 1

    async def pause() -> None:
        nonlocal steps
        steps += 1

    return await decode_in_steps(schema, memoryview(data), pause), steps


@pytest.mark.parametrize(("api", "version", "direction"), VERSIONS)
@pytest.mark.parametrize("at_once", [1, 3])
def test_decode_in_steps_reads_the_same(api: str, version: int, direction: str, at_once: int) -> None:
    schema = schema_of(api, version, direction)
    # A loop costs more than what is decoded in it: one for all rounds.
    with patch.object(messages, "ELEMENTS_AT_ONCE", at_once), asyncio.Runner() as loop:
        for seed in range(ROUNDS):
            data = _written(api, version, direction, seed)
            decoded, _ = loop.run(_in_steps(schema, data))
            assert plain(decoded) == plain(decode(schema, memoryview(data))), f"seed {seed}"
        for size in range(min(len(data), 100)):
            with pytest.raises(PeerError):
                loop.run(_in_steps(schema, data[:size]))


@pytest.mark.parametrize("topics", [1, 5, 35])
def test_a_step_decodes_so_many_elements_at_most(topics: int) -> None:
    schema = schema_of("offset_commit", 9, "request")
    rows = [{"partition_index": at, "committed_offset": at, "committed_metadata": "x"} for at in range(35 // topics)]
    data = encode(schema, {"group_id": "g", "topics": [{"name": "t", "partitions": rows}] * topics})
    with patch.object(messages, "ELEMENTS_AT_ONCE", 10):
        _, steps = asyncio.run(_in_steps(schema, data))
    assert steps == 1 + (35 + topics) // 10


@pytest.mark.parametrize(("api", "version", "direction"), VERSIONS)
def test_encode_writes_what_kio_writes(api: str, version: int, direction: str) -> None:
    schema = schema_of(api, version, direction)
    entity = entity_of(api, version, direction)
    for seed in range(ROUNDS):
        original = random_entity(random.Random(seed), entity)
        data = encode(schema, plain(original))
        assert data == write(original), f"seed {seed}"
        assert plain(read(entity, data)) == plain(original), f"seed {seed}"


def test_rows_of_numbers_may_have_tagged_fields_nobody_knows() -> None:
    rows = [{"partition_index": 1, "offset": 5}, {"partition_index": 2, "offset": 6}]
    schema = schema_of("delete_records", 2, "request")
    data = encode(schema, {"topics": [{"name": "t", "partitions": rows}], "timeout": 1})
    plain_row = bytes([0, 0, 0, 2]) + (6).to_bytes(8, "big") + b"\0"
    assert data.count(plain_row) == 1
    tagged = data.replace(plain_row, plain_row[:-1] + b"\1\7\2ab")
    for sent in (data, tagged):
        decoded = decode(schema, memoryview(sent))
        assert [vars(row) for row in decoded.topics[0].partitions] == rows and decoded.timeout == 1
    with pytest.raises(PeerError, match="more than 2 elements"):
        decode(schema, memoryview(data), max_elements=2)


@pytest.mark.parametrize(("api", "version", "direction"), VERSIONS)
def test_every_shorter_prefix_is_refused(api: str, version: int, direction: str) -> None:
    schema = schema_of(api, version, direction)
    data = write(random_entity(random.Random(version), entity_of(api, version, direction)))
    for size in range(min(len(data), 400)):
        with pytest.raises(PeerError):
            decode(schema, memoryview(data[:size]))


@pytest.mark.parametrize(("api", "version", "direction"), VERSIONS)
def test_bytes_behind_the_message_and_before_it_are_left_alone(api: str, version: int, direction: str) -> None:
    schema = schema_of(api, version, direction)
    original = random_entity(random.Random(7), entity_of(api, version, direction))
    data = b"head" + write(original) + b"\xff" * 9
    assert plain(decode(schema, memoryview(data), 4)) == plain(original)


@pytest.mark.parametrize(
    ("api", "version"), [(api.name, v) for api in BY_SCHEMA for v in range(api.oldest, api.newest + 1)]
)
def test_a_response_of_defaults_can_be_read(api: str, version: int) -> None:
    """A handler may leave out any field; what kio reads then is its own default or the type's zero."""
    data = encode(schema_of(api, version, "response"), {})
    read(entity_of(api, version, "response"), data)


def test_fields_of_other_versions_are_ignored() -> None:
    schema = schema_of("metadata", 1, "response")
    assert encode(schema, {"no_such_field": 1}) == encode(schema, {})


def test_unknown_tags_are_skipped() -> None:
    schema = schema_of("api_versions", 3, "request")
    name = b"\x02a\x02b"
    decoded = decode(schema, memoryview(name + b"\x02" + b"\x63\x03xyz" + b"\xe4\x07\x00"))
    assert plain(decoded) == {"client_software_name": "a", "client_software_version": "b"}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x02a\x02b\x01\x63\x7fxyz", "reaches past"),
        (b"\x02a\x02b\xff\xff\xff\xff\x0f", "elements claimed"),
        (b"\x02a\x02b\xff\xff\xff\xff\xff\x0f", "varint"),
        (b"\xff\xff\xff\xff\x0fa", "bytes claimed"),
        (b"\x00\x02b\x00", "has length -1"),
        (b"\x02\xff\x02b\x00", "not UTF-8"),
    ],
)
def test_forged_flexible_fields(data: bytes, what: str) -> None:
    with pytest.raises(PeerError, match=what):
        decode(schema_of("api_versions", 3, "request"), memoryview(data))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x7f\xff\xff\xff", "elements claimed"),
        (b"\x80\x00\x00\x00", "elements"),
        (b"\x00\x00\x00\x01\x7f\xffabc", "bytes claimed"),
        (b"\x00\x00\x00\x01\xff\xff", "has length -1"),
    ],
)
def test_forged_old_fields(data: bytes, what: str) -> None:
    with pytest.raises(PeerError, match=what):
        decode(schema_of("metadata", 1, "request"), memoryview(data))


def test_more_elements_than_a_request_may_have() -> None:
    count = MAX_ELEMENTS + 1
    data = count.to_bytes(4, "big") + b"\x00\x01a" * count
    with pytest.raises(PeerError, match=f"more than {MAX_ELEMENTS} elements"):
        decode(schema_of("metadata", 1, "request"), memoryview(data))


def test_a_missing_field_says_its_name() -> None:
    message = Message({"name": "x"})
    with pytest.raises(AttributeError, match="topic_id"):
        _ = message.topic_id
    assert message.get("topic_id") is None
    assert message.get("name") == "x"
    assert "x" in repr(message)
