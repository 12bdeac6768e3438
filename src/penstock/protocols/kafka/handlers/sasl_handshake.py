"""SaslHandshake 1: which mechanism a peer proves itself by, where it is asked who it is."""

from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.guest import NotProven
from penstock.protocols.kafka_wire.messages import Message

API = Api(17, "sasl_handshake", 1, 1)
_UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34


def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    if caller.login is None:
        return {"error_code": ILLEGAL_SASL_STATE, "mechanisms": []}
    mechanisms = list(caller.login.mechanisms)
    try:
        spoken = caller.login.choose(request.mechanism)
    except NotProven:
        return {"error_code": ILLEGAL_SASL_STATE, "mechanisms": mechanisms}
    return {"error_code": errors.NONE if spoken else _UNSUPPORTED_SASL_MECHANISM, "mechanisms": mechanisms}
