"""Batches of a transaction land in the order they were sent, and none of them behind the marker that ends it."""

import asyncio
import errno

import pytest
from tests.doors.kafka import Client
from tests.unit.protocols.kafka.transactional_client import (
    ABORT,
    COMMIT,
    DIALECTS,
    OK,
    READ_UNCOMMITTED,
    Life,
    Producer,
    ended,
    producers,
    read,
    run,
)

QUICK_S, SLOW_S = 0.002, 2.0
NO_TRANSACTION = -1


async def nothing_is_open(client: Client, index: int = 0) -> bool:
    """Whether readers of committed records are held up by nobody."""
    return all(begun == NO_TRANSACTION for _, _, begun in (await producers(client, index)).values())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_batches_that_wait_for_the_coordinator_keep_their_order(dialect: int) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        if dialect == 1:
            await producer.add(0)
        life.door.disk.max_delay_s = SLOW_S
        values = [b"%d" % number for number in range(20)]
        for value in values:
            producer.begin_send(0, value)
        rows = [await producer.receive() for _ in values]
        assert [(row["error_code"], row["base_offset"]) for row in rows] == [(OK, at) for at in range(len(values))]
        life.door.disk.max_delay_s = QUICK_S
        await producer.end(COMMIT)
        await ended(client)
        assert (await read(client)).values == values

    run(body)


def test_a_batch_whose_predecessor_was_refused_is_refused_too() -> None:
    """Else the first one, sent again, is out of order for ever, and a transaction commits with a hole in it."""

    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, 2)
        await producer.init()
        life.door.disk.fail("write_at", errno.ENOSPC, path_contains="/__transaction_state/")
        for value in (b"1", b"2", b"3"):
            producer.begin_send(0, value)
        codes = [(await producer.receive())["error_code"] for _ in range(3)]
        assert codes[0] != OK
        assert OK not in codes[1:], "they follow one that is not there"
        producer.sequences.clear()
        for value in (b"1", b"2", b"3"):  # a client sends them again, in order
            assert (await producer.send(0, value))["error_code"] == OK
        await producer.end(COMMIT)
        await ended(client)
        assert (await read(client)).values == [b"1", b"2", b"3"]

    run(body)


@pytest.mark.parametrize("committed", [COMMIT, ABORT])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_batch_after_the_end_is_refused(dialect: int, committed: bool) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        await producer.write(0, b"in time")
        before = producer.identity
        await producer.end(committed)
        await ended(client)
        end = (await read(client)).high_watermark
        producer.identity, producer.sequences = before, {0: 1}
        assert (await producer.send(0, b"late"))["error_code"] != OK
        assert (await read(client)).high_watermark == end
        assert await nothing_is_open(client)

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_batches_and_an_end_at_once(dialect: int, committed: bool) -> None:
    """Whatever gets in is part of what was decided, and nothing is left open behind the marker."""

    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        await producer.write(0, b"first")
        before = producer.identity
        other = await life.door.client()
        for delay_s in (0.0, 0.001, 0.003, 0.01):
            ender = Producer(other, dialect)
            ender.identity = producer.identity
            producer.begin_send(0, b"racing")
            await asyncio.sleep(delay_s)
            await ender.end(committed)
            racing = await producer.receive()
            await ended(client)
            assert await nothing_is_open(client), (delay_s, racing["error_code"])
            found = await read(client)
            assert found.stable_offset == found.high_watermark
            if dialect == 2:
                producer.identity, producer.sequences = ender.identity, {}
            else:
                producer.sequences[0] -= racing["error_code"] != OK
            await producer.write(0, b"first")
        assert before[0] == producer.identity[0]

    run(body)


@pytest.mark.parametrize("settings", [{"compression_type": "gzip"}, {"cleanup_policy": "compact"}])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_batch_that_is_being_opened_does_not_land_behind_the_marker(dialect: int, settings: dict[str, str]) -> None:
    async def body(life: Life, client: Client) -> None:
        await life.door.topic("opened", 1, **settings)
        producer = Producer(client, dialect, topic="opened", key=b"k")
        await producer.init()
        await producer.write(0, b"first")
        opener = life.door.engine.opener
        await opener._opening.acquire()  # a large batch of somebody else's is being opened
        producer.begin_send(0, b"second")
        await asyncio.sleep(1)
        ender = Producer(await life.door.client(), dialect)
        ender.identity = producer.identity
        assert await ender.end(COMMIT) == OK
        await ended(ender.client)
        opener._opening.release()
        row = await producer.receive()
        log = life.door.engine.topics.partition("opened", 0).opened()
        assert not log.active_transactions.open, f"a batch behind the marker: {row}"
        assert row["error_code"] != OK

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_batch_behind_another_producers_does_not_land_behind_the_marker(dialect: int) -> None:
    """The first batch of one producer's transaction waits for its coordinator, and what comes after it in line."""

    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        await producer.write(0, b"first")
        slow = Producer(await life.door.client(), 2, "slow")
        await slow.init()
        held = asyncio.get_running_loop().create_future()
        life.door.engine.transactions.add_partitions, usual = (
            lambda request: held_back(held, usual, request),
            life.door.engine.transactions.add_partitions,
        )
        slow.begin_send(0, b"slow")
        await asyncio.sleep(0.1)
        producer.begin_send(0, b"second")
        await asyncio.sleep(0.1)
        ender = Producer(await life.door.client(), dialect)
        ender.identity = producer.identity
        assert await ender.end(COMMIT) == OK
        await ended(ender.client)
        held.set_result(None)
        assert (await slow.receive())["error_code"] == OK
        row = await producer.receive()
        began = {producer_id: begun for producer_id, (_, _, begun) in (await producers(ender.client)).items()}
        assert began[producer.identity[0]] == NO_TRANSACTION, f"a batch behind the marker: {row}"

    async def held_back(held, usual, request):
        await held
        return await usual(request)

    run(body)


def test_what_is_refused_leaves_nothing_to_read() -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, 1)
        await producer.init()
        for _ in range(3):
            assert (await producer.send(0, b"never added"))["error_code"] != OK
            producer.sequences.clear()
        assert await read(client, isolation=READ_UNCOMMITTED) == ([], [], [], 0, 0)

    run(body)
