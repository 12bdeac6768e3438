"""ShareFetch: what is acquired, which bytes are sent, how long it waits, what is refused."""

import asyncio
import errno
from typing import Any
from uuid import UUID

import pytest
from tests.doors.kafka import Door, base_offsets, batch_of
from tests.rules import Nothing
from tests.simulated_broker import produce
from tests.unit.protocols.kafka.share_member import (
    ACCEPT,
    BAD_REQUEST,
    RELEASE,
    Member,
    acquired,
    filled,
    open_group,
    rows,
    run,
    set_for_group,
)
from tests.unit.protocols.kafka.transactional_client import ABORT, COMMIT, Producer, ended

from penstock.cluster.image import BrokerRecord, Image
from penstock.engine.access import Kind, Operation, Resource, Subject
from penstock.engine.partition_state import PartitionState
from penstock.engine.queues.headers import TTL_MS
from penstock.records.build import build_batch
from penstock.records.compression import Codec

NOT_LEADER, UNKNOWN_TOPIC, TOPIC_REFUSED, GROUP_REFUSED, STORAGE, UNKNOWN_ID = 6, 3, 29, 30, 56, 100
LIMIT = {"version": 2, "share_acquire_mode": 1}
LOCK_S = 30


def sent(answer: dict[str, Any], index: int = 0) -> list[int]:
    """Base offsets of the batches that were sent."""
    return base_offsets(rows(answer)[index]["records"])


# --- acquiring


@pytest.mark.parametrize("version", [1, 2])
def test_every_version(version: int) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 3, 2)
        answer = await member.fetch(0, version=version)
        assert acquired(answer) == [(0, 4, 1)] and sent(answer) == [0, 3]
        assert answer["acquisition_lock_timeout"] == LOCK_S * 1000
        row = rows(answer)[0]
        assert row["current_leader"] == {"leader_id": -1, "leader_epoch": -1} and not answer["node_endpoints"]

    run(body)


def test_nothing_is_empty_bytes_never_null() -> None:
    async def body(door: Door) -> None:
        member = await filled(door)
        row = rows(await member.fetch(0))[0]
        assert (row["records"], row["acquired_records"]) == (b"", ())

    run(body)


def test_nobody_gets_what_another_has() -> None:
    async def body(door: Door) -> None:
        member, other = await filled(door, 3), await Member.of(door, "other")
        assert acquired(await member.fetch(0)) == [(0, 2, 1)]
        assert acquired(await other.fetch(0)) == []
        await member.client.produce(batch_of(b"a", b"b"))
        assert acquired(await other.fetch()) == [(3, 4, 1)]

    run(body)


def test_whole_batches_are_given() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 10, 10, 10)
        answer = await member.fetch(0, max_records=4)
        assert acquired(answer) == [(0, 9, 1)] and sent(answer) == [0]
        answer = await member.fetch(max_records=11)
        assert acquired(answer) == [(10, 29, 1)] and sent(answer) == [10, 20]

    run(body)


def test_not_one_record_too_many_where_that_is_wanted() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 10, 10)
        answer = await member.fetch(0, max_records=4, **LIMIT)
        assert acquired(answer) == [(0, 3, 1)] and sent(answer) == [0], "the batch is sent whole"
        answer = await member.fetch(max_records=9, batch_size=1, **LIMIT)
        assert acquired(answer) == [(4, 12, 1)] and sent(answer) == [0, 10], "one range"
        assert acquired(await member.fetch()) == [(13, 19, 1)]

    run(body)


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [(1, [(0, 2), (3, 3), (4, 9)]), (4, [(0, 3), (4, 9)]), (5, [(0, 9)]), (500, [(0, 9)])],
)
def test_what_is_acquired_is_cut_between_batches(batch_size: int, expected: list[tuple[int, int]]) -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 3, 1, 6)
        found = acquired(await member.fetch(0, batch_size=batch_size))
        assert found == [(*each, 1) for each in expected]

    run(body)


def test_the_delivery_count_rises_with_every_delivery() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 3)
        await member.fetch(0)
        for count in (2, 3):
            found = acquired(await member.fetch(acks={0: [(0, 0, [RELEASE]), (2, 2, [RELEASE])]}))
            assert found == [(0, 0, count), (2, 2, count)]
        found = acquired(await member.fetch(acks={0: [(0, 2, [RELEASE])]}))
        assert found == [(0, 0, 4), (1, 1, 2), (2, 2, 4)]

    run(body)


def test_a_lock_that_ends_lets_others_have_it() -> None:
    async def body(door: Door) -> None:
        member, other = await filled(door, 2), await Member.of(door, "other")
        await member.fetch(0)
        begun = door.clock.monotonic()
        assert acquired(await other.fetch(0, max_wait=60_000))[0][2] == 2
        assert LOCK_S <= door.clock.monotonic() - begun < LOCK_S + 0.5
        late = rows(await member.acknowledge({0: [(0, 0, [ACCEPT])]}))
        assert late[0]["error_code"] == 121

    run(body)


# --- bytes


def test_the_first_batch_is_sent_however_large() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 1, 1, size=50_000)
        answer = await member.fetch(0, max_bytes=1)
        assert acquired(answer) == [(0, 0, 1)] and sent(answer) == [0]
        assert acquired(await member.fetch(max_bytes=1)) == [(1, 1, 1)], "what did not fit was not delivered"

    run(body)


def test_what_does_not_fit_is_as_if_it_had_not_been_given() -> None:
    async def body(door: Door) -> None:
        member, other = await filled(door, *[1] * 10, size=1000), await Member.of(door, "other")
        answer = await member.fetch(0, max_bytes=3500)
        assert acquired(answer) == [(0, 2, 1)]
        assert acquired(await other.fetch(0)) == [(3, 9, 1)]

    run(body)


def test_only_the_first_partition_may_pass_the_limit() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 1, partitions=2)
        await member.client.produce(batch_of(bytes(50_000)), partition=1)
        answer = await member.fetch(0, 1, max_bytes=1000)
        assert acquired(answer, 0) == acquired(answer, 1) == [(0, 0, 1)]
        await member.client.produce(batch_of(b"small"), partition=0)
        answer = await member.fetch(max_bytes=1000)
        assert acquired(answer, 0) == [] and acquired(answer, 1) == [(1, 1, 1)], "it is its turn"
        await member.client.produce(batch_of(bytes(50_000)), partition=1)
        answer = await member.fetch(max_bytes=1000)
        assert acquired(answer, 0) == [(1, 1, 1)] and acquired(answer, 1) == []

    run(body)


def test_what_is_full_is_not_waited_with() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, *[1] * 10, size=1000)
        begun = door.clock.monotonic()
        assert acquired(await member.fetch(0, max_bytes=3500, min_bytes=9000, max_wait=60_000)) == [(0, 2, 1)]
        assert acquired(await member.fetch(max_records=2, min_bytes=9000, max_wait=60_000)) == [(3, 4, 1)]
        assert door.clock.monotonic() - begun < 1

    run(body)


def test_scattered_offsets_come_with_no_more_than_their_batches() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, *[100] * 20, size=700)
        assert acquired(await member.fetch(0, max_records=2000, max_bytes=1 << 23, batch_size=2000)) == [(0, 1999, 1)]
        offsets = (5, 50, 1321, 1999)
        answer = await member.fetch(acks={0: [(offset, offset, [RELEASE]) for offset in offsets]})
        assert acquired(answer) == [(offset, offset, 2) for offset in offsets]
        assert sent(answer) == [0, 1300, 1900]

    run(body)


def test_what_is_not_in_memory_is_fetched_first() -> None:
    async def body(door: Door) -> None:
        await door.topic(segment_bytes="2000")
        client = await door.client()
        for _ in range(40):
            await client.produce(batch_of(bytes(300)))
        await open_group(door)
        await asyncio.sleep(30)  # rolled segments are sealed
        door.disk.is_resident = False
        member, found = await Member.of(door), list[int]()
        while len(found) < 40:
            answer = await member.fetch(0, max_bytes=1500)
            found += [offset for first, last, _ in acquired(answer) for offset in range(first, last + 1)]
            assert {first for first, _, _ in acquired(answer)} <= set(sent(answer))
        assert found == list(range(40)) and door.stats.cold_reads > 0

    run(body)


def test_what_the_disk_refuses_is_told_and_not_delivered() -> None:
    async def body(door: Door) -> None:
        await door.topic(partitions=2, segment_bytes="2000")
        client = await door.client()
        for index in (0, 1):
            for _ in range(20):
                await client.produce(batch_of(bytes(300)), partition=index)
        await open_group(door)
        await asyncio.sleep(30)
        door.disk.is_resident = False
        door.disk.fail("read_at", errno.EIO, times=1000, path_contains="/t/0/")
        member = await Member.of(door)
        answer = await member.fetch(0, 1)
        assert {index: row["error_code"] for index, row in rows(answer).items()} == {0: STORAGE, 1: 0}
        assert acquired(answer, 1)
        figures = await door.engine.queues.figures(door.engine.topics.partition("t", 0), "g")
        assert figures.leased == 0

    run(body)


# --- what nobody can be given


COMMITTED = "share.isolation.level", "read_committed"


@pytest.mark.parametrize("committed", [True, False])
def test_markers_and_what_was_aborted_are_passed_over(committed: bool) -> None:
    async def body(door: Door) -> None:
        await door.topic(partitions=1)
        await open_group(door)
        if committed:
            await set_for_group(door, *COMMITTED)
        producer = Producer(await door.client(), 2)
        await producer.init()
        await producer.write(0, b"a", b"b")
        await producer.end(COMMIT)
        assert await ended(producer.client) == "CompleteCommit"
        await producer.write(0, b"c")
        await producer.end(ABORT)
        assert await ended(producer.client) == "CompleteAbort"
        await producer.client.produce(batch_of(b"d"))
        member = await Member.of(door)
        given = [(0, 1), (5, 5)] if committed else [(0, 1), (3, 3), (5, 5)]
        assert acquired(await member.fetch(0)) == [(*each, 1) for each in given]
        figures = await door.engine.queues.figures(door.engine.topics.partition("t", 0), "g")
        assert (figures.leased, figures.settled_beyond) == ((3, 3) if committed else (4, 2))
        await member.fetch(acks={0: [(*each, [ACCEPT]) for each in given]})
        figures = await door.engine.queues.figures(door.engine.topics.partition("t", 0), "g")
        assert figures.start == 6

    run(body)


def test_where_all_was_aborted_a_fetch_goes_on_to_what_follows() -> None:
    async def body(door: Door) -> None:
        await door.topic(partitions=1)
        await open_group(door)
        await set_for_group(door, *COMMITTED)
        producer = Producer(await door.client(), 2)
        await producer.init()
        for _ in range(5):
            await producer.write(0, *[b"x"] * 20)
            await producer.end(ABORT)
            assert await ended(producer.client) == "CompleteAbort"
        await producer.client.produce(batch_of(b"d"))
        member = await Member.of(door)
        assert acquired(await member.fetch(0, max_records=10)) == [(105, 105, 1)]

    run(body)


def test_a_large_batch_behind_what_was_aborted_is_the_first_all_the_same() -> None:
    async def body(door: Door) -> None:
        await door.topic(partitions=1)
        await open_group(door)
        await set_for_group(door, *COMMITTED)
        producer = Producer(await door.client(), 2)
        await producer.init()
        await producer.write(0, b"x")
        await producer.end(ABORT)
        assert await ended(producer.client) == "CompleteAbort"
        await producer.client.produce(batch_of(bytes(50_000)))
        member = await Member.of(door)
        assert acquired(await member.fetch(0, max_bytes=1000)) == [(2, 2, 1)]

    run(body)


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_that_is_open_is_waited_for_where_that_is_wanted(committed: bool) -> None:
    async def body(door: Door) -> None:
        await door.topic(partitions=1)
        await open_group(door)
        if committed:
            await set_for_group(door, *COMMITTED)
        producer, member = Producer(await door.client(), 2), await Member.of(door)
        await producer.init()
        await producer.write(0, b"a")
        await producer.client.produce(batch_of(b"b"))
        found = acquired(await member.fetch(0))
        if not committed:
            assert found == [(0, 1, 1)]
            return
        assert found == []
        waiting = asyncio.ensure_future(member.fetch(max_wait=60_000))
        await producer.end(COMMIT)
        assert acquired(await waiting) == [(0, 1, 1)]

    run(body)


def test_holes_between_batches_are_settled_here() -> None:
    async def body(door: Door) -> None:
        await door.topic(
            partitions=1, cleanup_policy="compact", segment_bytes="1024", min_cleanable_dirty_ratio="0.0001",
            min_compaction_lag_ms="0", segment_ms="1000",
        )  # fmt: skip
        client = await door.client()
        for number in range(60):
            key = b"other" if number == 30 else b"same"
            await client.produce(build_batch([(key, bytes(100), (), 1_700_000_000_000)]))
        await asyncio.sleep(120)
        assert base_offsets((await client.fetch())["responses"][0]["partitions"][0]["records"])[0] == 30
        await open_group(door)
        member = await Member.of(door)
        answer = await member.fetch(0)
        assert acquired(answer) == [(30, 30, 1), (59, 59, 1)] and sent(answer) == [30, 59]
        await member.fetch(acks={0: [(30, 30, [ACCEPT]), (59, 59, [ACCEPT])]})
        figures = await door.engine.queues.figures(door.engine.topics.partition("t", 0), "g")
        assert (figures.start, figures.leased, figures.ready) == (60, 0, 0)

    run(body)


def test_what_was_deleted_is_not_waited_for() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 5, 5)
        assert acquired(await member.fetch(0, max_records=1)) == [(0, 4, 1)]
        await door.engine.delete_records(door.engine.topics.partition("t", 0), 8)
        assert acquired(await member.fetch()) == [(8, 9, 1)]
        late = rows(await member.acknowledge({0: [(0, 4, [ACCEPT])]}))
        assert late[0]["error_code"] == 0, "it counts as done"

    run(body)


# --- waiting


def test_a_fetch_waits_as_long_as_it_says() -> None:
    async def body(door: Door) -> None:
        member = await filled(door)
        begun = door.clock.monotonic()
        assert list(rows(await member.fetch(0, max_wait=5000))) == [0]
        assert 5 <= door.clock.monotonic() - begun < 5.5
        assert rows(await member.fetch(max_wait=5000, min_bytes=0)) == {}
        assert door.clock.monotonic() - begun < 5.5, "who wants no bytes does not wait"

    run(body)


def test_new_records_end_a_wait() -> None:
    async def body(door: Door) -> None:
        member, writer = await filled(door, partitions=2), await door.client()
        waiting = asyncio.ensure_future(member.fetch(0, 1, max_wait=60_000))
        await asyncio.sleep(1)
        begun = door.clock.monotonic()
        await writer.produce(batch_of(b"a"), partition=1)
        assert acquired(await waiting, 1) == [(0, 0, 1)]
        assert door.clock.monotonic() - begun < 0.5

    run(body)


@pytest.mark.parametrize("how", ["acknowledged", "released"])
def test_what_comes_back_or_makes_room_ends_a_wait(how: str) -> None:
    async def body(door: Door) -> None:
        member, other = await filled(door, *[1000] * 3, size=1), await Member.of(door, "other")
        assert acquired(await member.fetch(0, max_records=2000, batch_size=2000)) == [(0, 1999, 1)]
        waiting = asyncio.ensure_future(other.fetch(0, max_wait=60_000))
        await asyncio.sleep(1)
        assert not waiting.done(), "no more than 2,000 are in flight"
        begun = door.clock.monotonic()
        kind = ACCEPT if how == "acknowledged" else RELEASE
        await member.acknowledge({0: [(10, 11, [kind])]})
        found = acquired(await waiting)
        assert found == ([(10, 11, 2)] if how == "released" else [(2000, 2001, 1)])
        assert door.clock.monotonic() - begun < 0.5

    run(body)


def test_a_fetch_waits_for_enough_bytes() -> None:
    async def body(door: Door) -> None:
        member, writer = await filled(door, 1, size=500), await door.client()
        waiting = asyncio.ensure_future(member.fetch(0, min_bytes=1000, max_wait=60_000))
        await asyncio.sleep(5)
        assert not waiting.done()
        await writer.produce(batch_of(bytes(500)))
        assert acquired(await waiting) == [(0, 1, 1)]
        begun = door.clock.monotonic()
        await writer.produce(batch_of(b"x"))
        assert acquired(await member.fetch(min_bytes=1000, max_wait=3000)) == [(2, 2, 1)]
        assert 3 <= door.clock.monotonic() - begun < 3.5

    run(body)


def test_losing_the_leadership_ends_a_wait() -> None:
    async def body(door: Door) -> None:
        member, image = await filled(door), Image()
        image.brokers[2] = BrokerRecord(2, "host2", 9002, "host2", 9100, "r", 1, True)
        door.context.image, door.context.cluster = image, True
        waiting = asyncio.ensure_future(member.fetch(0, max_wait=60_000))
        await asyncio.sleep(1)
        door.engine.topics.partition("t", 0).follow(PartitionState((1, 2, 3), (1, 2, 3), 2, 4))
        answer = await waiting
        row = rows(answer)[0]
        assert (row["error_code"], row["current_leader"]) == (NOT_LEADER, {"leader_id": 2, "leader_epoch": 4})
        assert list(answer["node_endpoints"]) == [{"node_id": 2, "host": "host2", "port": 9002, "rack": "r"}]
        assert door.clock.monotonic() < 30

    run(body)


def test_a_topic_that_is_deleted_ends_a_wait() -> None:
    async def body(door: Door) -> None:
        member = await filled(door)
        waiting = asyncio.ensure_future(member.fetch(0, max_wait=60_000))
        await asyncio.sleep(1)
        await door.engine.delete_topic(door.engine.topics.get("t"))
        assert rows(await waiting)[0]["error_code"] == UNKNOWN_ID
        assert door.clock.monotonic() < 30

    run(body)


# --- refusals


def test_errors_of_partitions() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 1)
        answer = await member.fetch(0, 9)
        assert {index: row["error_code"] for index, row in rows(answer).items()} == {0: 0, 9: UNKNOWN_TOPIC}
        answer = await member.fetch(0, topic_id=UUID(int=7))
        assert rows(answer)[0]["error_code"] == UNKNOWN_ID

    run(body)


def test_a_leader_that_is_cut_off_gives_nothing_and_names_nobody() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 1)
        door.engine.topics.partition("t", 0).is_cut_off = True
        row = rows(await member.fetch(0))[0]
        assert (row["error_code"], row["acquired_records"]) == (NOT_LEADER, ())
        assert row["current_leader"] == {"leader_id": -1, "leader_epoch": -1}

    run(body)


def test_a_group_that_reads_no_queue_here_is_told_so() -> None:
    async def body(door: Door) -> None:
        await filled(door, 1)
        member = await Member.of(door, group="other")
        assert rows(await member.fetch(0))[0]["error_code"] == UNKNOWN_TOPIC

    run(body)


class Without(Nothing):
    """Everybody may do everything, but for one thing."""

    def __init__(self, kind: Kind, name: str) -> None:
        self._not = Resource(kind, name)

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return resource != self._not


def test_without_the_right_to_the_group_nothing_is_told() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 1)
        await member.fetch(0)
        door.engine.access.policy = Without(Kind.GROUP, "g")
        refused = await member.fetch()
        assert (refused["error_code"], refused["responses"]) == (GROUP_REFUSED, ())
        refused = await member.acknowledge({0: [(0, 0, [ACCEPT])]})
        assert (refused["error_code"], refused["responses"]) == (GROUP_REFUSED, ())

    run(body)


def test_without_the_right_to_a_topic_its_partitions_are_refused() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 1)
        assert acquired(await member.fetch(0)) == [(0, 0, 1)]
        waiting = asyncio.ensure_future(member.fetch(max_wait=60_000))
        await asyncio.sleep(1)
        door.engine.access.policy = Without(Kind.TOPIC, "t")
        await produce(door.engine.topics.partition("t", 0), bytearray(batch_of(b"x")))
        answer = rows(await waiting)
        assert (answer[0]["error_code"], answer[0]["acquired_records"]) == (TOPIC_REFUSED, ())
        refused = rows(await member.acknowledge({0: [(0, 0, [ACCEPT])]}))
        assert refused[0]["error_code"] == TOPIC_REFUSED
        door.engine.access.policy = Without(Kind.TOPIC, "other")
        assert acquired(await member.fetch()) == [(1, 1, 1)]

    run(body)


def test_who_keeps_records_for_longer_wants_none() -> None:
    async def body(door: Door) -> None:
        member = await filled(door, 1)
        await member.fetch(0)
        nothing = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0, "is_renew_ack": True}
        for name in ("max_wait", "min_bytes", "max_bytes", "max_records"):
            refused = await member.fetch(version=2, **(nothing | {name: 1}))
            assert refused["error_code"] == BAD_REQUEST
        answer = await member.fetch(version=2, acks={0: [(0, 0, [4])]}, **nothing)
        assert rows(answer)[0]["acknowledge_error_code"] == 0 and not rows(answer)[0]["acquired_records"]

    run(body)


# --- what has expired


async def with_times(door: Door, settings: dict[str, str], *batches: bytes) -> Member:
    """A queue that was made as one, and these batches in it."""
    topic = await door.topic(partitions=1)
    await door.engine.alter_queues(topic, lambda queues: {**queues, "g": settings})
    client = await door.client()
    for batch in batches:
        assert (await client.produce(batch))["error_code"] == 0
    await open_group(door)
    return await Member.of(door)


def aged(door: Door, *ages_ms: int, own_ms: int | None = None, codec: int = Codec.NONE) -> bytes:
    """A batch of messages that were sent so long ago; the first one may have a time of its own."""
    now = door.clock.now_ms()
    own = ((TTL_MS, b"%d" % own_ms),) if own_ms is not None else ()
    return build_batch([(None, b"x", own if not at else (), now - age) for at, age in enumerate(ages_ms)], codec=codec)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_nobody_is_given_what_has_expired(codec: int) -> None:
    async def body(door: Door) -> None:
        first, second = aged(door, 9000, 11_000, 0, codec=codec), aged(door, 20_000, 20_000, codec=codec)
        member = await with_times(door, {"ttl": "10s"}, first, second, aged(door, 0, codec=codec))
        assert acquired(await member.fetch(0)) == [(0, 0, 1), (2, 2, 1), (5, 5, 1)]
        figures = await door.engine.queues.figures(door.engine.topics.partition("t", 0), "g")
        assert (figures.leased, figures.settled_beyond) == (3, 3)

    run(body)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_messages_own_time_comes_first(codec: int) -> None:
    async def body(door: Door) -> None:
        long = aged(door, 11_000, 11_000, own_ms=60_000, codec=codec)
        short = aged(door, 5000, 5000, own_ms=1, codec=codec)
        member = await with_times(door, {"ttl": "10s"}, long, short)
        assert acquired(await member.fetch(0)) == [(0, 0, 1), (3, 3, 1)]

    run(body)


def test_what_has_expired_becomes_a_dead_letter_where_that_is_said() -> None:
    async def body(door: Door) -> None:
        member = await with_times(door, {"ttl": "10s", "on-expiry": "dead-letter"}, aged(door, 11_000))
        assert acquired(await member.fetch(0)) == []
        await asyncio.sleep(1)
        assert door.engine.topics.get("dlq.t.g") is not None

    run(body)


def test_in_a_group_of_kafkas_nothing_expires() -> None:
    async def body(door: Door) -> None:
        member = await filled(door)
        await member.client.produce(aged(door, 11_000, own_ms=1))
        assert acquired(await member.fetch(0)) == [(0, 0, 1)]

    run(body)
