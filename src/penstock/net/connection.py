"""One connection: frames to a session, answers back in request order, and what the session sends on its own.

How bytes become frames is up to a framing. Requests may be under way at the same time; answers never overtake each
other, unless the protocol has no order of answers. What a session pushes goes out at once.

Reading stops while too many requests are unanswered or too many bytes are unsent, and pushing is refused while too many
are unsent, so a peer that only writes, or never reads, costs a bounded amount. What all of them may cost together is
bounded too: large requests wait for room; of answers that cannot leave, too many end the connection that holds most.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from penstock.net.deadlines import Deadlines
from penstock.net.frames import with_length_in_front
from penstock.net.framing import FrameError, Framing
from penstock.net.heartbeat import Heartbeat
from penstock.net.limits import Limits
from penstock.net.room import Holders, Room
from penstock.net.session import Answer, Part, PeerError, PushError, Session
from penstock.net.strangers import Strangers, Turn, host_of
from penstock.observe.logs import get_logger
from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.network import Transport

__all__ = ["Answer", "Connection", "Connections", "Limits", "Part", "PeerError", "Session"]

log_ = get_logger("net")

_LONGEST_TURN_S = 0.01  # of one connection's requests, one after the other
_NOTED_BYTES = 64 * 1024  # of answers on their way; below it nobody counts them
_DRAIN_STEP_S = 0.02


class Connection:
    """A receiver of the network port, made by `Connections`."""

    __slots__ = (
        "_answers",
        "_buffer",
        "_busy",
        "_clock",
        "_connections",
        "_deadlines",
        "_flushing",
        "_heartbeat",
        "_held_bytes",
        "_is_telling",
        "_limits",
        "_most_in_flight",
        "_most_unsent",
        "_noted_bytes",
        "_paused",
        "_pushed_bytes",
        "_resume_bytes",
        "_session",
        "_stats",
        "_transport",
        "_waits_for_place",
        "_wants_room",
        "_writable",
        "_written_bytes",
        "active_at",
        "frame_since",
        "is_stranger",
    )

    def __init__(self, connections: "Connections") -> None:
        self._connections = connections
        self._limits = connections.limits
        self._stats = connections.stats
        self._clock = connections.clock
        self._buffer = connections.make_framing(self._limits, connections.room)
        self._answers: deque[Answer] = deque()
        self._paused = False
        self._busy = False
        self._most_in_flight = self._limits.in_flight
        self._most_unsent = self._limits.unsent_bytes
        self._resume_bytes = self._limits.unsent_bytes  # unsent, with which a pause may end
        self._wants_room = 0
        self._waits_for_place = False  # among strangers
        self._held_bytes = 0
        self._noted_bytes = 0
        self._written_bytes = 0  # since all of it had left
        self._pushed_bytes = 0  # that did not leave at once
        self._flushing = False
        self._deadlines = Deadlines(self._limits)
        self._heartbeat: Heartbeat | None = None
        self._transport: Transport | None = None
        self._session: Session | None = None
        self._writable: Callable[[], None] | None = None
        self._is_telling = False
        self.active_at = 0.0
        self.frame_since = -1.0
        self.is_stranger = False  # has not said yet who it is, and has to

    @property
    def peer(self) -> str:
        return self._transport.peer if self._transport is not None else "nobody"

    @property
    def certified(self) -> bool:
        """Whether the peer has shown a certificate that is trusted here."""
        return self._transport is not None and self._transport.certified

    @property
    def certificate(self) -> bytes | None:
        """That certificate, as DER."""
        return self._transport.certificate if self._transport is not None else None

    @property
    def framing(self) -> Framing:
        """What `make_framing` made for this connection, for sessions that say how the next frame comes."""
        return self._buffer

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._transport.unsent if self._transport is not None else 0

    @property
    def is_writable(self) -> bool:
        """Whether the session may push. If not, its `writable` is called when all that was sent has left."""
        return self._transport is not None and self._transport.unsent <= self._limits.pushed_bytes

    def now(self) -> float:
        return self._clock.monotonic()

    def limit_frames(self, largest: int | None) -> None:
        """Take no frame above `largest` until the peer has said who it is, which None tells: a stranger gets less of
        everything, and may have to wait or to go.
        """
        limits, strangers = self._limits, self._connections.strangers
        self.is_stranger = largest is not None
        if largest is None:
            self._buffer.limit(limits.frame_bytes)
            self._most_in_flight = limits.in_flight
            self._most_unsent = self._resume_bytes = limits.unsent_bytes
            strangers.leave(self, self._clock.monotonic())
            return
        self._buffer.limit(largest)
        self._most_in_flight = min(limits.stranger_in_flight, limits.in_flight)
        self._most_unsent = self._resume_bytes = min(limits.stranger_unsent_bytes, limits.unsent_bytes)
        turn = strangers.come(self, host_of(self.peer), self._clock.monotonic())
        if turn is Turn.NEVER:
            self._stats.connections_refused += 1
            self._connections.soon(lambda: self.turn_away(f"{limits.strangers} peers have not said who they are"))
        elif turn is Turn.LATER:
            self._waits_for_place = True
            self._pause()
            self._connections.soon(self._rest)

    def _rest(self) -> None:
        """Once more: a loop may begin to read after it has told of the connection."""
        if self._waits_for_place and self._transport is not None:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """There is a place among strangers."""
        self._waits_for_place = False
        self._resume_if_room()

    def turn_away(self, reason: str) -> None:
        log_.limited("stranger").warning("closing connection", peer=self.peer, reason=reason)
        self.abort()

    def connected(self, transport: Transport) -> None:
        self._transport = transport
        self.active_at = self._clock.monotonic()
        if not self._connections.admit(self):
            transport.abort()
            return
        session = self._session = self._connections.make_session(self)
        self._writable = getattr(session, "writable", None)  # see PushingSession

    def get_buffer(self) -> memoryview:
        return self._buffer.writable()

    @property
    def missing(self) -> int:
        """See `net.tls_stream.FramesReceiver`."""
        return self._buffer.missing

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
                if self._busy or len(self._answers) >= self._most_in_flight:
                    self._pause()
                elif not self._buffer.is_empty and self._clock.monotonic() - self.active_at > _LONGEST_TURN_S:
                    self._pause()
                    self._connections.soon(self._resume_if_room)  # when others have had their turn
            if not self._paused and (lacking := self._buffer.lacking):
                self._take_room(lacking)
        except Exception as error:  # noqa: BLE001 - a bug of ours must cost this connection only
            self.refuse(error)
        if self._buffer.is_empty:
            self.frame_since = -1.0
            if self.is_stranger:
                self._buffer.shrink()
        elif self.frame_since < 0:
            self.frame_since = self.active_at

    def _take_room(self, size: int) -> None:
        room = self._connections.room
        if not room.take(size):
            self._connections.make_room()
            if not room.take(size):
                self._pause()
                self._wants_room = size
                room.wait(size, self._granted, self._buffer.taken_bytes)
                return
        self._buffer.taken_bytes += size

    def _granted(self) -> None:
        self._buffer.taken_bytes += self._wants_room
        self._wants_room = 0
        self._resume_if_room()

    def busy(self) -> None:
        """Take no further request until `free`, and until its answer has all but left: it takes long to make, and who
        does not read one gets no other.
        """
        self._busy = True
        self._resume_bytes = min(_NOTED_BYTES, self._most_unsent)

    def free(self) -> None:
        self._busy = False
        if self._paused:
            self._resume_if_room()

    def answered(self, answer: Answer) -> None:
        """An answer is there: send it if it is its turn, or if there are no turns; else it is held."""
        answers = self._answers
        if answers and answers[0] is not answer and self._transport is not None:
            if self._connections.ordered:
                answer.held_bytes = sum(len(part) for part in answer.parts if isinstance(part, bytes))
                self._held_bytes += answer.held_bytes
                self._note_held(self._transport)
                return
            answers.remove(answer)
            answers.appendleft(answer)
        self.flush()

    def _note_held(self, transport: Transport) -> None:
        """Say how much memory answers take here: those held back, and those the peer does not read."""
        if self._held_bytes > self._most_unsent:
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
                if transport is not None:
                    self._write(transport, answer.parts)
        finally:
            self._flushing = False
        if transport is None:
            return
        unsent = transport.unsent
        if unsent == 0:
            self._written_bytes = 0
        if self._held_bytes or self._noted_bytes or self._written_bytes > _NOTED_BYTES:
            self._note_held(transport)
        if unsent > self._most_unsent:
            self._pause()
        elif self._paused:
            self._resume_if_room()

    def _write(self, transport: Transport, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, bytes):
                size = len(part)
                self._written_bytes += size
                transport.write(part)
            else:
                size = part[2]
                transport.send_range(*part)
            self._stats.bytes_out += size
        if self._heartbeat is not None and parts:
            self._heartbeat.sent_at = self._clock.monotonic()

    def push(self, parts: Sequence[Part]) -> None:
        """Send outside of a request: behind what was sent before, not behind requests that are unanswered.

        Raises:
            PushError: the peer has not read enough; the session did not look at `is_writable`.
        """
        transport = self._transport
        if transport is None:
            return
        assert not self._flushing, "a push must not come between the parts of an answer"
        unsent = transport.unsent
        if unsent > self._limits.pushed_bytes:
            raise PushError(f"push while {unsent} bytes are unsent; allowed: up to {self._limits.pushed_bytes}")
        self._write(transport, parts)
        self._pushed_bytes += transport.unsent - unsent
        self.flush()

    def send_late(self, parts: Sequence[Part]) -> None:
        """Send the answer to a request that got nothing in its turn. How much such requests may bring is bounded by
        whoever takes them.
        """
        transport = self._transport
        if transport is None:
            return
        assert not self._flushing, "it must not come between the parts of another answer"
        self._write(transport, parts)
        self.flush()

    def drained(self) -> None:
        self._written_bytes = 0
        if self._noted_bytes and self._transport is not None:
            self._note_held(self._transport)
        if self._writable is not None and not self._is_telling:
            self._is_telling = True
            self._connections.soon(self._tell_writable)  # not at once: under TLS this may be within a write
        if self._paused:
            self._resume_if_room()

    def _tell_writable(self) -> None:
        self._is_telling = False
        if self._writable is not None:
            self._tell(self._writable)

    def _tell(self, session_method: Callable[[], object]) -> object:
        """Call the session outside of a request."""
        try:
            return session_method()
        except Exception as error:  # noqa: BLE001 - as for a request
            self.refuse(error)
            return None

    def expect_within(self, seconds: float | None) -> None:
        """Have the peer send something every so many seconds, instead of `Limits.idle_s`; None: whenever it likes.

        The sweep looks, so the peer has up to two seconds more. Time in which nothing is read does not count.
        """
        self._deadlines.expect_within(seconds)

    def send_heartbeats(self, every_s: float, send: Callable[[], None]) -> None:
        """Call `send`, which pushes, whenever nothing was sent for `every_s`, and all that was sent has left."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._transport is not None:
            self._heartbeat = Heartbeat(every_s, self._clock, lambda: self.unsent or self._tell(send))

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume_if_room(self) -> None:
        transport = self._transport
        if transport is None or not self._paused or self._busy or self._wants_room or self._waits_for_place:
            return
        if transport.unsent > self._resume_bytes or self._held_bytes > self._most_unsent:
            return
        if len(self._answers) > self._most_in_flight // 2:
            return
        self._paused = False
        self._resume_bytes = self._most_unsent
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
        deadlines, quiet, unsent = self._deadlines, now - self.active_at, transport.unsent
        is_in_the_way = self._buffer.taken_bytes > 0 and self._connections.room.is_crowded
        is_due = self.frame_since >= 0 and (not self._paused or is_in_the_way)
        if deadlines.is_stalled(now, unsent, self._pushed_bytes):
            self._give_up("peer does not read")
        elif is_due and now - self.frame_since > deadlines.for_frame(self._buffer.size, is_crowded=is_in_the_way):
            self._give_up("request came too slowly")
        elif deadlines.is_silent(quiet) and not self._paused:
            self._give_up(f"nothing came for {quiet:.0f} s, which is longer than agreed")
        elif deadlines.is_idle(quiet) and not self._answers and unsent == 0:
            transport.close()
        elif quiet > self._limits.shrink_s:
            self._buffer.shrink()

    def _give_up(self, reason: str) -> None:
        log_.limited("peer").warning("closing connection", peer=self.peer, reason=reason)
        self.abort()

    def give_back(self) -> None:
        """Let go of what is kept for the next large request."""
        self._buffer.give_back()

    def refuse(self, error: Exception) -> None:
        """The peer broke the protocol, or there is a bug of ours."""
        self._stats.protocol_errors += 1
        if isinstance(error, PeerError | FrameError):
            self._give_up(str(error))
        else:
            log_.limited("bug").exception("request failed", peer=self.peer)
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._session_over()

    def drain(self) -> bool:
        """Say goodbye; whether the connection may be closed when `is_done`."""
        draining = getattr(self._session, "draining", None)  # see DrainingSession
        if draining is None:
            self.close()
            return False
        return not self._tell(draining)

    @property
    def owes(self) -> bool:
        """Whether the peer has asked for something that is not answered yet."""
        return bool(self._answers)

    def owes_only(self, answer: Answer) -> bool:
        """Whether nothing else that the peer has asked for is unanswered."""
        return len(self._answers) == 1 and self._answers[0] is answer

    @property
    def is_done(self) -> bool:
        """Whether all requests are answered, those that wait here too, and everything has left."""
        is_read = not self._paused or self._wants_room > 0 or self._waits_for_place
        return not self._answers and self.unsent == 0 and is_read

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def disconnected(self) -> None:
        self._connections.leave(self)
        self._connections.strangers.leave(self, self._clock.monotonic())
        self._transport = None
        self._session_over()
        self._answers.clear()  # each of them has this connection, and somebody may have one of them for long
        if self._wants_room:
            self._connections.room.leave(self._granted)
        self._connections.holders.holds(self, 0)
        self._buffer.release()

    def _session_over(self) -> None:
        self._writable = None
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        session, self._session = self._session, None
        if session is not None:
            session.disconnected()


class Connections:
    """All connections of one listener.

    Args:
        make_framing: how bytes become frames; by default they have a length in front.
        ordered: whether answers go out in the order of requests; otherwise each goes when it is there.
        beside: those of another listener, whose limits are for both together. Otherwise each further listener would let
            in as many again, and take descriptors that logs need.
    """

    def __init__(
        self,
        limits: Limits,
        stats: Stats,
        clock: Clock,
        make_session: Callable[[Connection], Session],
        soon: Callable[[Callable[[], None]], object],
        *,
        make_framing: Callable[[Limits, Room], Framing] = with_length_in_front,
        ordered: bool = True,
        beside: "Connections | None" = None,
    ) -> None:
        self.limits = limits
        self.stats = stats
        self.clock = clock
        self.make_session = make_session
        self.soon = soon
        self.make_framing = make_framing
        self.ordered = ordered
        self.room = Room(limits.receive_bytes)
        self.holders: Holders[Connection] = Holders(limits.answer_bytes, self._holds_most)
        self.strangers = Strangers(limits.strangers, limits.strangers_of_host, limits.crowded_s)
        self._open: set[Connection] = set()
        self._most = limits.connections
        if beside is not None:
            self.room, self.holders, self._open = beside.room, beside.holders, beside._open
            self.strangers = beside.strangers

    def accept(self) -> Connection:
        return Connection(self)

    def admit(self, connection: Connection) -> bool:
        if len(self._open) >= self._most:
            self.stats.connections_refused += 1
            log_.limited("refused").warning("connection refused", peer=connection.peer, limit=self._most)
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
        self.strangers.sweep(now)
        for connection in list(self._open):
            connection.sweep(now)

    def close_all(self) -> None:
        for connection in list(self._open):
            connection.close()

    async def drain(self, timeout_s: float) -> None:
        """Admit nobody any more, let sessions say goodbye and requests be answered, and close all connections.

        Sessions without a goodbye (see `DrainingSession`) are closed at once, as by `close_all`. What has not left when
        the time is up is dropped.
        """
        self._most = 0
        deadline = self.clock.monotonic() + timeout_s
        leaving = {connection for connection in list(self._open) if connection.drain()}
        while self._open and self.clock.monotonic() < deadline:
            for connection in leaving & self._open:
                if connection.is_done:
                    connection.close()
            await asyncio.sleep(_DRAIN_STEP_S)
        for connection in list(self._open):
            connection.abort()
