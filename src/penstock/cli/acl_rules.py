"""Rules over the network: Kafka's DescribeAcls, CreateAcls and DeleteAcls, in the words of `security.rules`.

librdkafka has these requests as well, but not all of the operations and kinds, and calls the others unknown.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.cli import wire
from penstock.cli.connection import Refused, Server
from penstock.engine.access import Kind
from penstock.security.rules import KAFKA_OPERATIONS, Effect, Pattern, Rule

if TYPE_CHECKING:
    from penstock.protocols.kafka_wire.messages import Message

_ANY: Final = 1
_AT_ONCE: Final = 100
_KINDS: Final = {
    Kind.TOPIC: 2,
    Kind.GROUP: 3,
    Kind.CLUSTER: 4,
    Kind.TRANSACTIONAL_ID: 5,
    Kind.TOKEN: 6,
    Kind.USER: 7,
}
_PATTERNS: Final = {Pattern.LITERAL: 3, Pattern.PREFIXED: 4}
_EFFECTS: Final = {Effect.DENY: 2, Effect.ALLOW: 3}

Numbers = Mapping[Any, int]


class Rules(NamedTuple):
    """Those that were asked for, and how many have a word in them that is not known here."""

    known: list[Rule]
    unknown: int


def fetch_rules(server: Server) -> Rules:
    """All rules, in the order of principals and things. Raises `CommandError`."""
    with wire.Cluster(server, any_security=True) as cluster:
        answer = cluster.ask(None, "describe_acls", **_filter(None))
    wire.check(answer.error_code, "the rules cannot be listed", answer.error_message)
    known, unknown = [], 0
    for resource in answer.resources:
        for row in resource.acls:
            rule = _read(resource, row)
            if rule is None:
                unknown += 1
            else:
                known.append(rule)
    return Rules(sorted(known, key=lambda each: (each.principal, each.kind, each.name, each)), unknown)


def create_rules(server: Server, rules: Sequence[Rule]) -> list[str]:
    """Those that are there already are made again; the result is what was refused. Raises `CommandError`."""
    rows = [{**_resource(rule), **_row(rule), "resource_pattern_type": _PATTERNS[rule.pattern]} for rule in rules]
    with wire.Cluster(server, any_security=True) as cluster:
        results = cluster.ask(None, "create_acls", creations=rows).results
    refused = []
    for rule, result in zip(rules, results, strict=True):
        if result.error_code:
            refused.append(_refusal(f"'{rule}' cannot be added", result))
    return list(dict.fromkeys(refused))


def remove_rules(server: Server, rules: Sequence[Rule]) -> list[str]:
    """Exactly these; denials at last, so that nothing is open in between. The result is what was refused."""
    ordered = sorted(rules, key=lambda rule: rule.effect is Effect.DENY)
    refused = []
    with wire.Cluster(server, any_security=True) as cluster:
        for start in range(0, len(ordered), _AT_ONCE):
            some = ordered[start : start + _AT_ONCE]
            answer = cluster.ask(None, "delete_acls", filters=[_filter(rule) for rule in some])
            for rule, result in zip(some, answer.filter_results, strict=True):
                if result.error_code:
                    refused.append(_refusal(f"'{rule}' cannot be removed", result))
    return list(dict.fromkeys(refused))


def _refusal(what: str, result: "Message") -> str:
    try:
        wire.check(result.error_code, what, result.error_message)
    except Refused as error:
        return str(error)
    return ""


def _read(resource: "Message", row: "Message") -> Rule | None:
    try:
        return Rule(
            row.principal,
            row.host,
            _word(KAFKA_OPERATIONS, row.operation),
            _word(_KINDS, resource.resource_type),
            _word(_PATTERNS, resource.pattern_type),
            resource.resource_name,
            _word(_EFFECTS, row.permission_type),
        )
    except KeyError:
        return None


def _word(numbers: Numbers, number: int) -> Any:
    for word, each in numbers.items():
        if each == number:
            return word
    raise KeyError(number)


def _resource(rule: Rule) -> dict[str, Any]:
    return {"resource_type": _KINDS[rule.kind], "resource_name": rule.name}


def _row(rule: Rule) -> dict[str, Any]:
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": KAFKA_OPERATIONS[rule.operation],
        "permission_type": _EFFECTS[rule.effect],
    }


def _filter(rule: Rule | None) -> dict[str, Any]:
    """One that means this rule alone; None: all rules."""
    return {
        "resource_type_filter": _ANY if rule is None else _KINDS[rule.kind],
        "resource_name_filter": None if rule is None else rule.name,
        "pattern_type_filter": _ANY if rule is None else _PATTERNS[rule.pattern],
        "principal_filter": None if rule is None else rule.principal,
        "host_filter": None if rule is None else rule.host,
        "operation": _ANY if rule is None else KAFKA_OPERATIONS[rule.operation],
        "permission_type": _ANY if rule is None else _EFFECTS[rule.effect],
    }
