"""Roles: rules under a name, which users are given. Some are always there, others are made.

A role that is always there may be given for a prefix: `producer:orders.` is about what begins with `orders.`, and
`producer` about everything. What a role allows are ordinary rules, of a principal such as `Role:producer:orders.`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from penstock.engine.access import THE_CLUSTER, Kind, Operation
from penstock.errors import Code, PenstockError
from penstock.security.names import check_role_name
from penstock.security.rules import ANY_HOST, ANY_NAME, Effect, Pattern, Rule

AUDIT_TOPIC: Final = "__penstock_audit"
MAX_ROLES_OF_A_USER: Final = 50

Grants = Iterator[tuple[Operation, Kind]]


def role_principal(grant: str) -> str:
    return f"Role:{grant}"


def _admin() -> Grants:
    for kind in (Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID, Kind.CLUSTER, Kind.USER, Kind.TOKEN):
        yield Operation.ALL, kind


def _producer() -> Grants:
    yield Operation.WRITE, Kind.TOPIC
    yield Operation.WRITE, Kind.TRANSACTIONAL_ID


def _consumer() -> Grants:
    yield Operation.READ, Kind.TOPIC
    yield Operation.READ, Kind.GROUP


def _describe() -> Grants:
    for kind in (Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID, Kind.CLUSTER):
        yield Operation.DESCRIBE, kind
    for kind in (Kind.TOPIC, Kind.GROUP, Kind.CLUSTER):
        yield Operation.DESCRIBE_CONFIGS, kind


def _read_only() -> Grants:
    yield Operation.READ, Kind.TOPIC
    yield from _describe()


def _auditor() -> Grants:
    yield Operation.DESCRIBE_TOKENS, Kind.USER
    yield Operation.DESCRIBE, Kind.TOKEN
    yield from _describe()


ADMIN: Final = "admin"
AUDITOR: Final = "auditor"
BUILT_IN: Final[Mapping[str, Callable[[], Grants]]] = {
    ADMIN: _admin,
    "producer": _producer,
    "consumer": _consumer,
    "read-only": _read_only,
    AUDITOR: _auditor,
}
"""admin: everything; producer, consumer: records, and the transactions and groups for that; read-only: records and
settings, without a group; auditor: settings, rules and the audit's own topic, no other records."""
_OF_A_PREFIX: Final = (Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID)


def built_in_rules(grant: str) -> Iterator[Rule]:
    """The rules of a role that is always there, for the prefix it is given for; those about the cluster have none."""
    name, _, prefix = grant.partition(":")
    principal = role_principal(grant)
    for operation, kind in BUILT_IN[name]():
        if kind is Kind.CLUSTER and not prefix:
            yield _allow(principal, operation, kind, Pattern.LITERAL, THE_CLUSTER.name)
        elif prefix and kind in _OF_A_PREFIX:
            yield _allow(principal, operation, kind, Pattern.PREFIXED, prefix)
        elif not prefix:
            yield _allow(principal, operation, kind, Pattern.LITERAL, ANY_NAME)
    if name == AUDITOR and not prefix:
        yield _allow(principal, Operation.READ, Kind.TOPIC, Pattern.LITERAL, AUDIT_TOPIC)


def _allow(principal: str, operation: Operation, kind: Kind, pattern: Pattern, name: str) -> Rule:
    return Rule(principal, ANY_HOST, operation, kind, pattern, name, Effect.ALLOW)


def check_grants(grants: Iterable[str], made: Iterable[str]) -> None:
    """Whether a user can be given these roles. Raises PenstockError INVALID_REQUEST."""
    known = frozenset(made)
    given = list(grants)
    if len(given) > MAX_ROLES_OF_A_USER:
        raise PenstockError(Code.LIMIT_EXCEEDED, f"{len(given)} roles; a user may have {MAX_ROLES_OF_A_USER}")
    for grant in given:
        name, separator, prefix = grant.partition(":")
        if name not in BUILT_IN and name not in known:
            there = ", ".join([*BUILT_IN, *sorted(known)])
            raise PenstockError(Code.INVALID_REQUEST, f"there is no role {name!r}", help=f"there are: {there}")
        if separator and (name in known or not prefix or not prefix.isprintable()):
            raise PenstockError(Code.INVALID_REQUEST, f"role {grant!r}: only {', '.join(BUILT_IN)} take a prefix")


def check_made_role(name: str, rules: Iterable[Rule]) -> None:
    """Whether a role can be made. Raises PenstockError INVALID_REQUEST."""
    check_role_name(name)
    if name in BUILT_IN:
        raise PenstockError(Code.INVALID_REQUEST, f"role {name!r} is always there, as it is")
    for rule in rules:
        if rule.principal != role_principal(name):
            raise PenstockError(Code.INVALID_REQUEST, f"a rule of role {name!r} is about {rule.principal}")
