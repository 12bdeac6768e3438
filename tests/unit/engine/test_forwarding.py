"""Publishing through a broker that does not lead: what is sent again, as what, and what the publisher is told."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from tests.rules import Only
from tests.simulated_broker import Broker, batch_of, read_some, running, wait_for

from penstock.engine.access import Kind, NotAuthorised, Operation, Subject
from penstock.engine.forwarding import Forwarded, Forwarding, Outcome
from penstock.engine.partition import Partition
from penstock.engine.publishing import ALL, LEADER
from penstock.errors import Code, PenstockError
from penstock.records.batch import check_produced
from penstock.storage.log.log import Appended
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock, run_virtual

ANN, BOB = Subject("User:ann", "10.0.0.1", "toy"), Subject("User:bob")
Reply = Outcome | PenstockError | None
"""None: it never answers. An error: nothing has left."""


def refusal(code: Code, *, is_open: bool = False) -> Outcome:
    return Outcome(None, PenstockError(code, "no"), is_open)


LOST = refusal(Code.NOT_AVAILABLE, is_open=True)


class Leader:
    """Broker 2, which answers by a script, and then takes everything."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked: list[Forwarded] = []
        self.under_way = 0

    async def publish(self, broker_id: int, forwarded: Forwarded, leaves: Callable[[], None]) -> Outcome:
        assert broker_id == 2
        self.under_way += 1
        assert self.under_way == 1, "two batches of one partition are under way"
        try:
            reply = self.replies.pop(0) if self.replies else Outcome(Appended(len(self.asked), len(self.asked), -1))
            if isinstance(reply, PenstockError):
                raise reply
            leaves()
            self.asked.append(forwarded)
            await asyncio.sleep(0.001 if reply is not None else 1000)
            assert reply is not None
            return reply
        finally:
            self.under_way -= 1

    @property
    def stamps(self) -> list[tuple[int, int]]:
        """Producer id and sequence of each batch that was sent."""
        headers = [check_produced(memoryview(each.batch)) for each in self.asked]
        assert {header.producer_epoch for header in headers} <= {0}
        return [(header.producer_id, header.base_sequence) for header in headers]


class World:
    def __init__(self, broker: Broker, partition: Partition) -> None:
        self.broker = broker
        self.partition = partition
        self.forwarding: Forwarding = broker.engine.forwarding
        self.leader = Leader()
        self.forwarding.other_brokers = self.leader
        self.led_here = partition.state

    def batch(self, *values: bytes, **fields: Any) -> bytes:
        return bytes(batch_of(list(values or (b"x",)), self.broker.clock, **fields))

    async def publish(self, *values: bytes, timeout_s: float = 5.0, **options: Any) -> Appended:
        return await self.forwarding.publish(self.partition, self.batch(*values), ALL, timeout_s, **options)

    async def refused(self, *values: bytes, timeout_s: float = 5.0) -> PenstockError:
        with pytest.raises(PenstockError) as refused:
            await self.publish(*values, timeout_s=timeout_s)
        return refused.value

    async def publish_in_turn(self, *values: bytes) -> list[asyncio.Task[Appended]]:
        """Each is asked for before the next one, and none is waited for."""
        publishing = []
        for value in values:
            publishing.append(asyncio.create_task(self.publish(value)))
            await asyncio.sleep(1e-6)  # the loop begins tasks in any order
        return publishing

    def lose_lead(self) -> None:
        self.partition.follow(replace(self.led_here, leader=2))


def world(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A broker that knows a partition, which broker 2 leads."""

    def test() -> None:
        async def main() -> None:
            async with running(Broker(FaultyDisk(5), MemoryStore(), VirtualClock())) as broker:
                made = World(broker, (await broker.engine.create_topic("t")).partitions[0])
                made.lose_lead()
                await scenario(made)

        run_virtual(main, 7)

    test.__name__ = scenario.__name__
    return test


@world
async def test_where_it_is_led_it_is_published_as_it_is(it: World) -> None:
    it.partition.lead(it.led_here)
    appended = await it.publish(b"a", b"b")
    assert (appended.base_offset, appended.last_offset) == (0, 1)
    (stored,) = await read_some(it.partition, 0)
    assert stored.header.producer_id == -1
    assert it.leader.asked == []


@world
async def test_elsewhere_it_gets_an_id_and_sequences_that_go_on(it: World) -> None:
    for values in ([b"a", b"b", b"c"], [b"d"], [b"e"]):
        await it.publish(*values, subject=ANN, others=[BOB])
    (producer, *_), *_ = it.leader.stamps
    assert it.leader.stamps == [(producer, 0), (producer, 3), (producer, 4)]
    first = it.leader.asked[0]
    assert (first.topic_id, first.partition_index) == (it.partition.topic_id, 0)
    assert (first.subjects, first.durability) == ((ANN, BOB), ALL)
    assert 4.9 < first.timeout_s <= 5


@world
async def test_after_a_lost_answer_the_very_same_batch_is_sent(it: World) -> None:
    it.leader.replies = [LOST, refusal(Code.NOT_LEADER), LOST, refusal(Code.NOT_ENOUGH_REPLICAS)]
    assert (await it.publish()).base_offset == 4
    assert len(it.leader.asked) == 5
    assert len({each.batch for each in it.leader.asked}) == 1
    await it.publish()
    assert it.leader.stamps[-1] == (it.leader.stamps[0][0], 1)


@world
async def test_nothing_left_or_nothing_was_appended_so_it_goes_on(it: World) -> None:
    it.leader.replies = [PenstockError(Code.NOT_AVAILABLE, "no connection"), refusal(Code.NOT_LEADER)]
    it.leader.replies += [refusal(Code.UNKNOWN_TOPIC_ID), refusal(Code.NOT_AVAILABLE)]
    await it.publish()
    assert len(set(it.leader.stamps)) == 1


@world
async def test_a_refusal_of_the_first_sending_is_told_and_its_sequence_is_used_again(it: World) -> None:
    for code in (Code.INVALID_TIMESTAMP, Code.NOT_ENOUGH_REPLICAS, Code.NOT_ALLOWED, Code.UNSUPPORTED_VERSION):
        it.leader.replies = [refusal(code)]
        assert (await it.refused()).code is code
    await it.publish()
    assert len(set(it.leader.stamps)) == 1


@world
async def test_a_refusal_of_a_later_sending_says_nothing_of_the_first(it: World) -> None:
    for code in (Code.INVALID_TIMESTAMP, Code.OUT_OF_ORDER_SEQUENCE, Code.UNSUPPORTED_VERSION):
        it.leader.replies = [LOST, refusal(code)]
        assert (await it.refused()).code is Code.OUTCOME_UNKNOWN
        sent = it.leader.stamps
        await it.publish()
        assert it.leader.stamps[-1] not in sent
        assert it.leader.stamps[-1][0] != sent[-1][0]


@world
async def test_what_is_not_known_in_time_is_said_and_its_id_is_never_used_again(it: World) -> None:
    it.leader.replies = [None]
    unknown = await it.refused(timeout_s=2)
    assert unknown.code is Code.OUTCOME_UNKNOWN and not unknown.retriable and "t-0" in str(unknown)
    await it.publish()
    (first, sequence), (second, again) = it.leader.stamps
    assert first != second
    assert sequence == again == 0


@world
async def test_of_what_never_left_the_reason_is_known(it: World) -> None:
    it.leader.replies = [PenstockError(Code.NOT_AVAILABLE, "no connection")] * 100
    assert str(await it.refused(timeout_s=2)) == "no connection"
    it.leader.replies = []
    await it.publish()
    assert [sequence for _, sequence in it.leader.stamps] == [0]


@world
async def test_a_publisher_that_goes_leaves_no_doubt_behind(it: World) -> None:
    it.leader.replies = [None]
    leaving = asyncio.create_task(it.publish())
    await wait_for(lambda: it.leader.asked)
    leaving.cancel()
    await asyncio.wait([leaving])
    await it.publish()
    assert it.leader.stamps[0][0] != it.leader.stamps[1][0]


@world
async def test_a_gap_before_a_batch_that_was_not_appended_needs_another_id(it: World) -> None:
    await it.publish()
    it.leader.replies = [refusal(Code.OUT_OF_ORDER_SEQUENCE)]  # the leader before had it, and is gone
    await it.publish()
    (first, _), (same, one), (other, zero) = it.leader.stamps
    assert (first, one, zero) == (same, 1, 0)
    assert other != first


@world
async def test_one_at_a_time_in_their_order_and_who_waits_too_long_was_not_sent(it: World) -> None:
    it.leader.replies = [LOST, LOST]
    values = [b"number %02d" % number for number in range(20)]
    publishing = await it.publish_in_turn(*values)
    late = asyncio.create_task(it.refused(b"late", timeout_s=0.01))
    await asyncio.gather(*publishing)
    assert (await late).code is Code.TIMED_OUT
    sent = [each.batch for each in it.leader.asked]
    assert [next(at for at, batch in enumerate(sent) if value in batch) for value in values] == [0, *range(3, 22)]
    assert not any(b"late" in batch for batch in sent)


@world
async def test_too_much_that_waits_is_refused(it: World) -> None:
    it.leader.replies = [None]
    large = bytes(900_000)
    waiting = [asyncio.create_task(it.publish(large, timeout_s=2)) for _ in range(80)]
    told = await asyncio.gather(*waiting, return_exceptions=True)
    codes = [each.code for each in told if isinstance(each, PenstockError)]
    assert codes.count(Code.NOT_AVAILABLE) == 80 - (64 << 20) // (900_000 + 73)
    await it.publish(large)


@world
async def test_too_few_copies_of_what_is_there_is_told_as_it_is(it: World) -> None:
    it.leader.replies = [
        Outcome(Appended(0, 0, -1), PenstockError(Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "no"), is_open=True)
    ]
    assert (await it.refused()).code is Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    await it.publish()
    assert it.leader.stamps[0][0] != it.leader.stamps[1][0]


@world
async def test_a_batch_of_another_producer_is_refused(it: World) -> None:
    owned = it.batch(producer_id=3, producer_epoch=0, base_sequence=0)
    for batch, lead in ((owned, False), (owned, True)):
        it.partition.lead(it.led_here) if lead else it.lose_lead()
        with pytest.raises(PenstockError, match="producer 3") as refused:
            await it.forwarding.publish(it.partition, batch, ALL, 5)
        assert refused.value.code is Code.INVALID_REQUEST
    assert it.leader.asked == []


@world
async def test_damage_is_not_hidden_under_another_checksum(it: World) -> None:
    batch = bytearray(it.batch(b"value"))
    batch[-3] ^= 1
    for spoiled in (bytes(batch), it.batch()[:-1], b"", it.batch() + b"\0"):
        with pytest.raises(PenstockError) as refused:
            await it.forwarding.publish(it.partition, spoiled, ALL, 5)
        assert refused.value.code in (Code.CORRUPT_BATCH, Code.INVALID_BATCH)
    assert it.leader.asked == []


@world
async def test_the_lead_comes_here_while_a_batch_is_under_way(it: World) -> None:
    it.leader.replies = [LOST, LOST]
    publishing = await it.publish_in_turn(b"a", b"b")
    await wait_for(lambda: len(it.leader.asked) == 2)
    it.partition.lead(it.led_here)
    assert [(await each).base_offset for each in publishing] == [0, 1]
    assert [stored.records for stored in await read_some(it.partition, 0)] == [[(0, b"a")], [(1, b"b")]]
    assert (await it.publish(b"c")).base_offset == 2


@world
async def test_a_leader_that_is_deposed_before_a_batch_is_safe_does_not_know(it: World) -> None:
    state = replace(it.led_here, replicas=(1, 2), isr=(1, 2))
    it.partition.lead(state)
    publishing = asyncio.create_task(it.refused())
    await wait_for(lambda: it.partition.opened().end_offset == 1)
    it.partition.follow(replace(state, leader=2))
    assert (await publishing).code is Code.OUTCOME_UNKNOWN
    assert it.leader.asked == [], "it had no id, and would be there twice"


@world
async def test_a_deleted_topic_is_no_reason_to_go_on(it: World) -> None:
    it.leader.replies = [refusal(Code.NOT_LEADER)] * 100
    publishing = asyncio.create_task(it.refused())
    await wait_for(lambda: it.leader.asked)
    it.broker.engine.topics.remove(it.broker.engine.topics.get("t"))  # type: ignore[arg-type]
    assert (await publishing).code is Code.UNKNOWN_TOPIC_ID


@world
async def test_whether_they_may_is_asked_on_the_broker_that_leads(it: World) -> None:
    it.broker.engine.access.policy = rules = Only(ANN, Operation.WRITE)
    await it.publish(subject=BOB)
    assert rules.asked == []
    it.partition.lead(it.led_here)
    for subject, others in ((BOB, ()), (ANN, (BOB,))):
        with pytest.raises(NotAuthorised, match="User:bob may not write topic 't'"):
            await it.forwarding.publish(it.partition, it.batch(), LEADER, 5, subject, others=others)
    assert it.partition.end_offset == 0
    await it.forwarding.publish(it.partition, it.batch(), LEADER, 5, ANN)
    assert it.partition.end_offset == 1
    assert {(asked.kind, asked.name) for asked in rules.asked} == {(Kind.TOPIC, "t")}
