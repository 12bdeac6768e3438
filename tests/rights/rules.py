"""Rules as words, and the themes: which principal has which.

A rule is written as `allow READ topic:books`, with a colon for the name itself and `^` for what begins with it; a
fourth word `@address` names the host. Every principal has its own, so that all of them are in force at once and each
sees its own only; what is for `User:*` is about topics of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

OPERATIONS: Final = {
    "ALL": 2,
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
    "CREATE_TOKENS": 13,
    "DESCRIBE_TOKENS": 14,
    "TWO_PHASE_COMMIT": 15,
}
KINDS: Final = {"topic": 2, "group": 3, "cluster": 4, "tx": 5, "token": 6, "user": 7}
PATTERNS: Final = {":": 3, "^": 4}
EFFECTS: Final = {"deny": 2, "allow": 3}
CLUSTER: Final = "kafka-cluster"
EVERYBODY: Final = "*"
SUPER: Final = "root"
NAMES: Final[Mapping[str, Sequence[str]]] = {
    "topic": ("books", "books-new"),
    "group": ("readers", "readers-new", "readers-modern", "readers-classic"),
    "cluster": (CLUSTER,),
    "tx": ("tx", "tx-open"),
    "user": ("somebody",),
    "token": ("token",),
}
"""What single rights are about. Beside each there are others, of the same prefix and of none."""
POSSIBLE: Final[Mapping[str, Sequence[str]]] = {
    "topic": ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "group": ("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "cluster": (
        *("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE"),
    ),
    "tx": ("WRITE", "DESCRIBE", "TWO_PHASE_COMMIT"),
    "user": ("CREATE_TOKENS", "DESCRIBE_TOKENS"),
    "token": ("DESCRIBE",),
}
Rules = Mapping[str, Sequence[str]]
"""By principal, without `User:`."""


class Rule(NamedTuple):
    """One rule, in Kafka's numbers."""

    principal: str
    host: str
    operation: int
    kind: int
    pattern: int
    name: str
    effect: int

    def creation(self) -> dict[str, Any]:
        """As CreateAcls takes it."""
        return {
            "resource_type": self.kind,
            "resource_name": self.name,
            "resource_pattern_type": self.pattern,
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation,
            "permission_type": self.effect,
        }


def parse(user: str, text: str) -> Rule:
    effect, operation, thing, *rest = text.split(" ")
    mark = ":" if ":" in thing else "^"
    kind, _, name = thing.partition(mark)
    host = rest[0].removeprefix("@") if rest else "*"
    return Rule(f"User:{user}", host, OPERATIONS[operation], KINDS[kind], PATTERNS[mark], name, EFFECTS[effect])


def _each(effect: str, operation: str, kind: str) -> list[str]:
    return [f"{effect} {operation} {kind}:{name}" for name in NAMES[kind]]


def _single_rights() -> Iterator[tuple[str, Sequence[str]]]:
    yield "nobody", ()
    yield SUPER, ()
    for kind, operations in POSSIBLE.items():
        for operation in ("ALL", *operations):
            yield f"{kind}-{operation}", _each("allow", operation, kind)


def _single_denials() -> Iterator[tuple[str, Sequence[str]]]:
    """All but one thing: a denial implies nothing, and is implied by nothing."""
    for kind, operations in POSSIBLE.items():
        everything = [f"allow ALL {other}:{CLUSTER if other == 'cluster' else '*'}" for other in KINDS]
        for operation in ("ALL", *operations):
            yield f"not-{kind}-{operation}", [*everything, *_each("deny", operation, kind)]


def _patterns() -> Iterator[tuple[str, Sequence[str]]]:
    """A prefix is about what begins with it, also itself; a name of `*` about all, a prefix of `*` about none here."""
    begins = {"topic": "books", "group": "readers", "tx": "tx"}
    for kind, operation in (
        *(("topic", "READ"), ("topic", "WRITE"), ("topic", "CREATE"), ("topic", "DELETE"), ("topic", "DESCRIBE")),
        *(("topic", "ALTER_CONFIGS"), ("group", "READ"), ("group", "DELETE"), ("group", "DESCRIBE")),
        *(("tx", "WRITE"), ("tx", "DESCRIBE")),
    ):
        yield f"prefix-{kind}-{operation}", [f"allow {operation} {kind}^{begins[kind]}"]
        yield f"any-{kind}-{operation}", [f"allow {operation} {kind}:*"]
    yield "starred-prefix", ["allow ALL topic^*", "allow ALL group^*", "allow ALL tx^*"]
    yield "longer-prefix", ["allow ALL topic^books-", "allow ALL group^readers-", "allow ALL tx^tx-"]
    yield "too-long-prefix", ["allow ALL topic^books-newer", "allow ALL group^readers-newer", "allow ALL tx^txx"]
    yield "other-case", ["allow ALL topic:Books", "allow ALL group:Readers", "allow ALL tx^TX"]
    yield "other-kind", ["allow ALL group:books", "allow ALL topic:readers", "allow ALL topic:tx"]


def _conflicts() -> Iterator[tuple[str, Sequence[str]]]:
    """A denial wins, whatever is more exact, whatever pattern or host it has."""
    patterns = {"name": ":books", "short": "^book", "prefix": "^books", "long": "^books-", "star": ":*"}
    for allowed in ("name", "prefix", "star"):
        for denied, pattern in patterns.items():
            yield f"{allowed}-denied-{denied}", [f"allow ALL topic{patterns[allowed]}", f"deny READ topic{pattern}"]
    yield "describe-denied-prefix", ["allow READ topic:*", "allow READ group:*", "deny DESCRIBE topic^books"]
    yield "groups-denied", ["allow READ topic:*", "allow ALL group:*", "deny READ group^readers-"]
    yield "group-describe-denied", ["allow READ topic:*", "allow READ group:*", "deny DESCRIBE group:readers"]
    yield "tx-denied", ["allow WRITE topic:*", "allow WRITE tx:*", "deny ALL tx:tx"]
    yield "tx-describe-denied", ["allow WRITE topic:*", "allow WRITE tx:*", "deny DESCRIBE tx^tx"]
    yield "configs-denied", ["allow ALTER_CONFIGS topic:*", "deny DESCRIBE_CONFIGS topic^books"]
    yield "create-by-cluster", [f"allow CREATE cluster:{CLUSTER}", "deny CREATE topic:books-new"]
    yield "create-by-topic", ["allow CREATE topic:*", f"deny CREATE cluster:{CLUSTER}"]
    yield "cluster-denied", [f"allow ALL cluster:{CLUSTER}", f"deny DESCRIBE cluster:{CLUSTER}", "allow ALL group:*"]


def _hosts() -> Iterator[tuple[str, Sequence[str]]]:
    """All come from 127.0.0.1."""
    for name, host in (("here", "127.0.0.1"), ("elsewhere", "10.9.8.7"), ("anywhere", "*"), ("named", "localhost")):
        yield f"from-{name}", [f"allow ALL {kind}:{name} @{host}" for kind in NAMES for name in NAMES[kind]]
        denied = [f"deny {verb} topic:books @{host}" for verb in ("READ", "DESCRIBE")]
        yield f"denied-{name}", ["allow ALL topic:*", "allow READ group:*", *denied, f"deny READ group:readers @{host}"]
    yield "two-hosts", ["allow READ topic:books @10.9.8.7", "allow DESCRIBE topic:books @127.0.0.1"]


def _some_topic() -> Iterator[tuple[str, Sequence[str]]]:
    """Who may write to some topic may have a producer id (KIP-679); which denials kill that is Kafka's own."""
    yield "writes-one", ["allow WRITE topic:books"]
    yield "writes-prefix", ["allow WRITE topic^books"]
    yield "writes-missing", ["allow WRITE topic:no-such-topic"]
    yield "may-all-of-one", ["allow ALL topic:books"]
    yield "only-reads", ["allow READ topic:*"]
    yield "writes-one-denied", ["allow WRITE topic:books", "deny WRITE topic:books"]
    yield "writes-one-all-denied", ["allow WRITE topic:books", "deny ALL topic:books"]
    yield "writes-one-read-denied", ["allow WRITE topic:books", "deny READ topic:books", "deny DESCRIBE topic:*"]
    yield "writes-one-prefix-denied", ["allow WRITE topic:books", "deny WRITE topic^boo"]
    yield "writes-one-same-prefix-denied", ["allow WRITE topic:books", "deny WRITE topic^books"]
    yield "writes-one-longer-denied", ["allow WRITE topic:books", "deny WRITE topic^books-"]
    yield "writes-one-star-denied", ["allow WRITE topic:books", "deny WRITE topic:*"]
    yield "writes-prefix-name-denied", ["allow WRITE topic^books", "deny WRITE topic:books"]
    yield "writes-prefix-same-denied", ["allow WRITE topic^books", "deny WRITE topic^books"]
    yield "writes-prefix-shorter-denied", ["allow WRITE topic^books", "deny WRITE topic^b"]
    yield "writes-prefix-longer-denied", ["allow WRITE topic^books", "deny WRITE topic^books-"]
    yield "writes-any-name-denied", ["allow WRITE topic:*", "deny WRITE topic:books"]
    yield "writes-any-prefix-denied", ["allow WRITE topic:*", "deny WRITE topic^books"]
    yield "writes-any-star-denied", ["allow WRITE topic:*", "deny WRITE topic:*"]
    yield "writes-two-one-denied", ["allow WRITE topic:books", "allow WRITE topic:letters", "deny WRITE topic:books"]
    yield "writes-elsewhere", ["allow WRITE topic:books @10.9.8.7"]
    yield "writes-denied-elsewhere", ["allow WRITE topic:books", "deny WRITE topic:books @10.9.8.7"]
    yield "writes-idempotent-denied", ["allow WRITE topic:books", f"deny IDEMPOTENT_WRITE cluster:{CLUSTER}"]


def _work() -> Iterator[tuple[str, Sequence[str]]]:
    """What programs are given."""
    yield "consumer", ["allow READ topic:books", "allow READ group:readers"]
    yield "consumer-of-two", ["allow READ topic:books", "allow READ topic:letters", "allow READ group^readers"]
    yield "consumer-of-one", ["allow READ topic:books", "allow READ group^readers"]
    yield "describer", ["allow DESCRIBE topic:*", "allow DESCRIBE group:*", "allow DESCRIBE tx:*"]
    yield "group-only", ["allow READ group:*"]
    yield "topics-only", ["allow READ topic:*"]
    yield "producer", ["allow WRITE topic:books"]
    yield "transactional", ["allow WRITE topic:books", "allow WRITE tx:tx"]
    yield "transactional-no-topic", ["allow WRITE tx:tx"]
    yield "transactional-open", ["allow DESCRIBE tx^tx", "allow DESCRIBE topic:letters"]
    yield (
        "exactly-once",
        ["allow WRITE topic:books", "allow READ topic:letters", "allow WRITE tx:tx", "allow READ group:readers"],
    )
    yield "exactly-once-no-group", ["allow WRITE topic:books", "allow READ topic:letters", "allow WRITE tx:tx"]
    yield "sees-groups", [f"allow DESCRIBE cluster:{CLUSTER}"]
    yield "sees-groups-and-one-topic", [f"allow DESCRIBE cluster:{CLUSTER}", "allow DESCRIBE topic:books"]
    yield "creates-and-sees", ["allow CREATE topic^books", "allow DESCRIBE topic^books"]
    yield "creates-and-sees-settings", ["allow CREATE topic:*", "allow DESCRIBE_CONFIGS topic:books-new"]
    yield "deletes-groups", ["allow DELETE group:*", "allow READ topic:books"]
    yield "deletes-anything", [f"allow DELETE cluster:{CLUSTER}"]
    yield "keeps-rules", [f"allow ALTER cluster:{CLUSTER}"]


FOR_EVERYBODY: Final = (
    "allow READ topic:public",
    "deny WRITE topic:public",
    "deny DESCRIBE topic:shut",
    "deny ALL topic:buried",
)
"""Of `User:*`, beside what anybody has."""


def _everybody() -> Iterator[tuple[str, Sequence[str]]]:
    """What `User:*` has is anybody's, and what it is denied nobody may, but for a super user."""
    yield "has-public", ["allow ALL topic:public", "allow ALL topic:shut", "allow ALL topic:buried"]
    yield "denied-public", ["deny READ topic:public"]
    yield "denied-to-see-public", ["deny DESCRIBE topic^pub"]
    yield "has-everything", [f"allow ALL {kind}:{CLUSTER if kind == 'cluster' else '*'}" for kind in KINDS]


THEMES: Final[Mapping[str, Rules]] = {
    "single-rights": dict(_single_rights()),
    "single-denials": dict(_single_denials()),
    "patterns": dict(_patterns()),
    "conflicts": dict(_conflicts()),
    "hosts": dict(_hosts()),
    "some-topic": dict(_some_topic()),
    "work": dict(_work()),
    "everybody": dict(_everybody()),
}
LAST: Final = ("last", "allow DESCRIBE topic:last")
"""A rule that is made after all others: when it is in force, they are."""

MADE_AGAIN: Final = parse("eve", "allow READ topic:eves")
"""A rule that is there already when somebody makes it."""


def principals() -> list[str]:
    return [user for theme in THEMES.values() for user in theme]


def all_rules() -> list[Rule]:
    made = [parse(user, text) for theme in THEMES.values() for user, texts in theme.items() for text in texts]
    return [*made, MADE_AGAIN, *(parse(EVERYBODY, text) for text in FOR_EVERYBODY)]
