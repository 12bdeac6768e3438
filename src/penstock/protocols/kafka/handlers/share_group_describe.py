"""ShareGroupDescribe 1 (KIP-932): epochs, members, and what each takes from.

Groups of other kinds are not found here: DescribeGroups and ConsumerGroupDescribe have them.
"""

from typing import Any

from penstock.engine.groups.share_requests import ShareMemberDescription
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import authorized_operations
from penstock.protocols.kafka.answer_room import AnswerRoom
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(77, "share_group_describe", 1, 1, reads=True)
_ROW_BYTES = 800  # of a member, with its ids
_TOPIC_BYTES = 20  # its id, and two lengths


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    room = AnswerRoom()
    groups = [await _describe(context, caller, group_id, room) for group_id in dict.fromkeys(request.group_ids)]
    if request.include_authorized_operations:
        for group in groups:
            if group["error_code"] == errors.NONE:
                group["authorized_operations"] = authorized_operations.of_group(caller, group["group_id"])
    return {"throttle_time": 0, "groups": groups}


async def _describe(context: Context, caller: Caller, group_id: str, room: AnswerRoom) -> dict[str, Any]:
    await context.turns.next()
    try:
        if not group_id:
            raise PenstockError(Code.INVALID_GROUP_ID, "the group id is empty; name the group")
        group = await caller.acting.groups.describe_share(group_id)
        room.take(f"group {group_id!r}", sum(map(_size_bytes, group.members)))
    except PenstockError as error:
        return {
            "error_code": errors.kafka_code(error),
            "error_message": errors.describe(error),
            "group_id": group_id,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "assignor_name": "",
            "members": (),
            "authorized_operations": authorized_operations.NOT_ASKED_FOR,
        }
    return {
        "error_code": errors.NONE,
        "error_message": None,
        "group_id": group_id,
        "group_state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor_name,
        "members": [_member(member) for member in group.members],
        "authorized_operations": authorized_operations.NOT_ASKED_FOR,
    }


def _size_bytes(member: ShareMemberDescription) -> int:
    return (
        _ROW_BYTES
        + len(member.client_id)
        + len(member.client_host)
        + sum(len(name) + 2 for name in member.subscribed_topic_names)
        + sum(len(topic.topic_name) + 4 * len(topic.partitions) + _TOPIC_BYTES for topic in member.assignment)
    )


def _member(member: ShareMemberDescription) -> Fields:
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "assignment": {
            "topic_partitions": [
                {"topic_id": topic.topic_id, "topic_name": topic.topic_name, "partitions": topic.partitions}
                for topic in member.assignment
            ]
        },
    }
