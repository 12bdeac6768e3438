"""What clients are told by a broker of a cluster: who leads, what is not replicated, what only brokers may ask."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.doors.kafka import Client, Door, batch_of, with_door

from penstock.cluster.image import BrokerRecord, Image
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.errors import PenstockError
from penstock.records.build import build_batch

GOOD = batch_of(b"one", b"two")
TIMED_OUT, NOT_LEADER, NOT_ENOUGH, OFFSET_NOT_AVAILABLE, LEADER_NOT_AVAILABLE = 7, 6, 19, 78, 5
TOPIC_REFUSED, CLUSTER_REFUSED = 29, 31
THREE = PartitionState((1, 2, 3), (1, 2, 3), 1, 0)


async def clustered(door: Door, state: PartitionState = THREE, **settings: Any) -> tuple[Client, Partition]:
    """A topic of which other brokers are said to have replicas."""
    image = Image()
    for node_id in (1, 2, 3):
        host, rack = f"host{node_id}", "r" if node_id == 2 else None
        image.brokers[node_id] = BrokerRecord(node_id, host, 9000 + node_id, host, 9100, rack, 1, True)
    door.context.image, door.context.cluster = image, True
    topic = await door.topic(**settings)
    partition = topic.partitions[0]
    partition.lead(state)
    return await door.client(), partition


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_what_is_not_replicated_in_time_is_told_so(policy: str) -> None:
    async def body(door: Door) -> None:
        client, partition = await clustered(door, cleanup_policy=policy)
        batch = build_batch([(b"key", b"value", (), 0)]) if policy == "compact" else GOOD
        assert (await client.produce(batch))["error_code"] == TIMED_OUT
        assert partition.opened().end_offset > 0
        assert partition.high_watermark == 0

    with_door(body)


def test_it_is_answered_when_all_in_sync_have_it() -> None:
    async def body(door: Door) -> None:
        client, partition = await clustered(door)
        asked = asyncio.ensure_future(client.produce(GOOD))
        await asyncio.sleep(0.1)
        partition.replica_fetched(2, 1, 2)
        await asyncio.sleep(0.1)
        assert not asked.done()
        partition.replica_fetched(3, 1, 2)
        assert (await asked)["error_code"] == 0
        assert partition.high_watermark == 2

    with_door(body)


def test_too_few_in_sync_refuse_who_wants_it_safe() -> None:
    async def body(door: Door) -> None:
        client, partition = await clustered(door, replace(THREE, isr=(1,), elr=(2, 3)))
        assert (await client.produce(GOOD))["error_code"] == NOT_ENOUGH
        assert partition.opened().end_offset == 0
        assert (await client.produce(GOOD, acks=1))["error_code"] == 0

    with_door(body)


@pytest.mark.parametrize("version", [9, 10, 12])
def test_a_produce_elsewhere_names_the_leader(version: int) -> None:
    async def body(door: Door) -> None:
        client, partition = await clustered(door)
        partition.follow(replace(THREE, leader=2, leader_epoch=4))
        values = {"name": "t", "partition_data": [{"index": 0, "records": GOOD}]}
        answer = await client.ask("produce", version, acks=-1, timeout=1000, topic_data=[values])
        row = answer["responses"][0]["partition_responses"][0]
        assert row["error_code"] == NOT_LEADER
        if version >= 10:
            assert row["current_leader"] == {"leader_id": 2, "leader_epoch": 4}
            assert list(answer["node_endpoints"]) == [{"node_id": 2, "host": "host2", "port": 9002, "rack": "r"}]

    with_door(body)


@pytest.mark.parametrize("version", [12, 16, 17])
def test_a_fetch_elsewhere_names_the_leader(version: int) -> None:
    async def body(door: Door) -> None:
        client, partition = await clustered(door)
        partition.follow(replace(THREE, leader=3, leader_epoch=2))
        topic = partition.topic_id if version >= 13 else "t"
        answer = await client.fetch(version=version, wanted={topic: {0: 0}})
        row = answer["responses"][0]["partitions"][0]
        assert row["error_code"] == NOT_LEADER
        assert row["current_leader"] == {"leader_id": 3, "leader_epoch": 2}
        if version >= 16:
            assert list(answer["node_endpoints"]) == [{"node_id": 3, "host": "host3", "port": 9003, "rack": None}]

    with_door(body)


def test_a_leader_that_is_cut_off_names_nobody_and_above_all_not_itself() -> None:
    async def body(door: Door) -> None:
        client, partition = await clustered(door)
        partition.is_cut_off = True
        values = {"name": "t", "partition_data": [{"index": 0, "records": GOOD}]}
        answer = await client.ask("produce", 12, acks=-1, timeout=1000, topic_data=[values])
        row = answer["responses"][0]["partition_responses"][0]
        assert row["error_code"] == NOT_LEADER
        assert row["current_leader"]["leader_id"] == NOBODY
        assert not answer["node_endpoints"]
        assert (await client.produce(GOOD, acks=1))["error_code"] == NOT_LEADER
        fetched = await client.fetch(version=12, wanted={"t": {0: 0}})
        assert fetched["responses"][0]["partitions"][0]["error_code"] == NOT_LEADER
        partition.check_replica_epoch(partition.leader_epoch)  # a follower that is heard again ends it
        door.engine.topics.changed()
        told = await client.ask("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=False)
        assert told["topics"][0]["partitions"][0]["leader_id"] == NOBODY

    with_door(body)


def test_a_broker_that_is_cut_off_does_not_say_who_leads() -> None:
    """A client that got an answer would stay; one whose connection ends asks another broker."""

    async def body(door: Door) -> None:
        client, _ = await clustered(door)
        asked = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
        await client.ask("metadata", 9, **asked)  # an answer that is kept must not be given either
        door.context.is_isolated = lambda: True
        with pytest.raises(ConnectionResetError):
            await client.ask("metadata", 9, **asked)
        door.context.is_isolated = lambda: False
        answer = await (await door.client()).ask("metadata", 9, **asked)
        assert answer["topics"][0]["partitions"][0]["leader_id"] == 1

    with_door(body)


def test_an_empty_replica_goes_on_only_if_it_is_known_to_have_been_in_sync() -> None:
    async def body(door: Door) -> None:
        client, partition = await clustered(door, replace(THREE, isr=(1, 2)))
        await client.produce(GOOD, acks=1)
        partition.check_beginning(2, 1, -1)  # emptied by retention
        partition.check_beginning(3, 1, 0)
        partition.check_beginning(3, 0, -1)
        for offset in (1, 2, 700):
            with pytest.raises(PenstockError, match="begins at 0"):
                partition.check_beginning(3, offset, -1)

    with_door(body)


def test_who_waits_is_told_when_another_leads() -> None:
    async def body(door: Door) -> None:
        client, partition = await clustered(door)
        asked = asyncio.ensure_future(client.produce(GOOD))
        await asyncio.sleep(0.1)
        partition.follow(replace(THREE, leader=2, leader_epoch=1))
        assert (await asked)["error_code"] == NOT_LEADER

    with_door(body)


def test_the_latest_offset_waits_until_a_new_leader_knows_it() -> None:
    async def body(door: Door) -> None:
        client, partition = await clustered(door)
        await client.produce(GOOD, acks=1)
        partition.lead(THREE)

        async def latest() -> tuple[int, int]:
            wanted = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
            topics = [{"name": "t", "partitions": [wanted]}]
            answer = await client.ask("list_offsets", 5, replica_id=-1, isolation_level=0, topics=topics)
            row = answer["topics"][0]["partitions"][0]
            return row["error_code"], row["offset"]

        assert (await latest())[0] == OFFSET_NOT_AVAILABLE
        partition.replica_fetched(2, 1, 2)
        partition.replica_fetched(3, 1, 2)
        await asyncio.sleep(0.1)
        assert await latest() == (0, 2)

    with_door(body)


def test_metadata_tells_of_all_brokers_and_of_partitions_without_a_leader() -> None:
    async def body(door: Door) -> None:
        client, partition = await clustered(door)
        answer = await client.ask("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=False)
        assert [broker["node_id"] for broker in answer["brokers"]] == [1, 2, 3]
        row = answer["topics"][0]["partitions"][0]
        assert (row["error_code"], row["leader_id"], list(row["isr_nodes"])) == (0, 1, [1, 2, 3])
        partition.follow(replace(THREE, leader=NOBODY, leader_epoch=1))
        door.engine.topics.changed()
        answer = await client.ask("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=False)
        row = answer["topics"][0]["partitions"][0]
        assert (row["error_code"], row["leader_id"]) == (LEADER_NOT_AVAILABLE, NOBODY)

    with_door(body)


def test_a_broker_tells_of_itself_whatever_it_knows_of_the_cluster() -> None:
    async def body(door: Door) -> None:
        client, _ = await clustered(door)
        assert door.context.image is not None
        door.context.image.brokers.clear()
        told = await client.ask("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=False)
        assert [(each["node_id"], each["port"]) for each in told["brokers"]] == [(1, door.context.port)]

    with_door(body)


def test_what_only_brokers_may_ask_is_refused_to_clients() -> None:
    async def body(door: Door) -> None:
        client, _ = await clustered(door)
        answer = await client.ask("add_partitions_to_txn", 4, transactions=[])
        assert answer["error_code"] == CLUSTER_REFUSED
        fetched = await client.ask(
            "fetch",
            12,
            replica_id=2,
            max_wait=0,
            min_bytes=0,
            max_bytes=1000,
            topics=[{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}],
        )
        assert fetched["responses"][0]["partitions"][0]["error_code"] == TOPIC_REFUSED

    with_door(body)
