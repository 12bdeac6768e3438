"""ConsumerGroupHeartbeat and ConsumerGroupDescribe on the wire, in every version."""

import asyncio
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from tests.unit.engine.groups.consumer_world import FakeTopics

from penstock.engine.access import Open
from penstock.engine.acting.acting import Acting
from penstock.engine.groups.consumer import ConsumerGroup
from penstock.engine.groups.consumer_requests import ConsumerHeartbeat, ConsumerLimits
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.authorized_operations import NOT_ASKED_FOR
from penstock.protocols.kafka.handlers import Caller, consumer_group_describe, consumer_group_heartbeat
from penstock.protocols.kafka_wire import errors, messages
from penstock.turns import Turns

VERSIONS = (0, 1)
ORDERS = UUID(int=1)


class FakeGroups:
    """One consumer group, and a classic one."""

    def __init__(self) -> None:
        self.topics = FakeTopics(orders=3)
        self.group = ConsumerGroup("g", lambda: "made-up", ConsumerLimits())
        self.asked: list[ConsumerHeartbeat] = []

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> object:
        self.asked.append(request)
        return self.group.heartbeat(0, request, self.topics)[0]

    async def describe_consumer(self, group_id: str) -> object:
        if group_id != "g":
            raise PenstockError(Code.GROUP_NOT_FOUND, f"group {group_id!r} is not a consumer group")
        return self.group.describe(self.topics)


@pytest.fixture
def groups() -> FakeGroups:
    return FakeGroups()


def caller_of(groups: FakeGroups) -> Caller:
    acting = SimpleNamespace(groups=groups, rights=SimpleNamespace(may=lambda *_: True, policy=Open()))
    return Caller(cast(Acting, acting), "client", "10.0.0.1")


def ask(handler, groups: FakeGroups, version: int, fields: dict, caller: Caller | None = None) -> messages.Message:
    """Through the bytes of that version, both ways."""
    context = SimpleNamespace(turns=Turns())
    caller = caller or caller_of(groups)
    request, response = (messages.schema_of(handler.API.name, version, way) for way in ("request", "response"))
    sent = messages.decode(request, memoryview(messages.encode(request, fields)))
    answer = asyncio.run(handler.handle(context, sent, version, caller))
    return messages.decode(response, memoryview(messages.encode(response, answer)))


def beat(groups: FakeGroups, version: int, **fields: object) -> messages.Message:
    caller = caller_of(groups)
    return ask(consumer_group_heartbeat, groups, version, {"group_id": "g", "member_id": "a", **fields}, caller)


JOIN = {"member_epoch": 0, "rebalance_timeout": 1000, "subscribed_topic_names": ("orders",), "topic_partitions": ()}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_member_joins_stays_and_leaves(groups: FakeGroups, version: int) -> None:
    joined = beat(groups, version, **JOIN, instance_id="i", rack_id="r", server_assignor="range")
    assert (joined.error_code, joined.member_id, joined.member_epoch, joined.heartbeat_interval) == (0, "a", 1, 5000)
    assert [(topic.topic_id, topic.partitions) for topic in joined.assignment.topic_partitions] == [(ORDERS, (0, 1, 2))]
    sent = groups.asked[0]
    assert (sent.instance_id, sent.rack_id, sent.server_assignor) == ("i", "r", "range")
    assert (sent.client_id, sent.client_host, sent.rebalance_timeout_ms) == ("client", "10.0.0.1", 1000)

    owned = ({"topic_id": ORDERS, "partitions": (0, 1, 2)},)
    stays = beat(groups, version, member_epoch=1, rebalance_timeout=-1, topic_partitions=owned)
    assert (stays.error_code, stays.member_epoch, stays.assignment) == (0, 1, None)
    assert groups.asked[1].topic_partitions == ((ORDERS, (0, 1, 2)),)
    assert (groups.asked[1].rebalance_timeout_ms, groups.asked[1].subscribed_topic_names) == (-1, None)

    left = beat(groups, version, member_epoch=-1, rebalance_timeout=-1, topic_partitions=None)
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert groups.asked[2].topic_partitions is None
    assert groups.group.is_empty


def test_a_regular_expression_is_heard_from_version_1(groups: FakeGroups) -> None:
    fields = JOIN | {"subscribed_topic_names": None, "subscribed_topic_regex": "o.*"}
    assert beat(groups, 1, **fields).assignment.topic_partitions[0].topic_id == ORDERS


def test_the_broker_names_a_member_in_version_0_only(groups: FakeGroups) -> None:
    assert beat(groups, 0, **JOIN, member_id="").member_id == "made-up"
    refused = beat(groups, 1, **JOIN, member_id="")
    assert refused.error_code == errors.INVALID_REQUEST
    assert "makes up its own" in refused.error_message


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"group_id": "", "member_epoch": 0}, 42, "group id is empty"),
        ({"member_epoch": 1}, 25, "'a' is not in it"),
        ({**JOIN, "server_assignor": "best"}, 112, "supported are range, uniform"),
    ],
)
def test_refusals_say_why(groups: FakeGroups, version: int, fields: dict, code: int, words: str) -> None:
    refused = beat(groups, version, **({"topic_partitions": None, "rebalance_timeout": -1} | fields))
    assert refused.error_code == code
    assert words in refused.error_message
    assert refused.assignment is None


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_are_described(groups: FakeGroups, version: int) -> None:
    beat(groups, version, **JOIN, instance_id="i", rack_id="r")
    fields = {"group_ids": ("g", "classic", "", "g"), "include_authorized_operations": False}
    found, classic, empty = ask(consumer_group_describe, groups, version, fields).groups
    assert (found.error_code, found.group_id, found.group_state) == (0, "g", "Stable")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (1, 1, "uniform")
    assert found.authorized_operations == NOT_ASKED_FOR
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("a", "i", "r", 1)
    assert (member.client_id, member.client_host) == ("client", "10.0.0.1")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (("orders",), None)
    for assignment in (member.assignment, member.target_assignment):
        (topic,) = assignment.topic_partitions
        assert (topic.topic_id, topic.topic_name, topic.partitions) == (ORDERS, "orders", (0, 1, 2))
    assert member.get("member_type", 1) == 1
    assert hasattr(member, "member_type") == (version >= 1)

    assert (classic.error_code, classic.members) == (69, ())
    assert "not a consumer group" in classic.error_message
    assert empty.error_code == 24


def test_operations_are_told_if_asked_for(groups: FakeGroups) -> None:
    beat(groups, 1, **JOIN)
    fields = {"group_ids": ("g",), "include_authorized_operations": True}
    (group,) = ask(consumer_group_describe, groups, 1, fields).groups
    assert group.authorized_operations == 0b1101_0100_1000
