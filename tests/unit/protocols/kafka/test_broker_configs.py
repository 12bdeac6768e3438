"""Settings of brokers that change while they run, as the admin APIs show and alter them."""

from typing import Any

import orjson
import pytest
from tests.doors.kafka import Client, Door, batch_of, with_door

from penstock.protocols.kafka.handlers import BrokerSetting

from .operated_cluster import GONE, OperatedCluster, on

LEADER_NOT_AVAILABLE, BAD_CONFIG, BAD_REQUEST = 5, 40, 42
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
OF_TOPIC, OF_BROKER, OF_ALL, IN_FILE, BUILT_IN = 1, 2, 3, 4, 5
RATE, CORDON = "follower.replication.throttled.rate", "penstock.cordon"
UNLIMITED = "9223372036854775807"


async def describe(client: Client, name: str, kind: int = BROKER) -> tuple[int, dict[str, dict[str, Any]]]:
    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]
    answer = await client.ask("describe_configs", 4, resources=asked, include_synonyms=True)
    (found,) = answer["results"]
    return found["error_code"], {entry["name"]: entry for entry in found["configs"]}


def acting(entry: dict[str, Any]) -> tuple[Any, int, bool]:
    return entry["value"], entry["config_source"], entry["read_only"]


def synonyms(entry: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(each["name"], each["value"], each["source"]) for each in entry["synonyms"]]


async def alter(
    client: Client, name: str, *changes: tuple[str, int, str | None], kind: int = BROKER, validate_only: bool = False
) -> tuple[int, str | None]:
    configs = [{"name": each, "config_operation": operation, "value": value} for each, operation, value in changes]
    asked = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    answer = await client.ask("incremental_alter_configs", 1, resources=asked, validate_only=validate_only)
    (found,) = answer["responses"]
    assert (found["resource_type"], found["resource_name"]) == (kind, name)
    return found["error_code"], found["error_message"]


async def replace(client: Client, name: str, **settings: str) -> int:
    configs = [{"name": each.replace("_", "."), "value": value} for each, value in settings.items()]
    asked = [{"resource_type": BROKER, "resource_name": name, "configs": configs}]
    answer = await client.ask("alter_configs", 2, resources=asked, validate_only=False)
    return int(answer["responses"][0]["error_code"])


def test_who_is_refused_is_told_by_each_broker_for_itself() -> None:
    async def body(door: Door) -> None:
        client = await OperatedCluster(door).start()
        assert acting((await describe(client, "1"))[1]["penstock.refusals"]) == (None, BUILT_IN, True)
        door.context.refusals = lambda: ["broker 4 is refused", "so is 5"]
        told = (await describe(client, "1"))[1]["penstock.refusals"]
        assert acting(told) == ("broker 4 is refused; so is 5", BUILT_IN, True)
        assert "penstock.refusals" not in (await describe(client, "2"))[1]
        assert (await alter(client, "1", ("penstock.refusals", SET, "x")))[0] != 0

    with_door(body)


def test_what_can_change_is_shown_with_where_it_comes_from() -> None:
    async def body(door: Door) -> None:
        door.context.broker_settings = [BrokerSetting("node.id", "1", "int", True, "This broker's id.")]
        door.context.file_defaults = {"segment.ms": "77"}
        cluster = OperatedCluster(door)
        client = await cluster.start()
        _, before = await describe(client, "1")
        assert acting(before["node.id"]) == ("1", BUILT_IN, True)
        assert acting(before[RATE]) == (UNLIMITED, BUILT_IN, False)
        assert acting(before[CORDON]) == (None, BUILT_IN, False) and synonyms(before[CORDON]) == []
        assert acting(before["log.roll.ms"]) == ("77", IN_FILE, False)
        assert "" not in before
        assert await describe(client, "") == (0, {})

        await cluster.set(None, **{RATE: "7", "log.roll.ms": "99"})
        await cluster.set(1, **{RATE: "8", CORDON: "drained"})
        _, after = await describe(client, "1")
        assert acting(after[RATE]) == ("8", OF_BROKER, False)
        assert synonyms(after[RATE]) == [(RATE, "8", OF_BROKER), (RATE, "7", OF_ALL), (RATE, UNLIMITED, BUILT_IN)]
        assert acting(after[CORDON]) == ("drained", OF_BROKER, False)
        assert synonyms(after["log.roll.ms"]) == [
            ("log.roll.ms", "99", OF_ALL),
            ("log.roll.ms", "77", IN_FILE),
            ("log.roll.ms", "604800000", BUILT_IN),
        ]
        _, everyone = await describe(client, "")
        assert {name: (acting(entry), synonyms(entry)) for name, entry in everyone.items()} == {
            RATE: (("7", OF_ALL, False), [(RATE, "7", OF_ALL)]),
            "log.roll.ms": (("99", OF_ALL, False), [("log.roll.ms", "99", OF_ALL)]),
        }
        assert (everyone[RATE]["config_type"], everyone["log.roll.ms"]["config_type"]) == (5, 5)

    with_door(body)


def test_its_load_is_told_to_who_asks_for_it_by_name() -> None:
    async def ask(client: Client, name: str, version: int = 4) -> list[dict[str, Any]]:
        asked = [{"resource_type": BROKER, "resource_name": name, "configuration_keys": ["penstock.load"]}]
        answer = await client.ask("describe_configs", version, resources=asked)
        return list(answer["results"][0]["configs"])

    async def body(door: Door) -> None:
        await door.topic("t", 2)
        client = await OperatedCluster(door).start()
        (idle,) = await ask(client, "1")
        assert orjson.loads(idle["value"])["steps"] == []
        for _ in range(3):
            await client.produce(batch_of(b"v"), partition=1)
        await client.fetch(wanted={"t": {1: 0}})
        (busy,) = await ask(client, "1")
        assert busy["read_only"]
        assert orjson.loads(busy["value"])["steps"] == [["t", 1, 4]]
        assert orjson.loads(busy["value"])["cpu_s"] > 0
        assert await ask(client, "2") == []
        assert await ask(client, "1", version=3) == []
        _, everything = await describe(client, "1")
        assert "penstock.load" not in everything

    with_door(body)


@pytest.mark.parametrize("name", ["2", str(GONE)])
def test_of_another_broker_every_broker_knows_what_was_changed(name: str) -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start()
        await cluster.set(int(name), **{CORDON: "cordoned"})
        code, found = await describe(client, name)
        assert code == 0
        assert acting(found[CORDON]) == ("cordoned", OF_BROKER, False)
        assert "log.roll.ms" not in found
        for unknown in ("9", "01", "x"):
            assert await describe(client, unknown) == (BAD_REQUEST, {})

    with_door(body)


def test_all_brokers_that_can_be_asked_about_are_listed() -> None:
    async def body(door: Door) -> None:
        client = await OperatedCluster(door).start()
        answer = await client.ask("list_config_resources", 1, resource_types=[BROKER])
        assert [each["resource_name"] for each in answer["config_resources"]] == ["1", "2", "3", str(GONE)]

    with_door(body)


def test_a_topic_shows_a_default_that_was_changed() -> None:
    async def body(door: Door) -> None:
        await door.topic("t", 1)
        door.context.file_defaults = {}
        cluster = OperatedCluster(door)
        client = await cluster.start()
        await cluster.set(None, log_retention_ms="5")
        _, found = await describe(client, "t", TOPIC)
        entry = found["retention.ms"]
        assert (entry["value"], entry["config_source"]) == ("5", OF_ALL)
        assert synonyms(entry) == [("log.retention.ms", "5", OF_ALL), ("log.retention.ms", "604800000", BUILT_IN)]

    with_door(body)


def test_settings_that_only_topics_have_know_no_default_of_the_broker() -> None:
    async def body(door: Door) -> None:
        name = "leader.replication.throttled.replicas"
        await door.topic("t", 1, **{"follower.replication.throttled.replicas": "0:1,1:2"})
        client = await door.client()
        _, found = await describe(client, "t", TOPIC)
        assert acting(found[name]) == ("", BUILT_IN, False) and synonyms(found[name]) == []
        assert acting(found["follower.replication.throttled.replicas"]) == ("0:1,1:2", OF_TOPIC, False)
        _, of_broker = await describe(client, "1")
        assert "" not in of_broker and name not in of_broker
        for value, code in (
            ("*", 0),
            ("", 0),
            ("0:1", 0),
            ("0:1,*", BAD_CONFIG),
            ("0:x", BAD_CONFIG),
            ("0", BAD_CONFIG),
        ):
            assert (await alter(client, "t", (name, SET, value), kind=TOPIC))[0] == code, value

    with_door(body)


@pytest.mark.parametrize(("name", "place"), [("", None), ("2", 2), (str(GONE), GONE)])
def test_settings_change_one_by_one(name: str, place: int | None) -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start()
        leader = "leader.replication.throttled.rate"
        assert await alter(client, name, (RATE, SET, "7"), validate_only=True) == (0, None)
        assert cluster.image.configs == {}
        assert await alter(client, name, (RATE, SET, "7"), (leader, SET, "8")) == (0, None)
        assert cluster.image.configs == {place: {RATE: "7", leader: "8"}}
        assert await alter(client, name, (RATE, DELETE, None)) == (0, None)
        assert cluster.image.configs == {place: {leader: "8"}}
        assert await replace(client, name, follower_replication_throttled_rate="9") == 0
        assert cluster.image.configs == {place: {RATE: "9"}}
        assert await alter(client, name, (RATE, DELETE, None), (leader, DELETE, None)) == (0, None)
        assert cluster.image.configs == {}

    with_door(body)


def test_a_list_grows_and_shrinks_from_what_acts() -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start()
        policy = "log.cleanup.policy"
        assert await alter(client, "", (policy, APPEND, "compact")) == (0, None)
        assert cluster.image.configs == {None: {policy: "delete,compact"}}
        assert await alter(client, "", (policy, SUBTRACT, "delete")) == (0, None)
        assert cluster.image.configs == {None: {policy: "compact"}}
        code, text = await alter(client, "", (RATE, APPEND, "7"))
        assert code == BAD_CONFIG and "broker setting 'follower.replication.throttled.rate' is no list" in str(text)

    with_door(body)


def test_what_cannot_change_is_refused() -> None:
    async def body(door: Door) -> None:
        door.context.broker_settings = [BrokerSetting("node.id", "1", "int", True, "This broker's id.")]
        cluster = OperatedCluster(door)
        client = await cluster.start(on(1, 2))
        code, text = await alter(client, "1", (RATE, SET, "7"), ("node.id", SET, "7"))
        assert code == BAD_REQUEST and "when it starts: node.id; set it in the broker's file" in str(text)
        code, text = await alter(client, "", (RATE, SET, "7"), ("log.retention.m", SET, "7"))
        assert code == BAD_CONFIG and "'log.retention.m' is unknown; did you mean log.retention.ms?" in str(text)
        code, text = await alter(client, "1", (RATE, SET, "fast"))
        assert code == BAD_CONFIG and "bytes a second" in str(text)
        code, text = await alter(client, "2", ("log.retention.ms", SET, "5"))
        assert code == BAD_CONFIG and "not for broker 2 alone" in str(text)
        code, text = await alter(client, "9", (RATE, SET, "7"))
        assert code == BAD_REQUEST and "there are 1, 2, 3, 8" in str(text)
        assert cluster.image.configs == {}
        cluster.lose_store()
        code, text = await alter(client, "1", (RATE, SET, "7"))
        assert code == LEADER_NOT_AVAILABLE and "settings of 1 may or may not be changed" in str(text)

    with_door(body)


@pytest.mark.parametrize("value", ["soon", "-2"])
def test_a_default_of_topics_is_what_a_topic_may_have(value: str) -> None:
    async def body(door: Door) -> None:
        cluster = OperatedCluster(door)
        client = await cluster.start()
        code, text = await alter(client, "", ("log.retention.ms", SET, value))
        assert code == BAD_CONFIG and value in str(text)
        assert cluster.image.configs == {}

    with_door(body)


def test_a_broker_on_its_own_reads_its_settings_when_it_starts() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        _, found = await describe(client, "1")
        assert RATE not in found and found["log.roll.ms"]["read_only"]
        for name in ("", "1"):
            code, text = await alter(client, name, ("log.roll.ms", SET, "1"))
            assert code == BAD_REQUEST and "log.roll.ms" in str(text)

    with_door(body)
