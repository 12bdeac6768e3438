"""The cluster as its brokers tell of it, and what is asked of them, over the wire."""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from penstock.cli.cluster_changes import alter_config, cancel_moves, elect, start_moves, unregister
from penstock.cli.cluster_view import CORDON, THROTTLE, View
from penstock.cli.connection import Refused, Server
from penstock.cluster.plans import Move
from penstock.protocols.kafka_wire.messages import Message

from .conftest import Run
from .scripted_broker import Script, ScriptedBroker, scripted_broker

NAMES = {"a": 2, "b": 1}


class ScriptedAnswers:
    """What the scripted broker says; `asked` are the requests that change something."""

    def __init__(self) -> None:
        self.asked: list[Message] = []
        self.address = ("", 0)
        self.closed_port = 0
        self.alter_code = 0

    def scripts(self) -> dict[str, Script]:
        return {
            "describe_cluster": Script(60, 0, 2, self.describe_cluster),
            "describe_topic_partitions": Script(75, 0, 0, self.describe_topics),
            "list_partition_reassignments": Script(46, 0, 0, self.list_moves),
            "describe_configs": Script(32, 1, 4, self.describe_configs),
            "describe_log_dirs": Script(35, 1, 4, self.describe_disk),
            "alter_partition_reassignments": Script(45, 0, 1, self.alter_moves),
            "elect_leaders": Script(43, 0, 2, self.elect),
            "unregister_broker": Script(64, 0, 0, self.unregister),
            "incremental_alter_configs": Script(44, 0, 1, self.alter_configs),
        }

    def describe_cluster(self, _: Message) -> Mapping[str, Any]:
        host, port = self.address
        brokers = [
            {"broker_id": 1, "host": host, "port": port, "rack": "r1", "is_fenced": False},
            {"broker_id": 2, "host": host, "port": self.closed_port, "rack": None, "is_fenced": False},
            {"broker_id": 3, "host": host, "port": port, "rack": None, "is_fenced": True},
        ]
        return {"error_code": 0, "cluster_id": "c", "controller_id": 1, "brokers": brokers}

    def describe_topics(self, request: Message) -> Mapping[str, Any]:
        """One partition a page."""
        at = request.cursor
        name, index = (at.topic_name, at.partition_index) if at is not None else ("a", 0)
        places = [(topic, each) for topic, count in NAMES.items() for each in range(count)]
        following = places[places.index((name, index)) + 1 :]
        partition = {
            "error_code": 0,
            "partition_index": index,
            "leader_id": 1,
            "leader_epoch": 7,
            "replica_nodes": [2, 1, 9],
            "isr_nodes": [1, 9],
            "eligible_leader_replicas": None,
            "last_known_elr": None,
            "offline_replicas": [],
        }
        return {
            "topics": [{"error_code": 0, "name": name, "is_internal": False, "partitions": [partition]}],
            "next_cursor": {"topic_name": following[0][0], "partition_index": following[0][1]} if following else None,
        }

    def list_moves(self, _: Message) -> Mapping[str, Any]:
        moving = {"partition_index": 1, "replicas": [2, 1, 9], "adding_replicas": [2], "removing_replicas": [9]}
        return {"error_code": 0, "error_message": None, "topics": [{"name": "a", "partitions": [moving]}]}

    def describe_configs(self, request: Message) -> Mapping[str, Any]:
        def value(name: str, text: str, source: int) -> Mapping[str, Any]:
            fields = {"read_only": False, "is_sensitive": False, "synonyms": [], "config_type": 2}
            return {"name": name, "value": text, "config_source": source, "documentation": None, **fields}

        results = []
        for each in request.resources:
            configs = [value("min.insync.replicas", "2", 5)]
            if each.resource_type == 4:
                configs = [value(CORDON, "drained", 2), value(THROTTLE, "9", 3)]
            fields = {"resource_type": each.resource_type, "resource_name": each.resource_name}
            results.append({"error_code": 0, "error_message": None, "configs": configs, **fields})
        return {"results": results}

    def describe_disk(self, _: Message) -> Mapping[str, Any]:
        sizes = [{"partition_index": each, "partition_size": 10 + each, "offset_lag": 0} for each in range(2)]
        result = {"error_code": 0, "log_dir": "d", "topics": [{"name": "a", "partitions": sizes}]}
        return {"error_code": 0, "results": [{**result, "total_bytes": 1000, "usable_bytes": 400}]}

    def alter_moves(self, request: Message) -> Mapping[str, Any]:
        self.asked.append(request)
        answers = [
            {"partition_index": 0, "error_code": 0, "error_message": None},
            {"partition_index": 1, "error_code": 39, "error_message": "broker 7 is unknown"},
            {"partition_index": 2, "error_code": 85, "error_message": None},
        ]
        return {"error_code": 0, "error_message": None, "responses": [{"name": "a", "partitions": answers}]}

    def elect(self, request: Message) -> Mapping[str, Any]:
        self.asked.append(request)
        answers = [
            {"partition_id": 0, "error_code": 0, "error_message": None},
            {"partition_id": 1, "error_code": 84, "error_message": "not needed"},
            {"partition_id": 2, "error_code": 80, "error_message": None},
        ]
        return {"error_code": 0, "replica_election_results": [{"topic": "a", "partition_result": answers}]}

    def unregister(self, request: Message) -> Mapping[str, Any]:
        return {"error_code": 0 if request.broker_id == 1 else 42, "error_message": "it is running"}

    def alter_configs(self, request: Message) -> Mapping[str, Any]:
        self.asked.append(request)
        named = [
            {"resource_type": each.resource_type, "resource_name": each.resource_name} for each in request.resources
        ]
        return {"responses": [{"error_code": self.alter_code, "error_message": None, **each} for each in named]}


@pytest.fixture
def world() -> ScriptedAnswers:
    return ScriptedAnswers()


@pytest.fixture
def view(world: ScriptedAnswers, closed_port: int) -> Iterator[View]:
    with scripted_broker(**world.scripts()) as broker:
        world.address, world.closed_port = (broker.host, broker.port), closed_port
        with View(Server(broker.address, "a test", timeout_s=5)) as found:
            yield found


def test_a_picture_of_all_pages_and_brokers(view: View) -> None:
    found = view.fetch()
    assert [each.name for each in found.partitions] == ["a-0", "a-1", "b-0"]
    assert {each.min_isr for each in found.partitions} == {2}
    (moving,) = found.moving
    assert (moving.name, moving.adding, moving.removing, moving.expected) == ("a-1", (2,), (9,), (1, 9))
    assert {each.id: (each.is_up, each.answers) for each in found.brokers.values()} == {
        1: (True, True),
        2: (True, False),  # nobody listens there
        3: (False, False),
        9: (False, False),  # known only by what it holds
    }
    one = found.brokers[1]
    assert (one.cordon, one.throttle, one.disk_bytes, one.free_bytes) == ("drained", None, 1000, 400)
    assert one.sizes == {("a", 0): 10, ("a", 1): 11}
    assert found.size_of(moving) == 11


def test_what_is_set_for_one_broker_and_for_all(view: View) -> None:
    assert view.ask_config(1) == {CORDON: "drained"}
    assert view.ask_config(None) == {THROTTLE: "9"}


def test_moves_and_their_refusals(view: View, world: ScriptedAnswers) -> None:
    refused = start_moves(view, [Move("a", at, (1,), (2,)) for at in range(3)])
    assert refused == {("a", 1): "broker 7 is unknown"}
    cancel_moves(view, [("a", 0)])
    first, second = world.asked
    assert [each.replicas for each in first.topics[0].partitions] == [(2,)] * 3
    assert second.topics[0].partitions[0].replicas is None


def test_elections_and_their_refusals(view: View, world: ScriptedAnswers) -> None:
    done, refused = elect(view, [("a", at) for at in range(3)], unclean=True)
    assert done == [("a", 0)]
    assert refused == {("a", 2): "preferred leader not available"}
    elect(view, None)
    assert [(each.election_type, each.topic_partitions is None) for each in world.asked] == [(1, False), (0, True)]


def test_a_broker_is_forgotten_or_not(view: View) -> None:
    unregister(view, 1)
    with pytest.raises(Refused, match="broker 2 cannot be forgotten: it is running"):
        unregister(view, 2)


def test_settings_are_set_and_unset(view: View, world: ScriptedAnswers) -> None:
    alter_config(view, None, {"a": "1", "b": None})
    (request,) = world.asked
    (resource,) = request.resources
    assert resource.resource_name == ""
    assert [(each.name, each.config_operation, each.value) for each in resource.configs] == [
        ("a", 0, "1"),
        ("b", 1, None),
    ]


LEADER_NOT_AVAILABLE, NOT_ALLOWED_TO_KNOW, NO_CLUSTER = 5, 31, 42


@pytest.mark.parametrize(
    ("code", "answers"), [(0, True), (LEADER_NOT_AVAILABLE, False), (NOT_ALLOWED_TO_KNOW, True), (NO_CLUSTER, True)]
)
def test_whether_the_metadata_store_answers(code: int, answers: bool, view: View, world: ScriptedAnswers) -> None:
    world.alter_code = code
    assert view.fetch(sizes=False).store_answers
    assert world.asked == []
    assert view.fetch(sizes=False, store=True).store_answers == answers
    (request,) = world.asked
    assert request.validate_only
    assert [(each.resource_type, each.resource_name, each.configs) for each in request.resources] == [(4, "", ())]


def test_a_store_that_never_answers_is_not_waited_for(
    view: View, world: ScriptedAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.cluster_view.STORE_WITHIN_S", 0.2)
    blocked = threading.Event()

    def never(_: Message) -> Mapping[str, Any]:
        blocked.wait(60)
        return {}

    with scripted_broker(**{**world.scripts(), "incremental_alter_configs": Script(44, 0, 1, never)}) as stuck:
        with View(Server(stuck.address, "a test", timeout_s=30)) as found:
            begun = time.monotonic()
            assert not found.does_store_answer()
            assert time.monotonic() - begun < 10
        blocked.set()


def test_a_broker_gives_up_before_we_do(view: View, world: ScriptedAnswers) -> None:
    start_moves(view, [Move("a", 0, (1,), (2,))])
    elect(view, None)
    assert [each.get("timeout") for each in world.asked] == [4000, 4000]


def test_other_brokers_are_asked_when_the_one_that_was_named_has_gone(world: ScriptedAnswers, closed_port: int) -> None:
    first = ScriptedBroker(world.scripts())
    with scripted_broker(**world.scripts()) as second:
        world.address, world.closed_port = (second.host, second.port), closed_port
        with View(Server(first.address, "a test", timeout_s=5)) as view:
            view.fetch(sizes=False)
            first.close()
            view.cluster.__exit__()
            assert view.fetch(sizes=False).controller == 1


def test_credentials_that_cannot_be_used_are_named(run: Run) -> None:
    found = run("cluster", "status", "-X", "security.protocol=KERBEROS")
    assert found.code == 2
    assert "security.protocol=KERBEROS" in found.err


def test_a_broker_of_its_own_is_a_cluster_of_one(run: Run) -> None:
    assert run("cluster", "check").out == "healthy\n"
    assert "1 of 1 broker up" in run("cluster", "status").out
    assert run("cluster", "cordon", "1").code == 1
