"""Settings of the broker's own topics: nobody sets what would lose or stop groups and transactions."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.simulated_broker import running, virtual
from tests.unit.engine.coordination.test_shard import commit, committed
from tests.unit.engine.test_engine import Machine

from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.engine.coordination.registry import SETTINGS
from penstock.engine.internal_settings import acting_settings, altered_settings, topic_config
from penstock.engine.topic_config import SETTINGS as EVERY_SETTING
from penstock.engine.topics import TOPICS, TopicRecord
from penstock.errors import Code, PenstockError
from penstock.storage.log.options import Flush

DEADLY = {"cleanup.policy": "delete", "retention.ms": "1000", "segment.ms": "1"}


def altered(changes: Mapping[str, str], topic: str = OFFSETS_TOPIC) -> dict[str, str]:
    return altered_settings(topic, SETTINGS, lambda given: {**given, **changes})


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "delete"),
        ("cleanup.policy", "compact,delete"),
        ("compression.type", "gzip"),
        ("delete.retention.ms", "0"),
        ("flush", "os"),
        ("flush", "interval"),
        ("max.compaction.lag.ms", "1"),
        ("max.message.bytes", "10"),
        ("message.timestamp.type", "LogAppendTime"),
        ("min.cleanable.dirty.ratio", "1"),
        ("min.compaction.lag.ms", str((1 << 63) - 1)),
        ("min.insync.replicas", "1"),
        ("min.insync.replicas", "100"),
        ("retention.bytes", "0"),
        ("retention.ms", "1000"),
        ("segment.bytes", "1024"),
        ("segment.ms", "1"),
        ("segment.ms", str((1 << 63) - 1)),
    ],
)
def test_what_endangers_them_is_refused(topic: str, name: str, value: str) -> None:
    with pytest.raises(PenstockError, match=f"the broker's own: {name} cannot be '{value}'") as refused:
        altered({name: value}, topic)
    assert refused.value.code is Code.NOT_ALLOWED
    assert altered_settings("t", {}, lambda _: {name: value}) == {name: value}, "other topics may"


def test_of_what_there_is_only_a_few_may_be_changed() -> None:
    """A setting that is new here is refused until somebody has thought about it."""
    may = set()
    for name, setting in EVERY_SETTING.items():
        values = {setting.default, "86400001", "0.25", "0:1", "compact"} - {SETTINGS.get(name)}
        for value in values:
            try:
                altered({name: value})
            except PenstockError:
                continue
            may.add(name)
    assert may == {
        "delete.retention.ms", "follower.replication.throttled.replicas", "leader.replication.throttled.replicas",
        "max.compaction.lag.ms", "min.cleanable.dirty.ratio", "segment.bytes", "segment.ms",
    }  # fmt: skip


def test_what_is_unset_is_as_it_was_made() -> None:
    assert altered_settings(OFFSETS_TOPIC, SETTINGS, lambda _: {}) == SETTINGS
    assert altered({"cleanup.policy": " compact ", "segment.bytes": str(2 << 20)}) == {
        **SETTINGS, "segment.bytes": str(2 << 20)
    }  # fmt: skip
    with pytest.raises(PenstockError) as refused:
        altered({"nonsense": "1"})
    assert refused.value.code is Code.INVALID_CONFIG


def test_defaults_of_the_broker_do_not_reach_them() -> None:
    defaults = {
        **DEADLY,
        "flush": "os",
        "min.insync.replicas": "1",
        "delete.retention.ms": "0",
        "segment.bytes": "1024",
    }
    config = topic_config(OFFSETS_TOPIC, SETTINGS, defaults)
    assert config == topic_config(OFFSETS_TOPIC, {}, {}), "also where the record lacks them"
    assert (config.compacts, config.deletes, config.log.flush) == (True, False, Flush.COMMIT)
    assert config.log.segment_bytes == int(SETTINGS["segment.bytes"])
    assert [config.least_in_sync(replicas) for replicas in (1, 2, 3)] == [1, 1, 2]
    assert topic_config("t", {}, defaults).log.flush is Flush.OS


def test_more_replicas_in_sync_may_be_asked_for_of_all_topics() -> None:
    config = topic_config(OFFSETS_TOPIC, SETTINGS, {"min.insync.replicas": "3"})
    assert config.least_in_sync(3) == 3


def test_what_an_earlier_release_let_through_does_not_count() -> None:
    stored = {**DEADLY, "flush": "os", "segment.bytes": str(2 << 20), "min.insync.replicas": "1"}
    assert acting_settings(OFFSETS_TOPIC, stored) == {**SETTINGS, "segment.bytes": str(2 << 20)}
    assert acting_settings("t", stored) == stored
    harmless = altered_settings(OFFSETS_TOPIC, stored, lambda given: {**given, "segment.ms": "3600000"})
    assert harmless == {**SETTINGS, "segment.bytes": str(2 << 20), "segment.ms": "3600000"}


@pytest.mark.parametrize("by", ["altering", "an earlier release", "defaults"])
def test_committed_offsets_outlive_all_of_it(by: str) -> None:
    @virtual
    async def body() -> None:
        machine = Machine()
        async with running(machine.broker()) as broker:
            topic = await broker.engine.internal_topic(OFFSETS_TOPIC)
        if by == "an earlier release":
            stored = await machine.store.get(TOPICS + OFFSETS_TOPIC)
            assert stored is not None
            deadly = replace(TopicRecord.decode(stored.value), settings=DEADLY)
            await machine.store.transact(put={stored.key: deadly.encode()})
        broker = machine.broker(defaults=DEADLY if by == "defaults" else {})
        await broker.start()
        await commit(broker, "g", 1, 1)
        if by == "altering":
            topic = await broker.engine.internal_topic(OFFSETS_TOPIC)
            with pytest.raises(PenstockError):
                await broker.engine.alter_topic(topic, lambda given: {**given, **DEADLY})
        for offset in range(10):  # segments are closed by time, and go by time, while others are written
            await asyncio.sleep(1)
            await commit(broker, "g", offset, 0)
        machine.disk = machine.disk.after_power_cut()
        async with running(machine.broker()) as broker:
            assert await committed(broker, "g") == {("t", 0): 9, ("t", 1): 1}

    body()


@virtual
async def test_records_of_internal_topics_are_not_deleted() -> None:
    async with running(Machine().broker()) as broker:
        topic = await broker.engine.internal_topic(OFFSETS_TOPIC)
        with pytest.raises(PenstockError, match="the broker's own") as refused:
            await broker.engine.delete_records(topic.partitions[0], 0)
        assert refused.value.code is Code.NOT_ALLOWED
