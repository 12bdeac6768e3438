"""Requests with many rows: others have their turn in between, and the answer is as if it had been made at once."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from tests.doors.kafka import Door, with_door

from penstock.ports.disk import Space
from penstock.protocols.kafka import long_answer
from penstock.protocols.kafka.handlers import Context
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import encode, schema_of
from penstock.turns import Turns

AT_ONCE, ROWS = 10, 35


def _topics(make: Any, array: str = "partitions", name: str = "name") -> list[dict[str, Any]]:
    return [{name: "t", array: [make(index) for index in range(ROWS)]}]


_COMMITTED = _topics(
    lambda i: {"partition_index": i, "committed_offset": 1, "committed_leader_epoch": 0, "committed_metadata": ""}
)
_NUMBERS = _topics(lambda i: i, "partition_indexes")
REQUESTS: dict[str, tuple[int, dict[str, Any]]] = {
    "offset_commit": (9, {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": _COMMITTED}),
    "txn_offset_commit": (
        3,
        {"transactional_id": "x", "group_id": "g", "producer_id": 1, "producer_epoch": 0, "topics": _COMMITTED},
    ),
    "offset_fetch": (9, {"groups": [{"group_id": "g", "topics": _NUMBERS}], "require_stable": True}),
    "offset_delete": (0, {"group_id": "g", "topics": _topics(lambda i: {"partition_index": i})}),
    "list_offsets": (9, {"replica_id": -1, "topics": _topics(lambda i: {"partition_index": i, "timestamp": -1})}),
    "offset_for_leader_epoch": (
        4,
        {"topics": _topics(lambda i: {"partition": i, "current_leader_epoch": -1, "leader_epoch": 0}, name="topic")},
    ),
    "delete_records": (2, {"topics": _topics(lambda i: {"partition_index": i, "offset": 0})}),
    "describe_producers": (0, {"topics": _NUMBERS}),
    "add_partitions_to_txn": (
        3,
        {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": _topics(lambda i: i),
        },
    ),
    "metadata": (12, {"topics": None}),
    "metadata of strangers": (
        12,
        {"topics": [{"topic_id": None, "name": f"x{at}"} for at in range(ROWS)], "allow_auto_topic_creation": False},
    ),
    "describe_log_dirs": (4, {"topics": None}),
    "list_groups": (5, {}),
    "list_transactions": (2, {}),
    "list_config_resources": (1, {}),
    "describe_topic_partitions": (0, {"topics": [{"name": "t"}], "response_partition_limit": 1000}),
}


@pytest.mark.parametrize("api", REQUESTS)
def test_others_have_their_turn_after_so_many_rows(api: str) -> None:
    runs = [0]

    async def take_turn() -> None:
        runs.append(0)

    def counted(schema: Any, values: Any) -> bytes:
        runs[-1] += 1
        return encode(schema, values)

    async def body(door: Door) -> None:
        await door.topic(partitions=ROWS)
        client = await door.client()
        for group in [f"g{at}" for at in range(ROWS if api == "list_groups" else 0)] or ["g"]:
            await client.ask("offset_commit", 9, **REQUESTS["offset_commit"][1] | {"group_id": group})
        for at in range(ROWS if api == "list_transactions" else 0):
            await door.engine.transactions.init(f"x{at}", 60_000)
        for at in range(ROWS if api == "list_config_resources" else 0):
            await door.topic(f"t{at}")
        version, fields = REQUESTS[api]
        with (
            patch.object(long_answer, "ROWS_AT_ONCE", AT_ONCE),
            patch.object(door.engine.turns, "next", take_turn),
            patch.object(long_answer, "encode", counted),
        ):
            assert await client.ask(api.split()[0], version, **fields)

    with_door(body)
    assert sum(runs) >= ROWS and max(runs) <= AT_ONCE


def test_log_dirs_wait_for_their_turn_when_the_disk_has_answered() -> None:
    """Many may ask at the same time, and hear of it at the same time."""
    events = []

    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()
        look, take_turn = door.engine.disk_space, door.engine.turns.next

        async def looked() -> Space:
            events.append("disk")
            return await look()

        async def taken() -> None:
            events.append("turn")
            await take_turn()

        def encoded(schema: Any, values: Any) -> bytes:
            events.append("row")
            return encode(schema, values)

        with (
            patch.object(door.engine, "disk_space", looked),
            patch.object(door.engine.turns, "next", taken),
            patch.object(long_answer, "encode", encoded),
        ):
            assert await client.ask("describe_log_dirs", 4, topics=None)

    with_door(body)
    assert events == ["disk", "turn", "row"]


def test_rows_are_what_the_whole_would_be() -> None:
    rows = [{"partition_index": index, "error_code": 3} for index in range(ROWS)]
    context = cast(Context, SimpleNamespace(turns=Turns()))
    answer = LongAnswer(context, Api(8, "offset_commit", 2, 10), 9, "topics", "partitions")

    async def encoded() -> list[bytes]:
        return [await answer.row(row) for row in rows]

    schema = schema_of("offset_commit", 9, "response")
    at_once, bit_by_bit = (
        encode(schema, {"throttle_time": 0, "topics": [{"name": "t", "partitions": made}]})
        for made in (rows, asyncio.run(encoded()))
    )
    assert bit_by_bit == at_once
