"""The network port without sockets: bytes arrive in seeded pieces after seeded waits, in one event loop.

A connection has two ends, each on a host and in the context of whoever listened or connected. What an end sends waits
in its `_Pipe`, whose head is moved on by timers that run in the *receiving* end's context, so a killed process hears
nothing; what the dead had sent and has not arrived is lost with them. Their connections hang, as after a power
cut, until `cut` resets them, as the kernel does after a kill -9. An end and a reset travel like bytes: a way that is
blocked holds them back too, so nobody learns of a death through a partition.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from random import Random
from typing import TYPE_CHECKING

from penstock.ports.disk import File
from penstock.ports.network import Receiver, TlsIdentity
from penstock.testing.virtual_clock import Process

if TYPE_CHECKING:
    import ssl

_FIRST_PORT = 20_000
_FIRST_CLIENT_PORT = 50_000
_CLIENT_HOST = "client"


class MemoryNetwork:
    """All hosts and the ways between them. `of` is the network port of one host.

    Args:
        seed: decides pieces and waits.
        max_piece_bytes: the most that arrives at once; None moves all that is there in one step, which is cheap.
        max_delay_s: the longest wait for a piece.
    """

    def __init__(self, seed: int = 0, *, max_piece_bytes: int | None = 4096, max_delay_s: float = 0.001) -> None:
        self._random = Random(seed)  # noqa: S311 - a replayable simulation, not a secret
        self._max_piece_bytes = max_piece_bytes
        self._max_delay_s = max_delay_s
        self._listeners: dict[tuple[str, int], MemoryListener] = {}
        self._connections: dict[_Connection, None] = {}
        self._held: set[str] = set()
        self._blocked: set[tuple[str, str]] = set()
        self._waiting: dict[asyncio.Future[None], None] = {}
        """Who wants to connect and cannot reach the other side."""
        self._next_port = _FIRST_PORT
        self._next_client_port = _FIRST_CLIENT_PORT

    def of(self, host: str) -> "HostNetwork":
        """The network as a program on `host` sees it."""
        return HostNetwork(self, host)

    async def listen(
        self, host: str, port: int, accept: Callable[[], Receiver], *, tls: "ssl.SSLContext | TlsIdentity | None" = None
    ) -> "MemoryListener":
        if tls is not None:
            raise ValueError("there is no TLS in memory")
        if port == 0:
            port = self._next_port
            self._next_port += 1
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self._listeners[host, port] = MemoryListener(self, (host, port), accept)
        return listener

    async def connect(self, host: str, port: int, *, window_bytes: int = 64 * 1024) -> "MemoryClient":
        """Connect as a test's client; `window_bytes` may arrive without being received before the sender stalls.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        listener = await self.reach(_CLIENT_HOST, host, port)
        connection = _Connection(self, self._next_client_port)
        client = MemoryClient(connection, window_bytes)
        self._open(connection, client, listener)
        return client

    async def reach(self, source: str, host: str, port: int) -> "MemoryListener":
        """Wait until a handshake would be through. Raises `ConnectionRefusedError`."""
        await asyncio.sleep(self.delay())
        while True:
            listener = self._listeners.get((host, port))
            if self.is_open(source, host) and self.is_open(host, source):
                if listener is None:
                    raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
                if not _is_killed(listener.process):
                    return listener
            opened = asyncio.get_running_loop().create_future()
            self._waiting[opened] = None
            try:
                await opened
            finally:
                self._waiting.pop(opened, None)

    def _open(self, connection: "_Connection", near: "_End", listener: "MemoryListener") -> None:
        self._next_client_port += 1
        far = MemoryTransport(connection, listener.address[0], near.name, None)
        far.context, far.process = listener.context, listener.process
        connection.ends = (near, far)
        near.other, far.other = far, near
        self._connections[connection] = None
        connection.loop.call_soon(far.accept, listener.accept, context=far.context)

    def join(self, host: str, receiver: Receiver, listener: "MemoryListener") -> "MemoryTransport":
        """Connect a program on `host` with a listener that was reached."""
        connection = _Connection(self, self._next_client_port)
        address = listener.address
        near = MemoryTransport(connection, host, f"{address[0]}:{address[1]}", receiver)
        self._open(connection, near, listener)
        return near

    # --- faults

    def hold(self, host: str) -> None:
        """Let nothing through to or from a host, and drop nothing: a stalled network."""
        self._held.add(host)

    def release(self, host: str) -> None:
        self._held.discard(host)
        self._wake()

    def block(self, source: str, target: str) -> None:
        """Hold back what goes from `source` to `target`, and drop nothing; neither can connect to the other."""
        self._blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        self._blocked.discard((source, target))
        self._wake()

    def cut(self, host: str) -> None:
        """Reset every connection of a host and stop its listeners, as when its process is gone."""
        for address in [address for address in self._listeners if address[0] == host]:
            del self._listeners[address]
        for connection in list(self._connections):
            for end in connection.ends:
                if end.host == host:
                    end.reset()
        self._wake()

    def is_open(self, source: str, target: str) -> bool:
        return source not in self._held and target not in self._held and (source, target) not in self._blocked

    def _wake(self) -> None:
        for connection in self._connections:
            for end in connection.ends:
                end.wake()
        for opened in self._waiting:
            if not opened.done():
                opened.set_result(None)

    # --- for connections

    def delay(self) -> float:
        return self._random.random() * self._max_delay_s

    def piece(self, available: int) -> int | None:
        """How much of what is there arrives now: often all, often a byte, else anything. None is all of it."""
        if self._max_piece_bytes is None:
            return None
        most = min(available, self._max_piece_bytes)
        kind = self._random.random()
        return most if kind < 0.4 else 1 if kind < 0.5 else self._random.randint(1, most)

    def forget_listener(self, listener: "MemoryListener") -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def forget_connection(self, connection: "_Connection") -> None:
        self._connections.pop(connection, None)


class HostNetwork:
    """The network port of one host."""

    def __init__(self, network: MemoryNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def listen(
        self, host: str, port: int, accept: Callable[[], Receiver], *, tls: "ssl.SSLContext | TlsIdentity | None" = None
    ) -> "MemoryListener":
        """Listen on this host; `host` has to be its name."""
        if host != self._host:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {self._host}")
        return await self._network.listen(host, port, accept, tls=tls)

    async def connect(
        self,
        host: str,
        port: int,
        receiver: Receiver,
        *,
        timeout_s: float,
        tls: "ssl.SSLContext | TlsIdentity | None" = None,
    ) -> "MemoryTransport":
        if tls is not None:
            raise ValueError("there is no TLS in memory")
        async with asyncio.timeout(timeout_s):
            listener = await self._network.reach(self._host, host, port)
        transport = self._network.join(self._host, receiver, listener)
        receiver.connected(transport)
        return transport


class MemoryListener:
    """The listener port in memory."""

    def __init__(self, network: MemoryNetwork, address: tuple[str, int], accept: Callable[[], Receiver]) -> None:
        self._network = network
        self._address = address
        self.accept = accept
        self.context = copy_context()
        self.process = _find_process()

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    async def close(self) -> None:
        self._network.forget_listener(self)


def _find_process() -> Process | None:
    """The simulated program that is running now."""
    return next((value for value in copy_context().values() if isinstance(value, Process)), None)


def _is_killed(process: Process | None) -> bool:
    return process is not None and process.killed


class _Pipe:
    """One direction: bytes and file ranges in order, then perhaps an end."""

    __slots__ = ("ending", "parts", "reset", "size", "timer")

    def __init__(self) -> None:
        self.size = 0
        self.parts: deque[bytes | tuple[File, int, int]] = deque()
        self.ending = False
        self.reset = False
        self.timer: asyncio.TimerHandle | None = None

    def add(self, part: bytes | tuple[File, int, int], size: int) -> None:
        if size:
            self.parts.append(part)
            self.size += size

    def take(self, size: int) -> bytes:
        """At most `size` bytes of the first part. File ranges are read only now, as sendfile would."""
        part = self.parts.popleft()
        if isinstance(part, bytes):
            data = part
            if len(part) > size:
                data = part[:size]
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


class _Connection:
    """What the two ends share."""

    __slots__ = ("ends", "loop", "name", "network")

    def __init__(self, network: MemoryNetwork, port: int) -> None:
        self.network = network
        self.loop = asyncio.get_running_loop()
        self.name = port
        self.ends: tuple[_End, ...] = ()


class _End:
    """One end of a connection: what it sends waits in `out` until the other end takes it."""

    other: "_End"

    def __init__(self, connection: _Connection, host: str) -> None:
        self._connection = connection
        self.host = host
        self.out = _Pipe()
        self.over = False
        """Whether this end is gone. The other may not know yet."""
        self.context = copy_context()
        self.process = _find_process()

    @property
    def name(self) -> str:
        return f"{self.host}:{self._connection.name}"

    @property
    def unsent(self) -> int:
        return self.out.size

    # --- what an end does with what arrives

    def take(self, pipe: _Pipe, size: int | None) -> bool:
        """Take at most `size` bytes, or all; whether any were."""
        raise NotImplementedError

    @property
    def sees_end(self) -> bool:
        raise NotImplementedError

    def sent_all(self) -> None:
        """What was sent has arrived."""

    def ended(self, error: ConnectionResetError | None) -> None:
        raise NotImplementedError

    # --- the way to the other end

    def wake(self) -> None:
        """Move what waits on, soon."""
        pipe = self.out
        if pipe.timer is None and (pipe.parts or pipe.ending or pipe.reset) and not self.other.over:
            connection = self._connection
            pipe.timer = connection.loop.call_later(connection.network.delay(), self._step, context=self.other.context)

    def _step(self) -> None:
        """One move; runs as the other end's program."""
        pipe, other, network = self.out, self.other, self._connection.network
        pipe.timer = None
        if other.over or not network.is_open(self.host, other.host):
            return
        if pipe.reset:
            other.gone(ConnectionResetError(errno.ECONNRESET, "connection reset"))
        elif _is_killed(self.process):
            return
        elif pipe.parts:
            self._move(pipe, other, network.piece(pipe.size))
        elif pipe.ending and other.sees_end:
            other.gone(None)
            self.gone(None)

    def _move(self, pipe: _Pipe, other: "_End", size: int | None) -> None:
        try:
            moved = other.take(pipe, size)
        except Exception as error:
            self.reset()
            other.reset()
            if not isinstance(error, OSError):  # the receiver's own mistake; the loop reports it
                raise
            return
        if moved and not pipe.parts and not self.over:
            self._connection.loop.call_soon(self.sent_all, context=self.context)
        if moved:  # if not, whoever makes room wakes the pipe
            self.wake()

    def reset(self) -> None:
        """This end goes now, the other as soon as it hears of it."""
        if self.over:
            return
        self.out.reset = True
        self.out.drop()
        self.wake()
        self.gone(ConnectionResetError(errno.ECONNRESET, "connection reset"))

    def gone(self, error: ConnectionResetError | None) -> None:
        if self.over:
            return
        self.over = True
        self.out.drop()
        if self.other.over:
            self._connection.network.forget_connection(self._connection)
        self._connection.loop.call_soon(self.ended, error, context=self.context)


class MemoryTransport(_End):
    """The transport port in memory: an end with a receiver."""

    certified = False
    certificate = None

    def __init__(self, connection: _Connection, host: str, peer: str, receiver: Receiver | None) -> None:
        super().__init__(connection, host)
        self._peer = peer
        self._receiver = receiver
        self._paused = False
        self._closing = False

    @property
    def peer(self) -> str:
        return self._peer

    def accept(self, make: Callable[[], Receiver]) -> None:
        if not self.over:
            self._receiver = make()
            self._receiver.connected(self)
            self.other.wake()

    def take(self, pipe: _Pipe, size: int | None) -> bool:
        """All: in as many rounds as the receiver's buffer needs."""
        receiver, moved = self._receiver, False
        if self._closing and not self.out.parts and not self.other.sees_end:
            raise ConnectionResetError(errno.ECONNRESET, "nobody is here any more")
        while not self._paused and not self.over and pipe.parts and receiver is not None:
            buffer = receiver.get_buffer()
            room = len(buffer)
            if not room:
                raise RuntimeError("get_buffer returned an empty buffer")
            if size is not None:
                data = pipe.take(min(size, room))
                buffer[: len(data)] = data
                receiver.received(len(data))
                return True
            filled = 0
            while pipe.parts and filled < room:
                data = pipe.take(room - filled)
                buffer[filled : filled + len(data)] = data
                filled += len(data)
            receiver.received(filled)
            moved = True
        return moved

    @property
    def sees_end(self) -> bool:
        """Who does not read does not see the end either."""
        return not self._paused and self._receiver is not None

    def sent_all(self) -> None:
        if self._receiver is not None and not self.over and not self.out.size:
            self._receiver.drained()

    def ended(self, error: ConnectionResetError | None) -> None:
        if self._receiver is not None:
            self._receiver.disconnected()

    def write(self, data: bytes) -> None:
        self._add(bytes(data), len(data))

    def send_range(self, file: File, position: int, size: int) -> None:
        self._add((file, position, size), size)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if not self._closing:
            self._paused = False
            self.other.wake()

    def close(self) -> None:
        self._closing = self._paused = True
        self.out.ending = True
        self.wake()

    def abort(self) -> None:
        self._closing = self._paused = True
        self.reset()

    def _add(self, part: bytes | tuple[File, int, int], size: int) -> None:
        if not self._closing and not self.over:
            self.out.add(part, size)
            self.wake()


class MemoryClient(_End):
    """A test's end of a connection."""

    def __init__(self, connection: _Connection, window_bytes: int) -> None:
        super().__init__(connection, _CLIENT_HOST)
        self._window_bytes = window_bytes
        self._inbox = bytearray()
        self._error: ConnectionResetError | None = None
        self._is_told = False
        self._changed = asyncio.Event()

    def send(self, data: bytes) -> None:
        """Queue bytes for the server. Raises `ConnectionResetError` on a connection that is gone."""
        if self.over or self.out.ending:
            raise self._error or ConnectionResetError(errno.ECONNRESET, "connection is closed")
        self.out.add(bytes(data), len(data))
        self.wake()

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
            self.other.wake()
            if len(data) == size:
                return bytes(data)
            if self._error is not None:
                raise self._error
            if self._is_told:
                raise asyncio.IncompleteReadError(bytes(data), size)
            await self._changed.wait()

    async def closed(self) -> None:
        """Wait until the server has ended the connection, without receiving what it sent."""
        while not self._is_told:
            await self._changed.wait()

    def close(self) -> None:
        """Close after what was sent has arrived."""
        self.out.ending = True
        self.wake()

    def abort(self) -> None:
        """Reset the connection; what was sent and has not arrived is lost."""
        self.reset()

    def take(self, pipe: _Pipe, size: int | None) -> bool:
        if self.out.ending:
            raise ConnectionResetError(errno.ECONNRESET, "the client is gone")
        room = self._window_bytes - len(self._inbox)
        if room <= 0:
            return False
        self._inbox += pipe.take(room if size is None else min(size, room))
        self._wake_reader()
        return True

    @property
    def sees_end(self) -> bool:
        return True

    def ended(self, error: ConnectionResetError | None) -> None:
        self._is_told = True
        self._error = error
        self._wake_reader()

    def _wake_reader(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
