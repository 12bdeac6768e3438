"""A peer that has to prove who it is, as the session of its connection sees it.

    guest ── proves who it is ──► known, as a subject      until then: little memory, little time, no other answer

How it proves that is its `Login`'s business: `internal` knows brokers, `kafka` knows clients. A peer whose certificate
says who it is is known from the start, until it begins a login: then the certificate counts no more, whatever comes of
the login.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from penstock.engine.access import Subject
from penstock.net.connection import Connection
from penstock.net.session import Part
from penstock.observe.logs import get_logger
from penstock.protocols.kafka_wire.api import Api

log_ = get_logger("kafka")

LARGEST_BEFORE_LOGIN: Final = 64 * 1024
LOGIN_S: Final = 10.0
PARTING_S: Final = 0.1
"""From a refusal to the end: kafka-python 3.0 drops what it reads together with the end of a connection, and its user
would not be told what is wrong."""


def peer_host(connection: Connection) -> str:
    """Its address, without the port."""
    host, _, _ = connection.peer.rpartition(":")
    return host.removeprefix("[").removesuffix("]")


class NotProven(Exception):
    """The other side could not prove who it is, or broke the exchange."""


class Login(Protocol):
    """How a peer proves who it is: the accepting side of SASL."""

    @property
    def mechanisms(self) -> Sequence[str]:
        """Those that are spoken here."""
        ...

    @property
    def refusal(self) -> str:
        """What a peer is told that has not proved it; the same whatever was wrong."""
        ...

    @property
    def subject(self) -> Subject | None:
        """Who it is, once it has proved it."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether it never will."""
        ...

    def choose(self, mechanism: str) -> bool:
        """Whether the mechanism is spoken here. Raises `NotProven` when it is not the time to choose one."""
        ...

    async def step(self, said: bytes) -> bytes:
        """Our answer to the peer's next message. Raises `NotProven`."""
        ...


class OwnApi(NamedTuple):
    """What only brokers may ask, and no API of Kafka's; its heads are never flexible.

    begin: reads a request's body before it returns, as the view dies then; the answer has its header with it. Takes
        the correlation id, too. Raises `PeerError`.
    """

    api: Api
    begin: Callable[[memoryview, int], Coroutine[Any, Any, Sequence[Part]]]


def _nothing() -> None:
    return None


def _nobody(subject: Subject) -> None:
    return None


_NO_APIS: Final[Mapping[int, OwnApi]] = MappingProxyType({})


class Guest:
    """Attributes:
    subject: who it is, once that is known; until then it may do nothing but prove it.
    login: how it can; None if only its certificate can.
    own_apis: what it may ask besides what clients may, when it is known, by key.
    """

    __slots__ = ("_connection", "_deadline", "_gone", "_is_parting", "_known", "login", "own_apis", "subject")

    def __init__(
        self,
        connection: Connection,
        login: Login | None,
        *,
        known_as: Subject | None = None,
        own_apis: Mapping[int, OwnApi] = _NO_APIS,
    ) -> None:
        self._connection = connection
        self._deadline: asyncio.TimerHandle | None = None
        self._known: Callable[[Subject], None] = _nobody
        self._gone: Callable[[], None] = _nothing
        self._is_parting = False
        self.subject = known_as
        self.login = login
        self.own_apis = own_apis
        if known_as is None:
            self._wait_for_login()

    def _wait_for_login(self) -> None:
        self._connection.limit_frames(LARGEST_BEFORE_LOGIN)
        self._deadline = asyncio.get_running_loop().call_later(LOGIN_S, self._too_late)

    def begin_login(self) -> None:
        """Whom its certificate names was known until now."""
        self.subject = None
        self._gone()
        self._wait_for_login()

    def announce(self, known: Callable[[Subject], None], gone: Callable[[], None]) -> None:
        """Have somebody told when it is known, and when it is gone."""
        self._known, self._gone = known, gone
        if self.subject is not None:
            known(self.subject)

    def answered(self) -> None:
        """To be called after every answer to a peer that is not known: it is let in, or parted with."""
        if self.login is None:
            return
        if self.login.subject is not None:
            self.subject = self.login.subject
            self._connection.limit_frames(None)
            self._stop_waiting()
            self._known(self.subject)
        elif self.login.has_failed:
            self._part()

    def disconnected(self) -> None:
        self._stop_waiting()
        self.login = None  # an answer that comes too late lets nobody in
        self._gone()

    def _part(self) -> None:
        if self._connection.owes:  # it has said more before it was told
            self._connection.close()
        elif not self._is_parting:  # what it says now puts nothing off
            self._is_parting = True
            self._stop_waiting()
            self._deadline = asyncio.get_running_loop().call_later(PARTING_S, self._connection.close)

    def _too_late(self) -> None:
        self._deadline = None
        log_.limited("login").warning(
            "closing connection", peer=self._connection.peer, reason=f"no authentication in {LOGIN_S:g} s"
        )
        self._connection.abort()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
