"""LeaveGroup 0-5: members go, each by its member id, static ones by their instance id alone.

Up to version 2 there is one member, and its error is that of the whole answer. From 3 there are many, and an error is
the member's own; only what concerns all of them is still told once.
"""

from penstock.engine.groups.classic import LeaveResult, LeavingMember
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(13, "leave_group", 0, 5)
_MANY_MEMBERS = 3  # KIP-345


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    leaving = _leaving(request, version)
    results: tuple[LeaveResult, ...] = ()
    code = errors.NONE
    try:
        if not request.group_id:
            raise PenstockError(Code.INVALID_GROUP_ID, "a group to leave needs a name; set group.id")
        results = await caller.acting.groups.leave(request.group_id, leaving)
    except PenstockError as error:
        if error.code is Code.UNKNOWN_MEMBER:  # the group is unknown, and so is each member
            kept = error.kept()
            results = tuple(LeaveResult(member.member_id, member.group_instance_id, kept) for member in leaving)
        else:
            code = errors.kafka_code(error)
    if version < _MANY_MEMBERS and results:
        code = _code(results[0])
    rows = [
        {
            "member_id": result.member_id,
            "group_instance_id": result.group_instance_id,
            "error_code": _code(result),
        }
        for result in results
    ]
    return {"throttle_time": 0, "error_code": code, "members": rows}


def _code(result: LeaveResult) -> int:
    return errors.NONE if result.error is None else errors.kafka_code(result.error)


def _leaving(request: Message, version: int) -> tuple[LeavingMember, ...]:
    if version < _MANY_MEMBERS:
        return (LeavingMember(request.member_id, None),)
    return tuple(
        LeavingMember(member.member_id, member.group_instance_id, member.get("reason")) for member in request.members
    )
