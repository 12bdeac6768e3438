"""Coordinators by the table of those there are: each is run, and found by the partition it lives in."""

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from tests.simulated_broker import running, virtual, wait_for
from tests.unit.engine.test_engine import Machine

from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.coordination.registry import REGISTERED
from penstock.engine.coordination.shard import Shard
from penstock.errors import Code, PenstockError


@virtual
async def test_every_registered_one_is_run() -> None:
    async with running(Machine().broker()) as broker:
        assert {shards.topic for shards in broker.engine.coordinators} == REGISTERED.keys() == INTERNAL_TOPICS


@virtual
async def test_a_topic_is_made_with_the_settings_of_its_registration() -> None:
    async with running(Machine().broker()) as broker:
        for name, registered in REGISTERED.items():
            assert dict((await broker.engine.internal_topic(name)).config.given) == dict(registered.settings)


@virtual
async def test_a_shard_hears_from_its_partition_who_leads() -> None:
    async with running(Machine().broker()) as broker:
        shards = broker.engine.groups.shards
        await shards.ready()
        shard, other = shards.at(3), shards.at(4)
        assert shard is not None and other is not None
        await shard.load()
        await other.load()
        partition, led = shard.partition, shard.partition.state
        partition.follow(replace(led, leader=2, leader_epoch=led.leader_epoch + 1))
        assert shard.loaded is None and other.loaded is not None
        partition.lead(replace(led, leader_epoch=led.leader_epoch + 2))
        await wait_for(lambda: shard.loaded is not None)


@virtual
async def test_who_waits_for_a_shard_to_load_is_sent_away_when_it_is_lost() -> None:
    """Who asked asks another broker, and goes on; what it asked for must not be done when the first one leads again."""
    loads = asyncio.Event()
    replay = Shard._replay

    async def replay_later(self: Shard[Any]) -> Any:
        await loads.wait()
        return await replay(self)

    async with running(Machine().broker()) as broker:
        shards = broker.engine.groups.shards
        await shards.ready()
        shard = shards.at(3)
        assert shard is not None
        await shard.load()
        partition, led = shard.partition, shard.partition.state
        with patch.object(Shard, "_replay", replay_later):
            for epoch in (led.leader_epoch + 1, led.leader_epoch + 3):
                partition.follow(replace(led, leader_epoch=epoch))
                partition.lead(replace(led, leader_epoch=epoch))
                asked = asyncio.ensure_future(shard.machine())
                await asyncio.sleep(0)
                assert not asked.done()
                partition.follow(replace(led, leader=2, leader_epoch=epoch + 1))
                if epoch > led.leader_epoch + 1:  # it leads again before anybody else has a turn
                    partition.lead(replace(led, leader_epoch=epoch + 2))
                    loads.set()
                with pytest.raises(PenstockError) as caught:
                    async with asyncio.timeout(1.0):
                        await asked
                assert caught.value.code is Code.NOT_COORDINATOR
            await wait_for(lambda: shard.loaded is not None)
