"""DescribeUserScramCredentials 0: which mechanisms users have passwords for, and how often those are hashed."""

from collections import Counter

from penstock.engine.access import Operation
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import acls
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka.scram_numbers import NUMBERS
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message
from penstock.security.guard import Guard

API = Api(50, "describe_user_scram_credentials", 0, 0, reads=True)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    await context.turns.next()
    try:
        guard = acls.guard_for(context, caller, Operation.DESCRIBE)
    except PenstockError as error:
        code, text = acls.code_of(error), errors.describe(error)
        return {"throttle_time": 0, "error_code": code, "error_message": text, "results": []}
    directory = guard.loader.directory
    known = [] if directory is None else list(directory.credentials)
    named = Counter([each.name for each in request.users] if request.users else known)
    answer = LongAnswer(context, API, version, "results")
    rows = [await answer.row(_result(guard, name, times)) for name, times in named.items()]
    return {"throttle_time": 0, "error_code": errors.NONE, "error_message": None, "results": rows}


def _result(guard: Guard, name: str, times: int) -> Fields:
    directory = guard.loader.directory
    kept = directory.credentials.get(name) if directory is not None else None
    if times > 1:
        error = PenstockError(Code.EXISTS, f"user {name!r} is named {times} times in one request")
    elif kept is None:
        error = PenstockError(Code.NOT_FOUND, f"user {name!r} has no password")
    else:
        infos = [{"mechanism": NUMBERS[each], "iterations": keys.iterations} for each, keys in kept.keys.items()]
        return {"user": name, "error_code": errors.NONE, "error_message": None, "credential_infos": infos}
    code, text = errors.kafka_code(error), errors.describe(error)
    return {"user": name, "error_code": code, "error_message": text, "credential_infos": []}
