"""A share group from its first member on: where it begins to read, and that it goes by what is set for it."""

import asyncio
from typing import Any

import pytest
from tests.doors.kafka import Door, batch_of
from tests.unit.protocols.kafka.share_member import (
    RELEASE,
    Member,
    acquired,
    rows,
    run,
    set_for_group,
)

UNKNOWN_TOPIC = 3
RESET = "share.auto.offset.reset"


async def joined(door: Door, name: str = "m") -> Member:
    """A member that the group's coordinator has given all partitions of the topic."""
    member = await Member.of(door, name)
    await member.client.ask("find_coordinator", 4, key_type=0, coordinator_keys=("g",))
    epoch, partitions = 0, 0
    topic = door.engine.topics.get("t")
    assert topic is not None
    for _ in range(100):
        answer = await heartbeat(member, epoch)
        epoch = answer["member_epoch"]
        if answer["assignment"] is not None:
            partitions = sum(len(each["partitions"]) for each in answer["assignment"]["topic_partitions"])
        if partitions == len(topic.partitions):
            return member
        await asyncio.sleep(1)
    raise AssertionError(f"{partitions} partitions were given")


async def heartbeat(member: Member, epoch: int) -> dict[str, Any]:
    wanted = ("t",) if epoch == 0 else None
    return await member.client.ask(
        "share_group_heartbeat", 1, group_id="g", member_id=member.member, member_epoch=epoch,
        subscribed_topic_names=wanted,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reset", "expected"), [("latest", 10), ("earliest", 0), ("by_duration:PT1H", 5), ("by_duration:PT1S", 10)]
)
def test_a_topic_that_is_new_to_the_group_begins_where_its_settings_say(reset: str, expected: int) -> None:
    async def body(door: Door) -> None:
        await door.topic()
        writer = await door.client()
        now_ms = door.clock.now_ms()
        for age_ms in (7_200_000, 1_800_000):
            await writer.produce(batch_of(*[b"x"] * 5, timestamp_ms=now_ms - age_ms))
        await set_for_group(door, RESET, reset)
        member = await joined(door)
        await asyncio.sleep(2)
        first = acquired(await member.fetch(0))
        assert first == ([(expected, 9, 1)] if expected < 10 else [])
        await writer.produce(batch_of(b"y"))
        assert acquired(await member.fetch()) == [(10, 10, 1)]

    run(body)


def test_partitions_that_a_topic_gets_later_begin_at_their_first_record() -> None:
    async def body(door: Door) -> None:
        topic = await door.topic()
        writer = await door.client()
        await writer.produce(batch_of(b"old"))
        member = await joined(door)
        assert acquired(await member.fetch(0)) == []
        await door.engine.create_partitions(topic, 2)
        await writer.produce(batch_of(b"new"), partition=1)
        await joined(door, "another")
        assert acquired(await member.fetch(1), 1) == [(0, 0, 1)]

    run(body)


def test_a_partition_that_nobody_in_the_group_was_given() -> None:
    async def body(door: Door) -> None:
        await door.topic()
        await door.topic("u")
        member = await joined(door)
        other = await Member.of(door, topic="u")
        assert rows(await other.fetch(0))[0]["error_code"] == UNKNOWN_TOPIC
        assert rows(await member.fetch(0, epoch=0))[0]["error_code"] == 0

    run(body)


def test_a_group_goes_by_what_is_set_for_it() -> None:
    async def body(door: Door) -> None:
        await door.topic()
        for name, value in (
            (RESET, "earliest"),
            ("share.record.lock.duration.ms", "20000"),
            ("share.partition.max.record.locks", "100"),
            ("share.delivery.count.limit", "2"),
        ):
            await set_for_group(door, name, value)
        writer = await door.client()
        await writer.produce(batch_of(*[b"x"] * 200))
        member = await joined(door)
        answer = await member.fetch(0)
        assert answer["acquisition_lock_timeout"] == 20_000
        assert acquired(answer) == [(0, 99, 1)]
        assert acquired(await member.fetch(acks={0: [(0, 98, [RELEASE])]})) == [(0, 98, 2)]
        assert acquired(await member.fetch(acks={0: [(0, 98, [RELEASE])]})) == [(100, 198, 1)], "twice is all"
        partition = door.engine.topics.partition("t", 0)
        assert (await door.engine.queues.whereabouts(partition, "g", 0)).deliveries == 2
        begun = door.clock.monotonic()
        other = await Member.of(door, "other")
        found = acquired(await other.fetch(0, max_wait=60_000))
        assert found and found[0][2] == 2 and 19 < door.clock.monotonic() - begun < 21

    run(body)
