"""Health, metrics and a front page over HTTP: a Starlette app, and uvicorn serving it inside the broker's own loop.

uvicorn limits neither how long a request may take to arrive nor how large its head may grow, and would
otherwise let a peer that sends one byte a minute hold a connection for ever; `GuardedHttp` adds both, and a bound on
the memory of heads, for one of short lines takes twenty times its size. When there are too many connections the one
that has not asked for longest makes room: a probe is answered while others flood the door, also from its own address,
for it needs milliseconds and they must come by the hundred to push it out.
"""

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from penstock import __version__
from penstock.errors import Code, StartupError
from penstock.observe.logs import get_logger
from penstock.observe.stats import Stats
from penstock.server import front_page
from penstock.server.descriptors import HTTP_CONNECTIONS
from penstock.server.front_page import Whereabouts
from penstock.server.health import Health
from penstock.server.http_login import Admission, Asker, HttpLogin
from penstock.server.listening import cannot_listen

if TYPE_CHECKING:
    from penstock.net.tls_listener import TlsListener
    from penstock.ports.network import TlsIdentity

MAX_CONNECTIONS = HTTP_CONNECTIONS
MAX_PIPELINED = 32  # requests of one connection that wait for the answer to an earlier one
REQUEST_DEADLINE_S = 30.0  # from its first byte, or the connection's start, to its last
MAX_HEAD_BYTES = 64 * 1024
MAX_KEPT_BYTES = 96 * 1024  # of memory, for the heads of one connection that are under way or wait for their answers
KEEP_ALIVE_S = 15
STOP_GRACE_S = 1

_LINE_BYTES = 128  # of memory, for a line of a head besides its text
_NO_STORE = {"cache-control": "no-store"}
# Path to the request kind in metrics; anything else is "other", so that peers cannot invent labels.
_KINDS = {"/health": "health", "/health/live": "live", "/health/ready": "ready", "/metrics": "metrics"}

_log = get_logger("http")


def create_app(
    *,
    health: Health,
    summary: Callable[[], Mapping[str, object]],
    scrape: Callable[[str], tuple[bytes, str]],
    whereabouts: Callable[[], Whereabouts],
    stats: Stats,
    login: HttpLogin | None = None,
    has_front_page: bool = True,
) -> ASGIApp:
    """Build the app that answers health and metrics.

    Args:
        health: how the broker is.
        summary: further facts for `/health`, ready for JSON.
        scrape: the metrics for an Accept header: body and content type (`Exposition.render`).
        whereabouts: what the front page tells of the broker.
        stats: where requests are counted.
        login: who may see more than that the broker lives and is ready; everybody if there is none.
        has_front_page: whether `/` says what is where.
    """

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "live"}, headers=_NO_STORE)  # that it answers is the answer

    async def ready(request: Request) -> Response:
        reasons = health.not_ready()
        body: dict[str, object] = {"status": "not ready" if reasons else "ready"}
        if await _knows(request, login):  # they name listeners and brokers
            body["reasons"] = reasons
        return JSONResponse(body, 503 if reasons else 200, headers=_NO_STORE)

    async def whole(request: Request) -> Response:
        if (refused := await _refusal(request, login)) is not None:
            return refused
        status, reasons = health.verdict()
        body = {**summary(), "status": status, "reasons": reasons, "version": __version__}
        return JSONResponse(body, headers=_NO_STORE)

    async def metrics(request: Request) -> Response:
        if (refused := await _refusal(request, login)) is not None:
            return refused
        body, content_type = scrape(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def front(request: Request) -> Response:
        where = whereabouts() if await _knows(request, login) else None
        body, content_type = front_page.render(where, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "vary": "accept, authorization", **_NO_STORE})

    async def missing(request: Request, error: Exception) -> Response:
        return PlainTextResponse(front_page.render_missing(request.url.path), 404)

    routes = [
        Route("/health/live", live),
        Route("/health/ready", ready),
        Route("/health", whole),
        Route("/metrics", metrics),
    ]
    if has_front_page:
        routes.append(Route("/", front))
    return _Counted(Starlette(routes=routes, exception_handlers={404: missing}), stats)


def _asker(request: Request) -> Asker:
    host = request.client.host if request.client is not None else ""
    certificate = request.scope.get("state", {}).get("certificate")
    return Asker(host, request.headers.get("authorization", ""), certificate)


async def _knows(request: Request, login: HttpLogin | None) -> bool:
    return login is None or await login.knows(_asker(request))


async def _refusal(request: Request, login: HttpLogin | None) -> Response | None:
    """What is answered in place of what was asked for; None if it may be seen."""
    if login is None:
        return None
    admission = await login.admit(_asker(request))
    if admission is Admission.ALLOWED:
        return None
    if admission is Admission.REFUSED:
        body = {"error": "to see this takes the right to describe the cluster", "code": Code.NOT_AUTHORISED}
        return JSONResponse(body, 403, headers=_NO_STORE)
    body = {"error": "authentication failed", "code": Code.NOT_AUTHENTICATED}
    return JSONResponse(body, 401, headers=_NO_STORE | login.challenge)


class _Counted:
    """Counts each request of the app below and its time, by kind."""

    def __init__(self, app: ASGIApp, stats: Stats) -> None:
        self._app = app
        self._cells = {kind: stats.request("http", kind) for kind in (*_KINDS.values(), "other")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cell = self._cells[_KINDS.get(scope.get("path", ""), "other")]
        began_s = time.perf_counter()
        status = 500  # stands when the app raises

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            cell.latency.observe(time.perf_counter() - began_s)
            if status >= 400 and scope.get("path") != "/health/ready":  # 503 is what that one is for
                cell.errors += 1


class _Crowd(ServerState):
    """What the connections of one door share. The one that has not asked for longest comes first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.by_last_request: dict[GuardedHttp, None] = {}


class GuardedHttp(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with a deadline on each request's arrival, a cap on its head and on connections."""

    request_deadline_s = REQUEST_DEADLINE_S
    max_head_bytes = MAX_HEAD_BYTES
    max_kept_bytes = MAX_KEPT_BYTES

    _deadline: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._kept: deque[int] = deque()  # for each head
        crowd = self._crowd
        order = crowd.by_last_request
        order[self] = None
        if len(order) > crowd.most:
            oldest = next(iter(order))
            del order[oldest]
            oldest.transport.abort()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._crowd.by_last_request.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.max_head_bytes and not self.transport.is_closing():
                self.send_400_response("Request head too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._kept.append(0)
        self._in_head = True
        if self._deadline is None:
            self._arm()

    def on_url(self, url: bytes) -> None:
        self._keep(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # behind a body; nobody asks for these
            return
        self._keep(len(name) + len(value) + _LINE_BYTES)
        super().on_header(name, value)

    def _keep(self, size: int) -> None:
        self._kept[-1] += size
        if sum(self._kept) <= self.max_kept_bytes:
            return
        if len(self._kept) == 1:
            self.send_400_response("Request head too large.")
        else:  # the peer would take it for the answer to an earlier one
            self.transport.abort()
        raise ValueError("heads take too much memory")  # ends the parsing of what has arrived

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        self._kept.popleft()
        if self.cycle.response_complete:
            self.cycle.body = bytearray()  # it would stay until the next request
        super().on_response_complete()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
            raise ValueError("too many requests at once")  # ends the parsing of what has arrived
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._disarm()
        order = self._crowd.by_last_request
        if order.pop(self, self) is None:
            order[self] = None
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # closing would wait for a peer that does not read
            self.transport.abort()
        super().timeout_keep_alive_handler()

    @property
    def _crowd(self) -> _Crowd:
        return cast(_Crowd, self.server_state)

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.request_deadline_s, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        self.transport.abort()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, max_connections: int) -> None:
        super().__init__(config)
        self.server_state = _Crowd(max_connections)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the process, and the process to the broker


class HttpDoor:
    """Serves an app on one address between `open` and `close`.

    Args:
        host: A name or address.
        port: 0 lets the system choose; `address` tells which after `open`.
        app: The ASGI app.
        max_connections: Held at once.
        name: of the listener.
        tls: None in plain.
    """

    def __init__(
        self,
        host: str,
        port: int,
        app: ASGIApp,
        max_connections: int = MAX_CONNECTIONS,
        name: str = "http",
        tls: "TlsIdentity | None" = None,
    ) -> None:
        self._tls = tls
        self._name = name
        self.address: tuple[str, int] = (host, port)
        self._app = app
        self._max_connections = max_connections
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._listener: TlsListener | None = None

    @property
    def accepting(self) -> bool:
        return self._server is not None and self._server.started and not self._server.should_exit

    async def open(self) -> None:
        """Bind and accept.

        Raises:
            StartupError: The address cannot be bound.
        """
        sock = await self._bind()
        host, port = sock.getsockname()[:2]
        self.address = (host, port)
        config = uvicorn.Config(
            self._app,
            http=GuardedHttp,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_GRACE_S,
        )
        config.load()
        self._server = server = _Server(config, self._max_connections)
        own = [sock] if self._tls is None else []
        self._task = asyncio.create_task(server.serve(sockets=own), name="http-door")
        self._task.add_done_callback(self._ended)
        accepting = asyncio.create_task(server.accepting.wait())
        await asyncio.wait({accepting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        accepting.cancel()
        if self._task.done():
            sock.close()
            raise StartupError(f"listener {self._name} = {host}:{port} did not start: {self._task.exception()}")
        if self._tls is not None:
            try:
                self._listener = self._listen(sock, self._tls, server)
            except OSError as error:  # another one has bound the port as well, and was quicker
                sock.close()
                await self.close()
                raise cannot_listen(self._name, host, port, error) from error

    def _listen(self, sock: socket.socket, identity: "TlsIdentity", server: _Server) -> "TlsListener":
        """Accept under TLS, for a server of uvicorn that has no sockets of its own."""
        from penstock.net.tls_listener import TlsListener  # who speaks in plain needs none of it
        from penstock.server.http_tls import LANDING_BYTES, PENDING, TlsReceiver, YieldingHandshakes

        landing = memoryview(bytearray(LANDING_BYTES))
        pending = min(PENDING, self._max_connections)

        def make_protocol(certificate: bytes | None) -> GuardedHttp:
            return GuardedHttp(server.config, server.server_state, {"certificate": certificate})

        return TlsListener(
            [sock],
            lambda: TlsReceiver(make_protocol, landing, self.address),
            identity,
            make_handshakes=lambda has_room: YieldingHandshakes(has_room, pending=pending),
        )

    async def close(self) -> None:
        """Stop accepting, let running answers finish for a second, close. Does nothing when not open."""
        if self._server is None or self._task is None:
            return
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        self._server.should_exit = True
        _, late = await asyncio.wait({self._task}, timeout=STOP_GRACE_S + 1)
        for task in late:
            task.cancel()
            await asyncio.wait({task})
        self._server = self._task = None

    async def _bind(self) -> socket.socket:
        host, port = self.address
        try:
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            raise cannot_listen(self._name, host, port, error) from error
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            raise cannot_listen(self._name, host, port, error) from error
        return sock

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.critical("http door failed", error=error)
