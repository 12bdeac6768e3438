"""Schedules on a broker of its own, on a simulated disk, in virtual time: what is planned is published once."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from tests.simulated_broker import Broker, running, virtual, wait_for
from tests.unit.engine.test_engine import Machine

from penstock.engine.queues.schedules.machine import Standing
from penstock.engine.queues.schedules.schedule import NAME, PLANNED_TIME
from penstock.engine.queues.schedules.schedules import NewSchedule
from penstock.engine.reading import Cursor, Message
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError

MINUTE_MS = 60_000


async def begun(broker: Broker, partitions: int = 1, *queues: str, **settings: str) -> Topic:
    topic = await broker.engine.create_topic(
        "q", partitions, {name.replace("_", "."): text for name, text in settings.items()}
    )
    names = queues or ("q",)
    await broker.engine.alter_queues(topic, lambda before: {**before, **dict.fromkeys(names, {})})
    return topic


async def add(broker: Broker, name: str = "s", cron: str = "* * * * *", zone: str = "UTC", **more: object) -> Standing:
    topic = broker.engine.topics.get("q")
    assert topic is not None
    wanted = NewSchedule(name, cron, zone, **{"value": b"x", **more})  # type: ignore[arg-type]
    return await broker.engine.schedules.add(topic, "q", wanted)


async def published(broker: Broker) -> list[Message]:
    topic = broker.engine.topics.get("q")
    assert topic is not None
    found: list[Message] = []
    for partition in topic.partitions:
        cursor = Cursor(partition, 0)
        while some := await cursor.records(1 << 20, 0):
            found += some
    return found


def fires(messages: Sequence[Message]) -> list[tuple[str, int]]:
    """Name and planned time of each."""
    found = []
    for each in messages:
        said = dict(each.headers)
        found.append(((said[NAME] or b"").decode(), int(said[PLANNED_TIME] or b"")))
    return sorted(found, key=lambda fire: (fire[1], fire[0]))


@virtual
async def test_it_fires_every_minute_and_not_early() -> None:
    async with running(Machine().broker()) as broker:
        await begun(broker)
        standing = await add(broker, key=b"k", headers=(("a", b"1"), ("b", None)))
        began = broker.clock.now_ms()
        first = began - began % MINUTE_MS + MINUTE_MS
        assert standing.next_ms == (first, first + MINUTE_MS, first + 2 * MINUTE_MS)
        await asyncio.sleep((first - began) / 1000 - 0.01)
        assert await published(broker) == []
        await asyncio.sleep(180)
        messages = await published(broker)
        assert fires(messages) == [("s", first + n * MINUTE_MS) for n in range(3)]
        for each, (_, planned_ms) in zip(messages, fires(messages), strict=True):
            assert (each.key, each.value, each.headers[:2]) == (b"k", b"x", (("a", b"1"), ("b", None)))
            assert 0 <= each.timestamp - planned_ms < 100
