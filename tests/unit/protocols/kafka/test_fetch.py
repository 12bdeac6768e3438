"""Fetch: ranges, limits, long polls, epochs."""

import asyncio
import errno
from uuid import UUID

import pytest
from tests.doors.kafka import Client, Door, base_offsets, batch_of, fetch_values, make, with_door

from penstock.protocols.kafka.handlers import fetch

OUT_OF_RANGE, UNKNOWN_TOPIC, FENCED, UNKNOWN_EPOCH, UNKNOWN_ID = 1, 3, 74, 75, 100
KIB = 1024


def only(answer: dict) -> dict:
    (topic,) = answer["responses"]
    (row,) = topic["partitions"]
    return row


async def filled(door: Door, *sizes: int, partitions: int = 1) -> Client:
    """A topic with one batch of two records per size, in every partition."""
    await door.topic(partitions=partitions)
    client = await door.client()
    for index in range(partitions):
        for size in sizes:
            assert (await client.produce(batch_of(b"a", bytes(size)), partition=index))["error_code"] == 0
    return client


@pytest.mark.parametrize("version", range(fetch.API.oldest, fetch.API.newest + 1))
def test_every_version(version: int) -> None:
    async def body(door: Door) -> None:
        client = await filled(door, 100, 200)
        topic = door.engine.topics.get("t").topic_id if version >= 13 else "t"
        row = only(await client.fetch(version=version, wanted={topic: {0: 0}}))
        assert (row["error_code"], row["high_watermark"], row["last_stable_offset"]) == (0, 4, 4)
        assert base_offsets(row["records"]) == [0, 2]
        assert row.get("log_start_offset", 0) == 0
        assert not row["aborted_transactions"]

    with_door(body)


def test_an_offset_inside_a_batch_gives_the_whole_batch() -> None:
    async def body(door: Door) -> None:
        client = await filled(door, 10, 10, 10)
        for offset, expected in ((0, [0, 2, 4]), (1, [0, 2, 4]), (2, [2, 4]), (3, [2, 4]), (5, [4]), (6, [])):
            assert base_offsets(only(await client.fetch(wanted={"t": {0: offset}}))["records"]) == expected

    with_door(body)


def test_nothing_is_empty_bytes_never_null() -> None:
    async def body(door: Door) -> None:
        client = await filled(door)
        for version in (4, 11, 12, 17):
            topic = door.engine.topics.get("t").topic_id if version >= 13 else "t"
            assert only(await client.fetch(version=version, wanted={topic: {0: 0}}))["records"] == b""

    with_door(body)


def test_the_first_batch_is_sent_whole_however_large() -> None:
    """KIP-74."""

    async def body(door: Door) -> None:
        client = await filled(door, 50 * KIB, 10)
        for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0, "partition_max_bytes": 0}):
            assert base_offsets(only(await client.fetch(**limits))["records"]) == [0]

    with_door(body)


def test_only_the_first_partition_may_pass_the_limit() -> None:
    async def body(door: Door) -> None:
        client = await filled(door, 50 * KIB, partitions=3)
        answer = await client.fetch(wanted={"t": {0: 0, 1: 0, 2: 0}}, max_bytes=KIB)
        rows = answer["responses"][0]["partitions"]
        assert [base_offsets(row["records"]) for row in rows] == [[0], [], []]
        assert [row["high_watermark"] for row in rows] == [2, 2, 2]

    with_door(body)


def test_limits_cut_between_batches() -> None:
    async def body(door: Door) -> None:
        client = await filled(door, *[10 * KIB] * 10)
        row = only(await client.fetch(partition_max_bytes=35 * KIB))
        assert base_offsets(row["records"]) == [0, 2, 4]
        row = only(await client.fetch(max_bytes=25 * KIB, wanted={"t": {0: 4}}))
        assert base_offsets(row["records"]) == [4, 6]
        assert base_offsets(only(await client.fetch())["records"]) == list(range(0, 20, 2))

    with_door(body)


def test_errors_per_partition() -> None:
    async def body(door: Door) -> None:
        client = await filled(door, 10)
        wanted = {"t": {0: 0, 9: 0}, "nobody": {0: 0}}
        answer = await client.fetch(wanted=wanted, max_wait=60_000, min_bytes=1 << 20)
        codes = {
            (topic["topic"], row["partition_index"]): row["error_code"]
            for topic in answer["responses"]
            for row in topic["partitions"]
        }
        assert codes == {("t", 0): 0, ("t", 9): UNKNOWN_TOPIC, ("nobody", 0): UNKNOWN_TOPIC}
        for offset in (3, 1 << 60, -1, -(1 << 63)):
            assert only(await client.fetch(wanted={"t": {0: offset}}))["error_code"] == OUT_OF_RANGE
        unknown = await client.fetch(version=13, wanted={UUID(int=9): {0: 0}})
        assert only(unknown)["error_code"] == UNKNOWN_ID
        assert door.clock.monotonic() < 30, "an error is answered at once"

    with_door(body)


def test_a_long_poll_ends_at_its_deadline() -> None:
    async def body(door: Door) -> None:
        client = await filled(door, 10)
        begun = door.clock.monotonic()
        row = only(await client.fetch(wanted={"t": {0: 2}}, max_wait=5000))
        assert row["records"] == b""
        assert 5 <= door.clock.monotonic() - begun < 5.5

    with_door(body)


def test_a_long_poll_gives_what_there_is_at_its_deadline() -> None:
    async def body(door: Door) -> None:
        client = await filled(door, 10)
        begun = door.clock.monotonic()
        row = only(await client.fetch(min_bytes=1 << 20, max_wait=3000))
        assert base_offsets(row["records"]) == [0]
        assert 3 <= door.clock.monotonic() - begun < 3.5

    with_door(body)


def test_a_long_poll_is_woken_by_an_append() -> None:
    async def body(door: Door) -> None:
        client, other = await filled(door, 10, partitions=3), await door.client()
        client.send(make("fetch", 12, fetch_values({"t": {0: 2, 2: 2}}, max_wait=60_000)))
        await asyncio.sleep(5)  # of virtual time
        await other.produce(batch_of(b"x"), partition=1)
        await asyncio.sleep(5)
        begun = door.clock.monotonic()
        await other.produce(batch_of(b"x"), partition=2)
        _, answer = await client.receive("fetch", 12)
        found = {row["partition_index"]: base_offsets(row["records"]) for row in answer["responses"][0]["partitions"]}
        assert found == {0: [], 2: [2]}
        assert door.clock.monotonic() - begun < 1

    with_door(body)


def test_a_long_poll_waits_for_enough_bytes() -> None:
    async def body(door: Door) -> None:
        client, other = await filled(door), await door.client()
        client.send(make("fetch", 12, fetch_values(min_bytes=3000, max_wait=60_000)))
        for _ in range(4):
            await asyncio.sleep(1)
            await other.produce(batch_of(bytes(1000)))
        _, answer = await client.receive("fetch", 12)
        assert base_offsets(only(answer)["records"])[:3] == [0, 1, 2]
        assert door.clock.monotonic() < 10

    with_door(body)


def test_a_deleted_topic_wakes_a_long_poll() -> None:
    async def body(door: Door) -> None:
        client = await filled(door, 10)
        client.send(make("fetch", 12, fetch_values({"t": {0: 2}}, max_wait=60_000)))
        await asyncio.sleep(1)
        await door.engine.delete_topic(door.engine.topics.get("t"))
        _, answer = await client.receive("fetch", 12)
        assert only(answer)["error_code"] == UNKNOWN_TOPIC
        assert door.clock.monotonic() < 10

    with_door(body)


def test_an_empty_request_is_answered_at_once() -> None:
    async def body(door: Door) -> None:
        client = await filled(door)
        answer = await client.fetch(wanted={}, max_wait=60_000)
        assert answer["responses"] == ()
        assert door.clock.monotonic() < 10

    with_door(body)


def test_what_is_not_synced_is_not_read() -> None:
    async def body(door: Door) -> None:
        client = await filled(door, 10)
        door.disk.max_delay_s = 20
        assert (await client.produce(batch_of(b"y"), acks=1))["base_offset"] == 2
        row = only(await client.fetch())
        assert (row["high_watermark"], base_offsets(row["records"])) == (2, [0])
        door.disk.max_delay_s = 0
        row = only(await client.fetch(wanted={"t": {0: 2}}, max_wait=100_000))
        assert (row["high_watermark"], base_offsets(row["records"])) == (3, [2])

    with_door(body)


def test_leader_epochs() -> None:
    """KIP-320, and KIP-595's diverging epoch."""

    async def body(door: Door) -> None:
        client = await filled(door, 10)
        partition = door.engine.topics.partition("t", 0)
        assert only(await client.fetch(current_leader_epoch=0))["error_code"] == 0
        assert only(await client.fetch(current_leader_epoch=1))["error_code"] == UNKNOWN_EPOCH
        partition.leader_epoch = 3
        assert only(await client.fetch(current_leader_epoch=2))["error_code"] == FENCED
        partition.leader_epoch = 0
        row = only(await client.fetch(last_fetched_epoch=0))
        assert (row["diverging_epoch"]["epoch"], base_offsets(row["records"])) == (-1, [0])
        row = only(await client.fetch(last_fetched_epoch=7, max_wait=60_000))
        assert row["records"] == b""
        assert row["diverging_epoch"] == {"epoch": 0, "end_offset": 2}
        assert door.clock.monotonic() < 30

    with_door(body)


def test_read_committed_reads_to_the_stable_offset() -> None:
    async def body(door: Door) -> None:
        client = await filled(door, 10, 10)
        row = only(await client.fetch(isolation_level=1))
        assert (row["last_stable_offset"], base_offsets(row["records"])) == (4, [0, 2])

    with_door(body)


def test_what_is_not_in_memory_is_warmed_first() -> None:
    async def body(door: Door) -> None:
        await door.topic(segment_bytes="2000")
        client = await door.client()
        for _ in range(40):
            await client.produce(batch_of(bytes(300)))
        await asyncio.sleep(30)  # rolled segments are sealed
        answers = []

        async def resident_soon() -> None:
            await asyncio.sleep(0.5)
            door.disk.is_resident = True

        door.disk.is_resident = False
        task = asyncio.create_task(resident_soon())
        offset = 0
        while offset < 40:
            found = base_offsets(only(await client.fetch(wanted={"t": {0: offset}}))["records"])
            assert found[0] == offset
            answers += found
            offset = found[-1] + 1
        await task
        assert answers == list(range(40))
        assert door.stats.cold_reads > 0

    with_door(body)


def test_a_deadline_that_passes_while_warming_still_ends_the_poll() -> None:
    async def body(door: Door) -> None:
        await door.topic(segment_bytes="2000", flush="os")
        client, other = await door.client(), await door.client()
        for _ in range(20):
            await client.produce(batch_of(bytes(300)))
        await asyncio.sleep(30)  # rolled segments are sealed, and read once
        assert base_offsets(only(await client.fetch())["records"])[0] == 0
        client.send(make("fetch", 12, fetch_values(min_bytes=1 << 20, max_wait=1000)))
        await asyncio.sleep(0.5)  # parked now: too few bytes
        door.disk.is_resident = False
        door.disk.max_delay_s = 10.0
        await other.produce(batch_of(b"x"), acks=1)
        await asyncio.sleep(2)
        assert door.stats.cold_reads > 0
        door.disk.is_resident = True
        _, answer = await client.receive("fetch", 12)
        assert base_offsets(only(answer)["records"])[0] == 0
        assert door.clock.monotonic() < 100

    with_door(body)


def test_a_full_answer_lists_partitions_that_need_the_disk_first() -> None:
    """A client throws a full answer away that lacks a partition, and asks again for ever."""

    async def body(door: Door) -> None:
        await door.topic(partitions=2, segment_bytes="2000")
        client = await door.client()
        await client.produce(batch_of(b"hot"), partition=0)
        for _ in range(20):
            await client.produce(batch_of(bytes(300)), partition=1)
        await asyncio.sleep(30)  # rolled segments are sealed
        door.disk.is_resident = False
        both: dict[str | UUID, dict[int, int]] = {"t": {0: 0, 1: 0}}
        for session in ((0, -1), (0, 0)):
            rows = (await client.fetch(wanted=both, session=session))["responses"][0]["partitions"]
            found = {row["partition_index"]: (row["error_code"], row["records"] or b"") for row in rows}
            assert set(found) == {0, 1}
            assert base_offsets(found[0][1]) == [0]
            assert found[1] == (0, b"")
        assert door.stats.cold_reads > 0
        await asyncio.sleep(1)
        door.disk.is_resident = True  # the pages have been read meanwhile
        rows = (await client.fetch(wanted=both))["responses"][0]["partitions"]
        assert all(row["records"] for row in rows)

    with_door(body)


def test_what_the_disk_refuses_is_told_beside_what_it_gives() -> None:
    async def body(door: Door) -> None:
        await door.topic(partitions=2, segment_bytes="2000")
        client = await door.client()
        for partition in (0, 1):
            for _ in range(20):
                await client.produce(batch_of(bytes(300)), partition=partition)
        await asyncio.sleep(30)
        door.disk.is_resident = False
        door.disk.fail("read_at", errno.EIO, times=1000, path_contains="/t/0/")
        rows = (await client.fetch(wanted={"t": {0: 0, 1: 0}}, min_bytes=2))["responses"][0]["partitions"]
        codes = {row["partition_index"]: row["error_code"] for row in rows}
        assert codes == {0: 56, 1: 0}

    with_door(body)
