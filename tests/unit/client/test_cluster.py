"""Who leads what, as scripted brokers and a real one say it."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.unit.cli.scripted_broker import Script, ScriptedBroker, scripted_broker

from penstock.client.cluster import EARLIEST, GROUP, LATEST, TRANSACTION, Cluster, Topic
from penstock.client.connection import Connection
from penstock.client.errors import ClientError, Refused, Unreachable
from penstock.client.settings import Settings
from penstock.testing import EmbeddedBroker

ID = uuid.UUID(int=7)


class ScriptedMetadata:
    """What a scripted broker says of itself: topics by name, each a list of leaders or an error code."""

    def __init__(self) -> None:
        self.topics: dict[str, list[int] | int] = {"orders": [1, 1]}
        self.internal: set[str] = set()
        self.brokers: dict[int, tuple[str, int]] = {}
        self.offsets: list[dict[int, tuple[int, int]]] = []
        """Code and offset by partition, answer by answer; the last one stays."""
        self.asked: list[Any] = []

    def metadata(self, request: Any) -> dict[str, Any]:
        self.asked.append(request)
        names = list(self.topics) if request.topics is None else [each.name for each in request.topics]
        return {
            "brokers": [{"node_id": node, "host": host, "port": port} for node, (host, port) in self.brokers.items()],
            "controller_id": min(self.brokers, default=-1),
            "topics": [self._topic(name) for name in names],
        }

    def _topic(self, name: str) -> dict[str, Any]:
        told = self.topics.get(name, 3)
        if isinstance(told, int):
            return {"name": name, "error_code": told, "partitions": []}
        partitions = [{"partition_index": number, "leader_id": leader} for number, leader in enumerate(told)]
        found = {"name": name, "topic_id": ID, "error_code": 0, "is_internal": name in self.internal}
        return found | {"partitions": partitions[::-1]}

    def list_offsets(self, request: Any) -> dict[str, Any]:
        self.asked.append(request)
        told = self.offsets.pop(0) if len(self.offsets) > 1 else self.offsets[0]
        topics = []
        for topic in request.topics:
            rows = [(each.partition_index, *told[each.partition_index]) for each in topic.partitions]
            partitions = [{"partition_index": number, "error_code": code, "offset": at} for number, code, at in rows]
            topics.append({"name": topic.name, "partitions": partitions})
        return {"throttle_time": 0, "topics": topics}


@contextmanager
def reached(
    world: ScriptedMetadata, timeout_s: float = 10.0, **more: Script
) -> Iterator[tuple[ScriptedBroker, Cluster]]:
    scripts = {"metadata": Script(3, 0, 13, world.metadata), "list_offsets": Script(2, 1, 11, world.list_offsets)}
    with scripted_broker(**scripts, **more) as broker:
        world.brokers[1] = (broker.host, broker.port)
        with Cluster(Settings(broker.address, timeout_s=timeout_s)) as cluster:
            yield broker, cluster


def test_topics_that_are_there_and_topics_that_are_not() -> None:
    world = ScriptedMetadata()
    world.topics |= {"inner": [1], "odd": 29}
    world.internal = {"inner"}
    with reached(world) as (_, cluster):
        orders = Topic("orders", ID, (1, 1))
        assert cluster.topics(["orders", "nope", "orders"]) == {"orders": orders}
        assert cluster.topics(name for name in ("inner",)) == {"inner": Topic("inner", ID, (1,))}
        assert cluster.topics(None) == {"orders": orders}
        assert cluster.topics([]) == {}
        with pytest.raises(Refused, match="topic 'odd': topic authorization failed"):
            cluster.topics(["odd"])
    assert not any(each.allow_auto_topic_creation for each in world.asked)
    assert len(world.asked) == 4


def test_leaders_are_waited_for() -> None:
    world = ScriptedMetadata()
    elections: list[list[int] | int] = [5, [1, -1], [1, 1]]

    def elect(request: Any) -> dict[str, Any]:
        world.topics["orders"] = elections.pop(0) if len(elections) > 1 else elections[0]
        return ScriptedMetadata.metadata(world, request)

    world.metadata = elect  # type: ignore[method-assign]
    with reached(world) as (_, cluster):
        assert cluster.topics(["orders"])["orders"].leaders == (1, 1)
    elections[:] = [[1, -1]]
    with reached(world, timeout_s=0.2) as (_, cluster):
        assert cluster.topics(["orders"])["orders"].leaders == (1, -1)
        with pytest.raises(Refused, match="partition 1 of topic 'orders': leader not available") as raised:
            cluster.leader("orders", 1)
        assert raised.value.retriable
        assert cluster.leader("orders", 0).call("metadata", topics=[]).topics == ()
    elections[:] = [5]
    with reached(world, timeout_s=0.2) as (_, cluster), pytest.raises(Refused, match="leader not available"):
        cluster.topics(["orders"])


def test_leaders_are_remembered_until_refreshed() -> None:
    world = ScriptedMetadata()
    with reached(world) as (_, cluster):
        first = cluster.leader("orders", 0)
        assert cluster.leader("orders", 1) is first
        assert len(world.asked) == 1
        world.topics["orders"] = [1, 1, 1]
        cluster.leader("orders", 2)  # a partition one has not heard of is asked about
        assert len(world.asked) == 2
        cluster.refresh()
        assert cluster.leader("orders", 0) is first
        assert len(world.asked) == 3
        del world.topics["orders"]
        assert cluster.leader("orders", 0) is first
        assert cluster.topics(["orders"]) == {}  # whoever has seen that it is gone does not go on with what was
        with pytest.raises(Refused, match="topic 'orders': unknown topic or partition"):
            cluster.leader("orders", 0)


@pytest.mark.parametrize("partition", [2, -1])
def test_a_partition_that_is_not_there(partition: int) -> None:
    with (
        reached(ScriptedMetadata()) as (_, cluster),
        pytest.raises(Refused, match=rf"partition {partition} of .*, which has 2"),
    ):
        cluster.leader("orders", partition)


def test_each_purpose_has_a_connection_of_its_own() -> None:
    """So that a question never meets the answers that a writer has under way."""
    found = {"key": "t", "node_id": 1, "error_code": 0, "error_message": None}
    world = ScriptedMetadata()

    def find(_: Any) -> dict[str, Any]:
        host, port = world.brokers[1]
        return {"coordinators": [found | {"host": host, "port": port}]}

    with reached(world, find_coordinator=Script(10, 0, 4, find)) as (_, cluster):
        leader, coordinator = cluster.leader("orders", 0), cluster.coordinator(TRANSACTION, "t")
        asked = leader.send(3, 12, [b"\x01\0\0\0"], flexible=True)
        assert leader is not coordinator
        cluster.topics(["orders"])
        coordinator.call("metadata", topics=[])
        assert leader.receive(asked, flexible=True)


def test_a_connection_that_ended_is_opened_again() -> None:
    with reached(ScriptedMetadata()) as (_, cluster):
        first = cluster.leader("orders", 0)
        first.close()
        assert cluster.leader("orders", 0).call("metadata", topics=[])
        cluster.disconnect()
        assert cluster.leader("orders", 0).call("metadata", topics=[])


def test_any_broker_will_do(closed_port: int) -> None:
    refusing = f"127.0.0.1:{closed_port}"
    world = ScriptedMetadata()
    with reached(world) as (broker, _), Cluster(Settings(f"{refusing},{broker.address}")) as cluster:
        assert "orders" in cluster.topics(None)
    with Cluster(Settings(f"{refusing},localhost:{closed_port}", timeout_s=5)) as cluster:
        with pytest.raises(Unreachable) as raised:
            cluster.topics(None)
        told = str(raised.value)
        assert f"{refusing} (Connection refused)" in told and f"localhost:{closed_port} (" in told


def test_offsets() -> None:
    world = ScriptedMetadata()
    world.offsets = [{0: (0, 5), 1: (0, -1)}]
    with reached(world) as (_, cluster):
        asked = {("orders", 0): LATEST, ("orders", 1): 1 << 50}
        assert cluster.list_offsets(asked, read_committed=True) == {("orders", 0): 5, ("orders", 1): -1}
        assert cluster.list_offsets({("orders", 0): EARLIEST}, read_committed=False) == {("orders", 0): 5}
        assert cluster.list_offsets({}, read_committed=True) == {}
    _, committed, uncommitted = world.asked
    assert (committed.isolation_level, uncommitted.isolation_level) == (1, 0)
    assert [each.timestamp for each in committed.topics[0].partitions] == [-1, 1 << 50]


def test_offsets_of_a_leader_that_moves() -> None:
    """Only what is missing is asked for again, with fresh leaders."""
    world = ScriptedMetadata()
    world.offsets = [{0: (0, 5), 1: (6, -1)}, {1: (78, -1)}, {1: (0, 9)}]
    with reached(world) as (broker, cluster):
        asked = {("orders", 0): LATEST, ("orders", 1): LATEST}
        assert cluster.list_offsets(asked, read_committed=True) == {("orders", 0): 5, ("orders", 1): 9}
    assert [name for name, _ in broker.asked[1:]] == ["metadata", "list_offsets"] * 3


def test_offsets_of_a_leader_that_is_away(closed_port: int) -> None:
    world = ScriptedMetadata()
    world.brokers[2] = ("127.0.0.1", closed_port)
    world.topics["orders"] = [1, 2]
    world.offsets = [{0: (0, 5), 1: (0, 6)}]
    asked = {("orders", 0): LATEST, ("orders", 1): LATEST}
    with reached(world, timeout_s=0.3) as (_, cluster):
        with pytest.raises(Unreachable, match=f"127.0.0.1:{closed_port}"):
            cluster.list_offsets(asked, read_committed=True)
        world.topics["orders"] = [1, 1]
        assert cluster.list_offsets(asked, read_committed=True) == {("orders", 0): 5, ("orders", 1): 6}


@pytest.mark.parametrize(
    ("place", "told"),
    [
        (("orders", 2), "partition 2 of topic 'orders', which has 2: unknown topic or partition"),
        (("nope", 0), "topic 'nope': unknown topic or partition"),
    ],
)
def test_offsets_of_what_is_not_there(place: tuple[str, int], told: str) -> None:
    world = ScriptedMetadata()
    world.offsets = [{0: (0, 5)}]
    with reached(world) as (broker, cluster), pytest.raises(Refused, match=told):
        cluster.list_offsets({("orders", 0): LATEST, place: LATEST}, read_committed=True)
    assert ("list_offsets", 9) not in broker.asked


@pytest.mark.parametrize(
    ("code", "told"), [(29, "partition 0 of topic 'orders': topic authorization failed"), (6, "not leader")]
)
def test_offsets_refused(code: int, told: str) -> None:
    world = ScriptedMetadata()
    world.offsets = [{0: (code, -1)}]
    with reached(world, timeout_s=0.3) as (_, cluster), pytest.raises(Refused, match=told):
        cluster.list_offsets({("orders", 0): LATEST}, read_committed=True)


def test_offsets_of_many_partitions_are_asked_in_pieces() -> None:
    world = ScriptedMetadata()
    world.topics["orders"] = [1] * 4500
    world.offsets = [{number: (0, number) for number in range(4500)}]
    with reached(world) as (broker, cluster):
        asked = {("orders", number): LATEST for number in range(4500)}
        found = cluster.list_offsets(asked, read_committed=True)
    assert found == {("orders", number): number for number in range(4500)}
    assert [name for name, _ in broker.asked].count("list_offsets") == 3


@pytest.mark.parametrize("partition", [7, -1])
def test_metadata_that_is_none(partition: int) -> None:
    broken = {"name": "orders", "topic_id": ID, "partitions": [{"partition_index": partition, "leader_id": 1}]}
    script = Script(3, 0, 12, lambda _: {"brokers": [], "topics": [broken]})
    with (
        scripted_broker(metadata=script) as broker,
        Cluster(Settings(broker.address)) as cluster,
        pytest.raises(ClientError, match=f"partition {partition} of 1"),
    ):
        cluster.topics(["orders"])


def test_coordinators_are_waited_for_and_remembered() -> None:
    answers = [15, 14, 0, 0]
    world = ScriptedMetadata()

    def find(request: Any) -> dict[str, Any]:
        assert (request.coordinator_keys, request.key_type) == (("g",), GROUP)
        host, port = world.brokers[1]
        found = {"key": "g", "node_id": 1, "host": host, "port": port, "error_code": answers.pop(0)}
        return {"coordinators": [found]}

    with reached(world, find_coordinator=Script(10, 0, 6, find)) as (_, cluster):
        first = cluster.coordinator(GROUP, "g")
        assert cluster.coordinator(GROUP, "g") is first
        assert answers == [0]
        cluster.forget_coordinator(GROUP, "g")
        cluster.forget_coordinator(GROUP, "g")
        assert cluster.coordinator(GROUP, "g") is first
        assert answers == []


def test_a_coordinator_refused() -> None:
    found = {"key": "t", "node_id": -1, "host": "", "port": -1, "error_code": 53, "error_message": "not you"}
    script = Script(10, 0, 4, lambda _: {"coordinators": [found]})
    told = r"transactional id 't': transactional id authorization failed \(not you\)"
    with reached(ScriptedMetadata(), find_coordinator=script) as (_, cluster), pytest.raises(Refused, match=told):
        cluster.coordinator(TRANSACTION, "t")


def test_a_topic_is_made_by_the_controller() -> None:
    world = ScriptedMetadata()
    asked = []

    def create(request: Any) -> dict[str, Any]:
        asked.append(request)
        (topic,) = request.topics
        code = {"orders": 36, "new": 0}.get(topic.name, 40)
        if not code:
            world.topics[topic.name] = [1] * topic.num_partitions
        row = {"name": topic.name, "error_code": code, "error_message": "no such setting" if code == 40 else None}
        return {"throttle_time": 0, "topics": [row]}

    with reached(world, create_topics=Script(19, 2, 7, create)) as (_, cluster):
        cluster.create_topic("new", 3, {"retention.ms": "1"})
        cluster.create_topic("orders", 1, {})
        assert cluster.topics(["new"])["new"].leaders == (1, 1, 1)
        with pytest.raises(Refused, match=r"topic 'bad' cannot be made: invalid config \(no such setting\)"):
            cluster.create_topic("bad", 1, {"x": "y"})
        (made,) = asked[0].topics
        assert (made.num_partitions, made.replication_factor, made.configs[0].value) == (3, 1, "1")
        world.brokers.clear()
        with pytest.raises(Refused, match="not controller"):
            cluster.create_topic("later", 1, {})


def test_a_real_broker(broker: EmbeddedBroker, cluster: Cluster, topic: str) -> None:
    assert cluster.topics([topic]) == {}
    cluster.create_topic(topic, 2, {"retention.ms": "3600000"})
    cluster.create_topic(topic, 5, {})
    found = cluster.topics([topic, f"{topic}-not"])
    assert list(found) == [topic] and len(found[topic].leaders) == 2
    assert found[topic].id != uuid.UUID(int=0)
    assert cluster.topics(None)[topic] == found[topic]
    assert not any(name.startswith("__") for name in cluster.topics(None))
    connection = cluster.leader(topic, 1)
    assert isinstance(connection, Connection) and connection.name == broker.bootstrap
    ends = {(topic, 0): LATEST, (topic, 1): EARLIEST}
    assert cluster.list_offsets(ends, read_committed=True) == {(topic, 0): 0, (topic, 1): 0}
    assert cluster.list_offsets({(topic, 0): 0}, read_committed=False) == {(topic, 0): -1}
    asked = {"transactional_id": topic, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    assert cluster.coordinator(TRANSACTION, topic).call("init_producer_id", **asked).error_code == 0
    assert cluster.controller().call("describe_cluster").brokers[0].broker_id == found[topic].leaders[0]
