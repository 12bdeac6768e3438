"""ShareAcknowledge, and acknowledgements that come with a ShareFetch: what they do, what is refused, what is told."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.doors.kafka import Door
from tests.unit.protocols.kafka.share_member import (
    ACCEPT,
    BAD_REQUEST,
    BAD_STATE,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Member,
    Wanted,
    acquired,
    filled,
    rows,
    run,
    set_for_group,
)

from penstock.cluster.image import BrokerRecord, Image
from penstock.engine.partition_state import PartitionState
from penstock.engine.queues.window import LEASED, READY, SETTLED

NOT_LEADER, UNKNOWN_TOPIC, UNKNOWN_ID = 6, 3, 100
NOTHING_ELSE = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}


class Way:
    """Acknowledges with one of the two requests."""

    def __init__(self, member: Member, *, by_fetch: bool, version: int = 1) -> None:
        self.member = member
        self.by_fetch = by_fetch
        self.version = version

    async def __call__(self, acks: Wanted, **values: Any) -> dict[int, int]:
        """The error code of each partition."""
        if self.by_fetch:
            answer = await self.member.fetch(acks=acks, version=self.version, **NOTHING_ELSE, **values)
            return {index: row["acknowledge_error_code"] for index, row in rows(answer).items()}
        answer = await self.member.acknowledge(acks, version=self.version, **values)
        return {index: row["error_code"] for index, row in rows(answer).items()}


BOTH = pytest.mark.parametrize("by_fetch", [True, False], ids=["with a fetch", "alone"])


async def states(door: Door, count: int, index: int = 0) -> list[int]:
    partition = door.engine.topics.partition("t", index)
    return [(await door.engine.queues.whereabouts(partition, "g", offset)).state for offset in range(count)]


@BOTH
def test_each_type_does_what_it_says(by_fetch: bool) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 7)
        await member.fetch(0)
        acks = {0: [(1, 4, [ACCEPT, GAP, RELEASE, REJECT])]}
        assert await Way(member, by_fetch=by_fetch)(acks) == {0: 0}
        found = await states(door, 7)
        assert found[:4] == [LEASED, SETTLED, SETTLED, READY] and found[4] not in (LEASED, READY)
        assert found[5:] == [LEASED, LEASED]
        other = await Member.of(door, "other")
        assert acquired(await other.fetch(0)) == [(3, 3, 2)]

    run(body)


@BOTH
def test_of_one_partition_everything_is_applied_or_nothing(by_fetch: bool) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5, partitions=2)
        await member.fetch(0, 1)
        way = Way(member, by_fetch=by_fetch)
        assert await way({0: [(0, 0, [ACCEPT])]}) == {0: 0}
        acks = {0: [(1, 2, [ACCEPT]), (4, 4, [5])], 1: [(0, 4, [ACCEPT])]}
        assert await way(acks) == {0: BAD_REQUEST, 1: 0}
        assert await states(door, 5) == [SETTLED, LEASED, LEASED, LEASED, LEASED]
        assert await way({0: [(2, 2, [ACCEPT])]}) == {0: 0}
        assert await way({0: [(1, 4, [ACCEPT])]}) == {0: BAD_STATE}, "2 is acknowledged twice"
        assert await states(door, 5) == [SETTLED, LEASED, SETTLED, LEASED, LEASED]

    run(body)


@BOTH
@pytest.mark.parametrize(
    "batches",
    [
        [(2, 1, [ACCEPT])],
        [(0, 1, [ACCEPT]), (1, 2, [ACCEPT])],
        [(2, 2, [ACCEPT]), (0, 0, [ACCEPT])],
        [(0, 1, [])],
        [(0, 1, [ACCEPT] * 3)],
        [(0, 0, [-1])],
        [(0, 0, [RENEW])],
        [(0, 0, [5])],
        [(4, 5, [ACCEPT])],
        [(0, 1 << 62, [ACCEPT])],
    ],
    ids=str,
)
def test_what_is_wrong_in_itself(batches: list[tuple[int, int, list[int]]], by_fetch: bool) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        await member.fetch(0)
        assert await Way(member, by_fetch=by_fetch)({0: batches}) == {0: BAD_REQUEST}
        assert await states(door, 5) == [LEASED] * 5

    run(body)


@BOTH
def test_only_who_has_a_record_acknowledges_it(by_fetch: bool) -> None:
    async def body(door: Door) -> None:
        member, other = await filled(door, 5), await Member.of(door, "other")
        await member.fetch(0)
        await other.fetch(0)
        assert await Way(other, by_fetch=by_fetch)({0: [(0, 4, [ACCEPT])]}) == {0: BAD_STATE}
        way = Way(member, by_fetch=by_fetch)
        assert await way({0: [(1, 1, [RELEASE])]}) == {0: 0}
        assert await way({0: [(1, 1, [ACCEPT])]}) == {0: BAD_STATE}
        await asyncio.sleep(31)
        assert await way({0: [(2, 2, [ACCEPT])]}) == {0: BAD_STATE}, "the lock has ended"

    run(body)


@BOTH
def test_what_lies_below_the_start_counts_as_done(by_fetch: bool) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        await member.fetch(0)
        way = Way(member, by_fetch=by_fetch)
        assert await way({0: [(0, 2, [ACCEPT])]}) == {0: 0}
        assert await way({0: [(0, 2, [ACCEPT])]}) == {0: 0}
        assert await way({0: [(0, 4, [ACCEPT])]}) == {0: 0}

    run(body)


@BOTH
def test_locks_are_kept_for_longer(by_fetch: bool) -> None:
    async def body(door: Door) -> None:
        member, other = await filled(door, 5), await Member.of(door, "other")
        await member.fetch(0)
        way = Way(member, by_fetch=by_fetch, version=2)
        await asyncio.sleep(20)
        assert await way({0: [(0, 0, [ACCEPT]), (1, 2, [RENEW])]}, is_renew_ack=True) == {0: 0}
        await asyncio.sleep(20)
        assert acquired(await other.fetch(0))[0] == (3, 3, 2)
        assert await way({0: [(1, 2, [ACCEPT])]}) == {0: 0}
        assert await way({0: [(3, 4, [RENEW])]}, is_renew_ack=True) == {0: BAD_STATE}
        assert await way({0: [(3, 4, [RENEW])]}) == {0: BAD_REQUEST}, "it did not say so"

    run(body)


@BOTH
def test_a_group_may_keep_nothing_for_longer(by_fetch: bool) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        await set_for_group(door, "share.renew.acknowledge.enable", "false")
        await member.fetch(0)
        way = Way(member, by_fetch=by_fetch, version=2)
        assert await way({0: [(0, 0, [ACCEPT]), (1, 2, [RENEW])]}, is_renew_ack=True) == {0: BAD_STATE}
        assert await states(door, 3) == [LEASED] * 3
        assert await way({0: [(0, 0, [ACCEPT])]}, is_renew_ack=True) == {0: 0}

    run(body)


def test_the_first_version_keeps_nothing_for_longer() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        await member.fetch(0)
        answer = await member.acknowledge({0: [(0, 0, [RENEW])]}, version=1)
        assert rows(answer)[0]["error_code"] == BAD_REQUEST
        assert "acquisition_lock_timeout" not in answer
        assert (await member.acknowledge(version=2))["acquisition_lock_timeout"] == 30_000

    run(body)


@BOTH
def test_partitions_that_are_not_here(by_fetch: bool) -> None:
    async def body(door: Door) -> None:
        member, image = await filled(door, 5, partitions=2), Image()
        image.brokers[2] = BrokerRecord(2, "host2", 9002, "host2", 9100, None, 1, True)
        door.context.image, door.context.cluster = image, True
        await member.fetch(0, 1)
        door.engine.topics.partition("t", 1).follow(PartitionState((1, 2), (1, 2), 2, 4))
        acks = {0: [(0, 4, [ACCEPT])], 1: [(0, 4, [ACCEPT])], 7: [(0, 0, [ACCEPT])]}
        if by_fetch:
            answer = await member.fetch(acks=acks)
            assert rows(answer)[1]["error_code"] == NOT_LEADER
        else:
            answer = await member.acknowledge(acks)
        name = "acknowledge_error_code" if by_fetch else "error_code"
        assert {index: row[name] for index, row in rows(answer).items()} == {0: 0, 1: NOT_LEADER, 7: UNKNOWN_TOPIC}
        assert rows(answer)[1]["current_leader"] == {"leader_id": 2, "leader_epoch": 4}
        assert rows(answer)[0]["current_leader"] == {"leader_id": -1, "leader_epoch": -1}
        assert list(answer["node_endpoints"]) == [{"node_id": 2, "host": "host2", "port": 9002, "rack": None}]

    run(body)


def test_a_topic_that_nobody_knows() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        await member.fetch(0)
        member.topic_id = UUID(int=9)
        assert await Way(member, by_fetch=False)({0: [(0, 4, [ACCEPT])]}) == {0: UNKNOWN_ID}

    run(body)


def test_a_partition_without_acknowledgements_is_answered_too() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5, partitions=2)
        await member.fetch(0)
        assert await Way(member, by_fetch=False)({0: [(0, 4, [ACCEPT])], 1: []}) == {0: 0, 1: 0}

    run(body)


@BOTH
def test_the_answer_waits_for_the_disk(by_fetch: bool) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5)
        await member.fetch(0)
        await asyncio.sleep(1)
        ledger = door.engine.queues.shards.of(door.engine.topics.partition("t", 0)).partition
        safe = ledger.high_watermark
        door.disk.max_delay_s = 5.0
        assert await Way(member, by_fetch=by_fetch)({0: [(0, 4, [ACCEPT])]}) == {0: 0}
        assert ledger.high_watermark == ledger.end_offset == safe + 1
        assert door.clock.monotonic() > 1.1

    run(body)


def test_what_is_said_alike_is_kept_together() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 10)
        await member.fetch(0)
        await asyncio.sleep(1)
        ledger = door.engine.queues.shards.of(door.engine.topics.partition("t", 0)).partition
        before = ledger.end_offset
        assert await Way(member, by_fetch=False)({0: [(0, 9, [ACCEPT, RELEASE] * 5)]}) == {0: 0}
        assert ledger.end_offset == before + 2
        assert await states(door, 10) == [SETTLED, READY] * 5

    run(body)
