"""What somebody is told beside an error code: of things that are not there, of names, of what may be done to them."""

from typing import Any
from uuid import UUID

import pytest
from tests.doors.kafka import Client, Door, with_door

from penstock.engine.access import THE_CLUSTER, Kind, Operation
from penstock.security.rules import Effect, Pattern, Rule
from penstock.security.ruleset import Ruleset

TOPIC, GROUP, CLUSTER = 29, 30, 31
UNKNOWN, UNKNOWN_ID = 3, 100
DESCRIBE, READ = 0b1_0000_0000, 0b1_0000_1000
"""As bits: READ has DESCRIBE in it."""


def allow(operation: Operation, kind: Kind, name: str) -> Rule:
    return Rule("User:ANONYMOUS", "*", operation, kind, Pattern.LITERAL, name, Effect.ALLOW)


def tell(door: Door, *rules: Rule) -> None:
    door.engine.access.policy = Ruleset(1, rules)


def row(answer: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = answer[name]
    assert isinstance(found, dict)
    return found


def test_what_may_be_done_to_a_topic_that_is_not_there() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        tell(door, allow(Operation.READ, Kind.TOPIC, "new"))
        asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": False}
        told = row(await client.ask("metadata", 9, **asked, include_topic_authorized_operations=True), "topics")
        assert (told["error_code"], told["topic_authorized_operations"]) == (UNKNOWN, READ)
        told = row(await client.ask("metadata", 9, **asked), "topics")
        assert told["topic_authorized_operations"] == -(1 << 31), "nobody asked"
        asked = {"topics": [{"name": "new"}, {"name": "other"}], "response_partition_limit": 10}
        told = await client.ask("describe_topic_partitions", 0, **asked)
        assert [(each["error_code"], each["topic_authorized_operations"]) for each in told["topics"]] == [
            (UNKNOWN, READ),
            (TOPIC, -(1 << 31)),
        ]

    with_door(body)


def test_what_may_be_done_to_a_group_that_is_not_there() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        await client.ask("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
        tell(door, allow(Operation.DESCRIBE, Kind.GROUP, "g"))
        asked = {"groups": ["g"], "include_authorized_operations": True}
        told = row(await client.ask("describe_groups", 5, **asked), "groups")
        assert (told["error_code"], told["authorized_operations"]) == (0, DESCRIBE)
        told = row(await client.ask("describe_groups", 6, **asked), "groups")
        assert (told["error_code"], told["authorized_operations"]) == (69, -(1 << 31)), "that there is none is an error"

    with_door(body)


@pytest.mark.parametrize(("operation", "codes"), [(Operation.READ, [TOPIC, UNKNOWN]), (Operation.CREATE, [TOPIC] * 2)])
def test_deleting_a_topic_that_is_not_there(operation: Operation, codes: list[int]) -> None:
    """Whoever may see topics is told which are there, and nobody else."""

    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()
        tell(door, allow(operation, Kind.TOPIC, "*"))
        told = await client.ask("delete_topics", 5, topic_names=["t", "new"], timeout=1000)
        assert [each["error_code"] for each in told["responses"]] == codes

    with_door(body)


@pytest.mark.parametrize(("operation", "name"), [(Operation.READ, "t"), (Operation.CREATE, None)])
def test_deleting_a_topic_by_id_tells_its_name_to_who_may_see_it(operation: Operation, name: str | None) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic()
        client = await door.client()
        tell(door, allow(operation, Kind.TOPIC, "*"))
        asked = [{"topic_id": topic.topic_id, "name": None}]
        told = row(await client.ask("delete_topics", 6, topics=asked, timeout=1000), "responses")
        assert (told["error_code"], told["name"]) == (TOPIC, name)

    with_door(body)


def test_who_may_not_use_a_group_does_not_hear_of_ids() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        rows = [{"topic_id": UUID(int=7), "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        asked = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": rows}
        for rules, code in (((), GROUP), ((allow(Operation.READ, Kind.GROUP, "g"),), UNKNOWN_ID)):
            tell(door, *rules)
            topics = await client.ask("offset_commit", 10, **asked)
            assert row(row(topics, "topics"), "partitions")["error_code"] == code

    with_door(body)


@pytest.mark.parametrize("api", ["alter_configs", "incremental_alter_configs", "describe_configs"])
@pytest.mark.parametrize(("kind", "code"), [(8, CLUSTER), (32, GROUP)])
def test_settings_are_refused_to_who_might_not_see_them_before_anybody_looks_what_has_any(
    api: str, kind: int, code: int
) -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        tell(door)
        version = 4 if api == "describe_configs" else 1
        told = await client.ask(api, version, resources=[{"resource_type": kind, "resource_name": "g", "configs": []}])
        assert row(told, "results" if api == "describe_configs" else "responses")["error_code"] == code

    with_door(body)


def test_groups_with_settings_are_listed_for_who_may_know_of_them() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        for name in ("shown", "hidden"):
            await door.engine.group_configs.alter(name, lambda given: {"share.delivery.count.limit": "3"})
        cluster = allow(Operation.DESCRIBE_CONFIGS, *THE_CLUSTER)
        for rules, code, names in (
            ((), CLUSTER, []),
            ((cluster,), 0, []),
            ((cluster, allow(Operation.READ, Kind.GROUP, "shown")), 0, ["shown"]),
            ((cluster, allow(Operation.DESCRIBE, Kind.GROUP, "*")), 0, ["hidden", "shown"]),
        ):
            tell(door, *rules)
            told = await client.ask("list_config_resources", 1, resource_types=[32])
            assert told["error_code"] == code
            assert [each["resource_name"] for each in told["config_resources"]] == names

    with_door(body)


async def _leaders(client: Client, version: int) -> dict[str, Any]:
    named = [{"topic": "t", "partitions": [0]}]
    return await client.ask("elect_leaders", version, election_type=0, topic_partitions=named, timeout=1000)


def test_changes_of_the_cluster_are_refused_with_each_partition() -> None:
    """The first version of ElectLeaders has no other place for it, and without any it would seem to be done."""

    async def body(door: Door) -> None:
        client = await door.client()
        tell(door)
        for version in (0, 2):
            told = row(await _leaders(client, version), "replica_election_results")
            assert row(told, "partition_result")["error_code"] == CLUSTER
        moved = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]}]
        answer = await client.ask("alter_partition_reassignments", 0, timeout=1000, topics=moved)
        assert answer["error_code"] == row(row(answer, "responses"), "partitions")["error_code"] == CLUSTER

    with_door(body)


def test_the_sizes_of_topics_that_may_not_be_seen_are_left_out() -> None:
    async def body(door: Door) -> None:
        for name in ("t", "hidden"):
            await door.topic(name)
        client = await door.client()
        cluster = allow(Operation.DESCRIBE, Kind.CLUSTER, THE_CLUSTER.name)
        tell(door, cluster, allow(Operation.DESCRIBE, Kind.TOPIC, "t"))
        named = [{"topic": name, "partitions": [0]} for name in ("hidden", "t", "unknown")]
        for topics in (named, None):
            told = row(await client.ask("describe_log_dirs", 4, topics=topics), "results")
            assert [each["name"] for each in told["topics"]] == ["t"]

    with_door(body)
