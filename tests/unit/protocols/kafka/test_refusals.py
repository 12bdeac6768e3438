"""What is refused leaves nothing behind: no batch, no frame, no error that keeps itself.

Collections are rare in a broker, as each of them holds up everybody. So what would only go with one, a cycle of an
error, the frames it came through and what those hold, is as good as kept.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Any
from uuid import UUID

import pytest
from tests.doors.kafka import Door, batch_of, fetch_values, make, produce_values, with_door
from tests.unit.protocols.kafka.test_denied import CASES

from penstock.errors import PenstockError
from penstock.protocols.kafka.session import APIS
from penstock.records.batch import Header

IN_A_TRANSACTION = batch_of(b"x", producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
SETTING = {"name": "retention.ms", "value": "x", "config_operation": 0}
PRODUCER = {"transactional_id": "a", "producer_id": 4, "producer_epoch": 0}
OFFSETS = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
JOIN = {
    "group_id": "g",
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}

SHARE = {"group_id": "g", "member_id": "m"}

OF_SECURITY = (
    *("describe_acls", "create_acls", "delete_acls"),
    *("describe_user_scram_credentials", "alter_user_scram_credentials"),
)
REFUSED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "a keyless record": ("produce", 9, produce_values(batch_of(b"x" * 1000), "compacted")),
    "an unknown topic": ("produce", 9, produce_values(batch_of(b"x"), "unknown")),
    "an unknown topic id": ("produce", 13, produce_values(batch_of(b"x"), UUID(int=7))),
    "a damaged batch": ("produce", 9, produce_values(batch_of(b"x")[:-1] + b"?")),
    "no transactional id": ("produce", 9, produce_values(IN_A_TRANSACTION)),
    "no such transaction": ("produce", 9, {**produce_values(IN_A_TRANSACTION), "transactional_id": "nobody"}),
    "fetch: unknown": ("fetch", 12, fetch_values({"unknown": {0: 0}})),
    "fetch: out of range": ("fetch", 12, fetch_values({"t": {0: 1000}})),
    "fetch: no session": ("fetch", 12, fetch_values(session=(99, 5))),
    "list_offsets": ("list_offsets", 7, {"topics": [{"name": "unknown", "partitions": [{"timestamp": -1}]}]}),
    "metadata": ("metadata", 9, {"topics": [{"name": "!!"}], "allow_auto_topic_creation": True}),
    "find_coordinator": ("find_coordinator", 4, {"key_type": 7, "coordinator_keys": ["a"]}),
    "create_topics: exists": ("create_topics", 7, {"topics": [{"name": "t", "num_partitions": 1}], "timeout": 1000}),
    "create_topics: name": ("create_topics", 7, {"topics": [{"name": "!", "num_partitions": 1}], "timeout": 1000}),
    "delete_topics": ("delete_topics", 5, {"topic_names": ["unknown"], "timeout": 1000}),
    "create_partitions": ("create_partitions", 3, {"topics": [{"name": "t", "count": 1}], "timeout": 1000}),
    "delete_records": (
        "delete_records",
        2,
        {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 100}]}], "timeout": 1000},
    ),
    "describe_configs": ("describe_configs", 4, {"resources": [{"resource_type": 2, "resource_name": "unknown"}]}),
    "incremental_alter_configs": (
        "incremental_alter_configs",
        1,
        {"resources": [{"resource_type": 2, "resource_name": "t", "configs": [SETTING]}]},
    ),
    "alter_configs": (
        "alter_configs",
        2,
        {"resources": [{"resource_type": 2, "resource_name": "t", "configs": [SETTING]}]},
    ),
    "describe_topic_partitions": ("describe_topic_partitions", 0, {"topics": [{"name": "unknown"}]}),
    "describe_producers": ("describe_producers", 0, {"topics": [{"name": "unknown", "partition_indexes": [0]}]}),
    "offset_for_leader_epoch": (
        "offset_for_leader_epoch",
        4,
        {"replica_id": -1, "topics": [{"topic": "unknown", "partitions": [{"partition": 0}]}]},
    ),
    "init_producer_id": ("init_producer_id", 4, {"transactional_id": "a", "transaction_timeout": 10**9}),
    "join_group: time": ("join_group", 7, {**JOIN, "session_timeout": 1}),
    "join_group: no id yet": ("join_group", 7, {**JOIN, "session_timeout": 10_000, "rebalance_timeout": 10_000}),
    "sync_group": ("sync_group", 5, {"group_id": "g", "generation_id": 3, "member_id": "m"}),
    "heartbeat": ("heartbeat", 4, {"group_id": "g", "generation_id": 3, "member_id": "m"}),
    "leave_group": ("leave_group", 5, {"group_id": "g", "members": [{"member_id": "m"}]}),
    "leave_group: unknown": ("leave_group", 5, {"group_id": "unknown", "members": [{"member_id": "m"}]}),
    "consumer_group_heartbeat": (
        "consumer_group_heartbeat",
        1,
        {"group_id": "c", "member_id": "m", "member_epoch": 7},
    ),
    "consumer_group_describe": ("consumer_group_describe", 0, {"group_ids": ["unknown"]}),
    "share_group_heartbeat": ("share_group_heartbeat", 1, {"group_id": "c", "member_id": "m", "member_epoch": 7}),
    "share_group_describe": ("share_group_describe", 1, {"group_ids": ["unknown"]}),
    "share_fetch": ("share_fetch", 1, {**SHARE, "share_session_epoch": 7}),
    "share_fetch: unknown": (
        "share_fetch",
        2,
        {**SHARE, "max_records": 1, "max_bytes": 1, "topics": [{"topic_id": UUID(int=7), "partitions": [{}]}]},
    ),
    "share_acknowledge": ("share_acknowledge", 1, {**SHARE, "share_session_epoch": 1}),
    "describe_share_group_offsets": ("describe_share_group_offsets", 1, {"groups": [{"group_id": "", "topics": None}]}),
    "alter_share_group_offsets": (
        "alter_share_group_offsets",
        0,
        {"group_id": "g", "topics": [{"topic_name": "t", "partitions": [{"partition_index": 9, "start_offset": 0}]}]},
    ),
    "delete_share_group_offsets": (
        "delete_share_group_offsets",
        0,
        {"group_id": "unknown", "topics": [{"topic_name": "t"}]},
    ),
    "offset_commit": (
        "offset_commit",
        8,
        {"group_id": "g", "generation_id_or_member_epoch": 5, "member_id": "m", "topics": OFFSETS},
    ),
    "offset_fetch": ("offset_fetch", 8, {"groups": [{"group_id": "g" * 70_000}]}),
    "offset_delete": ("offset_delete", 0, {"group_id": "unknown", "topics": []}),
    "delete_groups": ("delete_groups", 2, {"groups_names": ["unknown"]}),
    "describe_groups": ("describe_groups", 5, {"groups": ["unknown"]}),
    "add_partitions_to_txn": (
        "add_partitions_to_txn",
        3,
        {
            "v3_and_below_transactional_id": "a",
            "v3_and_below_producer_id": 4,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
        },
    ),
    "add_offsets_to_txn": ("add_offsets_to_txn", 3, {**PRODUCER, "group_id": "g"}),
    "end_txn": ("end_txn", 3, {**PRODUCER, "committed": True}),
    "txn_offset_commit": (
        "txn_offset_commit",
        3,
        {**PRODUCER, "group_id": "g", "generation_id": -1, "member_id": "", "topics": OFFSETS},
    ),
    "write_txn_markers": (
        "write_txn_markers",
        1,
        {"markers": [{"producer_id": 1, "topics": [{"name": "unknown", "partition_indexes": [0]}]}]},
    ),
    "describe_transactions": ("describe_transactions", 0, {"transactional_ids": ["unknown"]}),
    "elect_leaders": (
        "elect_leaders",
        2,
        {"topic_partitions": [{"topic": "unknown", "partitions": [0]}], "timeout": 1000},
    ),
    "alter_partition_reassignments": (
        "alter_partition_reassignments",
        0,
        {"timeout": 1000, "topics": [{"name": "unknown", "partitions": [{"partition_index": 0, "replicas": [1]}]}]},
    ),
    "unregister_broker": ("unregister_broker", 0, {"broker_id": 7}),
    **{api: (api, CASES[api][0].version, dict(CASES[api][0].values)) for api in OF_SECURITY},
    "sasl_handshake": ("sasl_handshake", 1, {"mechanism": "PLAIN"}),
    "sasl_authenticate": ("sasl_authenticate", 2, {"auth_bytes": b""}),
}
REFUSE_NOTHING = {
    "api_versions",
    "describe_cluster",
    "describe_log_dirs",
    "list_config_resources",
    "list_groups",
    "list_partition_reassignments",
    "list_transactions",
}
_TIMES = 50


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.disable()
    gc.freeze()  # what was there before is not looked at: hundreds of thousands of objects of other tests
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.unfreeze()
    gc.enable()


def test_every_request_is_in_the_table() -> None:
    assert {api for api, _, _ in REFUSED.values()} | REFUSE_NOTHING == {api.name for api in APIS}


def _errors() -> int:
    return sum(isinstance(kept, PenstockError | Header | TracebackType) for kept in gc.get_objects())


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_leaves_nothing_behind(name: str) -> None:
    api, version, values = REFUSED[name]

    async def body(door: Door) -> None:
        await door.topic("t")
        await door.topic("compacted", cleanup_policy="compact")
        client = await door.client()
        request = make(api, version, values)

        async def refuse() -> None:
            for _ in range(_TIMES):
                client.send(request)
                await client.receive(api, version)
            await asyncio.sleep(40)  # of virtual time: cancelled timers hold what they would have called

        await refuse()  # what is made once is made now
        gc.collect()
        before = _errors()
        gc.set_debug(gc.DEBUG_SAVEALL)  # what a collection finds is kept to be looked at
        await refuse()
        gc.collect()
        assert Counter(type(found).__name__ for found in gc.garbage) == {}
        assert _errors() - before < _TIMES // 2

    with_door(body)
