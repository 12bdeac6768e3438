"""SyncGroup 0-5: the leader of a classic group hands in what it assigned, every member asks for its own part.

The answer waits for the leader. From version 3 static members are known by their instance, from 5 a request names type
and name of the protocol and is refused without.
"""

from penstock.engine.groups.classic import SyncRequest
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(14, "sync_group", 0, 5, parks=True)
_NAMED_PROTOCOL = 5  # KIP-559


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    try:
        if not request.group_id:
            raise PenstockError(Code.INVALID_GROUP_ID, "a group to sync with needs a name; set group.id")
        result = await caller.acting.groups.sync(_request(request, version))
    except PenstockError as error:
        return {"throttle_time": 0, "error_code": errors.kafka_code(error), "assignment": b""}
    return {
        "throttle_time": 0,
        "error_code": errors.NONE,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "assignment": result.assignment,
    }


def _request(request: Message, version: int) -> SyncRequest:
    kind, name = request.get("protocol_type"), request.get("protocol_name")
    if version >= _NAMED_PROTOCOL and (kind is None or name is None):
        raise PenstockError(
            Code.INCONSISTENT_PROTOCOL,
            f"member {request.member_id!r} of group {request.group_id!r} does not name its protocol",
        )
    return SyncRequest(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.get("group_instance_id"),
        protocol_type=kind,
        protocol_name=name,
        assignments=tuple((given.member_id, given.assignment) for given in request.assignments),
    )
