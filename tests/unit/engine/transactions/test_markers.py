"""Markers of decided transactions: written until they are, once, and never into the next transaction."""

import asyncio
import errno

import pytest
from tests.simulated_broker import Broker, append, running, virtual, wait_for
from tests.unit.engine.test_engine import Machine

from penstock.engine.coordination.internal_topics import TRANSACTIONS_TOPIC, shard_of
from penstock.engine.transactions.requests import AddPartitions, EndRequest
from penstock.engine.transactions.transaction import ProducerIdentity
from penstock.errors import PenstockError
from penstock.records.build import build_batch

PLACE = ("t", 0)


async def begin(broker: Broker, who: ProducerIdentity, sequence: int = 0) -> None:
    """Add the partition and write one record."""
    await broker.engine.transactions.add_partitions(AddPartitions("tx", *who, (PLACE,)))
    batch = build_batch(
        [(b"k", b"v", (), broker.clock.now_ms())],
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )
    append(broker.partition("t"), bytearray(batch))


async def state(broker: Broker) -> str:
    return (await broker.engine.transactions.describe("tx")).state


@virtual
async def test_markers_wait_for_room_and_are_then_written() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t", 1)
        who = await broker.engine.transactions.init("tx", 60_000)
        await begin(broker, who)
        machine.disk.fail("write_at", errno.ENOSPC, path_contains="/t/0", times=5)
        await broker.engine.transactions.end(EndRequest("tx", *who, True))
        partition = broker.partition("t")
        assert partition.stable_offset == 0
        await wait_for(lambda: partition.stable_offset == 2)
        assert await state(broker) == "CompleteCommit"


@virtual
async def test_a_topic_deleted_meanwhile_needs_no_marker() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1)
        who = await broker.engine.transactions.init("tx", 60_000)
        await begin(broker, who)
        await broker.engine.delete_topic(topic)
        await broker.engine.transactions.end(EndRequest("tx", *who, True))
        again = await broker.engine.transactions.init("tx", 60_000)
        assert again.producer_epoch == who.producer_epoch + 1


@pytest.mark.parametrize("version", [0, 2])
def test_a_writer_whose_coordinator_started_over_never_ends_the_next_transaction(version: int) -> None:
    @virtual
    async def body() -> None:
        machine = Machine()
        async with running(machine.broker()) as broker:
            await broker.engine.create_topic("t", 1)
            transactions, partition = broker.engine.transactions, broker.partition("t")
            who = await transactions.init("tx", 600_000)
            mine = shard_of("tx", 16)
            other = next(name for name in map(str, range(1000)) if shard_of(name, 16) == mine)
            await begin(broker, who)
            machine.disk.fail("write_at", errno.ENOSPC, path_contains="/t/0", times=10**6)
            who = await transactions.end(EndRequest("tx", *who, True, version))
            await asyncio.sleep(4)  # the writer pauses for seconds by now
            machine.disk.fail("write_at", errno.ENOSPC, path_contains=TRANSACTIONS_TOPIC)
            with pytest.raises(PenstockError):
                await transactions.init(other, 60_000)
            await asyncio.sleep(0.2)
            machine.disk.clear_faults()
            await wait_for(lambda: partition.stable_offset == 2)
            await begin(broker, who, 0 if version == 2 else 1)
            await asyncio.sleep(10)
            assert await state(broker) == "Ongoing"
            assert partition.stable_offset == 2, "the next transaction was ended by an old writer"

    body()


@virtual
async def test_an_open_transaction_survives_a_restart_and_times_out() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    await broker.engine.create_topic("t", 1)
    who = await broker.engine.transactions.init("tx", 5_000)
    await begin(broker, who)
    await wait_for(lambda: broker.partition("t").high_watermark == 1)
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as broker:
        partition = broker.partition("t")
        assert partition.stable_offset == 0
        await wait_for(lambda: partition.stable_offset == 2)
        assert [row.first_offset for row in partition.opened().active_transactions.aborted()] == [0]
        assert await state(broker) == "CompleteAbort"
