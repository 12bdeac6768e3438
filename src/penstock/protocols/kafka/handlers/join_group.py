"""JoinGroup 0-9: become a member of a classic group, or say that one is there for its next generation.

The answer waits until the members that were there have joined, too. Version 0 has no rebalance time-out: the session's
stands for it. From version 4 a new member is first given an id to come back with, from 5 there are static members, from
7 the answer names the type of protocol, and from 9 the leader may be told that there is nothing to assign.
"""

from penstock.engine.groups.classic import JoinRequest, MemberIdRequired
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(11, "join_group", 0, 9, parks=True)
_KNOWN_MEMBER_ID = 4  # KIP-394
_NULL_PROTOCOL = 7  # KIP-559
_SKIPPED_ASSIGNMENT = 9  # KIP-814


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    try:
        if not request.group_id:
            raise PenstockError(Code.INVALID_GROUP_ID, "a group to join needs a name; set group.id")
        result = await caller.acting.groups.join(_request(request, version, caller))
    except PenstockError as error:
        return {
            "throttle_time": 0,
            "error_code": errors.kafka_code(error),
            "generation_id": -1,
            "protocol_type": None,
            "protocol_name": None if version >= _NULL_PROTOCOL else "",
            "leader": "",
            "member_id": error.member_id if isinstance(error, MemberIdRequired) else request.member_id,
            "members": (),
        }
    return {
        "throttle_time": 0,
        "error_code": errors.NONE,
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "metadata": member.metadata,
            }
            for member in result.members
        ],
    }


def _request(request: Message, version: int, caller: Caller) -> JoinRequest:
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        group_instance_id=request.get("group_instance_id"),
        client_id=caller.client_id,
        client_host=caller.host,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        session_timeout_ms=request.session_timeout,
        rebalance_timeout_ms=request.get("rebalance_timeout", request.session_timeout),
        requires_known_member_id=version >= _KNOWN_MEMBER_ID,
        supports_skipping_assignment=version >= _SKIPPED_ASSIGNMENT,
        reason=request.get("reason"),
    )
