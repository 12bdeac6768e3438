"""Messages with ids are appended once within the window: what is dropped, what is told of it, and what never is."""

import asyncio
from collections.abc import Container
from errno import EMFILE
from unittest.mock import patch

import pytest
from crc32c import crc32c
from tests.message_ids import (
    LONGEST_S,
    QUEUE,
    WINDOW_S,
    identified,
    publish,
    send,
    set_window,
    there,
    with_window,
)
from tests.simulated_broker import append, read_all, running, virtual, wait_for
from tests.unit.engine.test_engine import Machine

from penstock.engine.access import ANONYMOUS
from penstock.engine.once.ids import read_ids, without
from penstock.engine.partition import Partition
from penstock.engine.publishing import LEADER
from penstock.engine.queues.answers import Want
from penstock.engine.queues.receiving import Delivery
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind
from penstock.engine.queues.window import Run
from penstock.errors import Code, PenstockError
from penstock.records.batch import LOG_APPEND_TIME, Header, decode_header
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.storage.log.log import Log


async def headers(partition: Partition) -> list[Header]:
    return [each.header for each in await read_all(partition)]


def of_producer(sequence: int, *messages: tuple[str | None, bytes]) -> bytearray:
    return identified(*messages, producer_id=7, producer_epoch=0, base_sequence=sequence)


def in_transaction(sequence: int, *messages: tuple[str | None, bytes]) -> bytearray:
    return identified(*messages, producer_id=8, producer_epoch=0, base_sequence=sequence, transactional=True)


def once_of(partition: Partition) -> int:
    assert partition.once is not None
    return partition.once.memory.count


# --- what is dropped


@virtual
async def test_a_duplicate_is_answered_with_its_original() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        assert await send(jobs, broker, ("a", b"1")) == 0
        assert await send(jobs, broker, ("b", b"2")) == 1
        assert await send(jobs, broker, ("a", b"again")) == 0
        assert await send(jobs, broker, ("b", b"again"), ("a", b"again")) == 1
        assert await there(jobs) == [(0, b"1"), (1, b"2")]
        assert jobs.end_offset == 2
        assert broker.stats.queue_duplicates == {("",): 0, (QUEUE,): 3}


@virtual
async def test_what_is_new_in_a_batch_stays_where_it_is() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        await send(jobs, broker, ("a", b"1"))
        assert await send(jobs, broker, ("a", b"again"), ("b", b"2"), (None, b"3"), ("b", b"again"), ("c", b"4")) == 1
        assert await there(jobs) == [(0, b"1"), (2, b"2"), (3, b"3"), (5, b"4")]
        assert [(each.last_offset, each.record_count) for each in await headers(jobs)] == [(0, 1), (5, 3)]
        assert await send(jobs, broker, ("c", b"again")) == 5


@virtual
async def test_without_an_id_that_can_be_read_everything_is_appended() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        for name, value in (("other", b"a"), ("penstock-id", b""), ("penstock-id", None), ("penstock-id", b"\xff")):
            for _ in range(2):
                batch = bytearray(build_batch([(None, name.encode(), ((name, value),), 1_700_000_000_000)]))
                assert (await publish(jobs, broker, batch)).error is None
        long = ("penstock-id", b"x" * 257)
        for _ in range(2):
            await publish(jobs, broker, bytearray(build_batch([(None, b"long", (long,), 1_700_000_000_000)])))
        assert len(await there(jobs)) == 10
        assert once_of(jobs) == 0


@virtual
async def test_of_several_ids_the_last_one_counts() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        both = (("penstock-id", b"a"), ("penstock-id", b"b"))
        await publish(jobs, broker, bytearray(build_batch([(None, b"1", both, 1_700_000_000_000)])))
        await send(jobs, broker, ("a", b"2"))
        await send(jobs, broker, ("b", b"again"))
        assert await there(jobs) == [(0, b"1"), (1, b"2")]


@virtual
async def test_the_window_goes_by_time_alone() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        await send(jobs, broker, ("a", b"1"))
        await asyncio.sleep(WINDOW_S - 0.1)
        await send(jobs, broker, ("a", b"again"))  # this does not begin it anew
        await asyncio.sleep(LONGEST_S - WINDOW_S + 0.2)
        await send(jobs, broker, ("a", b"2"))
        assert await there(jobs) == [(0, b"1"), (1, b"2")]


@virtual
async def test_compressed_batches_are_opened_and_stay_compressed() -> None:
    for codec in (Codec.GZIP, Codec.ZSTD):
        async with running(Machine().broker()) as broker:
            jobs = await with_window(broker)
            await send(jobs, broker, ("a", b"1" * 500), ("b", b"2" * 500), codec=codec)
            await send(jobs, broker, ("b", b"again"), ("c", b"3" * 500), codec=codec)
            assert await there(jobs) == [(0, b"1" * 500), (1, b"2" * 500), (3, b"3" * 500)]
            assert [each.codec for each in await headers(jobs)] == [codec, codec]


@virtual
async def test_a_topic_with_a_codec_of_its_own() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker, compression_type="lz4")
        await send(jobs, broker, ("a", b"1" * 500), ("b", b"2" * 500))
        await send(jobs, broker, ("b", b"again"), ("c", b"3" * 500))
        assert [offset for offset, _ in await there(jobs)] == [0, 1, 3]
        assert [each.codec for each in await headers(jobs)] == [Codec.LZ4, Codec.LZ4]


@virtual
async def test_large_batches_are_opened_in_a_thread() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        many = [(f"{number}", b"%d" % number) for number in range(1000)]
        first, second = await asyncio.gather(
            publish(jobs, broker, identified(*many)), publish(jobs, broker, identified(("999", b"again")))
        )
        assert first.error is None and second.error is None
        assert len(await there(jobs)) == 1000, "the same id in two batches at once"


@virtual
async def test_setting_the_window_knows_what_is_there_already() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker, "none")
        assert jobs.once is None
        now = broker.clock.now_ms()
        await send(jobs, broker, ("a", b"1"), time_ms=now)
        await set_window(broker, "1m")
        await send(jobs, broker, ("a", b"again"), ("b", b"2"))
        await set_window(broker, "2m")
        await send(jobs, broker, ("b", b"again"))
        await set_window(broker, "none")
        assert jobs.once is None and not jobs.must_wait((await headers(jobs))[0])
        await send(jobs, broker, ("a", b"3"), time_ms=now)
        assert [value for _, value in await there(jobs)] == [b"1", b"2", b"3"]


# --- what never is


@virtual
async def test_what_brokers_move_is_not_dropped_but_remembered() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        await send(jobs, broker, ("a", b"1"))
        outcome = await publish(jobs, broker, identified(("a", b"back"), ("b", b"back")), by_broker=True)
        assert outcome.error is None
        await send(jobs, broker, ("a", b"again"), ("b", b"again"))
        assert await there(jobs) == [(0, b"1"), (1, b"back"), (2, b"back")]


@virtual
async def test_a_dead_letter_comes_back_within_the_window() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        await send(jobs, broker, ("a", b"1"))
        queues, receiving = broker.engine.queues, broker.engine.receiving

        async def receive() -> Delivery:
            (found,) = await receiving.receive(jobs, Want(QUEUE, "c", 1), 1 << 20, 5.0)
            return found

        dead = await receive()
        reject = Change(dead.message.offset, dead.message.offset, Verdict(VerdictKind.REJECT))
        await queues.settle(jobs, QUEUE, Receipt(dead.lease_id), [reject])
        await wait_for(lambda: broker.engine.topics.get(f"dlq.{QUEUE}") and broker.partition(f"dlq.{QUEUE}").end_offset)
        letters = broker.partition(f"dlq.{QUEUE}")
        assert await queues.redrive(letters, QUEUE, [Run(0, 0)]) == 1
        assert (await receive()).message.value == b"1"
        assert [value for _, value in await there(jobs)] == [b"1", b"1"]


@virtual
async def test_records_of_transactions_are_neither_dropped_nor_remembered() -> None:
    for codec in ("producer", "lz4"):  # at once, and opened first
        async with running(Machine().broker()) as broker:
            jobs = await with_window(broker, compression_type=codec)
            await send(jobs, broker, ("a", b"1"))
            append(jobs, in_transaction(0, ("a", b"2"), ("b", b"3")))  # it is open from here on
            assert (await publish(jobs, broker, in_transaction(2, ("a", b"4"), ("c", b"5")), LEADER)).error is None
            await send(jobs, broker, ("b", b"6"), ("c", b"7"))
            assert [value for _, value in await there(jobs)] == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


@virtual
async def test_an_append_that_failed_leaves_nothing_behind() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        jobs = await with_window(broker)
        machine.disk.capacity_bytes = 0
        outcome = await publish(jobs, broker, identified(("a", b"1")))
        assert outcome.error is not None and outcome.error.code is Code.STORAGE_FULL
        machine.disk.capacity_bytes = None
        await send(jobs, broker, ("a", b"1"))
        assert await there(jobs) == [(0, b"1")]


@virtual
async def test_a_duplicate_is_told_when_its_original_is_safe() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        sent = [asyncio.ensure_future(publish(jobs, broker, identified(("a", each)))) for each in (b"1", b"again")]
        await sent[1]
        assert jobs.high_watermark == 1
        await sent[0]
        sent = [asyncio.ensure_future(publish(jobs, broker, identified(("b", each)), LEADER)) for each in (b"2", b"3")]
        await sent[1]
        assert jobs.high_watermark == 1, "who does not want it safe waits for nothing"
        await sent[0]


@virtual
async def test_what_was_asked_before_a_batch_is_rewritten_is_asked_again() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        await send(jobs, broker, ("a", b"1"))

        def lead_anew(batch: memoryview, header: Header, dropped: Container[int]) -> tuple[memoryview, Header]:
            if jobs.once is once:
                jobs.lead(jobs.state)
            return without(batch, header, dropped)

        once = jobs.once
        with patch("penstock.engine.once.once.without", lead_anew):
            await send(jobs, broker, ("a", b"again"), ("b", b"2"))
        assert jobs.once is not once
        await send(jobs, broker, ("b", b"again"))
        assert [value for _, value in await there(jobs)] == [b"1", b"2"]

        asked: list[Partition] = []

        def check(partition: Partition) -> None:
            asked.append(partition)
            if len(asked) == 2:
                raise PenstockError(Code.NOT_AUTHORISED, "not any more")

        batch = memoryview(identified(("a", b"again"), ("c", b"3")))
        header = decode_header(batch)
        assert jobs.once is not None
        with pytest.raises(PenstockError, match="not any more"):
            await jobs.once.append(batch, decode_header(batch), read_ids(batch, header), check, drops=True)
        assert len(await there(jobs)) == 2


# --- producers that number what they send


@virtual
async def test_sequences_advance_over_what_was_dropped() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        jobs = await with_window(broker)
        await publish(jobs, broker, of_producer(0, ("a", b"1"), ("b", b"2")))
        outcome = await publish(jobs, broker, of_producer(2, ("a", b"again"), ("b", b"again")))
        assert outcome.appended is not None and outcome.appended.base_offset == 0
        found = [(each.base_sequence, each.last_sequence, each.is_control) for each in await headers(jobs)]
        assert found == [(0, 1, False), (2, 3, True)]
        outcome = await publish(jobs, broker, of_producer(4, ("b", b"again"), ("c", b"3"), ("a", b"again")))
        assert outcome.error is None
    async with running(machine.broker()) as broker:
        jobs = broker.partition(QUEUE)
        assert (await publish(jobs, broker, of_producer(7, ("a", b"again")))).error is None
        assert (await publish(jobs, broker, of_producer(8, ("d", b"4")))).error is None
        assert [value for _, value in await there(jobs)] == [b"1", b"2", b"3", b"4"]
        outcome = await publish(jobs, broker, of_producer(10, ("e", b"5")))
        assert outcome.error is not None and outcome.error.code is Code.OUT_OF_ORDER_SEQUENCE


@virtual
async def test_a_retry_is_known_by_its_sequence() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        await send(jobs, broker, ("a", b"1"))
        sent = [of_producer(0, ("a", b"again"), ("b", b"2")), of_producer(2, ("c", b"3")), of_producer(3, ("d", b"4"))]
        first = [await publish(jobs, broker, batch) for batch in sent]
        end = jobs.end_offset
        again = [await publish(jobs, broker, batch) for batch in sent]
        assert [each.appended for each in again] == [each.appended for each in first]
        assert jobs.end_offset == end
        assert broker.stats.queue_duplicates[QUEUE,] == 1


@virtual
async def test_a_retry_of_what_was_dropped_whole_is_answered_too() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        await send(jobs, broker, ("a", b"1"))
        for _ in range(2):
            assert (await publish(jobs, broker, of_producer(0, ("a", b"again")))).error is None
        assert len(await headers(jobs)) == 2


@virtual
async def test_a_duplicate_needs_no_room_in_a_full_queue() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        topic = broker.engine.topics.get(QUEUE)
        assert topic is not None
        rules = {"dedup-window": "8s", "max-size": "2"}
        await broker.engine.alter_queues(topic, lambda _: {QUEUE: rules})
        await broker.engine.queues.open(jobs, QUEUE)
        await send(jobs, broker, ("a", b"1"), ("b", b"2"))
        assert await send(jobs, broker, ("b", b"again")) == 1
        assert (await publish(jobs, broker, of_producer(0, ("a", b"again")))).error is None
        outcome = await publish(jobs, broker, of_producer(1, ("c", b"3")))
        assert outcome.error is not None and outcome.error.code is Code.QUEUE_FULL


# --- after a restart


@virtual
async def test_ids_are_known_again_after_a_restart() -> None:
    for clean in (True, False):
        machine = Machine()
        broker = machine.broker()
        await broker.start()
        jobs = await with_window(broker, segment_bytes="1024")
        await send(jobs, broker, ("old", b"0"))
        await asyncio.sleep(2 * WINDOW_S + 1)
        for number in range(40):
            await send(jobs, broker, (f"{number}", b"%d" % number + b"." * 100))
        if clean:
            await broker.stop()
        else:
            machine.disk.cut_power()
            machine.disk = machine.disk.after_power_cut()
        async with running(machine.broker()) as broker:
            jobs = broker.partition(QUEUE)
            for number in range(40):
                assert await send(jobs, broker, (f"{number}", b"again")) == number + 1
            assert await send(jobs, broker, ("old", b"new")) == 41


@virtual
async def test_whatever_time_a_record_claims_the_brokers_time_counts() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        jobs = await with_window(broker)
        for number, time_ms in enumerate((1_000, broker.clock.now_ms() - 86_400_000, -1)):
            before = broker.clock.now_ms()
            await send(jobs, broker, (f"{number}", b"1"), time_ms=time_ms)
            header = (await headers(jobs))[-1]
            assert header.attributes & LOG_APPEND_TIME
            assert before <= header.max_timestamp <= broker.clock.now_ms()
    async with running(machine.broker()) as broker:
        jobs = broker.partition(QUEUE)
        for number in range(3):
            assert await send(jobs, broker, (f"{number}", b"again")) == number
        await asyncio.sleep(2 * WINDOW_S + 2)
        assert await send(jobs, broker, ("0", b"again")) == 3


@virtual
async def test_batches_wait_until_the_ids_are_known() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        jobs = await with_window(broker)
        await send(jobs, broker, ("a", b"1"))
        await set_window(broker, "none")
        machine.disk.fail("read_at", EMFILE, path_contains="jobs/0", times=5)
        began = asyncio.get_running_loop().time()
        await set_window(broker, "1m")
        assert await send(jobs, broker, ("a", b"again")) == 0
        assert asyncio.get_running_loop().time() - began > 1
        assert await there(jobs) == [(0, b"1")]


@virtual
async def test_what_cannot_be_read_is_passed_over() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        jobs = await with_window(broker, "none", records_check="none")
        now = broker.clock.now_ms()
        spoiled = identified(("a", b"1"), time_ms=now, codec=Codec.GZIP)
        spoiled[61:] = b"\xff" * (len(spoiled) - 61)
        spoiled[17:21] = crc32c(spoiled[21:]).to_bytes(4, "big")
        assert (await publish(jobs, broker, spoiled)).error is None
        await send(jobs, broker, ("b", b"2"), time_ms=now)
        await set_window(broker, "1m")
        assert await send(jobs, broker, ("b", b"again")) == 1
        assert await send(jobs, broker, ("a", b"new")) == 2


@virtual
async def test_of_a_damaged_log_the_rest_is_known() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        jobs = await with_window(broker, segment_bytes="1024")
        for number in range(20):
            await send(jobs, broker, (f"{number}", b"." * 200))
        segments = list(jobs.leading().segments)
        assert len(segments) > 3
    machine.disk.flip_byte(segments[1].path, 300)
    async with running(machine.broker()) as broker:
        jobs = broker.partition(QUEUE)
        assert await send(jobs, broker, ("0", b"again")) == 0
        assert await send(jobs, broker, ("19", b"again")) == 19
        assert await send(jobs, broker, (f"{segments[1].base}", b"new")) == 20


@virtual
async def test_the_log_keeps_what_ids_come_from() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker, segment_bytes="1024", retention_ms="100")
        topic = broker.engine.topics.get(QUEUE)
        assert topic is not None
        await broker.engine.alter_queues(topic, lambda _: {QUEUE: {"dedup-window": "8s", "durable": "false"}})
        for number in range(20):
            await send(jobs, broker, (f"{number}", b"." * 200))
        await asyncio.sleep(WINDOW_S - 1)
        assert jobs.log_start == 0
        await wait_for(lambda: jobs.log_start > 10, 30.0)


# --- limits


@virtual
async def test_too_many_ids_are_refused_until_some_are_too_old() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        broker.engine.windows._around.most_each = 3
        await send(jobs, broker, ("a", b"1"), ("b", b"2"), ("c", b"3"))
        outcome = await publish(jobs, broker, identified(("a", b"again"), ("d", b"4")))
        assert outcome.error is not None and outcome.error.code is Code.LIMIT_EXCEEDED
        assert "jobs-0 remembers 3 message ids" in str(outcome.error)
        assert await send(jobs, broker, ("c", b"again")) == 0 + 2
        await send(jobs, broker, (None, b"5"))
        await asyncio.sleep(LONGEST_S)
        await send(jobs, broker, ("d", b"4"))
        assert len(await there(jobs)) == 5


@virtual
async def test_all_partitions_of_a_broker_have_a_limit_together() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker, partitions=2)
        broker.engine.windows._around.most = 3
        await send(jobs, broker, ("a", b"1"), ("b", b"2"))
        other = broker.partition(QUEUE, 1)
        await send(other, broker, ("c", b"1"))
        outcome = await publish(other, broker, identified(("d", b"4")))
        assert outcome.error is not None and "this broker remembers 3 message ids" in str(outcome.error)
        await set_window(broker, "none")
        assert broker.engine.windows._around.count == 0


@virtual
async def test_of_too_many_in_the_log_the_newest_are_known() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        jobs = await with_window(broker)
        for number in range(6):
            await send(jobs, broker, (f"{number}", b"%d" % number))
            await asyncio.sleep(1)
    broker = machine.broker()
    broker.engine.windows._around.most_each = 3
    async with running(broker):
        jobs = broker.partition(QUEUE)
        for number in (3, 4, 5):
            assert await send(jobs, broker, (f"{number}", b"again")) == number
        assert once_of(jobs) == 3


@virtual
async def test_so_many_topics_have_a_name_among_the_figures() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        with patch("penstock.engine.once.windows.MOST_NAMED", 0):
            await send(jobs, broker, ("a", b"1"))
            await send(jobs, broker, ("a", b"again"))
        assert broker.stats.queue_duplicates == {("",): 1}


@virtual
async def test_only_the_queue_of_its_topics_name_has_a_window() -> None:
    async with running(Machine().broker()) as broker:
        await with_window(broker)
        topic = broker.engine.topics.get(QUEUE)
        assert topic is not None
        queues = broker.engine.acting_as(ANONYMOUS).queues
        with pytest.raises(PenstockError, match="dedup-window is '5m' for 'jobs:billing'") as refused:
            await queues.alter(topic, "billing", lambda _: {"dedup-window": "5m"})
        assert refused.value.code is Code.INVALID_CONFIG and "queue 'jobs'" in refused.value.help
        await queues.alter(topic, "billing", lambda _: {"dedup-window": "none"})
        await queues.alter(topic, QUEUE, lambda _: {"dedup-window": "5m"})
        once = broker.partition(QUEUE).once
        assert once is not None and once.window_ms == 300_000


@virtual
async def test_a_partition_for_which_others_leave_no_room_knows_nothing_and_takes_nothing_new() -> None:
    machine = Machine()
    async with running(machine.broker()) as broker:
        jobs = await with_window(broker, "none", partitions=2)
        other, now = broker.partition(QUEUE, 1), broker.clock.now_ms()
        await send(jobs, broker, ("a", b"1"), time_ms=now)
        broker.engine.windows._around.most, broker.engine.windows._around.count = 3, 5
        await set_window(broker, "8s")
        outcome = await publish(jobs, broker, identified(("a", b"again")))
        assert outcome.error is not None and outcome.error.code is Code.LIMIT_EXCEEDED
        await send(other, broker, (None, b"2"))


# --- who leads


@virtual
async def test_who_waits_is_told_when_another_broker_leads() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        once = jobs.once
        assert once is not None
        async with once._turn:
            waiting = [asyncio.ensure_future(publish(jobs, broker, identified(("a", b"1")))) for _ in range(2)]
            await asyncio.sleep(0.1)
            log: Log = jobs.leading()
            floors = len(log.floors)
            jobs.follow(jobs.state)
            assert jobs.once is None and len(log.floors) == floors - 1
        for outcome in await asyncio.gather(*waiting):
            assert outcome.error is not None and outcome.error.code is Code.NOT_LEADER
        jobs.lead(jobs.state)
        assert jobs.once is not None and jobs.once is not once
        assert await send(jobs, broker, ("a", b"1")) == 0


@virtual
async def test_a_topic_that_is_deleted_leaves_nothing_behind() -> None:
    async with running(Machine().broker()) as broker:
        jobs = await with_window(broker)
        await send(jobs, broker, ("a", b"1"))
        topic = broker.engine.topics.get(QUEUE)
        assert topic is not None
        await broker.engine.delete_topic(topic)
        assert jobs.once is None and not broker.engine.windows.open
        assert broker.engine.windows._around.count == 0
