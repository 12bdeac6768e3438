"""How queues stand, for a scrape: by name where somebody made them, and only so many of them."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.simulated_broker import Broker, batch_of, produce, running, virtual
from tests.unit.engine.queues.test_queues import ACK, NACK, Reader, begun, send
from tests.unit.engine.test_engine import Machine

from penstock.engine.queues.headers import DELAY_MS, PRIORITY, TENANT
from penstock.engine.queues.sorting.indexer import Indexer
from penstock.engine.topics import Topic
from penstock.observe.metrics import Exposition
from penstock.observe.stats import Stats
from penstock.records.build import NewRecord, build_batch
from penstock.server import queue_survey
from penstock.server.queue_survey import QueueSurvey


def counts(taken: Mapping[str, Any], topic: str, group: str) -> dict[str, float]:
    found = {state: count for (*names, state), count in taken["queue_messages"].items() if names == [topic, group]}
    return {state: count for state, count in found.items() if count}


@virtual
async def test_messages_by_state_and_the_age_of_the_oldest() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        survey = QueueSurvey(broker.engine)
        reader = await begun(broker, visibility="1h")
        assert (await survey.take())["queue_oldest_s"] == {("q", "q"): 0}
        await send(reader, b"a", b"b")
        assert counts(await survey.take(), "q", "q") == {"ready": 2}, "nobody has come for it yet"
        await asyncio.sleep(60)
        await send(reader, b"c", b"d")
        a, b, c = await reader.receive(3)
        taken = await survey.take()
        assert counts(taken, "q", "q") == {"ready": 1, "leased": 3}
        assert 60 <= taken["queue_oldest_s"]["q", "q"] < 61  # type: ignore[index]
        await reader.settle(ACK, a, b)
        await reader.settle(NACK._replace(delay_ms=100_000), c)
        await asyncio.sleep(5)
        taken = await survey.take()
        assert counts(taken, "q", "q") == {"ready": 1, "delayed": 1}
        assert 5 <= taken["queue_oldest_s"]["q", "q"] < 6  # type: ignore[index]
        await asyncio.sleep(100)
        await reader.settle(ACK, *await reader.receive())
        taken = await survey.take()
        assert (counts(taken, "q", "q"), taken["queue_oldest_s"]) == ({}, {("q", "q"): 0})


@virtual
async def test_groups_that_nobody_made_and_queues_beyond_the_most_have_no_names() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await begun(broker)
        await send(reader, b"a", b"b")
        await broker.engine.queues.open(reader.partition, "shared", 0)
        await Reader(broker, group="shared").receive(1)
        survey = QueueSurvey(broker.engine)
        taken = await survey.take()
        assert counts(taken, "q", "q") == {"ready": 2}
        assert counts(taken, "q", "shared") == {}
        assert counts(taken, "", "") == {"ready": 1, "leased": 1}
        made: dict[str, dict[str, str]] = {f"g{number:04}": {} for number in range(queue_survey.MOST_NAMED + 20)}
        topic = broker.engine.topics.get("q")
        assert topic is not None
        await broker.engine.alter_queues(topic, lambda queues: {**queues, **made})
        taken = await survey.take()
        named = {names[:2] for names in taken["queue_messages"]}  # type: ignore[union-attr]
        assert len(named) == queue_survey.MOST_NAMED + 1
        assert ("q", "g0000") in named and ("q", "q") not in named
        assert counts(taken, "", "") == {"ready": 1 + 2 * 21, "leased": 1}
        body, _ = Exposition(Stats(), lambda: taken).render()
        assert b'penstock_queue_messages{group="",state="leased",topic=""} 1.0\n' in body


@virtual
async def test_so_many_are_read_and_the_others_have_their_turn() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue_survey, "MOST_READ", 1)
            for name in ("a", "b", "c"):
                topic = await broker.engine.create_topic(name, 1)
                await broker.engine.alter_queues(topic, lambda queues: {"q": {}})
                await produce(broker.partition(name), batch_of([b"x"] * 9, broker.clock))
            await asyncio.sleep(10)
            survey = QueueSurvey(broker.engine)
            for known in (1, 2, 3, 3):
                ages = (await survey.take())["queue_oldest_s"]
                assert sum(age >= 10 for age in ages.values()) == known  # type: ignore[union-attr]
                for name in ("a", "b", "c"):  # the oldest is another one each time
                    await broker.engine.queues.purge(broker.partition(name), "q", known)


def of_queue(taken: Mapping[str, Any], name: str) -> float:
    found: float = taken[name]["q", "q"]
    return found


async def made(broker: Broker) -> Reader:
    """As the doors make a queue."""
    await broker.engine.queues.attach(await broker.engine.create_topic("q", 1))
    await broker.engine.alter_queues(topic_of(broker), lambda queues: {"q": {}})
    return Reader(broker)


def topic_of(broker: Broker) -> Topic:
    topic = broker.engine.topics.get("q")
    assert topic is not None
    return topic


async def publish(broker: Broker, *said: Mapping[str, str]) -> None:
    now = broker.clock.now_ms()
    records = [NewRecord(None, b"x", tuple((name, text.encode()) for name, text in each.items()), now) for each in said]
    await produce(broker.partition("q"), bytearray(build_batch(records)))


@virtual
async def test_lanes_and_what_is_not_due_yet() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await made(broker)
        survey = QueueSurvey(broker.engine)
        await send(reader, b"a")
        assert (await survey.take())["queue_lanes"] == {}, "all are alike"
        await publish(broker, {PRIORITY: "9"}, {PRIORITY: "9", TENANT: "t"}, {DELAY_MS: "60000"})
        await asyncio.sleep(1)
        taken = await survey.take()
        lanes = {key[2:]: count for key, count in taken["queue_lanes"].items() if count}  # type: ignore[union-attr,index]
        assert lanes == {("critical", "ready"): 2, ("normal", "ready"): 1}
        assert counts(taken, "q", "q") == {"ready": 3, "delayed": 1}
        figures = [of_queue(taken, name) for name in ("queue_not_due", "queue_tenants", "queue_index_lag")]
        assert figures == [1, 2, 0]
        await reader.receive(2)
        taken = await survey.take()
        lanes = {key[2:]: count for key, count in taken["queue_lanes"].items() if count}  # type: ignore[union-attr,index]
        assert lanes == {("critical", "leased"): 2, ("normal", "ready"): 1}
        body, _ = Exposition(Stats(), lambda: taken).render()
        assert b'penstock_queue_lane_messages{group="q",lane="critical",state="leased",topic="q"} 2.0\n' in body
        assert b'penstock_queue_index_lag{group="q",topic="q"} 0.0\n' in body


@virtual
async def test_what_came_and_went_is_counted_once() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await made(broker)
        await publish(broker, {PRIORITY: "9"}, {}, {DELAY_MS: "60000", PRIORITY: "0"})
        await reader.receive(1)
        survey, stats = QueueSurvey(broker.engine), broker.stats
        for _ in range(3):
            await survey.take()
            arrived = {lane: count for (lane,), count in stats.queue_lane_arrived.items() if count}
            delivered = {lane: count for (lane,), count in stats.queue_lane_delivered.items() if count}
            assert (arrived, delivered) == ({"critical": 1, "normal": 1, "background": 1}, {"critical": 1})
        await broker.engine.alter_queues(topic_of(broker), lambda queues: {"q": {"lanes": "strict"}})
        await publish(broker, {PRIORITY: "9"})
        await reader.receive(2)
        await survey.take()
        await survey.take()
        assert stats.queue_lane_arrived["critical",] == 2, "what was looked at again had come before"
        assert stats.queue_lane_delivered["critical",] == 2


@virtual
async def test_records_that_nobody_has_looked_at_lag() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        reader = await made(broker)
        await send(reader, b"a", b"b")
        survey = QueueSurvey(broker.engine)
        await survey.take()
        await asyncio.sleep(1)
        assert of_queue(await survey.take(), "queue_index_lag") == 0

        async def hang(*_: object) -> None:
            await asyncio.sleep(1_000)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Indexer, "_look", hang)
            await send(reader, b"c", b"d", b"e")
            assert of_queue(await survey.take(), "queue_index_lag") == 3


@virtual
async def test_very_many_tenants_are_looked_at_bit_by_bit() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await made(broker)
        await publish(broker, *({TENANT: f"t{number}"} for number in range(3_000)))
        await asyncio.sleep(1)
        turns, following = 0, broker.engine.turns.next

        async def count() -> None:
            nonlocal turns
            turns += 1
            await following()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(broker.engine.turns, "next", count)
            taken = await QueueSurvey(broker.engine).take()
        assert (turns, taken["queue_lanes"]["q", "q", "normal", "ready"]) == (3, 3_000)  # type: ignore[index]
