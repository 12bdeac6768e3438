"""DeleteAcls 1-3: remove the rules that filters mean; each filter is told what it removed."""

from penstock.engine.access import Operation
from penstock.errors import PenstockError
from penstock.protocols.kafka import acls
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.messages import Message
from penstock.security.rules import Filter, Rule

API = Api(31, "delete_acls", 1, 3)


async def handle(context: Context, request: Message, version: int, caller: Caller) -> Fields:
    results: list[Fields] = [{}] * len(request.filters)
    filters: dict[int, Filter] = {}
    for at, row in enumerate(request.filters):
        try:
            guard = acls.guard_for(context, caller, Operation.ALTER)
            filters[at] = acls.read_filter(row)
        except PenstockError as error:
            results[at] = _refused(error)
    if filters:
        try:
            removed = await guard.rules.delete(list(filters.values()))
            results_of = {at: _removed(rules) for at, rules in zip(filters, removed, strict=True)}
        except PenstockError as error:
            results_of = dict.fromkeys(filters, _refused(error))
        for at, result in results_of.items():
            results[at] = result
    return {"throttle_time": 0, "filter_results": results}


def _removed(rules: list[Rule]) -> Fields:
    matching = [
        {"error_code": errors.NONE, "error_message": None, **acls.resource_fields(rule), **acls.rule_fields(rule)}
        for rule in rules
        if acls.is_kafkas(rule)
    ]
    return {"error_code": errors.NONE, "error_message": None, "matching_acls": matching}


def _refused(error: PenstockError) -> Fields:
    return {"error_code": acls.code_of(error), "error_message": errors.describe(error), "matching_acls": []}
