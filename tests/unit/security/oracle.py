"""The rules once more, as slowly and plainly as they can be said: what everything quick is compared with."""

from collections.abc import Collection, Iterable

from penstock.engine.access import Kind, Operation, Subject
from penstock.security.rules import Effect, Pattern, Rule


def _is_about(rule: Rule, subject: Subject, roles: Collection[str]) -> bool:
    if rule.principal not in (subject.principal, "User:*", *roles):
        return False
    return rule.host == "*" or rule.host == subject.host.removeprefix("::ffff:")


def _covers(rule: Rule, kind: Kind, name: str) -> bool:
    if rule.kind != kind:
        return False
    if rule.pattern == Pattern.PREFIXED:
        return name[: len(rule.name)] == rule.name
    return rule.name == "*" or rule.name == name


def _denies(rule: Rule, operation: Operation) -> bool:
    return rule.effect == Effect.DENY and rule.operation in (operation, Operation.ALL)


def _allows(rule: Rule, operation: Operation) -> bool:
    if rule.effect != Effect.ALLOW:
        return False
    if rule.operation in (operation, Operation.ALL):
        return True
    if operation == Operation.DESCRIBE:
        return rule.operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
    return operation == Operation.DESCRIBE_CONFIGS and rule.operation == Operation.ALTER_CONFIGS


def decide(
    rules: Iterable[Rule], subject: Subject, operation: Operation, kind: Kind, name: str, roles: Collection[str] = ()
) -> bool:
    about = [rule for rule in rules if _is_about(rule, subject, roles) and _covers(rule, kind, name)]
    if any(_denies(rule, operation) for rule in about):
        return False
    return any(_allows(rule, operation) for rule in about)


def decide_any(
    rules: Iterable[Rule], subject: Subject, operation: Operation, kind: Kind, roles: Collection[str] = ()
) -> bool:
    """As Kafka's `Authorizer.authorizeByResourceType` says it (KIP-679)."""
    about = [rule for rule in rules if _is_about(rule, subject, roles) and rule.kind == kind]
    denials = [rule for rule in about if _denies(rule, operation)]
    if any(rule.pattern == Pattern.LITERAL and rule.name == "*" for rule in denials):
        return False
    for rule in about:
        if not _allows(rule, operation):
            continue
        if rule.pattern == Pattern.LITERAL and rule.name == "*":
            return True
        same = any((each.pattern, each.name) == (rule.pattern, rule.name) for each in denials)
        shorter = any(each.pattern == Pattern.PREFIXED and rule.name.startswith(each.name) for each in denials)
        if not same and not shorter:
            return True
    return False
