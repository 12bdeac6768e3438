"""Metadata, CreateTopics and DeleteTopics."""

from uuid import UUID

import pytest
from tests.doors.kafka import Door, batch_of, make, with_door

from penstock.protocols.kafka.handlers import create_topics, delete_topics, metadata

UNKNOWN_TOPIC, INVALID_TOPIC, EXISTS, BAD_PARTITIONS, BAD_REPLICATION, BAD_CONFIG = 3, 17, 36, 37, 38, 40
BAD_REQUEST, POLICY, UNKNOWN_ID = 42, 44, 100


@pytest.mark.parametrize("version", range(metadata.API.oldest, metadata.API.newest + 1))
def test_metadata_of_every_version(version: int) -> None:
    async def body(door: Door) -> None:
        topic = await door.topic("a", 3)
        await door.topic("b", 1)
        client = await door.client()
        answer = await client.ask("metadata", version, topics=[{"name": "a"}])
        (broker,) = answer["brokers"]
        assert (broker["node_id"], broker["host"], broker["port"]) == (1, "example.net", 9092)
        assert answer.get("controller_id", 1) == 1
        assert answer.get("cluster_id", door.engine.cluster_id) == door.engine.cluster_id
        (found,) = answer["topics"]
        assert (found["error_code"], found["name"]) == (0, "a")
        assert found.get("topic_id", topic.topic_id) == topic.topic_id
        assert [row["partition_index"] for row in found["partitions"]] == [0, 1, 2]
        for row in found["partitions"]:
            assert (row["error_code"], row["leader_id"]) == (0, 1)
            assert (row["replica_nodes"], row["isr_nodes"]) == ((1,), (1,))
            assert row.get("leader_epoch", 0) == 0
            assert row.get("offline_replicas", ()) == ()
        everything = await client.ask("metadata", version, topics=[] if version == 0 else None)
        assert [each["name"] for each in everything["topics"]] == ["a", "b"]
        if version > 0:
            assert (await client.ask("metadata", version, topics=[]))["topics"] == ()

    with_door(body)


def test_missing_topics_are_created_when_both_sides_allow_it() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        asked = [{"name": "new"}]
        refused = await client.ask("metadata", 4, topics=asked, allow_auto_topic_creation=False)
        assert refused["topics"][0]["error_code"] == UNKNOWN_TOPIC
        made = await client.ask("metadata", 4, topics=asked, allow_auto_topic_creation=True)
        assert (made["topics"][0]["error_code"], len(made["topics"][0]["partitions"])) == (0, 2)
        door.context.auto_create = False
        refused = await client.ask("metadata", 4, topics=[{"name": "x"}], allow_auto_topic_creation=True)
        assert refused["topics"][0]["error_code"] == UNKNOWN_TOPIC

    with_door(body)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ä", "x" * 250, "a b"])
def test_names_no_topic_has(name: str) -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        answer = await client.ask("metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=True)
        assert (answer["topics"][0]["error_code"], answer["topics"][0]["name"]) == (INVALID_TOPIC, name)
        made = await client.ask(
            "create_topics", 5, topics=[{"name": name, "num_partitions": 1, "replication_factor": 1}], timeout=1
        )
        assert made["topics"][0]["error_code"] == INVALID_TOPIC
        assert len(door.engine.topics) == 0

    with_door(body)


def test_metadata_by_id() -> None:
    async def body(door: Door) -> None:
        topic = await door.topic()
        client = await door.client()
        asked = [{"topic_id": topic.topic_id, "name": None}, {"topic_id": UUID(int=5), "name": None}, {"name": None}]
        answer = await client.ask("metadata", 12, topics=asked)
        found = [(each["error_code"], each["name"]) for each in answer["topics"]]
        assert found == [(0, "t"), (UNKNOWN_ID, None), (BAD_REQUEST, "")]

    with_door(body)


def test_an_id_counts_also_beside_an_empty_name() -> None:
    """As Java's client asks for topics of a regular expression the broker resolves."""

    async def body(door: Door) -> None:
        topic = await door.topic()
        client = await door.client()
        asked = [{"topic_id": topic.topic_id, "name": ""}, {"topic_id": UUID(int=5), "name": ""}]
        answer = await client.ask("metadata", 13, topics=asked)
        assert [(each["error_code"], each["name"]) for each in answer["topics"]] == [(0, "t"), (UNKNOWN_ID, None)]

    with_door(body)


def test_two_clients_ask_for_the_same_new_topic() -> None:
    async def body(door: Door) -> None:
        clients = [await door.client() for _ in range(5)]
        for client in clients:
            client.send(make("metadata", 4, {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}))
        ids = set()
        for client in clients:
            _, answer = await client.receive("metadata", 4)
            assert answer["topics"][0]["error_code"] == 0
            ids.add(len(answer["topics"][0]["partitions"]))
        assert ids == {2}

    with_door(body)


@pytest.mark.parametrize("version", range(create_topics.API.oldest, create_topics.API.newest + 1))
def test_create_topics_of_every_version(version: int) -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        topics = [
            {"name": "a", "num_partitions": 3, "replication_factor": 1},
            {"name": "b", "num_partitions": 1, "replication_factor": 1, "configs": [{"name": "flush", "value": "os"}]},
            {"name": "c", "num_partitions": -1, "replication_factor": -1},
        ]
        answer = await client.ask("create_topics", version, topics=topics, timeout=1000)
        assert [(each["name"], each["error_code"]) for each in answer["topics"]] == [("a", 0), ("b", 0), ("c", 0)]
        assert [len(door.engine.topics.get(name).partitions) for name in "abc"] == [3, 1, 2]
        if version >= 5:
            assert [each["num_partitions"] for each in answer["topics"]] == [3, 1, 2]
            configs = {each["name"]: each for each in answer["topics"][1]["configs"]}
            assert (configs["flush"]["value"], configs["flush"]["config_source"]) == ("os", 1)
            assert (configs["segment.bytes"]["value"], configs["segment.bytes"]["config_source"]) == (str(1 << 30), 5)
        if version >= 7:
            assert answer["topics"][0]["topic_id"] == door.engine.topics.get("a").topic_id

    with_door(body)


REFUSED = [
    ({"name": "t", "num_partitions": 1}, EXISTS),
    ({"name": "n", "num_partitions": 0}, BAD_PARTITIONS),
    ({"name": "n", "num_partitions": -2}, BAD_PARTITIONS),
    ({"name": "n", "num_partitions": 10_001}, BAD_PARTITIONS),
    ({"name": "n", "num_partitions": 10_000}, POLICY),
    ({"name": "n", "num_partitions": 1, "replication_factor": 3}, BAD_REPLICATION),
    ({"name": "n", "num_partitions": 1, "replication_factor": 0}, BAD_REPLICATION),
    ({"name": "n", "num_partitions": 1, "configs": [{"name": "segment.byte", "value": "9"}]}, BAD_CONFIG),
    ({"name": "n", "num_partitions": 1, "configs": [{"name": "segment.bytes", "value": "nine"}]}, BAD_CONFIG),
    ({"name": "n", "num_partitions": 1, "configs": [{"name": "segment.bytes", "value": "\0" * 32_000}]}, BAD_CONFIG),
    ({"name": "n", "num_partitions": 1, "configs": [{"name": "\0" * 32_000, "value": "9"}]}, BAD_CONFIG),
    ({"name": "n", "assignments": [{"partition_index": 1, "broker_ids": [1]}]}, BAD_REQUEST),
    ({"name": "n", "assignments": [{"partition_index": 0, "broker_ids": [1, 2]}]}, BAD_REPLICATION),
    ({"name": "n", "assignments": [{"partition_index": 0, "broker_ids": [7]}]}, BAD_REPLICATION),
]


@pytest.mark.parametrize(("topic", "code"), REFUSED)
@pytest.mark.parametrize("version", [2, 7])
def test_topics_that_are_not_created(topic: dict, code: int, version: int) -> None:
    async def body(door: Door) -> None:
        await door.topic()
        client = await door.client()
        asked = {"replication_factor": 1} | topic
        answer = await client.ask("create_topics", version, topics=[asked], timeout=1)
        (row,) = answer["topics"]
        assert row["error_code"] == code
        assert row["error_message"]
        assert len(row["error_message"]) <= 500
        assert len(door.engine.topics) == 1

    with_door(body)


def test_assigned_partitions() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        here = [{"partition_index": index, "broker_ids": [1]} for index in (1, 0)]
        asked = {"name": "n", "num_partitions": -1, "replication_factor": -1, "assignments": here}
        assert (await client.ask("create_topics", 5, topics=[asked], timeout=1))["topics"][0]["error_code"] == 0
        assert len(door.engine.topics.get("n").partitions) == 2

    with_door(body)


def test_validate_only_and_names_twice() -> None:
    async def body(door: Door) -> None:
        client = await door.client()
        one = {"name": "n", "num_partitions": 4, "replication_factor": 1}
        checked = await client.ask("create_topics", 7, topics=[one], timeout=1, validate_only=True)
        assert (checked["topics"][0]["error_code"], checked["topics"][0]["num_partitions"]) == (0, 4)
        twice = await client.ask("create_topics", 7, topics=[one, one], timeout=1)
        assert [row["error_code"] for row in twice["topics"]] == [BAD_REQUEST, BAD_REQUEST]
        assert len(door.engine.topics) == 0

    with_door(body)


@pytest.mark.parametrize("version", range(delete_topics.API.oldest, delete_topics.API.newest + 1))
def test_delete_topics_of_every_version(version: int) -> None:
    async def body(door: Door) -> None:
        first = await door.topic("a")
        await door.topic("b")
        client = await door.client()
        await client.produce(batch_of(b"x"), topic="a")
        asked = {"topic_names": ["a", "nobody"]} if version < 6 else {"topics": [{"name": "a"}, {"name": "nobody"}]}
        answer = await client.ask("delete_topics", version, timeout=1000, **asked)
        assert [(row["name"], row["error_code"]) for row in answer["responses"]] == [
            ("a", 0),
            ("nobody", UNKNOWN_TOPIC),
        ]
        assert [topic.name for topic in door.engine.topics] == ["b"]
        again = await door.topic("a")
        assert again.topic_id != first.topic_id
        assert (await client.produce(batch_of(b"x"), topic="a"))["base_offset"] == 0

    with_door(body)


def test_delete_by_id() -> None:
    async def body(door: Door) -> None:
        topic = await door.topic()
        client = await door.client()
        asked = [{"name": None, "topic_id": topic.topic_id}, {"name": None, "topic_id": UUID(int=3)}]
        answer = await client.ask("delete_topics", 6, topics=asked, timeout=1)
        assert [(row["error_code"], row["topic_id"]) for row in answer["responses"]] == [
            (0, topic.topic_id),
            (UNKNOWN_ID, UUID(int=3)),
        ]
        assert answer["responses"][0]["name"] == "t"
        assert len(door.engine.topics) == 0

    with_door(body)
