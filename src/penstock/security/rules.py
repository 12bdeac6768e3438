"""Rules: Kafka's ACLs, which are the one form in which rights are kept, whatever door they are for.

A rule allows or denies a principal, from a host, an operation on all things of a kind whose names fit. Asked names are
never patterns. Denial beats all, what is not allowed is refused. To allow an operation allows what needs less
(`IMPLYING`); to deny one denies that one alone.
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from penstock.engine.access import THE_CLUSTER, Kind, Operation
from penstock.errors import Code, PenstockError
from penstock.hosts import parse_host

ANY_NAME: Final = "*"
"""As a literal name: all of them. As a prefix: those that begin with an asterisk."""
ANY_HOST: Final = "*"
ANYBODY: Final = "User:*"
MAX_NAME_CHARS: Final = 1024
"""Of principals, hosts, names. Kafka's own limit is the frame; a rule is read at every start."""

KAFKA_OPERATIONS: Final[Mapping[Operation, int]] = {
    Operation.ALL: 2,
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
    Operation.CREATE_TOKENS: 13,
    Operation.DESCRIBE_TOKENS: 14,
    Operation.TWO_PHASE_COMMIT: 15,
}
BITS: Final[Mapping[Operation, int]] = {operation: 1 << number for operation, number in KAFKA_OPERATIONS.items()}
"""A set of operations as a number: the same bits as Kafka's `authorized_operations`."""

_READ_ALIKE = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
IMPLYING: Final[Mapping[Operation, tuple[Operation, ...]]] = {
    Operation.DESCRIBE: _READ_ALIKE,
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""Whoever may do one of these may do the other, too."""


def _bits(*operations: Operation) -> int:
    return sum(BITS[operation] for operation in operations)


EVERYTHING: Final = _bits(*Operation)
SUPPORTED: Final[Mapping[Kind, int]] = {
    Kind.TOPIC: _bits(
        *_READ_ALIKE,
        *(Operation.CREATE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
    ),
    Kind.GROUP: _bits(
        *(Operation.READ, Operation.DELETE, Operation.DESCRIBE),
        *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
    ),
    Kind.CLUSTER: _bits(
        *(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION),
        *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE),
    ),
    Kind.TRANSACTIONAL_ID: _bits(Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    Kind.USER: _bits(Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
    Kind.TOKEN: _bits(Operation.DESCRIBE),
}
"""What can be done to a thing of each kind."""


def allowed_bits(allowed: int, denied: int) -> int:
    """What may be done where rules allow and deny these operations."""
    if denied & BITS[Operation.ALL]:
        return 0
    if allowed & BITS[Operation.ALL]:
        allowed = EVERYTHING
    for implied, by in IMPLYING.items():
        if allowed & _bits(*by):
            allowed |= BITS[implied]
    return allowed & ~denied


class Pattern(StrEnum):
    LITERAL = "literal"
    PREFIXED = "prefixed"


class Effect(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


class Rule(NamedTuple):
    """One ACL."""

    principal: str
    host: str
    operation: Operation
    kind: Kind
    pattern: Pattern
    name: str
    effect: Effect

    @property
    def id(self) -> str:
        """What is in it decides: equal rules are one."""
        return hashlib.sha256("\0".join(self).encode()).hexdigest()[:32]

    def covers(self, kind: Kind, name: str) -> bool:
        """Whether the rule is about a thing."""
        if kind is not self.kind:
            return False
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)

    def __str__(self) -> str:
        named = f"{self.pattern} {self.name}"
        return f"{self.effect} {self.principal} from {self.host} to {self.operation} {self.kind} {named}"


def check_rule(rule: Rule) -> None:
    """Raises PenstockError INVALID_REQUEST for a rule that nobody can mean."""
    kind, separator, name = rule.principal.partition(":")
    if not (kind and separator and name):
        raise _refused(f"principal {rule.principal!r} is not of the form User:name")
    for what, said in (("principal", rule.principal), ("host", rule.host), ("name", rule.name)):
        if not said or len(said) > MAX_NAME_CHARS:
            raise _refused(f"a rule's {what} has {len(said)} characters; allowed: 1 to {MAX_NAME_CHARS}")
        if not said.isprintable():
            raise _refused(f"{what} {said!r} has characters that cannot be printed")
    if "/" in rule.host:
        raise _refused(f"host {rule.host!r}: networks are not understood, only single addresses and '*'")
    if rule.kind is Kind.CLUSTER and rule.name != THE_CLUSTER.name:
        raise _refused(f"the only cluster there are rules about is {THE_CLUSTER.name!r}, not {rule.name!r}")


def _refused(what: str) -> PenstockError:
    return PenstockError(Code.INVALID_REQUEST, what)


def plain_host(host: str) -> str:
    """An address as it is compared: the shortest form, and IPv4 for what is IPv4 within IPv6."""
    if host == ANY_HOST:
        return host
    address = parse_host(host)
    return host if address is None else str(address)


def hosts_about(host: str) -> tuple[str, ...]:
    """The hosts, as they are compared, of rules that are about who comes from this one.

    A link-local address comes with the interface it was heard on (`fe80::1%eth0`). A rule that names none is about all
    of them; one that does is about that one alone, as other machines may have the same address elsewhere.
    """
    plain = plain_host(host)
    return tuple(dict.fromkeys((plain, plain.partition("%")[0], ANY_HOST)))


class Match(StrEnum):
    """How the name of a filter is meant, where it is not one of the patterns."""

    ANY = "any"
    """The name itself, whatever the pattern."""
    MATCH = "match"
    """Rules that are about a thing of that name."""


class Filter(NamedTuple):
    """Which rules are meant, as Kafka's DescribeAcls and DeleteAcls say it; None: whatever it is."""

    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    kind: Kind | None = None
    pattern: Pattern | Match = Match.ANY
    name: str | None = None
    effect: Effect | None = None

    def matches(self, rule: Rule) -> bool:
        wanted = (self.principal, self.host, self.operation, self.kind, self.effect)
        found = (rule.principal, rule.host, rule.operation, rule.kind, rule.effect)
        if any(one is not None and one != other for one, other in zip(wanted, found, strict=True)):
            return False
        if isinstance(self.pattern, Pattern) and self.pattern is not rule.pattern:
            return False
        if self.name is None:
            return True
        if self.pattern is Match.MATCH:
            return rule.covers(rule.kind, self.name)
        return self.name == rule.name
