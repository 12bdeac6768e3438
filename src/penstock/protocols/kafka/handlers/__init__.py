"""One file per API. Each names its key, its kio schema name and the versions it serves; what ApiVersions advertises
is derived from that, so it cannot drift.

A handler takes the decoded request and returns the response's fields, or a coroutine that does; `encode` keeps the
fields the version has. It reaches the engine as whoever calls may (`Caller.acting`), and by no other way. Produce,
Fetch, ShareFetch and ShareAcknowledge are the exception: they read and write bytes themselves.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.engine.access import Subject
from penstock.engine.acting.acting import Acting, Scope
from penstock.observe.stats import Stats
from penstock.protocols.kafka_wire.messages import Message
from penstock.turns import Turns

if TYPE_CHECKING:
    from penstock.cluster.image import Image
    from penstock.cluster.operations import Operations
    from penstock.protocols.kafka.fetch_sessions import FetchSessions
    from penstock.protocols.kafka.share_requests import Shares
    from penstock.protocols.kafka_wire.guest import Login
    from penstock.security.guard import Guard

Fields = Mapping[str, Any]


class Caller(NamedTuple):
    """Who sent a request: what it may do, what it calls itself, and where it comes from."""

    acting: Acting
    client_id: str
    host: str
    is_broker: bool = False
    """Whether it has proved to be a broker of this cluster."""
    login: "Login | None" = None
    """How it can prove that, on the internal listener."""


class Answers:
    """Encoded answers that stay right until the topics change: 10,000 partitions take 50 ms to encode.

    By request, and by the scope of who asked: what one may see is not for another. Where there is no room, the user who
    has most of them loses the oldest of these, so nobody flushes what others have.
    """

    __slots__ = ("_held", "_kept", "_revisions")
    _CAPACITY = 64
    _LARGEST_REQUEST = 64 * 1024

    def __init__(self) -> None:
        self._kept: dict[tuple[Scope, int, bytes], bytes] = {}
        self._held: Counter[str] = Counter()
        """How many, by principal."""
        self._revisions = -1, 0  # of the topics, and of the rules

    def get(self, revision: int, scope: Scope, version: int, request: memoryview) -> bytes | None:
        if (revision, scope[0]) != self._revisions:
            self._kept.clear()
            self._held.clear()
            self._revisions = revision, scope[0]
        return self._kept.get((scope, version, bytes(request))) if len(request) <= self._LARGEST_REQUEST else None

    def put(self, revision: int, scope: Scope, version: int, request: bytes, body: bytes) -> None:
        if (revision, scope[0]) != self._revisions or len(request) > self._LARGEST_REQUEST:
            return
        key = scope, version, request
        if key not in self._kept:
            self._held[_who(scope)] += 1
            if len(self._kept) >= self._CAPACITY:
                self._make_room()
        self._kept[key] = body

    def _make_room(self) -> None:
        most = max(self._held.values())
        key = next(key for key in self._kept if self._held[_who(key[0])] == most)
        del self._kept[key]
        self._held[_who(key[0])] -= 1
        self._held += Counter()  # without those who have none any more


def _who(scope: Scope) -> str:
    subject = scope[1]
    return "" if subject is None else subject.principal


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

    acting_as: Callable[[Subject], Acting]
    """The way to the engine: as somebody."""
    turns: Turns
    topic_defaults: Mapping[str, str]
    default_partitions: int
    stats: Stats
    node_id: int
    host: str
    port: int
    auto_create: bool
    fetch_sessions: "FetchSessions"
    shares: "Shares"
    listener: str = "kafka"
    """To whose listener of this name its clients are sent, on every broker."""
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
    guard: "Guard | None" = None
    """Users and rules; None where nobody is asked who they are."""
    refusals: Callable[[], Sequence[str]] = tuple
    """Brokers that are not taken for ones of the cluster, here or by others, as far as this broker knows."""
    broker_lost: Callable[[int], None] = _nobody
    """Told the id of a broker whose connection for replica fetches is gone."""
    metadata_answers: Answers = field(default_factory=Answers)


Told = Fields | Coroutine[Any, Any, Fields]
Handle = Callable[[Context, Message, int, Caller], Told]
