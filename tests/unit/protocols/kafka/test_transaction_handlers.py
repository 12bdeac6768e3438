"""The transaction APIs over the wire, in every version: what is answered, and in words the version knows."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.doors.kafka import Client, Door, batch_of, produce_values, with_door

from penstock.protocols.kafka.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)

OK, UNKNOWN_TOPIC, UNAUTHORIZED, OLD_EPOCH, BAD_STATE, BAD_MAPPING = 0, 3, 29, 47, 48, 49
NOT_ATTEMPTED, FENCED, NOT_FOUND, ABORTABLE, BAD_REGEX = 55, 90, 105, 120, 128


def versions(module: Any) -> range:
    return range(module.API.oldest, module.API.newest + 1)


def run(body: Callable[[Door, Client], Awaitable[None]]) -> None:
    async def main(door: Door) -> None:
        await door.topic("t", 2)
        client = await door.client()
        for key_type in (0, 1):
            assert (await client.ask("find_coordinator", 2, key="any", key_type=key_type))["error_code"] == OK
        await body(door, client)

    with_door(main)


async def init(client: Client, transactional_id: str = "tx") -> tuple[int, int]:
    answer = await client.ask(
        "init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=60_000, producer_id=-1,
        producer_epoch=-1,
    )  # fmt: skip
    assert answer["error_code"] == OK
    return answer["producer_id"], answer["producer_epoch"]


async def add(
    client: Client, version: int, identity: tuple[int, int], *partitions: tuple[str, int], verify: bool = False
) -> dict[tuple[str, int], int]:
    topics = [{"name": name, "partitions": (index,)} for name, index in partitions]
    if version >= 4:
        names: tuple[str, ...] = ("transactional_id", "producer_id", "producer_epoch", "verify_only", "topics")
        asked = dict(zip(names, ("tx", *identity, verify, topics), strict=True))
        answer = await client.ask("add_partitions_to_txn", version, transactions=[asked])
        assert answer["error_code"] == OK
        (of_transaction,) = answer["results_by_transaction"]
        assert of_transaction["transactional_id"] == "tx"
        results = of_transaction["topic_results"]
    else:
        names = ("transactional_id", "producer_id", "producer_epoch", "topics")
        asked = {f"v3_and_below_{name}": value for name, value in zip(names, ("tx", *identity, topics), strict=True)}
        results = (await client.ask("add_partitions_to_txn", version, **asked))["results_by_topic_v3_and_below"]
    return {
        (result["name"], row["partition_index"]): row["partition_error_code"]
        for result in results
        for row in result["results_by_partition"]
    }


async def end(client: Client, version: int, identity: tuple[int, int], committed: bool = True) -> dict[str, Any]:
    return await client.ask(
        "end_txn", version, transactional_id="tx", producer_id=identity[0], producer_epoch=identity[1],
        committed=committed,
    )  # fmt: skip


async def commit_offsets(client: Client, version: int, identity: tuple[int, int], *indexes: int) -> dict[int, int]:
    rows = [
        {"partition_index": index, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": "m"}
        for index in indexes
    ]
    answer = await client.ask(
        "txn_offset_commit", version, transactional_id="tx", group_id="g", producer_id=identity[0],
        producer_epoch=identity[1], topics=[{"name": "t", "partitions": rows}],
    )  # fmt: skip
    (topic,) = answer["topics"]
    assert topic["name"] == "t"
    return {row["partition_index"]: row["error_code"] for row in topic["partitions"]}


async def add_offsets(client: Client, version: int, identity: tuple[int, int], group_id: str = "g") -> int:
    answer = await client.ask(
        "add_offsets_to_txn", version, transactional_id="tx", producer_id=identity[0], producer_epoch=identity[1],
        group_id=group_id,
    )  # fmt: skip
    code: int = answer["error_code"]
    return code


@pytest.mark.parametrize("version", versions(add_partitions_to_txn))
def test_add_partitions(version: int) -> None:
    async def body(door: Door, client: Client) -> None:
        identity = await init(client)
        assert await add(client, version, identity, ("t", 0), ("t", 1)) == {("t", 0): OK, ("t", 1): OK}
        described = await door.engine.transactions.describe("tx")
        assert described.partitions == (("t", (0, 1)),)
        fenced = await add(client, version, (identity[0], 9), ("t", 0))
        assert fenced == {("t", 0): FENCED if version >= 2 else OLD_EPOCH}
        assert await add(client, version, (identity[0] + 1, 0), ("t", 0)) == {("t", 0): BAD_MAPPING}

    run(body)


@pytest.mark.parametrize("version", versions(add_partitions_to_txn))
def test_one_missing_partition_keeps_all_out(version: int) -> None:
    async def body(door: Door, client: Client) -> None:
        identity = await init(client)
        codes = await add(client, version, identity, ("t", 0), ("t", 2), ("u", 0))
        assert codes == {("t", 0): NOT_ATTEMPTED, ("t", 2): UNKNOWN_TOPIC, ("u", 0): UNKNOWN_TOPIC}
        assert (await door.engine.transactions.describe("tx")).state == "Empty"

    run(body)


@pytest.mark.parametrize("version", versions(add_partitions_to_txn))
def test_clients_do_not_name_internal_topics(version: int) -> None:
    async def body(door: Door, client: Client) -> None:
        codes = await add(client, version, await init(client), ("__consumer_offsets", 0))
        assert list(codes.values()) == [UNAUTHORIZED]

    run(body)


@pytest.mark.parametrize(("version", "missing"), [(4, BAD_STATE), (5, ABORTABLE)])
def test_verification_adds_nothing(version: int, missing: int) -> None:
    async def body(door: Door, client: Client) -> None:
        identity = await init(client)
        await add(client, version, identity, ("t", 0))
        codes = await add(client, version, identity, ("t", 0), ("t", 1), verify=True)
        assert codes == {("t", 0): OK, ("t", 1): missing}
        assert (await door.engine.transactions.describe("tx")).partitions == (("t", (0,)),)

    run(body)


@pytest.mark.parametrize("version", versions(end_txn))
def test_end(version: int) -> None:
    async def body(door: Door, client: Client) -> None:
        producer_id, epoch = await init(client)
        await add(client, 3, (producer_id, epoch), ("t", 0))
        answer = await end(client, version, (producer_id, epoch))
        assert answer["error_code"] == OK
        if version >= 5:
            assert (answer["producer_id"], answer["producer_epoch"]) == (producer_id, epoch + 1)
        fenced = await end(client, version, (producer_id, 9))
        assert fenced["error_code"] == (FENCED if version >= 2 else OLD_EPOCH)
        opposite = await end(client, version, (producer_id, epoch), committed=False)
        assert opposite["error_code"] == BAD_STATE

    run(body)


@pytest.mark.parametrize("version", versions(add_offsets_to_txn))
def test_add_offsets(version: int) -> None:
    async def body(door: Door, client: Client) -> None:
        identity = await init(client)
        assert await add_offsets(client, version, identity) == OK
        ((topic, indexes),) = (await door.engine.transactions.describe("tx")).partitions
        assert (topic, len(indexes)) == ("__consumer_offsets", 1)
        assert await add_offsets(client, version, (identity[0], 9)) == (FENCED if version >= 2 else OLD_EPOCH)

    run(body)


@pytest.mark.parametrize("version", versions(txn_offset_commit))
def test_offsets_in_a_transaction(version: int) -> None:
    async def body(door: Door, client: Client) -> None:
        identity = await init(client)
        if version < 5:
            early = await commit_offsets(client, version, identity, 0)
            assert early == {0: ABORTABLE if version >= 4 else BAD_STATE}
            await add_offsets(client, 3, identity)
        assert await commit_offsets(client, version, identity, 0, 7) == {0: OK, 7: UNKNOWN_TOPIC}
        fenced = await commit_offsets(client, version, (identity[0], 9), 0)
        assert fenced == {0: FENCED if version >= 3 else OLD_EPOCH}
        assert (await end(client, 3, identity))["error_code"] == OK
        assert await add(client, 3, identity, ("t", 0)) == {("t", 0): OK}, "the next one waits for the markers"
        fetched = await client.ask(
            "offset_fetch", 7, group_id="g", topics=[{"name": "t", "partition_indexes": (0,)}], require_stable=True
        )
        assert fetched["topics"][0]["partitions"][0]["committed_offset"] == 5

    run(body)


@pytest.mark.parametrize("version", versions(write_txn_markers))
def test_markers_from_a_tool(version: int) -> None:
    async def body(door: Door, client: Client) -> None:
        identity = await init(client)
        batch = batch_of(b"x", producer_id=identity[0], producer_epoch=identity[1], base_sequence=0, transactional=True)
        asked = produce_values(batch, "t", 0) | {"transactional_id": "tx"}
        answer = await client.ask("produce", 12, **asked)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == OK
        topics = [{"name": "t", "partition_indexes": (0, 7)}]
        marker = {
            "producer_id": identity[0], "producer_epoch": identity[1], "transaction_result": False, "topics": topics,
            "coordinator_epoch": 0,
        }  # fmt: skip
        (answer,) = (await client.ask("write_txn_markers", version, markers=[marker]))["markers"]
        assert answer["producer_id"] == identity[0]
        (topic,) = answer["topics"]
        codes = {row["partition_index"]: row["error_code"] for row in topic["partitions"]}
        assert codes == {0: OK, 7: UNKNOWN_TOPIC}
        partition = door.engine.topics.partition("t", 0)
        assert partition.stable_offset == partition.high_watermark == 2

    run(body)


def test_describe() -> None:
    assert list(versions(describe_transactions)) == [0]

    async def body(door: Door, client: Client) -> None:
        identity = await init(client)
        await add(client, 3, identity, ("t", 1), ("t", 0))
        answer = await client.ask("describe_transactions", 0, transactional_ids=("tx", "nobody", "tx"))
        found, missing = answer["transaction_states"]
        assert (found["error_code"], found["transactional_id"], found["transaction_state"]) == (OK, "tx", "Ongoing")
        assert (found["producer_id"], found["producer_epoch"]) == identity
        assert found["transaction_timeout"] == 60_000
        assert found["transaction_start_time"] > 0
        assert found["topics"] == ({"topic": "t", "partitions": (0, 1)},)
        assert (missing["error_code"], missing["transactional_id"]) == (NOT_FOUND, "nobody")

    run(body)


@pytest.mark.parametrize("version", versions(list_transactions))
def test_list(version: int) -> None:
    async def listed(client: Client, **filters: Any) -> tuple[list[str], tuple[str, ...]]:
        answer = await client.ask("list_transactions", version, **filters)
        assert answer["error_code"] == OK
        found = sorted(state["transactional_id"] for state in answer["transaction_states"])
        return found, answer["unknown_state_filters"]

    async def body(door: Door, client: Client) -> None:
        identity = await init(client)
        await init(client, "other")
        await add(client, 3, identity, ("t", 0))
        assert await listed(client) == (["other", "tx"], ())
        assert await listed(client, state_filters=("Ongoing", "Lost")) == (["tx"], ("Lost",))
        assert await listed(client, producer_id_filters=(identity[0],)) == (["tx"], ())
        if version >= 1:
            assert await listed(client, state_filters=("Ongoing",), duration_filter=1 << 40) == ([], ())
        if version >= 2:
            assert await listed(client, transactional_id_pattern="o.*r") == (["other"], ())
            answer = await client.ask("list_transactions", version, transactional_id_pattern="(")
            assert answer["error_code"] == BAD_REGEX

    run(body)
