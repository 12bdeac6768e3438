"""The network port without sockets: bytes arrive in seeded pieces after seeded waits, in one event loop.

Each direction of a connection is a `_Pipe`: a queue whose head is moved on, piece by piece, by timers. These
run in the context in which the server began to listen, so the connections of a killed process hang, as after
a power cut, until `cut` resets them, as the kernel does after a kill -9.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from random import Random

from penstock.ports.disk import File
from penstock.ports.network import Receiver

_FIRST_PORT = 20_000
_FIRST_CLIENT_PORT = 50_000


class MemoryNetwork:
    """The network port in memory.

    Args:
        seed: decides pieces and waits.
        max_piece_bytes: the most that arrives at once.
        max_delay_s: the longest wait for a piece.
    """

    def __init__(self, seed: int = 0, *, max_piece_bytes: int = 4096, max_delay_s: float = 0.001) -> None:
        self._random = Random(seed)  # noqa: S311 - a replayable simulation, not a secret
        self._max_piece_bytes = max_piece_bytes
        self._max_delay_s = max_delay_s
        self._listeners: dict[tuple[str, int], MemoryListener] = {}
        self._connections: list[_Connection] = []
        self._held: set[str] = set()
        self._next_port = _FIRST_PORT
        self._next_client_port = _FIRST_CLIENT_PORT

    async def listen(self, host: str, port: int, accept: Callable[[], Receiver]) -> "MemoryListener":
        if port == 0:
            port = self._next_port
            self._next_port += 1
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self._listeners[host, port] = MemoryListener(self, (host, port), accept)
        return listener

    async def connect(self, host: str, port: int, *, window_bytes: int = 64 * 1024) -> "MemoryClient":
        """Connect as a client; `window_bytes` may arrive without being received before the sender stalls.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        await asyncio.sleep(self.delay())
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
        connection = _Connection(self, listener, f"client:{self._next_client_port}", window_bytes)
        self._next_client_port += 1
        self._connections.append(connection)
        connection.start()
        return connection.client

    def hold(self, host: str) -> None:
        """Let nothing through to or from a host, and drop nothing: a stalled network."""
        self._held.add(host)

    def release(self, host: str) -> None:
        self._held.discard(host)
        for connection in self._connections:
            connection.wake()

    def cut(self, host: str) -> None:
        """Reset every connection to a host and stop its listeners, as when its process is gone."""
        for address in [address for address in self._listeners if address[0] == host]:
            del self._listeners[address]
        for connection in [each for each in self._connections if each.listener.address[0] == host]:
            connection.reset()

    def is_held(self, host: str) -> bool:
        return host in self._held

    def delay(self) -> float:
        return self._random.uniform(0, self._max_delay_s)

    def piece(self, available: int) -> int:
        """How much of what is there arrives now: often all, often a byte, else anything."""
        most = min(available, self._max_piece_bytes)
        kind = self._random.random()
        return most if kind < 0.4 else 1 if kind < 0.5 else self._random.randint(1, most)

    def forget_listener(self, listener: "MemoryListener") -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def forget_connection(self, connection: "_Connection") -> None:
        if connection in self._connections:
            self._connections.remove(connection)


class MemoryListener:
    """The listener port in memory."""

    def __init__(self, network: MemoryNetwork, address: tuple[str, int], accept: Callable[[], Receiver]) -> None:
        self._network = network
        self._address = address
        self.accept = accept
        self.context = copy_context()

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def close(self) -> None:
        self._network.forget_listener(self)


class _Pipe:
    """One direction: bytes and file ranges in order, then perhaps an end."""

    def __init__(self, move: Callable[[int], int], ended: Callable[[], None]) -> None:
        self.size = 0
        self.parts: deque[bytes | tuple[File, int, int]] = deque()
        self.ending = False
        self.timer: asyncio.TimerHandle | None = None
        self.move = move
        self.ended = ended

    def add(self, part: bytes | tuple[File, int, int], size: int) -> None:
        if size:
            self.parts.append(part)
            self.size += size

    def take(self, size: int) -> bytes:
        """At most `size` bytes of the first part. File ranges are read only now, as sendfile would."""
        part = self.parts.popleft()
        if isinstance(part, bytes):
            data = part[:size]
            if len(part) > size:
                self.parts.appendleft(part[size:])
        else:
            file, position, left = part
            data = file.read_at(min(size, left), position)
            if not data:
                raise OSError(errno.EIO, f"{left} bytes to send at {position} are not there", file.path)
            if left > len(data):
                self.parts.appendleft((file, position + len(data), left - len(data)))
        self.size -= len(data)
        return data

    def drop(self) -> None:
        self.parts.clear()
        self.size = 0
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _Connection:
    """Both directions, and the two ends."""

    def __init__(self, network: MemoryNetwork, listener: MemoryListener, peer: str, window_bytes: int) -> None:
        self.network = network
        self.listener = listener
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self.to_server = _Pipe(self._move_to_server, self._client_ended)
        self.to_client = _Pipe(self._move_to_client, self._server_ended)
        self.client = MemoryClient(self, window_bytes)
        self.transport = MemoryTransport(self, peer)
        self.receiver: Receiver | None = None

    def start(self) -> None:
        self.loop.call_soon(self._accept, context=self.listener.context)

    def wake(self) -> None:
        self.wake_pipe(self.to_server)
        self.wake_pipe(self.to_client)

    def wake_pipe(self, pipe: _Pipe) -> None:
        if pipe.timer is None and not self.closed and (pipe.size or pipe.ending):
            delay = self.network.delay()
            pipe.timer = self.loop.call_later(delay, self._step, pipe, context=self.listener.context)

    def reset(self) -> None:
        """Both ends see the connection go at once."""
        self._finish(ConnectionResetError(errno.ECONNRESET, "connection reset"))

    def _accept(self) -> None:
        if not self.closed:
            self.receiver = self.listener.accept()
            self.receiver.connected(self.transport)
            self.wake()

    def _step(self, pipe: _Pipe) -> None:
        pipe.timer = None
        if self.closed or self.receiver is None or self.network.is_held(self.listener.address[0]):
            return
        if pipe.size:
            try:
                moved = pipe.move(self.network.piece(pipe.size))
            except Exception as error:
                self.reset()
                if not isinstance(error, OSError):  # our receiver's own mistake; the loop reports it
                    raise
                return
            if not moved:
                return  # whoever makes room wakes the pipe
        elif pipe.ending:
            pipe.ended()
            return
        self.wake_pipe(pipe)

    def _move_to_server(self, size: int) -> int:
        if self.transport.paused or self.receiver is None:
            return 0
        buffer = self.receiver.get_buffer()
        if not len(buffer):
            raise RuntimeError("get_buffer returned an empty buffer")
        data = self.to_server.take(min(size, len(buffer)))
        buffer[: len(data)] = data
        self.receiver.received(len(data))
        return len(data)

    def _move_to_client(self, size: int) -> int:
        if self.to_server.ending:
            raise ConnectionResetError(errno.ECONNRESET, "the client is gone")
        room = self.client.room()
        if room <= 0:
            return 0
        data = self.to_client.take(min(size, room))
        self.client.arrived(data)
        if not self.to_client.size:
            self.loop.call_soon(self._drained, context=self.listener.context)
        return len(data)

    def _drained(self) -> None:
        if self.receiver is not None and not self.closed and not self.to_client.size:
            self.receiver.drained()

    def _client_ended(self) -> None:
        if not self.transport.paused:  # who does not read does not see the end either
            self._finish(ConnectionResetError(errno.ECONNRESET, "connection reset"))

    def _server_ended(self) -> None:
        self._finish(None)

    def _finish(self, error: ConnectionResetError | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.to_server.drop()
        self.to_client.drop()
        self.network.forget_connection(self)
        self.client.ended(error)
        self.loop.call_soon(self._disconnected, context=self.listener.context)

    def _disconnected(self) -> None:
        if self.receiver is not None:
            self.receiver.disconnected()


class MemoryTransport:
    """The transport port in memory: the server's end."""

    def __init__(self, connection: _Connection, peer: str) -> None:
        self._connection = connection
        self._peer = peer
        self.paused = False
        self._closing = False

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def unsent(self) -> int:
        return self._connection.to_client.size

    def write(self, data: bytes) -> None:
        self._add(bytes(data), len(data))

    def send_range(self, file: File, position: int, size: int) -> None:
        self._add((file, position, size), size)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        if not self._closing:
            self.paused = False
            self._connection.wake_pipe(self._connection.to_server)

    def close(self) -> None:
        self._closing = self.paused = True
        self._connection.to_client.ending = True
        self._connection.wake_pipe(self._connection.to_client)

    def abort(self) -> None:
        self._closing = self.paused = True
        self._connection.reset()

    def _add(self, part: bytes | tuple[File, int, int], size: int) -> None:
        if not self._closing and not self._connection.closed:
            self._connection.to_client.add(part, size)
            self._connection.wake_pipe(self._connection.to_client)


class MemoryClient:
    """The client's end of a connection."""

    def __init__(self, connection: _Connection, window_bytes: int) -> None:
        self._connection = connection
        self._window_bytes = window_bytes
        self._inbox = bytearray()
        self._ended = False
        self._error: ConnectionResetError | None = None
        self._changed = asyncio.Event()

    def send(self, data: bytes) -> None:
        """Queue bytes for the server. Raises `ConnectionResetError` on a connection that is gone."""
        if self._connection.closed or self._connection.to_server.ending:
            raise self._error or ConnectionResetError(errno.ECONNRESET, "connection is closed")
        self._connection.to_server.add(bytes(data), len(data))
        self._connection.wake_pipe(self._connection.to_server)

    async def receive_exactly(self, size: int) -> bytes:
        """The next `size` bytes.

        Raises:
            asyncio.IncompleteReadError: the server closed before.
            ConnectionResetError: the connection was reset.
        """
        data = bytearray()
        while True:
            step = size - len(data)
            data += self._inbox[:step]
            del self._inbox[:step]
            self._connection.wake_pipe(self._connection.to_client)
            if len(data) == size:
                return bytes(data)
            if self._error is not None:
                raise self._error
            if self._ended:
                raise asyncio.IncompleteReadError(bytes(data), size)
            await self._changed.wait()

    async def closed(self) -> None:
        """Wait until the server has ended the connection, without receiving what it sent."""
        while not self._ended:
            await self._changed.wait()

    def close(self) -> None:
        """Close after what was sent has arrived."""
        self._connection.to_server.ending = True
        self._connection.wake_pipe(self._connection.to_server)

    def abort(self) -> None:
        """Reset the connection; what was sent and has not arrived is lost."""
        self._connection.reset()

    @property
    def unsent(self) -> int:
        return self._connection.to_server.size

    def room(self) -> int:
        return self._window_bytes - len(self._inbox)

    def arrived(self, data: bytes) -> None:
        self._inbox += data
        self._wake()

    def ended(self, error: ConnectionResetError | None) -> None:
        self._ended = True
        self._error = error
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
