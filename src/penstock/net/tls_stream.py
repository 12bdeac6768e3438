"""Between the event loop and a receiver, under TLS: the handshake, then what comes, deciphered.

Before the peer's first byte there is nothing but the socket. The receiver is made when the handshake is over; what is
received then goes through one buffer that all connections share, record by record into the receiver's own. While the
receiver wants nothing, what was received already waits here: what came at once, which is little of a peer that has not
said who it is.
"""

import asyncio
import socket
import ssl
import sys
from contextlib import suppress
from typing import Final, Protocol, cast

from penstock.net.cipher import HANDSHAKE, RECORD_BYTES, Cipher
from penstock.net.tls import CertificateRefused, tell
from penstock.net.transport import TcpTransport, peer_of, prepare
from penstock.observe.logs import get_logger
from penstock.ports.network import Receiver, Transport

log_ = get_logger("net")

LANDING_BYTES: Final = 128 * 1024
_OF_STRANGER_BYTES: Final = 4 * 1024
"""Received at once of a peer that is not known."""
_AWAITED_BYTES: Final = 64 * 1024 if sys.platform == "linux" else 1
"""Of a large frame, before the loop is woken: else it is for every record or two, as soon as the peer has sent them."""
_UNREAD_BYTES: Final = 64 * 1024
"""Of what TLS itself makes us answer, such as new keys; who makes us say more and does not read it is up to no good."""


class Side(Protocol):
    """What a stream asks of who made it: a listener, or somebody who connects."""

    def begin(self, stream: "TlsStream") -> Cipher | None:
        """Called at the peer's first byte, so that who says nothing costs next to nothing; None has it wait."""
        ...

    def make_cipher(self) -> Cipher:
        """For a stream that has waited, or speaks first."""
        ...

    def receive(self, stream: "TlsStream", cipher: Cipher) -> Receiver:
        """The handshake is over. Raises `CertificateRefused` for a peer that is not welcome."""
        ...

    def ready(self, stream: "TlsStream", transport: Transport) -> None: ...

    def failed(self, stream: "TlsStream", error: OSError) -> None:
        """There will be no receiver."""
        ...

    def lost(self, stream: "TlsStream") -> None: ...


class ToldReceiver(Receiver, Protocol):
    """One that wants to know why TLS ends its connection."""

    def ending(self, error: OSError) -> None:
        """Called before `disconnected`."""
        ...


class FramesReceiver(Receiver, Protocol):
    """One that may know how much is to come, and of whom."""

    is_stranger: bool
    """Whether it has not said yet who it is."""

    @property
    def missing(self) -> int:
        """Of the frame under way; 0 where that is not known."""
        ...


class TlsStream(asyncio.BufferedProtocol):
    """
    Args:
        landing: what is received into; nothing stays there between two calls of the loop.
        speaks_first: whether this side begins the handshake.
    """

    __slots__ = (
        "_awaited",
        "_is_over",
        "_is_paused",
        "_is_resuming",
        "_landing",
        "_left",
        "_loop",
        "_receiver",
        "_side",
        "_speaks_first",
        "_tcp",
        "_transport",
        "_unread_bytes",
        "cipher",
    )

    def __init__(self, side: Side, landing: memoryview, *, speaks_first: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._side = side
        self._landing = landing
        self._speaks_first = speaks_first
        self._tcp: asyncio.Transport | None = None
        self.cipher: Cipher | None = None
        self._transport: TcpTransport | None = None
        self._receiver: Receiver | None = None
        self._left = b""  # received while the receiver wanted nothing
        self._unread_bytes = 0
        self._awaited = 1  # bytes, see `_wait_for_more`
        self._is_paused = False
        self._is_resuming = False
        self._is_over = False

    @property
    def peer(self) -> str:
        return peer_of(self._tcp) if self._tcp is not None else "unknown"

    @property
    def certificate(self) -> bytes | None:
        """The peer's, as DER."""
        return self._transport.certificate if self._transport is not None else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        prepare(transport)
        self._tcp = cast(asyncio.Transport, transport)
        if self._is_over:  # given up before the loop came to it
            self._tcp.abort()
        elif self._speaks_first:
            self.cipher = self._side.make_cipher()
            self._shake_hands(self.cipher)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._receiver is None or getattr(self._receiver, "is_stranger", False):  # see FramesReceiver
            return self._landing[:_OF_STRANGER_BYTES]
        return self._landing

    def buffer_updated(self, nbytes: int) -> None:
        received = self._landing[:nbytes]
        if self._left:
            self._left += bytes(received)
        else:
            self._take(received)
            self._wait_for_more()

    def _take(self, received: memoryview) -> None:
        cipher = self.cipher
        if cipher is None:
            if self._is_over:
                return
            if received[0] != HANDSHAKE:
                self._fail(ConnectionAbortedError("its first bytes are not TLS; is the client told to speak TLS here?"))
                return
            cipher = self.cipher = self._side.begin(self)
            if cipher is None:
                self._left = bytes(received)
                if self._tcp is not None:
                    self._tcp.pause_reading()
                return
        start, end = 0, len(received)
        try:
            while (start < end or cipher.has_more) and not self._is_over:
                if self._is_paused:
                    self._left = bytes(received[start:])
                    return
                if self._receiver is not None:
                    start = self._decipher(cipher, self._receiver, received, start)
                    continue
                start = cipher.take(received, start)
                if start < 0:
                    return
                self._shake_hands(cipher)
        except ssl.SSLError as error:
            self._fail(error)

    def _wait_for_more(self) -> None:
        """Have the loop woken again when much of a large frame has come, or what is missing of it.

        Up to a record of it may be here already, in part, so the kernel is asked to wait for that much less.
        """
        if self._is_paused or self._is_over or self._tcp is None:
            return
        awaited = min(getattr(self._receiver, "missing", 0) - RECORD_BYTES, _AWAITED_BYTES)  # see FramesReceiver
        if awaited < 1:
            awaited = 1
        if awaited != self._awaited:
            self._awaited = awaited
            with suppress(OSError):  # it may be closed already
                self._tcp.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)

    def go_on(self) -> None:
        """There is a place for the handshake."""
        if self._is_over or self._tcp is None:
            return
        self.cipher = self._side.make_cipher()
        self._tcp.resume_reading()
        left, self._left = self._left, b""
        self._take(memoryview(left))

    def _shake_hands(self, cipher: Cipher) -> None:
        try:
            is_done = cipher.shake_hands()
        except ssl.SSLError as error:
            self._fail(error)
            return
        assert self._tcp is not None
        if said := cipher.collect():
            self._tcp.write(said)
        if not is_done:
            return
        try:
            self._receiver = self._side.receive(self, cipher)
        except CertificateRefused as error:
            self._fail(error)
            return
        self._transport = TcpTransport(self._tcp, self._receiver, self)
        self._side.ready(self, self._transport)
        self._receiver.connected(self._transport)

    def _decipher(self, cipher: Cipher, receiver: Receiver, received: memoryview, start: int) -> int:
        """Hand on as much as fits one buffer of the receiver; where to go on. Raises `ssl.SSLError`."""
        try:
            start, filled = cipher.decipher(received, start, receiver.get_buffer())
        except EOFError:
            self.stop()
            if self._transport is not None:
                self._transport.close()
            return start
        if filled:
            receiver.received(filled)
        if (said := cipher.collect()) and self._transport is not None and not self._is_over:
            self._unread_bytes += len(said)
            if self._unread_bytes > _UNREAD_BYTES:
                raise ssl.SSLError("it asks for new keys and does not read")
            self._transport.send_records(said)
            if self._transport.unsent == 0:
                self._unread_bytes = 0
        return start

    def _fail(self, error: OSError) -> None:
        """The peer broke the rules of TLS, or shows no certificate that is good here."""
        if self._is_over:
            return
        self._is_over = True
        if self._transport is not None:
            log_.limited("cipher").warning("closing connection", peer=self.peer, reason=tell(error))
            ending = getattr(self._receiver, "ending", None)  # see ToldReceiver
            if ending is not None:
                ending(error)
            self._transport.abort()
            return
        if self._tcp is not None:
            if self.cipher is not None and (alert := self.cipher.collect()):
                self._tcp.write(alert)
            self._tcp.close()
        self._side.failed(self, error)

    def give_up(self, reason: str) -> None:
        """Let the peer go: the handshake takes too long, or its certificate is good no more."""
        if self._transport is None:
            self._fail(TimeoutError(reason))
            if self._tcp is not None:
                self._tcp.abort()
        else:
            self._fail(CertificateRefused(reason))

    # --- for the transport

    def pause_reading(self) -> None:
        self._is_paused = True
        assert self._tcp is not None
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if not self._is_resuming and not self._is_over:
            self._is_resuming = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._is_resuming = False
        if self._is_paused or self._is_over:
            return
        tcp = self._tcp
        assert tcp is not None
        if self._left or (self.cipher is not None and self.cipher.has_more):
            left, self._left = self._left, b""
            self._take(memoryview(left))
        if not self._is_paused and not self._is_over:
            self._wait_for_more()
            tcp.resume_reading()

    def stop(self) -> None:
        """Hand on nothing more."""
        self._is_over = True
        self._left = b""

    # --- of the event loop

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        return None

    def resume_writing(self) -> None:
        self._unread_bytes = 0
        if self._transport is not None:
            self._transport.transport_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        was_over, self._is_over = self._is_over, True
        if self._transport is not None and self._receiver is not None:
            self._transport.lost()
            self._receiver.disconnected()
            self._side.lost(self)
            self._transport = None
        elif not was_over:
            error = exc if isinstance(exc, OSError) else ConnectionResetError("it was closed during the TLS handshake")
            self._side.failed(self, error)
        self.cipher = None
        self._left = b""
