"""The client side of a connection between brokers: requests in, answers out, several under way at a time.

Connects when a request comes and there is no connection; after a failure only when some time has passed. An answer is
handed to the caller's function as a view of the connection's buffer, before anything else is received into it: a
replica fetch brings up to 64 MB, which are not copied. A connection on which one request is not answered in
time is given up with all that is under way, as answers come in order and none behind it would be better off.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, Final, NamedTuple, TypeVar, cast

from penstock.net.connection import PeerError
from penstock.net.frames import FrameBuffer, FrameError
from penstock.net.tls import CertificateRefused, tell, tell_not_taken
from penstock.ports.clock import Clock
from penstock.ports.network import Network, TlsIdentity, Transport
from penstock.protocols.internal.broker_certificate import BROKER_URI, names_broker
from penstock.protocols.internal.identity import MECHANISM, Identity
from penstock.protocols.internal.requests import SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocols.kafka_wire.api import Api
from penstock.protocols.kafka_wire.codec import skip_tags
from penstock.protocols.kafka_wire.guest import NotProven
from penstock.protocols.kafka_wire.messages import Message, decode, encode, schema_of

T = TypeVar("T")

_HEAD = Struct(">ihhih")  # length, API key, version, correlation id, length of the client id
_I32 = Struct(">i")
_LARGEST_ANSWER: Final = 100 << 20
_LAST_CORRELATION_ID: Final = (1 << 31) - 1
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_UNANSWERED: Final = 3
"""So many TLS connections that the peer closed in a row without an answer are a refusal: since TLS 1.3 a certificate
that is not taken looks like that."""


def _nobody(*_: object) -> None:
    return None


class PeerGone(Exception):
    """There is no connection to the peer, or no longer: what became of a request that was sent is unknown.

    Attributes:
        refused: whether the peer's host answered that nobody listens there: its process is gone.
        stranger: whether one of the two does not take the other for a broker of its cluster.
        sent: whether the request had left, so that the peer may have done what it asks for.
        closed: whether the peer ended the connection.
    """

    def __init__(
        self,
        message: str,
        *,
        refused: bool = False,
        stranger: bool = False,
        sent: bool = False,
        closed: bool = False,
    ) -> None:
        super().__init__(message)
        self.closed = closed
        self.refused = refused
        self.stranger = stranger
        self.sent = sent


class _Waiting(NamedTuple):
    flexible: bool
    handle: Callable[[memoryview], Any]
    answer: "asyncio.Future[Any]"


class _Link:
    """One connection; a receiver of the network port."""

    __slots__ = (
        "_buffer",
        "_client_id",
        "_lost",
        "_next_id",
        "_peer",
        "_transport",
        "_waiting",
        "answered",
        "gone",
        "not_taken",
        "was_closed",
    )

    def __init__(self, peer: str, client_id: bytes, lost: "Callable[[_Link], None]") -> None:
        self._peer = peer
        self._client_id = client_id
        self._lost = lost
        self._buffer = FrameBuffer(_LARGEST_ANSWER)
        self._transport: Transport | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._next_id = 0
        self.answered = 0
        self.gone: PeerGone | None = None
        self.was_closed = False
        """By the peer, whatever came first."""
        self.not_taken: str | None = None
        """Why one of the two does not take the other's certificate, if TLS says so."""

    @property
    def certificate(self) -> bytes | None:
        """The peer's, as DER."""
        return self._transport.certificate if self._transport is not None else None

    def connected(self, transport: Transport) -> None:
        self._transport = transport

    def get_buffer(self) -> memoryview:
        return self._buffer.writable()

    @property
    def missing(self) -> int:
        """See `net.tls_stream.FramesReceiver`."""
        return self._buffer.missing

    def received(self, size: int) -> None:
        self._buffer.add(size)
        try:
            while (frame := self._buffer.next()) is not None:
                self._take(frame)
        except (FrameError, PeerError, StructError) as error:
            self.fail(f"broke the protocol: {error}")

    def _take(self, frame: memoryview) -> None:
        waiting = self._waiting.pop(_I32.unpack_from(frame)[0], None)
        if waiting is None:
            raise PeerError("an answer to no request")
        start = skip_tags(frame, 4) if waiting.flexible else 4
        self.answered += 1
        if waiting.answer.done():  # who asked does not wait any more
            return
        try:
            waiting.answer.set_result(waiting.handle(frame[start:]))
        except Exception as error:  # noqa: BLE001 - belongs to the caller, who gets it
            waiting.answer.set_exception(error)

    def drained(self) -> None:
        """Nothing waits for it: requests are small."""

    def ending(self, error: OSError) -> None:
        """See `net.tls_stream.ToldReceiver`."""
        self.not_taken = tell(error) if isinstance(error, CertificateRefused) else tell_not_taken(error)

    def disconnected(self) -> None:
        self.was_closed = self.gone is None
        self.fail("closed the connection" if self.not_taken is None else f"is not connected any more: {self.not_taken}")

    def fail(self, what: str) -> None:
        """Give the connection up, and tell all who wait. Only the first reason counts."""
        if self.gone is not None:
            return
        self.gone = PeerGone(f"{self._peer} {what}")
        if self._transport is not None:
            self._transport.abort()
        self._lost(self)
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.answer.done():
                each.answer.set_exception(PeerGone(str(self.gone), sent=True, closed=self.was_closed))

    async def request(
        self,
        key: int,
        version: int,
        body: bytes,
        *,
        flexible: bool,
        handle: Callable[[memoryview], T],
        timeout_s: float,
    ) -> T:
        if self.gone is not None or self._transport is None:
            raise PeerGone(str(self.gone))
        loop = asyncio.get_running_loop()
        self._next_id = 0 if self._next_id == _LAST_CORRELATION_ID else self._next_id + 1
        answer: asyncio.Future[T] = loop.create_future()
        self._waiting[self._next_id] = _Waiting(flexible, handle, answer)
        name = self._client_id + b"\0" if flexible else self._client_id
        size = _HEAD.size - 4 + len(name) + len(body)
        head = _HEAD.pack(size, key, version, self._next_id, len(self._client_id))
        self._transport.write(b"".join((head, name, body)))
        timer = loop.call_later(timeout_s, self.fail, f"did not answer API {key} in {timeout_s:g} s")
        try:
            return await answer
        finally:
            timer.cancel()

    async def call(self, api: Api, version: int, fields: Mapping[str, Any], timeout_s: float) -> Message:
        request, answer = schema_of(api.name, version, "request"), schema_of(api.name, version, "response")
        return await self.request(
            api.key,
            version,
            encode(request, fields),
            flexible=request.flexible,
            handle=lambda view: decode(answer, view),
            timeout_s=timeout_s,
        )


class Peer:
    """Another broker of the cluster.

    Args:
        identity: proves that we belong to its cluster; None where the certificate does, or nobody asks.
        timeout_s: how long a request may take, unless it says otherwise.
        connect_timeout_s: for a connection with all its handshakes.
        judged: hears why one of the two does not take the other for a broker of its cluster, and None when both do.
        closed: hears that this was closed, after which `judged` hears nothing.
    """

    def __init__(
        self,
        network: Network,
        host: str,
        port: int,
        clock: Clock,
        *,
        identity: Identity | None = None,
        tls: ssl.SSLContext | TlsIdentity | None = None,
        client_id: str = "broker",
        timeout_s: float = 30.0,
        connect_timeout_s: float = 5.0,
        judged: Callable[[str | None], None] = _nobody,
        closed: Callable[[], object] = _nobody,
    ) -> None:
        self._network = network
        self._host = host
        self._port = port
        self._clock = clock
        self._identity = identity
        self._tls = tls
        self._client_id = client_id.encode()
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._link: _Link | None = None
        self._connecting: asyncio.Task[_Link] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._closed = False
        self._judged = judged
        self._when_closed = closed
        self._refusal: str | None = ""  # neither refused nor let in yet
        self._unanswered = 0
        self.refusals = 0
        """How many times in a row the peer's host said that nobody listens there."""

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._port

    @property
    def name(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    async def request(
        self,
        key: int,
        version: int,
        body: bytes,
        *,
        flexible: bool,
        handle: Callable[[memoryview], T],
        timeout_s: float | None = None,
    ) -> T:
        """Send an encoded request; what `handle` makes of the answer's body.

        `handle` runs as soon as the answer is there. Its view dies when it returns: `handle=bytes` takes a copy. What
        it raises is raised here.

        Args:
            flexible: whether this version of the API is; decides the headers. ApiVersions cannot be asked this way.

        Raises:
            PeerGone: no connection, a lost one, or no answer in time.
        """
        link = self._link or await self._reach()
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        answer = await link.request(key, version, body, flexible=flexible, handle=handle, timeout_s=timeout_s)
        self._is_let_in()
        return answer

    async def call(
        self, api: Api, version: int, fields: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> Message:
        """The same by the schema of an API, for what is not hot. Raises `PeerGone`, `PeerError`."""
        link = self._link or await self._reach()
        answer = await link.call(api, version, fields, self._timeout_s if timeout_s is None else timeout_s)
        self._is_let_in()
        return answer

    async def connect(self) -> None:
        """Have a connection, with all its handshakes. Raises `PeerGone`."""
        if self._link is None:
            await self._reach()

    def close(self) -> None:
        """Give up what is under way, for good."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.fail("was given up by this broker")
        self._when_closed()

    # --- connecting

    async def _reach(self) -> _Link:
        """The connection that is being made; whoever needs one waits for the same."""
        if self._closed:
            raise PeerGone(f"{self.name} was given up by this broker")
        connecting = self._connecting
        if connecting is None:
            connecting = self._connecting = asyncio.get_running_loop().create_task(self._connect())
            connecting.add_done_callback(self._connected)
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled() and self._closed:
                raise PeerGone(f"{self.name} was given up by this broker") from None
            raise

    def _connected(self, connecting: "asyncio.Task[_Link]") -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # looked at here as well: all who waited may be gone

    async def _connect(self) -> _Link:
        pause_s = self._not_before - self._clock.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        link = _Link(self.name, self._client_id, self._lost)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._network.connect(
                    self._host, self._port, link, timeout_s=self._connect_timeout_s, tls=self._tls
                )
                if link.certificate is not None and not names_broker(link.certificate):
                    raise CertificateRefused(f"its certificate does not name a broker ({BROKER_URI})")
                await self._prove(link)
        except (OSError, PeerGone, PeerError, NotProven, asyncio.CancelledError) as error:
            link.fail("was given up")
            if isinstance(error, asyncio.CancelledError):
                raise
            raise self._explain(error, link) from error
        if link.gone is not None:
            raise self._explain(link.gone, link)
        link.answered = 0
        self.refusals = 0
        self._link = link
        if self._identity is not None:
            self._is_let_in()
        return link

    def _is_let_in(self) -> None:
        self._unanswered = 0
        if self._refusal is not None and not self._closed:
            self._refusal = None
            self._judged(None)

    def _is_refused(self, why: str) -> None:
        if self._refusal != why and not self._closed:
            self._refusal = why
            self._judged(why)

    def _explain(self, error: Exception, link: _Link) -> PeerGone:
        refused = isinstance(error, ConnectionRefusedError)
        self.refusals = self.refusals + 1 if refused else 0
        self._failed()
        not_taken = link.not_taken
        if isinstance(error, CertificateRefused | ssl.SSLCertVerificationError):
            not_taken = tell(error)
        elif isinstance(error, ssl.SSLError):
            not_taken = tell_not_taken(error)
        if not_taken is not None:
            self._is_refused(not_taken)
            return PeerGone(f"cannot connect to {self.name}: {not_taken}", stranger=True)
        if isinstance(error, PeerGone):
            self._count_unanswered(link)
            return PeerGone(str(error))
        if isinstance(error, NotProven):
            text = f"{self.name} is not of this cluster: {error}; all brokers need the same secret"
            self._is_refused(str(error))
            return PeerGone(text, stranger=True)
        if isinstance(error, TimeoutError):
            return PeerGone(f"{self.name} could not be reached in {self._connect_timeout_s:g} s")
        return PeerGone(f"cannot connect to {self.name}: {error}", refused=refused)

    def _failed(self) -> None:
        self._failures += 1
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10), _LONGEST_PAUSE_S)
        self._not_before = self._clock.monotonic() + pause_s

    def _lost(self, link: _Link) -> None:
        if self._link is not link:
            return
        self._link = None
        if link.answered:  # the next connection at once
            self._failures = 0
            return
        self._failed()
        if link.not_taken is not None:
            self._is_refused(link.not_taken)
            return
        self._count_unanswered(link)

    def _count_unanswered(self, link: _Link) -> None:
        self._unanswered += link.was_closed
        if self._tls is not None and self._unanswered >= _UNANSWERED:
            self._is_refused(
                "it closes TLS connections without an answer; does it take this broker's certificate, and has this "
                f"broker the secret, if it has one? A broker's certificate names {BROKER_URI}"
            )

    async def _prove(self, link: _Link) -> None:
        if self._identity is None:
            return
        timeout_s = self._connect_timeout_s
        chosen = await link.call(SASL_HANDSHAKE, SASL_HANDSHAKE.newest, {"mechanism": MECHANISM}, timeout_s)
        if chosen.error_code:
            raise NotProven(f"it does not speak {MECHANISM} here; is this its internal listener?")

        async def say(said: bytes) -> bytes:
            fields = {"auth_bytes": said}
            answer = await link.call(SASL_AUTHENTICATE, SASL_AUTHENTICATE.newest, fields, timeout_s)
            if answer.error_code:
                raise NotProven(answer.error_message or f"error {answer.error_code}")
            return cast(bytes, answer.auth_bytes)

        proof = self._identity.make_proof()
        proof.check(await say(proof.answer(await say(proof.first()))))
