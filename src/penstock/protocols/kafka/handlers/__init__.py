"""One file per API. Each names its key, its kio schema name and the versions it serves; what ApiVersions advertises
is derived from that, so it cannot drift.

A handler takes the decoded request and returns the response's fields, or a coroutine that does; `encode` keeps the
fields the version has. Produce and Fetch are the exception: they read and write bytes themselves.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.engine.engine import Engine
from penstock.observe.stats import Stats
from penstock.protocols.kafka.messages import Message

if TYPE_CHECKING:
    from penstock.cluster.image import Image
    from penstock.cluster.operations import Operations
    from penstock.protocols.kafka.fetch_sessions import FetchSessions
    from penstock.protocols.kafka.identity import Identity, Login

Fields = Mapping[str, Any]
# Authorized operations as bits. There is no access control: everybody may do all that can be done to a thing.
NO_OPERATIONS: Final = -(1 << 31)
"""Not asked for."""
GROUP_OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8, 10, 11))
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


@dataclass(frozen=True, slots=True)
class Api:
    """Args:
    key: Kafka's number of the API.
    name: kio's name of its schema, and our metric label.
    oldest, newest: the versions served.
    told_caller: whether its handler is told who calls, as a fourth argument.
    slow: whether it may take long, if only because much is asked for. Such a request waits for its turn, and its
        connection takes no further one meanwhile; the handler takes a turn (`engine.turns`) for every step.
    reads: slow, and it changes nothing, so that it ends with its connection.
    parks: whether its answer may wait for other clients. If not, and it is large, its connection takes no further
        request meanwhile either: what changes something in steps must not be overtaken by what comes behind it.
    """

    key: int
    name: str
    oldest: int
    newest: int
    told_caller: bool = False
    slow: bool = False
    reads: bool = False
    parks: bool = False

    @property
    def is_slow(self) -> bool:
        return self.slow or self.reads


class Caller(NamedTuple):
    """Who sent a request: what it calls itself, and where it comes from."""

    client_id: str
    host: str
    is_broker: bool = False
    """Whether it has proved to be a broker of this cluster."""
    login: "Login | None" = None
    """How it can prove that, on the internal listener."""


class Answers:
    """Encoded answers that stay right until the topics change, by request: 10,000 partitions take 50 ms to encode."""

    __slots__ = ("_by_request", "_revision")
    _CAPACITY = 64
    _LARGEST_REQUEST = 64 * 1024

    def __init__(self) -> None:
        self._by_request: dict[tuple[int, bytes], bytes] = {}
        self._revision = -1

    def get(self, revision: int, version: int, request: memoryview) -> bytes | None:
        if revision != self._revision:
            self._by_request.clear()
            self._revision = revision
        return self._by_request.get((version, bytes(request))) if len(request) <= self._LARGEST_REQUEST else None

    def put(self, revision: int, version: int, request: bytes, body: bytes) -> None:
        if revision != self._revision or len(request) > self._LARGEST_REQUEST:
            return
        if len(self._by_request) >= self._CAPACITY:
            self._by_request.pop(next(iter(self._by_request)))
        self._by_request[version, request] = body


class BrokerSetting(NamedTuple):
    """One of the broker's own settings, under Kafka's name for it."""

    name: str
    value: str
    kind: str
    is_default: bool
    documentation: str


def _nobody(broker_id: int) -> None:
    return None


@dataclass(slots=True)
class Context:
    """What handlers need besides the request."""

    engine: Engine
    stats: Stats
    node_id: int
    host: str
    port: int
    auto_create: bool
    fetch_sessions: "FetchSessions"
    broker_settings: Sequence[BrokerSetting] = ()
    image: "Image | None" = None
    """The cluster as this broker knows it; None for a broker on its own."""
    operations: "Operations | None" = None
    """What an operator may ask of the cluster; None for a broker on its own."""
    is_isolated: "Callable[[], bool]" = lambda: False
    """Whether this broker is cut off, so that clients should ask others who leads."""
    file_defaults: Mapping[str, str] | None = None
    """Topic defaults as the broker's file has them, where others can be set at run time."""
    cluster: bool = False
    """Whether there are other brokers; what only they may ask is then refused to clients."""
    identity: "Identity | None" = None
    """What brokers prove themselves by on the internal listener, unless their certificate does."""
    refused_logins: dict[str, float] = field(default_factory=dict)
    """When whoever calls itself by the name of a broker of the cluster last failed to prove that it is one."""
    refusals: Callable[[], Sequence[str]] = tuple
    """Brokers that are not taken for ones of the cluster, here or by others, as far as this broker knows."""
    broker_lost: Callable[[int], None] = _nobody
    """Told the id of a broker whose connection for replica fetches is gone."""
    metadata_answers: Answers = field(default_factory=Answers)


class Handle(Protocol):
    def __call__(
        self, context: Context, request: Message, version: int, *caller: Caller
    ) -> Fields | Coroutine[Any, Any, Fields]: ...
