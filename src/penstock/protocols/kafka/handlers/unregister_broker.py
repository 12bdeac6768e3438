"""UnregisterBroker 0: forget a broker that has stopped for good and holds nothing any more."""

from penstock.errors import PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.operator_calls import in_time, outcome_fields
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message

API = Api(64, "unregister_broker", 0, 0)
_TIMEOUT_MS = 30_000  # the request has none


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    refused = None
    try:
        await in_time(context, caller, _TIMEOUT_MS, lambda operations: operations.unregister(request.broker_id))
    except PenstockError as error:
        refused = error.kept()
    return {"throttle_time": 0, **outcome_fields(refused)}
