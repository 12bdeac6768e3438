"""FindCoordinator 0-6: who coordinates a group (key type 0) or a transactional id (1); 4+ asks for many at once.

There is one broker, so it is this one; the internal topic is made first, so that the next request finds it.
Share groups (2) have no coordinator here.
"""

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.messages import Message

API = Api(10, "find_coordinator", 0, 6)
_GROUP, _TRANSACTION = 0, 1


async def handle(context: Context, request: Message, version: int) -> Fields:
    answer = await _find(context, request.get("key_type", _GROUP))
    keys = request.get("coordinator_keys", ())
    return {"throttle_time": 0, **answer, "coordinators": [{"key": key, **answer} for key in keys]}


async def _find(context: Context, key_type: int) -> Fields:
    try:
        if key_type == _GROUP:
            await context.engine.groups.shards.ready()
        elif key_type == _TRANSACTION:
            await context.engine.transactions.shards.ready()
        else:
            raise PenstockError(Code.INVALID_REQUEST, f"no coordinator for key type {key_type}; known: 0 and 1")
    except PenstockError as error:
        nobody = {"node_id": -1, "host": "", "port": -1}
        return {"error_code": errors.kafka_code(error), "error_message": errors.describe(error), **nobody}
    here = {"node_id": context.node_id, "host": context.host, "port": context.port}
    return {"error_code": errors.NONE, "error_message": None, **here}
