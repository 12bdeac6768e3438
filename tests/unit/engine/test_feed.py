"""From a cursor to the tail and back: no record is lost or doubled, however often who takes them cannot."""

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest
from tests.simulated_broker import Broker, batch_of, produce, running, virtual, wait_for

from penstock.engine.feed import FIRST, NEW, Feed
from penstock.engine.gathering import Message
from penstock.engine.partition import Partition
from penstock.engine.publishing import LEADER
from penstock.engine.reading import Message as Record
from penstock.errors import Code, PenstockError
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock, run_virtual


@dataclass
class Taker:
    """Takes records when it likes."""

    likes: bool = True
    taken: list[tuple[int, bytes | None]] = field(default_factory=list)
    errors: list[Code] = field(default_factory=list)

    def take(self, record: Record) -> None:
        assert self.likes
        self.taken.append((record.offset, record.value))

    def feed(self, broker: Broker, partition: Partition, start: int) -> Feed:
        return Feed(
            broker.engine.tails,
            partition,
            start,
            is_writable=lambda: self.likes,
            take=self.take,
            failed=lambda error: self.errors.append(error.code),
        )


class Moody(Taker):
    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.rng = rng

    def take(self, record: Record) -> None:
        super().take(record)
        self.likes = self.rng.random() < 0.8


def a_broker(seed: int = 5) -> Broker:
    return Broker(FaultyDisk(seed), MemoryStore(), VirtualClock())


async def write(broker: Broker, partition: Partition, *values: bytes) -> None:
    await produce(partition, batch_of(list(values), broker.clock))


@virtual
async def test_where_it_begins() -> None:
    async with running(a_broker()) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        await write(broker, partition, b"a", b"b", b"c")
        takers = {start: Taker() for start in (FIRST, NEW, 1)}
        feeds = [taker.feed(broker, partition, start) for start, taker in takers.items()]
        assert [await each.place() for each in feeds] == [0, 3, 1]
        await write(broker, partition, b"d")  # before any of them goes on, and behind their places
        for each in feeds:
            each.go_on()
        await wait_for(lambda: all(taker.taken and taker.taken[-1] == (3, b"d") for taker in takers.values()))
        assert [len(taker.taken) for taker in takers.values()] == [4, 1, 3]
        await wait_for(lambda: len(broker.engine.tails.of(partition)) == 3)
        for each in feeds:
            each.stop()
        assert len(broker.engine.tails.of(partition)) == 0


@virtual
async def test_records_that_a_cursor_has_given_are_not_taken_from_the_tail() -> None:
    async with running(a_broker()) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        it = Taker()
        feed = it.feed(broker, partition, 5)
        feed._take_from_tail([Record(at, 0, None, b"%d" % at, ()) for at in (3, 4, 5, 6)])
        assert it.taken == [(5, b"5"), (6, b"6")]


@virtual
async def test_a_tail_that_has_come_further_is_caught_up_with() -> None:
    async with running(a_broker()) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        first, late = Taker(), Taker()
        ahead = first.feed(broker, partition, FIRST)
        ahead.go_on()
        await write(broker, partition, b"a", b"b")
        await wait_for(lambda: len(first.taken) == 2)
        behind = late.feed(broker, partition, 0)
        assert not behind._joins(0, is_at_end=True)
        behind.go_on()
        await wait_for(lambda: len(broker.engine.tails.of(partition)) == 2)
        await write(broker, partition, b"c")
        await wait_for(lambda: len(late.taken) == 3)
        assert late.taken == [(0, b"a"), (1, b"b"), (2, b"c")]
        ahead.stop()
        behind.stop()


@virtual
async def test_a_tail_that_knows_of_more_than_a_new_leader_is_waited_for_at_rest() -> None:
    async with running(a_broker()) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        await write(broker, partition, b"a")
        first, late = Taker(), Taker()
        tail = broker.engine.tails.of(partition)
        ahead = first.feed(broker, partition, FIRST)
        ahead.go_on()
        await wait_for(lambda: len(tail) == 1)
        tail._cursor.offset = 2  # of the leader before; this one does not know yet that it may tell of it
        behind, steps = late.feed(broker, partition, FIRST), partition.steps
        behind.go_on()
        await asyncio.sleep(10)
        assert len(tail) == 1 and partition.steps - steps < 50
        await write(broker, partition, b"b")
        await wait_for(lambda: len(tail) == 2)
        assert late.taken == [(0, b"a"), (1, b"b")]
        ahead.stop()
        behind.stop()


@virtual
async def test_who_cannot_take_more_leaves_the_tail_and_goes_on_where_it_was() -> None:
    async with running(a_broker()) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        it = Taker()
        feed = it.feed(broker, partition, NEW)
        await feed.place()
        feed.go_on()
        await wait_for(lambda: len(broker.engine.tails.of(partition)) == 1)
        it.likes = False
        await write(broker, partition, b"a")
        await wait_for(lambda: len(broker.engine.tails.of(partition)) == 0)
        await write(broker, partition, b"b")
        feed.go_on()
        await asyncio.sleep(1)
        assert it.taken == []
        it.likes = True
        feed.go_on()
        feed.go_on()
        await wait_for(lambda: it.taken == [(0, b"a"), (1, b"b")])
        feed.stop()
        await write(broker, partition, b"c")
        feed.go_on()
        await asyncio.sleep(1)
        assert len(it.taken) == 2


@virtual
async def test_what_ends_it_is_told_once() -> None:
    async with running(a_broker()) as broker:
        topic = await broker.engine.create_topic("t")
        partition = topic.partitions[0]
        lost, reading, raising = Taker(), Taker(), Taker()
        feeds = [lost.feed(broker, partition, 7), reading.feed(broker, partition, FIRST)]

        def fail(record: Record) -> None:
            raise RuntimeError(f"cannot take {record}")

        feeds.append(raising.feed(broker, partition, FIRST))
        feeds[-1]._take = fail
        await write(broker, partition, b"a")
        for each in feeds:
            each.go_on()
        await wait_for(lambda: lost.errors and raising.errors)
        assert (lost.errors, raising.errors) == ([Code.OFFSET_OUT_OF_RANGE], [Code.NOT_AVAILABLE])
        await broker.engine.delete_topic(topic)
        await wait_for(lambda: reading.errors)
        await asyncio.sleep(5)
        assert (reading.errors, reading.taken) == ([Code.UNKNOWN_TOPIC], [(0, b"a")])
        assert (lost.errors, raising.errors) == ([Code.OFFSET_OUT_OF_RANGE], [Code.NOT_AVAILABLE])


def told_nothing(offset: int, error: PenstockError | None) -> None:
    return None


@pytest.mark.parametrize("seed", range(5))
def test_no_record_is_lost_or_doubled_however_often_a_feed_falls_behind(seed: int) -> None:
    async def scenario() -> None:
        rng, count = Random(seed), 300
        async with running(a_broker(seed)) as broker:
            settings = {"flush": "os"}  # so records are there as soon as they are written, in any turn
            partition = (await broker.engine.create_topic("t", 1, settings)).partitions[0]
            moody = [Moody(rng) for _ in range(3)]
            feeds = [each.feed(broker, partition, FIRST) for each in moody]
            sent = 0
            deadline = asyncio.get_running_loop().time() + 60
            while any(len(each.taken) < count for each in moody):
                for _ in range(min(rng.randrange(4), count - sent)):
                    broker.engine.gatherer.put(partition, Message(None, b"%d" % sent), LEADER, told_nothing)
                    sent += 1
                for each, feed in zip(moody, feeds, strict=True):
                    each.likes = each.likes or rng.random() < 0.5
                    if each.likes:
                        feed.go_on()
                await asyncio.sleep(0.001 if rng.random() < 0.1 else 0)
                assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(1)
            assert all(each.taken == [(at, b"%d" % at) for at in range(count)] for each in moody)
            assert not any(each.errors for each in moody)
            for feed in feeds:
                feed.stop()

    run_virtual(scenario, seed)
