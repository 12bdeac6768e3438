"""TCP behind the network port: plain, received into the connection's own buffer, or under TLS.

How bytes and file ranges leave is in `transport`; TLS, which is loaded when somebody wants it, in `tls_stream`.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from penstock.net.transport import TcpTransport, prepare
from penstock.ports.network import Listener, Receiver, TlsIdentity, Transport

if TYPE_CHECKING:
    import ssl

__all__ = ["TcpNetwork", "TcpTransport"]

_BACKLOG = 1024


class _Stream(asyncio.BufferedProtocol):
    """Between the event loop and a receiver."""

    __slots__ = ("_receiver", "_transport")

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._transport: TcpTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        prepare(transport)
        self._transport = TcpTransport(cast(asyncio.Transport, transport), self._receiver)
        self._receiver.connected(self._transport)

    @property
    def transport(self) -> Transport:
        return cast(Transport, self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.received(nbytes)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        return None

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.transport_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport.lost()
        self._receiver.disconnected()


class _TcpListener:
    def __init__(self, server: asyncio.AbstractServer, address: tuple[str, int]) -> None:
        self._server = server
        self.address = address

    async def close(self) -> None:
        self._server.close()


class TcpNetwork:
    """The network port on this machine's TCP."""

    async def listen(
        self,
        host: str,
        port: int,
        accept: Callable[[], Receiver],
        *,
        tls: "ssl.SSLContext | TlsIdentity | None" = None,
    ) -> Listener:
        if tls is not None:
            from penstock.net import tls_endpoints

            return await tls_endpoints.listen(host, port, accept, tls)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Stream(accept()), host, port, backlog=_BACKLOG, reuse_address=True, start_serving=True
        )
        bound = server.sockets[0].getsockname()
        return _TcpListener(server, (bound[0], bound[1]))

    async def connect(
        self,
        host: str,
        port: int,
        receiver: Receiver,
        *,
        timeout_s: float,
        tls: "ssl.SSLContext | TlsIdentity | None" = None,
    ) -> Transport:
        loop = asyncio.get_running_loop()
        failures: list[OSError] = []
        async with asyncio.timeout(timeout_s):
            # One by one, as the loop tells several failures in one text: refused by all is what callers look for.
            for _, _, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                try:
                    if tls is not None:
                        from penstock.net import tls_endpoints

                        return await tls_endpoints.connect(str(address[0]), port, receiver, tls, host)
                    _, stream = await loop.create_connection(lambda: _Stream(receiver), str(address[0]), port)
                except OSError as error:
                    failures.append(error)
                else:
                    return stream.transport
        raise next((error for error in failures if not isinstance(error, ConnectionRefusedError)), failures[0])
