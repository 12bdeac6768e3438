"""Rules as Kafka's admin APIs write them: numbers for kinds, operations, patterns and effects."""

from collections.abc import Mapping
from typing import Any, Final

from penstock.engine.access import Kind, Operation
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.handlers import Caller, Context, Fields
from penstock.protocols.kafka_wire import errors
from penstock.protocols.kafka_wire.messages import Message
from penstock.security.guard import Guard
from penstock.security.rules import KAFKA_OPERATIONS, Effect, Filter, Match, Pattern, Rule

SECURITY_DISABLED: Final = 54
_ANY: Final = 1
_KINDS: Final[Mapping[int, Kind]] = {
    2: Kind.TOPIC,
    3: Kind.GROUP,
    4: Kind.CLUSTER,
    5: Kind.TRANSACTIONAL_ID,
    6: Kind.TOKEN,
    7: Kind.USER,
}
_OPERATIONS: Final = {number: operation for operation, number in KAFKA_OPERATIONS.items()}
_PATTERNS: Final = {3: Pattern.LITERAL, 4: Pattern.PREFIXED}
_MATCHES: Final[Mapping[int, Pattern | Match]] = {1: Match.ANY, 2: Match.MATCH, **_PATTERNS}
_EFFECTS: Final = {2: Effect.DENY, 3: Effect.ALLOW}
_KIND_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}
_PATTERN_NUMBERS: Final = {pattern: number for number, pattern in _PATTERNS.items()}
_EFFECT_NUMBERS: Final = {effect: number for number, effect in _EFFECTS.items()}


class NoGuard(PenstockError):
    """Nobody is asked who they are here, so there are no users and rules."""

    def __init__(self) -> None:
        super().__init__(
            Code.NOT_ALLOWED,
            "there are no users and rules on this broker",
            help="set security.mode, or auth of a listener",
        )


def guard_for(context: Context, caller: Caller, operation: Operation) -> Guard:
    """Users and rules, for who may do that to the cluster. Raises PenstockError, `NoGuard` first of all.

    To alter them takes a right that the mode does not give: see `Guard.check_change`.
    """
    if context.guard is None:
        raise NoGuard
    caller.acting.rights.check_cluster(operation)
    if operation is Operation.ALTER:
        context.guard.check_change(caller.acting.subject, operation)
    return context.guard


def code_of(error: PenstockError) -> int:
    return SECURITY_DISABLED if isinstance(error, NoGuard) else errors.kafka_code(error)


def read_rule(row: Message) -> Rule:
    """Raises PenstockError for what cannot be meant of a rule."""
    return Rule(
        row.principal,
        row.host,
        _of(_OPERATIONS, row.operation, "operation"),
        _of(_KINDS, row.resource_type, "resource type"),
        _of(_PATTERNS, row.get("resource_pattern_type", 3), "pattern type"),
        row.resource_name,
        _of(_EFFECTS, row.permission_type, "permission type"),
    )


def read_filter(row: Message) -> Filter:
    """Raises PenstockError."""
    kind, name = row.resource_type_filter, row.resource_name_filter
    return Filter(
        row.principal_filter,
        row.host_filter,
        _or_any(_OPERATIONS, row.operation, "operation"),
        _or_any(_KINDS, kind, "resource type"),
        _of(_MATCHES, row.get("pattern_type_filter", row.get("pattern_type", 3)), "pattern type"),
        name,
        _or_any(_EFFECTS, row.permission_type, "permission type"),
    )


def resource_fields(rule: Rule) -> Fields:
    return {
        "resource_type": _KIND_NUMBERS[rule.kind],
        "resource_name": rule.name,
        "pattern_type": _PATTERN_NUMBERS[rule.pattern],
    }


def rule_fields(rule: Rule) -> Fields:
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": KAFKA_OPERATIONS[rule.operation],
        "permission_type": _EFFECT_NUMBERS[rule.effect],
    }


def is_kafkas(rule: Rule) -> bool:
    """Whether Kafka has a number for what the rule is about."""
    return rule.kind in _KIND_NUMBERS


def _of(known: Mapping[int, Any], number: int, what: str) -> Any:
    found = known.get(number)
    if found is None:
        raise PenstockError(Code.INVALID_REQUEST, f"{what} {number}; known: {', '.join(map(str, known))}")
    return found


def _or_any(known: Mapping[int, Any], number: int, what: str) -> Any:
    return None if number == _ANY else _of(known, number, what)
