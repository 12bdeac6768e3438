"""The admin side: configs, partitions, records deleted, what the cluster says of itself."""

from typing import Any

import pytest
from tests.doors.kafka import Door, batch_of, with_door

from penstock.engine.topic_config import SETTINGS
from penstock.protocols.kafka.handlers import (
    BrokerSetting,
    alter_configs,
    create_partitions,
    delete_records,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    incremental_alter_configs,
)

OUT_OF_RANGE, UNKNOWN_TOPIC, INVALID_TOPIC, BAD_PARTITIONS, BAD_ASSIGNMENT = 1, 3, 17, 37, 39
BAD_CONFIG, BAD_REQUEST, POLICY, UNSUPPORTED = 40, 42, 44, 35
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def versions(module: Any) -> range:
    return range(module.API.oldest, module.API.newest + 1)


def resource(name: str = "t", kind: int = TOPIC, **fields: Any) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, **fields}


def change(name: str, operation: int, value: str | None = None) -> dict[str, Any]:
    return {"name": name, "config_operation": operation, "value": value}


async def describe(client: Any, *resources: dict[str, Any], version: int = 4, **fields: Any) -> tuple[Any, ...]:
    asked = [{"configuration_keys": None, **each} for each in resources]
    answer = await client.ask("describe_configs", version, resources=asked, **fields)
    return tuple(answer["results"])


async def alter(client: Any, *changes: dict[str, Any], validate_only: bool = False, **where: Any) -> dict[str, Any]:
    asked = [resource(configs=list(changes), **where)]
    answer = await client.ask("incremental_alter_configs", 1, resources=asked, validate_only=validate_only)
    (found,) = answer["responses"]
    return dict(found)


# --- describing configs


@pytest.mark.parametrize("version", versions(describe_configs))
def test_every_setting_of_a_topic_and_where_it_comes_from(version: int) -> None:
    async def body(door: Door) -> None:
        door.engine.topic_defaults["segment.ms"] = "77"
        await door.topic("t", 1, **{"retention.ms": "5"})
        client = await door.client()
        (found,) = await describe(client, resource(), version=version, include_synonyms=True)
        assert (found["error_code"], found["resource_type"], found["resource_name"]) == (0, TOPIC, "t")
        entries = {entry["name"]: entry for entry in found["configs"]}
        assert list(entries) == list(SETTINGS)
        shown = {
            name: (entries[name]["value"], entries[name]["config_source"])
            for name in ("retention.ms", "segment.ms", "flush")
        }
        assert shown == {"retention.ms": ("5", 1), "segment.ms": ("77", 4), "flush": ("commit", 5)}
        assert [tuple(each.values()) for each in entries["retention.ms"]["synonyms"]] == [
            ("retention.ms", "5", 1),
            ("log.retention.ms", "604800000", 5),
        ]
        assert not any(entry["read_only"] or entry["is_sensitive"] for entry in entries.values())
        if version >= 3:
            kinds = {name: entries[name]["config_type"] for name in ("retention.ms", "cleanup.policy", "flush")}
            assert kinds == {"retention.ms": 5, "cleanup.policy": 7, "flush": 2}

    with_door(body)


def test_only_what_was_asked_for() -> None:
    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()
        (found,) = await describe(client, resource(configuration_keys=["flush", "no.such"]), include_documentation=True)
        (entry,) = found["configs"]
        assert (entry["name"], entry["synonyms"]) == ("flush", ())
        assert entry["documentation"] == SETTINGS["flush"].documentation
        (found,) = await describe(client, resource(configuration_keys=[]))
        assert len(found["configs"]) == len(SETTINGS)
        assert found["configs"][0]["documentation"] is None

    with_door(body)


def test_a_brokers_settings_can_be_read_only() -> None:
    async def body(door: Door) -> None:
        door.context.broker_settings = [BrokerSetting("node.id", "1", "int", True, "This broker's id.")]
        door.engine.topic_defaults["segment.ms"] = "77"
        client = await door.client()
        own, everyone, other, wrong = await describe(
            client, resource("1", BROKER), resource("", BROKER), resource("2", BROKER), resource("x", 9)
        )
        entries = {entry["name"]: entry for entry in own["configs"]}
        assert entries["node.id"]["value"] == "1"
        assert (entries["log.roll.ms"]["value"], entries["log.roll.ms"]["config_source"]) == ("77", 4)
        assert all(entry["read_only"] for entry in entries.values())
        assert (everyone["error_code"], everyone["configs"]) == (0, ())
        assert (other["error_code"], wrong["error_code"]) == (BAD_REQUEST, BAD_REQUEST)
        assert "this is broker 1" in other["error_message"]
        refused = await alter(client, change("log.roll.ms", SET, "1"), name="1", kind=BROKER)
        assert refused["error_code"] == BAD_REQUEST and "restart" in refused["error_message"]

    with_door(body)


def test_configs_of_nothing() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        unknown, bad, group = await describe(client, resource("gone"), resource("a/b"), resource("g", 32))
        assert [each["error_code"] for each in (unknown, bad, group)] == [UNKNOWN_TOPIC, INVALID_TOPIC, 0]
        many = await describe(client, *(resource(f"gone-{at}") for at in range(5001)))
        assert [many[at]["error_code"] for at in (4999, 5000)] == [UNKNOWN_TOPIC, POLICY]

    with_door(body)


def test_what_is_asked_for_again_is_told_once() -> None:
    async def body(door: Door) -> None:
        await door.topic("t")
        client = await door.client()
        topic, unknown = await describe(client, *[resource("t"), resource("gone")] * 1000)
        assert [each["error_code"] for each in (topic, unknown)] == [0, UNKNOWN_TOPIC]

    with_door(body)


# --- altering them


@pytest.mark.parametrize("version", versions(incremental_alter_configs))
def test_settings_change_one_by_one(version: int) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("t", 1, **{"retention.ms": "5"})
        client = await door.client()
        changes = [
            change("segment.ms", SET, "9"),
            change("retention.ms", DELETE),
            change("cleanup.policy", APPEND, "compact,delete"),
        ]
        asked = [resource(configs=changes)]
        for validate_only in (True, False):
            assert topic.config.given == {"retention.ms": "5"}
            answer = await client.ask(
                "incremental_alter_configs", version, resources=asked, validate_only=validate_only
            )
            assert [each["error_code"] for each in answer["responses"]] == [0]
        assert topic.config.given == {"segment.ms": "9", "cleanup.policy": "delete,compact"}
        assert (await alter(client, change("cleanup.policy", SUBTRACT, "delete")))["error_code"] == 0
        assert topic.config.given["cleanup.policy"] == "compact"

    with_door(body)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ([change("retention.ms", SET, "soon")], BAD_CONFIG, "soon"),
        ([change("retention", SET, "1")], BAD_CONFIG, "did you mean retention"),
        ([change("cleanup.policy", SUBTRACT, "delete")], BAD_CONFIG, "delete, compact"),
        ([change("retention.ms", APPEND, "1")], BAD_CONFIG, "no list"),
        ([change("retention.ms", SET)], BAD_REQUEST, "no value"),
        ([change("retention.ms", 9, "1")], BAD_REQUEST, "operation 9"),
        ([change("retention.ms", SET, "1"), change("retention.ms", DELETE)], BAD_REQUEST, "twice"),
    ],
)
def test_changes_that_make_no_sense(changes: list[dict[str, Any]], code: int, text: str) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("t", 1, **{"segment.ms": "5"})
        client = await door.client()
        refused = await alter(client, change("flush", SET, "os"), *changes)
        assert refused["error_code"] == code and text in refused["error_message"]
        assert topic.config.given == {"segment.ms": "5"}

    with_door(body)


def test_a_resource_named_twice_is_left_alone() -> None:
    async def body(door: Door) -> None:
        topic = await door.topic()
        await door.topic("other")
        client = await door.client()
        one = change("flush", SET, "os")
        asked = [resource(configs=[one]), resource("other", configs=[one]), resource(configs=[one])]
        answer = await client.ask("incremental_alter_configs", 1, resources=asked)
        assert [each["error_code"] for each in answer["responses"]] == [BAD_REQUEST, 0, BAD_REQUEST]
        assert topic.config.given == {}

    with_door(body)


@pytest.mark.parametrize("version", versions(alter_configs))
def test_the_old_way_replaces_everything(version: int) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("t", 1, **{"retention.ms": "5"})
        client = await door.client()
        asked = [resource(configs=[{"name": "flush", "value": "os"}]), resource("gone", configs=[])]
        answer = await client.ask("alter_configs", version, resources=asked, validate_only=False)
        assert [each["error_code"] for each in answer["responses"]] == [0, UNKNOWN_TOPIC]
        assert topic.config.given == {"flush": "os"}
        empty = [resource(configs=[{"name": "flush", "value": None}])]
        answer = await client.ask("alter_configs", version, resources=empty, validate_only=False)
        assert answer["responses"][0]["error_code"] == BAD_REQUEST

    with_door(body)


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_settings_that_keep_groups_and_transactions_stay(topic: str) -> None:
    async def body(door: Door) -> None:
        door.engine.topic_defaults |= {"cleanup.policy": "delete", "flush": "os", "min.insync.replicas": "1"}
        await door.engine.internal_topic(topic)
        client = await door.client()
        told = await alter(client, change("cleanup.policy", SET, "delete"), name=topic)
        assert told["error_code"] == POLICY
        assert "the broker's own: cleanup.policy cannot be 'delete'" in told["error_message"]
        for operation, value in ((APPEND, "delete"), (SUBTRACT, "compact")):
            assert (await alter(client, change("cleanup.policy", operation, value), name=topic))["error_code"] != 0
        assert (await alter(client, change("cleanup.policy", DELETE), name=topic))["error_code"] == 0
        replaced = [resource(topic, configs=[{"name": "segment.ms", "value": "3600000"}])]
        (answer,) = (await client.ask("alter_configs", 2, resources=replaced))["responses"]
        assert answer["error_code"] == 0
        replaced = [resource(topic, configs=[{"name": "retention.ms", "value": "1"}])]
        (answer,) = (await client.ask("alter_configs", 2, resources=replaced))["responses"]
        assert answer["error_code"] == POLICY
        (found,) = await describe(client, resource(topic))
        values = {entry["name"]: entry["value"] for entry in found["configs"]}
        assert [values[name] for name in ("cleanup.policy", "flush", "segment.ms")] == ["compact", "commit", "3600000"]
        assert (await alter(client, change("flush", SET, "os"), name=topic, validate_only=True))["error_code"] == POLICY

    with_door(body)


def test_records_of_internal_topics_are_not_deleted() -> None:
    async def body(door: Door) -> None:
        topic = await door.engine.internal_topic("__consumer_offsets")
        asked = [{"name": topic.name, "partitions": [{"partition_index": 0, "offset": -1}]}]
        answer = await (await door.client()).ask("delete_records", 2, topics=asked, timeout=1)
        assert answer["topics"][0]["partitions"][0]["error_code"] == POLICY

    with_door(body)


def test_what_can_be_configured() -> None:
    async def body(door: Door) -> None:
        await door.topic("a")
        await door.topic("b")
        client = await door.client()
        assert (await client.ask("list_config_resources", 0))["config_resources"] == ()
        for types, names in (([], ["a", "b", "1"]), ([TOPIC], ["a", "b"]), ([BROKER], ["1"]), ([32], [])):
            answer = await client.ask("list_config_resources", 1, resource_types=types)
            assert [each["resource_name"] for each in answer["config_resources"]] == names
        assert (await client.ask("list_config_resources", 1, resource_types=[3]))["error_code"] == UNSUPPORTED

    with_door(body)


# --- partitions and records


@pytest.mark.parametrize("version", versions(create_partitions))
def test_a_topic_grows(version: int) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("t", 2)
        client = await door.client()

        async def grow(count: int, name: str = "t", assigned: Any = None, validate_only: bool = False) -> int:
            wanted = [{"name": name, "count": count, "assignments": assigned}]
            answer = await client.ask(
                "create_partitions", version, topics=wanted, timeout=1, validate_only=validate_only
            )
            return int(answer["results"][0]["error_code"])

        assert await grow(3, validate_only=True) == 0
        assert len(topic.partitions) == 2
        assert await grow(3) == 0
        assert await grow(5, assigned=[{"broker_ids": [1]}, {"broker_ids": [1]}]) == 0
        assert len(topic.partitions) == 5
        metadata = await client.ask("metadata", 9, topics=[{"name": "t"}])
        assert len(metadata["topics"][0]["partitions"]) == 5
        assert await grow(5) == await grow(4) == await grow(-1) == await grow(20_000) == BAD_PARTITIONS
        assert await grow(6, "gone") == UNKNOWN_TOPIC
        assert await grow(7, assigned=[{"broker_ids": [1]}]) == BAD_ASSIGNMENT
        assert await grow(6, assigned=[{"broker_ids": [2]}]) == BAD_ASSIGNMENT
        twice = [{"name": "t", "count": 9, "assignments": None}] * 2
        answer = await client.ask("create_partitions", version, topics=twice, timeout=1)
        assert [each["error_code"] for each in answer["results"]] == [BAD_REQUEST]
        assert len(topic.partitions) == 5

    with_door(body)


@pytest.mark.parametrize("version", versions(delete_records))
def test_records_go_up_to_an_offset(version: int) -> None:
    async def body(door: Door) -> None:
        await door.topic("t", 3)
        client = await door.client()
        for index in range(3):
            await client.produce(batch_of(b"a", b"b", b"c"), partition=index)
        offsets = [(0, 1), (1, -1), (2, 4), (0, 2), (9, 0)]
        wanted = [{"partition_index": index, "offset": offset} for index, offset in offsets]
        asked = [{"name": "t", "partitions": wanted}, {"name": "gone", "partitions": wanted[:1]}]
        answer = await client.ask("delete_records", version, topics=asked, timeout=1)
        found = [(row["low_watermark"], row["error_code"]) for topic in answer["topics"] for row in topic["partitions"]]
        assert found == [
            (2, 0),
            (3, 0),
            (-1, OUT_OF_RANGE),
            (-1, UNKNOWN_TOPIC),
            (-1, UNKNOWN_TOPIC),
        ]
        assert [door.engine.topics.partition("t", index).opened().log_start for index in range(3)] == [2, 3, 0]
        await alter(client, change("cleanup.policy", SET, "compact"))
        answer = await client.ask("delete_records", version, topics=asked[:1], timeout=1)
        assert answer["topics"][0]["partitions"][0]["error_code"] == POLICY

    with_door(body)


def test_producers_of_a_partition() -> None:
    async def body(door: Door) -> None:
        await door.topic("t", 1)
        client = await door.client()
        await client.produce(batch_of(b"a", b"b", producer_id=7, producer_epoch=2, base_sequence=0))
        asked = [{"name": "t", "partition_indexes": [0, 5, 0]}, {"name": "t", "partition_indexes": [0]}]
        answer = await client.ask("describe_producers", 0, topics=asked)
        found, missing = answer["topics"][0]["partitions"]
        (producer,) = found["active_producers"]
        assert (producer["producer_id"], producer["producer_epoch"], producer["last_sequence"]) == (7, 2, 1)
        assert (producer["coordinator_epoch"], producer["current_txn_start_offset"]) == (-1, -1)
        assert missing["error_code"] == UNKNOWN_TOPIC

    with_door(body)


# --- what the cluster says of itself


@pytest.mark.parametrize("version", versions(describe_cluster))
def test_the_cluster_is_this_broker(version: int) -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        answer = await client.ask("describe_cluster", version, endpoint_type=1)
        assert (answer["error_code"], answer["cluster_id"], answer["controller_id"]) == (0, door.engine.cluster_id, 1)
        assert [(each["broker_id"], each["host"], each["port"]) for each in answer["brokers"]] == [
            (1, "example.net", 9092)
        ]
        if version >= 1:
            for endpoint_type, code in ((2, 114), (7, 115)):
                answer = await client.ask("describe_cluster", version, endpoint_type=endpoint_type)
                assert (answer["error_code"], answer["brokers"]) == (code, ())

    with_door(body)


@pytest.mark.parametrize("version", versions(describe_log_dirs))
def test_bytes_and_space_of_the_data_directory(version: int) -> None:
    async def body(door: Door) -> None:
        await door.topic("a", 2)
        await door.topic("b", 1)
        client = await door.client()
        await client.produce(batch_of(b"x" * 100), topic="a")
        for asked, names in ((None, ["a", "b"]), ([{"topic": "a", "partitions": [0, 7]}, {"topic": "z"}], ["a"])):
            answer = await client.ask("describe_log_dirs", version, topics=asked)
            (directory,) = answer["results"]
            assert (directory["error_code"], [each["name"] for each in directory["topics"]]) == (0, names)
            sizes = [row["partition_size"] for row in directory["topics"][0]["partitions"]]
            assert sizes[0] > 100 and len(sizes) == (2 if asked is None else 1)
            assert directory.get("total_bytes", 1) > 0

    with_door(body)


def test_topics_page_by_page() -> None:
    async def body(door: Door) -> None:
        await door.topic("a", 3)
        await door.topic("b", 4)
        client = await door.client()
        for asked, gone in (([], False), ([{"name": "b"}, {"name": "gone"}, {"name": "a"}], True)):
            for limit in (1, 2, 3, 5, 100):
                seen, missing, cursor, pages = [], set(), None, 0
                while True:
                    answer = await client.ask(
                        "describe_topic_partitions", 0, topics=asked, response_partition_limit=limit, cursor=cursor
                    )
                    pages += 1
                    rows = [(topic["name"], row) for topic in answer["topics"] for row in topic["partitions"]]
                    assert len(rows) <= limit
                    seen += [(name, row["partition_index"]) for name, row in rows]
                    missing |= {each["name"] for each in answer["topics"] if each["error_code"] == UNKNOWN_TOPIC}
                    cursor = answer["next_cursor"]
                    if cursor is None:
                        break
                assert seen == [("a", at) for at in range(3)] + [("b", at) for at in range(4)]
                assert missing == ({"gone"} if gone else set())
                assert pages <= 7 // limit + 2

    with_door(body)


@pytest.mark.parametrize("cursor", [("a", -1), ("zz", 0)])
def test_a_cursor_that_was_never_given(cursor: tuple[str, int]) -> None:
    async def body(door: Door) -> None:
        await door.topic("a", 3)
        client = await door.client()
        place = dict(zip(("topic_name", "partition_index"), cursor, strict=True))
        answer = await client.ask("describe_topic_partitions", 0, topics=[{"name": "a"}], cursor=place)
        assert [(each["name"], each["error_code"]) for each in answer["topics"]] == [("a", BAD_REQUEST)]

    with_door(body)


def test_features_say_which_kafka_this_is_like() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        answer = await client.ask("api_versions", 4, client_software_name="x", client_software_version="1")
        supported = {row["name"]: row for row in answer["supported_features"]}
        finalized = {row["name"]: row["max_version_level"] for row in answer["finalized_features"]}
        assert finalized == {
            "group.version": 1,
            "metadata.version": 30,
            "share.version": 1,
            "transaction.version": 2,
        }
        for name, level in finalized.items():
            assert supported[name]["min_version"] <= level <= supported[name]["max_version"]
        assert answer["finalized_features_epoch"] >= 0

    with_door(body)
