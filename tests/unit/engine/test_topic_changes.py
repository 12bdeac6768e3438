"""Topics that grow, and settings that act from the moment they are changed."""

import asyncio
import errno
from collections.abc import Callable, Mapping

import orjson
import pytest
from tests.simulated_broker import (
    Broker,
    append,
    batch_of,
    produce,
    read_all,
    running,
    until_visible,
    virtual,
    wait_for,
)
from tests.unit.engine.test_engine import Machine, some_records, values

from penstock.engine.coordination.internal_topics import INTERNAL_TOPICS
from penstock.engine.intake import check_records
from penstock.engine.partition import Partition
from penstock.engine.topics import CREATING, GROWING, MAX_PARTITIONS, REMOVING
from penstock.errors import Code, PenstockError, StartupError
from penstock.records.batch import decode_header
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.storage.log.log import Appended


def setting(**changes: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
    """An `alter` that sets these; underscores stand for dots."""

    def alter(given: Mapping[str, str]) -> Mapping[str, str]:
        return {**given, **{name.replace("_", "."): value for name, value in changes.items()}}

    return alter


async def refused(work: object) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        await work  # type: ignore[misc]
    return caught.value


# --- growing


@virtual
async def test_a_topic_grows_and_stays_grown() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 2)
        await some_records(broker)
        revision = broker.engine.topics.revision
        await broker.engine.create_partitions(topic, 5)
        assert [partition.index for partition in topic.partitions] == [0, 1, 2, 3, 4]
        assert broker.engine.topics.revision > revision
        await produce(broker.partition("t", 4), batch_of([b"new"], broker.clock))
        assert await machine.store.list(GROWING) == []
    machine.disk = machine.disk.after_power_cut()
    async with running(machine.broker()) as broker:
        assert await values(broker, index=4) == [b"new"]
        assert len(await values(broker)) == 5


@virtual
async def test_growth_that_cannot_be() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 3)
        for count in (-1, 0, 2, 3, MAX_PARTITIONS + 1):
            error = await refused(broker.engine.create_partitions(topic, count))
            assert error.code is Code.INVALID_PARTITIONS and "it has 3" in str(error)
        await broker.engine.create_topic("other")
        error = await refused(broker.engine.create_partitions(topic, MAX_PARTITIONS))
        assert error.code is Code.LIMIT_EXCEEDED
        await broker.engine.create_partitions(topic, 9, validate_only=True)
        assert len(topic.partitions) == 3
        await broker.engine.delete_topic(topic)
        assert (await refused(broker.engine.create_partitions(topic, 9))).code is Code.UNKNOWN_TOPIC


@virtual
async def test_topics_that_fill_the_broker_leave_room_for_its_own() -> None:
    machine = Machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.engine.local_catalogue.MAX_PARTITIONS", 8)
        async with running(machine.broker()) as broker:
            await broker.engine.create_topic("big", 7)
            for name in sorted(INTERNAL_TOPICS):
                assert (await broker.engine.internal_topic(name)).partitions
            assert (await refused(broker.engine.create_topic("t", 2))).code is Code.LIMIT_EXCEEDED
            await broker.engine.create_topic("t", 1)  # theirs do not count


@virtual
async def test_a_full_disk_leaves_nothing_of_a_growth() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1)
        await some_records(broker)
        machine.disk.fail("write_at", errno.ENOSPC, path_contains="t/2/")
        assert (await refused(broker.engine.create_partitions(topic, 4))).code is Code.STORAGE_FULL
        assert machine.disk.list_dir("data/logs/t") == ["0"]
        assert len(topic.partitions) == 1
        await broker.engine.create_partitions(topic, 4)
        assert machine.disk.list_dir("data/logs/t") == ["0", "1", "2", "3"]
        await some_records(broker)


@virtual
async def test_a_full_disk_stays_harmless_when_the_client_tries_again() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1)
        for _ in range(5):
            machine.disk.fail("write_at", errno.ENOSPC, path_contains="t/3/")
            assert (await refused(broker.engine.create_partitions(topic, 4))).code is Code.STORAGE_FULL
        await wait_for(lambda: machine.disk.list_dir("data/logs/~removed") == [])


def run_out(machine: Machine, operation: str) -> None:
    """Of descriptors, or of room for another name, until the faults are cleared."""
    code = errno.ENOSPC if operation == "rename" else errno.EMFILE
    machine.disk.fail(operation, code, path_contains="data/logs", times=1_000_000)


@pytest.mark.parametrize("operation", ["open", "rename", "sync_dir"])
def test_what_a_shortage_keeps_from_being_taken_away_goes_later(operation: str) -> None:
    @virtual
    async def life() -> None:
        machine = Machine()
        async with running(machine.broker()) as broker:
            grown = await broker.engine.create_topic("grown", 1)
            await some_records(broker, "grown")
            await broker.engine.create_topic("gone", 2)
            run_out(machine, operation)
            for _ in range(2):
                assert (await refused(broker.engine.create_topic("t", 2))).code is Code.STORAGE_FULL
            assert (await refused(broker.engine.create_partitions(grown, 3))).code is Code.STORAGE_FULL
            gone = broker.engine.topics.get("gone")
            assert gone is not None
            await broker.engine.delete_topic(gone)  # decided, and told so
            error = await refused(broker.engine.create_topic("gone", 1))
            assert error.code is Code.STORAGE_FULL
            assert {topic.name for topic in broker.engine.topics} == {"grown"}
            await some_records(broker, "grown")
            machine.disk.clear_faults()
            await broker.engine.create_topic("gone", 1)
            await broker.engine.create_topic("t", 2)
            await broker.engine.create_partitions(grown, 3)
            assert [await machine.store.list(kind) for kind in (CREATING, GROWING, REMOVING)] == [[], [], []]
            await some_records(broker, "t")
        machine.disk = machine.disk.after_power_cut()
        async with running(machine.broker()) as broker:
            assert [len(topic.partitions) for topic in broker.engine.topics] == [1, 3, 2]
            assert len(await values(broker, "grown")) == 10

    life()


@virtual
async def test_what_a_shortage_left_goes_by_itself_or_at_the_next_start() -> None:
    for waits in (True, False):
        machine = Machine()
        broker = machine.broker()
        await broker.start()
        topic = await broker.engine.create_topic("gone", 2)
        run_out(machine, "sync_dir")
        await refused(broker.engine.create_topic("t", 2))
        await broker.engine.delete_topic(topic)
        assert len(await machine.store.list(REMOVING)) == len(await machine.store.list(CREATING)) == 1
        machine.disk.clear_faults()
        if waits:
            await asyncio.sleep(5)  # of virtual time
            assert await machine.store.list(REMOVING) == await machine.store.list(CREATING) == []
        await broker.engine.abandon()
        machine.disk = machine.disk.after_power_cut()
        async with running(machine.broker()) as again:
            assert len(again.engine.topics) == 0
            assert machine.disk.list_dir("data/logs") == ["~removed"]


@virtual
async def test_a_growth_in_doubt_stops_the_broker_and_is_decided_by_the_next() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    topic = await broker.engine.create_topic("t", 1)
    transact = machine.store.transact

    async def kept_but_unsaid(**changes: object) -> int:
        revision = await transact(**changes)  # type: ignore[arg-type]
        if "expect" in changes:
            raise PenstockError(Code.STORAGE_FAILED, "input/output error")
        return revision

    machine.store.transact = kept_but_unsaid  # type: ignore[assignment, method-assign]
    assert (await refused(broker.engine.create_partitions(topic, 3))).code is Code.STORAGE_FAILED
    assert len(broker.failures) == 1
    machine.store.transact = transact  # type: ignore[method-assign]
    machine.disk = machine.disk.abandon()
    async with running(machine.broker()) as broker:
        found = broker.engine.topics.get("t")
        assert found is not None
        assert [partition.offline for partition in found.partitions] == [None] * 3


@virtual
async def test_a_stop_does_not_wait_for_a_long_growth() -> None:
    machine = Machine()
    broker = machine.broker()
    await broker.start()
    topic = await broker.engine.create_topic("t", 1)
    growth = asyncio.ensure_future(broker.engine.create_partitions(topic, 20))
    await asyncio.sleep(0)
    stop = asyncio.ensure_future(broker.stop())
    assert (await refused(growth)).code is Code.NOT_AVAILABLE
    await stop
    async with running(machine.broker()) as broker:
        assert machine.disk.list_dir("data/logs/t") == ["0"]


@virtual
async def test_a_growth_cut_short_is_undone_unless_it_holds_records() -> None:
    for records in (0, 1):
        machine = Machine()
        async with running(machine.broker()) as broker:
            topic = await broker.engine.create_topic("t", 3)
            await some_records(broker)
            for _ in range(records):
                await produce(broker.partition("t", 2), batch_of([b"x"], broker.clock))
        (stored,) = await machine.store.list("topics/")
        shrunk = orjson.dumps({**orjson.loads(stored.value), "partitions": 1})
        intent = orjson.dumps({"topic": "t", "id": str(topic.topic_id), "partitions": 1})
        await machine.store.transact(put={stored.key: shrunk, f"{GROWING}{topic.topic_id}": intent})
        broker = machine.broker()
        if records:
            with pytest.raises(StartupError, match="knows nothing of"):
                await broker.start()
            assert machine.disk.list_dir("data/logs/t") == ["0", "1", "2"]
        else:
            async with running(broker):
                assert machine.disk.list_dir("data/logs/t") == ["0"]
                assert len(await values(broker)) == 5


# --- altering


@virtual
async def test_settings_are_kept_and_checked() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1, {"segment.ms": "5000"})
        alter = broker.engine.alter_topic
        await alter(topic, setting(retention_ms="7", flush="os"))
        error = await refused(alter(topic, setting(retention_ms="soon")))
        assert error.code is Code.INVALID_CONFIG and "soon" in str(error)
        await alter(topic, setting(retention_ms="8"), validate_only=True)
        assert topic.config.given == {"segment.ms": "5000", "retention.ms": "7", "flush": "os"}
    async with running(machine.broker()) as broker:
        found = broker.engine.topics.get("t")
        assert found is not None
        assert found.config.given == {"segment.ms": "5000", "retention.ms": "7", "flush": "os"}
        await broker.engine.delete_topic(found)
        assert (await refused(broker.engine.alter_topic(found, setting(flush="os")))).code is Code.UNKNOWN_TOPIC


@virtual
async def test_retention_acts_at_once() -> None:
    machine = Machine()
    async with running(machine.broker(defaults={"segment.bytes": "1024"}, upkeep_ms=10**9)) as broker:
        topic = await broker.engine.create_topic("t")
        await some_records(broker, count=20)
        log = broker.partition("t").opened()
        assert log.log_start == 0
        await broker.engine.alter_topic(topic, setting(retention_bytes="2000"))
        await wait_for(lambda: log.log_start > 0)
        kept = log.log_start
        await broker.engine.alter_topic(topic, setting(cleanup_policy="compact"))
        await some_records_with_keys(broker, 20)
        await broker.engine.alter_topic(topic, setting(segment_ms="600000"))  # another round over all logs
        await wait_for(lambda: not log.unsealed)
        assert log.log_start == kept


async def some_records_with_keys(broker: object, count: int) -> None:
    partition = broker.partition("t")  # type: ignore[attr-defined]
    now_ms = broker.clock.now_ms()  # type: ignore[attr-defined]
    for number in range(count):
        await produce(partition, bytearray(build_batch([(b"k", b"%d" % number + b"." * 300, [], now_ms)])))


@virtual
async def test_segments_close_by_their_new_age_and_size() -> None:
    machine = Machine()
    async with running(machine.broker(upkeep_ms=100)) as broker:
        topic = await broker.engine.create_topic("t")
        await some_records(broker)
        log = broker.partition("t").opened()
        await wait_for(lambda: log.active.checkpointed == log.active.size, 200)
        await broker.engine.alter_topic(topic, setting(segment_ms="50"))
        await wait_for(lambda: len(log.segments) == 2)
        await broker.engine.alter_topic(topic, setting(segment_ms="600000", segment_bytes="1024"))
        before = len(log.segments)
        await some_records(broker, count=20)
        assert len(log.segments) > before + 2


@virtual
async def test_flush_acts_at_once_both_ways() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1, {"flush": "os"})
        partition = broker.partition("t")
        append(partition, batch_of([b"unsynced"], broker.clock))
        assert partition.high_watermark == 1 and partition.opened().durable_end == 0
        await broker.engine.alter_topic(topic, setting(flush="commit"))
        assert partition.opened().durable_end == 1
        append(partition, batch_of([b"waits"], broker.clock))
        assert partition.high_watermark == 1
        await broker.engine.alter_topic(topic, setting(flush="os"))
        assert partition.high_watermark == 2  # nobody waits for a sync any more


@virtual
async def test_a_shorter_interval_does_not_wait_for_the_longer_one() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1, {"flush": "interval", "flush.ms": "3600000"})
        log = broker.partition("t").opened()
        append(broker.partition("t"), batch_of([b"old"], broker.clock))
        await broker.engine.alter_topic(topic, setting(flush_ms="100"))
        assert log.durable_end == 1
        append(broker.partition("t"), batch_of([b"new"], broker.clock))
        await wait_for(lambda: log.durable_end == 2, 1.0)


@virtual
async def test_limits_and_times_act_on_the_next_batch() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t")
        partition = broker.partition("t")
        append(partition, batch_of([b"." * 500], broker.clock))
        await broker.engine.alter_topic(topic, setting(max_message_bytes="300", message_timestamp_type="LogAppendTime"))
        with pytest.raises(PenstockError, match=r"max\.message\.bytes=300"):
            append(partition, batch_of([b"." * 500], broker.clock))
        await machine.disk.run(lambda: None)
        assert append(partition, batch_of([b"."], broker.clock)).timestamp == broker.clock.now_ms()


def looked_at(partition: Partition, batch: bytes | bytearray) -> bool:
    return check_records(partition.config, memoryview(batch), decode_header(batch))


async def opened(broker: Broker, batch: bytes | bytearray) -> Appended | PenstockError:
    """What comes of a batch that its topic wants opened."""
    partition = broker.partition("t")
    done = asyncio.get_running_loop().create_future()
    view = memoryview(bytearray(batch))
    broker.engine.opener.append(partition, view, partition.check(view), done.set_result)
    return await done  # type: ignore[no-any-return]


@virtual
async def test_batches_are_kept_in_the_topics_codec() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t")
        partition = broker.partition("t")
        sent = [b"%d" % number * 50 for number in range(30)]
        wanted = []
        for name, codec in (("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4), ("uncompressed", 0)):
            await broker.engine.alter_topic(topic, setting(compression_type=name))
            assert not looked_at(partition, batch_of(sent, broker.clock))
            done = await opened(broker, batch_of(sent, broker.clock, codec=Codec.SNAPPY))
            assert isinstance(done, Appended)
            wanted.append(codec)
        await broker.engine.alter_topic(topic, setting(compression_type="producer"))
        assert looked_at(partition, batch_of(sent, broker.clock))
        await until_visible(partition, partition.opened().end_offset - 1)
        batches = await read_all(partition)
        assert [batch.header.codec for batch in batches] == wanted
        assert all([value for _, value in batch.records] == sent for batch in batches)


@virtual
async def test_a_batch_never_overtakes_one_that_is_being_opened() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t", 1, {"compression.type": "gzip"})
        partition = broker.partition("t")
        first = asyncio.ensure_future(opened(broker, batch_of([b"first"], broker.clock)))
        await asyncio.sleep(0)
        await broker.engine.alter_topic(topic, setting(compression_type="producer"))
        assert partition.waiting_producers or first.done()
        second = await opened(broker, batch_of([b"second"], broker.clock))
        results = [await first, second]
        assert [each.base_offset for each in results if isinstance(each, Appended)] == [0, 1]
        assert not partition.waiting_producers


@virtual
async def test_what_waits_to_be_opened_is_bounded() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t", 1, {"compression.type": "lz4"})
        batch = batch_of([b"." * (8 << 20)], broker.clock)
        results = await asyncio.gather(*(opened(broker, batch) for _ in range(33)), return_exceptions=True)
        refusals = [each for each in results if not isinstance(each, Appended)]
        assert len(refusals) == 2 and all("send again later" in str(each) for each in refusals)
        assert isinstance(await opened(broker, batch), Appended)


@virtual
async def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        topic = await broker.engine.create_topic("t")
        partition = broker.partition("t")
        await broker.engine.alter_topic(topic, setting(cleanup_policy="delete,compact"))
        batch = build_batch([(b"k", b"", [], 0), (None, b"", [], 0)], codec=Codec.LZ4)
        refusal = await opened(broker, batch)
        assert isinstance(refusal, PenstockError) and refusal.code is Code.INVALID_BATCH
        assert "record 1 of the batch has no key" in str(refusal)
        assert partition.opened().end_offset == 0
        assert isinstance(await opened(broker, build_batch([(b"k", b"v", [], 0)])), Appended)


@virtual
async def test_batches_without_a_producer_id_may_carry_any_sequence() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        await broker.engine.create_topic("t", 1, {"compression.type": "gzip"})
        for sequence in (0, 0, 7):  # aiokafka sends 0
            batch = batch_of([b"x"], broker.clock, producer_id=-1, producer_epoch=-1, base_sequence=sequence)
            assert isinstance(await opened(broker, batch), Appended)
