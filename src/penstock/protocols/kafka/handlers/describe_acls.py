"""DescribeAcls 1-3: the rules that a filter means."""

from penstock.engine.access import Operation
from penstock.errors import PenstockError
from penstock.protocols.kafka import acls
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka.long_answer import LongAnswer
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message
from penstock.security.rules import Rule

API = Api(29, "describe_acls", 1, 3, reads=True)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    await context.turns.next()
    try:
        found = acls.guard_for(context, caller, Operation.DESCRIBE).rules.find(acls.read_filter(request))
    except PenstockError as error:
        code, text = acls.code_of(error), errors.describe(error)
        return {"throttle_time": 0, "error_code": code, "error_message": text, "resources": []}
    by_resource: dict[tuple[str, ...], list[Rule]] = {}
    for rule in found:
        if acls.is_kafkas(rule):
            by_resource.setdefault((rule.kind, rule.name, rule.pattern), []).append(rule)
    answer = LongAnswer(context, API, version, "resources", "acls")
    resources = []
    for rules in by_resource.values():
        rows = [await answer.row(acls.rule_fields(rule)) for rule in rules]
        resources.append({**acls.resource_fields(rules[0]), "acls": rows})
    return {"throttle_time": 0, "error_code": errors.NONE, "error_message": None, "resources": resources}
