"""ListOffsets, OffsetForLeaderEpoch, InitProducerId and FindCoordinator."""

import pytest
from tests.doors.kafka import Client, Door, batch_of, with_door

from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.protocols.kafka.handlers import (
    find_coordinator,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
)

UNKNOWN_TOPIC, UNSUPPORTED, INVALID_REQUEST, FENCED, UNKNOWN_EPOCH = 3, 35, 42, 74, 75
T0 = 1_700_000_000_000


async def by_time(client: Client, timestamp: int, version: int = 7, **fields: int) -> tuple[int, int, int]:
    """Error, offset and timestamp."""
    asked = {"partition_index": 0, "timestamp": timestamp, **fields}
    answer = await client.ask("list_offsets", version, topics=[{"name": "t", "partitions": [asked]}])
    row = answer["topics"][0]["partitions"][0]
    return row["error_code"], row["offset"], row["timestamp"]


async def filled(door: Door) -> Client:
    """Batches at +0 (2 records), +100 (2), +50 (1) seconds."""
    await door.topic()
    client = await door.client()
    for seconds, values in ((0, (b"a", b"b")), (100, (b"c", b"d")), (50, (b"e",))):
        await client.produce(batch_of(*values, timestamp_ms=T0 + seconds * 1000))
    return client


@pytest.mark.parametrize("version", range(list_offsets.API.oldest, list_offsets.API.newest + 1))
def test_list_offsets_of_every_version(version: int) -> None:
    async def body(door: Door) -> None:
        client = await filled(door)
        assert await by_time(client, -1, version) == (0, 5, -1)
        assert await by_time(client, -2, version) == (0, 0, -1)
        assert await by_time(client, T0, version) == (0, 0, T0)
        assert await by_time(client, T0 + 1, version) == (0, 2, T0 + 100_000)
        assert await by_time(client, 0, version) == (0, 0, T0)
        assert await by_time(client, T0 + 100_001, version) == (0, -1, -1)
        specials = {-3: (7, 2, T0 + 100_000), -4: (8, 0, -1), -5: (9, -1, -1), -6: (11, -1, -1)}
        for special, (oldest, *found) in specials.items():
            expected = (0, *found) if version >= oldest else (UNSUPPORTED, -1, -1)
            assert await by_time(client, special, version) == expected
        for unknown in (-7, -100, -(1 << 63)):
            assert (await by_time(client, unknown, version))[0] == UNSUPPORTED

    with_door(body)


def test_an_empty_partition_has_no_times() -> None:
    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()
        assert await by_time(client, 0) == (0, -1, -1)
        assert await by_time(client, -3) == (0, -1, -1)
        assert await by_time(client, -1) == (0, 0, -1)

    with_door(body)


def test_list_offsets_checks_epochs_and_names() -> None:
    async def body(door: Door) -> None:
        client = await filled(door)
        assert (await by_time(client, -1, current_leader_epoch=0))[0] == 0
        assert (await by_time(client, -1, current_leader_epoch=4))[0] == UNKNOWN_EPOCH
        assert (await by_time(client, -1, partition_index=9))[0] == UNKNOWN_TOPIC
        door.engine.topics.partition("t", 0).leader_epoch = 2
        assert (await by_time(client, -1, current_leader_epoch=1))[0] == FENCED

    with_door(body)


@pytest.mark.parametrize("version", range(offset_for_leader_epoch.API.oldest, offset_for_leader_epoch.API.newest + 1))
def test_ends_of_epochs(version: int) -> None:
    async def body(door: Door) -> None:
        client = await filled(door)

        async def end(epoch: int, current: int = -1, partition: int = 0) -> tuple[int, int, int]:
            asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
            topics = [{"topic": "t", "partitions": [asked]}]
            answer = await client.ask("offset_for_leader_epoch", version, topics=topics)
            row = answer["topics"][0]["partitions"][0]
            return row["error_code"], row["leader_epoch"], row["end_offset"]

        assert await end(0) == (0, 0, 5)
        assert (await end(0, current=3))[0] == UNKNOWN_EPOCH
        assert (await end(0, partition=5))[0] == UNKNOWN_TOPIC
        assert (await end(-1))[:1] == (0,)

    with_door(body)


@pytest.mark.parametrize("version", range(init_producer_id.API.oldest, init_producer_id.API.newest + 1))
def test_producer_ids_are_never_given_twice(version: int) -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        given = []
        for _ in range(20):
            answer = await client.ask("init_producer_id", version, transactional_id=None, transaction_timeout=1)
            assert (answer["error_code"], answer["producer_epoch"]) == (0, 0)
            given.append(answer["producer_id"])
        assert len(set(given)) == 20
        assert min(given) >= 0
        first = await client.ask("init_producer_id", version, transactional_id="x", transaction_timeout=1000)
        again = await client.ask("init_producer_id", version, transactional_id="x", transaction_timeout=1000)
        assert first["producer_id"] not in given
        assert (again["error_code"], again["producer_id"]) == (0, first["producer_id"])
        assert again["producer_epoch"] == first["producer_epoch"] + 1

    with_door(body)


@pytest.mark.parametrize("version", range(find_coordinator.API.oldest, find_coordinator.API.newest + 1))
def test_this_broker_coordinates_groups_and_transactions(version: int) -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        for key_type, topic in ((0, OFFSETS_TOPIC), (1, TRANSACTIONS_TOPIC)):
            if version == 0 and key_type:
                continue
            answer = await client.ask(
                "find_coordinator", version, key="g", key_type=key_type, coordinator_keys=["g", "h"]
            )
            rows = [answer] if version < 4 else answer["coordinators"]
            assert {(row["error_code"], row["node_id"]) for row in rows} == {(0, door.context.node_id)}
            if version >= 4:
                assert [row["key"] for row in rows] == ["g", "h"]
            assert door.engine.topics.get(topic) is not None
        if version >= 1:
            answer = await client.ask("find_coordinator", version, key="g", key_type=2, coordinator_keys=["g"])
            row = answer if version < 4 else answer["coordinators"][0]
            assert (row["error_code"], row["node_id"]) == (INVALID_REQUEST, -1)

    with_door(body)
