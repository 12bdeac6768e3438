"""ShareGroupHeartbeat and ShareGroupDescribe on the wire."""

import asyncio
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from tests.unit.engine.groups.consumer_world import FakeTopics

from penstock.engine.access import Open
from penstock.engine.acting.acting import Acting
from penstock.engine.groups.share import ShareGroup
from penstock.engine.groups.share_requests import ShareHeartbeat, ShareLimits, ShareTimes
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.authorized_operations import NOT_ASKED_FOR
from penstock.protocols.kafka.handlers import Caller, share_group_describe, share_group_heartbeat
from penstock.protocols.kafka_wire import errors, messages
from penstock.turns import Turns

ORDERS = UUID(int=1)
JOIN = {"member_epoch": 0, "subscribed_topic_names": ("orders",)}


class FakeGroups:
    """One share group, and others."""

    def __init__(self) -> None:
        self.topics = FakeTopics(orders=3)
        self.group = ShareGroup("g", ShareLimits(max_size=1), lambda group_id: ShareTimes())
        self.asked: list[ShareHeartbeat] = []

    async def share_heartbeat(self, request: ShareHeartbeat) -> object:
        self.asked.append(request)
        return self.group.heartbeat(0, request, self.topics)[0]

    async def describe_share(self, group_id: str) -> object:
        if group_id != "g":
            raise PenstockError(Code.GROUP_NOT_FOUND, f"group {group_id!r} is a classic group, not a share group")
        return self.group.describe(self.topics)


@pytest.fixture
def groups() -> FakeGroups:
    return FakeGroups()


def ask(handler, groups: FakeGroups, fields: dict) -> messages.Message:
    """Through the bytes, both ways."""
    acting = SimpleNamespace(groups=groups, rights=SimpleNamespace(may=lambda *_: True, policy=Open()))
    caller = Caller(cast(Acting, acting), "client", "10.0.0.1")
    request, response = (messages.schema_of(handler.API.name, 1, way) for way in ("request", "response"))
    sent = messages.decode(request, memoryview(messages.encode(request, fields)))
    answer = asyncio.run(handler.handle(SimpleNamespace(turns=Turns()), sent, 1, caller))
    return messages.decode(response, memoryview(messages.encode(response, answer)))


def beat(groups: FakeGroups, **fields: object) -> messages.Message:
    return ask(share_group_heartbeat, groups, {"group_id": "g", "member_id": "a", **fields})


def test_a_member_joins_stays_and_leaves(groups: FakeGroups) -> None:
    joined = beat(groups, **JOIN, rack_id="r")
    assert (joined.error_code, joined.member_id, joined.member_epoch, joined.heartbeat_interval) == (0, "a", 1, 5000)
    assert [(topic.topic_id, topic.partitions) for topic in joined.assignment.topic_partitions] == [(ORDERS, (0, 1, 2))]
    sent = groups.asked[0]
    assert (sent.rack_id, sent.client_id, sent.client_host) == ("r", "client", "10.0.0.1")

    stays = beat(groups, member_epoch=1)
    assert (stays.error_code, stays.member_epoch, stays.assignment) == (0, 1, None)
    assert (groups.asked[1].rack_id, groups.asked[1].subscribed_topic_names) == (None, None)

    left = beat(groups, member_epoch=-1)
    assert (left.error_code, left.member_id, left.member_epoch, left.assignment) == (0, "a", -1, None)
    assert groups.group.is_empty


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({**JOIN, "group_id": ""}, errors.INVALID_REQUEST, "group id is empty"),
        ({**JOIN, "group_id": " "}, errors.INVALID_REQUEST, "group id is empty"),
        ({**JOIN, "member_id": ""}, errors.INVALID_REQUEST, "makes up its own"),
        ({**JOIN, "member_id": "a" * 37}, errors.INVALID_REQUEST, "36 are allowed"),
        ({**JOIN, "rack_id": ""}, errors.INVALID_REQUEST, "rack id is empty"),
        ({"member_epoch": 0}, errors.INVALID_REQUEST, "must name topics"),
        ({"member_epoch": -2}, errors.INVALID_REQUEST, "epoch -2"),
        ({**JOIN, "member_id": "other"}, 81, "1 members, as many as a share group can have"),
        ({"member_id": "other", "member_epoch": 1}, 25, "'other' is not in it"),
        ({"member_id": "other", "member_epoch": -1}, 25, "'other' is not in it"),
        ({"member_epoch": 7}, 110, "came with epoch 7 and has epoch 1"),
    ],
)
def test_refusals_say_why(groups: FakeGroups, fields: dict, code: int, words: str) -> None:
    beat(groups, **JOIN)
    told = beat(groups, **fields)
    assert (told.error_code, told.member_id, told.assignment) == (code, None, None)
    assert words in told.error_message


def test_a_group_is_described(groups: FakeGroups) -> None:
    beat(groups, **JOIN, rack_id="r")
    fields = {"group_ids": ("g", "classic", "", "g"), "include_authorized_operations": False}
    found, classic, empty = ask(share_group_describe, groups, fields).groups
    assert (found.error_code, found.group_id, found.group_state) == (0, "g", "Stable")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (1, 1, "simple")
    assert found.authorized_operations == NOT_ASKED_FOR
    (member,) = found.members
    assert (member.member_id, member.rack_id, member.member_epoch) == ("a", "r", 1)
    assert (member.client_id, member.client_host) == ("client", "10.0.0.1")
    assert member.subscribed_topic_names == ("orders",)
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_id, topic.topic_name, topic.partitions) == (ORDERS, "orders", (0, 1, 2))

    assert (classic.error_code, classic.group_state, classic.members) == (69, "", ())
    assert "not a share group" in classic.error_message
    assert empty.error_code == 24


def test_operations_are_told_if_asked_for(groups: FakeGroups) -> None:
    beat(groups, **JOIN)
    fields = {"group_ids": ("g", "unknown"), "include_authorized_operations": True}
    found, unknown = ask(share_group_describe, groups, fields).groups
    assert found.authorized_operations == 0b1101_0100_1000
    assert unknown.authorized_operations == NOT_ASKED_FOR
