"""Schedules on a broker of its own, on a simulated disk, in virtual time: what is planned is published once."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from tests.simulated_broker import Broker, running, virtual
from tests.unit.engine.test_engine import Machine

from penstock.engine.partition import Partition
from penstock.engine.publishing import Appended
from penstock.engine.queues.schedules.cron import Cron
from penstock.engine.queues.schedules.machine import ScheduleMachine, Standing
from penstock.engine.queues.schedules.schedule import NAME, PLANNED_TIME, Definition
from penstock.engine.queues.schedules.schedules import SCHEDULES, NewSchedule
from penstock.engine.reading import Cursor, Message
from penstock.engine.topics import Topic
from penstock.errors import Code, PenstockError
from penstock.records.batch import decode_header
from penstock.testing.virtual_clock import run_virtual

MINUTE_MS = 60_000
CALM: dict[str, object] = {"upkeep_ms": 5000}
"""Much time passes, and there is nothing to keep up."""


async def begun(broker: Broker, partitions: int = 1, *queues: str, **settings: str) -> Topic:
    topic = await broker.engine.create_topic(
        "q", partitions, {name.replace("_", "."): text for name, text in settings.items()}
    )
    await broker.engine.queues.attach(topic)
    names = queues or ("q",)
    await broker.engine.alter_queues(topic, lambda before: {**before, **{name: {} for name in names}})
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
    async with running(Machine().broker(**CALM)) as broker:
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


def next_minute(broker: Broker) -> int:
    now = broker.clock.now_ms()
    return now - now % MINUTE_MS + MINUTE_MS


async def until_ms(broker: Broker, moment_ms: int) -> None:
    await asyncio.sleep(max(moment_ms - broker.clock.now_ms(), 0) / 1000)


@virtual
async def test_what_was_missed_while_no_broker_ran_is_made_up_for_once() -> None:
    """By the latest of the times; then it goes on as planned."""
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        await begun(broker)
        await add(broker, "often")
        await add(broker, "daily", "0 12 * * *")
        first = next_minute(broker)
        await until_ms(broker, first + 100)
        assert fires(await published(broker)) == [("often", first)]
    await asyncio.sleep(3 * 86_400)
    async with running(machine.broker(**CALM)) as broker:
        started = broker.clock.now_ms()
        await asyncio.sleep(0.5)
        noon = started - started % 86_400_000 + 43_200_000
        noon -= 86_400_000 if noon > started else 0
        made_up = [("daily", noon), ("often", started - started % MINUTE_MS)]
        assert fires(await published(broker)) == sorted([("often", first), *made_up], key=lambda fire: fire[1])
        await until_ms(broker, next_minute(broker) + 100)
        assert fires(await published(broker))[-1] == ("often", started - started % MINUTE_MS + MINUTE_MS)


@virtual
async def test_a_clock_that_jumps_ahead_fires_each_schedule_once() -> None:
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        await begun(broker)
        for number in range(20):
            await add(broker, f"s{number}", "*/5 * * * *")
        machine.clock.jump_ms(10 * 86_400_000)
        jumped = broker.clock.now_ms()
        await asyncio.sleep(11)
        planned = jumped - jumped % (5 * MINUTE_MS)
        found = fires(await published(broker))
        assert sorted(found)[:20] == sorted((f"s{number}", planned) for number in range(20))


def test_a_clock_that_goes_back_fires_nothing_again_also_over_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    run_virtual(_go_back, 7)
    assert "the clock is behind times that schedules have fired for" in caplog.text


async def _go_back() -> None:
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        await begun(broker)
        await add(broker)
        first = next_minute(broker)
        await until_ms(broker, first + 60_100)
        assert [planned for _, planned in fires(await published(broker))] == [first, first + MINUTE_MS]
        machine.clock.jump_ms(-30 * MINUTE_MS)
        await asyncio.sleep(300)
    async with running(machine.broker(**CALM)) as broker:
        await asyncio.sleep(300)
        assert len(await published(broker)) == 2
        await until_ms(broker, first + 2 * MINUTE_MS + 100)
        planned = [planned for _, planned in fires(await published(broker))]
        assert planned == [first, first + MINUTE_MS, first + 2 * MINUTE_MS]


@virtual
async def test_paused_it_plans_nothing_and_makes_up_for_nothing() -> None:
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        topic = await begun(broker)
        await add(broker)
        schedules = broker.engine.schedules
        first = next_minute(broker)
        assert (await schedules.pause(topic, "q", "s")).next_ms == ()
        await until_ms(broker, first + 10 * MINUTE_MS + 30_000)
    async with running(machine.broker(**CALM)) as broker:
        topic = broker.partition("q") and broker.engine.topics.get("q")  # type: ignore[assignment]
        assert topic is not None
        (standing,), _ = await broker.engine.schedules.list(topic, "q", "", 10)
        assert (standing.progress.is_paused, standing.next_ms) == (True, ())
        resumed = await broker.engine.schedules.resume(topic, "q", "s")
        assert resumed.next_ms[0] == first + 11 * MINUTE_MS
        again = await broker.engine.schedules.resume(topic, "q", "s")
        assert again.progress == resumed.progress
        await asyncio.sleep(5)
        assert await published(broker) == []
        await until_ms(broker, first + 11 * MINUTE_MS + 100)
        assert fires(await published(broker)) == [("s", first + 11 * MINUTE_MS)]


@virtual
async def test_a_thousand_at_the_same_minute_are_published_in_turns() -> None:
    """To all partitions, those with a key where clients would send them; nobody waits long for the loop."""
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        topic = await begun(broker, 3)
        for number in range(1000):
            await add(broker, f"s{number:03}", key=b"k%d" % number if number % 2 else None, value=b"." * 1000)
        with pytest.raises(PenstockError) as refused:
            await add(broker, "one-more")
        assert refused.value.code is Code.LIMIT_EXCEEDED
        first = next_minute(broker)
        await until_ms(broker, first + 5000)
        messages = await published(broker)
        assert fires(messages) == [(f"s{number:03}", first) for number in range(1000)]
        for partition in topic.partitions:
            cursor = Cursor(partition, 0)
            assert len(await cursor.records(1 << 22, 0, 1000)) > 100
        keyed = [each for each in messages if each.key is not None]
        assert len(keyed) == 500
        machines = broker.engine.schedules.shards.of(topic.partitions[0]).loaded
        assert machines is not None and not machines.ready and not machines.rounds()


@virtual
async def test_removed_it_is_gone_and_its_name_free() -> None:
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        topic = await begun(broker)
        await add(broker)
        with pytest.raises(PenstockError) as refused:
            await add(broker)
        assert refused.value.code is Code.EXISTS
        schedules = broker.engine.schedules
        assert await schedules.remove(topic, "q", "s") is False
        with pytest.raises(PenstockError) as refused:
            await schedules.remove(topic, "q", "s")
        assert refused.value.code is Code.NOT_FOUND
        await add(broker, cron="*/2 * * * *")
    async with running(machine.broker(**CALM)) as broker:
        await asyncio.sleep(120)
        assert len(await published(broker)) == 1


@virtual
async def test_what_a_topic_never_takes_is_passed_over_and_holds_up_nobody() -> None:
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        topic = await begun(broker)
        await add(broker, "large", value=b"." * 5000)
        await add(broker, "small")
        await broker.engine.alter_topic(topic, lambda given: {**given, "max.message.bytes": "2000"})
        first = next_minute(broker)
        await until_ms(broker, first + MINUTE_MS + 100)
        assert fires(await published(broker)) == [("small", first), ("small", first + MINUTE_MS)]
        assert broker.stats.queue_schedule_failures == 2
        with pytest.raises(PenstockError) as refused:
            await add(broker, "larger", value=b"." * 5000)
        assert refused.value.code is Code.INVALID_SCHEDULE
        await broker.engine.alter_topic(topic, lambda given: {})
        await until_ms(broker, first + 2 * MINUTE_MS + 100)
        assert fires(await published(broker))[-2:] == [
            ("large", first + 2 * MINUTE_MS),
            ("small", first + 2 * MINUTE_MS),
        ]


@virtual
async def test_a_full_queue_takes_it_when_there_is_room_again() -> None:
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        topic = await begun(broker)
        await broker.engine.alter_queues(topic, lambda before: {"q": {"max-size": "1"}})
        await add(broker)
        first = next_minute(broker)
        await until_ms(broker, first + 3 * MINUTE_MS + 100)
        assert fires(await published(broker)) == [("s", first)]
        await broker.engine.queues.purge(topic.partitions[0], "q")
        await asyncio.sleep(31)
        await broker.engine.queues.purge(topic.partitions[0], "q")
        await asyncio.sleep(31)
        planned = [planned for _, planned in fires(await published(broker))]
        assert planned[:2] == [first, first + MINUTE_MS], "what was noted comes"
        assert planned[2] >= first + 3 * MINUTE_MS, "and then the latest"


@virtual
async def test_a_queue_that_is_deleted_takes_its_schedules_along_and_no_others() -> None:
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        topic = await begun(broker, 1, "q", "other")
        await add(broker)
        await broker.engine.schedules.add(topic, "other", NewSchedule("o", "* * * * *", "UTC", b"y"))
        first = next_minute(broker)
        await broker.engine.queues.purge(topic.partitions[0], "q")
        assert len((await broker.engine.schedules.list(topic, "q", "", 10))[0]) == 1
        await broker.engine.schedules.forget_with(topic.partitions[0], "q")
        await broker.engine.alter_queues(topic, lambda before: {"other": {}})
        await until_ms(broker, first + 100)
        assert fires(await published(broker)) == [("o", first)]
        with pytest.raises(PenstockError) as refused:
            await add(broker)
        assert refused.value.code is Code.UNKNOWN_QUEUE
        await broker.engine.alter_queues(topic, lambda before: {**before, "q": {}})
        assert (await broker.engine.schedules.list(topic, "q", "", 10))[0] == []


@virtual
async def test_of_a_queue_that_is_not_there_nothing_fires_and_nothing_is_lost() -> None:
    """Nothing is deleted because metadata is missing."""
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        topic = await begun(broker)
        await add(broker)
        await broker.engine.alter_queues(topic, lambda before: {})
        first = next_minute(broker)
        await until_ms(broker, first + 5 * MINUTE_MS)
        assert await published(broker) == []
        await broker.engine.alter_queues(topic, lambda before: {"q": {}})
        await asyncio.sleep(11)
        assert [planned for _, planned in fires(await published(broker))] == [first + 5 * MINUTE_MS]


@virtual
async def test_after_a_power_cut_at_any_time_each_planned_time_is_there_once() -> None:
    """Wherever between the note and the end of it the power goes."""
    cut_in = Counter[str]()
    for turn in range(40):
        machine = Machine(turn)
        broker = machine.broker(**CALM)
        await broker.start()
        await begun(broker)
        for number in range(5):
            await add(broker, f"s{number}")
        first = next_minute(broker)
        await until_ms(broker, first - 2)
        await asyncio.sleep(turn / 4000)
        cut_in[state_of(broker)] += 1
        machine.disk.cut_power()
        machine.disk = machine.disk.after_power_cut()
        async with running(machine.broker(**CALM)) as broker:
            await until_ms(broker, first + MINUTE_MS + 100)
            expected = [(f"s{number}", first + more * MINUTE_MS) for more in range(2) for number in range(5)]
            assert fires(await published(broker)) == expected, turn
    assert {"waits", "noted", "published", "done"} <= set(cut_in), cut_in


def state_of(broker: Broker) -> str:
    """Of the first planned time."""
    machine = broker.engine.schedules.shards.of(broker.partition("q")).loaded
    assert machine is not None
    if machine.rounds():
        return "published" if broker.partition("q").end_offset else "noted"
    return "done" if broker.partition("q").end_offset else "waits"


@virtual
async def test_a_zone_nobody_knows_is_told_and_holds_up_nobody() -> None:
    """As on a broker whose machine has other time zones."""
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        await begun(broker)
        await add(broker, "far", zone="Europe/Berlin")
        await add(broker, "near")
    with patch("penstock.engine.queues.schedules.zones._read_all", lambda names: {}):
        async with running(machine.broker(**CALM)) as broker:
            topic = broker.engine.topics.get("q")
            assert topic is not None
            first = next_minute(broker)
            await until_ms(broker, first + 100)
            assert fires(await published(broker)) == [("near", first)]
            (far, near), _ = await broker.engine.schedules.list(topic, "q", "", 10)
            assert (far.knows_zone, far.next_ms, near.knows_zone) == (False, (), True)
            assert broker.stats.queue_schedule_failures == 1
    async with running(machine.broker(**CALM)) as broker:
        await asyncio.sleep(1)
        assert fires(await published(broker)) == [("far", first), ("near", first)]


@virtual
async def test_nothing_is_left_running_when_there_are_none() -> None:
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        topic = await begun(broker)
        await add(broker)
        await broker.engine.schedules.remove(topic, "q", "s")
        await asyncio.sleep(0.1)
        running_now = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in running_now if "schedules of" in name]
        await add(broker)
        await asyncio.sleep(0.1)
        running_now = [task.get_name() for task in asyncio.all_tasks()]
        assert len([name for name in running_now if "schedules of" in name]) == 1


@virtual
async def test_its_log_is_compacted_and_tells_the_same() -> None:
    """Hundreds of fires leave the last word on each, and the messages themselves once."""
    settings = {**SCHEDULES.settings, "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0.1"}
    machine = Machine()
    with patch("penstock.engine.queues.schedules.schedules.SCHEDULES", SCHEDULES._replace(settings=settings)):
        async with running(machine.broker(**CALM)) as broker:
            topic = await begun(broker)
            await add(broker, "often", value=b"." * 2000)
            await add(broker, "gone")
            await broker.engine.schedules.remove(topic, "q", "gone")
            await add(broker, "late", "0 0 1 1 *")
            began = next_minute(broker)
            await until_ms(broker, began + 400 * MINUTE_MS)
            log = topic.partitions[0].attached[-1].leading()
            assert log.end_offset > 1000
            stored = sum(
                len(data) for name, data in machine.files().items() if "~cron/0/" in name and name.endswith(".log")
            )
            assert stored < 20 * 4096, "nothing was compacted"
            before, _ = await broker.engine.schedules.list(topic, "q", "", 10)
            assert broker.stats.compactions
    for name in [name for name in machine.files() if name.endswith("~cron/0/snapshot")]:
        machine.disk.unlink(name)
    async with running(machine.broker(**CALM)) as broker:
        kept = broker.engine.topics.get("q")
        assert kept is not None
        after, _ = await broker.engine.schedules.list(kept, "q", "", 10)
        assert [each.definition for each in after] == [each.definition for each in before]
        await until_ms(broker, began + 402 * MINUTE_MS + MINUTE_MS // 2)
        found = fires(await published(broker))
        assert found == [("often", began + number * MINUTE_MS) for number in range(len(found))]
        assert len(found) == 403


@virtual
async def test_a_log_that_has_lost_what_came_before_takes_it_under_another_number() -> None:
    async with running(Machine().broker(**CALM)) as broker:
        await begun(broker)
        await add(broker)
        first, publish = next_minute(broker), broker.engine.forwarding.publish_again
        sent: list[int] = []

        async def publish_again(target: Partition, batch: bytes, *more: Any) -> Appended:
            sent.append(decode_header(batch).producer_id)
            if len(sent) == 1:
                raise PenstockError(Code.OUT_OF_ORDER_SEQUENCE, "as if it had lost some")
            return await publish(target, batch, *more)

        with patch.object(broker.engine.forwarding, "publish_again", publish_again):
            await until_ms(broker, first + MINUTE_MS + 100)
        assert len(sent) == 3
        assert sent[0] not in sent[1:]
        assert fires(await published(broker)) == [("s", first), ("s", first + MINUTE_MS)]
        assert broker.stats.queue_scheduled == 2


@virtual
async def test_zones_are_known_before_anybody_is_told_of_a_schedule() -> None:
    """Also right after the start, before the first look at what is due."""
    machine = Machine()
    async with running(machine.broker(**CALM)) as broker:
        await begun(broker)
        await add(broker, zone="Europe/Berlin")
    with patch("penstock.engine.queues.schedules.firing.Firing.after_step", lambda *_: None):
        async with running(machine.broker(**CALM)) as broker:
            topic = broker.engine.topics.get("q")
            assert topic is not None
            (standing,), _ = await broker.engine.schedules.list(topic, "q", "", 10)
            assert standing.knows_zone
            assert len(standing.next_ms) == 3


@virtual
async def test_a_queue_that_is_deleted_meanwhile_gets_no_schedule() -> None:
    async with running(Machine().broker(**CALM)) as broker:
        topic = await begun(broker)
        check = broker.engine.schedules._zones.check

        async def deleted_meanwhile(zone: str) -> None:
            await check(zone)
            await broker.engine.alter_queues(topic, lambda before: {})

        with (
            patch.object(broker.engine.schedules._zones, "check", deleted_meanwhile),
            pytest.raises(PenstockError) as e,
        ):
            await add(broker)
        assert e.value.code is Code.UNKNOWN_QUEUE


def test_what_is_done_was_noted() -> None:
    """A round that somebody else has ended, or that was noted anew, is not ended by who comes late."""
    machine = ScheduleMachine(lambda expression, zone: Cron(expression))
    machine.add(None, Definition("q", "s", "* * * * *", "UTC", None, b"", (), 0))
    machine.come(MINUTE_MS, 10)
    machine.note(None, 0, 7, [1])
    noted = machine.round(0)
    late = noted._replace(producer_id=6)
    for step in (machine.done(MINUTE_MS, None, 0, late), machine.undo(None, 0, late)):
        assert (list(step.records), machine.round(0)) == ([], noted)
    assert len(machine.done(MINUTE_MS, None, 0, noted).records) == 2
    assert not machine.done(MINUTE_MS, None, 0, noted).records
