"""Kafka's own admin commands with their users' arguments, all in one JVM."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peers.broker import Broker

from .admin_apis import ADMIN_APIS
from .conftest import Admins, Judges, eventually, fresh_name, run_tool
from .records import Record
from .wire import entity_of

Tool = Callable[..., str]


@pytest.fixture
def tool(broker: Broker, judges: Judges) -> Tool:
    """Runs a tool against the broker and hands out what it printed: `tool("TopicCommand", "--list")`."""

    def run(name: str, *arguments: str, code: int = 0, server_first: bool = False) -> str:
        server = ("--bootstrap-server", broker.bootstrap)
        whole = (*server, *arguments) if server_first else (*arguments, *server)
        return run_tool(judges, name, *whole, code=code)

    return run


def overrides(described: str) -> dict[str, str]:
    """The settings at the end of a topic's line in `TopicCommand --describe`."""
    found = re.search(r"Configs: (\S*)", described)
    assert found, described
    # A list has commas of its own.
    pairs = re.findall(r"([a-z.]+)=((?:(?![a-z.]+=)[^,]*,?)*)", found.group(1))
    return {name: value.rstrip(",") for name, value in pairs}


def test_topic_command(tool: Tool, judges: Judges, admins: Admins) -> None:
    topic = fresh_name("command")
    config = ("--config", "retention.ms=1234567", "--config", "max.message.bytes=65432")
    made = tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2", *config)
    assert f"Created topic {topic}." in made
    judges["confluent"].produce(topic, 1, [Record(b"x")] * 7)
    node = admins.java.cluster().controller

    described = tool("TopicCommand", "--describe", "--topic", topic)
    assert overrides(described).items() >= {"retention.ms": "1234567", "max.message.bytes": "65432"}.items()
    assert "PartitionCount: 2\tReplicationFactor: 1" in described
    for partition in (0, 1):
        line = f"Topic: {topic}\tPartition: {partition}\tLeader: {node}\tReplicas: {node}\tIsr: {node}"
        assert line in described
    assert topic in tool("TopicCommand", "--describe", "--topics-with-overrides")
    for troubled in ("--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"):
        assert tool("TopicCommand", "--describe", troubled).strip() == "", troubled

    tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "4")
    assert eventually(lambda: "PartitionCount: 4" in tool("TopicCommand", "--describe", "--topic", topic), bool)
    tool("TopicCommand", "--alter", "--topic", topic, "--partitions", "3", code=1)
    tool("TopicCommand", "--create", "--topic", topic, code=1)
    assert tool("TopicCommand", "--create", "--topic", topic, "--if-not-exists") == ""
    tool("TopicCommand", "--describe", "--topic", fresh_name("never-made"), code=1)

    assert topic in tool("TopicCommand", "--list", "--exclude-internal").split()
    tool("TopicCommand", "--delete", "--topic", topic)
    assert not eventually(lambda: topic in tool("TopicCommand", "--list").split(), lambda there: not there)


def shown(printed: str) -> dict[str, str]:
    """Settings out of what `ConfigCommand --describe` prints."""
    return dict(re.findall(r"^  (\S+?)=(.*) sensitive=\w+ synonyms=", printed, re.MULTILINE))


def test_config_command(tool: Tool, admins: Admins, new_topic: Callable[..., str]) -> None:
    topic = new_topic("settings", **{"max.message.bytes": "65432", "segment.ms": "555555"})
    place = ("--entity-type", "topics", "--entity-name", topic)

    def run(*arguments: str, code: int = 0) -> str:
        return tool("kafka.admin.ConfigCommand", *arguments, code=code)

    whole = run("--describe", "--all", *place)
    assert shown(whole).keys() >= {"cleanup.policy", "compression.type", "retention.bytes", "segment.bytes"}
    assert "max.message.bytes=65432 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=65432, " in whole
    added = "retention.ms=7654321,cleanup.policy=[compact,delete]"
    run("--alter", *place, "--add-config", added, "--delete-config", "max.message.bytes")
    expected = {"retention.ms": "7654321", "cleanup.policy": "compact,delete", "segment.ms": "555555"}
    assert eventually(lambda: shown(run("--describe", *place)), lambda found: found == expected) == expected
    for refused in ("retention.ms=soon", "no.such.setting=1"):
        run("--alter", *place, "--add-config", refused, code=1)
    run("--alter", *place, "--delete-config", "segment.ms,retention.ms,cleanup.policy")
    assert eventually(lambda: shown(run("--describe", *place)), lambda found: found == {}) == {}

    node = str(admins.java.cluster().controller)
    broker = shown(run("--describe", "--all", "--entity-type", "brokers", "--entity-name", node))
    assert broker["node.id"] == node
    assert broker.keys() >= {"log.dirs", "listeners", "num.partitions", "auto.create.topics.enable"}
    run("--alter", "--entity-type", "brokers", "--entity-name", node, "--add-config", "node.id=77", code=1)


def test_get_offset_shell(
    tool: Tool, judges: Judges, admins: Admins, new_topic: Callable[..., str], yesterday_ms: int
) -> None:
    topic = new_topic("shell", partitions=3)
    # The greatest time is not the last one.
    records = [Record(b"v", None, (), yesterday_ms + ms) for ms in (1000, 2000, 9000, 4000, 5000)]
    judges["java"].produce(topic, 0, records)
    judges["java"].produce(topic, 1, records[::-1] * 2)
    judges["java"].produce(topic, 2, records)
    admins.java.delete_records(topic, {2: 4})

    def ask(when: str, *where: str) -> list[str]:
        return sorted(tool("GetOffsetShell", *(where or ("--topic", topic)), "--time", when).split())

    def expected(*offsets: int) -> list[str]:
        return [f"{topic}:{partition}:{offset}" for partition, offset in enumerate(offsets)]

    assert ask("earliest") == ask("-2") == expected(0, 0, 4)
    assert ask("latest") == expected(5, 10, 5)
    assert ask("max-timestamp")[:2] == expected(2, 2), "the first of equals"
    assert ask(str(yesterday_ms + 4500)) == expected(2, 0, 4)
    assert ask(str(yesterday_ms + 8000))[:2] == expected(2, 2)
    assert ask("latest", "--topic-partitions", f"{topic}:1-3") == expected(5, 10, 5)[1:]
    assert ask("latest", "--topic-partitions", f"{topic}:0") == expected(5)


def test_log_dirs_command(broker: Broker, tool: Tool, judges: Judges, new_topic: Callable[..., str]) -> None:
    topic = new_topic("directories", partitions=2)
    judges["confluent"].produce(topic, 1, [Record(b"x" * 1000)] * 5)
    printed = tool("LogDirsCommand", "--describe", "--topic-list", topic)
    (found,) = (json.loads(line) for line in printed.splitlines() if line.startswith("{"))
    ((directory,),) = (each["logDirs"] for each in found["brokers"])
    assert directory["error"] is None
    assert directory["logDir"].startswith(str(broker.log.parent / "data"))
    sizes = {each["partition"]: each["size"] for each in directory["partitions"]}
    assert sizes.keys() == {f"{topic}-0", f"{topic}-1"}
    assert sizes[f"{topic}-0"] == 0
    assert sizes[f"{topic}-1"] > 5000


def test_delete_records_command(tool: Tool, judges: Judges, new_topic: Callable[..., str], tmp_path: Path) -> None:
    topic = new_topic("trim", partitions=2)
    for partition in (0, 1):
        judges["confluent"].produce(topic, partition, [Record(b"v")] * 10)
    places = [{"topic": topic, "partition": 0, "offset": 3}, {"topic": topic, "partition": 1, "offset": -1}]
    (tmp_path / "offsets.json").write_text(json.dumps({"partitions": places, "version": 1}))
    printed = tool("DeleteRecordsCommand", "--offset-json-file", str(tmp_path / "offsets.json"))
    assert f"partition: {topic}-0\tlow_watermark: 3" in printed
    assert f"partition: {topic}-1\tlow_watermark: 10" in printed
    assert [judges["kcat"].earliest(topic, partition) for partition in (0, 1)] == [3, 10]


def test_commands_about_the_cluster(
    broker: Broker, tool: Tool, judges: Judges, admins: Admins, new_topic: Callable[..., str]
) -> None:
    cluster = admins.java.cluster()
    assert cluster.cluster_id in tool("ClusterTool", "cluster-id")
    assert re.search(r"127\.0\.0\.1\s+\d+\s+null\s+unfenced\s+broker", tool("ClusterTool", "list-endpoints"))
    features = tool("FeatureCommand", "describe", server_first=True)
    assert re.search(r"Feature: metadata\.version .*FinalizedVersionLevel: 4\.", features)
    versions = tool("BrokerApiVersionsCommand")
    assert broker.bootstrap in versions
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    for api, (first, last) in ADMIN_APIS.items():
        key = entity_of(api, first, "request").__api_key__
        spoken = str(first) if first == last else f"{first} to {last}"
        assert f"({key}): {spoken} [usable: {last}]" in versions, api
    topic = new_topic("producers")
    judges["java"].produce(topic, 0, [Record(b"v")] * 4, idempotent=True)
    place = ("--topic", topic, "--partition", "0")
    printed = tool("TransactionsCommand", "describe-producers", *place, server_first=True)
    assert re.search(r"^\d+\s+0\s+-1\s+3\s+\d+\s+None", printed, re.MULTILINE)


def test_producer_performance(broker: Broker, tool: Tool, judges: Judges, new_topic: Callable[..., str]) -> None:
    topic = new_topic("performance")
    load = ("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    printed = tool("ProducerPerformance", *load, "--command-property", "compression.type=zstd", "acks=all")
    assert printed.splitlines()[-1].startswith("2000 records sent, ")
    received = judges["kcat"].read(topic, 0, 0, 2000)
    assert {len(each.value or b"") for each in received} == {100}
