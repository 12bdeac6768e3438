"""The rules once more, for the doors that Apache Kafka has not: who may do what, and what each request needs.

It is read beside SECURITY.md and docs/security.md and shares no line with the broker. That it decides as Kafka does is
a test too: the bits of operations in Kafka's answers are its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from .rules import CLUSTER, EFFECTS, KINDS, OPERATIONS, PATTERNS, POSSIBLE, Rule

IMPLIED_BY: Final[Mapping[str, Sequence[str]]] = {
    "DESCRIBE": ("READ", "WRITE", "DELETE", "ALTER"),
    "DESCRIBE_CONFIGS": ("ALTER_CONFIGS",),
}


class Need(NamedTuple):
    """One right."""

    operation: str
    kind: str
    name: str = CLUSTER


class Model:
    """Args:
    supers: users who may do everything.
    """

    def __init__(self, rules: Iterable[Rule], supers: Iterable[str] = ()) -> None:
        self._rules = tuple(rules)
        self._supers = frozenset(supers)

    def may(self, user: str, host: str, need: Need) -> bool:
        if user in self._supers:
            return True
        about = [rule for rule in self._rules if _is_about(rule, user, host, need)]
        named = {OPERATIONS["ALL"], OPERATIONS[need.operation]}
        enough = named | {OPERATIONS[by] for by in IMPLIED_BY.get(need.operation, ())}
        if any(rule.effect == EFFECTS["deny"] and rule.operation in named for rule in about):
            return False
        return any(rule.effect == EFFECTS["allow"] and rule.operation in enough for rule in about)

    def bits(self, user: str, host: str, kind: str, name: str) -> int:
        """All that may be done to a thing, as Kafka writes it."""
        asked = (operation for operation in POSSIBLE[kind] if self.may(user, host, Need(operation, kind, name)))
        return sum(1 << OPERATIONS[operation] for operation in asked)


def _is_about(rule: Rule, user: str, host: str, need: Need) -> bool:
    if rule.principal not in (f"User:{user}", "User:*") or rule.host not in (host, "*"):
        return False
    if rule.kind != KINDS[need.kind]:
        return False
    if rule.pattern == PATTERNS["^"]:
        return need.name.startswith(rule.name)
    return rule.name in (need.name, "*")


SEES_THE_CLUSTER: Final = Need("DESCRIBE", "cluster")
PATHS: Final[Mapping[str, Need | None]] = {
    "/": None,
    "/health/live": None,
    "/health/ready": None,
    "/health": SEES_THE_CLUSTER,
    "/metrics": SEES_THE_CLUSTER,
    "/no-such-path": None,
}
"""Over HTTP; None: everybody may ask."""
ANSWERED: Final = {"/no-such-path": 404}
"""What is answered to who may, where that is not 200."""
ROLES: Final[Mapping[str, Sequence[str]]] = {
    "admin": [f"allow ALL {kind}:{CLUSTER if kind == 'cluster' else '*'}" for kind in KINDS],
    "producer": ("allow WRITE topic:*", "allow WRITE tx:*"),
    "consumer": ("allow READ topic:*", "allow READ group:*"),
    "read-only": (
        "allow READ topic:*",
        *(f"allow DESCRIBE {thing}" for thing in ("group:*", "tx:*", f"cluster:{CLUSTER}")),
        *(f"allow DESCRIBE_CONFIGS {thing}" for thing in ("topic:*", "group:*", f"cluster:{CLUSTER}")),
    ),
    "auditor": (
        "allow DESCRIBE_TOKENS user:*",
        "allow READ topic:__penstock_audit",
        *(f"allow DESCRIBE {thing}" for thing in ("topic:*", "group:*", "tx:*", "token:*", f"cluster:{CLUSTER}")),
        *(f"allow DESCRIBE_CONFIGS {thing}" for thing in ("topic:*", "group:*", f"cluster:{CLUSTER}")),
    ),
    "producer:books": ("allow WRITE topic^books", "allow WRITE tx^books"),
    "consumer:read": ("allow READ topic^read", "allow READ group^read"),
}
"""What each role is, in rules; with a prefix it is about what begins with that, and nothing of the cluster."""
SEES_BOOKS: Final = Need("DESCRIBE", "topic", "books")
CHANGES_RULES: Final = Need("ALTER", "cluster")


def _both(operation: str) -> Sequence[Need]:
    return Need(operation, "group", "readers"), Need(operation, "topic", "books")


_SCHEDULES: Final = (*_both("ALTER_CONFIGS"), Need("WRITE", "topic", "books"))
QUEUE_VERBS: Final[Mapping[str, Sequence[Need]]] = {
    "queue.list": (),
    **dict.fromkeys(("queue.describe", "queue.where"), _both("DESCRIBE")),
    **dict.fromkeys(("queue.create", "queue.alter"), _both("ALTER_CONFIGS")),
    **dict.fromkeys(("queue.lease", "queue.settle", "queue.extend", "queue.browse", "queue.redrive"), _both("READ")),
    "queue.purge": (Need("DELETE", "group", "readers"), Need("READ", "topic", "books")),
    "queue.cancel": (Need("DELETE", "group", "readers"), Need("READ", "topic", "books")),
    "queue.delayed": _both("READ"),
    "queue.deliver": (*_both("READ"), *_both("ALTER_CONFIGS")),
    **dict.fromkeys(("queue.delete", "queue.forget"), _both("DELETE")),
    "queue.schedule.list": _both("DESCRIBE"),
    **dict.fromkeys((f"queue.schedule.{verb}" for verb in ("add", "pause", "resume", "remove")), _SCHEDULES),
}
"""The same of those about queues, here the queue of topic books and group readers."""
COMMANDS: Final[Mapping[str, Sequence[Need]]] = {
    "topic describe books": [SEES_BOOKS, Need("DESCRIBE_CONFIGS", "topic", "books")],
    "topic alter books --set retention.ms=-1": [SEES_BOOKS, Need("ALTER_CONFIGS", "topic", "books")],
    "produce books": [SEES_BOOKS, Need("WRITE", "topic", "books")],
    "consume books -n 1": [SEES_BOOKS, Need("READ", "topic", "books")],
    "group describe readers": [Need("DESCRIBE", "group", "readers")],
    "queue describe books:readers": _both("DESCRIBE"),
    "queue alter books:readers --ttl 1d": _both("ALTER_CONFIGS"),
    "queue receive books:readers": _both("READ"),
    "queue delayed books:readers": _both("READ"),
    "queue delayed books:readers --cancel 0:1 --yes": QUEUE_VERBS["queue.cancel"],
    "queue delayed books:readers --now 0:1 --yes": QUEUE_VERBS["queue.deliver"],
    "queue schedule list books:readers": _both("DESCRIBE"),
    "queue schedule pause books:readers nightly": _SCHEDULES,
    "txn describe tx": [Need("DESCRIBE", "tx", "tx")],
    "acl list": [SEES_THE_CLUSTER],
    "acl add --user eve --allow read --topic eves": [CHANGES_RULES],
    "acl explain --user eve --operation read --topic eves": [SEES_THE_CLUSTER],
    "user list": [SEES_THE_CLUSTER],
    "user create eve --certificate": [CHANGES_RULES],
    "role list": [SEES_THE_CLUSTER],
    "role show producer": [SEES_THE_CLUSTER],
    "role grant no-such-role --user eve": [CHANGES_RULES],
    "apikey list": [SEES_THE_CLUSTER],
    "apikey delete pk_0123456789abcdef --yes": [CHANGES_RULES],
    "security check": [SEES_THE_CLUSTER],
}
"""Rights that a command needs; none of these changes anything that another asks for."""
VERBS: Final[Mapping[str, Need]] = {
    **dict.fromkeys(("user.list", "role.list", "role.show", "apikey.list"), SEES_THE_CLUSTER),
    **dict.fromkeys(("rule.explain", "security.refusals", "security.sealing"), SEES_THE_CLUSTER),
    **dict.fromkeys(("user.create", "user.delete", "apikey.create", "apikey.delete"), CHANGES_RULES),
    **dict.fromkeys(("role.set", "role.delete", "role.grant", "role.revoke"), CHANGES_RULES),
    **dict.fromkeys(("security.forget", "security.reseal"), CHANGES_RULES),
}
"""What Penstock's own request takes, by the name of its verb."""
