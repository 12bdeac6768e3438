"""Markers that do not come from a coordinator: they abort what hangs, and leave nothing behind that harms anybody."""

import pytest
from tests.doors.kafka import Client, batch_of
from tests.unit.protocols.kafka.transactional_client import (
    COMMIT,
    DIALECTS,
    OK,
    Life,
    Producer,
    ended,
    producers,
    read,
    run,
)

from penstock.engine.transactions.transactions import Transactions

NOT_LEADER, BAD_TOPIC, NOT_ALLOWED, OLD_EPOCH, BAD_STATE = 6, 17, 44, 47, 48
LARGEST_EPOCH = (1 << 31) - 1
INTERNAL = ("__consumer_offsets", "__transaction_state")


async def mark(
    client: Client,
    identity: tuple[int, int],
    *,
    committed: bool = False,
    topic: str = "t",
    index: int = 0,
    coordinator_epoch: int = LARGEST_EPOCH,
    version: int = 1,
) -> int:
    marker = {
        "producer_id": identity[0], "producer_epoch": identity[1], "transaction_result": committed,
        "coordinator_epoch": coordinator_epoch, "topics": [{"name": topic, "partition_indexes": (index,)}],
    }  # fmt: skip
    answer = await client.ask("write_txn_markers", version, markers=[marker])
    code: int = answer["markers"][0]["topics"][0]["partitions"][0]["error_code"]
    return code


def ends(life: Life, topic: str = "t") -> list[int]:
    found = life.door.engine.topics.get(topic)
    assert found is not None
    return [partition.opened().end_offset for partition in found.partitions]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_after_any_of_them_the_producer_and_its_coordinator_go_on(dialect: int, restart: bool) -> None:
    """Not the epochs named in it, but what is in the log afterwards could stop them: there, and after a restart."""

    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        await producer.write(0, b"first")
        for epoch in (producer.identity[1], 32_767):
            code = await mark(client, (producer.identity[0], epoch), version=dialect)
            assert code == (OK if epoch == producer.identity[1] else BAD_STATE)
        assert (await read(client)).stable_offset == 2, "nothing is open"
        if restart:
            client = producer.client = await life.restart(power_cut=True)
        await producer.write(0, b"second")
        assert await producer.end(COMMIT) == OK
        assert await ended(client) == "CompleteCommit"
        await producer.write(0, b"third")
        assert await producer.end(COMMIT) == OK
        assert await ended(client) == "CompleteCommit"
        seen = await read(client)
        assert seen.values == [b"second", b"third"]
        assert seen.stable_offset == seen.high_watermark, "readers of committed records wait for nobody"

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_none_between_transactions_freezes_the_next(dialect: int) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, dialect)
        await producer.init()
        await producer.write(0, b"first")
        assert await producer.end(COMMIT) == OK
        await ended(client)
        before = ends(life)
        for committed in (False, True):
            for epoch in (producer.identity[1], 32_767):
                code = await mark(client, (producer.identity[0], epoch), committed=committed)
                assert code == (NOT_ALLOWED if committed else BAD_STATE)
        assert ends(life) == before, "nothing was open, so nothing was written"
        await producer.write(0, b"second")
        assert await producer.end(COMMIT) == OK
        assert await ended(client) == "CompleteCommit"
        assert (await read(client)).values == [b"first", b"second"]

    run(body)


def test_only_an_abort_of_the_epoch_that_is_open() -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, 2)
        await producer.init()
        await producer.init()  # so that there is an epoch below
        await producer.write(0, b"open")
        producer_id, epoch = producer.identity
        before = ends(life)
        assert await mark(client, producer.identity, committed=True) == NOT_ALLOWED
        for other in (epoch - 1, epoch + 1, 32_767):
            assert await mark(client, (producer_id, other)) == OLD_EPOCH
        assert await mark(client, (producer_id + 1, epoch)) == BAD_STATE
        assert await mark(client, producer.identity, index=1) == BAD_STATE
        assert ends(life) == before
        assert (await producers(client))[producer_id] == (epoch, 0, 0)

    run(body)


def test_what_is_committed_is_not_aborted_while_its_marker_is_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, 2)
        await producer.init()
        await producer.write(0, b"committed")
        identity = producer.identity
        monkeypatch.setattr(Transactions, "_write_all", lambda *_: None)
        assert await producer.end(COMMIT) == OK
        assert await mark(client, identity) == NOT_ALLOWED
        monkeypatch.undo()
        client = await life.restart()
        assert await ended(client) == "CompleteCommit"
        assert (await read(client)).values == [b"committed"]

    run(body)


@pytest.mark.parametrize("topic", INTERNAL)
def test_none_into_internal_topics(topic: str) -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, 2)
        await producer.init()
        assert await producer.commit_offset("g", 5) == OK
        before = ends(life, topic)
        for index in range(len(before)):
            assert await mark(client, producer.identity, topic=topic, index=index) == BAD_TOPIC
        assert ends(life, topic) == before
        assert await producer.end(COMMIT) == OK
        assert await ended(client) == "CompleteCommit"

    run(body)


def test_in_a_cluster_they_are_taken_by_the_leader() -> None:
    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, 2)
        await producer.init()
        await producer.write(0, b"open")
        life.door.context.cluster = True
        partition = life.door.engine.topics.partition("t", 0)
        led = partition.state
        partition.follow(led)
        assert await mark(client, producer.identity) == NOT_LEADER
        partition.lead(led)
        assert await mark(client, producer.identity) == OK
        assert (await read(client)).stable_offset == 2

    run(body)


def test_a_plain_batch_does_not_raise_the_epoch_under_a_transaction() -> None:
    """Nobody vouches for its epoch, and the marker that is to come would be too old for it."""

    async def body(life: Life, client: Client) -> None:
        producer = Producer(client, 2)
        await producer.init()
        await producer.write(0, b"open")
        plain = batch_of(b"plain", producer_id=producer.identity[0], producer_epoch=32_766, base_sequence=0)
        assert (await client.produce(plain))["error_code"] == BAD_STATE
        assert await producer.end(COMMIT) == OK
        assert await ended(client) == "CompleteCommit"
        assert (await read(client)).values == [b"open"]

    run(body)
