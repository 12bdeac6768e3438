"""Rules that allow nothing: every API is refused in its own words, changes nothing and tells nothing of what is."""

import asyncio
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

import pytest
from tests.doors import verbs
from tests.doors.kafka import Client, Door, batch_of, fetch_values, make, produce_values, with_door
from tests.rules import Nothing

from penstock.engine.access import THE_CLUSTER, Access, Kind, Operation, Resource, Subject
from penstock.engine.coordination.internal_topics import OFFSETS_TOPIC
from penstock.engine.publishing import ALL as ALL_IN_SYNC
from penstock.protocols.kafka.session import APIS
from penstock.protocols.kafka.verbs.table import VERBS
from penstock.security.guard import Guard
from penstock.security.modes import Mode
from penstock.security.rules import Effect, Pattern, Rule
from penstock.security.sealing import SealingKeys
from penstock.security.secret import Secret
from penstock.testing.memory_metadata import MemoryStore

T, G, C, X = 29, 30, 31, 53
"""Kafka's codes for who may not do that to a topic, a group, the cluster, a transactional id."""
SETTING = {"name": "retention.ms", "value": "1", "config_operation": 0}
ALTERED = {"resources": [{"resource_type": 2, "resource_name": "t", "configs": [SETTING]}]}
OF_GROUP = {"name": "share.delivery.count.limit", "value": "3", "config_operation": 0}
ALTERED_GROUP = {"resources": [{"resource_type": 32, "resource_name": "g", "configs": [OF_GROUP]}]}
OFFSETS = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 7}]}]
PRODUCER = {"transactional_id": "x", "producer_id": 4, "producer_epoch": 0}
ADDED = {
    "v3_and_below_transactional_id": "x",
    "v3_and_below_producer_id": 4,
    "v3_and_below_producer_epoch": 0,
    "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
}
SPOTS = [{"topic_name": "t", "partitions": [0]}]
STARTS = [{"topic_name": "t", "partitions": [{"partition_index": 0, "start_offset": 0}]}]
MOVED = [{"partition_index": 0, "replicas": [1]}]
RULE = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:eve",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
ANY_RULE = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
PASSWORD = {"name": "eve", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"x" * 32}
MEMBER = {"group_id": "g", "member_id": "m"}
JOIN = {
    **MEMBER,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
}
PLACES = [{"topic": "t", "partitions": [0]}]
AT = [{"name": "t", "partition_indexes": [0]}]
NOBODY_KNOWS = ("api_versions", "sasl_handshake", "sasl_authenticate", "describe_cluster")
"""What everybody may ask: how to log in, and where the brokers are."""


class Case(NamedTuple):
    version: int
    values: Mapping[str, Any]
    codes: frozenset[int]
    """All that an answer may have; at least one of them is there, unless `empty` is."""
    empty: str = ""
    """What is left of a list whose rows must not be seen."""


def case(version: int, values: Mapping[str, Any], *codes: int, empty: str = "") -> Case:
    return Case(version, values, frozenset(codes), empty)


CASES: dict[str, list[Case]] = {
    "produce": [case(9, produce_values(batch_of(b"x")), T), case(9, produce_values(batch_of(b"x"), "unknown"), T)],
    "fetch": [case(12, fetch_values(), T), case(12, fetch_values({"unknown": {0: 0}}), T)],
    "list_offsets": [
        case(7, {"replica_id": -1, "topics": [{"name": name, "partitions": [{"timestamp": -1}]}]}, T)
        for name in ("t", "unknown")
    ],
    "metadata": [
        case(9, {"topics": [{"name": "t"}, {"name": "unknown"}], "allow_auto_topic_creation": True}, T),
        case(9, {"topics": None}, empty="topics"),
    ],
    "find_coordinator": [
        case(4, {"key_type": 0, "coordinator_keys": ["g"]}, G),
        case(4, {"key_type": 1, "coordinator_keys": ["x"]}, X),
    ],
    "create_topics": [
        case(7, {"topics": [{"name": name, "num_partitions": 1, "replication_factor": 1}], "timeout": 1000}, T)
        for name in ("t", "new")
    ],
    "delete_topics": [case(5, {"topic_names": ["t", "unknown"], "timeout": 1000}, T)],
    "init_producer_id": [
        case(4, {"transactional_id": None, "transaction_timeout": 1000}, C),
        case(4, {"transactional_id": "x", "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}, X),
    ],
    "offset_for_leader_epoch": [
        case(4, {"replica_id": -1, "topics": [{"topic": "t", "partitions": [{"partition": 0}]}]}, T)
    ],
    "delete_records": [
        case(2, {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}], "timeout": 1000}, T)
    ],
    "create_partitions": [case(3, {"topics": [{"name": "t", "count": 5}], "timeout": 1000}, T)],
    "describe_configs": [
        case(4, {"resources": [{"resource_type": 2, "resource_name": "t"}]}, T),
        case(4, {"resources": [{"resource_type": 2, "resource_name": "unknown"}]}, T),
        case(4, {"resources": [{"resource_type": 4, "resource_name": "1"}]}, C),
        case(4, {"resources": [{"resource_type": 32, "resource_name": "g"}]}, G),
    ],
    "alter_configs": [case(2, ALTERED, T), case(2, ALTERED_GROUP, G)],
    "incremental_alter_configs": [
        case(1, ALTERED, T),
        case(1, {"resources": [{"resource_type": 4, "resource_name": "", "configs": [SETTING]}]}, C),
        case(1, ALTERED_GROUP, G),
    ],
    "list_config_resources": [case(1, {"resource_types": []}, C)],
    "describe_topic_partitions": [
        case(0, {"topics": [{"name": "t"}, {"name": "unknown"}], "response_partition_limit": 10}, T),
        case(0, {"topics": [], "response_partition_limit": 10}, empty="topics"),
    ],
    "describe_log_dirs": [case(4, {"topics": None}, C)],
    "describe_producers": [case(0, {"topics": AT}, T)],
    "join_group": [case(7, JOIN, G)],
    "sync_group": [case(5, {**MEMBER, "generation_id": 1, "protocol_type": "consumer", "protocol_name": "range"}, G)],
    "heartbeat": [case(4, {**MEMBER, "generation_id": 1}, G)],
    "leave_group": [case(5, {"group_id": "g", "members": [{"member_id": "m"}]}, G)],
    "consumer_group_heartbeat": [
        case(1, {**MEMBER, "member_epoch": 0, "rebalance_timeout": 1000, "subscribed_topic_names": ("t",)}, G)
    ],
    "consumer_group_describe": [case(1, {"group_ids": ["g"], "include_authorized_operations": True}, G)],
    "share_group_heartbeat": [
        case(1, {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ("t",)}, G)
    ],
    "share_group_describe": [case(1, {"group_ids": ["g"], "include_authorized_operations": True}, G)],
    "describe_share_group_offsets": [
        case(1, {"groups": [{"group_id": "g", "topics": SPOTS}]}, G),
        case(1, {"groups": [{"group_id": "g", "topics": None}]}, G),
    ],
    "alter_share_group_offsets": [case(0, {"group_id": "g", "topics": STARTS}, G)],
    "delete_share_group_offsets": [case(0, {"group_id": "g", "topics": [{"topic_name": "t"}]}, G)],
    "share_fetch": [case(1, {**MEMBER, "share_session_epoch": 0}, G)],
    "share_acknowledge": [case(1, {**MEMBER, "share_session_epoch": 1}, G)],
    "offset_commit": [
        case(8, {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": OFFSETS}, G)
    ],
    "offset_fetch": [
        case(8, {"groups": [{"group_id": "g", "topics": AT}]}, G),
        case(8, {"groups": [{"group_id": "g", "topics": None}]}, G),
    ],
    "offset_delete": [case(0, {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}, G)],
    "list_groups": [case(4, {"states_filter": []}, empty="groups")],
    "describe_groups": [case(5, {"groups": ["g"], "include_authorized_operations": True}, G)],
    "delete_groups": [case(2, {"groups_names": ["g", "unknown"]}, G)],
    "add_partitions_to_txn": [
        case(3, ADDED, X),
        case(
            4, {"transactions": [{**PRODUCER, "verify_only": False, "topics": [{"name": "t", "partitions": [0]}]}]}, C
        ),
    ],
    "add_offsets_to_txn": [case(3, {**PRODUCER, "group_id": "g"}, X)],
    "end_txn": [case(3, {**PRODUCER, "committed": True}, X)],
    "txn_offset_commit": [case(3, {**PRODUCER, **MEMBER, "generation_id": -1, "topics": OFFSETS}, X)],
    "write_txn_markers": [
        case(1, {"markers": [{"producer_id": 4, "producer_epoch": 0, "transaction_result": False, "topics": AT}]}, C)
    ],
    "describe_transactions": [case(0, {"transactional_ids": ["x"]}, X)],
    "list_transactions": [case(0, {"state_filters": [], "producer_id_filters": []}, empty="transaction_states")],
    "elect_leaders": [
        case(2, {"election_type": 0, "topic_partitions": PLACES, "timeout": 1000}, C),
        case(2, {"election_type": 0, "topic_partitions": None, "timeout": 1000}, C),
    ],
    "alter_partition_reassignments": [
        case(
            0, {"timeout": 1000, "topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]}]}, C
        )
    ],
    "list_partition_reassignments": [case(0, {"timeout": 1000, "topics": None}, C)],
    "unregister_broker": [case(0, {"broker_id": 7}, C)],
    "describe_acls": [case(3, ANY_RULE, C)],
    "create_acls": [case(3, {"creations": [RULE]}, C)],
    "delete_acls": [case(3, {"filters": [ANY_RULE]}, C)],
    "describe_user_scram_credentials": [case(0, {"users": None}, C)],
    "alter_user_scram_credentials": [case(0, {"deletions": [], "upsertions": [PASSWORD]}, C)],
}


def test_every_api_is_here() -> None:
    assert {api.name for api in APIS} == {*CASES, *NOBODY_KNOWS}


def codes_in(answer: Any) -> Iterator[int]:
    if isinstance(answer, Mapping):
        for name, value in answer.items():
            if name.endswith("error_code"):
                yield value
            else:
                yield from codes_in(value)
    elif isinstance(answer, list | tuple):
        for each in answer:
            yield from codes_in(each)


async def guard_of(door: Door) -> Guard:
    """Users and rules, which have a policy of their own: that of the door is the test's."""

    guard = Guard(
        MemoryStore(),
        Access(),
        door.clock,
        Random(1),
        door.disk.run,
        door.failures.append,
        mode=Mode.CLOSED,
        supers=(),
        sealing=SealingKeys(Secret(b"s" * 32)),
    )
    await guard.loader.start()
    return guard


async def let_change(guard: Guard) -> None:
    """As far as the guard is asked, who is tried here may change users and rules."""
    kind, name = THE_CLUSTER
    await guard.rules.create([Rule("User:ANONYMOUS", "*", Operation.ALTER, kind, Pattern.LITERAL, name, Effect.ALLOW)])


async def settle(door: Door) -> Client:
    """A topic with records, a group with an offset, a transactional id, a transaction that is open, a user, a rule."""
    door.context.guard = guard = await guard_of(door)
    await door.topic()
    client = await door.client()
    await client.produce(batch_of(b"a", b"b", b"c"))
    await client.ask("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
    await client.ask("find_coordinator", 4, key_type=1, coordinator_keys=["x"])
    await client.ask("offset_commit", 8, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=OFFSETS)
    identity = await client.ask(
        "init_producer_id", 4, transactional_id="x", transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
    )
    producer = {f"v3_and_below_{key}": identity[key] for key in ("producer_id", "producer_epoch")}
    await client.ask("add_partitions_to_txn", 3, **{**ADDED, **producer})
    await guard.users.create("alice", Secret(b"secret"))
    await guard.rules.create([Rule("User:a", "*", Operation.READ, Kind.TOPIC, Pattern.LITERAL, "t", Effect.ALLOW)])
    await let_change(guard)
    await asyncio.sleep(1)
    return client


def state_of(door: Door) -> Any:
    """All that an answer could have changed: what is on the disk, and topics and groups with their settings."""
    files = {path: door.disk.size_of(path) for path in door.disk.files()}
    assert door.context.guard is not None
    directory = door.context.guard.loader.directory
    assert directory is not None
    topics = [
        (topic.name, dict(topic.config.given), [(each.high_watermark, each.log_start) for each in topic.partitions])
        for topic in door.engine.topics
    ]
    configs = door.engine.group_configs
    groups = {group_id: dict(configs.get(group_id)) for group_id in configs.configured()}
    return files, topics, groups, directory.revision


ALL = [(name, number) for name, cases in CASES.items() for number in range(len(cases))]


@pytest.mark.parametrize(("name", "number"), ALL)
def test_nothing_is_allowed(name: str, number: int) -> None:
    wanted = CASES[name][number]

    async def body(door: Door) -> None:
        client = await settle(door)
        before = state_of(door)
        door.engine.access.policy = Nothing()
        answer = await client.ask(name, wanted.version, **wanted.values)
        assert {code for code in codes_in(answer) if code} == wanted.codes, answer
        if wanted.empty:
            assert answer[wanted.empty] in ((), [])
        await asyncio.sleep(1)
        assert state_of(door) == before

    with_door(body)


@pytest.mark.parametrize(("name", "number"), ALL)
def test_the_same_is_not_refused_for_want_of_a_right_where_everything_is_allowed(name: str, number: int) -> None:
    wanted = CASES[name][number]

    async def body(door: Door) -> None:
        client = await settle(door)
        answer = await client.ask(name, wanted.version, **wanted.values)
        assert not {T, G, C, X} & set(codes_in(answer)), answer
        if wanted.empty:
            assert answer[wanted.empty] not in ((), []), "it shows nothing that there could be less of"

    with_door(body)


def test_every_verb_is_here() -> None:
    assert set(verbs.CASES) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_is_allowed(verb: str) -> None:
    async def body(door: Door) -> None:
        client = await settle(door)
        before = state_of(door)
        door.engine.access.policy = Nothing()
        told = await verbs.ask(client, verb, verbs.CASES[verb])
        if verb == "queue.list":
            assert told.document == {"rows": [], "more": False}
        else:
            assert (told.code, told.document) == (G if verb.startswith("queue.") else C, None)
            assert "User:ANONYMOUS may not" in told.text
        await asyncio.sleep(1)
        assert state_of(door) == before

    with_door(body)


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_is_refused_for_want_of_a_right_where_everything_is_allowed(verb: str) -> None:
    async def body(door: Door) -> None:
        client = await settle(door)
        told = await verbs.ask(client, verb, verbs.CASES[verb])
        assert told.code not in (T, G, C, X), told

    with_door(body)


def test_what_is_named_by_id_is_refused_too() -> None:
    async def body(door: Door) -> None:
        client = await settle(door)
        topic = door.engine.topics.get("t")
        assert topic is not None
        door.engine.access.policy = Nothing()
        assert (await client.produce(batch_of(b"x"), topic=topic.topic_id, version=13))["error_code"] == T
        fetched = await client.fetch(version=13, wanted={topic.topic_id: {0: 0}})
        assert set(codes_in(fetched)) == {0, T}
        asked = await client.ask("metadata", 12, topics=[{"topic_id": topic.topic_id, "name": None}])
        assert [(each["error_code"], each["name"]) for each in asked["topics"]] == [(T, None)]
        deleted = await client.ask("delete_topics", 6, topics=[{"topic_id": topic.topic_id}], timeout=1000)
        assert [(each["error_code"], each["name"]) for each in deleted["responses"]] == [(T, None)]
        committed = await client.ask(
            "offset_commit",
            10,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"topic_id": topic.topic_id, "partitions": OFFSETS[0]["partitions"]}],
        )
        assert set(codes_in(committed)) == {G}
        assert door.engine.topics.get("t") is topic

    with_door(body)


def test_an_unsafe_produce_that_is_refused_closes_the_connection() -> None:
    async def body(door: Door) -> None:
        client = await settle(door)
        before = state_of(door)
        door.engine.access.policy = Nothing()
        client.send(make("produce", 9, produce_values(batch_of(b"x"), acks=0)))
        with pytest.raises((EOFError, OSError, asyncio.IncompleteReadError)):
            await client.receive_frame()
        assert state_of(door) == before

    with_door(body)


class Only(Nothing):
    """One subject may do everything, by name."""

    def __init__(self, *topics: str, revision: int = 1) -> None:
        self.topics = topics
        self.revision = revision

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return resource.kind is not Kind.CLUSTER and (resource.kind is not Kind.TOPIC or resource.name in self.topics)


def test_a_right_that_is_taken_away_acts_on_connections_that_are_open() -> None:
    async def body(door: Door) -> None:
        client = await settle(door)
        door.engine.access.policy = Only("t")
        assert (await client.produce(batch_of(b"x")))["error_code"] == 0
        end = door.engine.topics.partition("t", 0).high_watermark
        parked = asyncio.ensure_future(client.fetch(wanted={"t": {0: end}}, max_wait=10_000))
        await asyncio.sleep(1)
        door.engine.access.policy = Only(revision=2)
        publication = door.engine.publishing.begin(ALL_IN_SYNC, 1, lambda publication: None)
        publication.add(door.engine.topics.partition("t", 0), memoryview(bytearray(batch_of(b"secret"))))
        publication.wait()
        answer = await parked
        assert set(codes_in(answer)) == {0, T} and "secret" not in repr(answer)
        assert (await client.produce(batch_of(b"x")))["error_code"] == T

    with_door(body)


def test_what_metadata_told_one_is_not_told_another() -> None:
    async def body(door: Door) -> None:
        client = await settle(door)

        async def seen() -> list[str]:
            return [each["name"] for each in (await client.ask("metadata", 9, topics=None))["topics"]]

        everything = await seen()
        assert {"t", OFFSETS_TOPIC} <= {*everything}
        door.engine.access.policy = Only("t")
        assert await seen() == ["t"]
        door.engine.access.policy = Only(revision=2)
        assert await seen() == []

    with_door(body)
