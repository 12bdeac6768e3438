"""Forward between two brokers: what the leader makes of it, who may ask, and a broker that does not know it."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.doors.kafka import Door, batch_of, with_door
from tests.doors.trusted import trusted_session
from tests.rules import Only
from tests.simulated_broker import wait_for

from penstock.engine.access import ANONYMOUS, BROKERS, Operation, Subject
from penstock.engine.forwarding import Forwarded, Outcome
from penstock.engine.partition import Partition
from penstock.engine.publishing import ALL, LEADER, Durability
from penstock.errors import Code, PenstockError
from penstock.protocols.internal import forwarding, forwarding_codec
from penstock.protocols.internal.forwarding import ForwardedCalls
from penstock.protocols.internal.peer import Peer
from penstock.protocols.kafka.session import APIS
from penstock.records.stamp import stamp_producer


class Follower:
    """Broker 2, as it has the door's broker publish for it."""

    def __init__(self, door: Door, partition: Partition) -> None:
        self.door = door
        self.partition = partition
        self.peer: Peer | None = self.connect()
        self._calls = ForwardedCalls(lambda _: self.peer)
        self.left = 0

    def connect(self) -> Peer:
        return Peer(self.door.network.of("b2"), *self.door.address, self.door.clock)

    def use(self, other: "Follower") -> None:
        """The same connection."""
        self.peer, self._calls = other.peer, other._calls

    def leaves(self) -> None:
        self.left += 1

    async def ask(self, *values: bytes, sequence: int = 0, producer_id: int = 77, **fields: Any) -> Outcome:
        batch = stamp_producer(batch_of(*values, timestamp_ms=self.door.clock.now_ms()), producer_id, sequence)
        forwarded = Forwarded(self.partition.topic_id, 0, ALL, 2.0, (ANONYMOUS,), batch)
        return await self._calls.publish(1, forwarded._replace(**fields), self.leaves)

    async def refused(self, **fields: Any) -> PenstockError:
        """By a broker that was not sent anything."""
        left = self.left
        with pytest.raises(PenstockError) as refused:
            await self.ask(b"x", **fields)
        assert self.left == left
        return refused.value


def with_follower(body: Callable[[Follower], Awaitable[None]], *, trusted: bool = True) -> None:
    async def run(door: Door) -> None:
        if trusted:
            door.connections.make_session = partial(trusted_session, door.context, door.engine, door.clock)
        await body(Follower(door, (await door.topic()).partitions[0]))

    with_door(run)


def test_it_is_not_advertised() -> None:
    assert forwarding.API.key not in {api.key for api in APIS}


def test_a_batch_is_there_once_however_often_it_comes() -> None:
    async def body(it: Follower) -> None:
        first = await it.ask(b"a", b"b")
        assert first.error is None and first.appended is not None
        assert first.appended[:2] == (0, 1)
        assert it.partition.high_watermark == 2, "it was told before it was safe"
        assert await it.ask(b"a", b"b") == first
        assert (await it.ask(b"c", sequence=2)).appended == (2, 2, -1)
        assert it.partition.end_offset == 3
        assert it.left == 3

    with_follower(body)


def test_what_one_partition_waits_for_holds_up_no_other() -> None:
    async def run(door: Door) -> None:
        door.connections.make_session = partial(trusted_session, door.context, door.engine, door.clock)
        slow, quick = (await door.topic()).partitions[0], (await door.engine.create_topic("u", 1)).partitions[0]
        slow.lead(replace(slow.state, replicas=(1, 2), isr=(1, 2)))  # broker 2 never fetches
        many = door.connections.limits.in_flight + 6
        waiting, free = Follower(door, slow), Follower(door, quick)
        free.use(waiting)
        asked = [asyncio.create_task(waiting.ask(b"x", producer_id=at, timeout_s=20.0)) for at in range(many)]
        await wait_for(lambda: slow.end_offset == many)
        began = asyncio.get_running_loop().time()
        outcome = await free.ask(b"y", timeout_s=5.0)
        assert (outcome.error, outcome.is_open) == (None, False)
        assert asyncio.get_running_loop().time() - began < 1.0
        assert not any(each.done() for each in asked)
        late = await asyncio.gather(*asked)
        assert {each.error.code for each in late if each.error is not None} == {Code.TIMED_OUT}

    with_door(run)


def test_a_broker_that_sends_more_than_is_kept_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "MOST_WAITING_BYTES", 1000)

    async def body(it: Follower) -> None:
        it.partition.lead(replace(it.partition.state, replicas=(1, 2), isr=(1, 2)))
        first = asyncio.create_task(it.ask(b"." * 800))
        await wait_for(lambda: it.partition.end_offset == 1)
        refused = await it.ask(b"." * 800, sequence=1)
        assert refused.error is not None and refused.error.code is Code.NOT_AVAILABLE
        assert not refused.is_open and it.partition.end_offset == 1
        await first
        again = await it.ask(b"." * 800, sequence=1)
        assert again.error is not None and again.error.code is Code.TIMED_OUT, "what is answered takes no room"

    with_follower(body)


def test_errors_arrive_as_they_are_and_say_whether_something_is_there() -> None:
    async def body(it: Follower) -> None:
        async def told(**fields: Any) -> tuple[Code, bool]:
            outcome = await it.ask(b"x", **fields)
            assert outcome.error is not None and str(outcome.error)
            return outcome.error.code, outcome.is_open

        assert await told(partition_index=9) == (Code.UNKNOWN_TOPIC, False)
        assert await told(durability=Durability("new", waits=True)) == (Code.INVALID_DURABILITY, False)
        assert await told(batch=bytes(70)) == (Code.INVALID_BATCH, False)
        assert await told(durability=Durability("2", waits=True, copies=2)) == (Code.NOT_ENOUGH_REPLICAS, False)
        state = replace(it.partition.state, replicas=(1, 2), isr=(1, 2))
        it.partition.lead(state)
        assert await told() == (Code.TIMED_OUT, True)
        asking = asyncio.create_task(told(timeout_s=30.0))
        await wait_for(lambda: it.left == 6)
        await asyncio.sleep(1)
        it.partition.follow(replace(state, leader=2))
        assert await asking == (Code.NOT_LEADER, True)
        assert await told(durability=LEADER) == (Code.NOT_LEADER, False)

    with_follower(body)


def test_the_leader_decides_who_may_and_says_so() -> None:
    async def body(it: Follower) -> None:
        ann, bob = Subject("User:ann", "10.0.0.1", "toy"), Subject("User:bob")
        it.door.engine.access.policy = Only(ann, Operation.WRITE)
        outcome = await it.ask(b"x", subjects=(ann, bob))
        assert outcome.error is not None and outcome.error.help
        assert (outcome.error.code, str(outcome.error)) == (
            Code.NOT_AUTHORISED,
            "User:bob may not write topic 't'",
        )
        assert it.partition.end_offset == 0
        assert (await it.ask(b"x", subjects=(ann,))).error is None
        assert (await it.ask(b"y", sequence=1, subjects=(BROKERS,))).error is None
        impostor = await it.ask(b"z", sequence=2, subjects=(Subject(*BROKERS),))
        assert impostor.error is not None and impostor.error.code is Code.NOT_AUTHORISED

    with_follower(body)


def test_a_broker_that_does_not_know_it_is_named_soon_and_is_sent_no_batch() -> None:
    async def body(it: Follower) -> None:  # it takes this one for a client, and closes the connection
        began = it.door.clock.monotonic()
        codes = [(await it.refused()).code for _ in range(3)]
        assert codes == [Code.NOT_AVAILABLE, Code.NOT_AVAILABLE, Code.UNSUPPORTED_VERSION]
        assert it.door.clock.monotonic() - began < 1
        error = await it.refused()
        assert error.code is Code.UNSUPPORTED_VERSION
        assert "broker 1 at broker:9092 takes no batches" in str(error)
        assert it.door.stats.protocol_errors == 4
        it.door.connections.make_session = partial(trusted_session, it.door.context, it.door.engine, it.door.clock)
        it.peer = it.connect()  # it was started anew, as this release
        assert (await it.ask(b"x")).error is None

    with_follower(body, trusted=False)


@pytest.mark.parametrize("told", [b"\x00\x00", b"\x00", b"\x01\x01\x01", b"\x00\x01"])
def test_a_broker_that_answers_something_else_is_named(told: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding_codec, "encode_versions", lambda: told)

    async def body(it: Follower) -> None:
        error = await it.refused()
        assert error.code is Code.UNSUPPORTED_VERSION and "broker 1 at" in str(error)

    with_follower(body)


def test_a_broker_that_is_not_there() -> None:
    async def body(it: Follower) -> None:
        it.door.network.cut("broker")
        for _ in range(5):
            assert (await it.refused()).code is Code.NOT_AVAILABLE, "nobody listens: that is no other release"
        it.peer = None
        assert (await it.refused()).code is Code.NOT_AVAILABLE

    with_follower(body)


def test_an_answer_that_is_lost_or_spoiled_leaves_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(it: Follower) -> None:
        assert (await it.ask(b"a")).error is None
        with monkeypatch.context() as spoiled:
            spoiled.setattr(forwarding_codec, "encode_answer", lambda _: b"\x02")
            assert (await it.ask(b"b", sequence=1)).is_open
        it.partition.lead(replace(it.partition.state, replicas=(1, 2), isr=(1, 2)))
        asking = asyncio.create_task(it.ask(b"c", sequence=2, timeout_s=30.0))
        await wait_for(lambda: it.partition.end_offset == 3)
        it.door.network.cut("broker")
        assert (await asking).is_open
        assert not (await it.ask(b"d", sequence=3)).is_open, "there was no connection to send it by"

    with_follower(body)


def test_requests_that_make_no_sense_close_the_connection() -> None:
    async def body(it: Follower) -> None:
        for number, body_bytes in enumerate((b"", b"\x02", b"\x09" * 200), 1):
            client = await it.door.client()
            client.send_frame(struct.pack(">hhih", forwarding_codec.KEY, 0, 1, -1) + body_bytes)
            await client.stream.closed()
            assert it.door.stats.protocol_errors == number

    with_follower(body)
