"""How strictly the rules are taken: open, watch or closed.

`watch` is for a cluster on its way from open to closed: everything passes, and what the rules would have refused is
counted and listed. Users and rules themselves are never as open as that (`may_change_rules`): whoever made himself an
administrator meanwhile would be one afterwards.
"""

import ipaddress
from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from penstock.engine.access import ANONYMOUS, Kind, Open, Operation, Policy, Resource, Subject
from penstock.security.rules import MAX_NAME_CHARS, SUPPORTED, plain_host
from penstock.security.ruleset import Ruleset

MAX_LISTED: Final = 1000
_SHOWN_CHARS: Final = MAX_NAME_CHARS + 1
"""Of a name: more than a rule can have, which tells that it is cut. Whoever asks chooses it, and it is kept."""
ANY_THING: Final = "(any)"
"""Stands for the name of a thing where any would have done (KIP-679)."""


class Mode(StrEnum):
    OPEN = "open"
    WATCH = "watch"
    CLOSED = "closed"


class Refusal(NamedTuple):
    """What `closed` would refuse. It has no host: an attacker may come from many."""

    principal: str
    operation: Operation
    resource: Resource


class Refusals:
    """What was let pass and would not have been, over all revisions of the rules.

    Attributes:
        total: how often.
        unlisted: how often of these there was no room to say what.
    """

    def __init__(self, limit: int = MAX_LISTED) -> None:
        self.total = 0
        self.unlisted = 0
        self._limit = limit
        self._counts: dict[Refusal, int] = {}

    @property
    def listed(self) -> Mapping[Refusal, int]:
        """How often each; the first ones that there were."""
        return dict(self._counts)

    def note(self, subject: Subject, operation: Operation, resource: Resource) -> None:
        self.total += 1
        shown = resource._replace(name=resource.name[:_SHOWN_CHARS])
        refusal = Refusal(subject.principal, operation, shown)
        count = self._counts.get(refusal, 0)
        if count or len(self._counts) < self._limit:
            self._counts[refusal] = count + 1
        else:
            self.unlisted += 1

    def clear(self) -> None:
        """Begin anew, after somebody has mended the rules."""
        self.total = self.unlisted = 0
        self._counts.clear()


class Watch:
    """Lets everything pass, and asks the rules all the same. Not `is_open`: then nobody would ask."""

    is_open: Final = False

    def __init__(self, rules: Ruleset, refusals: Refusals) -> None:
        self.revision = -rules.revision  # other verdicts than those of the rules themselves
        self.rules = rules
        self._refusals = refusals

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        if not self.rules.decide(subject, operation, resource):
            self._refusals.note(subject, operation, resource)
        return True

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        if not self.rules.decide_any(subject, operation, kind):
            self._refusals.note(subject, operation, Resource(kind, ANY_THING))
        return True

    def likeness(self, subject: Subject) -> Hashable:
        """Each is noted for itself."""
        return subject.principal, self.rules.likeness(subject)


def make_policy(mode: Mode, rules: Ruleset, refusals: Refusals) -> Policy:
    """The policy to put in force."""
    match mode:
        case Mode.OPEN:
            return Open()
        case Mode.WATCH:
            return Watch(rules, refusals)
        case Mode.CLOSED:
            return rules


def may_change_rules(mode: Mode, rules: Ruleset, subject: Subject, operation: Operation, resource: Resource) -> bool:
    """Whether a subject may change users and rules: as the rules say, whatever the mode.

    While the mode is `open`, whoever was not asked for a name may do it from the broker's own machine, too.
    """
    if rules.decide(subject, operation, resource):
        return True
    return mode is Mode.OPEN and subject.principal == ANONYMOUS.principal and _is_here(subject.host)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(plain_host(host)).is_loopback
    except ValueError:
        return False


def authorized_operations(policy: Policy, subject: Subject, resource: Resource) -> int:
    """What the subject may do to a thing, in Kafka's bits. Nothing is counted as refused by it."""
    supported = SUPPORTED[resource.kind]
    return supported & policy.rights(subject, resource) if isinstance(policy, Ruleset) else supported
