"""CreateAcls 1-3: make rules; one that is there already is made all the same."""

from penstock.engine.access import Operation
from penstock.errors import PenstockError
from penstock.protocols.kafka import acls
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message
from penstock.security.rules import Rule, check_rule

API = Api(30, "create_acls", 1, 3)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    results: list[Fields] = []
    rules: list[Rule] = []
    for row in request.creations:
        error = None
        try:
            guard = acls.guard_for(context, caller, Operation.ALTER)
            rule = acls.read_rule(row)
            check_rule(rule)
            rules.append(rule)
        except PenstockError as refusal:
            error = refusal.kept()
        results.append(_result(error))
    if rules:
        try:
            await guard.rules.create(rules)
        except PenstockError as refusal:
            failed = _result(refusal.kept())
            results = [failed if result["error_code"] == errors.NONE else result for result in results]
    return {"throttle_time": 0, "results": results}


def _result(error: PenstockError | None) -> Fields:
    if error is None:
        return {"error_code": errors.NONE, "error_message": None}
    return {"error_code": acls.code_of(error), "error_message": errors.describe(error)}
