"""Members nobody knows and generations that are over: each gets its code."""

import asyncio

from tests.doors.kafka import Client, Door, make
from tests.unit.protocols.kafka.group_client import (
    BAD_ASSIGNOR,
    BAD_REQUEST,
    FENCED_EPOCH,
    FENCED_INSTANCE,
    GENERATION,
    INCONSISTENT,
    LONG,
    NEIGHBOUR,
    NON_EMPTY,
    NOT_FOUND,
    OK,
    REBALANCE,
    STALE_EPOCH,
    SUBSCRIBED,
    UNKNOWN_MEMBER,
    UNRELEASED,
    Member,
    beat,
    commit,
    join,
    join_fields,
    run,
)


def test_strangers_to_a_classic_group() -> None:
    async def body(door: Door, client: Client) -> None:
        member = await Member.of(client)
        for stranger in ("nobody", "", LONG):
            assert await member.heartbeat(member_id=stranger) == UNKNOWN_MEMBER
            assert await member.sync(member_id=stranger) == UNKNOWN_MEMBER
            assert await member.leave(member_id=stranger) == UNKNOWN_MEMBER
            assert await commit(client, "g", stranger, member.generation) == UNKNOWN_MEMBER
            if stranger:
                assert (await join(client, member_id=stranger))["error_code"] == UNKNOWN_MEMBER
        assert await commit(client, "g") == UNKNOWN_MEMBER, "only members commit while there are any"
        for generation in (member.generation - 1, member.generation + 1, -1, -(1 << 31), (1 << 31) - 1):
            assert await member.heartbeat(generation_id=generation) == GENERATION
            assert await member.sync(generation_id=generation) == GENERATION
            assert await commit(client, "g", member.member_id, generation) == GENERATION
        assert await member.sync(protocol_name="other") == INCONSISTENT
        assert await member.sync(protocol_name=None) == INCONSISTENT
        assert await member.heartbeat() == OK

    run(body)


def test_a_group_nobody_knows() -> None:
    async def body(door: Door, client: Client) -> None:
        member = Member(client, "unknown")
        member.member_id, member.generation = "m", 1
        assert await member.heartbeat() == UNKNOWN_MEMBER
        assert await member.sync() == UNKNOWN_MEMBER
        assert await member.leave() == UNKNOWN_MEMBER
        assert (await join(client, "unknown", member_id="m"))["error_code"] == UNKNOWN_MEMBER
        assert await commit(client, "unknown", "m", 1) == NOT_FOUND
        assert await commit(client, "unknown", "m", 1, version=8) == GENERATION
        assert (await beat(client, "unknown", epoch=3))["error_code"] == NOT_FOUND
        assert (await beat(client, "unknown", epoch=-1))["error_code"] == NOT_FOUND
        answer = await client.ask("offset_delete", 0, group_id="unknown", topics=[])
        assert answer["error_code"] == NOT_FOUND
        listed = await client.ask("list_groups", 4)
        assert [group["group_id"] for group in listed["groups"]] == [NEIGHBOUR]

    run(body)


def test_a_fenced_instance() -> None:
    async def body(door: Door, client: Client) -> None:
        old = await Member.of(client, instance_id="i")
        new = await Member.of(client, instance_id="i")
        assert new.member_id != old.member_id
        old.generation = new.generation
        assert await old.heartbeat() == FENCED_INSTANCE
        assert await old.sync() == FENCED_INSTANCE
        assert await old.leave() == FENCED_INSTANCE
        assert await commit(client, "g", old.member_id, old.generation, group_instance_id="i") == FENCED_INSTANCE
        fenced = await join(client, member_id=old.member_id, group_instance_id="i")
        assert fenced["error_code"] == FENCED_INSTANCE
        assert await new.heartbeat(group_instance_id="j") == UNKNOWN_MEMBER
        assert await new.heartbeat() == OK

    run(body)


def test_what_a_group_in_the_wrong_state_says() -> None:
    async def body(door: Door, client: Client) -> None:
        member = await Member.of(client)
        late = await door.client()
        given = await join(late)
        late.send(make("join_group", 9, join_fields(member_id=given["member_id"])))
        await asyncio.sleep(0.1)
        assert await member.heartbeat() == REBALANCE
        assert await member.sync() == REBALANCE
        assert await commit(client, "g", member.member_id, member.generation) == OK, "before it joins again"
        assert (await client.ask("delete_groups", 2, groups_names=("g",)))["results"][0]["error_code"] == NON_EMPTY
        joined = await join(client, member_id=member.member_id)
        assert joined["error_code"] == OK
        member.generation = joined["generation_id"]
        assert await commit(client, "g", member.member_id, member.generation) == REBALANCE, "nobody has synced"
        deleted = await client.ask(
            "offset_delete", 0, group_id="g", topics=[{"name": "t", "partitions": [{"partition_index": 0}]}]
        )
        assert deleted["topics"][0]["partitions"][0]["error_code"] == SUBSCRIBED
        assert (await beat(client, "g"))["error_code"] == NOT_FOUND, "a classic group"

    run(body)


def test_strangers_to_a_consumer_group() -> None:
    async def body(door: Door, client: Client) -> None:
        joined = await beat(client)
        assert (joined["error_code"], joined["member_epoch"]) == (OK, 1)
        assert (await beat(client, member_id="nobody", epoch=1))["error_code"] == UNKNOWN_MEMBER
        for epoch in (5, (1 << 31) - 1):
            assert (await beat(client, epoch=epoch))["error_code"] == FENCED_EPOCH
        assert (await beat(client, epoch=-3))["error_code"] == BAD_REQUEST
        assert (await beat(client, epoch=-2))["error_code"] == BAD_REQUEST, "only static members leave for a while"
        assert await commit(client, "c", "m", 7) == STALE_EPOCH
        assert await commit(client, "c", "nobody", 1) == UNKNOWN_MEMBER
        assert await commit(client, "c", "m", 1) == OK
        asked = [{"group_id": "c", "topics": None, "member_id": "m", "member_epoch": 7}]
        assert (await client.ask("offset_fetch", 9, groups=asked))["groups"][0]["error_code"] == STALE_EPOCH
        asked[0]["member_id"] = "nobody"
        assert (await client.ask("offset_fetch", 9, groups=asked))["groups"][0]["error_code"] == UNKNOWN_MEMBER
        assert (await join(client, "c"))["error_code"] == INCONSISTENT
        assert await Member(client, "c").heartbeat() == UNKNOWN_MEMBER
        assert (await beat(client, member_id="n", instance_id="i"))["error_code"] == OK
        assert (await beat(client, member_id="o", instance_id="i"))["error_code"] == UNRELEASED
        assert (await beat(client, member_id="o", instance_id="i", epoch=2))["error_code"] == FENCED_INSTANCE
        assert (await beat(client, member_id="p", server_assignor="x" * 9000))["error_code"] == BAD_ASSIGNOR

    run(body)
