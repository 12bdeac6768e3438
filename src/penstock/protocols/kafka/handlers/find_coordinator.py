"""FindCoordinator 0-6: there are no coordinators yet, and every key is told so (4+ asks for many keys at once)."""

from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.messages import Message

API = Api(10, "find_coordinator", 0, 6)
_TEXT = "this broker has no group or transaction coordinator yet"


def handle(context: Context, request: Message, version: int) -> Fields:
    nowhere = {
        "error_code": errors.COORDINATOR_NOT_AVAILABLE,
        "error_message": _TEXT,
        "node_id": -1,
        "host": "",
        "port": -1,
    }
    keys = request.get("coordinator_keys", ())
    return {"throttle_time": 0, **nowhere, "coordinators": [{"key": key, **nowhere} for key in keys]}
