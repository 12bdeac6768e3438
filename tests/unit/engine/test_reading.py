"""The verb that reads: the next slice or records, or a wait; and a tail that many share."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.simulated_broker import Broker, append, batch_of, produce, running, virtual, wait_for

from penstock.engine.partition import Partition
from penstock.engine.reading import Cursor, Message
from penstock.engine.tails import Tail
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.records.control import Marker
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock

PRODUCER = 7


def a_broker() -> Broker:
    return Broker(FaultyDisk(5), MemoryStore(), VirtualClock())


async def a_partition(broker: Broker, **settings: str) -> Partition:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return (await broker.engine.create_topic("t", settings=named)).partitions[0]


async def write(broker: Broker, partition: Partition, *values: bytes) -> None:
    await produce(partition, batch_of(list(values), broker.clock))


def values_of(messages: Sequence[Message]) -> list[bytes | None]:
    return [each.value for each in messages]


@virtual
async def test_records_come_in_order_and_the_cursor_moves_behind_them() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        await write(broker, partition, b"a", b"b", b"c")
        await write(broker, partition, b"d")
        cursor = Cursor(partition, 1)
        assert values_of(await cursor.records(1000, 0, most=1)) == [b"b"]
        assert values_of(await cursor.records(1000, 0)) == [b"c", b"d"]
        assert cursor.offset == 4
        assert await cursor.records(1000, 0) == []


@virtual
async def test_a_record_has_all_its_parts() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        headers = (("h", b"1"), ("none", None))
        now_ms = broker.clock.now_ms()
        for codec in Codec:
            await produce(partition, bytearray(build_batch([(b"k", b"v", headers, now_ms)], codec=codec)))
        found = await Cursor(partition, 0).records(1 << 20, 0)
        assert found == [Message(at, now_ms, b"k", b"v", headers) for at in range(len(Codec))]


@virtual
async def test_who_finds_nothing_waits_until_there_is_something_or_the_time_is_up() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        cursor, loop = Cursor(partition, 0), asyncio.get_running_loop()
        began = loop.time()
        assert await cursor.records(1000, 5) == []
        assert loop.time() - began == pytest.approx(5, abs=0.1)
        waiting = asyncio.ensure_future(cursor.records(1000, 1000))
        await asyncio.sleep(1)
        assert not waiting.done()
        append(partition, batch_of([b"x"], broker.clock))
        await asyncio.wait_for(waiting, 5)
        assert values_of(waiting.result()) == [b"x"]
        assert not partition.waiters._readers, "who waits no more is not called any more"


@virtual
async def test_what_is_not_committed_or_was_aborted_is_not_seen() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)

        async def in_transaction(value: bytes, sequence: int) -> None:
            fields = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
            await produce(partition, batch_of([value], broker.clock, **fields))

        await in_transaction(b"gone", 0)
        partition.append_marker(PRODUCER, 0, Marker.ABORT, 0)
        await write(broker, partition, b"plain")
        await in_transaction(b"stays", 1)
        committed, uncommitted = Cursor(partition, 0), Cursor(partition, 0, committed=False)
        assert values_of(await committed.records(1 << 20, 1)) == [b"plain"]
        assert await committed.records(1 << 20, 1) == []
        assert values_of(await uncommitted.records(1 << 20, 1)) == [b"gone", b"plain", b"stays"]
        partition.append_marker(PRODUCER, 0, Marker.COMMIT, 0)
        assert values_of(await committed.records(1 << 20, 10)) == [b"stays"]


@virtual
async def test_what_has_to_come_from_the_disk_comes() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker, segment_bytes="1024")
        for number in range(50):
            await write(broker, partition, b"%d" % number * 50)
        await wait_for(lambda: all(segment.sealed for segment in partition.opened().segments[:-1]))
        cursor, found = Cursor(partition, 0), []
        while messages := await cursor.records(300, 0):
            found += values_of(messages)
        assert found == [b"%d" % number * 50 for number in range(50)]


@virtual
async def test_a_batch_larger_than_the_limit_is_given_whole_and_decoded_in_a_thread() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        large = [bytes([at]) * 100_000 for at in range(3)]
        await write(broker, partition, *large)
        assert values_of(await Cursor(partition, 0).records(10, 0)) == large


@virtual
async def test_a_place_that_is_not_there() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        for offset in (-1, 1):
            with pytest.raises(PenstockError) as refused:
                await Cursor(partition, offset).records(1000, 5)
            assert refused.value.code is Code.OFFSET_OUT_OF_RANGE
        waiting = asyncio.ensure_future(Cursor(partition, 0).records(1000, 1000))
        await asyncio.sleep(1)
        await broker.engine.delete_topic(broker.engine.topics.get("t"))
        with pytest.raises(PenstockError) as gone:
            await waiting
        assert gone.value.code is Code.UNKNOWN_TOPIC


class Subscriber:
    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.errors: list[Code] = []

    def take(self, messages: Sequence[Message]) -> None:
        self.taken += messages

    def failed(self, error: PenstockError) -> None:
        self.errors.append(error.code)

    def join(self, tail: Tail) -> int:
        return tail.join(self.take, self.failed)


@virtual
async def test_a_tail_is_read_once_for_all_of_its_subscribers() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        await write(broker, partition, b"before")
        tail, many = broker.engine.tails.of(partition), [Subscriber() for _ in range(100)]
        assert broker.engine.tails.of(partition) is tail
        assert [each.join(tail) for each in many] == [1] * 100
        steps = partition.steps
        await write(broker, partition, b"a", b"b")
        await wait_for(lambda: all(values_of(each.taken) == [b"a", b"b"] for each in many))
        assert partition.steps - steps < 10, "one append, and a few looks"
        late = Subscriber()
        assert late.join(tail) == 3
        for each in many:
            tail.leave(each.take)
        await write(broker, partition, b"c")
        await wait_for(lambda: values_of(late.taken) == [b"c"])
        assert all(len(each.taken) == 2 for each in many)
        tail.leave(late.take)
        assert len(tail) == 0
        await asyncio.sleep(1)
        assert not partition.waiters._readers


@virtual
async def test_a_tail_that_ends_says_why() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        tail, it = Tail(partition), Subscriber()
        it.join(tail)
        await broker.engine.delete_topic(broker.engine.topics.get("t"))
        await wait_for(lambda: it.errors)
        assert it.errors == [Code.UNKNOWN_TOPIC]
        with pytest.raises(PenstockError):
            Subscriber().join(tail)


@virtual
async def test_a_subscriber_that_fails_harms_no_other() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        tail, bad, good = Tail(partition), Subscriber(), Subscriber()

        def fail(messages: Sequence[Message]) -> None:
            raise RuntimeError(f"cannot take {len(messages)}")

        tail.join(fail, bad.failed)
        good.join(tail)
        await write(broker, partition, b"a")
        await write(broker, partition, b"b")
        await wait_for(lambda: values_of(good.taken) == [b"a", b"b"])
        assert (bad.errors, good.errors, len(tail)) == ([Code.NOT_AVAILABLE], [], 1)


@virtual
async def test_who_was_made_to_leave_by_another_takes_nothing_more() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        tail, one, other = Tail(partition), Subscriber(), Subscriber()

        def take(messages: Sequence[Message]) -> None:
            one.take(messages)
            tail.leave(other.take)

        tail.join(take, one.failed)
        other.join(tail)
        await write(broker, partition, b"a")
        await wait_for(lambda: values_of(one.taken) == [b"a"])
        assert other.taken == []


async def a_backlog(broker: Broker, partition: Partition, marker: Marker) -> None:
    """Forty stretches that come in sight at once, if at all."""
    for at in range(40):
        batch = batch_of(
            [b"." * 60_000], broker.clock, producer_id=PRODUCER, producer_epoch=0, base_sequence=at, transactional=True
        )
        append(partition, batch)
    last = partition.append_marker(PRODUCER, 0, marker, 0).last_offset
    await wait_for(lambda: partition.high_watermark > last)


@virtual
async def test_who_left_a_tail_has_nothing_read_for_it() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        tail, it = Tail(partition), Subscriber()

        def take(messages: Sequence[Message]) -> None:
            it.take(messages)
            tail.leave(take)

        tail.join(take, it.failed)
        steps = partition.steps
        await a_backlog(broker, partition, Marker.COMMIT)
        await wait_for(lambda: it.taken)
        await asyncio.sleep(1)
        assert len(it.taken) == 1
        assert partition.steps - steps < 41 + 5, "41 appends, and a few looks"


@virtual
async def test_others_have_their_turn_while_much_is_passed_over() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        await a_backlog(broker, partition, Marker.ABORT)
        steps = partition.steps
        reading = asyncio.create_task(Cursor(partition, 0).records(64 << 10, 0))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert reading.result() == []
        assert turns >= partition.steps - steps >= 40


@virtual
async def test_a_subscriber_that_cannot_be_told_harms_no_other() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        tail, good = Tail(partition), Subscriber()

        def fail(_: object) -> None:
            raise RuntimeError("cannot")

        tail.join(fail, fail)
        tail.join(lambda messages: None, fail)
        good.join(tail)
        await write(broker, partition, b"a")
        await write(broker, partition, b"b")
        await wait_for(lambda: values_of(good.taken) == [b"a", b"b"])
        await broker.engine.delete_topic(broker.engine.topics.get("t"))
        await wait_for(lambda: good.errors)
        assert (good.errors, len(tail)) == ([Code.UNKNOWN_TOPIC], 0)


@virtual
async def test_a_tail_that_breaks_tells_everybody_and_can_be_joined_again() -> None:
    async with running(a_broker()) as broker:
        partition = await a_partition(broker)
        tail, it, later = Tail(partition), Subscriber(), Subscriber()
        it.join(tail)

        async def broken(*_: object) -> list[Message]:
            raise RuntimeError("a bug")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Cursor, "next", broken)
            await write(broker, partition, b"a", b"b")
            await write(broker, partition, b"c")
            await wait_for(lambda: it.errors)
        assert it.errors == [Code.NOT_AVAILABLE]
        later.join(tail)
        await write(broker, partition, b"d")
        await wait_for(lambda: values_of(later.taken) == [b"d"])
        tail.leave(later.take)
