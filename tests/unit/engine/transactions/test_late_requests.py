"""What comes late, or once more, from one transaction never gets into the next, nor behind the markers of its own."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from tests.simulated_broker import Broker, running, virtual, wait_for
from tests.unit.engine.test_engine import Machine
from tests.unit.engine.transactions.test_markers import PLACE, begin

from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, shard_of
from penstock.engine.groups.offsets import FetchRequest, NewOffset, TransactionalCommit
from penstock.engine.partition import Partition
from penstock.engine.transactions.requests import AddPartitions, EndRequest, MarkersDue
from penstock.engine.transactions.transaction import ProducerIdentity, TopicPartition
from penstock.errors import Code, PenstockError

SPOT = ("t", 0)


@virtual
async def test_a_marker_that_comes_once_more_does_not_end_the_next_transaction() -> None:
    async with running(Machine().broker()) as broker:
        await broker.engine.create_topic("t", 1)
        transactions, partition = broker.engine.transactions, broker.partition("t")
        who = await transactions.init("tx", 60_000)
        await begin(broker, who)
        bumped = await transactions.end(EndRequest("tx", *who, True, 2))
        await begin(broker, bumped)
        await transactions.write_marker(*PLACE, *bumped, 0, committed=True, bumped=True)
        assert partition.high_watermark == partition.opened().end_offset == 3, "nothing was written, all was waited for"
        assert partition.stable_offset == 2, "the next transaction is still open"


@virtual
async def test_the_marker_of_a_producer_that_keeps_its_epoch_is_written() -> None:
    async with running(Machine().broker()) as broker:
        await broker.engine.create_topic("t", 1)
        transactions, partition = broker.engine.transactions, broker.partition("t")
        who = await transactions.init("tx", 60_000)
        await begin(broker, who)
        await transactions.write_marker(*PLACE, *who, 0, committed=True)
        assert partition.stable_offset == 2


@virtual
async def test_offsets_in_an_epoch_that_is_over_are_refused() -> None:
    async with running(Machine().broker()) as broker:
        engine = broker.engine
        who = await engine.transactions.init("tx", 60_000)
        check = await engine.transactions.add_offsets("tx", *who, "g")
        commit = TransactionalCommit("g", *who, "", -1, None, {SPOT: NewOffset(1)})
        await engine.groups.commit_in_transaction(commit, check)
        await engine.transactions.end(EndRequest("tx", *who, True, 2))
        await engine.transactions.init("tx", 60_000)  # waits for the markers
        late = commit._replace(offsets={SPOT: NewOffset(7)})
        with pytest.raises(PenstockError) as caught:
            await engine.groups.commit_in_transaction(late, lambda: None)  # as by a coordinator that was deposed
        assert caught.value.code is Code.INVALID_PRODUCER_EPOCH
        fetched = await engine.groups.fetch(FetchRequest("g", (SPOT,), require_stable=True))
        assert fetched[SPOT].offset == 1  # type: ignore[union-attr]


class _Elsewhere:
    """A coordinator on another broker that knows every partition."""

    async def add_partitions(
        self, broker_id: int, request: AddPartitions
    ) -> Mapping[TopicPartition, PenstockError | None]:
        return dict.fromkeys(request.partitions)

    async def write_markers(
        self, broker_id: int, due: MarkersDue, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, PenstockError | None]:
        raise AssertionError("no marker is due here")

    async def is_gone(self, topic: str) -> bool:
        return False


class _Silent(_Elsewhere):
    """Another broker whose machine is gone: nobody answers, nobody refuses."""

    async def add_partitions(
        self, broker_id: int, request: AddPartitions
    ) -> Mapping[TopicPartition, PenstockError | None]:
        await asyncio.sleep(3600)
        raise AssertionError("somebody waited for an hour")

    async def write_markers(
        self, broker_id: int, due: MarkersDue, places: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, PenstockError | None]:
        await asyncio.sleep(3600)
        raise AssertionError("somebody waited for an hour")


def _give_away(partition: Partition) -> None:
    partition.follow(replace(partition.state, leader=2, leader_epoch=partition.leader_epoch + 1))


def _coordinator(broker: Broker) -> Partition:
    topic = broker.engine.topics.get(TRANSACTIONS_TOPIC)
    assert topic is not None
    return topic.partitions[shard_of("tx", len(topic.partitions))]


@pytest.mark.parametrize("led_at_first", [True, False])
def test_who_did_not_lead_when_the_coordinator_was_asked_may_have_missed_a_marker(led_at_first: bool) -> None:
    @virtual
    async def body() -> None:
        async with running(Machine().broker()) as broker:
            await broker.engine.internal_topic(OFFSETS_TOPIC)
            transactions = broker.engine.transactions
            await transactions.shards.ready()
            transactions.other_brokers = _Elsewhere()
            _give_away(_coordinator(broker))
            offsets = broker.engine.topics.partition(OFFSETS_TOPIC, shard_of("g", 16))
            if not led_at_first:
                _give_away(offsets)
            check = await transactions.add_offsets("tx", *ProducerIdentity(5, 0), "g")
            if led_at_first:
                check()
                return
            offsets.lead(replace(offsets.state, leader=1, leader_epoch=offsets.leader_epoch + 1))
            with pytest.raises(PenstockError) as caught:
                check()
            assert caught.value.code is Code.NOT_AVAILABLE

    body()


@virtual
async def test_markers_go_to_the_next_leader_although_the_last_one_never_answers() -> None:
    async with running(Machine().broker()) as broker:
        await broker.engine.create_topic("t", 1)
        transactions, partition = broker.engine.transactions, broker.partition("t")
        transactions.other_brokers = _Silent()
        who = await transactions.init("tx", 60_000)
        await begin(broker, who)
        led = partition.state
        partition.follow(replace(led, leader=2))
        await transactions.end(EndRequest("tx", *who, True))
        await asyncio.sleep(1)
        partition.lead(led)
        await wait_for(lambda: partition.stable_offset == 2, limit_s=5)


@virtual
async def test_a_batch_does_not_wait_for_a_coordinator_that_was_deposed() -> None:
    async with running(Machine().broker()) as broker:
        await broker.engine.create_topic("t", 1)
        transactions = broker.engine.transactions
        await transactions.shards.ready()
        transactions.other_brokers = _Silent()
        coordinator = _coordinator(broker)
        _give_away(coordinator)
        admission = transactions.admission("tx", ProducerIdentity(5, 0), (PLACE,), add=True)
        await asyncio.sleep(1)
        coordinator.follow(replace(coordinator.state, leader=3, leader_epoch=coordinator.leader_epoch + 1))
        with pytest.raises(PenstockError) as caught:
            async with asyncio.timeout(5):
                await admission.known(PLACE)
        assert caught.value.code is Code.NOT_AVAILABLE
