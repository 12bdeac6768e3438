"""Bad input to the transaction APIs: each gets its code, nothing is written, and a neighbour's transaction goes on."""

import time
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest
from tests.doors.kafka import Client, Door, batch_of, make, produce_values, with_door
from tests.doors.kio_values import request_frame
from tests.doors.transport import RecordingLog
from tests.unit.protocols.kafka.transactional_client import COMMIT, Producer, ended, read

from penstock.engine.coordination.internal_topics import shard_of
from penstock.engine.transactions.requests import TransactionLimits
from penstock.net import connection as connection_module
from penstock.protocols.kafka import answer_room
from penstock.protocols.kafka import session as session_module

OK, UNKNOWN_TOPIC, TOO_LARGE, BAD_TOPIC, BAD_GROUP, UNKNOWN_MEMBER, BAD_REQUEST = 0, 3, 12, 17, 24, 25, 42
GENERATION, POLICY, OLD_EPOCH, BAD_STATE, BAD_MAPPING, BAD_TIMEOUT = 22, 44, 47, 48, 49, 50
NOT_AUTHORISED, INVALID, FENCED, NOT_FOUND, ABORTABLE, BAD_REGEX = 53, 87, 90, 105, 120, 128
LONG = "x" * 30_000
SHARDS = 16
NEIGHBOUR = next(
    name for name in map("neighbour-{}".format, range(999)) if shard_of(name, SHARDS) == shard_of("tx", 16)
)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Any:
    """No request may fail by a mistake of ours."""
    recording = RecordingLog()
    monkeypatch.setattr(connection_module, "log_", recording)
    monkeypatch.setattr(session_module, "log_", recording)
    yield recording
    assert not recording.bugs, recording.bugs[0]


def run(
    body: Callable[[Door, Client], Awaitable[None]], partitions: int = 2, limits: TransactionLimits | None = None
) -> None:
    """With a neighbour in the same shard that began before, and ends after."""

    async def main(door: Door) -> None:
        door.engine.transactions._limits = limits or TransactionLimits()
        await door.topic("t", partitions)
        neighbour = Producer(await door.client(), 2, NEIGHBOUR, topic="theirs")
        await door.topic("theirs", 1)
        await neighbour.init()
        assert (await neighbour.client.ask("find_coordinator", 2, key="g", key_type=0))["error_code"] == OK
        await neighbour.write(0, b"before")
        await body(door, await door.client())
        began = door.clock.monotonic()
        await neighbour.write(0, b"after")
        assert await neighbour.end(COMMIT) == OK
        assert await ended(neighbour.client, NEIGHBOUR) == "CompleteCommit"
        assert door.clock.monotonic() - began < 1

    with_door(main)


async def init(client: Client, transactional_id: str = "tx", **fields: Any) -> tuple[int, tuple[int, int]]:
    asked = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1} | fields
    version = asked.pop("version", 4)
    answer = await client.ask("init_producer_id", version, transactional_id=transactional_id, **asked)
    return answer["error_code"], (answer["producer_id"], answer["producer_epoch"])


async def add_partitions(client: Client, transactional_id: str, identity: tuple[int, int], *indexes: int) -> list[int]:
    asked = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": identity[0],
        "v3_and_below_producer_epoch": identity[1],
        "v3_and_below_topics": [{"name": "t", "partitions": indexes or (0,)}],
    }
    answer = await client.ask("add_partitions_to_txn", 3, **asked)
    (topic,) = answer["results_by_topic_v3_and_below"]
    return [row["partition_error_code"] for row in topic["results_by_partition"]]


async def add_offsets(client: Client, transactional_id: str, identity: tuple[int, int]) -> list[int]:
    answer = await client.ask(
        "add_offsets_to_txn", 3, transactional_id=transactional_id, producer_id=identity[0],
        producer_epoch=identity[1], group_id="g",
    )  # fmt: skip
    return [answer["error_code"]]


async def commit_offsets(
    client: Client, transactional_id: str, identity: tuple[int, int], version: int = 5, **fields: Any
) -> list[int]:
    row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    row |= {name: fields.pop(name) for name in list(fields) if name in row}
    asked = {"group_id": "g", "generation_id": -1} | fields
    answer = await client.ask(
        "txn_offset_commit", version, transactional_id=transactional_id, producer_id=identity[0],
        producer_epoch=identity[1], topics=[{"name": "t", "partitions": [row]}], **asked,
    )  # fmt: skip
    return [row["error_code"] for row in answer["topics"][0]["partitions"]]


async def end(client: Client, transactional_id: str, identity: tuple[int, int], version: int = 5) -> list[int]:
    answer = await client.ask(
        "end_txn", version, transactional_id=transactional_id, producer_id=identity[0], producer_epoch=identity[1],
        committed=True,
    )  # fmt: skip
    return [answer["error_code"]]


async def produce(
    client: Client, transactional_id: str | None, identity: tuple[int, int], version: int = 12, **fields: Any
) -> list[int]:
    batch = batch_of(
        b"x", producer_id=identity[0], producer_epoch=identity[1], base_sequence=0, **({"transactional": True} | fields)
    )
    asked = produce_values(batch) | {"transactional_id": transactional_id}
    answer = await client.ask("produce", version, **asked)
    return [answer["responses"][0]["partition_responses"][0]["error_code"]]


async def end_old(client: Client, transactional_id: str, identity: tuple[int, int]) -> list[int]:
    return await end(client, transactional_id, identity, 3)


async def produce_old(client: Client, transactional_id: str, identity: tuple[int, int]) -> list[int]:
    return await produce(client, transactional_id, identity, 11)


VERBS = [add_partitions, add_offsets, commit_offsets, end, end_old, produce, produce_old]


@pytest.mark.parametrize("verb", VERBS)
def test_whoever_is_not_the_producer_is_told_why(verb: Any) -> None:
    fenced = OLD_EPOCH if verb in (produce, produce_old) else FENCED

    async def body(door: Door, client: Client) -> None:
        assert await verb(client, "tx", (1, 0)) == [BAD_MAPPING], "an id nobody has used"
        _, (producer_id, epoch) = await init(client)
        assert await verb(client, "tx", (producer_id + 500, epoch)) == [BAD_MAPPING]
        assert await verb(client, "tx", (producer_id, epoch + 1)) == [fenced], "an epoch of the future"
        await init(client)
        assert await verb(client, "tx", (producer_id, epoch)) == [fenced]
        assert await verb(client, "tx", (producer_id, 32_767)) == [fenced]
        if verb not in (produce, produce_old):
            assert await verb(client, "tx", (-1, -1)) == [BAD_MAPPING]
            assert await verb(client, "tx", (producer_id, -1)) == [fenced]
        assert (await door.engine.transactions.describe("tx")).state == "Empty"
        assert door.engine.topics.partition("t", 0).high_watermark == 0

    run(body)


@pytest.mark.parametrize("transactional_id", ["", LONG, "ä" * 600])
@pytest.mark.parametrize("verb", VERBS)
def test_names_without_or_beyond_measure(verb: Any, transactional_id: str) -> None:
    async def body(door: Door, client: Client) -> None:
        assert await verb(client, transactional_id, (1, 0)) == [BAD_REQUEST]
        assert await init(client, transactional_id) == (BAD_REQUEST, (-1, -1))
        answer = await client.ask("describe_transactions", 0, transactional_ids=(transactional_id,))
        assert [each["error_code"] for each in answer["transaction_states"]] == [BAD_REQUEST]

    run(body)


@pytest.mark.parametrize("transactional_id", ["nul\0nul", "\N{SNOWMAN}\U0001f41f", " ", "../../tx", "x" * 1024, "%s{}"])
def test_strange_names_are_names(transactional_id: str) -> None:
    async def body(door: Door, client: Client) -> None:
        producer = Producer(client, 2, transactional_id)
        await producer.init()
        await producer.write(0, b"x")
        assert await producer.commit_offset(transactional_id, 3) == OK
        assert await producer.end(COMMIT) == OK
        answer = await client.ask("list_transactions", 0)
        assert transactional_id in [each["transactional_id"] for each in answer["transaction_states"]]

    run(body)


@pytest.mark.parametrize("field", ["transactional_id", "group_id", "pattern"])
def test_names_that_are_not_text_cost_their_sender_the_connection(field: str) -> None:
    async def body(door: Door, client: Client) -> None:
        mark = b"MARKMARK"
        if field == "pattern":
            entity = make("list_transactions", 2, {"transactional_id_pattern": mark.decode()})
        else:
            named = {"transactional_id": "tx", "group_id": "g"} | {field: mark.decode()}
            entity = make("add_offsets_to_txn", 3, {**named, "producer_id": 1, "producer_epoch": 0})
        client.send_frame(request_frame(entity, 1).replace(mark, b"\xed\xa0\x80\xed\xb0\x80\0\xff"))
        await client.stream.closed()

    run(body)


@pytest.mark.parametrize("timeout_ms", [0, -1, -(1 << 31), 15 * 60_000 + 1, (1 << 31) - 1])
def test_time_outs_without_or_beyond_measure(timeout_ms: int) -> None:
    async def body(door: Door, client: Client) -> None:
        assert await init(client, transaction_timeout=timeout_ms) == (BAD_TIMEOUT, (-1, -1))

    run(body)


@pytest.mark.parametrize(("version", "code"), [(3, OLD_EPOCH), (4, FENCED), (5, FENCED)])
def test_who_comes_back_with_an_identity_that_is_over(version: int, code: int) -> None:
    async def body(door: Door, client: Client) -> None:
        _, (producer_id, epoch) = await init(client)
        await init(client)
        stale: dict[str, Any] = {"version": version, "producer_id": producer_id, "producer_epoch": epoch}
        assert await init(client, **stale) == (code, (-1, -1))
        assert await init(client, **stale | {"producer_id": producer_id + 500}) == (code, (-1, -1))
        assert await init(client, **stale | {"producer_epoch": -1}) == (BAD_REQUEST, (-1, -1))

    run(body)


def test_an_end_of_nothing() -> None:
    async def body(door: Door, client: Client) -> None:
        _, identity = await init(client)
        assert await end(client, "tx", identity, 3) == [BAD_STATE]
        assert await end(client, "tx", identity, 5) == [BAD_STATE]

    run(body)


# --- bounds


def test_there_are_so_many_transactional_ids() -> None:
    async def main(door: Door) -> None:
        door.engine.transactions._limits = TransactionLimits(transactional_ids=3)
        client = await door.client()
        names = [name for name in map("tx-{}".format, range(999)) if shard_of(name, SHARDS) == 0]
        codes = [(await init(client, name))[0] for name in names[:6]]
        assert codes == [OK, OK, OK, POLICY, POLICY, POLICY]
        assert (await init(client, names[1]))[0] == OK, "one that is there goes on"

    with_door(main)


def test_a_transaction_has_so_many_partitions() -> None:
    async def body(door: Door, client: Client) -> None:
        _, identity = await init(client)
        assert set(await add_partitions(client, "tx", identity, *range(50))) == {POLICY}
        assert (await door.engine.transactions.describe("tx")).partitions == ()
        assert set(await add_partitions(client, "tx", identity, *range(40))) == {OK}
        assert await add_partitions(client, "tx", identity, 41) == [POLICY]
        assert await produce(client, "tx", identity) == [OK], "one it has"
        missing = await add_partitions(client, "tx", identity, *range(0, -19_000, -1))
        assert missing.count(UNKNOWN_TOPIC) == 18_999
        assert await end(client, "tx", identity) == [OK]

    run(body, partitions=50, limits=TransactionLimits(partitions=40))


def test_more_elements_than_a_broker_has_partitions_close_the_connection() -> None:
    async def body(door: Door, client: Client) -> None:
        _, identity = await init(client)
        with pytest.raises((ConnectionResetError, EOFError)):
            await add_partitions(client, "tx", identity, *range(20_001))

    run(body)


def test_markers_for_partitions_nobody_has() -> None:
    async def body(door: Door, client: Client) -> None:
        topics = [{"name": "nowhere", "partition_indexes": tuple(range(5000))}]
        topics += [{"name": "t", "partition_indexes": (-1, 2, 1 << 30)}]
        marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
        answer = await client.ask("write_txn_markers", 1, markers=[{**marker, "topics": topics}] * 2)
        codes = {
            row["error_code"] for each in answer["markers"] for topic in each["topics"] for row in topic["partitions"]
        }
        assert codes == {UNKNOWN_TOPIC}

    run(body)


@pytest.mark.parametrize("identity", [(-1, 0), (-1, -1), (5, -1), (-(1 << 63), 0), (5, -32768)])
def test_markers_of_nobody(identity: tuple[int, int]) -> None:
    """A marker without a producer would be a batch no reader and no recovery has seen before."""

    async def body(door: Door, client: Client) -> None:
        marker = {
            "producer_id": identity[0], "producer_epoch": identity[1], "transaction_result": False,
            "coordinator_epoch": 0, "topics": [{"name": "t", "partition_indexes": (0,)}],
        }  # fmt: skip
        (answer,) = (await client.ask("write_txn_markers", 1, markers=[marker]))["markers"]
        assert answer["topics"][0]["partitions"][0]["error_code"] != OK
        assert door.engine.topics.partition("t", 0).high_watermark == 0

    run(body)


@pytest.mark.parametrize(
    "pattern",
    ["(", "[a-", "a**", "(?P<x", "\\", "(?=x)", "a{2000}", "((a{100}){100}){100}", "x" * 1_000_000, "(" * 9999],
)
def test_patterns_that_are_none(pattern: str) -> None:
    async def body(door: Door, client: Client) -> None:
        begun = time.process_time()
        answer = await client.ask("list_transactions", 2, transactional_id_pattern=pattern)
        assert answer["error_code"] == BAD_REGEX
        assert time.process_time() - begun < 1

    run(body)


def test_a_description_is_bounded_though_each_transaction_is() -> None:
    async def body(door: Door, client: Client) -> None:
        names = ("one", "two", "none")
        for name in names[:2]:
            code, identity = await init(client, name)
            assert code == OK
            assert await add_partitions(client, name, identity, 0, 1) == [OK, OK]
        with patch.object(answer_room, "LARGEST_ANSWER_BYTES", 100):
            answer = await client.ask("describe_transactions", 0, transactional_ids=names)
        assert [row["error_code"] for row in answer["transaction_states"]] == [OK, POLICY, NOT_FOUND]

    run(body)


def test_a_bad_pattern_is_bad_before_there_are_transactions() -> None:
    async def main(door: Door) -> None:
        client = await door.client()
        answer = await client.ask("list_transactions", 2, transactional_id_pattern="(")
        assert answer["error_code"] == BAD_REGEX

    with_door(main)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*)*b", "([a-z]+)*x"])
def test_a_pattern_cannot_take_for_ever(pattern: str) -> None:
    async def body(door: Door, client: Client) -> None:
        for number in range(20):
            await init(client, "a" * 1000 + f"{number}!")
        begun = time.process_time()
        answer = await client.ask("list_transactions", 2, transactional_id_pattern=pattern)
        assert (answer["error_code"], answer["transaction_states"]) == (OK, ())
        assert time.process_time() - begun < 0.5

    run(body)


# --- offsets in transactions


def test_offsets_of_a_group_nobody_has_asked_for_yet() -> None:
    """A producer need not have a consumer beside it: it adds offsets before it looks for the group's coordinator."""

    async def main(door: Door) -> None:
        await door.topic("t", 1)
        client = await door.client()
        _, identity = await init(client)
        assert await add_offsets(client, "tx", identity) == [OK]

    with_door(main)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"committed_metadata": "m" * 4097}, TOO_LARGE),
        ({"group_id": LONG}, BAD_GROUP),
        ({"partition_index": 7}, UNKNOWN_TOPIC),
        ({"partition_index": -1}, UNKNOWN_TOPIC),
        ({"generation_id": 3, "member_id": "nobody"}, GENERATION),
    ],
)
def test_offsets_that_cannot_be_kept(fields: dict[str, Any], code: int) -> None:
    async def body(door: Door, client: Client) -> None:
        _, identity = await init(client)
        assert await commit_offsets(client, "tx", identity, **fields) == [code]
        assert await commit_offsets(client, "tx", identity) == [OK]
        assert await end(client, "tx", identity) == [OK]

    run(body)


# --- batches


def test_control_batches_are_the_brokers_own() -> None:
    async def body(door: Door, client: Client) -> None:
        _, identity = await init(client)
        assert await produce(client, "tx", identity, control=True) == [INVALID]
        assert await produce(client, "tx", identity, control=True, transactional=False) == [INVALID]
        assert door.engine.topics.partition("t", 0).high_watermark == 0

    run(body)


@pytest.mark.parametrize("version", [3, 9, 11, 12])
@pytest.mark.parametrize("identity", [(-1, -1), (-1, 0), (5, -1), (-7, 3)])
def test_a_transactional_batch_of_nobody(version: int, identity: tuple[int, int]) -> None:
    async def body(door: Door, client: Client) -> None:
        assert await produce(client, "tx", identity, version) == [INVALID]

    run(body)


@pytest.mark.parametrize("version", [3, 11, 12])
def test_a_transactional_batch_without_a_transactional_id(version: int) -> None:
    async def body(door: Door, client: Client) -> None:
        _, identity = await init(client)
        assert await produce(client, None, identity, version) == [NOT_AUTHORISED]
        assert door.engine.topics.partition("t", 0).high_watermark == 0

    run(body)


@pytest.mark.parametrize(
    ("version", "code"), [(3, BAD_STATE), (9, BAD_STATE), (10, BAD_STATE), (11, ABORTABLE), (12, OK)]
)
def test_a_partition_that_was_not_added(version: int, code: int) -> None:
    """Clients from 11 on are told in a word of their own to abort; from 12 on writing adds."""

    async def body(door: Door, client: Client) -> None:
        _, identity = await init(client)
        assert await produce(client, "tx", identity, version) == [code]
        added = () if code else (("t", (0,)),)
        assert (await door.engine.transactions.describe("tx")).partitions == added
        if code:
            assert await add_partitions(client, "tx", identity, 1) == [OK]
            assert await produce(client, "tx", identity, version) == [code], "another one was"

    run(body)


def test_batches_of_two_producers_in_one_request() -> None:
    async def body(door: Door, client: Client) -> None:
        _, mine = await init(client)
        _, other = await init(client, "other")
        rows = [
            {
                "index": index,
                "records": batch_of(
                    b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True
                ),
            }
            for index, (producer_id, epoch) in enumerate((mine, other))
        ]
        asked = {"transactional_id": "tx", "acks": -1, "timeout": 1000}
        answer = await client.ask("produce", 12, **asked, topic_data=[{"name": "t", "partition_data": rows}])
        codes = [row["error_code"] for row in answer["responses"][0]["partition_responses"]]
        assert codes[1] == BAD_MAPPING
        assert (await door.engine.transactions.describe("other")).state == "Empty"
        assert door.engine.topics.partition("t", 1).high_watermark == 0

    run(body)


def test_plain_and_idempotent_batches_beside_a_transaction() -> None:
    async def body(door: Door, client: Client) -> None:
        producer = Producer(client, 2)
        await producer.init()
        await producer.write(0, b"a")
        for transactional_id in ("tx", None):
            assert await produce(client, transactional_id, (900, 0), transactional=False) == [OK]
        assert (await client.produce(batch_of(b"plain")))["error_code"] == OK
        assert await producer.end(False) == OK
        await ended(client)
        assert (await read(client)).values == [b"x", b"plain"], "the second is the first again"

    run(body)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize("transactional", [False, True])
def test_internal_topics_are_not_written_by_clients(topic: str, transactional: bool) -> None:
    async def body(door: Door, client: Client) -> None:
        _, identity = await init(client)
        assert await commit_offsets(client, "tx", identity) == [OK]
        before = [partition.opened().end_offset for partition in door.engine.topics.get(topic).partitions]
        batch = batch_of(
            b"x", producer_id=identity[0], producer_epoch=identity[1], base_sequence=0, transactional=transactional
        )
        for index in range(SHARDS):
            asked = produce_values(batch, topic, index) | {"transactional_id": "tx"}
            answer = await client.ask("produce", 12, **asked)
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == BAD_TOPIC
        assert [partition.opened().end_offset for partition in door.engine.topics.get(topic).partitions] == before

    run(body)
