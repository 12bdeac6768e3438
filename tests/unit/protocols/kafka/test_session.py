"""Dispatch: versions, what is advertised, order of answers, and what closes a connection."""

import asyncio
import struct
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from tests.doors.kafka import Door, batch_of, fetch_values, make, produce_values, with_door
from tests.doors.kio_values import entity_of, plain, read

from penstock.protocols.kafka import session
from penstock.protocols.kafka.handlers import api_versions
from penstock.protocols.kafka.session import APIS
from penstock.protocols.kafka_wire import messages

SOFTWARE = {"client_software_name": "test", "client_software_version": "1.0"}


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_version_served_is_one_kafka_has(api: Any) -> None:
    for version in range(api.oldest, api.newest + 1):
        for direction in ("request", "response"):
            entity: Any = entity_of(api.name, version, direction)
            assert (entity.__api_key__, entity.__version__) == (api.key, version)


def test_keys_are_unique() -> None:
    assert len({api.key for api in APIS}) == len(APIS)


@pytest.mark.parametrize("version", range(5))
def test_api_versions(version: int) -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        answer = await client.ask("api_versions", version, **SOFTWARE)
        assert answer["error_code"] == 0
        listed = {each["api_key"]: (each["min_version"], each["max_version"]) for each in answer["api_keys"]}
        expected = {api.key: (api.oldest, api.newest) for api in APIS}
        from_0 = {key: (0, expected[key][1]) for key in (0, 17)}  # for librdkafka's sake, see `advertised`
        assert listed == expected | from_0

    with_door(body)


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_api_versions_of_another_age_are_answered_in_version_0(version: int) -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        sent = client.send(make("api_versions", 3, SOFTWARE), version=version)
        correlation, answer = await client.receive("api_versions", 0)
        assert correlation == sent
        assert answer["error_code"] == 35
        own = next(each for each in answer["api_keys"] if each["api_key"] == 18)
        assert (own["min_version"], own["max_version"]) == (0, api_versions.API.newest)
        assert (await client.ask("api_versions", own["max_version"], **SOFTWARE))["error_code"] == 0

    with_door(body)


@pytest.mark.parametrize("name", ["", "-x", "x-", "a b", "ä", "x\n"])
def test_client_names_nobody_has(name: str) -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        answer = await client.ask("api_versions", 3, client_software_name=name, client_software_version="1")
        assert answer["error_code"] == 42

    with_door(body)


@pytest.mark.parametrize("api", [api for api in APIS if api.key != 18], ids=lambda api: api.name)
def test_versions_not_served_close_the_connection(api: Any) -> None:
    async def body(door: Door) -> None:
        for version in (-1, api.oldest - 1, api.newest + 1, 32767):
            client = await door.client()
            client.send_frame(struct.pack(">hhih", api.key, version, 1, -1) + bytes(20))
            await client.stream.closed()

    with_door(body)


@pytest.mark.parametrize("key", [-1, 4, 93, 32767])
def test_unknown_apis_close_the_connection(key: int) -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        client.send_frame(struct.pack(">hhih", key, 0, 1, -1))
        await client.stream.closed()
        assert door.stats.protocol_errors == 1

    with_door(body)


def test_answers_keep_the_order_of_requests() -> None:
    """A long poll, an append that waits for the disk, and questions answered at once."""

    async def body(door: Door) -> None:
        await door.topic(partitions=2)
        client = await door.client()
        sent = [
            ("fetch", 12, client.send(make("fetch", 12, fetch_values({"t": {1: 0}}, max_wait=700)))),
            ("produce", 9, client.send(make("produce", 9, produce_values(batch_of(b"x"))))),
            ("metadata", 12, client.send(make("metadata", 12, {"topics": None}))),
            ("api_versions", 3, client.send(make("api_versions", 3, SOFTWARE))),
            ("list_offsets", 7, client.send(make("list_offsets", 7, {"topics": []}))),
        ]
        for api, version, correlation in sent:
            assert (await client.receive(api, version))[0] == correlation

    with_door(body)


def test_requests_are_counted_and_timed() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        for _ in range(3):
            await client.ask("metadata", 1, topics=[])
        assert door.stats.requests[("kafka", "metadata")].latency.count == 3

    with_door(body)


def test_a_large_request_of_a_small_api_is_refused() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        client.send_frame(struct.pack(">hhih", 3, 1, 1, -1) + bytes(9 << 20))
        await client.stream.closed()

    with_door(body, max_piece_bytes=1 << 20)


@pytest.fixture
def all_are_large() -> Iterator[None]:
    """Every request is decoded in steps, with others' turns after each element."""
    with patch.object(session, "_DECODED_AT_ONCE", 0), patch.object(messages, "ELEMENTS_AT_ONCE", 1):
        yield


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("seed", range(5))
def test_a_request_that_takes_long_to_read_is_not_overtaken(seed: int) -> None:
    def commit(offset: int, partitions: int) -> Any:
        rows = [{"partition_index": index, "committed_offset": offset} for index in range(partitions)]
        return make(
            "offset_commit",
            9,
            {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": rows}]},
        )

    async def body(door: Door) -> None:
        await door.topic(partitions=30)
        client = await door.client()
        client.send(commit(1, partitions=30))
        client.send(commit(2, partitions=1))
        for _ in range(2):
            _, answer = await client.receive("offset_commit", 9)
            assert not any(row["error_code"] for row in answer["topics"][0]["partitions"])
        asked = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0, 29]}]}
        fetched = await client.ask("offset_fetch", 8, groups=[asked])
        rows = fetched["groups"][0]["topics"][0]["partitions"]
        assert [row["committed_offset"] for row in rows] == [2, 1]

    with_door(body, seed)


@pytest.mark.usefixtures("all_are_large")
def test_a_request_that_was_long_to_read_and_waits_holds_up_no_other() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        member = {"group_id": "g", "protocol_type": "consumer", "session_timeout": 10_000, "rebalance_timeout": 10_000}
        client.send(make("join_group", 2, member | {"protocols": [{"name": "range", "metadata": b""}]}))
        client.send(make("find_coordinator", 1, {"key": "g"}))
        await asyncio.sleep(0.1)  # of virtual time; the group waits longer for others
        assert door.stats.requests[("kafka", "join_group")].latency.count == 0
        assert door.stats.requests[("kafka", "find_coordinator")].latency.count == 1
        assert (await client.receive("join_group", 2))[1]["error_code"] == 0

    with_door(body)


@pytest.mark.usefixtures("all_are_large")
def test_a_forged_count_in_what_is_read_in_steps_is_the_peers_fault() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        client.send_frame(struct.pack(">hhihi", 3, 1, 1, -1, 1_000_000))
        await client.stream.closed()
        assert door.stats.protocol_errors == 1
        assert door.stats.requests[("kafka", "metadata")].errors == 0

    with_door(body)


def test_a_client_that_goes_away_leaves_nothing_parked() -> None:
    async def body(door: Door) -> None:
        topic = await door.topic()
        client = await door.client()
        client.send(make("fetch", 12, fetch_values({"t": {0: 0}}, max_wait=100_000)))
        waiters = topic.partitions[0].waiters
        await asyncio.sleep(1)  # of virtual time
        assert len(waiters._readers) == 1
        client.stream.close()
        await asyncio.sleep(1)
        assert not waiters._readers
        assert door.stats.connections_open == 0

    with_door(body)


def test_client_ids_of_all_kinds() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        for client_id in (b"\xff\xff", b"\x00\x00", b"\x00\x02\xff\xfe", struct.pack(">h", 5000) + b"n" * 5000):
            client.send_frame(struct.pack(">hhi", 3, 1, 5) + client_id + bytes(4))
            frame = await client.receive_frame()
            assert plain(read(entity_of("metadata", 1, "response"), frame[4:]))["topics"] == ()

    with_door(body)
