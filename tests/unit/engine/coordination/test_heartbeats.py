"""A thousand groups that only say they are there cost no records, and of timers as many as shards need."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from unittest.mock import patch

from tests.simulated_broker import Broker, running, virtual
from tests.unit.engine.test_engine import Machine

from penstock.engine.coordination.shard import Shard
from penstock.engine.groups.classic_requests import HeartbeatRequest, JoinRequest, SyncRequest
from penstock.engine.groups.consumer_requests import ConsumerHeartbeat
from penstock.engine.groups.topic_patterns import SEES_ALL

GROUPS = 1_000
SESSION_S, EVERY_S, ROUNDS = 45, 3, 30
SHARDS = 16

Beat = Callable[[], Awaitable[object]]


async def classic(broker: Broker, group_id: str) -> Beat:
    groups, protocols = broker.engine.groups, (("range", b"x"),)
    joined = await groups.join(
        JoinRequest(group_id, "", None, "c", "/::1", "consumer", protocols, SESSION_S * 1000, 60_000, False)
    )
    member_id, generation = joined.member_id, joined.generation
    await groups.sync(SyncRequest(group_id, generation, member_id, None, None, None, ((member_id, b"all"),)))
    return lambda: groups.heartbeat(HeartbeatRequest(group_id, generation, member_id, None))


async def modern(broker: Broker, group_id: str) -> Beat:
    groups = broker.engine.groups
    joining = ConsumerHeartbeat(group_id, "m", 0, None, None, 60_000, ("t",), topic_partitions=())
    joined = await groups.consumer_heartbeat(joining, SEES_ALL)
    beat = ConsumerHeartbeat(group_id, "m", joined.member_epoch, topic_partitions=joined.assignment)
    await groups.consumer_heartbeat(beat, SEES_ALL)
    return lambda: groups.consumer_heartbeat(beat._replace(topic_partitions=None), SEES_ALL)


async def beat_for_a_while(beats: Sequence[Beat]) -> None:
    """As clients do: each at a time of its own."""
    for _ in range(ROUNDS):
        for part in range(10):
            for beat in beats[part::10]:
                await beat()
            await asyncio.sleep(EVERY_S / 10)


@virtual
async def test_a_thousand_groups_that_only_beat() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t", 1)
        kinds = (classic, modern)
        beats = await asyncio.gather(*(kinds[number % 2](broker, f"g{number}") for number in range(GROUPS)))
        shards = list(broker.engine.groups.shards)
        assert len(shards) == SHARDS
        before = [shard.partition.opened().end_offset for shard in shards]
        loop = asyncio.get_running_loop()
        timers, call_at = 0, loop.call_at

        def counted(when: float, callback: Callable[..., Any], *args: Any, **options: Any) -> asyncio.TimerHandle:
            nonlocal timers
            timers += getattr(callback, "__func__", None) is Shard._tick
            return call_at(when, callback, *args, **options)

        with patch.object(loop, "call_at", counted):
            await beat_for_a_while(beats)
        assert [shard.partition.opened().end_offset for shard in shards] == before
        # A beat moves no timer: when one fires, at a time that was a session's end once, it is set for the next such.
        assert 0 < timers <= SHARDS * 10
