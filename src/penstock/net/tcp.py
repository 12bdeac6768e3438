"""TCP behind the network port: receives into the connection's own buffer, sends file ranges with sendfile.

Until a connection sends its first file range, its bytes go through the event loop's transport. From then on everything
goes through a duplicate of the socket, because sendfile must not overtake bytes the transport still holds: `write` is a
plain `send`, `send_range` a plain `sendfile`, and what the peer does not take yet waits in one queue. Under TLS the
kernel cannot do that: ranges are read piece by piece, each when the one before has left.

An idle TLS connection costs some 30 KiB on uvloop, which is what the broker runs on: its 256 KiB for ciphertext take
memory only as bytes arrive. On asyncio's own loop they take all of it at once.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from penstock.ports.disk import File
from penstock.ports.network import Listener, Receiver, Transport

if TYPE_CHECKING:
    import ssl

_SENDFILE_STEP = 4 << 20  # bytes per turn of the loop, about 1 ms, so that one reader does not hold up the others
_TLS_STEP = 1 << 20  # the same where each byte is enciphered
_TLS_PIECE_BYTES = 128 * 1024  # of a file range, read when the piece before has left
_BACKLOG = 1024
_HANDSHAKE_S = 10.0
# Between processes of one machine a small send buffer seems to keep the bytes in the cache until the peer copies them:
# reading took clearly less broker CPU and time than with the kernel's own size, which serves peers with a round trip.
_LOOPBACK_SEND_BYTES = 192 * 1024


class _Range:
    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size


class TcpTransport:
    """The sending side; see the module's text."""

    certified = False
    __slots__ = (
        "_closing",
        "_loop",
        "_queue",
        "_receiver",
        "_socket",
        "_transport",
        "_unsent",
        "_waiting",
        "peer",
    )

    def __init__(self, transport: asyncio.Transport, receiver: Receiver) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._receiver = receiver
        self._socket: socket.socket | None = None
        self._queue: deque[memoryview | _Range] = deque()
        self._unsent = 0
        self._waiting = False
        self._closing = False
        self.peer = _peer_of(transport)
        transport.set_write_buffer_limits(high=0)  # resume_writing then means: all of it has left

    @property
    def unsent(self) -> int:
        return self._unsent + self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        if self._socket is None:
            self._transport.write(data)
            return
        self._unsent += len(data)
        self._queue.append(memoryview(data))
        self._send()

    def send_range(self, file: File, position: int, size: int) -> None:
        if self._closing:
            return
        if self._socket is None:
            own: socket.socket = self._transport.get_extra_info("socket")
            try:
                self._socket = socket.socket(fileno=os.dup(own.fileno()))
            except OSError:  # out of descriptors: the frame begun cannot be finished
                self.abort()
                return
            self._socket.setblocking(False)
        self._unsent += size
        self._queue.append(_Range(file, position, size))
        self._send()

    def _send(self) -> None:
        if not self._waiting and self._transport.get_write_buffer_size() == 0:
            self._continue()

    def _continue(self) -> None:
        """Send until the queue is empty, the peer is full or the turn is over."""
        assert self._socket is not None
        budget = _SENDFILE_STEP
        try:
            while self._queue and budget > 0:
                sent = self._send_first(budget)
                self._unsent -= sent
                budget -= sent
        except BlockingIOError:
            pass
        except OSError:
            self.abort()
            return
        if self._queue:
            self._wait()
            return
        if self._waiting:
            self._stop_waiting()
            self._receiver.drained()
        if self._closing and not self._queue:
            self._transport.close()

    def _send_first(self, budget: int) -> int:
        assert self._socket is not None
        first = self._queue[0]
        if isinstance(first, _Range):
            sent = os.sendfile(self._socket.fileno(), first.file.fileno(), first.position, min(first.size, budget))
            if sent == 0:  # the file is shorter than promised: the frame cannot be finished
                raise OSError("file ended while it was being sent")
            first.position += sent
            first.size -= sent
            if first.size == 0:
                self._queue.popleft()
            return sent
        sent = self._socket.send(first, socket.MSG_MORE if len(self._queue) > 1 else 0)
        if sent == len(first):
            self._queue.popleft()
        else:
            self._queue[0] = first[sent:]
        return sent

    def _wait(self) -> None:
        if not self._waiting:
            assert self._socket is not None
            self._waiting = True
            self._loop.add_writer(self._socket.fileno(), self._continue)

    def _stop_waiting(self) -> None:
        if self._waiting:
            assert self._socket is not None
            self._waiting = False
            self._loop.remove_writer(self._socket.fileno())

    def transport_drained(self) -> None:
        """What the event loop's transport held has left."""
        if self._queue:
            self._send()
        if not self._queue:
            self._receiver.drained()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def close(self) -> None:
        self._closing = True
        if not self._queue:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def lost(self) -> None:
        """The connection is gone: let go of the duplicate."""
        self._closing = True
        self._queue.clear()
        self._unsent = 0
        if self._socket is not None:
            self._stop_waiting()
            self._socket.close()
            self._socket = None


class TlsTransport:
    """The sending side under TLS. Of what is queued only a piece is in memory."""

    __slots__ = (
        "_closing",
        "_loop",
        "_queue",
        "_receiver",
        "_scheduled",
        "_transport",
        "_unsent",
        "certified",
        "peer",
    )

    def __init__(self, transport: asyncio.Transport, receiver: Receiver) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._receiver = receiver
        self._queue: deque[bytes | _Range] = deque()
        self._unsent = 0
        self._scheduled = False
        self._closing = False
        self.peer = _peer_of(transport)
        secured: ssl.SSLObject = transport.get_extra_info("ssl_object")
        self.certified = bool(secured.getpeercert())  # empty for one that nobody checked
        transport.set_write_buffer_limits(high=0)

    @property
    def unsent(self) -> int:
        """Without what the socket's own transport holds: two pieces at most."""
        return self._unsent + self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        if self._queue:
            self._unsent += len(data)
            self._queue.append(data)
        else:
            self._transport.write(data)

    def send_range(self, file: File, position: int, size: int) -> None:
        if self._closing:
            return
        self._unsent += size
        self._queue.append(_Range(file, position, size))
        if not self._scheduled and self._transport.get_write_buffer_size() == 0:
            self._fill()

    def _fill(self) -> None:
        """Hand pieces to the transport until it holds one back, or the turn is over."""
        budget = _TLS_STEP
        try:
            while self._queue and budget > 0 and self._transport.get_write_buffer_size() == 0:
                piece = self._take()
                self._unsent -= len(piece)
                budget -= len(piece)
                self._transport.write(piece)
        except OSError:  # the file is shorter than promised, or cannot be read: the frame cannot be finished
            self.abort()
            return
        if self._queue and self._transport.get_write_buffer_size() == 0:
            self._scheduled = True
            self._loop.call_soon(self._continue)

    def _take(self) -> bytes:
        first = self._queue[0]
        if not isinstance(first, _Range):
            self._queue.popleft()
            return first
        data = first.file.read_at(min(first.size, _TLS_PIECE_BYTES), first.position)
        if not data:
            raise OSError("file ended while it was being sent")
        first.position += len(data)
        first.size -= len(data)
        if first.size == 0:
            self._queue.popleft()
        return data

    def _continue(self) -> None:
        self._scheduled = False
        self._fill()
        if self._queue or self._transport.get_write_buffer_size():
            return
        self._receiver.drained()
        if self._closing and not self._queue:
            self._transport.close()

    def transport_drained(self) -> None:
        """What the event loop's transport held has left."""
        if not self._scheduled:
            self._continue()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def close(self) -> None:
        self._closing = True
        if not self._queue:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    def lost(self) -> None:
        self._closing = True
        self._queue.clear()
        self._unsent = 0


class _Stream(asyncio.BufferedProtocol):
    """Between the event loop and a receiver."""

    __slots__ = ("_receiver", "_transport")

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._transport: TcpTransport | TlsTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        own: socket.socket | None = transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _is_loopback(transport.get_extra_info("peername")):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOOPBACK_SEND_BYTES)
        kind = TcpTransport if transport.get_extra_info("ssl_object") is None else TlsTransport
        self._transport = kind(cast(asyncio.Transport, transport), self._receiver)
        self._receiver.connected(cast(Transport, self._transport))

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


def _peer_of(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unknown"


def _is_loopback(peer: object) -> bool:
    host = str(peer[0]) if isinstance(peer, tuple) else ""
    return host.startswith("127.") or host == "::1"


class _TcpListener:
    def __init__(self, server: asyncio.AbstractServer, address: tuple[str, int]) -> None:
        self._server = server
        self.address = address

    async def close(self) -> None:
        self._server.close()


class TcpNetwork:
    """The network port on this machine's TCP."""

    async def listen(
        self, host: str, port: int, accept: Callable[[], Receiver], *, tls: "ssl.SSLContext | None" = None
    ) -> Listener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Stream(accept()),
            host,
            port,
            backlog=_BACKLOG,
            reuse_address=True,
            start_serving=True,
            ssl=tls,
            ssl_handshake_timeout=_HANDSHAKE_S if tls is not None else None,
        )
        bound = server.sockets[0].getsockname()
        return _TcpListener(server, (bound[0], bound[1]))

    async def connect(
        self, host: str, port: int, receiver: Receiver, *, timeout_s: float, tls: "ssl.SSLContext | None" = None
    ) -> Transport:
        loop = asyncio.get_running_loop()
        failures: list[OSError] = []
        async with asyncio.timeout(timeout_s):
            # One by one, as the loop tells several failures in one text: refused by all is what callers look for.
            for _, _, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                try:
                    _, stream = await loop.create_connection(
                        lambda: _Stream(receiver),
                        str(address[0]),
                        port,
                        ssl=tls,
                        server_hostname=host if tls is not None else None,
                    )
                except OSError as error:
                    failures.append(error)
                else:
                    return stream.transport
        raise next((error for error in failures if not isinstance(error, ConnectionRefusedError)), failures[0])
