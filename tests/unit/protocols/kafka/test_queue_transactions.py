"""Messages of a queue are acknowledged by offsets that are sent to a transaction, in both versions of transactions."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.doors.kafka import Client
from tests.simulated_broker import append, until_visible
from tests.unit.protocols.kafka.transactional_client import (
    ABORT,
    COMMIT,
    DIALECTS,
    OK,
    Life,
    Producer,
    committed_offset,
    ended,
    read,
    run,
)

from penstock.engine.access import ANONYMOUS, Kind, NotAuthorised, Operation, Resource
from penstock.engine.acting.acting import Verdicts
from penstock.engine.partition import Partition
from penstock.engine.queues.answers import Figures, Want
from penstock.engine.queues.receipts import make_receipt
from penstock.engine.queues.transactional_acks import AckRequest
from penstock.engine.queues.verdicts import Change, Receipt, Verdict, VerdictKind
from penstock.engine.transactions.requests import AddPartitions
from penstock.errors import Code, PenstockError
from penstock.records.build import build_batch

QUEUE, LATE, ABORTED_BY = "t", "late", {1: 22, 2: 120}
"""ILLEGAL_GENERATION, TRANSACTION_ABORTABLE: what clients of each version abort at, and go on."""
UNKNOWN_TOPIC, TOO_LARGE, FENCED = 3, 12, 90
NOW_MS = 1_700_000_000_000


class Queue:
    """Partition 1 of topic `t` as a queue; what is made of its messages goes to partition 0."""

    def __init__(self, life: Life) -> None:
        self._life = life

    @property
    def partition(self) -> Partition:
        return self._life.door.engine.topics.partition(QUEUE, 1)

    async def begin(self, *values: bytes, **rules: str) -> None:
        engine = self._life.door.engine
        topic = engine.topics.get(QUEUE)
        assert topic is not None
        await engine.queues.attach(topic)
        await engine.alter_queues(topic, lambda queues: {**queues, QUEUE: {"backoff": "none", **rules}})
        batch = build_batch([(None, value, (), NOW_MS) for value in values])
        appended = append(self.partition, bytearray(batch))
        await until_visible(self.partition, appended.last_offset)

    async def receipts(self, most: int = 100) -> list[str]:
        want = Want(QUEUE, "c", most)
        found = await self._life.door.engine.receiving.receive(self.partition, want, 1 << 20, 0)
        return [make_receipt(1, each.message.offset, each.lease_id) for each in found]

    async def figures(self) -> Figures:
        return await self._life.door.engine.queues.figures(self.partition, QUEUE)

    async def counts(self) -> tuple[int, int, int]:
        figures = await self.figures()
        return figures.ready, figures.leased, figures.in_transactions


async def acknowledge(producer: Producer, text: str, *, client: Client | None = None, group: str = QUEUE) -> int:
    client = client or producer.client
    producer_id, epoch = producer.identity
    who = {"transactional_id": "tx", "producer_id": producer_id, "producer_epoch": epoch, "group_id": group}
    if producer.dialect == 1:
        answer = await client.ask("add_offsets_to_txn", 3, **who)
        if answer["error_code"] != OK:
            return int(answer["error_code"])
    row = {"partition_index": 1, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": text}
    topics = [{"name": QUEUE, "partitions": [row]}]
    version = 3 if producer.dialect == 1 else 5
    answer = await client.ask("txn_offset_commit", version, **who, generation_id=-1, topics=topics)
    return int(answer["topics"][0]["partitions"][0]["error_code"])


async def begun(life: Life, client: Client, dialect: int, count: int = 4, **rules: str) -> tuple[Queue, Producer]:
    queue, producer = Queue(life), Producer(client, dialect)
    await queue.begin(*[b"%d" % number for number in range(count)], **rules)
    await producer.init()
    return queue, producer


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("ending", [COMMIT, ABORT])
def test_both_or_neither(dialect: int, ending: bool) -> None:
    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, dialect)
        receipts = await queue.receipts(3)
        await producer.write(0, b"made")
        assert await acknowledge(producer, f"{receipts[0]}, {receipts[2]}\0") == OK
        assert await acknowledge(producer, receipts[0]) == OK  # as who had no answer
        assert await queue.counts() == (1, 3, 2)
        assert await producer.end(ending) == OK
        await ended(client)
        assert (await read(client)).values == ([b"made"] if ending else [])
        assert await queue.counts() == ((1, 1, 0) if ending else (1, 3, 0))
        assert await committed_offset(client, QUEUE) == (OK, -1)
        assert await acknowledge(producer, receipts[0]) == (ABORTED_BY[dialect] if ending else OK)

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("ending", [COMMIT, ABORT, LATE])
def test_a_broker_dies_in_between(dialect: int, power_cut: bool, ending: bool | str) -> None:
    """What a transaction has stays there, longer than its lease; a producer that is gone loses it to its time-out."""

    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, dialect, visibility="5s")
        receipts = await queue.receipts(2)
        await producer.write(0, b"made")
        assert await acknowledge(producer, f"{receipts[0]}+1") == OK
        producer.client = client = await life.restart(power_cut=power_cut)
        await asyncio.sleep(10)
        assert await queue.receipts(1) != []
        assert await queue.counts() == (1, 3, 2)
        if ending is LATE:
            await asyncio.sleep(60)
        else:
            assert await producer.end(bool(ending)) == OK
        await ended(client)
        await asyncio.sleep(6)  # the other lease ends, too
        assert (await read(client)).values == ([b"made"] if ending is COMMIT else [])
        assert await queue.counts() == ((2, 0, 0) if ending is COMMIT else (4, 0, 0))
        where = [await life.door.engine.queues.whereabouts(queue.partition, QUEUE, offset) for offset in range(3)]
        assert [each.attempts for each in where] == [0, 0, 1]

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "\0", "nonsense", make_receipt(0, 0, 7), make_receipt(1, 0, 7)),
        *("RECEIPT+", "RECEIPT+x", "RECEIPT+1000000", "RECEIPT,RECEIPT", "RECEIPT+3", "RECEIPT,nonsense"),
    ],
)
def test_what_is_no_good_receipt_aborts(dialect: int, text: str) -> None:
    """All of it is refused, nothing is taken, and the producer goes on."""

    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, dialect)
        (receipt,) = await queue.receipts(1)
        assert await acknowledge(producer, text.replace("RECEIPT", receipt)) == ABORTED_BY[dialect]
        assert await queue.counts() == (3, 1, 0)
        assert await producer.end(ABORT) == OK
        assert await acknowledge(producer, receipt) == OK
        assert await producer.end(COMMIT) == OK
        await ended(client)
        assert await queue.counts() == (3, 0, 0)

    run(body)


def test_many_receipts_fit_and_no_more() -> None:
    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, 2, 130)
        receipts = await queue.receipts(130)
        assert await acknowledge(producer, ",".join(receipts[:118])) == TOO_LARGE
        assert await acknowledge(producer, ",".join(receipts[:117])) == OK
        assert await acknowledge(producer, f"{receipts[117]}+12") == OK
        assert await producer.end(COMMIT) == OK
        await ended(client)
        assert await queue.counts() == (0, 0, 0)

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_another_producer_fences_and_aborts(dialect: int) -> None:
    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, dialect)
        first, second = await queue.receipts(2)
        assert await acknowledge(producer, first) == OK
        successor = Producer(client, dialect)
        await successor.init()
        assert await queue.counts() == (2, 2, 0)
        assert await acknowledge(producer, second) == FENCED
        assert await acknowledge(successor, f"{first},{second}") == OK
        assert await successor.end(COMMIT) == OK
        await ended(client)
        assert await queue.counts() == (2, 0, 0)

    run(body)


def test_an_offset_of_a_stream_stays_one() -> None:
    """Of another group; of another topic; or of a member, who reads the topic as a stream under the queue's name."""

    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, 2)
        assert await producer.commit_offset("readers", 3) == OK
        assert await producer.end(COMMIT) == OK
        await ended(client)
        assert await committed_offset(client, "readers") == (OK, 3)
        acks = life.door.engine.transactional_acks
        (receipt,) = await queue.receipts(1)
        assert acks.is_ack((QUEUE, 1), QUEUE, "", by_member=False)
        assert not acks.is_ack((QUEUE, 1), QUEUE, "Kafka Streams' own", by_member=True)
        assert acks.is_ack((QUEUE, 1), QUEUE, f" {receipt}+3\0", by_member=True)
        assert not acks.is_ack((QUEUE, 1), "readers", receipt, by_member=False)
        assert not acks.is_ack(("others", 1), QUEUE, receipt, by_member=False)

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_deleted_topic_holds_up_no_transaction(dialect: int) -> None:
    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, dialect)
        engine = life.door.engine
        (receipt,) = await queue.receipts(1)
        assert await acknowledge(producer, receipt) == OK
        topic = engine.topics.get(QUEUE)
        assert topic is not None
        await engine.delete_topic(topic)
        await life.door.topic("t", 2)  # without a queue
        assert await producer.end(COMMIT) == OK
        async with asyncio.timeout(60):
            assert await ended(client) == "CompleteCommit"
        await producer.init()

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_operators_word_goes_first(dialect: int) -> None:
    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, dialect)
        engine = life.door.engine
        receipts = await queue.receipts(4)
        assert await acknowledge(producer, f"{receipts[0]}+3") == OK
        assert await engine.queues.purge(queue.partition, QUEUE, 1) == 1
        await engine.delete_records(queue.partition, 2)
        assert await queue.receipts() == []  # and what is gone is settled
        assert await queue.counts() == (0, 2, 2)
        await engine.queues.restart(queue.partition, QUEUE, 2)
        assert await queue.counts() == (2, 0, 0)
        assert await producer.end(COMMIT) == OK
        await ended(client)
        assert await queue.counts() == (2, 0, 0)

    run(body)


def test_clients_neither_see_nor_name_a_ledger() -> None:
    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, 1)
        (receipt,) = await queue.receipts(1)
        assert await acknowledge(producer, receipt) == OK
        answer = await client.ask("describe_transactions", 0, transactional_ids=["tx"])
        assert [each["topic"] for each in answer["transaction_states"][0]["topics"]] == ["__consumer_offsets"]
        producer.topic = "t~queue"
        assert await producer.add(1) == [UNKNOWN_TOPIC]
        marker = {
            "producer_id": producer.identity[0], "producer_epoch": 0, "transaction_result": False,
            "coordinator_epoch": 0, "topics": [{"name": "t~queue", "partition_indexes": [1]}],
        }  # fmt: skip
        told = await client.ask("write_txn_markers", 1, markers=[marker])
        assert told["markers"][0]["topics"][0]["partitions"][0]["error_code"] == UNKNOWN_TOPIC
        assert await queue.counts() == (3, 1, 1)

    run(body)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_ledger_begins_no_transaction(dialect: int) -> None:
    """What comes late, when all has ended, opens nothing that nobody would end."""

    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, dialect)
        (receipt,) = await queue.receipts(1)
        await producer.write(0, b"made")
        assert await producer.end(COMMIT) == OK
        await ended(client)
        engine = life.door.engine
        request = AckRequest("tx", *producer.identity, QUEUE, {(QUEUE, 1): receipt})
        (error,) = (await engine.transactional_acks.acknowledge(request)).values()
        assert error is not None
        assert error.code is Code.TRANSACTION_ABORTABLE
        assert await queue.counts() == (3, 1, 0)
        added = await engine.transactions.add_partitions(
            AddPartitions("tx", *producer.identity, (("t~queue", 1), ("t", 0)))
        )
        assert all(each is not None for each in added.values())
        assert await ended(client) == "CompleteCommit"

    run(body)


def test_a_verdict_waits_for_the_transaction_unless_it_extends() -> None:
    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, 2, visibility="30s")
        engine = life.door.engine
        want = Want(QUEUE, "c", 1)
        (taken,) = await engine.receiving.receive(queue.partition, want, 1 << 20, 0)
        assert await acknowledge(producer, make_receipt(1, 0, taken.lease_id)) == OK

        async def settle(kind: VerdictKind, *more: Any) -> None:
            change = Change(0, 0, Verdict(kind, *more))
            await engine.queues.settle(queue.partition, QUEUE, Receipt(taken.lease_id), [change])

        for kind in (VerdictKind.ACK, VerdictKind.NACK, VerdictKind.RELEASE, VerdictKind.REJECT):
            with pytest.raises(PenstockError, match="in a transaction that has not ended") as refused:
                await settle(kind)
            assert refused.value.code is Code.STALE_RECEIPT
        await settle(VerdictKind.RENEW, 45_000)
        await asyncio.sleep(40)
        assert await producer.end(ABORT) == OK
        await ended(client)
        assert await queue.counts() == (3, 1, 0)  # by that it lasts still
        await settle(VerdictKind.ACK)
        assert await queue.counts() == (3, 0, 0)

    run(body)


@pytest.mark.parametrize("lacking", ["the id", "the group", "the topic", ""])
def test_it_takes_the_rights_of_both(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {
        "the id": (Operation.WRITE, Kind.TRANSACTIONAL_ID, "tx"),
        "the group": (Operation.READ, Kind.GROUP, QUEUE),
        "the topic": (Operation.READ, Kind.TOPIC, QUEUE),
    }

    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, 2)
        (receipt,) = await queue.receipts(1)
        assert await acknowledge(producer, "nonsense") == ABORTED_BY[2]
        acting = life.door.engine.acting_as(ANONYMOUS)
        asked: list[Sequence[object]] = []

        def check(self: Verdicts, operation: Operation, kind: Kind, name: str) -> None:
            asked.append((operation, kind, name))
            if (operation, kind, name) == needed.get(lacking):
                raise NotAuthorised(ANONYMOUS, operation, Resource(kind, name))

        monkeypatch.setattr(Verdicts, "check", check)
        request = AckRequest("tx", *producer.identity, QUEUE, {(QUEUE, 1): receipt})
        if lacking:
            with pytest.raises(NotAuthorised):
                await acting.queues.acknowledge(request)
        else:
            assert await acting.queues.acknowledge(request) == {(QUEUE, 1): None}
            assert set(asked) == set(needed.values())

    run(body)


@pytest.mark.parametrize("ending", [COMMIT, ABORT])
def test_the_history_of_a_message_tells_of_the_transaction(ending: bool) -> None:
    """While it is open, too, and what came behind it; of another message nothing."""

    async def body(life: Life, client: Client) -> None:
        queue, producer = await begun(life, client, 2, visibility="30s")
        engine = life.door.engine

        async def told(offset: int) -> list[str]:
            events = await engine.queues.history(queue.partition, QUEUE, offset, engine.turns)
            return [str(each.what) for each in events]

        (receipt,) = await queue.receipts(1)
        assert await acknowledge(producer, receipt) == OK
        await queue.receipts(1)
        open_ = ["leased", "acknowledged in a transaction"]
        assert (await told(0), await told(1)) == (open_, ["leased"])
        assert await producer.end(ending) == OK
        await ended(client)
        await asyncio.sleep(1)
        after = ["acknowledged"] if ending else ["transaction aborted", "extended"]
        assert (await told(0), await told(1)) == ([*open_, *after], ["leased"])

    run(body)
