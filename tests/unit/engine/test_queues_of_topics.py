"""Which queues a topic has and what is set for them, kept in its record: on a broker of its own."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest
from tests.attached_counter import COUNTER
from tests.simulated_broker import running, virtual
from tests.unit.engine.test_engine import Machine

from penstock.cluster.metadata.offline import _entry, _record
from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC
from penstock.engine.topics import (
    MAX_QUEUES,
    MAX_QUEUES_BYTES,
    TOPICS,
    QueueSettings,
    Topic,
    TopicRecord,
    altered_queues,
)
from penstock.errors import Code, PenstockError
from penstock.storage.offline.catalogue import Catalogue
from penstock.storage.offline.inspection import inspect_directory
from penstock.storage.offline.repair import rebuild_catalogue

ORDERS = {"orders": {"visibility": "30s"}, "größer": {}}


def with_queue(group: str, **settings: str) -> Callable[[QueueSettings], QueueSettings]:
    """An `alter` that adds a queue, or sets it anew."""
    return lambda queues: {**queues, group: settings}


async def stored(machine: Machine) -> TopicRecord:
    entry = await machine.store.get(TOPICS + "t")
    assert entry is not None
    return TopicRecord.decode(entry.value)


# --- the record


def test_a_record_keeps_its_queues_and_one_without_any_is_written_as_it_always_was() -> None:
    record = TopicRecord(UUID(int=1), 1, {}, 0, queues=ORDERS)
    assert TopicRecord.decode(record.encode()) == record
    assert TopicRecord.decode(record.encode()).queues == ORDERS
    assert b"queues" not in TopicRecord(UUID(int=1), 1, {}, 0).encode()


def test_more_queues_than_a_topic_may_have_are_refused_and_fewer_are_not() -> None:
    most = {f"q{number}": {"ttl": "1h"} for number in range(MAX_QUEUES)}
    assert altered_queues("t", {}, lambda _: most) == most
    with pytest.raises(PenstockError, match=f"1001 queues of topic 't'; allowed: {MAX_QUEUES}") as refused:
        altered_queues("t", most, with_queue("another"))
    assert refused.value.code is Code.LIMIT_EXCEEDED and refused.value.help
    too_many = {**most, "a": {}, "b": {}}
    assert len(altered_queues("t", too_many, lambda queues: {**most, "a": {}})) == MAX_QUEUES + 1


def test_queues_that_take_too_many_bytes_are_refused() -> None:
    large = {"q": {"dead-letter": "d" * (MAX_QUEUES_BYTES - 24)}}
    assert altered_queues("t", {}, lambda _: large) == large
    with pytest.raises(PenstockError, match=f"100001 bytes; allowed: {MAX_QUEUES_BYTES}") as refused:
        altered_queues("t", large, lambda _: {"q": {"dead-letter": "d" * (MAX_QUEUES_BYTES - 23)}})
    assert refused.value.code is Code.LIMIT_EXCEEDED and refused.value.help


# --- a broker


@virtual
async def test_queues_are_kept_and_outlive_a_stop_and_a_power_cut() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1)
        revision = broker.engine.topics.revision
        await broker.engine.alter_queues(topic, lambda _: ORDERS)
        assert topic.queues == (await stored(machine)).queues == ORDERS
        assert broker.engine.topics.revision > revision
    async with running(machine.broker()) as broker:
        found = broker.engine.topics.get("t")
        assert found is not None and found.queues == ORDERS
        await broker.engine.alter_queues(found, with_queue("third", ttl="1h"))
    broker = machine.broker()
    await broker.start()
    machine.disk.cut_power()
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as broker:  # which gives every record another epoch
        found = broker.engine.topics.get("t")
        assert found is not None and found.queues == {**ORDERS, "third": {"ttl": "1h"}}


@virtual
async def test_whatever_else_is_changed_of_a_topic_leaves_its_queues_and_they_leave_it() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        engine = broker.engine
        topic = await engine.create_topic("t", 1, {"segment.ms": "5000"})
        await engine.alter_queues(topic, with_queue("a"))
        await engine.attach(topic, COUNTER)
        await engine.alter_topic(topic, lambda given: {**given, "flush": "os"})
        await engine.alter_queues(topic, with_queue("b", ttl="1h"))
        await engine.create_partitions(topic, 3)
        record = await stored(machine)
        assert record.queues == topic.queues == {"a": {}, "b": {"ttl": "1h"}}
        assert record.settings == topic.config.given == {"segment.ms": "5000", "flush": "os"}
        assert record.partitions == 3 and record.attached.keys() == topic.attached.keys() == {"count"}


@virtual
async def test_two_changes_at_once_both_count_and_one_that_changes_nothing_writes_nothing() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1)
        alter = broker.engine.alter_queues
        await asyncio.gather(alter(topic, with_queue("a")), alter(topic, with_queue("b")))
        assert (await stored(machine)).queues == topic.queues == {"a": {}, "b": {}}
        before = await machine.store.get(TOPICS + "t")
        await alter(topic, lambda queues: dict(queues))
        assert await machine.store.get(TOPICS + "t") == before


@virtual
async def test_what_is_refused_changes_nothing() -> None:
    machine = Machine()

    async def refused(topic: Topic, alter: Callable[[QueueSettings], QueueSettings]) -> PenstockError:
        with pytest.raises(PenstockError) as caught:
            await broker.engine.alter_queues(topic, alter)
        return caught.value

    def wrong(_: QueueSettings) -> QueueSettings:
        raise PenstockError(Code.INVALID_CONFIG, "wrong")

    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1)
        await broker.engine.alter_queues(topic, with_queue("a"))
        too_many = {f"q{number}": {"ttl": "1h"} for number in range(MAX_QUEUES + 1)}
        assert (await refused(topic, wrong)).code is Code.INVALID_CONFIG
        assert (await refused(topic, lambda _: too_many)).code is Code.LIMIT_EXCEEDED
        assert (await stored(machine)).queues == topic.queues == {"a": {}}
        own = await broker.engine.internal_topic(OFFSETS_TOPIC)
        assert (await refused(own, with_queue("a"))).code is Code.NOT_ALLOWED
        await broker.engine.delete_topic(topic)
        assert (await refused(topic, with_queue("b"))).code is Code.UNKNOWN_TOPIC


# --- a directory at rest


@virtual
async def test_metadata_that_is_rebuilt_keeps_the_queues_it_could_read() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1)
        await broker.engine.attach(topic, COUNTER)
        await broker.engine.alter_queues(topic, lambda _: ORDERS)
    record = await stored(machine)
    assert _record(_entry(record)) == record
    of_groups = {"g": {"share.delivery.count.limit": "3"}}
    salvaged = Catalogue("meta", "c", {"t": _entry(record)}, groups=of_groups, problem="damaged")
    assert [entry.queues for entry in salvaged.held.values()] == [ORDERS, {}], "what is attached has none"
    report = inspect_directory(machine.disk, "data", salvaged)
    ids = {name: entry.topic_id for name, entry in salvaged.held.items()}
    rebuilt = rebuild_catalogue(report, salvaged, ids, "c")
    assert rebuilt.topics["t"].queues == ORDERS and rebuilt.groups == of_groups
