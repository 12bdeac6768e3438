"""Who may do what: the one decision that every verb of every door asks for.

A `Subject` is who a connection speaks for; it is made once, when that is known. A `Policy` decides about it: one
revision of the rules, pure, and replaced as a whole when they change. Until there are rules everybody may do
everything, by `Open`.

Doors never ask here. They reach the engine as somebody (`acting`), and are refused there with `NotAuthorised`.
"""

from collections.abc import Hashable
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from penstock.errors import Code, PenstockError


class Operation(StrEnum):
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster_action"
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"
    IDEMPOTENT_WRITE = "idempotent_write"
    CREATE_TOKENS = "create_tokens"
    DESCRIBE_TOKENS = "describe_tokens"
    TWO_PHASE_COMMIT = "two_phase_commit"
    ALL = "all"
    """Rules say it; nobody asks for it."""


class Kind(StrEnum):
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"
    CLUSTER = "cluster"
    USER = "user"
    TOKEN = "token"  # noqa: S105 - a kind of thing


class Resource(NamedTuple):
    """What an operation is about."""

    kind: Kind
    name: str


THE_CLUSTER: Final = Resource(Kind.CLUSTER, "kafka-cluster")
"""There is one; its name is Kafka's, by which rules know it."""


class Subject(NamedTuple):
    """Who asks: a principal (`User:alice`), where it comes from, and by which door.

    A peer that was not asked who it is is `User:ANONYMOUS`.
    """

    principal: str = "User:ANONYMOUS"
    host: str = ""
    door: str = ""
    method: str = ""
    """How it has proved who it is: a `security.methods.Method`."""
    key: str = ""
    """The id of the API key it came with, which may narrow what its user may do."""
    until_ms: int = 0
    """The moment after which it has to prove itself again; 0: none."""


ANONYMOUS: Final = Subject()
BROKERS: Final = Subject("Broker:", door="internal")
"""A broker of this cluster, on its own behalf. No rule is about it, and no client can say that it is one."""


LONGEST_KEPT: Final = 256
"""Characters of a name by which a verdict is kept; more than a topic's can have.

About a longer one the rules are asked each time: whoever asks chooses the names, and would fill the memory with them.
"""


class NotAuthorised(PenstockError):
    """The subject may not do that. Whether the thing exists is not said.

    Args:
        words: what to call the thing, where it was not the subject that named it.
    """

    def __init__(self, subject: Subject, operation: Operation, resource: Resource, words: str = "") -> None:
        super().__init__(
            Code.NOT_AUTHORISED,
            f"{subject.principal} may not {operation} {words or f'{resource.kind} {resource.name!r}'}",
            help="ask who runs the cluster for the right to do so",
        )
        self.kind = resource.kind


class Policy(Protocol):
    """One revision of the rules."""

    @property
    def revision(self) -> int:
        """Another one for other rules: verdicts may be kept as long as it stays."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything, so that an answer for one is an answer for all."""
        ...

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        """Whether the subject may."""
        ...

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        """Whether the subject may do it to some thing of that kind, whatever its name (KIP-679)."""
        ...

    def likeness(self, subject: Subject) -> Hashable:
        """Equal for two subjects that may do the same, as far as that is cheap to tell."""
        ...


class Open:
    """Everybody may do everything."""

    revision = 0
    is_open = True

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return True

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        return True

    def likeness(self, subject: Subject) -> Hashable:
        return None


class Access:
    """The rules in force on one broker.

    Args:
        denials: how often something was refused, by operation and kind of thing.

    Attributes:
        policy: replaced as a whole when the rules change.
    """

    __slots__ = ("_denials", "policy")

    def __init__(self, policy: Policy | None = None, denials: dict[tuple[str, str], int] | None = None) -> None:
        self.policy: Policy = policy or Open()
        self._denials = {} if denials is None else denials

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        return subject is BROKERS or self.policy.decide(subject, operation, resource)

    def check(self, subject: Subject, operation: Operation, resource: Resource) -> None:
        """Raises `NotAuthorised` if the subject may not."""
        if not self.decide(subject, operation, resource):
            raise self.refuse(subject, operation, resource)

    def refuse(self, subject: Subject, operation: Operation, resource: Resource, words: str = "") -> NotAuthorised:
        """What to tell a subject that may not; it is counted. `words`: see there."""
        counted = operation.value, resource.kind.value
        self._denials[counted] = self._denials.get(counted, 0) + 1
        return NotAuthorised(subject, operation, resource, words)

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        return subject is BROKERS or self.policy.decide_any(subject, operation, kind)

    def likeness(self, subject: Subject) -> Hashable:
        """Equal for two subjects that may do the same, under the same rules."""
        return self.policy.revision, BROKERS if subject is BROKERS else self.policy.likeness(subject)
