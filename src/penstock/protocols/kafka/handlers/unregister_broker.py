"""UnregisterBroker 0: forget a broker that has stopped for good and holds nothing any more."""

from penstock.errors import PenstockError
from penstock.protocols.kafka.handlers import Api, Context, Fields
from penstock.protocols.kafka.messages import Message
from penstock.protocols.kafka.operator_calls import in_time, told

API = Api(64, "unregister_broker", 0, 0)
_TIMEOUT_MS = 30_000  # the request has none


async def handle(context: Context, request: Message, version: int) -> Fields:
    refused = None
    try:
        await in_time(context, _TIMEOUT_MS, lambda operations: operations.unregister(request.broker_id))
    except PenstockError as error:
        refused = error.kept()
    return {"throttle_time": 0, **told(refused)}
