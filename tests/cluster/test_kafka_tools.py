"""Kafka's own tools run a cluster: partitions move and stay, leaders come back, settings change, brokers are forgotten.

All tools run in one JVM, which is what each of them would spend most of its time on.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chaos.load import QUICK, read_everything, wait_until
from tests.cluster.cluster_process import ClusterProcess
from tests.cluster.faults import CLEAN_EXITS
from tests.cluster.penstock_cluster import PenstockCluster
from tests.conformance.clients import JavaClient

Tool = Callable[..., str]
RECORDS = 600
VALUE_BYTES = 1000
CALL_S = 60.0
MOVED_IN_8_S = RECORDS * VALUE_BYTES // 8
COMMITTED = {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False, **QUICK}
SLOW = "1000"
"""Bytes a second at which nothing arrives while a test looks."""


@pytest.fixture(scope="module")
def java(started_cluster: ClusterProcess) -> Iterator[JavaClient]:
    made = JavaClient(started_cluster.bootstrap)
    yield made
    made.close()


def run_tool(java: JavaClient, cluster: ClusterProcess, name: str, *arguments: str, code: int = 0) -> str:
    """What a tool printed."""
    main = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
    server = ("--bootstrap-server", cluster.bootstrap)
    # One of them wants its verb first, one its server; the others do not mind.
    given = (*server, *arguments) if name == "TransactionsCommand" else (*arguments, *server)
    answer = java.ask("tool", main=main, arguments=given)
    assert answer["code"] == code, answer
    return f"{answer['output']}{answer['complaint']}"


@pytest.fixture
def tool(cluster: ClusterProcess, java: JavaClient) -> Tool:
    """Runs a tool against the cluster: `tool("LeaderElectionCommand", "--election-type", "preferred")`."""
    return partial(run_tool, java, cluster)


def create(cluster: ClusterProcess, topic: str, assignment: Sequence[Sequence[int]]) -> None:
    """A topic on these brokers; returns when all of them are in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 3})
    brokers = [list(each) for each in assignment]
    config = cluster.smallest_segments
    wanted = NewTopic(topic, num_partitions=len(brokers), replica_assignment=brokers, config=config)
    admin.create_topics([wanted])[topic].result(CALL_S)
    wait_until(lambda: len(cluster.view(topic) or {}) == len(assignment), CALL_S, f"all know {topic}")
    wait_until(lambda: is_on(cluster, topic, assignment), CALL_S, f"{topic} in sync")


def is_on(cluster: ClusterProcess, topic: str, assignment: Sequence[Sequence[int]]) -> bool:
    """Whether all agree that the partitions are on these brokers and in sync there."""
    view = cluster.view(topic)
    return view is not None and all(
        view[index].is_whole and view[index].replicas == tuple(brokers) for index, brokers in enumerate(assignment)
    )


def write(cluster: ClusterProcess, topic: str, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, **QUICK})
    for index in range(RECORDS):
        value = hashlib.sha256(b"%d" % index).hexdigest() * (VALUE_BYTES // 64)
        producer.produce(topic, value.encode(), key=b"%d" % index, partition=index % partitions)
    assert producer.flush(CALL_S) == 0


def digest(cluster: ClusterProcess, topic: str, partitions: int) -> str:
    """Of every record of a topic."""
    told = hashlib.sha256()
    records = 0
    for index, log in sorted(read_everything(cluster.bootstrap, topic, partitions).items()):
        records += len(log.records)
        told.update(f"{index} {log.records}".encode())
    assert records == RECORDS
    return told.hexdigest()


def plan(directory: Path, topic: str, assignment: Sequence[Sequence[int]]) -> str:
    """The file the tool for moves reads."""
    moves = [{"topic": topic, "partition": index, "replicas": brokers} for index, brokers in enumerate(assignment)]
    path = directory / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": moves}))
    return str(path)


def holders(cluster: ClusterProcess, topic: str) -> set[int]:
    """Brokers with files of a topic's partitions."""
    kept = f"{topic}-*/*.log" if cluster.name == "kafka" else f"logs/{topic}/*/*.log"
    data = {number: node.log.parent / f"data-{number}" for number, node in cluster.nodes.items()}
    return {number for number, directory in data.items() if any(directory.glob(kept))}


def shown(printed: str) -> Mapping[str, str]:
    """Settings out of what `ConfigCommand --describe` prints."""
    return dict(re.findall(r"^  (\S+?)=(.*) sensitive=\w+ synonyms=", printed, re.MULTILINE))


def configs(tool: Tool, *arguments: str, code: int = 0) -> str:
    return tool("kafka.admin.ConfigCommand", *arguments, code=code)


def wait_throttles(tool: Tool, topic: str, expected: set[str]) -> None:
    """Wait until the broker that is asked has these; the one that was told to change them knows of it first."""
    wait_until(lambda: throttles(tool, topic) == expected, CALL_S, f"{topic} and brokers have throttles {expected}")


def throttles(tool: Tool, topic: str) -> set[str]:
    """Settings about throttling that are left of the topic and any broker."""
    of_topic = configs(tool, "--describe", "--entity-type", "topics", "--entity-name", topic)
    of_brokers = configs(tool, "--describe", "--entity-type", "brokers")
    return {name for name in (*shown(of_topic), *shown(of_brokers)) if "throttled" in name}


def test_partitions_move_with_all_their_records(cluster: ClusterProcess, tool: Tool, tmp_path: Path) -> None:
    topic, before, after = "moving", [[1, 2], [2, 1]], [[3, 2], [2, 3]]
    create(cluster, topic, before)
    write(cluster, topic, len(before))
    records = digest(cluster, topic, len(before))
    command = ("reassign.ReassignPartitionsCommand", "--reassignment-json-file", plan(tmp_path, topic, after))

    assert "Successfully started" in tool(*command, "--execute", "--throttle", str(MOVED_IN_8_S))
    limited = {
        f"{side}.replication.throttled.{what}" for side in ("leader", "follower") for what in ("rate", "replicas")
    }
    wait_throttles(tool, topic, limited)
    assert f"Reassignment of partition {topic}-0 is still in progress." in tool(*command, "--verify")
    listed = tool("reassign.ReassignPartitionsCommand", "--list")
    assert re.search(rf"{topic}-0: replicas: 3,2,1\. adding: 3\. removing: 1\.", listed), listed

    wait_until(lambda: is_on(cluster, topic, after), CALL_S, f"{topic} on brokers 2 and 3")
    verified = tool(*command, "--verify")
    for index in range(len(after)):
        assert f"Reassignment of partition {topic}-{index} is completed." in verified
    wait_throttles(tool, topic, set())
    assert "No partition reassignments found." in tool("reassign.ReassignPartitionsCommand", "--list")
    wait_until(lambda: holders(cluster, topic) == {2, 3}, CALL_S, "broker 1 has removed its files")
    assert digest(cluster, topic, len(after)) == records


def test_a_move_is_taken_back(cluster: ClusterProcess, tool: Tool, tmp_path: Path) -> None:
    topic, before = "staying", [[1, 2], [2, 1]]
    create(cluster, topic, before)
    write(cluster, topic, len(before))
    records = digest(cluster, topic, len(before))
    command = (
        "reassign.ReassignPartitionsCommand",
        "--reassignment-json-file",
        plan(tmp_path, topic, [[3, 1], [3, 2]]),
    )
    tool(*command, "--execute", "--throttle", SLOW)
    other = tmp_path / "other"
    other.mkdir()
    again = ("reassign.ReassignPartitionsCommand", "--reassignment-json-file", plan(other, topic, [[1, 3], [2, 3]]))
    assert "Cannot execute because there is an existing partition assignment" in tool(*again, "--execute", code=1)

    assert f"Successfully cancelled partition reassignments for: {topic}-0,{topic}-1" in tool(*command, "--cancel")
    wait_until(lambda: is_on(cluster, topic, before), CALL_S, f"{topic} where it was")
    assert "No partition reassignments found." in tool("reassign.ReassignPartitionsCommand", "--list")
    wait_throttles(tool, topic, set())
    wait_until(lambda: holders(cluster, topic) == {1, 2}, CALL_S, "broker 3 has removed its files")
    assert digest(cluster, topic, len(before)) == records


def test_a_move_nobody_can_make_is_refused(cluster: ClusterProcess, tool: Tool, tmp_path: Path) -> None:
    topic = "unmoved"
    create(cluster, topic, [[1, 2]])
    command = "reassign.ReassignPartitionsCommand"
    file = plan(tmp_path, topic, [[1, 9]])
    assert "Unknown broker id 9" in tool(command, "--execute", "--reassignment-json-file", file, code=1)
    file = plan(tmp_path, topic, [[1, 2, 3]])
    refused = tool(
        *(command, "--execute", "--reassignment-json-file", file, "--disallow-replication-factor-change"), code=1
    )
    assert re.search(rf"{topic}-0(: .*from 2 to 3| has 2 replicas and would have 3)", refused), refused
    assert is_on(cluster, topic, [[1, 2]])


def test_leaders_come_back_after_a_restart(cluster: ClusterProcess, tool: Tool) -> None:
    topic = "led"
    create(cluster, topic, [[1, 2, 3], [2, 3, 1]])
    place = ("--topic", topic, "--partition", "0")
    preferred = ("LeaderElectionCommand", "--election-type", "preferred")
    assert f"Valid replica already elected for partitions {topic}-0" in tool(*preferred, *place)

    node = cluster.nodes[1]
    assert node.stop() in CLEAN_EXITS
    cluster.wait_moved(1, topic)
    assert "PreferredLeaderNotAvailableException" in tool(*preferred, *place, code=1)
    node.start()
    cluster.wait_whole(topic)
    assert cluster.leader(topic, 0) != 1
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in tool(*preferred, *place)
    wait_until(lambda: cluster.leader(topic, 0) == 1, CALL_S, "all brokers have heard of the election")

    tool(*preferred, "--all-topic-partitions")  # internal topics too
    unclean = ("LeaderElectionCommand", "--election-type", "unclean", *place)
    assert f"Valid replica already elected for partitions {topic}-0" in tool(*unclean)
    assert cluster.leader(topic, 0) == 1


def test_settings_of_brokers_change_while_they_run(cluster: ClusterProcess, tool: Tool) -> None:
    topic = "settings"
    create(cluster, topic, [[1, 2]])
    one, everyone = ("--entity-type", "brokers", "--entity-name", "2"), ("--entity-type", "brokers", "--entity-default")
    rate, retention = "follower.replication.throttled.rate", "log.retention.ms"

    configs(tool, "--alter", *everyone, "--add-config", f"{rate}=7000000,{retention}=86400000")
    configs(tool, "--alter", *one, "--add-config", f"{rate}=8000000")
    both = {rate: "7000000", retention: "86400000"}
    wait_until(lambda: shown(configs(tool, "--describe", *everyone)).items() >= both.items(), CALL_S, "settings of all")
    first, second = f"DYNAMIC_BROKER_CONFIG:{rate}=8000000", f"DYNAMIC_DEFAULT_BROKER_CONFIG:{rate}=7000000"
    wait_until(lambda: f"synonyms={{{first}, {second}" in configs(tool, "--describe", *one), CALL_S, "settings of one")
    assert shown(configs(tool, "--describe", *one))[rate] == "8000000"
    inherited = f"retention.ms=86400000 sensitive=false synonyms={{DYNAMIC_DEFAULT_BROKER_CONFIG:{retention}"
    of_topic = ("--describe", "--all", "--entity-type", "topics", "--entity-name", topic)
    wait_until(lambda: inherited in configs(tool, *of_topic), CALL_S, "settings of a topic")

    assert "node.id" in configs(tool, "--alter", *one, "--add-config", "node.id=7", code=1)
    configs(tool, "--alter", *one, "--add-config", f"{rate}=fast", code=1)
    configs(tool, "--alter", *one, "--delete-config", rate)
    configs(tool, "--alter", *everyone, "--delete-config", f"{rate},{retention}")
    for who in (everyone, one):
        wait_until(
            lambda who=who: shown(configs(tool, "--describe", *who)).keys().isdisjoint({rate, retention}),
            CALL_S,
            "no settings left",
        )


def test_a_broker_is_forgotten_when_it_is_empty_and_stopped(java: JavaClient, tmp_path: Path) -> None:
    """In a cluster of its own: the others' internal topics would be in the way."""
    with PenstockCluster(tmp_path, members=1) as cluster:
        cluster.start()
        tool = partial(run_tool, java, cluster)
        unregister = ("ClusterTool", "unregister", "--id")
        assert "broker 3 is running; stop it first" in tool(*unregister, "3", code=1)
        assert "broker 9 is unknown" in tool(*unregister, "9", code=1)
        create(cluster, "held", [[1, 3]])
        assert "broker 3 holds 1 partitions (held-0)" in tool(*unregister, "3", code=1)

        file = plan(tmp_path, "held", [[1, 2]])
        tool("reassign.ReassignPartitionsCommand", "--execute", "--reassignment-json-file", file)
        wait_until(lambda: is_on(cluster, "held", [[1, 2]]), CALL_S, "held on brokers 1 and 2")
        assert cluster.nodes[3].stop() == 0
        assert "Broker 3 is no longer registered." in tool(*unregister, "3")
        assert "broker 3 is unknown" in tool(*unregister, "3", code=1)
        cluster.start()  # as a new one


def test_a_transaction_is_aborted_where_it_is_open(cluster: ClusterProcess, tool: Tool) -> None:
    """Its leader and its coordinator may be two brokers, and both go on with the producer afterwards."""
    create(cluster, "aborted", [[2, 1, 3]])
    place = ("--topic", "aborted", "--partition", "0")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "aborted", **QUICK})
    producer.init_transactions(CALL_S)
    producer.begin_transaction()
    producer.produce("aborted", b"aborted", partition=0)
    assert producer.flush(CALL_S) == 0
    tool("TransactionsCommand", "abort", *place, "--start-offset", "0")
    assert stable_offset(cluster, "aborted") == 2
    producer.abort_transaction(CALL_S)
    producer.begin_transaction()
    producer.produce("aborted", b"committed", partition=0)
    producer.commit_transaction(CALL_S)
    wait_until(lambda: committed_values(cluster, "aborted") == [b"committed"], CALL_S, "what is committed is read")


def stable_offset(cluster: ClusterProcess, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic, **COMMITTED})
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), CALL_S)[1]
        return end
    finally:
        consumer.close()


def committed_values(cluster: ClusterProcess, topic: str) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic, **COMMITTED})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    try:
        while True:
            message = consumer.poll(CALL_S)
            assert message is not None, "the end was not reached"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF
                return values
            values.append(message.value())
    finally:
        consumer.close()
