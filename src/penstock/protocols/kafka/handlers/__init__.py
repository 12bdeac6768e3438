"""One file per API. Each names its key, its kio schema name and the versions it serves; what ApiVersions advertises
is derived from that, so it cannot drift.

A handler takes the decoded request and returns the response's fields, or a coroutine that does; `encode` keeps the
fields the version has. Produce and Fetch are the exception: they read and write bytes themselves.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.engine.engine import Engine
from penstock.observe.stats import Stats
from penstock.protocols.kafka.messages import Message

if TYPE_CHECKING:
    from penstock.protocols.kafka.fetch_sessions import FetchSessions

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Api:
    """Args:
    key: Kafka's number of the API.
    name: kio's name of its schema, and our metric label.
    oldest, newest: the versions served.
    """

    key: int
    name: str
    oldest: int
    newest: int


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


class Handle(Protocol):
    def __call__(self, context: Context, request: Message, version: int) -> Fields | Awaitable[Fields]: ...
