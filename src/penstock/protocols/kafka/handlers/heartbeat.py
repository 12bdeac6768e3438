"""Heartbeat 0-4: a member of a classic group is still there, and learns whether it is to join again.

From version 3 a static member is known by its instance.
"""

from penstock.engine.groups.classic import HeartbeatRequest
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(12, "heartbeat", 0, 4)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    code = errors.NONE
    try:
        if not request.group_id:
            raise PenstockError(Code.INVALID_GROUP_ID, "a heartbeat needs the name of a group; set group.id")
        await caller.acting.groups.heartbeat(
            HeartbeatRequest(
                group_id=request.group_id,
                generation=request.generation_id,
                member_id=request.member_id,
                group_instance_id=request.get("group_instance_id"),
            )
        )
    except PenstockError as error:
        code = errors.kafka_code(error)
    return {"throttle_time": 0, "error_code": code}
