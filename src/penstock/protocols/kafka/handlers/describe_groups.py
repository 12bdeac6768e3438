"""DescribeGroups 0-6: state and members of classic groups; ConsumerGroupDescribe and ShareGroupDescribe are for others.

Version notes: 3+ may ask for the authorized operations; an unknown group is "Dead" without an error up to 5, and
GROUP_ID_NOT_FOUND with a text from 6.
"""

from penstock.engine.groups.classic_requests import ClassicDescription
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import authorized_operations
from penstock.protocols.kafka.answer_room import AnswerRoom
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(15, "describe_groups", 0, 6, reads=True)
_TELLS_UNKNOWN = 6
_NOT_ASKED_FOR = authorized_operations.NOT_ASKED_FOR
_ROW_BYTES = 500  # of a member, with its ids


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    wants_operations = request.get("include_authorized_operations", False)
    groups, room = [], AnswerRoom()
    for group_id in dict.fromkeys(request.groups):
        await context.turns.next()
        try:
            group = await caller.acting.groups.describe_classic(group_id)
            room.take(f"group {group_id!r}", _size_bytes(group))
            may = authorized_operations.of_group(caller, group_id) if wants_operations else _NOT_ASKED_FOR
            described = _describe(group, may)
        except PenstockError as error:
            described = _refused(group_id, error, version)
            if wants_operations and described["error_code"] == errors.NONE:
                described = {**described, "authorized_operations": authorized_operations.of_group(caller, group_id)}
        groups.append(described)
    return {"throttle_time": 0, "groups": groups}


def _size_bytes(group: ClassicDescription) -> int:
    return sum(
        len(member.metadata) + len(member.assignment) + len(member.client_id) + len(member.client_host) + _ROW_BYTES
        for member in group.members
    )


def _describe(group: ClassicDescription, operations: int) -> Fields:
    return {
        "error_code": errors.NONE,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
        "authorized_operations": operations,
    }


def _refused(group_id: str, error: PenstockError, version: int) -> Fields:
    unknown = error.code is Code.GROUP_NOT_FOUND
    quiet = unknown and version < _TELLS_UNKNOWN
    return {
        "error_code": errors.NONE if quiet else errors.kafka_code(error),
        "error_message": errors.describe(error),
        "group_id": group_id,
        "group_state": "Dead" if unknown else "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": _NOT_ASKED_FOR,
    }
