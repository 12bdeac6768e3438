"""Listening under TLS: accepts as many connections as there is room for handshakes, and looks after certificates.

The event loops' own servers accept whatever comes, so sockets are accepted here.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from penstock.net.cipher import LARGE_PIECE_BYTES, SMALL_PIECE_BYTES, Cipher
from penstock.net.handshakes import Handshakes
from penstock.net.tls import CertificateRefused, tell
from penstock.net.tls_stream import LANDING_BYTES, TlsStream
from penstock.observe.logs import get_logger
from penstock.ports.network import Receiver, TlsIdentity, Transport

log_ = get_logger("net")

_BACKLOG: Final = 1024
_MANY: Final = 2000
"""Connections, from which on each further one has to do with less memory."""
_AT_ONCE: Final = 32  # accepted in one turn of the loop
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SHORTAGE_PAUSE_S: Final = 1.0


class TlsListener:
    """The listener port, and one side of the streams that it accepts.

    Args:
        sockets: bound, and not listening yet.
        make_handshakes: for tests of what is refused.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        accept: Callable[[], Receiver],
        identity: TlsIdentity,
        *,
        make_handshakes: Callable[[Callable[[], None]], Handshakes] = Handshakes,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._accept = accept
        self._identity = identity
        self._landing = memoryview(bytearray(LANDING_BYTES))
        self._handshakes = make_handshakes(self._serve)
        self._accepting: set[asyncio.Task[object]] = set()
        self._certified: set[TlsStream] = set()
        self._open = 0
        self._is_serving = False
        self._is_closed = False
        bound = sockets[0].getsockname()
        self.address: tuple[str, int] = (bound[0], bound[1])
        for each in sockets:
            each.listen(_BACKLOG)
        self._forget = identity.watch(self._check)
        self._serve()

    def _serve(self) -> None:
        if not self._is_serving and not self._is_closed and not self._handshakes.is_full:
            self._is_serving = True
            for each in self._sockets:
                self._loop.add_reader(each.fileno(), self._take, each)

    def _rest(self) -> None:
        """Let who connects wait in the kernel."""
        if self._is_serving:
            self._is_serving = False
            for each in self._sockets:
                self._loop.remove_reader(each.fileno())

    def _take(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            if self._handshakes.is_full:
                self._rest()
                return
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise
                log_.limited("accept").error("cannot accept connections", reason=error)
                self._rest()
                self._loop.call_later(_SHORTAGE_PAUSE_S, self._serve)
                return
            accepted.setblocking(False)
            stream = TlsStream(self, self._landing)
            self._handshakes.connected(stream)
            task = self._loop.create_task(self._adopt(stream, accepted))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    async def _adopt(self, stream: TlsStream, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: stream, accepted)
        except OSError as error:
            accepted.close()
            stream.give_up(str(error))

    # --- for streams

    def begin(self, stream: TlsStream) -> Cipher | None:
        if not self._handshakes.begin(stream):
            return None
        return self.make_cipher()

    def make_cipher(self) -> Cipher:
        piece_bytes = LARGE_PIECE_BYTES if self._open < _MANY else SMALL_PIECE_BYTES
        return Cipher(self._identity.server_context, piece_bytes=piece_bytes)

    def receive(self, stream: TlsStream, cipher: Cipher) -> Receiver:
        certificate = cipher.certificate
        if certificate is not None:
            refusal = self._identity.refuse(certificate)
            if refusal is not None:
                raise CertificateRefused(refusal)
        self._handshakes.end(stream)
        return self._accept()

    def ready(self, stream: TlsStream, transport: Transport) -> None:
        self._open += 1
        if transport.certificate is not None:
            self._certified.add(stream)

    def failed(self, stream: TlsStream, error: OSError) -> None:
        self._handshakes.end(stream)
        kind = "plain" if isinstance(error, ConnectionAbortedError) else "handshake"
        log_.limited(kind).warning("closing connection", peer=stream.peer, reason=tell(error))

    def lost(self, stream: TlsStream) -> None:
        self._open -= 1
        self._certified.discard(stream)
        self._forget_when_done()

    def _check(self) -> None:
        """Whether the certificates of who is connected are good still."""
        for stream in list(self._certified):
            if stream.certificate is not None:
                refusal = self._identity.refuse(stream.certificate)
                if refusal is not None:
                    stream.give_up(refusal)

    async def close(self) -> None:
        """Stop accepting. Connections already open stay open, and their certificates are looked at still."""
        if self._is_closed:
            return
        self._is_closed = True
        self._rest()
        for each in self._sockets:
            each.close()
        self._handshakes.close()
        self._forget_when_done()

    def _forget_when_done(self) -> None:
        if self._is_closed and not self._certified:
            self._forget()


async def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on all addresses of a host. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            each = socket.socket(family, kind, protocol)
            sockets.append(each)
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind(address)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets
