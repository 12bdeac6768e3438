"""One connection of a protocol with length-prefixed frames: frames to a session, answers back in request order.

Requests may be under way at the same time, answers never overtake each other. Reading stops while too many requests
are unanswered or too many bytes are unsent, so a peer that only writes, or never reads, costs a bounded amount. What
all of them may cost together is bounded too: large requests wait for room, and of answers that cannot leave, too many
end the connection that holds most.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.net.frames import FrameBuffer, FrameError
from penstock.net.room import Holders, Room
from penstock.observe.logs import get_logger
from penstock.observe.stats import Histogram, Stats
from penstock.ports.clock import Clock
from penstock.ports.disk import File
from penstock.ports.network import Transport

log_ = get_logger("net")

Part = bytes | tuple[File, int, int]
"""Bytes, or (file, position, size)."""


_LONGEST_TURN_S = 0.01  # of one connection's requests, one after the other
_NOTED_BYTES = 64 * 1024  # of answers on their way; below it nobody counts them


class PeerError(Exception):
    """The peer broke the protocol; the connection is closed, with this text in the log."""


@dataclass(frozen=True, slots=True)
class Limits:
    frame_bytes: int = 100 << 20
    in_flight: int = 64
    """Unanswered requests of one connection; reading stops above it."""
    unsent_bytes: int = 4 << 20
    write_stall_s: float = 30.0
    frame_s: float = 30.0
    """A frame must be complete this long after its first byte, plus its size at `slowest_bytes_s`."""
    slowest_bytes_s: int = 16 * 1024
    crowded_s: float = 2.0
    """The same while others wait for room."""
    crowded_bytes_s: int = 4 << 20
    receive_bytes: int = 512 << 20
    """Large requests that are arriving, of all connections; the excess waits."""
    answer_bytes: int = 512 << 20
    """Answers that cannot leave, of all connections; above it, who holds most is closed."""
    idle_s: float = 600.0
    shrink_s: float = 5.0
    connections: int = 10_000


class Answer:
    """The place of one answer in a connection's queue."""

    __slots__ = ("_connection", "_latency", "_parts", "_since", "done", "held_bytes")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._parts: Sequence[Part] = ()
        self._latency: Histogram | None = None
        self._since = 0.0
        self.done = False
        self.held_bytes = 0
        """Of what is answered, as long as an earlier request is not."""

    def time(self, latency: Histogram, since: float) -> None:
        """Note in `latency` how long after `since` the answer is ready."""
        self._latency = latency
        self._since = since

    def send(self, parts: Sequence[Part]) -> None:
        """Answer; goes out when all earlier requests are answered."""
        self._parts = parts
        self.done = True
        if self._latency is not None:
            self._latency.observe(self._connection.now() - self._since)
        self._connection.answered(self)

    def skip(self) -> None:
        """This request gets no answer."""
        self.send(())

    def take(self) -> Sequence[Part]:
        return self._parts

    def hold(self) -> None:
        """Have the connection take no further request until `release`."""
        self._connection.busy()

    def release(self) -> None:
        self._connection.free()


class Session(Protocol):
    """A protocol's side of a connection."""

    def handle(self, frame: memoryview, answer: Answer) -> None:
        """Handle one frame; the view dies on return. Raises `PeerError` to close the connection."""
        ...

    def disconnected(self) -> None: ...


class Connection:
    """A receiver of the network port, made by `Connections`."""

    __slots__ = (
        "_answers",
        "_buffer",
        "_busy",
        "_clock",
        "_connections",
        "_flushing",
        "_held_bytes",
        "_limits",
        "_noted_bytes",
        "_paused",
        "_resume_bytes",
        "_session",
        "_stats",
        "_transport",
        "_wants_room",
        "_written_bytes",
        "active_at",
        "frame_since",
        "stalled",
    )

    def __init__(self, connections: "Connections") -> None:
        self._connections = connections
        self._limits = connections.limits
        self._stats = connections.stats
        self._clock = connections.clock
        self._buffer = FrameBuffer(self._limits.frame_bytes, connections.room)
        self._answers: deque[Answer] = deque()
        self._paused = False
        self._busy = False
        self._resume_bytes = self._limits.unsent_bytes  # unsent, with which a pause may end
        self._wants_room = 0
        self._held_bytes = 0
        self._noted_bytes = 0
        self._written_bytes = 0  # since all of it had left
        self._flushing = False
        self._transport: Transport | None = None
        self._session: Session | None = None
        self.active_at = 0.0
        self.frame_since = -1.0
        self.stalled = (0, 0.0)

    @property
    def peer(self) -> str:
        return self._transport.peer if self._transport is not None else "nobody"

    @property
    def certified(self) -> bool:
        """Whether the peer has shown a certificate that is trusted here."""
        return self._transport is not None and self._transport.certified

    def now(self) -> float:
        return self._clock.monotonic()

    def limit_frames(self, largest: int | None) -> None:
        """Take no frame above `largest` from now on; None for what the listener allows."""
        self._buffer.limit(self._limits.frame_bytes if largest is None else largest)

    def connected(self, transport: Transport) -> None:
        self._transport = transport
        self.active_at = self._clock.monotonic()
        if not self._connections.admit(self):
            transport.abort()
            return
        self._session = self._connections.make_session(self)

    def get_buffer(self) -> memoryview:
        return self._buffer.writable()

    def received(self, size: int) -> None:
        self._stats.bytes_in += size
        self._buffer.add(size)
        self.active_at = self._clock.monotonic()
        self._pump()

    def _pump(self) -> None:
        """Hand frames to the session until there is none or it is time to stop reading."""
        session = self._session
        if session is None:
            return
        try:
            while not self._paused and self._session is not None:
                frame = self._buffer.next()
                if frame is None:
                    break
                self.frame_since = -1.0
                answer = Answer(self)
                self._answers.append(answer)
                session.handle(frame, answer)
                if self._busy or len(self._answers) >= self._limits.in_flight:
                    self._pause()
                elif not self._buffer.is_empty and self._clock.monotonic() - self.active_at > _LONGEST_TURN_S:
                    self._pause()
                    self._connections.soon(self._resume_if_room)  # when others have had their turn
            if not self._paused and (lacking := self._buffer.lacking):
                self._take_room(lacking)
        except (PeerError, FrameError) as error:
            self.refuse(error)
        except Exception:  # noqa: BLE001 - a bug of ours must cost this connection only
            self._stats.protocol_errors += 1
            log_.limited("bug").exception("request failed", peer=self.peer)
            self.abort()
        if self._buffer.is_empty:
            self.frame_since = -1.0
        elif self.frame_since < 0:
            self.frame_since = self.active_at

    def _take_room(self, size: int) -> None:
        room = self._connections.room
        if not room.take(size):
            self._connections.make_room()
            if not room.take(size):
                self._wait_for_room(size, room)
                return
        self._buffer.taken_bytes += size

    def _wait_for_room(self, size: int, room: Room) -> None:
        self._pause()
        self._wants_room = size
        room.wait(size, self._granted, self._buffer.taken_bytes)

    def _granted(self) -> None:
        self._buffer.taken_bytes += self._wants_room
        self._wants_room = 0
        self._resume_if_room()

    def busy(self) -> None:
        """Take no further request until `free`, and until its answer has all but left: it takes long to make, and who
        does not read one gets no other.
        """
        self._busy = True
        self._resume_bytes = min(_NOTED_BYTES, self._limits.unsent_bytes)

    def free(self) -> None:
        self._busy = False
        if self._paused:
            self._resume_if_room()

    def answered(self, answer: Answer) -> None:
        """An answer is there: send it if it is its turn, else it is held."""
        answers = self._answers
        if answers and answers[0] is not answer and self._transport is not None:
            answer.held_bytes = sum(len(part) for part in answer.take() if isinstance(part, bytes))
            self._held_bytes += answer.held_bytes
            self._note_held(self._transport)
        else:
            self.flush()

    def _note_held(self, transport: Transport) -> None:
        """Say how much memory answers take here: those held back, and those the peer does not read."""
        if self._held_bytes > self._limits.unsent_bytes:
            self._pause()
        self._noted_bytes = self._held_bytes + min(self._written_bytes, transport.unsent)
        self._connections.holders.holds(self, self._noted_bytes)

    def flush(self) -> None:
        """Send the answers whose turn it is."""
        if self._flushing:
            return
        transport = self._transport
        answers = self._answers
        self._flushing = True
        try:
            while answers and answers[0].done:
                answer = answers.popleft()
                self._held_bytes -= answer.held_bytes
                if transport is None:
                    continue
                for part in answer.take():
                    if isinstance(part, bytes):
                        self._stats.bytes_out += len(part)
                        self._written_bytes += len(part)
                        transport.write(part)
                    else:
                        self._stats.bytes_out += part[2]
                        transport.send_range(*part)
        finally:
            self._flushing = False
        if transport is None:
            return
        unsent = transport.unsent
        if unsent == 0:
            self._written_bytes = 0
        if self._held_bytes or self._noted_bytes or self._written_bytes > _NOTED_BYTES:
            self._note_held(transport)
        if unsent > self._limits.unsent_bytes:
            self._pause()
        elif self._paused:
            self._resume_if_room()

    def drained(self) -> None:
        self._written_bytes = 0
        if self._noted_bytes and self._transport is not None:
            self._note_held(self._transport)
        if self._paused:
            self._resume_if_room()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume_if_room(self) -> None:
        transport = self._transport
        if transport is None or not self._paused or self._busy or self._wants_room:
            return
        if transport.unsent > self._resume_bytes or self._held_bytes > self._limits.unsent_bytes:
            return
        if len(self._answers) > self._limits.in_flight // 2:
            return
        self._paused = False
        self._resume_bytes = self._limits.unsent_bytes
        self._connections.soon(self._continue)

    def _continue(self) -> None:
        """Frames that were received before the pause come first."""
        if self._transport is None or self._paused:
            return
        self.active_at = self._clock.monotonic()  # the pause was ours: what the peer owes is due from now
        self.frame_since = -1.0
        self._pump()
        if not self._paused and self._transport is not None:
            self._transport.resume_reading()

    def sweep(self, now: float) -> None:
        """Called every few seconds: deadlines and memory."""
        transport = self._transport
        if transport is None:
            return
        unsent = transport.unsent
        if unsent == 0 or unsent != self.stalled[0]:
            self.stalled = (unsent, now)
        elif now - self.stalled[1] > self._limits.write_stall_s:
            log_.limited("peer").warning("closing connection", peer=self.peer, reason="peer does not read")
            self.abort()
            return
        is_in_the_way = self._buffer.taken_bytes > 0 and self._connections.room.is_crowded
        if self.frame_since >= 0 and (not self._paused or is_in_the_way):
            allowed = self._limits.frame_s + self._buffer.size / self._limits.slowest_bytes_s
            if is_in_the_way:
                allowed = self._limits.crowded_s + self._buffer.size / self._limits.crowded_bytes_s
            if now - self.frame_since > allowed:
                log_.limited("peer").warning("closing connection", peer=self.peer, reason="request came too slowly")
                self.abort()
                return
        quiet = now - self.active_at
        if quiet > self._limits.idle_s and not self._answers and unsent == 0:
            transport.close()
        elif quiet > self._limits.shrink_s:
            self._buffer.shrink()

    def give_back(self) -> None:
        """Let go of what is kept for the next large request."""
        self._buffer.give_back()

    def refuse(self, error: PeerError | FrameError) -> None:
        """The peer broke the protocol."""
        self._stats.protocol_errors += 1
        log_.limited("peer").warning("closing connection", peer=self.peer, reason=str(error))
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._session_over()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def disconnected(self) -> None:
        self._connections.leave(self)
        self._transport = None
        self._session_over()
        self._answers.clear()  # each of them has this connection, and somebody may have one of them for long
        if self._wants_room:
            self._connections.room.leave(self._granted)
        self._connections.holders.holds(self, 0)
        self._buffer.release()

    def _session_over(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.disconnected()


class Connections:
    """All connections of one listener."""

    def __init__(
        self,
        limits: Limits,
        stats: Stats,
        clock: Clock,
        make_session: Callable[[Connection], Session],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.limits = limits
        self.stats = stats
        self.clock = clock
        self.make_session = make_session
        self.soon = soon
        self.room = Room(limits.receive_bytes)
        self.holders: Holders[Connection] = Holders(limits.answer_bytes, self._holds_most)
        self._open: set[Connection] = set()

    def accept(self) -> Connection:
        return Connection(self)

    def admit(self, connection: Connection) -> bool:
        if len(self._open) >= self.limits.connections:
            self.stats.connections_refused += 1
            log_.limited("refused").warning("connection refused", peer=connection.peer, limit=self.limits.connections)
            return False
        self._open.add(connection)
        self.stats.connections_total += 1
        self.stats.connections_open += 1
        return True

    def leave(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self.stats.connections_open -= 1

    def _holds_most(self, connection: Connection, held_bytes: int) -> None:
        reason = f"{held_bytes} bytes of answers are not taken, and all connections together hold too many"
        log_.limited("held").warning("closing connection", peer=connection.peer, reason=reason)
        connection.abort()

    def make_room(self) -> None:
        """Somebody finds none: nobody keeps any for later."""
        for connection in self._open:
            connection.give_back()

    def sweep(self) -> None:
        now = self.clock.monotonic()
        for connection in list(self._open):
            connection.sweep(now)

    def close_all(self) -> None:
        for connection in list(self._open):
            connection.close()
