"""The verb that publishes: what is told when, by how safe the records shall be."""

import asyncio
from dataclasses import replace
from typing import NamedTuple

import pytest
from tests.simulated_broker import Broker, batch_of, running, virtual, wait_for

from penstock.engine.partition import Partition
from penstock.engine.partition_state import alone
from penstock.engine.publishing import (
    ALL,
    LEADER,
    MAJORITY,
    NONE,
    Durability,
    Publication,
    Publishing,
    parse_durability,
)
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.memory_metadata import MemoryStore
from penstock.testing.virtual_clock import VirtualClock

from .led_partition import THREE, Led, led

TWO_OF_FIVE = replace(THREE, replicas=(1, 2, 3, 4, 5), isr=(1, 2))


class Told(NamedTuple):
    """Of one batch: where it is, or why not."""

    offset: int
    error: Code | None


class Publisher:
    """Publishes single batches and keeps what it is told."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing
        self.told: list[list[Told]] = []

    def publish(
        self, durability: Durability, *batches: tuple[Partition, bytes | bytearray], timeout_s: float = 30
    ) -> Publication:
        publication = self._publishing.begin(durability, timeout_s, self._done)
        for partition, batch in batches:
            view = memoryview(bytearray(batch))
            publication.add(partition, view)
        publication.wait()
        return publication

    def _done(self, publication: Publication) -> None:
        self.told.append(
            [
                Told(each.appended.base_offset if each.appended else -1, each.error.code if each.error else None)
                for each in publication.batches
            ]
        )


def publisher() -> Publisher:
    """Of batches that need neither a transaction nor a thread."""
    return Publisher(Publishing(None, None))  # type: ignore[arg-type]


def one(made: Led, value: bytes = b"x") -> tuple[Partition, bytearray]:
    return made.partition, batch_of([value], made.bench.clock)


@virtual
async def test_who_wants_no_more_than_the_leader_is_told_at_once() -> None:
    made, it = await led(), publisher()
    it.publish(NONE, one(made))
    it.publish(LEADER, one(made))
    assert it.told == [[Told(0, None)], [Told(1, None)]]


@virtual
async def test_who_wants_it_safe_is_told_when_all_in_sync_have_it() -> None:
    for durability in (ALL, MAJORITY, parse_durability("3")):
        made, it = await led(), publisher()
        it.publish(durability, one(made))
        await made.bench.commit()
        made.fetched(2, 1)
        assert it.told == [], "a majority has it, and the third could still be elected without it"
        made.fetched(3, 1)
        assert it.told == [[Told(0, None)]]


@virtual
async def test_too_few_in_sync_are_named_and_nothing_is_appended() -> None:
    for word, needed in (("majority", 3), ("3", 3), ("4", 4)):
        made = await led(TWO_OF_FIVE)
        publication = Publishing(None, None).begin(parse_durability(word), 30, lambda _: None)
        error = publication.add(made.partition, memoryview(one(made)[1])).error
        assert error is not None and error.code is Code.NOT_ENOUGH_REPLICAS
        assert f"2 of 5 replicas in sync; {needed} are needed (brokers not in sync: 3, 4, 5)" in str(error)
        assert made.partition.opened().end_offset == 0


@virtual
async def test_no_number_is_below_what_the_topic_wants() -> None:
    for word in ("1", "2", "all"):
        made, it = await led(replace(THREE, isr=(1,)), min_insync_replicas="2"), publisher()
        it.publish(parse_durability(word), one(made))
        assert it.told == [[Told(-1, Code.NOT_ENOUGH_REPLICAS)]]


@virtual
async def test_a_broker_that_leaves_before_it_has_the_batch_is_missed_by_who_counts() -> None:
    made, counting, trusting = await led(min_insync_replicas="2"), publisher(), publisher()
    counting.publish(parse_durability("3"), one(made))
    trusting.publish(ALL, one(made))
    await made.bench.commit()
    made.fetched(2, 2)
    made.partition.use_state(replace(THREE, isr=(1, 2), revision=2))
    assert trusting.told == [[Told(1, None)]]
    assert counting.told == [[Told(0, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]]


@virtual
async def test_what_is_not_safe_in_time_is_told_so_and_never_again() -> None:
    made, it = await led(), publisher()
    it.publish(ALL, one(made), timeout_s=2)
    await made.bench.commit()
    await asyncio.sleep(1.9)
    assert it.told == []
    await asyncio.sleep(0.2)
    assert it.told == [[Told(0, Code.TIMED_OUT)]]
    made.fetched(2, 1)
    made.fetched(3, 1)
    assert len(it.told) == 1


@virtual
async def test_a_broker_of_its_own_waits_for_its_disk_however_long_that_takes() -> None:
    made, it = await led(alone(1, 0)), publisher()
    it.publish(ALL, one(made), timeout_s=0)
    await asyncio.sleep(0)
    assert it.told == []
    await made.bench.commit()
    assert it.told == [[Told(0, None)]]


@virtual
async def test_a_leader_that_is_none_any_more_says_so() -> None:
    made, it = await led(), publisher()
    it.publish(ALL, one(made))
    made.partition.follow(replace(THREE, leader=2, leader_epoch=1, revision=2))
    it.publish(ALL, one(made))
    assert it.told == [[Told(0, Code.NOT_LEADER)], [Told(-1, Code.NOT_LEADER)]]


@virtual
async def test_batches_to_be_opened_are_told_of_with_the_others() -> None:
    async with running(Broker(FaultyDisk(5), MemoryStore(), VirtualClock())) as broker:
        plain, packed = [(await broker.engine.create_topic(name)).partitions[0] for name in ("plain", "packed")]
        keyed = (await broker.engine.create_topic("keyed", settings={"cleanup.policy": "compact"})).partitions[0]
        it = Publisher(broker.engine.publishing)
        value = batch_of([b"v"], broker.clock)
        large = build_batch([(None, bytes(600_000), (), broker.clock.now_ms())], codec=Codec.GZIP)
        publication = it.publish(ALL, (plain, value), (packed, large), (keyed, value))
        assert not publication.is_over
        await wait_for(lambda: it.told, 10)
        assert it.told == [[Told(0, None), Told(0, None), Told(-1, Code.INVALID_BATCH)]]
        assert plain.high_watermark == 1


@pytest.mark.parametrize("text", ["", "some", "0", "-1", "1.5", "99999", "0" * 300 + "2", "9" * 5000])
def test_words_that_nobody_knows(text: str) -> None:
    with pytest.raises(PenstockError) as refused:
        parse_durability(text)
    assert refused.value.code is Code.INVALID_DURABILITY
    assert len(str(refused.value)) < 100
    assert "none, leader, all, majority" in refused.value.help


def test_a_number_has_one_word() -> None:
    assert parse_durability("0002") == parse_durability("2")


@virtual
async def test_who_may_write_no_more_writes_nothing_that_waited() -> None:
    async with running(Broker(FaultyDisk(5), MemoryStore(), VirtualClock())) as broker:
        partition = (await broker.engine.create_topic("t", settings={"cleanup.policy": "compact"})).partitions[0]
        told: list[Code | None] = []
        error: PenstockError | None = None

        def check(_: Partition) -> None:
            if error is not None:
                raise error

        def done(publication: Publication) -> None:
            (published,) = publication.batches
            told.append(published.error.code if published.error else None)

        for refusal in (None, PenstockError(Code.NOT_AUTHORISED, "not any more")):
            publication = broker.engine.publishing.begin(ALL, 30, done, check=check)
            publication.add(partition, memoryview(bytearray(build_batch([(b"k", b"v", (), broker.clock.now_ms())]))))
            publication.wait()
            error = refusal  # while it is being opened
            await wait_for(lambda: told, 10)
            assert told.pop() is (refusal.code if refusal is not None else None)
        assert partition.high_watermark == 1


@pytest.mark.parametrize("durability", [NONE, LEADER, ALL, MAJORITY])
def test_words(durability: Durability) -> None:
    assert parse_durability(durability.word) is durability


@virtual
async def test_a_publisher_that_cannot_be_told_harms_no_other() -> None:
    async with running(Broker(FaultyDisk(5), MemoryStore(), VirtualClock())) as broker:
        partition = (await broker.engine.create_topic("t")).partitions[0]
        it = Publisher(broker.engine.publishing)

        def fail(publication: Publication) -> None:
            raise RuntimeError(f"cannot be told of {len(publication.batches)}")

        def publish_badly(durability: Durability) -> None:
            publication = broker.engine.publishing.begin(durability, 30, fail)
            publication.add(partition, memoryview(batch_of([b"bad"], broker.clock)))
            publication.wait()
            assert publication.is_over is (durability is LEADER)

        it.publish(ALL, (partition, batch_of([b"a"], broker.clock)))
        publish_badly(LEADER)
        publish_badly(ALL)
        it.publish(ALL, (partition, batch_of([b"b"], broker.clock)))
        await wait_for(lambda: len(it.told) == 2)
        assert it.told == [[Told(0, None)], [Told(3, None)]]
        assert broker.failures == []
