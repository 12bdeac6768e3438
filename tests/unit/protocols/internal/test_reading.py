"""Read between two brokers: what a cursor, a tail and a feed get of another broker, how long it waits, who may."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from tests.rules import Only
from tests.simulated_broker import wait_for
from tests.unit.protocols.internal.two_brokers import Subscriber, TwoBrokers, with_two_brokers

from penstock.engine.access import BROKERS, Operation, Subject
from penstock.engine.elsewhere import LONGEST_WAIT_S, Ends, ReceivedBatches, WantedRecords
from penstock.engine.feed import NEW, Feed
from penstock.engine.reading import Cursor, Message, find_ends
from penstock.errors import Code, PenstockError
from penstock.net.connection import Part
from penstock.protocols.internal import late_answers, reading, reading_codec
from penstock.protocols.internal.late_answers import LateAnswers
from penstock.protocols.kafka.session import APIS
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.control import Marker

ANN, BOB = Subject("User:ann", "10.0.0.1", "toy"), Subject("User:bob")


def values_of(messages: list[Message]) -> list[bytes | None]:
    return [each.value for each in messages]


async def refused(cursor: Cursor, wait_s: float = 0) -> PenstockError:
    with pytest.raises(PenstockError) as raised:
        await cursor.records(1000, wait_s)
    return raised.value


def test_it_is_not_advertised() -> None:
    assert reading.API.key not in {api.key for api in APIS}


def test_records_come_as_they_would_where_they_are_led() -> None:
    async def body(it: TwoBrokers) -> None:
        await it.write(b"a", b"b")
        for codec in Codec:
            batch = build_batch([(b"k", b"v" * 200, (("h", b"1"),), it.door.clock.now_ms())] * 3, codec=codec)
            it.led.append(memoryview(bytearray(batch)))
        await it.write(b"x" * 300_000)
        here, there = Cursor(it.led, 1), Cursor(it.known, 1)
        assert await there.records(100, 0, most=2) == await here.records(100, 0, most=2)
        while expected := await here.records(700, 0):
            assert await there.records(700, 0) == expected
            assert there.offset == here.offset
        assert await there.records(700, 0) == []
        end = it.led.high_watermark
        assert there.ends == Ends(it.led.leader_epoch, 0, end, end)
        found = await Cursor(it.known, 0).next(1, 0)
        assert found.data is not None and isinstance(found.data.file, ReceivedBatches)
        assert found.data.file.content == found.data.file.read_at(found.data.size, 0)
        assert found.data.size == len(build_batch([(None, b"a", (), 0), (None, b"b", (), 0)]))

    with_two_brokers(body)


def test_what_is_not_decided_or_was_aborted_is_not_seen() -> None:
    async def body(it: TwoBrokers) -> None:
        async def in_transaction(value: bytes, sequence: int) -> None:
            now_ms = it.door.clock.now_ms()
            fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
            batch = build_batch([(None, value, (), now_ms)], base_sequence=sequence, **fields)
            it.led.append(memoryview(bytearray(batch)))

        await in_transaction(b"gone", 0)
        it.led.append_marker(7, 0, Marker.ABORT, 0)
        await it.write(b"plain")
        await in_transaction(b"stays", 1)
        await wait_for(lambda: it.led.high_watermark == 4)
        committed, all_of_it = Cursor(it.known, 0), Cursor(it.known, 0, committed=False)
        assert values_of(await committed.records(1 << 20, 1)) == [b"plain"]
        assert await committed.records(1 << 20, 1) == []
        assert committed.ends is not None and (committed.ends.stable_offset, committed.ends.high_watermark) == (3, 4)
        assert values_of(await all_of_it.records(1 << 20, 1)) == [b"gone", b"plain", b"stays"]
        it.led.append_marker(7, 0, Marker.COMMIT, 0)
        assert values_of(await committed.records(1 << 20, 10)) == [b"stays"]

    with_two_brokers(body)


def test_who_finds_nothing_waits_at_the_leader_until_there_is_something_or_the_time_is_up() -> None:
    async def body(it: TwoBrokers) -> None:
        cursor, loop = Cursor(it.known, 0), asyncio.get_running_loop()
        began = loop.time()
        assert await cursor.records(1000, 5) == []
        assert loop.time() - began == pytest.approx(5, abs=0.1)
        waiting = asyncio.ensure_future(cursor.records(1000, 1000))
        await asyncio.sleep(3 * LONGEST_WAIT_S)
        assert not waiting.done()
        began = loop.time()
        await it.write(b"x")
        assert values_of(await waiting) == [b"x"]
        assert loop.time() - began < 0.1
        assert not it.led.waiters._readers and not it.known.waiters._readers

    with_two_brokers(body)


def test_who_waits_keeps_nobody_else_waiting() -> None:
    async def body(it: TwoBrokers) -> None:
        await it.write(b"a")
        waiting = [asyncio.ensure_future(Cursor(it.known, 1).records(1000, 8)) for _ in range(200)]
        await wait_for(lambda: len(it.led.waiters._readers) == 200)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert values_of(await Cursor(it.known, 0).records(1000, 8)) == [b"a"]
        assert (await find_ends(it.known)).high_watermark == 1
        assert loop.time() - began < 1
        await it.write(b"b")
        assert [values_of(each) for each in await asyncio.gather(*waiting)] == [[b"b"]] * 200

    with_two_brokers(body)


def test_a_question_ends_with_its_connection_or_its_time() -> None:
    async def body(it: TwoBrokers) -> None:
        gone = asyncio.ensure_future(Cursor(it.known, 0).records(1000, 1000))
        await wait_for(lambda: it.led.waiters._readers)
        asking = [task for task in asyncio.all_tasks() if "Elsewhere.read" in repr(task)]
        gone.cancel()
        await asyncio.sleep(0.1)
        assert len(asking) == 1 and asking[0].done()
        await asyncio.sleep(LONGEST_WAIT_S + 1)
        assert not it.led.waiters._readers, "nobody waits, and its time is up"
        lost = asyncio.ensure_future(Cursor(it.known, 0).records(1000, 1000))
        await wait_for(lambda: it.led.waiters._readers)
        assert it.peer is not None
        it.peer.close()
        it.peer = None
        await wait_for(lambda: not it.led.waiters._readers, 1)
        lost.cancel()
        assert it.door.stats.protocol_errors == 0

    with_two_brokers(body)


def test_above_a_limit_the_oldest_question_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_WAITING", 3)

    async def body(it: TwoBrokers) -> None:
        waiting = [asyncio.ensure_future(Cursor(it.known, 0).records(1000, 20)) for _ in range(5)]
        for _ in range(50):
            await asyncio.sleep(0.1)
            assert len(it.led.waiters._readers) <= 3
        await it.write(b"a")
        assert [values_of(each) for each in await asyncio.gather(*waiting)] == [[b"a"]] * 5

    with_two_brokers(body)


def test_errors_are_those_of_the_leader_and_come_at_once() -> None:
    async def body(it: TwoBrokers) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for offset in (-1, 1):
            assert (await refused(Cursor(it.known, offset), 60)).code is Code.OFFSET_OUT_OF_RANGE
        it.door.engine.access.policy = Only(ANN, Operation.READ)
        error = await refused(Cursor(it.known, 0, subject=BOB), 60)
        assert (error.code, str(error)) == (Code.NOT_AUTHORISED, "User:bob may not read topic 't'")
        assert (await refused(Cursor(it.known, 0), 60)).code is Code.NOT_AUTHORISED
        with pytest.raises(PenstockError, match="may not describe"):
            await find_ends(it.known, subject=BOB)
        for subject in (ANN, BROKERS):
            assert await Cursor(it.known, 0, subject=subject).records(1000, 0) == []
        assert loop.time() - began < 1
        it.engine.topics.remove(it.topic)
        await it.door.engine.delete_topic(it.door.engine.topics.get("t"))  # type: ignore[arg-type]
        assert (await refused(Cursor(it.known, 0, subject=ANN), 60)).code is Code.UNKNOWN_TOPIC

    with_two_brokers(body)


def test_rules_that_change_while_a_question_waits_hold_for_its_answer() -> None:
    async def body(it: TwoBrokers) -> None:
        waiting = asyncio.ensure_future(refused(Cursor(it.known, 0, subject=BOB), 60))
        await wait_for(lambda: it.led.waiters._readers)
        it.door.engine.access.policy = Only(ANN, Operation.READ)
        await it.write(b"secret")
        assert (await waiting).code is Code.NOT_AUTHORISED

    with_two_brokers(body)


def test_a_leader_that_is_not_reached_is_looked_for_as_long_as_patience_lasts() -> None:
    async def body(it: TwoBrokers) -> None:
        await it.write(b"a")
        loop, peer = asyncio.get_running_loop(), it.peer
        it.peer = None
        for wait_s in (0, 20):
            began = loop.time()
            error = await refused(Cursor(it.known, 0, patience_s=7), wait_s)
            assert error.code is Code.NOT_AVAILABLE
            assert loop.time() - began == pytest.approx(7, abs=0.6)
        with pytest.raises(PenstockError):
            await find_ends(it.known, patience_s=1)
        found = asyncio.ensure_future(Cursor(it.known, 0, patience_s=7).records(1000, 0))
        await asyncio.sleep(5)
        it.peer = peer
        assert values_of(await found) == [b"a"]

    with_two_brokers(body)


def test_nobody_leads_for_a_while_and_then_another_broker_does() -> None:
    async def body(it: TwoBrokers) -> None:
        cursor = Cursor(it.known, 0)
        waiting = asyncio.ensure_future(cursor.records(1000, 1000))
        await wait_for(lambda: it.led.waiters._readers)
        state = it.led.state
        it.led.follow(replace(state, leader=-1, leader_epoch=state.leader_epoch + 1))
        await asyncio.sleep(0.5)
        it.learn(leader=-1, leader_epoch=state.leader_epoch + 1)
        await asyncio.sleep(5)
        await it.lead(state.leader_epoch + 2)
        it.learn(leader=1, leader_epoch=state.leader_epoch + 2)
        await it.write(b"a")
        assert values_of(await waiting) == [b"a"]
        assert cursor.ends is not None and cursor.ends.leader_epoch == state.leader_epoch + 2

    with_two_brokers(body)


def test_a_broker_that_was_replaced_without_knowing_it_is_not_believed() -> None:
    async def body(it: TwoBrokers) -> None:
        await it.write(b"a")
        cursor, epoch = Cursor(it.known, 3, patience_s=5), it.led.leader_epoch
        it.learn(leader_epoch=epoch + 2)
        error = await refused(cursor)
        assert error.code is Code.NOT_LEADER, "not OFFSET_OUT_OF_RANGE: its successor has more"
        cursor.ends = Ends(epoch + 5, 0, 4, 4)
        await it.lead(epoch + 2)
        assert (await refused(cursor)).code is Code.NOT_LEADER, "it was read in a later epoch than is known here"
        await it.lead(epoch + 5)
        assert (await refused(cursor)).code is Code.OFFSET_OUT_OF_RANGE

    with_two_brokers(body)


def test_a_leader_that_is_cut_off_is_not_waited_at() -> None:
    async def body(it: TwoBrokers) -> None:
        waiting = asyncio.ensure_future(refused(Cursor(it.known, 0, patience_s=3), 60))
        await wait_for(lambda: it.led.waiters._readers)
        it.led.is_cut_off = True
        it.led.waiters.wake_readers()
        assert (await waiting).code is Code.NOT_LEADER

    with_two_brokers(body)


def test_who_hears_of_another_leader_does_not_wait_for_the_answer_of_the_one_before() -> None:
    async def body(it: TwoBrokers) -> None:
        cursor, asked = Cursor(it.known, 0), []
        give = it.door.engine.elsewhere.give

        async def never(wanted: WantedRecords) -> Any:
            asked.append(wanted)
            return await (asyncio.sleep(1000) if len(asked) == 1 else give(wanted))

        it.door.engine.elsewhere.give = never  # type: ignore[method-assign]
        await it.write(b"a")
        waiting = asyncio.ensure_future(cursor.records(1000, 9))
        await wait_for(lambda: asked)
        it.learn(leader_epoch=it.known.leader_epoch)  # others are in sync: no reason to ask again
        await asyncio.sleep(0.5)
        assert len(asked) == 1
        await it.lead(it.led.leader_epoch + 1)
        it.learn(leader_epoch=it.led.leader_epoch)
        await asyncio.sleep(0.5)
        assert waiting.done() and values_of(waiting.result()) == [b"a"]

    with_two_brokers(body)


def test_a_broker_that_does_not_know_it_is_named_soon() -> None:
    async def body(it: TwoBrokers) -> None:  # it takes this one for a client, and closes the connection
        error = await refused(Cursor(it.known, 0, patience_s=5))
        assert error.code is Code.UNSUPPORTED_VERSION
        assert "broker 1 at broker:9092 gives other brokers nothing to read" in str(error)

    with_two_brokers(body, trusted=False)


def test_a_broker_that_is_slow_is_not_taken_for_one_that_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: LateAnswers, correlation_id: int, answer: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, list[Part]]:
        answer.close()
        return late_answers._nothing()

    monkeypatch.setattr(LateAnswers, "begin", never)

    async def body(it: TwoBrokers) -> None:
        error = await refused(Cursor(it.known, 0, patience_s=20))
        assert error.code is Code.NOT_AVAILABLE

    with_two_brokers(body)


def test_places_that_no_partition_has() -> None:
    async def body(it: TwoBrokers) -> None:
        assert (await refused(Cursor(it.known, 1 << 63))).code is Code.OFFSET_OUT_OF_RANGE
        with pytest.raises(PenstockError) as raised:
            await find_ends(it.known, 1 << 63)
        assert raised.value.code is Code.INVALID_TIMESTAMP

    with_two_brokers(body)


def test_damage_on_the_way_is_seen_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(it: TwoBrokers) -> None:
        await it.write(b"whole")
        encode = reading_codec.encode_taken
        spoiled: list[bytes] = []

        def encode_badly(taken: Any) -> Any:
            parts, size = encode(taken)
            if not spoiled:
                file, position, length = parts[-1]
                assert not isinstance(file, int)
                spoiled.append(file.read_at(length, position).replace(b"whole", b"wh0le"))
                parts[-1] = spoiled[0]
            return parts, size

        monkeypatch.setattr(reading_codec, "encode_taken", encode_badly)
        assert values_of(await Cursor(it.known, 0).records(1000, 0)) == [b"whole"]
        assert spoiled

    with_two_brokers(body)


def test_ends_and_the_first_record_of_a_time() -> None:
    async def body(it: TwoBrokers) -> None:
        times = []
        for value in (b"a", b"b", b"c"):
            times.append(it.door.clock.now_ms())
            await it.write(value)
            await asyncio.sleep(1)
        await it.door.engine.delete_records(it.led, 1)
        for partition in (it.known, it.led):
            assert (await find_ends(partition))[1:] == (1, 3, 3, None)
            at_times = [(await find_ends(partition, timestamp)).at_time for timestamp in (*times, times[-1] + 1)]
            assert [each.offset if each is not None else None for each in at_times] == [1, 1, 2, None]

    with_two_brokers(body)


def test_a_tail_asks_once_for_all_who_share_it() -> None:
    async def body(it: TwoBrokers) -> None:
        await it.write(b"before")
        it.door.engine.access.policy = Only(ANN, Operation.WRITE)  # who may subscribe is decided where they do
        tail, many = it.engine.tails.of(it.known), [Subscriber() for _ in range(50)]
        with pytest.raises(PenstockError, match="broker 1 leads it"):
            tail.join(many[0].take, many[0].failed)
        assert {tail.join(each.take, each.failed, at=1) for each in many} == {1}
        await wait_for(lambda: len(it.led.waiters._readers) == 1)
        await it.write(b"a", b"b")
        await it.write(b"c")
        await wait_for(lambda: all(len(each.taken) == 3 for each in many))
        assert all(each.values == [b"a", b"b", b"c"] for each in many)
        await asyncio.sleep(1)
        assert len(it.led.waiters._readers) == 1
        for each in many:
            tail.leave(each.take)
        assert not any(each.errors for each in many)

    with_two_brokers(body)


def test_subscribers_are_given_up_when_nothing_can_be_read_for_long_or_the_topic_is_gone() -> None:
    async def body(it: TwoBrokers) -> None:
        tail, one = it.engine.tails.of(it.known), Subscriber()
        tail.join(one.take, one.failed, at=0)
        await wait_for(lambda: it.led.waiters._readers)
        peer, it.peer = it.peer, None
        assert peer is not None
        peer.close()
        await asyncio.sleep(100)
        assert not one.errors
        it.peer = it.connect()
        await it.write(b"a")
        await wait_for(lambda: one.values == [b"a"])
        it.peer.close()
        it.peer = None
        await wait_for(lambda: one.errors, 130)
        assert one.errors[0].code is Code.NOT_AVAILABLE
        two = Subscriber()
        it.peer = it.connect()
        tail.join(two.take, two.failed, at=1)
        it.engine.topics.remove(it.topic)
        it.led.follow(replace(it.led.state, leader=3))
        await wait_for(lambda: two.errors)
        assert two.errors[0].code is Code.UNKNOWN_TOPIC

    with_two_brokers(body)


def test_a_feed_begins_at_the_end_that_only_the_leader_knows() -> None:
    async def body(it: TwoBrokers) -> None:
        await it.write(b"before")
        one = Subscriber()
        feed = Feed(
            it.engine.tails,
            it.known,
            NEW,
            is_writable=lambda: True,
            take=one.taken.append,
            failed=one.failed,
        )
        assert await feed.place() == 1
        await it.write(b"after")
        feed.go_on()
        await wait_for(lambda: len(it.engine.tails.of(it.known)) == 1)
        await it.write(b"later")
        await wait_for(lambda: one.values == [b"after", b"later"])
        feed.stop()
        assert not one.errors

    with_two_brokers(body)
