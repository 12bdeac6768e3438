"""SaslAuthenticate 0-2: a peer's messages of the mechanism it chose.

A failure is told late, so guessing is slow, and always in the same words. Until then nothing of what was said is kept.
"""

import asyncio
from typing import Final

from penstock.observe.logs import get_logger
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.handlers.sasl_handshake import ILLEGAL_SASL_STATE
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.errors import NONE
from penstock.protocols.kafka_wire.guest import NotProven
from penstock.protocols.kafka_wire.messages import Message

log_ = get_logger("kafka")

API = Api(36, "sasl_authenticate", 0, 2)
_SASL_AUTHENTICATION_FAILED: Final = 58
_FAILURE_DELAY_S: Final = 1.0


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    if caller.login is None:
        return {"error_code": ILLEGAL_SASL_STATE, "error_message": "nobody proves anything at this listener"}
    if caller.login.subject is not None:
        return {"error_code": ILLEGAL_SASL_STATE, "error_message": "who this is has been proved before"}
    refusal = caller.login.refusal
    try:
        return {"error_code": NONE, "auth_bytes": await caller.login.step(request.auth_bytes)}
    except NotProven as error:
        log_.limited("login").warning("authentication failed", peer=caller.host, reason=str(error))
    del request  # and the error is gone, with its frames: who waits here holds nothing of what was said
    await asyncio.sleep(_FAILURE_DELAY_S)
    return {"error_code": _SASL_AUTHENTICATION_FAILED, "error_message": refusal}
