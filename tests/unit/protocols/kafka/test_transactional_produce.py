"""A transaction as a client's wire sees it, from the first request to what readers get, over restarts of the broker."""

import asyncio
import errno

import pytest
from tests.doors.kafka import Client, batch_of
from tests.unit.protocols.kafka.transactional_client import (
    ABORT,
    COMMIT,
    DIALECTS,
    OK,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Life,
    Producer,
    Read,
    committed_offset,
    ended,
    latest,
    producers,
    read,
    run,
    state_of,
)

from penstock.records.control import Marker

OLD_EPOCH, BAD_STATE, UNSTABLE, FENCED = 47, 48, 88, 90


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_a_transaction_from_beginning_to_end(dialect: int, committed: bool) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        producer_id, epoch = producer.identity
        await client.produce(batch_of(b"plain"))
        await producer.write(0, b"a", b"b")
        await producer.write(1, b"c")
        assert await producer.commit_offset("g", 7) == OK
        await client.produce(batch_of(b"later"))

        (described,) = (await client.ask("describe_transactions", 0, transactional_ids=("tx",)))["transaction_states"]
        assert described["transaction_state"] == "Ongoing"
        partitions = {each["topic"]: each["partitions"] for each in described["topics"]}
        assert (partitions.keys(), partitions["t"]) == ({"__consumer_offsets", "t"}, (0, 1))
        assert (await producers(client))[producer_id] == (epoch, 1, 1)
        assert await read(client) == Read([b"plain"], [], [], 1, 4), "up to the first undecided record"
        assert (await read(client, isolation=READ_UNCOMMITTED)).values == [b"plain", b"a", b"b", b"later"]
        assert await latest(client, READ_COMMITTED) == 1
        assert await latest(client, READ_UNCOMMITTED) == 4
        assert (await committed_offset(client))[0] == UNSTABLE

        assert await producer.end(committed) == OK
        assert await ended(client) == ("CompleteCommit" if committed else "CompleteAbort")
        assert producer.identity == ((producer_id, epoch) if dialect == 1 else (producer_id, epoch + 1))
        marker = Marker.COMMIT if committed else Marker.ABORT
        whole = [b"plain", b"a", b"b", b"later"] if committed else [b"plain", b"later"]
        assert await read(client) == Read(whole, [marker], [] if committed else [(producer_id, 1)], 5, 5)
        assert (await read(client, 1)).values == ([b"c"] if committed else [])
        assert await latest(client, READ_COMMITTED) == 5
        assert await committed_offset(client) == (OK, 7 if committed else -1)
        assert (await producers(client))[producer_id][2] == -1

        await producer.write(0, b"next")
        assert await producer.end(COMMIT) == OK
        assert await ended(client) == "CompleteCommit"
        assert (await read(client)).values == [*whole, b"next"]

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_waiting_reader_is_woken_by_the_end(dialect: int) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        await producer.write(0, b"a")
        reader = await life.door.client()
        waiting = asyncio.ensure_future(reader.fetch(max_wait=30_000, isolation_level=READ_COMMITTED))
        await asyncio.sleep(1)
        assert not waiting.done()
        begun = life.door.clock.monotonic()
        await producer.end(COMMIT)
        answer = await waiting
        assert answer["responses"][0]["partitions"][0]["records"]
        assert life.door.clock.monotonic() - begun < 1

    run(body)


def test_the_stable_offset_is_that_of_the_oldest_transaction() -> None:
    async def body(life: Life, client: Client) -> None:
        first, second = Producer(client, 2, "first"), Producer(client, 2, "second")
        for producer in (first, second):
            await producer.init()
        await first.write(0, b"1a")
        await second.write(0, b"2a")
        await first.write(0, b"1b")
        one = first.identity[0]
        await second.end(COMMIT)
        assert await ended(client, "second") == "CompleteCommit"
        assert await read(client) == Read([], [], [], 0, 4)
        await first.end(ABORT)
        assert await ended(client, "first") == "CompleteAbort"
        assert await read(client) == Read([b"2a"], [Marker.COMMIT, Marker.ABORT], [(one, 0)], 5, 5)

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_second_producer_aborts_the_first_and_fences_it(dialect: int) -> None:
    async def body(life: Life, client: Client) -> None:
        old, new = Producer(client, dialect), Producer(client, dialect)
        await old.init()
        await old.write(0, b"lost")
        await new.init()
        assert new.identity[0] == old.identity[0]
        assert new.identity[1] > old.identity[1]
        assert (await old.send(0, b"zombie"))["error_code"] == OLD_EPOCH
        assert await old.end(COMMIT) == FENCED
        await new.write(0, b"kept")
        assert await new.end(COMMIT) == OK
        assert await ended(client) == "CompleteCommit"
        assert (await read(client)).values == [b"kept"]

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_transaction_nobody_ends_is_aborted(dialect: int) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init(timeout_ms=5000)
        await producer.write(0, b"lost")
        assert await producer.commit_offset("g", 7) == OK
        await asyncio.sleep(4)
        assert await state_of(client) == "Ongoing"
        await asyncio.sleep(2)
        assert await ended(client) == "CompleteAbort"
        assert await read(client) == Read([], [Marker.ABORT], [(producer.identity[0], 0)], 2, 2)
        assert await committed_offset(client) == (OK, -1)
        assert (await producer.send(0, b"late"))["error_code"] == OLD_EPOCH
        assert await producer.end(COMMIT) in (FENCED, BAD_STATE)
        assert (await read(client, isolation=READ_UNCOMMITTED)).values == [b"lost"]

    run(body)


# --- restarts


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_a_restart_under_way_keeps_the_transaction_open(dialect: int, committed: bool, power_cut: bool) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        await producer.write(0, b"a")
        assert await producer.commit_offset("g", 7) == OK
        client = producer.client = await life.restart(power_cut=power_cut)
        assert await state_of(client) == "Ongoing"
        assert await read(client) == Read([], [], [], 0, 1)
        assert (await committed_offset(client))[0] == UNSTABLE
        assert (await producers(client))[producer.identity[0]] == (producer.identity[1], 0, 0)
        assert (await producer.send(0, b"b"))["error_code"] == OK
        assert await producer.end(committed) == OK
        assert await ended(client) == ("CompleteCommit" if committed else "CompleteAbort")
        assert (await read(client)).values == ([b"a", b"b"] if committed else [])
        assert await committed_offset(client) == (OK, 7 if committed else -1)

    run(body)


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_a_restart_after_the_decision_carries_it_out(dialect: int, committed: bool, power_cut: bool) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        await producer.write(0, b"a")
        await producer.write(1, b"b")
        assert await producer.commit_offset("g", 7) == OK
        for path in ("/t/0/", "/__consumer_offsets/"):
            life.door.disk.fail("write_at", errno.ENOSPC, path_contains=path, times=1 << 30)
        assert await producer.end(committed) == OK, "the decision is durable, the markers are not written"
        await asyncio.sleep(1)
        assert await state_of(client) == ("PrepareCommit" if committed else "PrepareAbort")
        client = producer.client = await life.restart(power_cut=power_cut)
        assert await ended(client) == ("CompleteCommit" if committed else "CompleteAbort")
        for index, value in enumerate((b"a", b"b")):
            assert (await read(client, index)).values == ([value] if committed else [])
        assert await committed_offset(client) == (OK, 7 if committed else -1)
        await producer.write(0, b"next")
        assert await producer.end(COMMIT) == OK
        assert await ended(client) == "CompleteCommit"
        assert (await read(client)).values == ([b"a", b"next"] if committed else [b"next"])

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("committed", [COMMIT, ABORT])
def test_a_restart_between_transactions(dialect: int, committed: bool) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        client = producer.client = await life.restart()
        assert await state_of(client) == "Empty"
        await producer.write(0, b"a")
        before = producer.identity
        assert await producer.end(committed) == OK
        assert await ended(client) == ("CompleteCommit" if committed else "CompleteAbort")
        client = producer.client = await life.restart()
        after = producer.identity
        producer.identity = before
        assert await producer.end(committed) == OK, "asked again: the first answer may have been lost"
        assert producer.identity == after
        await producer.write(0, b"next")
        assert await producer.end(COMMIT) == OK
        assert await ended(client) == "CompleteCommit"
        assert (await read(client)).values == ([b"a", b"next"] if committed else [b"next"])

    run(body)


def test_time_runs_out_while_the_broker_is_down() -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, 2)
        await producer.init(timeout_ms=5000)
        await producer.write(0, b"lost")
        await asyncio.sleep(4)
        client = await life.restart()
        await asyncio.sleep(2)
        assert await ended(client) == "CompleteAbort"
        assert (await read(client)).values == []

    run(body)
