"""What ShareFetch and ShareAcknowledge share: who may ask, whose turn it is, and how sessions begin and end.

In this order a session ends: what was acknowledged is durable, the client has its answer, and only then what the member
still holds is given back, so that nobody gets a record that is just being acknowledged.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Protocol
from uuid import UUID

from penstock.engine.access import BROKERS, Operation, Subject
from penstock.engine.acting.acting import Acting
from penstock.errors import PenstockError
from penstock.observe.logs import get_logger
from penstock.protocols.kafka import share_places
from penstock.protocols.kafka.share_sessions import Lines, Membership, Peer, Place, ShareSession, ShareSessions, Turn
from penstock.protocols.kafka_wire import errors

log_ = get_logger("kafka")

_LONGEST_MEMBER: Final = 36
ActingAs = Callable[[Subject], Acting]


class ShareRequest(Protocol):
    """A request under way."""

    async def run(self) -> None:
        """Serve and answer it."""
        ...

    def hurry(self) -> None:
        """Wait for nothing more: another request waits for this one, or the connection is gone."""
        ...


class Gone(Exception):
    """The connection of a request has ended, so that nobody waits for its answer."""


def membership_of(acting: Acting, group: str | None, member: str | None) -> Membership | int:
    """Whose request it is, or the code by which all of it is refused."""
    if not group or not member or len(member) > _LONGEST_MEMBER:
        return errors.INVALID_REQUEST
    try:
        acting.groups.check(Operation.READ, group)
    except PenstockError as error:
        return errors.kafka_code(error)
    return Membership(group, member)


def lock_ms(acting: Acting, membership: Membership, places: Iterable[Place]) -> int:
    """How long what is leased stays its consumer's; the shortest time of some partitions, as an answer has one."""
    group, times = membership.group, []
    for topic in {acting.topics.name_of(UUID(bytes=topic)) for topic, _ in places}:
        if topic is not None:
            with suppress(PenstockError):  # it must not be seen any more
                times.append(acting.queues.rules(topic, group).visibility_ms)
    return min(times, default=acting.groups.config(group).record_lock_ms)


class Shares:
    """Share sessions at work: turns, and giving back.

    Args:
        acting_as: what a member holds when its session ends is given back on the broker's own behalf: who has lost
            its rights meanwhile must not keep it.
    """

    def __init__(self, acting_as: ActingAs, sessions: ShareSessions | None = None) -> None:
        self.sessions = sessions if sessions is not None else ShareSessions()
        self._acting_as = acting_as
        self._lines = Lines()
        self._requests: dict[Peer, dict[ShareRequest, None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, peer: Peer, request: ShareRequest, failed: Callable[[], None]) -> None:
        """Have a request of a connection served.

        Args:
            failed: called for a bug of ours, within the handling of its exception.
        """
        self._requests.setdefault(peer, {})[request] = None
        self.spawn(self._serve(peer, request, failed))

    async def _serve(self, peer: Peer, request: ShareRequest, failed: Callable[[], None]) -> None:
        try:
            await request.run()
        except Exception:  # noqa: BLE001 - it must cost this connection only
            failed()
        finally:
            under_way = self._requests[peer]
            del under_way[request]
            if not under_way:
                del self._requests[peer]

    @asynccontextmanager
    async def turn(self, membership: Membership, hurry: Callable[[], None]) -> AsyncIterator[None]:
        """The time in which this request is the only one of its membership that is under way."""
        begun = asyncio.Event()
        turn = Turn(membership, begun.set, hurry)
        self._lines.join(turn)
        try:
            await begun.wait()
            yield
        finally:
            self._lines.leave(turn)

    async def open(self, membership: Membership, peer: Peer, owner: Subject) -> ShareSession:
        """A new session, after an earlier one has ended. In one's turn. Raises `SessionRefusal`, `Gone`."""
        before = self.sessions.get(membership)
        if before is not None and not peer.is_gone:
            await self.end(before)
        if peer.is_gone:
            raise Gone
        return self.sessions.open(membership, peer, owner)

    async def end(self, session: ShareSession) -> None:
        """In its turn."""
        if self.sessions.end(session):
            await self._give_back(session)

    def disconnected(self, peer: Peer) -> None:
        """What it opened is over, and its requests wait for nothing more; what they have begun is finished."""
        self.ended(self.sessions.disconnected(peer))
        for request in self._requests.get(peer, ()):
            request.hurry()

    def ended(self, sessions: Iterable[ShareSession]) -> None:
        """They are over, and their requests may be under way still."""
        for session in sessions:
            self.spawn(self._give_back_in_turn(session))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_.limited("bug").error("work of a share session failed", exc_info=error)

    async def _give_back_in_turn(self, session: ShareSession) -> None:
        async with self.turn(session.membership, _nothing):
            await self._give_back(session)

    async def _give_back(self, session: ShareSession) -> None:
        """All that the member holds here. Where another broker leads by now, it holds nothing any more."""
        acting = self._acting_as(BROKERS)
        group, member = session.membership
        for place in session.held:
            with suppress(PenstockError):
                partition = share_places.find(acting, place)
                await acting.queues.leave(partition, group, member, graceful=True)
        session.held.clear()


def _nothing() -> None:
    return None
