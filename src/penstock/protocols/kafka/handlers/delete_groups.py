"""DeleteGroups 0-2: forget groups without members, and how far they have read."""

from penstock.errors import PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(42, "delete_groups", 0, 2)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    results = []
    for group_id in dict.fromkeys(request.groups_names):
        code = errors.NONE
        try:
            await caller.acting.groups.delete(group_id)
        except PenstockError as error:
            code = errors.kafka_code(error)
        results.append({"group_id": group_id, "error_code": code})
    return {"throttle_time": 0, "results": results}
