"""HTTP under our own TLS: one protocol of uvicorn behind each stream of a `net.TlsListener`.

An event loop's own TLS bounds neither how many handshakes are under way nor what a connection may take of memory, and
looks at a client's certificate once, so that one that is revoked later stays. Here HTTP has the same listener as every
other door, and uvicorn sees an asyncio transport that is one in all that it asks for.

Handshakes differ in one thing: at other doors those who come wait while there is no place; here who has been at it for
longest makes room, as in `http`. A probe that waits for seconds would have a broker restarted that is well.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from penstock.net.handshakes import Handshakes
from penstock.net.tls_stream import TlsStream
from penstock.ports.network import Transport

PENDING: Final = 256
"""Who has connected and has not shaken hands yet; with 30 KiB each once they have begun."""
LANDING_BYTES: Final = 64 * 1024
_MUCH_UNSENT: Final = 64 * 1024
"""Above this the app waits before it says more."""


class YieldingHandshakes(Handshakes):
    """All that are under way have a place, and nobody is kept out."""

    def __init__(self, has_room: Callable[[], None], *, pending: int = PENDING) -> None:
        super().__init__(has_room, places=pending, connected=pending)

    @property
    def is_full(self) -> bool:
        return False

    def connected(self, stream: TlsStream) -> None:
        if len(self) >= self._connected:
            firsts = [next(iter(group.items())) for group in (self._silent, self._under_way) if group]
            oldest = min(firsts, key=lambda first: first[1])[0]
            oldest.give_up("another one came when as many were shaking hands as may be")
            self.end(oldest)
        super().connected(stream)

    def begin(self, stream: TlsStream) -> bool:
        self._silent.pop(stream, None)
        self._under_way[stream] = self._loop.time()
        return True


class TlsTransport(asyncio.Transport):
    """Args:
    local: the address that was connected to.
    """

    def __init__(self, stream: Transport, local: tuple[str, int]) -> None:
        host, _, port = stream.peer.rpartition(":")
        peer = (host, int(port)) if port.isdecimal() else None
        super().__init__({"peername": peer, "sockname": local, "sslcontext": True})
        self._stream = stream
        self._protocol: asyncio.Protocol | None = None
        self._is_closing = False
        self._is_paused = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return self._stream.unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        self._stream.write(bytes(data))
        if not self._is_paused and self._stream.unsent > _MUCH_UNSENT and self._protocol is not None:
            self._is_paused = True
            self._protocol.pause_writing()

    def drained(self) -> None:
        if self._is_paused and self._protocol is not None:
            self._is_paused = False
            self._protocol.resume_writing()

    def pause_reading(self) -> None:
        if not self._is_closing:
            self._stream.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._stream.resume_reading()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._stream.close()

    def abort(self) -> None:
        self._is_closing = True
        self._stream.abort()

    def lost(self) -> None:
        self._is_closing = True


class TlsReceiver:
    """The receiver of one stream.

    Args:
        make_protocol: told the certificate that the client has shown (DER), if it has.
        landing: what is received into; nothing stays there between two calls of the loop.

    Attributes:
        is_stranger: always, as each request says anew who asks.
    """

    def __init__(
        self,
        make_protocol: Callable[[bytes | None], asyncio.Protocol],
        landing: memoryview,
        local: tuple[str, int],
    ) -> None:
        self.is_stranger = True
        self._make_protocol = make_protocol
        self._landing = landing
        self._local = local
        self._transport: TlsTransport | None = None
        self._protocol: Any = None

    def connected(self, transport: Transport) -> None:
        self._transport = TlsTransport(transport, self._local)
        self._protocol = self._make_protocol(transport.certificate)
        self._transport.set_protocol(self._protocol)
        self._protocol.connection_made(self._transport)

    def get_buffer(self) -> memoryview:
        return self._landing

    def received(self, size: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._protocol.data_received(bytes(self._landing[:size]))

    def drained(self) -> None:
        if self._transport is not None:
            self._transport.drained()

    def disconnected(self) -> None:
        if self._transport is not None:
            self._transport.lost()
            self._protocol.connection_lost(None)
            self._transport = self._protocol = None
