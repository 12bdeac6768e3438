"""Clients that hang up while a group makes them wait: nothing is left of them."""

import asyncio
from typing import Any

import pytest
from tests.doors.kafka import Client, Door, make
from tests.simulated_broker import wait_for
from tests.unit.protocols.kafka.group_client import join, join_fields, run


@pytest.mark.parametrize("version", [3, 9])
def test_who_hangs_up_while_it_joins_is_gone_after_its_session(version: int) -> None:
    async def body(door: Door, client: Client) -> None:
        shard = await door.engine.groups.shards.of("g")
        await asyncio.sleep(1)
        tasks = len(asyncio.all_tasks())
        for _ in range(30):
            other = await door.client()
            fields = join_fields()
            if version >= 4:
                fields |= {"member_id": (await join(other))["member_id"]}
            other.send(make("join_group", version, fields))
            await asyncio.sleep(0.002)
            other.stream.abort()
        await asyncio.sleep(0.02)
        assert len(shard._waiting) >= 20, "they wait for one another"
        await asyncio.sleep(400)
        assert not shard._waiting
        assert len(asyncio.all_tasks()) <= tasks + 1
        group: Any = shard.loaded._groups.get("g")
        assert group is None or (group.is_empty and not group._joins and not group._syncs)

    run(body)


def test_who_hangs_up_while_it_syncs_is_gone_after_its_session() -> None:
    async def body(door: Door, client: Client) -> None:
        shard = await door.engine.groups.shards.of("g")
        leader, follower = await door.client(), await door.client()
        leader.send(make("join_group", 3, join_fields()))
        follower.send(make("join_group", 3, join_fields()))
        answers = [(await each.receive("join_group", 3))[1] for each in (leader, follower)]
        waiting = next(
            (each, answer)
            for each, answer in zip((leader, follower), answers, strict=True)
            if answer["member_id"] != answer["leader"]
        )
        fields = {"group_id": "g", "generation_id": waiting[1]["generation_id"], "member_id": waiting[1]["member_id"]}
        waiting[0].send(make("sync_group", 2, fields))
        await asyncio.sleep(0.1)
        assert len(shard._waiting) == 1
        leader.stream.abort()
        follower.stream.abort()
        await wait_for(lambda: not shard._waiting and shard.loaded._groups["g"].is_empty, 400)

    run(body)
