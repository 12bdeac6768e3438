"""SaslAuthenticate 0-2: a broker's messages of the mechanism it chose. A failure is told late, so guessing is slow."""

import asyncio
from collections.abc import Awaitable

from penstock.observe.logs import get_logger
from penstock.protocols.kafka import errors
from penstock.protocols.kafka.handlers import Api, Caller, Context, Fields
from penstock.protocols.kafka.handlers.sasl_handshake import ILLEGAL_SASL_STATE
from penstock.protocols.kafka.identity import NotProven, broker_name
from penstock.protocols.kafka.messages import Message

log_ = get_logger("kafka")

API = Api(36, "sasl_authenticate", 0, 2, told_caller=True)
_SASL_AUTHENTICATION_FAILED = 58
_FAILURE_DELAY_S = 1.0


def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields | Awaitable[Fields]:
    if caller.login is None:
        return {
            "error_code": ILLEGAL_SASL_STATE,
            "error_message": "nobody proves anything at this listener",
        }
    try:
        answer = caller.login.step(request.auth_bytes)
    except NotProven as error:
        log_.limited("login").warning("authentication failed", peer=caller.host, reason=str(error))
        _note(context, caller.login.name)
        return _refuse()
    if caller.login.is_done:
        context.refused_logins.pop(caller.login.name, None)
    return {"error_code": errors.NONE, "auth_bytes": answer}


def _note(context: Context, name: str) -> None:
    """Only names of brokers: a peer can call itself anything."""
    if context.image is not None and name in map(broker_name, context.image.members):
        context.refused_logins[name] = context.engine.clock.monotonic()


async def _refuse() -> Fields:
    await asyncio.sleep(_FAILURE_DELAY_S)
    return {
        "error_code": _SASL_AUTHENTICATION_FAILED,
        "error_message": "authentication failed; brokers of a cluster need the same secret",
    }
