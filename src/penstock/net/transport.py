"""The sending side of one TCP connection: bytes and file ranges leave in order, in plain or under TLS.

Until a connection sends its first file range, its bytes go through the event loop's transport. From then on everything
goes through a duplicate of the socket, because sendfile must not overtake bytes the transport still holds, and what the
peer does not take yet waits in one queue. The two ways differ in how the head of the queue leaves:

    plain       bytes by `send`, ranges by `sendfile`, which copies nothing through Python
    under TLS   the next 64 KiB are read, enciphered record by record and given to one `sendmsg`

So under TLS only one piece of what is queued is ever in memory. A turn of the loop sends 4 MiB of plain bytes or 1 of
enciphered ones, about a millisecond, so that one reader does not hold up the others.
"""

import asyncio
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.ports.disk import File
from penstock.ports.network import Receiver

if TYPE_CHECKING:
    from penstock.net.tls_stream import TlsStream

_PLAIN_STEP: Final = 4 << 20  # bytes per turn of the loop
_TLS_STEP: Final = 1 << 20  # the same where each byte is enciphered
_SEALED_BYTES: Final = 64 * 1024  # taken from the queue when all that was enciphered before has left
# Between processes of one machine a small send buffer seems to keep the bytes in the cache until the peer copies them:
# reading took clearly less broker CPU and time than with the kernel's own size, which serves peers with a round trip.
_LOOPBACK_SEND_BYTES: Final = 192 * 1024


class _Range:
    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def read(self, most: int) -> bytes:
        """The next bytes, which then are behind us."""
        data = self.file.read_at(min(self.size, most), self.position)
        if not data:
            raise _ended()
        self.position += len(data)
        self.size -= len(data)
        return data


def _ended() -> OSError:
    """The file is shorter than promised: the frame begun cannot be finished."""
    return OSError("file ended while it was being sent")


class TcpTransport:
    """See the module's text.

    Args:
        stream: of a connection under TLS, when its handshake is over.
    """

    __slots__ = (
        "_cipher",
        "_closing",
        "_loop",
        "_queue",
        "_receiver",
        "_sealed",
        "_socket",
        "_stream",
        "_transport",
        "_unsent",
        "_waiting",
        "certificate",
        "peer",
    )

    def __init__(self, transport: asyncio.Transport, receiver: Receiver, stream: "TlsStream | None" = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._receiver = receiver
        self._stream = stream
        self._cipher = cipher = stream.cipher if stream is not None else None
        self._socket: socket.socket | None = None
        self._queue: deque[memoryview | _Range] = deque()
        self._sealed: list[bytes | memoryview] = []
        self._unsent = 0
        self._waiting = False
        self._closing = False
        self.peer = peer_of(transport)
        self.certificate = cipher.certificate if cipher is not None else None
        transport.set_write_buffer_limits(high=0)  # resume_writing then means: all of it has left

    @property
    def certified(self) -> bool:
        return self.certificate is not None

    @property
    def unsent(self) -> int:
        return self._unsent + self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        if self._socket is None:
            if self._cipher is None:
                self._transport.write(data)
                return
            if len(data) <= _SEALED_BYTES:
                self._write_sealed(data)
                return
            if not self._take_socket():
                return
        self._unsent += len(data)
        self._queue.append(memoryview(data))
        self._send()

    def _write_sealed(self, data: bytes) -> None:
        assert self._cipher is not None
        sealed: list[bytes] = []
        try:
            self._cipher.seal(data, sealed)
        except OSError:
            self.abort()
            return
        self._transport.writelines(sealed)

    def send_range(self, file: File, position: int, size: int) -> None:
        if self._closing:
            return
        if self._socket is None and not self._take_socket():
            return
        self._unsent += size
        self._queue.append(_Range(file, position, size))
        self._send()

    def send_records(self, records: bytes) -> None:
        """Under TLS: what the handshake's rules make us answer, behind what is enciphered already."""
        if self._socket is None:
            self._transport.write(records)
            return
        self._unsent += len(records)
        self._sealed.append(records)
        self._send()

    def _take_socket(self) -> bool:
        own: socket.socket = self._transport.get_extra_info("socket")
        try:
            self._socket = socket.socket(fileno=os.dup(own.fileno()))
        except OSError:  # out of descriptors: the frame begun cannot be finished
            self.abort()
            return False
        self._socket.setblocking(False)
        return True

    def _send(self) -> None:
        if not self._waiting and self._transport.get_write_buffer_size() == 0:
            self._continue()

    def _continue(self) -> None:
        """Send until the queue is empty, the peer is full or the turn is over."""
        budget = _PLAIN_STEP if self._cipher is None else _TLS_STEP
        try:
            while (self._queue or self._sealed) and budget > 0:
                sent = self._send_first(budget) if self._cipher is None else self._send_sealed()
                self._unsent -= sent
                budget -= sent
        except BlockingIOError:
            pass
        except OSError:
            self.abort()
            return
        if self._queue or self._sealed:
            self._wait()
            return
        if self._waiting:
            self._stop_waiting()
            self._receiver.drained()
        if self._closing and not self._queue and not self._sealed:
            self._end()

    def _send_first(self, budget: int) -> int:
        assert self._socket is not None
        first = self._queue[0]
        if isinstance(first, _Range):
            sent = os.sendfile(self._socket.fileno(), first.file.fileno(), first.position, min(first.size, budget))
            if sent == 0:
                raise _ended()
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

    def _send_sealed(self) -> int:
        assert self._socket is not None
        sealed = self._sealed
        if not sealed:
            self._seal()
        sent = left = self._socket.sendmsg(sealed)
        while left:
            first = sealed[0]
            if len(first) > left:
                sealed[0] = memoryview(first)[left:]
                break
            left -= len(first)
            del sealed[0]
        return sent

    def _seal(self) -> None:
        """Encipher the next piece of the queue."""
        cipher, queue, sealed = self._cipher, self._queue, self._sealed
        assert cipher is not None
        room = _SEALED_BYTES
        while queue and room > 0:
            first = queue[0]
            if isinstance(first, _Range):
                data: bytes | memoryview = first.read(room)
                if first.size == 0:
                    queue.popleft()
            elif len(first) <= room:
                data = queue.popleft()  # type: ignore[assignment]  # it is `first`
            else:
                data, queue[0] = first[:room], first[room:]
            room -= len(data)
            self._unsent += cipher.seal(data, sealed) - len(data)

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
        if self._queue or self._sealed:
            self._send()
        if not self._queue and not self._sealed:
            self._receiver.drained()

    def pause_reading(self) -> None:
        (self._stream or self._transport).pause_reading()

    def resume_reading(self) -> None:
        (self._stream or self._transport).resume_reading()

    def close(self) -> None:
        self._closing = True
        if not self._queue and not self._sealed:
            self._end()

    def _end(self) -> None:
        """All has left; under TLS we say that nothing follows, so that the peer can tell it from a cut."""
        if self._stream is not None and self._cipher is not None and not self._transport.is_closing():
            self._stream.stop()
            self._transport.write(self._cipher.say_farewell())
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._stream is not None:
            self._stream.stop()
        self._transport.abort()

    def lost(self) -> None:
        """The connection is gone: let go of the duplicate."""
        self._closing = True
        self._queue.clear()
        self._sealed.clear()
        self._unsent = 0
        self._stream = self._cipher = None  # its memory is too much to wait until somebody looks for cycles
        if self._socket is not None:
            self._stop_waiting()
            self._socket.close()
            self._socket = None


def prepare(transport: asyncio.BaseTransport) -> None:
    """Set the options of a connection's socket."""
    own: socket.socket | None = transport.get_extra_info("socket")
    if own is not None:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _is_loopback(transport.get_extra_info("peername")):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LOOPBACK_SEND_BYTES)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """`host:port` of the other side."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unknown"


def _is_loopback(peer: object) -> bool:
    host = str(peer[0]) if isinstance(peer, tuple) else ""
    return host.startswith("127.") or host == "::1"
