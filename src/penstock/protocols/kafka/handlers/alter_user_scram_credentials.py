"""AlterUserScramCredentials 0: passwords of users, salted by the client; a user is made by its first one."""

from collections import Counter

from penstock.engine.access import Operation
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka import acls
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.scram_numbers import MECHANISMS
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message
from penstock.security.guard import Guard
from penstock.security.scram import Mechanism
from penstock.security.secret import Secret

API = Api(51, "alter_user_scram_credentials", 0, 0)
_UNSUPPORTED_SASL_MECHANISM = 33


class _UnknownMechanism(PenstockError):
    """A number that Kafka has given to no mechanism of SCRAM."""


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    named = Counter((each.name, each.mechanism) for each in (*request.deletions, *request.upsertions))
    results: dict[str, Fields] = {}
    for row in (*request.deletions, *request.upsertions):
        if row.name in results and results[row.name]["error_code"]:
            continue  # one error for each user
        code, text = errors.NONE, None
        try:
            guard = acls.guard_for(context, caller, Operation.ALTER)
            if named[row.name, row.mechanism] > 1:
                raise PenstockError(Code.EXISTS, f"user {row.name!r} is named twice for one mechanism")
            await _change(guard, row, _mechanism(row.mechanism))
        except _UnknownMechanism as error:
            code, text = _UNSUPPORTED_SASL_MECHANISM, errors.describe(error)
        except PenstockError as error:
            code, text = acls.code_of(error), errors.describe(error)
        results[row.name] = {"user": row.name, "error_code": code, "error_message": text}
    return {"throttle_time": 0, "results": list(results.values())}


async def _change(guard: Guard, row: Message, mechanism: Mechanism) -> None:
    salt = row.get("salt")
    if salt is None:
        await guard.users.delete_mechanism(row.name, mechanism)
    else:
        salted = Secret(bytes(row.salted_password))
        await guard.users.set_salted(row.name, mechanism, salted, bytes(salt), row.iterations)


def _mechanism(number: int) -> Mechanism:
    found = MECHANISMS.get(number)
    if found is None:
        raise _UnknownMechanism(Code.INVALID_REQUEST, f"mechanism {number}; known: 1 and 2 (SCRAM-SHA-256, -512)")
    return found
