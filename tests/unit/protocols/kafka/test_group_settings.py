"""Settings of groups, as the admin APIs show and alter them."""

import asyncio
from typing import Any

import pytest
from tests.doors.kafka import Client, Door, with_door

from penstock.engine.access import Kind, Operation, Resource, Subject
from penstock.engine.groups.group_config import GROUP_SETTINGS
from penstock.protocols.kafka.handlers import BrokerSetting

BAD_GROUP, UNKNOWN_MEMBER, BAD_CONFIG, BAD_REQUEST = 24, 25, 40, 42
TOPIC, GROUP = 2, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
IN_FILE, BUILT_IN, OF_GROUP = 4, 5, 8
BOOLEAN, STRING, INT = 1, 2, 3
LIMIT, LOCK, SESSION = "share.delivery.count.limit", "share.record.lock.duration.ms", "consumer.session.timeout.ms"


async def describe(client: Client, name: str, *wanted: str, version: int = 4) -> tuple[int, dict[str, dict[str, Any]]]:
    asked = [{"resource_type": GROUP, "resource_name": name, "configuration_keys": wanted or None}]
    answer = await client.ask(
        "describe_configs", version, resources=asked, include_synonyms=True, include_documentation=True
    )
    (found,) = answer["results"]
    assert (found["resource_type"], found["resource_name"]) == (GROUP, name)
    return found["error_code"], {entry["name"]: entry for entry in found["configs"]}


def acting(entry: dict[str, Any]) -> tuple[Any, int]:
    return entry["value"], entry["config_source"]


def synonyms(entry: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(each["name"], each["value"], each["source"]) for each in entry["synonyms"]]


async def alter(
    client: Client, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str]:
    configs = [{"name": each, "config_operation": operation, "value": value} for each, operation, value in changes]
    asked = [{"resource_type": GROUP, "resource_name": name, "configs": configs}]
    answer = await client.ask("incremental_alter_configs", 1, resources=asked, validate_only=validate_only)
    (found,) = answer["responses"]
    assert (found["resource_type"], found["resource_name"]) == (GROUP, name)
    return found["error_code"], found["error_message"] or ""


async def replace(client: Client, name: str, settings: dict[str, str | None], *, validate_only: bool = False) -> int:
    configs = [{"name": each, "value": value} for each, value in settings.items()]
    asked = [{"resource_type": GROUP, "resource_name": name, "configs": configs}]
    answer = await client.ask("alter_configs", 2, resources=asked, validate_only=validate_only)
    return int(answer["responses"][0]["error_code"])


@pytest.mark.parametrize("version", range(1, 5))
def test_every_setting_of_a_group_is_told_with_where_it_comes_from(version: int) -> None:
    async def body(door: Door) -> None:
        door.context.broker_settings = [
            BrokerSetting("group.consumer.session.timeout.ms", "50000", "int", False, ""),
            BrokerSetting("group.share.delivery.count.limit", "5", "int", True, ""),
        ]
        client = await door.client()
        assert await alter(client, "g", (LIMIT, SET, "3")) == (0, "")
        code, found = await describe(client, "g", version=version)
        assert code == 0 and list(found) == list(GROUP_SETTINGS)
        assert acting(found[LIMIT]) == ("3", OF_GROUP)
        assert synonyms(found[LIMIT]) == [(LIMIT, "3", OF_GROUP), ("group.share.delivery.count.limit", "5", BUILT_IN)]
        assert acting(found[SESSION]) == ("50000", IN_FILE)
        assert synonyms(found[SESSION]) == [
            ("group.consumer.session.timeout.ms", "50000", IN_FILE),
            ("group.consumer.session.timeout.ms", "45000", BUILT_IN),
        ]
        reset = found["share.auto.offset.reset"]
        assert acting(reset) == ("latest", BUILT_IN)
        assert synonyms(reset) == [("share.auto.offset.reset", "latest", BUILT_IN)]
        assert not any(entry["read_only"] or entry["is_sensitive"] for entry in found.values())
        if version >= 3:
            assert all(entry["documentation"] for entry in found.values())
            assert (found[LIMIT]["config_type"], reset["config_type"]) == (INT, STRING)
            assert found["share.renew.acknowledge.enable"]["config_type"] == BOOLEAN
        assert acting((await describe(client, "other"))[1][LIMIT]) == ("5", BUILT_IN)
        assert list((await describe(client, "g", LOCK, "no.such"))[1]) == [LOCK]

    with_door(body)


def test_settings_are_set_and_unset_one_by_one() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        configs = door.engine.group_configs
        assert await alter(client, "g", (LIMIT, SET, "3"), (LOCK, SET, " 20000 ")) == (0, "")
        assert configs.get("g") == {LIMIT: "3", LOCK: "20000"}
        assert await alter(client, "g", (LIMIT, SET, "4"), validate_only=True) == (0, "")
        assert await alter(client, "g", (LOCK, DELETE, None), ("no.such", DELETE, None)) == (0, "")
        assert configs.get("g") == {LIMIT: "3"}
        assert await alter(client, "g") == (0, ""), "nothing to do"
        assert await alter(client, "g", (LIMIT, DELETE, None)) == (0, "")
        assert configs.configured() == []

    with_door(body)


def test_settings_are_replaced_all_together() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        configs = door.engine.group_configs
        assert await replace(client, "g", {LIMIT: "3", LOCK: "20000"}) == 0
        assert await replace(client, "g", {LIMIT: "4"}, validate_only=True) == 0
        assert configs.get("g") == {LIMIT: "3", LOCK: "20000"}
        assert await replace(client, "g", {LIMIT: "11"}) == BAD_CONFIG
        assert await replace(client, "g", {LIMIT: None}) == BAD_REQUEST
        assert await replace(client, "g", {LIMIT: "4"}) == 0
        assert configs.get("g") == {LIMIT: "4"}
        assert await replace(client, "g", {}) == 0
        assert configs.configured() == []

    with_door(body)


def test_what_is_wrong_is_refused_by_name_and_changes_nothing() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        await alter(client, "g", (LIMIT, SET, "3"))
        for change, words in (
            ((LIMIT, SET, "11"), f"{LIMIT} is '11'; allowed: a whole number from 2 to 10"),
            (("share.delivery.limit", SET, "3"), f"did you mean {LIMIT}?"),
            ((LIMIT, APPEND, "3"), f"group setting '{LIMIT}' is no list"),
            ((LIMIT, SUBTRACT, "3"), f"group setting '{LIMIT}' is no list"),
            (("share.auto.offset.reset", SET, "none"), "'none'"),
            (("errors.deadletterqueue.topic.name", SET, "orders"), "'dlq.'"),
        ):
            code, text = await alter(client, "g", (LOCK, SET, "20000"), change)
            assert code == BAD_CONFIG and words in text, change
            assert (await alter(client, "g", change, validate_only=True))[0] == BAD_CONFIG
        assert (await alter(client, "g", (LIMIT, SET, None)))[0] == BAD_REQUEST
        assert (await alter(client, "g", (LIMIT, SET, "4"), (LIMIT, SET, "5")))[0] == BAD_REQUEST
        assert (await alter(client, "g", (LIMIT, 7, "4")))[0] == BAD_REQUEST
        assert (await alter(client, "", (LIMIT, SET, "4")))[0] == BAD_REQUEST
        assert (await alter(client, "x" * 1025, (LIMIT, SET, "4")))[0] == BAD_GROUP
        assert await describe(client, "") == (BAD_REQUEST, {})
        assert door.engine.group_configs.configured() == ["g"]
        assert door.engine.group_configs.get("g") == {LIMIT: "3"}

    with_door(body)


def test_groups_with_settings_are_listed() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        for name in ("b", "a/b"):
            await alter(client, name, (LIMIT, SET, "3"))

        async def listed(*kinds: int) -> list[tuple[str, int]]:
            answer = await client.ask("list_config_resources", 1, resource_types=kinds)
            assert answer["error_code"] == 0
            return [(row["resource_name"], row["resource_type"]) for row in answer["config_resources"]]

        groups = [("a/b", GROUP), ("b", GROUP)]
        assert await listed(GROUP) == groups
        assert set(groups) < set(await listed())
        assert await listed(TOPIC) == []
        assert (await client.ask("list_config_resources", 0))["config_resources"] == ()

    with_door(body)


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_members_go_by_what_is_set_for_their_group(kind: str) -> None:
    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()

        async def beat(group: str, epoch: int, **more: Any) -> tuple[int, int, int]:
            asked = {"group_id": group, "member_id": "m", "member_epoch": epoch, **usual, **more}
            told = await client.ask(f"{kind}_group_heartbeat", 1, **asked)
            return told["error_code"], told["member_epoch"], told["heartbeat_interval"]

        usual: dict[str, Any] = {"rebalance_timeout": -1} if kind == "consumer" else {}
        joins: dict[str, Any] = {"subscribed_topic_names": ("t",)}
        if kind == "consumer":
            joins |= {"topic_partitions": (), "rebalance_timeout": 60_000}
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        await alter(client, "set", (session, SET, "60000"), (heartbeat, SET, "10000"))
        await client.ask("find_coordinator", 4, key_type=0, coordinator_keys=["set"])
        assert await beat("set", 0, **joins) == (0, 1, 10_000)
        assert await beat("usual", 0, **joins) == (0, 1, 5_000)
        await asyncio.sleep(50)
        assert await beat("set", 1) == (0, 1, 10_000)
        assert (await beat("usual", 1))[0] == UNKNOWN_MEMBER
        await alter(client, "set", (session, DELETE, None), (heartbeat, DELETE, None))
        assert await beat("set", 1) == (0, 1, 5_000)
        await asyncio.sleep(50)
        assert (await beat("set", 1))[0] == UNKNOWN_MEMBER

    with_door(body)


class AllButWriting:
    """May do everything, but write to one topic."""

    revision = 1
    is_open = False

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.name) != (Operation.WRITE, "dlq.wages")

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        return True

    def likeness(self, subject: Subject) -> None:
        return None


def test_dead_letters_go_only_where_who_says_so_may_write() -> None:
    """The broker writes them by its own right."""

    async def body(door: Door) -> None:
        client = await door.client()
        door.engine.access.policy = AllButWriting()
        name = "errors.deadletterqueue.topic.name"
        assert (await alter(client, "g", (name, SET, "dlq.wages")))[0] == 29
        assert door.engine.group_configs.get("g") == {}
        assert await alter(client, "g", (name, SET, "dlq.jobs")) == (0, "")

    with_door(body)
