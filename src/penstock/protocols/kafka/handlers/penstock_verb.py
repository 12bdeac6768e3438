"""PenstockVerb 0: what operators ask of Penstock alone, by the name of a verb (see `verbs`); no API of Kafka's.

ApiVersions does not tell of it, so no client takes it for one of its own. Every verb is served by any broker: changes
go to the metadata store, and what only one broker knows is told of that one. But for a queue's messages: they are the
business of who leads their partition.
"""

import orjson

from penstock.errors import Code, PenstockError
from penstock.nearest import did_you_mean
from penstock.ports.metadata import MetadataUnavailable
from penstock.protocols.kafka import acls
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.verbs.document import Document, refused
from penstock.protocols.kafka.verbs.table import VERBS
from penstock.protocols.kafka.verbs.verb import Answer, Asked
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.messages import Message
from penstock.protocols.kafka_wire.penstock_verb import API

__all__ = ["API", "handle"]

_LONGEST_TEXT = 1000
_NOT_AVAILABLE = errors.KAFKA_CODES[Code.NOT_AVAILABLE]


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    try:
        answer = await _act(context, request, caller)
    except PenstockError as error:
        return _refusal(acls.code_of(error), str(error), error.help)
    except MetadataUnavailable as error:
        return _refusal(_NOT_AVAILABLE, f"the metadata store does not answer: {error}", "Try again.")
    return {"error_code": errors.NONE, "error_message": None, "help": None, "document": orjson.dumps(answer)}


async def _act(context: Context, request: Message, caller: Caller) -> Answer:
    verb = VERBS.get(request.verb)
    if verb is None:
        way_out = did_you_mean(request.verb, VERBS, "it may be one of a later release")
        raise refused(f"verb {request.verb[:50]!r} is not known to this broker; {way_out}")
    asked = Asked(context, caller, Document.parse(request.document, verb.fields))
    verb.check(asked)
    return await verb.act(asked)


def _refusal(code: int, text: str, way_out: str) -> Fields:
    return {"error_code": code, "error_message": text[:_LONGEST_TEXT], "help": way_out or None, "document": b""}
