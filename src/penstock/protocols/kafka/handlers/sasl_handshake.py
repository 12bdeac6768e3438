"""SaslHandshake 1: which mechanism a broker proves itself by. Clients are not asked who they are."""

from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Caller, Context, Fields
from penstock.protocols.kafka.identity import MECHANISM, NotProven
from penstock.protocols.kafka.messages import Message

API = Api(17, "sasl_handshake", 1, 1, told_caller=True)
_UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34


def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    if caller.login is None:
        return {"error_code": ILLEGAL_SASL_STATE, "mechanisms": []}
    try:
        spoken = caller.login.choose(request.mechanism)
    except NotProven:
        return {"error_code": ILLEGAL_SASL_STATE, "mechanisms": [MECHANISM]}
    return {"error_code": errors.NONE if spoken else _UNSUPPORTED_SASL_MECHANISM, "mechanisms": [MECHANISM]}
