"""What happens to all shards of groups at once."""

import errno
from unittest.mock import patch

import pytest
from tests.simulated_broker import running, virtual
from tests.unit.engine.test_engine import Machine

from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC, shard_of
from penstock.engine.groups.groups import Groups
from penstock.engine.groups.machine import RECORDS_PER_STEP, GroupMachine
from penstock.engine.groups.offsets import CommitRequest, FetchRequest, NewOffset, TransactionalCommit
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch


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

        def watched(machine: GroupMachine, topic: str, unlooked: list[str]) -> object:
            outcome = original(machine, topic, unlooked)
            sizes.append(len(outcome.records))
            return outcome

        with patch.object(GroupMachine, "topic_deleted", watched):
            await groups.topic_deleted("t")
        assert sum(sizes) == 5_000 and max(sizes) == RECORDS_PER_STEP
        assert [await _left(groups, group) for group in ("g", "h")] == [1, 1]


@virtual
async def test_a_topic_nobody_committed_for_is_looked_for_bit_by_bit() -> None:
    async with running(Machine().broker()) as broker:
        groups = broker.engine.groups
        offsets = {("t", partition): NewOffset(1) for partition in range(100)}
        for group in range(16):
            await groups.commit(CommitRequest(f"g{group}", "", -1, None, offsets))
        looked_at: list[int] = []
        original = GroupMachine.topic_deleted

        def watched(machine: GroupMachine, topic: str, unlooked: list[str]) -> object:
            before = len(unlooked)
            outcome = original(machine, topic, unlooked)
            looked_at.append(before - len(unlooked))
            return outcome

        with (
            patch.object(GroupMachine, "topic_deleted", watched),
            patch("penstock.engine.groups.machine._OFFSETS_PER_TICK", 50),
        ):
            await groups.topic_deleted("other")
        assert looked_at == [1] * 16


@virtual
async def test_many_offsets_are_committed_and_deleted_in_batches_of_a_size() -> None:
    async with running(Machine().broker()) as broker:
        groups = broker.engine.groups
        spots = [("t", partition) for partition in range(2 * RECORDS_PER_STEP + 1)]
        log = (await groups.shards.of("g")).partition.opened()
        begin = log.end_offset
        with patch("penstock.engine.coordination.shard.build_batch", wraps=build_batch) as build:
            results = await groups.commit(CommitRequest("g", "", -1, None, dict.fromkeys(spots, NewOffset(1))))
            assert list(results) == spots and not any(results.values())
            results = await groups.delete_offsets("g", spots)
            assert list(results) == spots and not any(results.values())
            await groups.commit(CommitRequest("g", "", -1, None, dict.fromkeys(spots, NewOffset(1))))
            await groups.delete("g")
        batches = [len(call.args[0]) for call in build.call_args_list]
        assert max(batches) == RECORDS_PER_STEP and sum(batches) == log.end_offset - begin == 4 * len(spots)


@virtual
async def test_what_comes_behind_an_error_shares_it() -> None:
    async with running(Machine().broker()) as broker:
        groups = broker.engine.groups
        spots = [("t", partition) for partition in range(2 * RECORDS_PER_STEP + 1)]
        offsets = dict.fromkeys(spots, NewOffset(1))
        calls = 0

        def check() -> None:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise PenstockError(Code.INVALID_REQUEST, "it has ended")

        results = await groups.commit_in_transaction(TransactionalCommit("g", 5, 0, "", -1, None, offsets), check)
        assert list(results) == spots and calls == 2
        assert [error is None for error in results.values()] == [at < RECORDS_PER_STEP for at in range(len(spots))]
        with pytest.raises(PenstockError, match="it has ended"):
            await groups.commit_in_transaction(TransactionalCommit("g", 5, 0, "", -1, None, offsets), check)


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
