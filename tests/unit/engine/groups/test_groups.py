"""What happens to all shards of groups at once."""

import errno
from unittest.mock import patch

import pytest
from tests.simulated_broker import running, virtual
from tests.unit.engine.test_engine import Machine

from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC, shard_of
from penstock.engine.groups.groups import Groups
from penstock.engine.groups.machine import GroupMachine
from penstock.engine.groups.offsets import CommitRequest, FetchRequest, NewOffset


async def _left(groups: Groups, group: str) -> int:
    return len(await groups.fetch(FetchRequest(group, None)))


@virtual
async def test_offsets_of_a_deleted_topic_go_bit_by_bit() -> None:
    async with running(Machine().broker()) as broker:
        groups = broker.engine.groups
        for group in ("g", "h"):
            offsets = {("t", partition): NewOffset(1) for partition in range(2_500)} | {("u", 0): NewOffset(1)}
            await groups.commit(CommitRequest(group, "", -1, None, offsets))
        sizes = []
        original = GroupMachine.topic_deleted

        def watched(machine: GroupMachine, topic: str) -> object:
            outcome = original(machine, topic)
            sizes.append(len(outcome.records))
            return outcome

        with patch.object(GroupMachine, "topic_deleted", watched):
            await groups.topic_deleted("t")
        assert sum(sizes) == 5_000 and max(sizes) == 1_000
        assert [await _left(groups, group) for group in ("g", "h")] == [1, 1]


@virtual
async def test_a_shard_that_cannot_forget_a_topic_does_not_stand_in_the_way_of_others() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        groups = broker.engine.groups
        names = ("a", "b", "c")
        shards = [shard_of(name, 16) for name in names]
        assert len(set(shards)) == len(names)
        for name in names:
            await groups.commit(CommitRequest(name, "", -1, None, {("t", 0): NewOffset(1)}))
        log = f"{OFFSETS_TOPIC}/{min(shards)}/{0:020}.log"
        machine.disk.fail("write_at", errno.ENOSPC, path_contains=log, times=100)
        await groups.topic_deleted("t")
        assert [await _left(groups, name) for name in names] == [int(shard == min(shards)) for shard in shards]


@pytest.mark.parametrize("topic", ["t", "u"])
def test_a_topic_nobody_read_costs_no_records(topic: str) -> None:
    @virtual
    async def body() -> None:
        async with running(Machine().broker()) as broker:
            groups = broker.engine.groups
            await groups.commit(CommitRequest("g", "", -1, None, {("t", 0): NewOffset(1)}))
            log = (await groups.shards.of("g")).partition.opened()
            end = log.end_offset
            await groups.topic_deleted(topic)
            assert log.end_offset == end + (topic == "t")

    body()
