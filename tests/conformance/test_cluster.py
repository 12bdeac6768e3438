"""What a cluster says of itself: brokers, features, log directories, topics page by page, producers."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.peers.broker import Broker

from .clients import ADMINS, ClientError
from .clients.confluent import settle
from .clients.confluent_admin import ConfluentAdmin
from .clients.kafka_python_admin import KafkaPythonAdmin
from .conftest import Admins, Judges, eventually, fresh_name, segment_files
from .records import Record

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_REQUEST = 42
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def confluent(admins: Admins) -> ConfluentAdmin:
    admin = admins["confluent"]
    assert isinstance(admin, ConfluentAdmin)
    return admin


def kafka_python(admins: Admins) -> KafkaPythonAdmin:
    admin = admins["kafka-python"]
    assert isinstance(admin, KafkaPythonAdmin)
    return admin


@pytest.mark.parametrize("name", ADMINS)
def test_every_client_sees_the_same_cluster(broker: Broker, admins: Admins, name: str) -> None:
    found = admins[name].cluster()
    host, port = broker.bootstrap.rsplit(":", 1)
    assert [(each_host, each_port) for _node, each_host, each_port in found.nodes] == [(host, int(port))]
    assert found.controller == found.nodes[0][0]
    assert found == admins["confluent"].cluster()
    assert found.cluster_id


def test_without_access_control_everything_is_allowed(admins: Admins, new_topic: Callable[..., str]) -> None:
    found = admins.java.ask("describeCluster")
    assert [fenced for *_node, fenced in found["nodes"]] == [False]
    assert {"DESCRIBE", "DESCRIBE_CONFIGS", "ALTER", "ALTER_CONFIGS", "CREATE"} <= set(found["operations"])
    topic = new_topic("allowed")
    operations = described(admins, topic)[topic]["operations"]
    assert {"READ", "WRITE", "CREATE", "DELETE", "DESCRIBE", "ALTER_CONFIGS"} <= set(operations)


def test_features(admins: Admins) -> None:
    found = admins.java.ask("describeFeatures")
    assert found["epoch"] >= 0
    assert found["finalized"]
    for name, level in found["finalized"].items():
        low, high = found["supported"][name]
        assert low <= level <= high, name
    seen = kafka_python(admins).client.describe_features()
    for name, level in found["finalized"].items():
        assert (seen[name]["finalized"][1], seen[name]["finalized_epoch"]) == (level, found["epoch"]), name


def described(admins: Admins, *topics: str, limit: int = 2000) -> dict[str, Any]:
    return dict(admins.java.ask("describeTopics", topics=topics, limit=limit)["topics"])


def test_topics_described_page_by_page(admins: Admins, new_topic: Callable[..., str]) -> None:
    large, small = new_topic("large", partitions=40), new_topic("small", partitions=3)
    node = admins.java.cluster().controller
    whole = described(admins, large, small)
    assert [each["partition"] for each in whole[large]["partitions"]] == list(range(40))
    assert [each["partition"] for each in whole[small]["partitions"]] == list(range(3))
    for topic in (large, small):
        for each in whole[topic]["partitions"]:
            assert (each["leader"], each["replicas"], each["isr"]) == (node, [node], [node])
    for limit in (1, 7, 40, 43):
        assert described(admins, large, small, limit=limit) == whole, limit
    with pytest.raises(ClientError) as failure:
        described(admins, small, fresh_name("never-made"))
    assert failure.value.code == UNKNOWN_TOPIC_OR_PARTITION


def test_pages_by_hand(admins: Admins, new_topic: Callable[..., str]) -> None:
    first, second = sorted(new_topic("pages", partitions=4) for _ in range(2))
    client = kafka_python(admins).client
    pages: list[tuple[str, list[int]]] = []
    cursor = None
    while True:
        answer = client.describe_topic_partitions([second, first], response_partition_limit=3, cursor=cursor)
        pages += [
            (topic["name"], [each["partition_index"] for each in topic["partitions"]]) for topic in answer["topics"]
        ]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
        assert len(pages) < 20, pages
    # Topics come in the order of their names, and a page ends where it is full.
    assert pages == [(first, [0, 1, 2]), (first, [3]), (second, [0, 1]), (second, [2, 3])]


def test_topics_have_one_identity(judges: Judges, admins: Admins, new_topic: Callable[..., str]) -> None:
    topic = new_topic("identity", partitions=2)
    names = admins.java.ask("listTopics", internal=True)["topics"]
    assert set(names) >= {topic}
    assert not names[topic]["internal"]
    found = described(admins, topic)[topic]
    assert found["id"] == names[topic]["id"]
    other = settle(confluent(admins).client.describe_topics(TopicCollection([topic]))[topic])
    # librdkafka writes the id in the other base64.
    assert str(other.topic_id).translate(str.maketrans("+/", "-_")) == found["id"]
    assert [each.id for each in other.partitions] == [0, 1]
    assert all(each.leader.id == admins.java.cluster().controller for each in other.partitions)
    judges["confluent"].delete_topic(topic)
    assert (
        eventually(lambda: topic in admins.java.ask("listTopics", internal=False)["topics"], lambda there: not there)
        is False
    )


def test_offsets_by_admin(judges: Judges, admins: Admins, new_topic: Callable[..., str], yesterday_ms: int) -> None:
    topic = new_topic("offsets")
    judges["java"].produce(topic, 0, [Record(b"v", None, (), yesterday_ms + n * 1000) for n in range(10)])
    admins["confluent"].delete_records(topic, {0: 2})
    place, client = TopicPartition(topic, 0), confluent(admins).client

    def ask(spec: OffsetSpec) -> tuple[int, int]:
        found = settle(client.list_offsets({place: spec})[place])
        return found.offset, found.timestamp

    assert ask(OffsetSpec.earliest())[0] == 2
    assert ask(OffsetSpec.latest())[0] == 10
    assert ask(OffsetSpec.max_timestamp()) == (9, yesterday_ms + 9000)
    assert ask(OffsetSpec.for_timestamp(yesterday_ms + 4500)) == (5, yesterday_ms + 5000)


def test_log_directories(broker: Broker, judges: Judges, admins: Admins, new_topic: Callable[..., str]) -> None:
    topic = new_topic("directories", partitions=2)
    judges["confluent"].produce(topic, 1, [Record(b"x" * 10_000, b"k")] * 20)
    (directory,) = admins.java.ask("describeLogDirs", broker=admins.java.cluster().controller)["directories"]
    assert directory["error"] is None
    assert directory["path"].startswith(str(broker.log.parent / "data"))
    assert 0 < directory["usable"] <= directory["total"]
    assert directory["cordoned"] is False
    replicas = {
        partition: (size, lag, future) for name, partition, size, lag, future in directory["replicas"] if name == topic
    }
    size = sum(each.stat().st_size for each in segment_files(broker, topic, 1))
    assert replicas == {0: (0, 0, False), 1: (size, 0, False)}
    assert size > 200_000

    (seen,) = kafka_python(admins).client.describe_log_dirs({topic: [1]})
    (only,) = seen["log_dirs"]
    (found,) = only["topics"]
    assert (found["name"], [each["partition_index"] for each in found["partitions"]]) == (topic, [1])
    assert found["partitions"][0]["partition_size"] == size


def test_producers(judges: Judges, admins: Admins, new_topic: Callable[..., str], yesterday_ms: int) -> None:
    topic = new_topic("producers", partitions=2)
    records = [Record(b"%d" % n, None, (), yesterday_ms + n) for n in range(7)]

    def ask(partition: int) -> list[dict[str, int]]:
        return list(admins.java.ask("describeProducers", topic=topic, partition=partition)["producers"])

    assert ask(0) == []
    judges["confluent"].produce(topic, 0, records)  # no producer id, so nothing to tell
    assert ask(0) == []
    judges["java"].produce(topic, 0, records, idempotent=True)
    judges["confluent"].produce(topic, 0, records[:3], idempotent=True)
    found = ask(0)
    assert sorted((each["epoch"], each["sequence"], each["transaction"]) for each in found) == [(0, 2, -1), (0, 6, -1)]
    assert sorted(each["timestamp"] for each in found) == [yesterday_ms + 2, yesterday_ms + 6]
    assert len({each["id"] for each in found}) == 2
    assert ask(1) == []


def test_resources_with_settings(admins: Admins, new_topic: Callable[..., str]) -> None:
    topic = new_topic("resource")
    node = admins.java.cluster().controller

    def ask(*kinds: int) -> set[tuple[int, str]]:
        found = admins.java.ask("listConfigResources", types=kinds)
        assert found["clientMetrics"] == 0
        return {(kind, name) for kind, name in found["resources"]}

    everything = ask()
    assert everything >= {(TOPIC, topic), (BROKER, str(node))}
    assert ask(TOPIC) == {each for each in everything if each[0] == TOPIC}
    assert (BROKER, str(node)) in ask(BROKER)
    assert ask(CLIENT_METRICS, GROUP) == set()
