"""What clients are told by a broker of a cluster: who leads, what is not replicated, what only brokers may ask."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.doors.kafka import Client, Door, base_offsets, batch_of, fetch_values, make, with_door
from tests.doors.trusted import trusted_session

from penstock.cluster.image import BrokerRecord, Image
from penstock.cluster.replication.source import FetchedRow, Position
from penstock.engine.offset_lookup import Found
from penstock.engine.partition import Partition
from penstock.engine.partition_state import NOBODY, PartitionState
from penstock.errors import Code, PenstockError
from penstock.protocols.internal.broker_source import BrokerSource
from penstock.protocols.internal.peer import Peer
from penstock.protocols.kafka import cluster_view
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


async def led_anew(door: Door, **settings: Any) -> tuple[Client, Partition]:
    """Of two batches, this new leader knows that the first is committed; the one before may have told of both."""
    client, first = await clustered(door, **settings)
    for partition in door.engine.topics.get("t").partitions:
        partition.lead(THREE)
        await client.produce(GOOD, partition=partition.index, acks=1)
        replicated(partition, 2)
        await client.produce(GOOD, partition=partition.index, acks=1)
        await asyncio.sleep(0.1)  # of virtual time: it is synced
        partition.lead(THREE)
    return client, first


def replicated(partition: Partition, end: int) -> None:
    for follower in (2, 3):
        partition.replica_fetched(follower, 1, end)


async def offset_at(client: Client, timestamp: int) -> tuple[int, int]:
    wanted = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    topics = [{"name": "t", "partitions": [wanted]}]
    answer = await client.ask("list_offsets", 7, replica_id=-1, isolation_level=0, topics=topics)
    row = answer["topics"][0]["partitions"][0]
    return row["error_code"], row["offset"]


@pytest.mark.parametrize(("asked", "offset"), [(-1, 4), (-3, 0), (1 << 60, -1)])
def test_the_latest_offset_waits_until_a_new_leader_knows_it(asked: int, offset: int) -> None:
    async def body(door: Door) -> None:
        client, partition = await led_anew(door)
        assert (await offset_at(client, asked))[0] == OFFSET_NOT_AVAILABLE
        replicated(partition, 4)
        assert await offset_at(client, asked) == (0, offset)

    with_door(body)


def test_what_is_committed_while_a_time_is_searched_was_not_searched() -> None:
    async def body(door: Door) -> None:
        client, partition = await led_anew(door)
        search = door.engine.find_offset_by_time

        async def commit_meanwhile(*asked: Any, **how: Any) -> Found | None:
            found = await search(*asked, **how)
            replicated(partition, 4)
            return found

        door.engine.find_offset_by_time = commit_meanwhile  # type: ignore[method-assign]
        assert (await offset_at(client, 1 << 60))[0] == OFFSET_NOT_AVAILABLE
        assert await offset_at(client, 1 << 60) == (0, -1)

    with_door(body)


def shown(answer: dict[str, Any]) -> tuple[int, int, list[int]]:
    """High watermark, last stable offset, batches."""
    row = answer["responses"][0]["partitions"][0]
    assert row["error_code"] == 0
    return row["high_watermark"], row["last_stable_offset"], base_offsets(row["records"])


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_new_leader_gives_what_is_committed_and_tells_no_end_before_it_knows_it(isolation_level: int) -> None:
    async def body(door: Door) -> None:
        client, partition = await led_anew(door)
        assert shown(await client.fetch(isolation_level=isolation_level)) == (-1, -1, [0])
        for offset in (2, 4):  # where it takes the end to be, and where a client may be already
            answer = await client.fetch(wanted={"t": {0: offset}}, isolation_level=isolation_level)
            assert shown(answer) == (-1, -1, [])
        wanted = fetch_values({"t": {0: 2}}, max_wait=60_000, isolation_level=isolation_level)
        client.send(make("fetch", 12, wanted))
        await asyncio.sleep(5)  # of virtual time
        replicated(partition, 4)
        begun = door.clock.monotonic()
        assert shown((await client.receive("fetch", 12))[1]) == (4, 4, [2])
        assert door.clock.monotonic() - begun < 1

    with_door(body)


def test_a_session_is_told_the_end_as_soon_as_it_is_known() -> None:
    async def body(door: Door) -> None:
        client, partition = await led_anew(door)
        begun = await client.fetch(wanted={"t": {0: 4}}, session=(0, 0))
        assert shown(begun) == (-1, -1, [])
        session = begun["session_id"]
        assert not (await client.fetch(wanted={}, session=(session, 1)))["responses"], "told twice that it is unknown"
        replicated(partition, 4)
        assert shown(await client.fetch(wanted={}, session=(session, 2))) == (4, 4, [])

    with_door(body)


def test_what_there_was_no_room_for_is_not_taken_for_read_while_its_end_is_unknown() -> None:
    async def body(door: Door) -> None:
        client, _ = await led_anew(door, partitions=2)
        session, turns = 0, []
        for epoch in range(5):
            wanted = {"t": {0: 0, 1: 0}} if epoch == 0 else {}
            answer = await client.fetch(wanted=wanted, session=(session, epoch), max_bytes=1)
            session = answer["session_id"]
            turns.append([row["partition_index"] for row in answer["responses"][0]["partitions"] if row["records"]])
        assert turns == [[0], [1], [0], [1], [0]]

    with_door(body)


def test_a_follower_is_told_what_a_new_leader_knows() -> None:
    async def body(door: Door) -> None:
        _, partition = await led_anew(door)

        door.connections.make_session = partial(trusted_session, door.context, door.engine, door.clock)
        peer = Peer(door.network.of("b2"), *door.address, door.clock, timeout_s=5.0)
        told: list[tuple[int, Code | None]] = []

        def take(row: FetchedRow, code: Code | None) -> None:
            told.append((row.high_watermark, code))

        position = Position(partition.topic_id.bytes, 0, partition.leader_epoch, 4, 0, 0, 1 << 20)
        await BrokerSource(peer, peer, 2, lambda: 1).fetch([position], take, max_wait_ms=0, max_bytes=1 << 20)
        assert told == [(2, None)]

    with_door(body)


@pytest.mark.parametrize("offset", [-1, 3, 4])
def test_records_up_to_an_end_a_new_leader_does_not_know_are_deleted_later(offset: int) -> None:
    async def body(door: Door) -> None:
        _, partition = await led_anew(door)
        with pytest.raises(PenstockError) as refused:
            await door.engine.delete_records(partition, offset)
        assert refused.value.code is Code.OFFSET_NOT_AVAILABLE
        assert await door.engine.delete_records(partition, 1) == 1
        replicated(partition, 4)
        assert await door.engine.delete_records(partition, offset) == (4 if offset == -1 else offset)

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


def test_clients_are_sent_to_the_listener_of_the_same_name_and_else_to_the_one_all_brokers_have() -> None:
    async def body(door: Door) -> None:
        client, _ = await clustered(door)
        image = door.context.image
        assert image is not None
        endpoints = {"kafka": ("host2", 9002), "outside": ("two.example", 9192)}
        image.brokers[2] = replace(image.brokers[2], endpoints=endpoints)
        outside = replace(door.context, listener="outside")
        assert cluster_view.endpoint(outside, 2) == (2, "two.example", 9192, "r")
        assert cluster_view.endpoint(outside, 3) == (3, "host3", 9003, None)
        assert [(each.host, each.port) for each in cluster_view.endpoints(outside)] == [
            ("host1", 9001),
            ("two.example", 9192),
            ("host3", 9003),
        ]
        assert cluster_view.endpoint(door.context, 2) == (2, "host2", 9002, "r")
        told = await client.ask("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=False)
        assert [broker["host"] for broker in told["brokers"]] == ["host1", "host2", "host3"]

    with_door(body)
