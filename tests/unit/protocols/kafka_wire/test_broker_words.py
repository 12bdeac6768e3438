"""Errors on their way from one broker to another: all of them arrive as what they were."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.doors.kafka import LIMITS, Door, open_door

from penstock.cluster.replication.source import Position, SegmentWanted
from penstock.engine.partition import Partition
from penstock.engine.transactions.requests import AddPartitions, MarkersDue
from penstock.errors import Code, PenstockError
from penstock.net.connection import Connections
from penstock.protocols.internal import replica_fetch_codec, segment_codec
from penstock.protocols.internal.broker_calls import BrokerCalls
from penstock.protocols.internal.broker_source import BrokerSource
from penstock.protocols.internal.identity import Identity
from penstock.protocols.internal.peer import Peer
from penstock.protocols.internal.reception import Reception
from penstock.protocols.kafka import fetch_codec
from penstock.protocols.kafka.fetch_codec import Row
from penstock.protocols.kafka.session import KafkaSession
from penstock.protocols.kafka_wire import broker_words, errors
from penstock.protocols.kafka_wire.messages import Schema, decode, element_of, encode, schema_of
from penstock.storage.log.card import BLOCK_BYTES
from penstock.testing.virtual_clock import run_virtual

INTERNAL = 9093
SECRET = "correct horse"  # noqa: S105 - of nobody
SHARED = {
    Code.CORRUPT_LOG: Code.STORAGE_FAILED,
    Code.STORAGE_FULL: Code.STORAGE_FAILED,
    Code.STORAGE_FAILED: Code.STORAGE_FAILED,
    Code.LIMIT_EXCEEDED: Code.NOT_ALLOWED,
    Code.NOT_ALLOWED: Code.NOT_ALLOWED,
    Code.TIMED_OUT: Code.TIMED_OUT,
    Code.OUTCOME_UNKNOWN: Code.TIMED_OUT,
    Code.QUEUE_FULL: Code.NOT_ALLOWED,
    Code.INVALID_REQUEST: Code.INVALID_REQUEST,
    Code.INVALID_QUEUE: Code.INVALID_REQUEST,
    Code.INVALID_SCHEDULE: Code.INVALID_REQUEST,
    Code.GROUP_NOT_FOUND: Code.GROUP_NOT_FOUND,
    Code.UNKNOWN_QUEUE: Code.GROUP_NOT_FOUND,
}
"""Codes that have their number with others, and what is true of all of these."""
UNAVAILABLE = dict.fromkeys((Code.NOT_AVAILABLE, Code.NOT_LEADER), Code.COORDINATOR_NOT_AVAILABLE)
"""What a coordinator says of itself, whoever asks (`transaction_errors`)."""


class TwoBrokers:
    """One that refuses everything with `code`, and the ways another one has to it."""

    def __init__(self, door: Door, topic_id: bytes) -> None:
        peer = Peer(door.network.of("other"), "broker", INTERNAL, door.clock, identity=Identity(SECRET, "broker 2"))
        self._topic_id = topic_id
        self._source = BrokerSource(peer, peer, 2, lambda: 7)
        self._calls = BrokerCalls(lambda _: peer, lambda _: asyncio.sleep(0, False))

    async def fetch(self) -> Code | None:
        heard: list[Code | None] = []
        position = Position(self._topic_id, 0, 0, 0, -1, 0, 1 << 20)
        await self._source.fetch([position], lambda _, code: heard.append(code), max_wait_ms=0, max_bytes=1 << 20)
        (code,) = heard
        return code

    async def copy(self) -> Code | None:
        with pytest.raises(PenstockError) as refused:
            await self._source.copy_segment(SegmentWanted(self._topic_id, 0, 0, 0, 0, BLOCK_BYTES, 0))
        return refused.value.code

    async def mark(self) -> Code | None:
        due = MarkersDue("x", 5, 0, 0, True, ())
        return await self._code(self._calls.write_markers(1, due, [("t", 0)]))

    async def add(self) -> Code | None:
        return await self._code(self._calls.add_partitions(1, AddPartitions("x", 5, 0, (("t", 0),))))

    async def _code(self, asked: Awaitable[Any]) -> Code | None:
        error = (await asked)["t", 0]
        return None if error is None else error.code


def with_two(monkeypatch: pytest.MonkeyPatch, body: Callable[[TwoBrokers, Callable[[Code], None]], Awaitable[None]]):
    code = Code.NOT_AVAILABLE

    def refuse(*_: object, **__: object) -> Any:
        raise PenstockError(code, "refused")

    async def refuse_later(*_: object, **__: object) -> Any:
        refuse()

    def set_code(wanted: Code) -> None:
        nonlocal code
        code = wanted

    async def main() -> None:
        door = await open_door()
        door.context.cluster = True
        reception = Reception(door.engine, door.clock, Identity(SECRET, "broker 1"), tuple)
        internal = Connections(
            LIMITS,
            door.stats,
            door.clock,
            lambda connection: KafkaSession(door.context, connection, door.clock, reception.receive(connection)),
            asyncio.get_running_loop().call_soon,
        )
        await door.network.listen("broker", INTERNAL, internal.accept)
        topic = await door.topic("t", 1)
        monkeypatch.setattr(Partition, "check_replica_epoch", refuse)
        monkeypatch.setattr(door.engine.transactions, "write_marker", refuse_later)
        monkeypatch.setattr(door.engine.transactions, "add_partitions", refuse_later)
        await body(TwoBrokers(door, topic.topic_id.bytes), set_code)
        assert not door.failures

    run_virtual(main, 1)


def test_every_code_survives_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(brokers: TwoBrokers, refuse_with: Callable[[Code], None]) -> None:
        for code in Code:
            refuse_with(code)
            assert [await brokers.fetch(), await brokers.copy(), await brokers.mark()] == [code] * 3
            assert await brokers.add() == UNAVAILABLE.get(code, code)

    with_two(monkeypatch, body)


def test_what_an_earlier_release_tells_is_never_read_as_something_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_words, "word_of", lambda _: "")

    async def body(brokers: TwoBrokers, refuse_with: Callable[[Code], None]) -> None:
        for code in Code:
            refuse_with(code)
            heard = [await brokers.fetch(), await brokers.copy(), await brokers.mark()]
            assert heard == [SHARED.get(code, code)] * 3
            assert await brokers.add() == {**SHARED, **UNAVAILABLE}.get(code, code)

    with_two(monkeypatch, body)


def test_an_earlier_release_reads_the_number_and_passes_over_the_word(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [_row_of("write_txn_markers", 2, "markers", "topics", "partitions")]
    rows.append(_row_of("add_partitions_to_txn", 5, "results_by_transaction", "topic_results", "results_by_partition"))
    for code in Code:
        error = PenstockError(code, "refused")
        number, word = errors.kafka_code(error), broker_words.word_of(error)
        row = Row(bytes(16), 0, number, -1, -1, -1, None, leader=(3, 4), word=word)
        (body,), _ = fetch_codec.encode([row], replica_fetch_codec.VERSION, 0, 0)
        assert isinstance(body, bytes)
        with monkeypatch.context() as before:
            before.setattr(broker_words, "TAG", -1)
            (fetched,) = replica_fetch_codec.decode(memoryview(body)).rows
        assert (fetched.code, fetched.leader, fetched.word) == (number, (3, 4), "")
        for schema in rows:
            (name,) = {field.name for field in schema.fields} - {"partition_index"}
            told = encode(schema, {"partition_index": 4, name: number, "word": word})
            found = decode(schema._replace(tagged={}), memoryview(told))
            assert (found.partition_index, found.get(name), found.get("word")) == (4, number, None)
        answered = segment_codec.decode_answer(memoryview(segment_codec.encode_refusal(number, word)))
        assert (answered.code, answered.part.data) == (number, b"")


def _row_of(api: str, version: int, *arrays: str) -> Schema:
    schema = schema_of(api, version, "response")
    for array in arrays:
        schema = element_of(schema, array)
    return schema


def test_words_are_told_only_where_a_number_is_not_enough() -> None:
    numbers = Counter(errors.KAFKA_CODES.values())
    assert {code for code, number in errors.KAFKA_CODES.items() if numbers[number] > 1} == set(SHARED)
    for code in Code:
        assert broker_words.word_of(PenstockError(code, "")) == (code.value if code in SHARED else "")


@pytest.mark.parametrize("word", ["", "made_later", "unknown_topic", "\ufffd"])
def test_a_word_that_does_not_fit_the_number_counts_for_nothing(word: str) -> None:
    assert broker_words.code_of(errors.KAFKA_STORAGE_ERROR, word) is Code.STORAGE_FAILED
    assert broker_words.code_of(errors.NONE, word) is None
    assert broker_words.code_of(12345, word) is Code.NOT_AVAILABLE
