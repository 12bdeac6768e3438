"""Markers that a partition refuses: done if nothing is open there, and safely so; never given up while something is."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from tests.simulated_broker import Broker, running, virtual, wait_for
from tests.unit.engine.test_engine import Machine
from tests.unit.engine.transactions.test_markers import PLACE, begin, state

from penstock.engine.transactions.other_brokers import NoOtherBrokers
from penstock.engine.transactions.requests import EndRequest, MarkersDue
from penstock.engine.transactions.transaction import ProducerIdentity, TopicPartition
from penstock.errors import Code, PenstockError

POISON = 1_000
"""A coordinator epoch that none here has, and one could have: earlier releases kept what a client named."""
KEEPS_EPOCH = 0


async def poisoned(broker: Broker, epoch: int = POISON) -> ProducerIdentity:
    """A transaction is open in a partition that takes a later coordinator for the one who decided the last one."""
    await broker.engine.create_topic("t", 1)
    who = await broker.engine.transactions.init("tx", 60_000)
    await begin(broker, who)
    known = broker.partition("t").opened().state.producers.get(who.producer_id)
    assert known is not None
    known.coordinator_epoch = epoch
    return who


@pytest.mark.parametrize("committed", [True, False])
def test_an_open_transaction_is_not_done_with_while_its_marker_is_refused(committed: bool) -> None:
    @virtual
    async def body() -> None:
        async with running(Machine().broker()) as broker:
            who = await poisoned(broker)
            transactions, partition = broker.engine.transactions, broker.partition("t")
            await transactions.end(EndRequest("tx", *who, committed, KEEPS_EPOCH))
            await asyncio.sleep(20)
            assert (await state(broker)).startswith("Prepare"), "counted as done while it is open"
            assert partition.stable_offset == 0
            assert broker.stats.refused_markers >= 3, "nobody is told"
            await transactions.abort_open(*PLACE, *who)  # the way out
            assert partition.stable_offset == partition.high_watermark == 2
            await asyncio.sleep(6)  # the longest pause
            assert await state(broker) == ("CompleteCommit" if committed else "CompleteAbort")

    body()


@virtual
async def test_a_producer_that_begins_anew_is_free_of_it() -> None:
    async with running(Machine().broker()) as broker:
        await poisoned(broker)
        transactions, partition = broker.engine.transactions, broker.partition("t")
        again = await transactions.init("tx", 60_000)  # the transaction is aborted in a later epoch
        assert partition.stable_offset == partition.high_watermark == 2
        await begin(broker, again)
        await transactions.end(EndRequest("tx", *again, True, KEEPS_EPOCH))
        await wait_for(lambda: partition.stable_offset == 4)
        assert broker.stats.refused_markers == 0


@virtual
async def test_an_epoch_no_coordinator_can_have_is_forgotten_at_the_start() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        who = await poisoned(broker, (1 << 31) - 1)
    async with running(machine.broker()) as broker:
        partition = broker.partition("t")
        assert partition.stable_offset == 0
        await broker.engine.transactions.end(EndRequest("tx", *who, True, KEEPS_EPOCH))
        await wait_for(lambda: partition.stable_offset == 2)
        assert broker.stats.refused_markers == 0


@pytest.mark.parametrize("epochs", [(-1, 0), (0, -1)], ids=["producer", "coordinator"])
def test_where_nothing_is_open_a_late_marker_is_done_with_and_writes_nothing(epochs: tuple[int, int]) -> None:
    @virtual
    async def body() -> None:
        async with running(Machine().broker()) as broker:
            who = await poisoned(broker, epoch=-1)
            transactions, partition = broker.engine.transactions, broker.partition("t")
            who = await transactions.init("tx", 60_000)
            await begin(broker, who)
            await transactions.write_marker(*PLACE, *who, 7, committed=True)
            end = partition.opened().end_offset
            late = who._replace(producer_epoch=who.producer_epoch + epochs[0])
            await transactions.write_marker(*PLACE, *late, 7 + epochs[1], committed=True)
            assert partition.opened().end_offset == end
            await begin(broker, who, 1)
            with pytest.raises(PenstockError) as caught:
                await transactions.write_marker(*PLACE, *late, 7 + epochs[1], committed=True)
            assert caught.value.code in (Code.INVALID_PRODUCER_EPOCH, Code.COORDINATOR_FENCED)
            assert partition.stable_offset == end, "the next one is still open"

    body()


@virtual
async def test_what_ended_it_must_be_safe_before_a_late_marker_is_done_with() -> None:
    """Else the coordinator forgets the transaction, and the next leader has no marker of it."""
    async with running(Machine().broker()) as broker:
        who = await poisoned(broker, epoch=-1)
        transactions, partition = broker.engine.transactions, broker.partition("t")
        await wait_for(lambda: partition.high_watermark == 1)
        partition.lead(replace(partition.state, replicas=(1, 2), isr=(1, 2)))  # one who does not answer
        tasks = []
        for epoch in (7, 6):
            tasks.append(asyncio.ensure_future(transactions.write_marker(*PLACE, *who, epoch, committed=True)))
            await asyncio.sleep(1)
        assert partition.opened().end_offset == 2
        assert not any(task.done() for task in tasks)
        partition.replica_fetched(2, 1, 2)
        await asyncio.gather(*tasks)


class _Refusing(NoOtherBrokers):
    """Another broker that leads the partition, and refuses the marker a few times."""

    def __init__(self, code: Code, times: int) -> None:
        self.code, self.left = code, times

    async def write_markers(
        self, broker_id: int, due: MarkersDue, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, PenstockError | None]:
        self.left -= 1
        return dict.fromkeys(places, PenstockError(self.code, "refused") if self.left >= 0 else None)


@pytest.mark.parametrize("code", [Code.INVALID_PRODUCER_EPOCH, Code.COORDINATOR_FENCED])
def test_another_broker_that_refuses_is_asked_again(code: Code) -> None:
    @virtual
    async def body() -> None:
        async with running(Machine().broker()) as broker:
            await broker.engine.create_topic("t", 1)
            transactions, partition = broker.engine.transactions, broker.partition("t")
            who = await transactions.init("tx", 60_000)
            await begin(broker, who)
            transactions.other_brokers = other = _Refusing(code, 3)
            partition.follow(replace(partition.state, leader=2))
            await transactions.end(EndRequest("tx", *who, True))
            await wait_for(lambda: other.left < 0)
            await asyncio.sleep(1)
            assert await state(broker) == "CompleteCommit"
            assert broker.stats.refused_markers == 3

    body()
