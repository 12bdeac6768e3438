"""Listening and connecting under TLS, for `TcpNetwork`."""

import asyncio
import ssl
from collections.abc import Callable

from penstock.net.cipher import Cipher
from penstock.net.tls import CertificateRefused
from penstock.net.tls_listener import TlsListener, bind
from penstock.net.tls_stream import LANDING_BYTES, TlsStream
from penstock.ports.network import Listener, Receiver, TlsIdentity, Transport


class FixedIdentity:
    """An identity that never changes: one context, and nothing against anybody it trusts."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    @property
    def server_context(self) -> ssl.SSLContext:
        return self._context

    @property
    def client_context(self) -> ssl.SSLContext:
        return self._context

    def refuse(self, certificate: bytes) -> str | None:
        return None

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def _identity(tls: ssl.SSLContext | TlsIdentity) -> TlsIdentity:
    return FixedIdentity(tls) if isinstance(tls, ssl.SSLContext) else tls


async def listen(host: str, port: int, accept: Callable[[], Receiver], tls: ssl.SSLContext | TlsIdentity) -> Listener:
    """Bind and accept. Raises `OSError`."""
    return TlsListener(await bind(host, port), accept, _identity(tls))


class _Call:
    """The side that connects. What it says of the peer's certificate is looked at for as long as it is connected."""

    def __init__(self, identity: TlsIdentity, receiver: Receiver, host: str) -> None:
        self._identity = identity
        self._stream: TlsStream | None = None
        self._forget: Callable[[], None] | None = None
        self._receiver = receiver
        self._host = host
        self.made: asyncio.Future[Transport] = asyncio.get_running_loop().create_future()

    def begin(self, stream: TlsStream) -> Cipher | None:
        return self.make_cipher()

    def make_cipher(self) -> Cipher:
        return Cipher(self._identity.client_context, self._host)

    def receive(self, stream: TlsStream, cipher: Cipher) -> Receiver:
        refusal = self._identity.refuse(cipher.certificate) if cipher.certificate is not None else None
        if refusal is not None:
            raise CertificateRefused(refusal)
        return self._receiver

    def ready(self, stream: TlsStream, transport: Transport) -> None:
        self._stream = stream
        self._forget = self._identity.watch(self._check)
        if not self.made.done():
            self.made.set_result(transport)

    def failed(self, stream: TlsStream, error: OSError) -> None:
        if not self.made.done():
            self.made.set_exception(error)

    def lost(self, stream: TlsStream) -> None:
        if self._forget is not None:
            self._forget()

    def _check(self) -> None:
        stream = self._stream
        if stream is not None and stream.certificate is not None:
            refusal = self._identity.refuse(stream.certificate)
            if refusal is not None:
                stream.give_up(refusal)


async def connect(
    address: str, port: int, receiver: Receiver, tls: ssl.SSLContext | TlsIdentity, host: str
) -> Transport:
    """Connect to one address of a host, whose name the certificate has to have. Raises `OSError`."""
    call = _Call(_identity(tls), receiver, host)
    landing = memoryview(bytearray(LANDING_BYTES))
    stream = TlsStream(call, landing, speaks_first=True)
    try:
        await asyncio.get_running_loop().create_connection(lambda: stream, address, port)
        return await call.made
    except BaseException:
        call.made.cancel()
        stream.give_up("nobody waits for it any more")
        raise
