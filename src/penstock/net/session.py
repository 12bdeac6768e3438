"""A protocol's side of a connection: the session that a door has for each, and the answer that each request gets."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.observe.stats import Histogram
from penstock.ports.disk import File

if TYPE_CHECKING:
    from penstock.net.connection import Connection

Part = bytes | tuple[File, int, int]
"""Bytes, or (file, position, size)."""


class PeerError(Exception):
    """The peer broke the protocol; the connection is closed, with this text in the log."""


class PushError(RuntimeError):
    """A bug of ours: the session pushed to a peer that has not read what was pushed before."""


class Answer:
    """The place of one answer in a connection's queue."""

    __slots__ = ("_connection", "_latency", "_since", "done", "held_bytes", "parts")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._latency: Histogram | None = None
        self._since = 0.0
        self.parts: Sequence[Part] = ()
        self.done = False
        self.held_bytes = 0
        """Of what is answered, as long as an earlier request is not."""

    def time(self, latency: Histogram, since: float) -> None:
        """Note in `latency` how long after `since` the answer is ready."""
        self._latency = latency
        self._since = since

    def send(self, parts: Sequence[Part]) -> None:
        """Answer; goes out when all earlier requests are answered, or at once where answers have no order."""
        self.parts = parts
        self.done = True
        if self._latency is not None:
            self._latency.observe(self._connection.now() - self._since)
        self._connection.answered(self)

    def skip(self) -> None:
        """This request gets no answer."""
        self.send(())

    def abort(self) -> None:
        """There will be none: the peer must not wait for it, so its connection ends."""
        self._connection.abort()

    def hold(self) -> None:
        """Have the connection take no further request until `release`."""
        self._connection.busy()

    def release(self) -> None:
        self._connection.free()


class Session(Protocol):
    """What every protocol has. It may push from the moment it is made, and set deadlines: see `Connection`."""

    def handle(self, frame: memoryview, answer: Answer) -> None:
        """Handle one frame; the view dies on return. Raises `PeerError` to close the connection."""
        ...

    def disconnected(self) -> None: ...


class PushingSession(Session, Protocol):
    """A session that sends on its own."""

    def writable(self) -> None:
        """All that was sent has left: if something waits to be pushed, push it. Never called within another call."""
        ...


class DrainingSession(Session, Protocol):
    """A session that says goodbye when the broker stops."""

    def draining(self) -> bool:
        """Tell the peer to go; called once, and requests are still handled.

        Returns:
            Whether the peer has a say in the end: it closes the connection, or the session does when it has heard from
            it. Otherwise the connection is closed as soon as all requests are answered and everything has left.
        """
        ...
