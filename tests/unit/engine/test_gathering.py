"""Single messages become batches: one for each partition and turn of the loop, and none is harmed by another."""

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any

from tests.simulated_broker import Broker, read_all, running, virtual, wait_for

from penstock.engine.gathering import Message
from penstock.engine.partition import Partition
from penstock.engine.publishing import ALL, LEADER, NONE, Durability, Publication
from penstock.errors import Code, PenstockError
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock


@dataclass
class Sender:
    """Puts messages, and keeps what it is told in that order."""

    broker: Broker
    told: list[tuple[bytes | None, int, Code | None]] = field(default_factory=list)

    def put(
        self,
        partition: Partition,
        value: bytes | None,
        durability: Durability = ALL,
        key: bytes | None = b"k",
        timestamp_ms: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> None:
        def told(offset: int, error: PenstockError | None) -> None:
            self.told.append((value, offset, error.code if error else None))

        self.broker.engine.gatherer.put(partition, Message(key, value, headers, timestamp_ms), durability, told)

    async def until_told(self, count: int) -> None:
        await wait_for(lambda: len(self.told) >= count, 10)


def a_broker() -> Broker:
    return Broker(FaultyDisk(5), MemoryStore(), VirtualClock())


@virtual
async def test_a_turn_is_one_batch_for_each_partition() -> None:
    async with running(a_broker()) as broker:
        one, other = [(await broker.engine.create_topic(name)).partitions[0] for name in ("one", "other")]
        it = Sender(broker)
        for number in range(100):
            it.put(one if number % 2 else other, b"%d" % number)
        assert it.told == []
        await it.until_told(100)
        assert {value: offset for value, offset, _ in it.told} == {b"%d" % n: n // 2 for n in range(100)}
        assert [len(await read_all(each)) for each in (one, other)] == [1, 1]
        it.put(one, b"later")
        await it.until_told(101)
        assert it.told[-1] == (b"later", 50, None)


@virtual
async def test_who_wants_less_does_not_wait_for_who_wants_more() -> None:
    async with running(a_broker()) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        it = Sender(broker)
        it.put(partition, b"safe", ALL)
        it.put(partition, b"written", LEADER)
        it.put(partition, b"sent", NONE)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert it.told == [(b"written", 1, None), (b"sent", 2, None)]
        await it.until_told(3)
        assert it.told[-1] == (b"safe", 0, None)


@virtual
async def test_large_heaps_are_several_batches_and_order_is_kept() -> None:
    async with running(a_broker()) as broker:
        partition = (await broker.engine.create_topic("t", settings={"max.message.bytes": "5000"})).partitions[0]
        it = Sender(broker)
        for number in range(20):
            it.put(partition, b"%02d" % number * 500)
        await it.until_told(20)
        assert sorted(it.told, key=lambda told: told[1]) == [(b"%02d" % n * 500, n, None) for n in range(20)]
        assert len(await read_all(partition)) == 5


@virtual
async def test_a_message_that_is_not_taken_harms_no_other() -> None:
    async with running(a_broker()) as broker:
        keyed = (await broker.engine.create_topic("t", settings={"cleanup.policy": "compact"})).partitions[0]
        plain = (await broker.engine.create_topic("u", settings={"max.message.bytes": "5000"})).partitions[0]
        it = Sender(broker)
        it.put(keyed, b"good")
        it.put(keyed, b"no key", key=None)
        it.put(keyed, b"also good")
        it.put(plain, b"fine")
        it.put(plain, bytes(6000))
        it.put(plain, b"time", timestamp_ms=1 << 70)
        it.put(plain, b"name", headers=(("\ud800", None),))
        await it.until_told(7)
        codes = {value: code for value, _, code in it.told}
        assert codes == {
            b"good": None,
            b"no key": Code.INVALID_BATCH,
            b"also good": None,
            b"fine": None,
            bytes(6000): Code.BATCH_TOO_LARGE,
            b"time": Code.INVALID_BATCH,
            b"name": Code.INVALID_BATCH,
        }
        kept = [offset for batch in await read_all(keyed) for offset, _ in batch.records]
        assert kept == [0, 1]


@virtual
async def test_one_that_is_not_taken_among_many_costs_a_few_batches() -> None:
    async with running(a_broker()) as broker:
        keyed = (await broker.engine.create_topic("t", settings={"cleanup.policy": "compact"})).partitions[0]
        plain = (await broker.engine.create_topic("u")).partitions[0]
        it = Sender(broker)
        for number in range(1000):
            it.put(keyed, b"%d" % number, key=None if number == 700 else b"k")
            it.put(plain, b"%d" % number, timestamp_ms=1 << 70 if number == 700 else None)
        steps = keyed.steps, plain.steps
        await it.until_told(2000)
        assert sorted(told for told in it.told if told[2]) == [(b"700", -1, Code.INVALID_BATCH)] * 2
        assert [offset for batch in await read_all(keyed) for offset, _ in batch.records] == [*range(999)]
        in_order = [value for batch in await read_all(plain) for _, value in batch.records]
        assert in_order == [b"%d" % number for number in range(1000) if number != 700]
        assert keyed.steps - steps[0] < 5, "those at fault are named"
        assert plain.steps - steps[1] < 15, "it is halved again and again"


@virtual
async def test_what_is_no_message_at_all_harms_no_other() -> None:
    async with running(a_broker()) as broker:
        one, other = [(await broker.engine.create_topic(name)).partitions[0] for name in ("one", "other")]
        it = Sender(broker)
        it.put(one, "text")  # type: ignore[arg-type]
        it.put(one, b"good")
        it.put(other, b"fine")
        await it.until_told(3)
        codes = {value: code for value, _, code in it.told}
        assert codes == {"text": Code.INVALID_BATCH, b"good": None, b"fine": None}


@virtual
async def test_a_heap_that_cannot_be_published_keeps_no_other_from_it() -> None:
    async with running(a_broker()) as broker:
        one, other = [(await broker.engine.create_topic(name)).partitions[0] for name in ("one", "other")]
        it, begin = Sender(broker), broker.engine.publishing.begin
        left = iter([RuntimeError("a bug")])

        def broken(*args: Any, **more: Any) -> Publication:
            for error in left:
                raise error
            return begin(*args, **more)

        broker.engine.publishing.begin = broken  # type: ignore[method-assign]
        it.put(one, b"lost")
        it.put(other, b"fine")
        await it.until_told(2)
        assert {value: code for value, _, code in it.told} == {b"lost": Code.OUTCOME_UNKNOWN, b"fine": None}
        assert broker.failures == []


@virtual
async def test_everybody_is_told_of_a_partition_that_is_gone() -> None:
    async with running(a_broker()) as broker:
        topic = await broker.engine.create_topic("t")
        it = Sender(broker)
        it.put(topic.partitions[0], b"before")
        it.put(topic.partitions[0], b"with it")
        await broker.engine.delete_topic(topic)
        await it.until_told(2)
        it.put(topic.partitions[0], b"after")
        await it.until_told(3)
        assert it.told[-1] == (b"after", -1, Code.UNKNOWN_TOPIC)


@virtual
async def test_a_publisher_that_cannot_be_told_harms_no_other() -> None:
    async with running(a_broker()) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        it = Sender(broker)

        def fail(offset: int, error: PenstockError | None) -> None:
            raise RuntimeError(f"cannot be told of {offset}")

        it.put(partition, b"before")
        broker.engine.gatherer.put(partition, Message(None, b"its own"), ALL, fail)
        it.put(partition, b"behind")
        await it.until_told(2)
        it.put(partition, b"later")
        await it.until_told(3)
        assert it.told == [(b"before", 0, None), (b"behind", 2, None), (b"later", 3, None)]
        assert broker.failures == []


@virtual
async def test_a_message_that_is_written_takes_no_memory_until_it_is_safe() -> None:
    async with running(a_broker()) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        value, told = bytes(100_000), []
        references = sys.getrefcount(value)
        for _ in range(3):
            broker.engine.gatherer.put(partition, Message(None, value), ALL, lambda offset, error: told.append(offset))
        assert sys.getrefcount(value) > references
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (told, sys.getrefcount(value)) == ([], references)
        await wait_for(lambda: told == [0, 1, 2])
