"""The network as the core sees it: byte streams that receive into a buffer of ours and can send file ranges."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.ports.disk import File

if TYPE_CHECKING:
    import ssl


class Transport(Protocol):
    """The sending side of one connection. Never blocks; what the peer does not take yet is queued in order."""

    @property
    def peer(self) -> str:
        """Who is on the other side, for logs: `host:port`."""
        ...

    @property
    def certified(self) -> bool:
        """Whether the peer has shown a certificate that our side of TLS trusts."""
        ...

    @property
    def certificate(self) -> bytes | None:
        """That certificate, as DER."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes accepted by `write` and `send_range` that have not left yet."""
        ...

    def write(self, data: bytes) -> None: ...

    def send_range(self, file: File, position: int, size: int) -> None:
        """Send `size` bytes of `file` from `position`, without copying them through Python where possible."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Close after what is queued has been sent."""
        ...

    def abort(self) -> None:
        """Close now and drop what is queued."""
        ...


class Receiver(Protocol):
    """The receiving side of one connection, implemented by a protocol's shell."""

    def connected(self, transport: Transport) -> None: ...

    def get_buffer(self) -> memoryview:
        """Where the next bytes go. Never empty. Valid until `received`."""
        ...

    def received(self, size: int) -> None:
        """`size` bytes have been placed at the start of the last `get_buffer`."""
        ...

    def drained(self) -> None:
        """`unsent` has fallen to zero after having been above it."""
        ...

    def disconnected(self) -> None: ...


class Listener(Protocol):
    @property
    def address(self) -> tuple[str, int]:
        """The host and port that were bound; never port 0."""
        ...

    async def close(self) -> None:
        """Stop accepting. Connections already open stay open."""
        ...


class TlsIdentity(Protocol):
    """What one side of TLS shows, and whom it trusts. It may change while listeners use it."""

    @property
    def server_context(self) -> "ssl.SSLContext":
        """For the next connection that is accepted."""
        ...

    @property
    def client_context(self) -> "ssl.SSLContext":
        """For the next connection that is made."""
        ...

    def refuse(self, certificate: bytes) -> str | None:
        """Why a peer's certificate (DER) that `server_context` trusts is not taken, or is taken no more; None if it is.

        Asked after each handshake, also one that goes on with an earlier session, and when `watch` tells.
        """
        ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have `changed` called whenever `refuse` may say something else; what is returned ends that."""
        ...


class Network(Protocol):
    async def listen(
        self,
        host: str,
        port: int,
        accept: Callable[[], Receiver],
        *,
        tls: "ssl.SSLContext | TlsIdentity | None" = None,
    ) -> Listener:
        """Bind and accept. Raises `OSError` when the address cannot be bound."""
        ...

    async def connect(
        self,
        host: str,
        port: int,
        receiver: Receiver,
        *,
        timeout_s: float,
        tls: "ssl.SSLContext | TlsIdentity | None" = None,
    ) -> Transport:
        """Open a stream; `receiver.connected` has been called on return, and `disconnected` tells of its loss.

        Raises:
            ConnectionRefusedError: the host is there and nobody listens.
            TimeoutError: there was no answer.
            OSError: anything else, such as an unknown host or a certificate that is not trusted.
        """
        ...
