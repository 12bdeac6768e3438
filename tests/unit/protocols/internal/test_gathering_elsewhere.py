"""Single messages for a partition that another broker leads: batches, order, bounds, and what is told of each."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.rules import Only
from tests.simulated_broker import read_all, wait_for
from tests.unit.protocols.internal.two_brokers import TwoBrokers, with_two_brokers

from penstock.engine import forwarding, gathering
from penstock.engine.access import ANONYMOUS, Operation, Subject
from penstock.engine.forwarding import Forwarded, Outcome
from penstock.engine.gathering import Message
from penstock.engine.publishing import ALL, LEADER, Durability
from penstock.errors import Code, PenstockError

ANN, BOB = Subject("User:ann", "10.0.0.1", "toy"), Subject("User:bob")
Told = tuple[bytes, int, Code | None]


class Sender:
    """Puts messages on broker 2, and keeps what it is told in that order."""

    def __init__(self, it: TwoBrokers) -> None:
        self.it = it
        self.told: list[Told] = []

    def put(
        self,
        value: bytes,
        durability: Durability = ALL,
        *,
        key: bytes | None = b"k",
        timeout_s: float = 30.0,
        subject: Subject = ANONYMOUS,
    ) -> None:
        def told(offset: int, error: PenstockError | None) -> None:
            self.told.append((value, offset, error.code if error is not None else None))

        self.it.engine.gatherer.put(self.it.known, Message(key, value), durability, told, timeout_s, subject)

    async def until_told(self, count: int, limit_s: float = 10.0) -> None:
        await wait_for(lambda: len(self.told) >= count, limit_s)


def held_up(it: TwoBrokers) -> tuple[Callable[[], None], list[Forwarded]]:
    """Batches that arrive wait until the first of these is called; the second has all that left."""
    others, let_go, sent = it.engine.forwarding.other_brokers, asyncio.Event(), []
    publish = others.publish

    async def wait(broker_id: int, forwarded: Forwarded, leaves: Callable[[], None]) -> Outcome:
        sent.append(forwarded)
        leaves()
        await let_go.wait()
        return await publish(broker_id, forwarded, leaves)

    others.publish = wait  # type: ignore[method-assign]
    return let_go.set, sent


def test_a_turn_is_one_batch_and_while_it_is_under_way_the_next_one_gathers() -> None:
    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        let_go, sent = held_up(it)
        for number in range(100):
            sender.put(b"%03d" % number)
        await wait_for(lambda: sent)
        for number in range(100, 400):
            sender.put(b"%03d" % number)
            await asyncio.sleep(0.001)
        assert len(sent) == 1 and sender.told == []
        let_go()
        await sender.until_told(400)
        assert sender.told == [(b"%03d" % number, number, None) for number in range(400)]
        assert len(await read_all(it.led)) == 2
        assert it.engine.gatherer._lanes == {} and it.engine.gatherer._waiting_bytes == 0

    with_two_brokers(body)


def test_order_is_kept_whoever_leads() -> None:
    async def body(it: TwoBrokers) -> None:
        sender, log = Sender(it), await it.engine.create_topic("own")
        own = log.partitions[0]
        it.known, state = own, own.state
        it.led.follow(replace(it.led.state, leader=3))
        sender.put(b"here")
        await sender.until_told(1)
        own.follow(replace(state, leader=7))
        it.peer = it.connect()
        for number in range(10):
            sender.put(b"%d" % number)
            await asyncio.sleep(0.05)
        own.lead(state)
        sender.put(b"last")
        await sender.until_told(12)
        assert sender.told == [
            (b"here", 0, None),
            *((b"%d" % at, at + 1, None) for at in range(10)),
            (b"last", 11, None),
        ]
        records = [value for batch in await read_all(own) for _, value in batch.records]
        assert records == [b"here", *(b"%d" % at for at in range(10)), b"last"]

    with_two_brokers(body)


def test_order_is_kept_behind_what_was_being_opened_when_the_lead_was_lost() -> None:
    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        own = (await it.engine.create_topic("own", settings={"cleanup.policy": "compact"})).partitions[0]
        it.known, state = own, own.state
        sender.put(b"first")
        for _ in range(10):  # turns of the loop
            if not own.waiting_producers:
                await asyncio.sleep(0)
        assert own.waiting_producers
        own.follow(replace(state, leader=7))
        it.peer = it.publishing_peer = None
        sender.put(b"second")
        await wait_for(lambda: not own.waiting_producers)
        sender.put(b"third")
        await asyncio.sleep(1)
        own.lead(state)
        await sender.until_told(3)
        assert sender.told == [(b"first", 0, None), (b"second", 1, None), (b"third", 2, None)]

    with_two_brokers(body)


def test_a_message_as_large_as_its_topic_takes_goes_through_any_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_LANE_BYTES", 1000)
    monkeypatch.setattr(gathering, "MOST_WAITING_BYTES", 1500)
    monkeypatch.setattr(forwarding, "MOST_WAITING_BYTES", 1500)

    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        sender.put(bytes(5000))
        await sender.until_told(1)
        assert sender.told == [(bytes(5000), 0, None)]

    with_two_brokers(body)


def test_a_lead_that_is_lost_before_anything_was_appended_sends_it_on() -> None:
    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        own = (await it.engine.create_topic("own")).partitions[0]
        it.known = own
        own.is_cut_off = True
        sender.put(b"a")
        await asyncio.sleep(1)
        assert sender.told == []
        own.is_cut_off = False
        await sender.until_told(1)
        assert sender.told == [(b"a", 0, None)]

    with_two_brokers(body)


def test_a_lead_that_is_lost_behind_an_append_leaves_the_outcome_unknown() -> None:
    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        own = (await it.engine.create_topic("own")).partitions[0]
        it.known, state = own, replace(own.state, replicas=(1, 2), isr=(1, 2))
        own.lead(state)
        sender.put(b"a")
        await wait_for(lambda: own.opened().end_offset == 1)
        own.follow(replace(state, leader=2))
        await sender.until_told(1)
        assert sender.told == [(b"a", -1, Code.OUTCOME_UNKNOWN)]

    with_two_brokers(body)


def test_too_much_that_waits_is_refused_and_nothing_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_LANE_BYTES", 250_000)

    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        let_go, sent = held_up(it)
        sender.put(b"first")
        await wait_for(lambda: sent)
        for number in range(5):
            sender.put(b"%d" % number * 100_000)
            await asyncio.sleep(0.01)
        assert [told[1:] for told in sender.told] == [(-1, Code.NOT_AVAILABLE)] * 3
        let_go()
        await sender.until_told(6)
        sender.put(b"last")
        await sender.until_told(7)
        assert [told[1] for told in sender.told] == [-1, -1, -1, 0, 1, 2, 3]

    with_two_brokers(body)


def test_what_waits_for_all_partitions_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_WAITING_BYTES", 150_000)

    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        let_go, sent = held_up(it)
        sender.put(b"first")
        await wait_for(lambda: sent)
        for number in range(2):
            sender.put(b"%d" % number * 100_000)
            await asyncio.sleep(0.01)
        assert [told[1:] for told in sender.told] == [(-1, Code.NOT_AVAILABLE)]
        let_go()
        await sender.until_told(3)

    with_two_brokers(body)


def test_who_waits_too_long_is_told_in_time_and_was_not_sent() -> None:
    async def body(it: TwoBrokers) -> None:
        sender, loop = Sender(it), asyncio.get_running_loop()
        let_go, sent = held_up(it)
        sender.put(b"first", timeout_s=60)
        await wait_for(lambda: sent)
        began = loop.time()
        sender.put(b"short", timeout_s=2)
        sender.put(b"other", LEADER, timeout_s=60)
        await sender.until_told(1)
        assert sender.told == [(b"short", -1, Code.TIMED_OUT)]
        assert loop.time() - began == pytest.approx(2, abs=0.1)
        let_go()
        await sender.until_told(3)
        assert sender.told[1:] == [(b"first", 0, None), (b"other", 1, None)]

    with_two_brokers(body)


def test_what_nobody_answers_is_unknown() -> None:
    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        held_up(it)
        sender.put(b"a", timeout_s=2)
        await sender.until_told(1)
        assert sender.told == [(b"a", -1, Code.OUTCOME_UNKNOWN)]

    with_two_brokers(body)


def test_a_message_that_is_not_taken_harms_no_other() -> None:
    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        sender.put(b"good")
        sender.put(b"no key", key=None)
        sender.put(b"also good")
        await asyncio.sleep(0)
        sender.put(b"later")
        await sender.until_told(4)
        assert sender.told == [
            (b"good", 0, None),
            (b"no key", -1, Code.INVALID_BATCH),
            (b"also good", 1, None),
            (b"later", 2, None),
        ]

    with_two_brokers(body, cleanup_policy="compact")


def test_one_who_may_not_harms_nobody_who_may() -> None:
    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        it.door.engine.access.policy = Only(ANN, Operation.WRITE)
        for number in range(3):
            sender.put(b"ann %d" % number, subject=ANN)
            sender.put(b"bob %d" % number, subject=BOB)
        await sender.until_told(6)
        expected: list[Told] = []
        for number in range(3):
            expected += [(b"ann %d" % number, number, None), (b"bob %d" % number, -1, Code.NOT_AUTHORISED)]
        assert sender.told == expected
        it.door.engine.access.policy = type(it.engine.access)().policy
        for number in range(10):
            sender.put(b"x", subject=ANN if number % 2 else BOB)
        batches = len(await read_all(it.led))
        await sender.until_told(16)
        assert len(await read_all(it.led)) == batches + 1, "all may: that is one batch of two subjects"

    with_two_brokers(body)


def test_a_broker_that_stops_tells_what_it_knows() -> None:
    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)
        _, sent = held_up(it)
        sender.put(b"sent")
        await wait_for(lambda: sent)
        sender.put(b"waits")
        await asyncio.sleep(0.1)
        await it.engine._tasks.cancel_all()
        assert sender.told == [(b"sent", -1, Code.OUTCOME_UNKNOWN), (b"waits", -1, Code.NOT_AVAILABLE)]

    with_two_brokers(body)


def test_a_publisher_that_cannot_be_told_harms_no_other() -> None:
    async def body(it: TwoBrokers) -> None:
        sender = Sender(it)

        def fail(offset: int, error: Any) -> None:
            raise RuntimeError(f"cannot be told of {offset}")

        sender.put(b"a")
        it.engine.gatherer.put(it.known, Message(None, b"b"), ALL, fail)
        sender.put(b"c")
        await sender.until_told(2)
        assert sender.told == [(b"a", 0, None), (b"c", 2, None)]

    with_two_brokers(body)
