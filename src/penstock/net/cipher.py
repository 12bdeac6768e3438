"""TLS of one connection, without its socket: what was received goes in, what is to be sent comes out.

OpenSSL's memory for what comes and goes grows to the largest piece it ever held and stays so. What was received is cut
into records, 16 KiB at most, by the length in front of each (RFC 8446 §5.1) before OpenSSL sees it, and it is asked for
bytes only when a record is whole, since each refusal of its would be an exception. What is sent is enciphered in
pieces: of 64 KiB, with which a connection keeps some 90 KiB, or of 16 KiB, which costs some more time and keeps 45.
"""

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE_PIECE_BYTES: Final = 64 * 1024
SMALL_PIECE_BYTES: Final = 16 * 1024
RECORD_BYTES: Final = 16 * 1024  # the most plain bytes that a record may carry
_HEADER_BYTES: Final = 5
_LONGEST: Final = RECORD_BYTES + 2048  # TLS 1.2 allows so much around them, TLS 1.3 less
HANDSHAKE: Final = 0x16
"""The first byte that a client sends."""


class Cipher:
    """
    Args:
        host: whom the certificate of the other side has to name; None on the side that was connected to.
        piece_bytes: how much is enciphered at a time.
    """

    __slots__ = (
        "_begun",
        "_failure",
        "_incoming",
        "_lacking",
        "_outgoing",
        "_piece_bytes",
        "_read",
        "_tls",
        "has_more",
    )

    def __init__(
        self, context: ssl.SSLContext, host: str | None = None, *, piece_bytes: int = LARGE_PIECE_BYTES
    ) -> None:
        self._piece_bytes = piece_bytes
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=host is None, server_hostname=host)
        self._read = cast("Callable[[int, memoryview], int]", self._tls.read)
        self._begun = b""  # of the header of the record under way
        self._lacking = 0  # of the record under way
        self._failure: EOFError | ssl.SSLError | None = None
        self.has_more = False
        """Whether something is left that did not fit the last buffer, or is to be raised."""

    @property
    def certificate(self) -> bytes | None:
        """The peer's, as DER, if it has shown one that is trusted."""
        return self._tls.getpeercert(binary_form=True) if self._tls.getpeercert() else None

    @property
    def protocol(self) -> str | None:
        """What both sides agreed to speak within (ALPN)."""
        return self._tls.selected_alpn_protocol()

    def take(self, data: memoryview, start: int) -> int:
        """Take what was received from `start` on, up to the end of the record under way.

        Returns:
            Where it ends; below 0 if there is more to come of that record, and nothing is left of `data`.

        Raises:
            ssl.SSLError: it is longer than a record can be.
        """
        stop = start + self._lacking
        end = len(data)
        if stop == start:
            if self._begun or end - start < _HEADER_BYTES:
                return self._take_header(data, start)
            length = data[start + 3] << 8 | data[start + 4]
            if length > _LONGEST:
                raise _too_long(length)
            stop += _HEADER_BYTES + length
        self._incoming.write(data[start:stop])
        if stop > end:
            self._lacking = stop - end
            return -1
        self._lacking = 0
        return stop

    def _take_header(self, data: memoryview, start: int) -> int:
        """Take a header that came in pieces, and what is behind it."""
        piece = bytes(data[start : start + _HEADER_BYTES - len(self._begun)])
        self._incoming.write(piece)
        self._begun += piece
        if len(self._begun) < _HEADER_BYTES:
            return -1
        length = self._begun[3] << 8 | self._begun[4]
        self._begun = b""
        if length > _LONGEST:
            raise _too_long(length)
        self._lacking = length
        start += len(piece)
        return self.take(data, start) if length else start

    def shake_hands(self) -> bool:
        """Go on with the handshake; whether it is over. Raises `ssl.SSLError`."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def decipher(self, data: memoryview, start: int, buffer: memoryview) -> tuple[int, int]:
        """Decipher what was received from `start` on, until the buffer is full or no whole record is left.

        Returns:
            Where to go on in `data`, and how many bytes there are in the buffer.

        Raises:
            ssl.SSLError: what the peer sends is no TLS, or an alert. What came before has been given.
            EOFError: the peer sends nothing more. As above.
        """
        filled, end, room = 0, len(data), len(buffer)
        try:
            if self._failure is not None:
                raise self._failure
            while filled < room:
                if not self.has_more:
                    if start == end:
                        break
                    start = self.take(data, start)
                    if start < 0:
                        start = end
                        break
                try:
                    size = self._read(room - filled, buffer[filled:] if filled else buffer)
                except ssl.SSLWantReadError:  # it was about TLS itself
                    self.has_more = False
                    continue
                if size == 0:
                    raise EOFError
                filled += size
                self.has_more = filled == room and self._tls.pending() > 0
        except (EOFError, ssl.SSLError) as error:
            if filled == 0:
                raise
            self._failure, self.has_more = error, True
        return start, filled

    def seal(self, data: bytes | memoryview, sealed: "list[bytes] | list[bytes | memoryview]") -> int:
        """Append the records of `data`; their size. Raises `ssl.SSLError`."""
        tls, outgoing, most, size = self._tls, self._outgoing, self._piece_bytes, 0
        view = memoryview(data)
        for start in range(0, len(view), most):
            tls.write(view[start : start + most])
            records = outgoing.read()
            size += len(records)
            sealed.append(records)
        return size

    def collect(self) -> bytes:
        """What TLS itself has to say: a step of the handshake, an alert."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def say_farewell(self) -> bytes:
        """The record that says that nothing follows."""
        with suppress(ssl.SSLError):  # as long as the peer has not said the same, or when it is beyond that
            self._tls.unwrap()
        return self.collect()


def _too_long(length: int) -> ssl.SSLError:
    return ssl.SSLError(f"a record of {length} bytes; allowed: up to {_LONGEST}")
