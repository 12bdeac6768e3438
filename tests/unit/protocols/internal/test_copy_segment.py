"""CopySegment: what a leader lends of its sealed segments, to whom, and what it refuses."""

import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.doors.kafka import Door, with_door
from tests.doors.trusted import trusted_session
from tests.simulated_broker import batch_of, produce, wait_for

from penstock.cluster.replication.source import LeaderGone, SegmentPart, SegmentWanted
from penstock.engine.partition import Partition
from penstock.errors import Code, PenstockError
from penstock.protocols.internal import copy_segment, segment_codec
from penstock.protocols.internal.broker_source import BrokerSource
from penstock.protocols.internal.peer import Peer
from penstock.protocols.kafka.session import APIS
from penstock.storage.log import card as cards

BLOCK = 64 * 1024


class Follower:
    """Broker 2, as it asks the door's broker for segments of its one partition."""

    def __init__(self, door: Door, partition: Partition, incarnation: int = 5) -> None:
        network = door.network.of("b2")
        one, other = (Peer(network, *door.address, door.clock, timeout_s=5.0) for _ in range(2))
        self.incarnation = incarnation
        self._source = BrokerSource(one, other, 2, lambda: self.incarnation)
        self.wanted = SegmentWanted(
            partition.topic_id.bytes, partition.index, partition.leader_epoch, 0, 0, 2 * BLOCK, 0
        )

    async def ask(self, **fields: Any) -> SegmentPart:
        return await self._source.copy_segment(self.wanted._replace(**fields))


def with_segments(body: Callable[[Door, Partition, Follower], Awaitable[None]], *, trusted: bool = True) -> None:
    """Three sealed segments and one that is written; broker 2 has a replica and is not in sync."""

    async def run(door: Door) -> None:
        if trusted:
            door.connections.make_session = partial(trusted_session, door.context, door.engine, door.clock)
        topic = await door.topic(segment_bytes="150000")
        partition = topic.partitions[0]
        partition.lead(replace(partition.state, replicas=(1, 2), isr=(1,)))
        log = partition.opened()
        while len(log.segments) < 4:
            await produce(partition, batch_of([bytes(30_000)], door.clock))
            await wait_for(lambda: not log._rolling)
        await produce(partition, batch_of([b"last"], door.clock))
        await wait_for(lambda: all(segment.sealed for segment in log.segments[:-1]))
        await body(door, partition, Follower(door, partition))

    with_door(run)


def test_it_is_not_advertised() -> None:
    assert copy_segment.API not in APIS
    assert copy_segment.API.key not in {api.key for api in APIS}
    assert copy_segment.API.key > 1000


def test_clients_find_no_such_api() -> None:
    async def body(door: Door, partition: Partition, follower: Follower) -> None:
        with pytest.raises(LeaderGone):
            await follower.ask()
        assert door.stats.protocol_errors == 1

    with_segments(body, trusted=False)


def test_a_segment_comes_whole_range_by_range() -> None:
    async def body(door: Door, partition: Partition, follower: Follower) -> None:
        log = partition.opened()
        for segment in log.segments[:-1]:
            data, cards_sent = b"", []
            while len(data) < segment.size:
                part = await follower.ask(offset=segment.base, position=len(data))
                assert (part.base, part.next_offset, part.size) == (segment.base, segment.next_offset, segment.size)
                assert len(part.data) == min(2 * BLOCK, segment.size - len(data))
                data += part.data
                cards_sent.append(part.card)
            file = door.disk.open(segment.path)
            assert data == file.read_at(file.size(), 0)
            assert cards_sent[1:] == [b""] * len(cards_sent[1:])
            assert cards.decode(cards_sent[0], "").next_offset == segment.next_offset
        assert partition.leadership.follower(2).end < 0, "what is asked for was taken for what is there"

    with_segments(body)


def test_where_no_segment_begins_the_next_one_is_named() -> None:
    async def body(door: Door, partition: Partition, follower: Follower) -> None:
        segments = partition.opened().segments
        assert (await follower.ask(offset=1)) == (segments[1].base, -1, 0, b"", b"")
        assert (await follower.ask(offset=segments[-1].base)).base == -1
        assert (await follower.ask(offset=segments[-1].base + 100)).base == -1
        size = partition.opened().size_bytes
        assert (await follower.ask(least_bytes=size)).base == 0
        assert (await follower.ask(least_bytes=size + 1)).base == -1
        assert (await follower.ask(least_bytes=size + 1, position=BLOCK)).base == 0, "asked once is enough"

    with_segments(body)


def test_nothing_that_could_be_taken_back_is_lent() -> None:
    async def body(door: Door, partition: Partition, follower: Follower) -> None:
        partition.high_watermark = partition.opened().segments[1].base - 1
        assert (await follower.ask()).base == -1
        partition.high_watermark += 1
        assert (await follower.ask()).base == 0

    with_segments(body)


def test_what_retention_took_is_not_there() -> None:
    async def body(door: Door, partition: Partition, follower: Follower) -> None:
        log = partition.opened()
        second = log.segments[1].base
        await door.engine.delete_records(partition, second)
        assert (await follower.ask(position=BLOCK)).base == second

    with_segments(body)


def test_only_followers_of_this_epoch_are_served() -> None:
    async def body(door: Door, partition: Partition, follower: Follower) -> None:
        refusals = (
            ({"leader_epoch": partition.leader_epoch - 1}, Code.FENCED_LEADER_EPOCH),
            ({"leader_epoch": partition.leader_epoch + 1}, Code.UNKNOWN_LEADER_EPOCH),
            ({"topic_id": bytes(16)}, Code.UNKNOWN_TOPIC_ID),
            ({"partition_index": 7}, Code.UNKNOWN_TOPIC),
        )
        for fields, code in refusals:
            with pytest.raises(PenstockError) as told:
                await follower.ask(**fields)
            assert told.value.code is code
        partition.replica_fetched(2, 6, 0)
        with pytest.raises(PenstockError) as told:  # broker 2 has started anew since
            await follower.ask()
        assert told.value.code in (Code.NOT_ALLOWED, Code.LIMIT_EXCEEDED)  # one code of Kafka's
        follower.incarnation = 6
        assert (await follower.ask()).base == 0
        partition.lead(replace(partition.state, replicas=(1, 3)))
        with pytest.raises(PenstockError):
            await follower.ask()
        partition.follow(replace(partition.state, leader=3))
        with pytest.raises(PenstockError) as told:
            await follower.ask()
        assert told.value.code is Code.NOT_LEADER

    with_segments(body)


def test_requests_that_make_no_sense_close_the_connection() -> None:
    async def body(door: Door, partition: Partition, follower: Follower) -> None:
        good = segment_codec.encode(follower.wanted, 2, 5)
        odd = follower.wanted._replace(position=1)
        for number, request in enumerate((good[:-1], good + b"\0", segment_codec.encode(odd, 2, 5)), 1):
            client = await door.client()
            client.send_frame(struct.pack(">hhih", segment_codec.KEY, 0, 1, -1) + request)
            await client.stream.closed()
            assert door.stats.protocol_errors == number

    with_segments(body)


def test_a_file_that_is_too_short_is_not_sent() -> None:
    async def body(door: Door, partition: Partition, follower: Follower) -> None:
        segment = partition.opened().segments[0]
        door.disk.open(segment.path).truncate(segment.size - 1)
        with pytest.raises(PenstockError) as told:
            await follower.ask()
        assert told.value.code is Code.CORRUPT_LOG

    with_segments(body)
