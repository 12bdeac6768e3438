"""FindCoordinator 0-6: who coordinates a group (key type 0) or a transactional id (1); 4+ asks for many at once.

It is who leads the partition of an internal topic that the name lives in; the topic is made first, if it has to be.
Share groups (2) have no coordinator here.
"""

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import cluster_view
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(10, "find_coordinator", 0, 6)
_GROUP, _TRANSACTION = 0, 1
_MANY_FROM = 4


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    key_type = request.get("key_type", _GROUP)
    if version >= _MANY_FROM:
        found = [{"key": key, **await _find(context, caller, key_type, key)} for key in request.coordinator_keys]
        return {"throttle_time": 0, "coordinators": found}
    return {"throttle_time": 0, **await _find(context, caller, key_type, request.key)}


async def _find(context: Context, caller: Caller, key_type: int, key: str) -> Fields:
    try:
        place = await _coordinator(context, caller, key_type, key)
    except PenstockError as error:
        nobody = {"node_id": -1, "host": "", "port": -1}
        return {"error_code": errors.kafka_code(error), "error_message": errors.describe(error), **nobody}
    where = {"node_id": place.node_id, "host": place.host, "port": place.port}
    return {"error_code": errors.NONE, "error_message": None, **where}


async def _coordinator(context: Context, caller: Caller, key_type: int, key: str) -> cluster_view.Endpoint:
    if key_type == _GROUP:
        partition = await caller.acting.groups.coordinator(key)
    elif key_type == _TRANSACTION:
        partition = await caller.acting.transactions.coordinator(key)
    else:
        raise PenstockError(Code.INVALID_REQUEST, f"no coordinator for key type {key_type}; known: 0 and 1")
    place = cluster_view.leader_of(context, partition)
    if place is None:
        raise PenstockError(Code.COORDINATOR_NOT_AVAILABLE, f"nobody leads {partition.name} now")
    return place
