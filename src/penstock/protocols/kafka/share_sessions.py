"""Share sessions (KIP-932): what one member of a share group fetches from this broker, one request after another.

A session belongs to a group and a member. Every request names the epoch that it takes the session to be in:

           0                    the epoch that is expected
    -----------------> open, ------------------------------> open,
      (ShareFetch)   expects 1                             expects one more; after 2^31-1 comes 1
                         |
                         |  -1; 0 again; the end of the connection that opened it; no room any more
                         v
                       over: what the member still holds here is given back

Partitions that a ShareFetch names are added, whatever else it says of them; those it wants forgotten are taken out
after that. Each ShareFetch fetches all that are in. Its answer lists what has records or an error, and what was never
answered cleanly yet: the first clean answer tells the client that all is well there.

A session is its opener's: to anybody else it is not there, and no other connection's end ends it. So a member that has
come back on a new connection keeps its session when the broker hears late of the old one.

Nothing waits in this module, and nothing here knows the engine. Requests of one member stand in a line (`Lines`): one
is under way at a time, and whoever comes next hurries the one that waits for records.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from penstock.engine.access import ANONYMOUS, Subject
from penstock.engine.groups.group_config import SHARE_SESSIONS
from penstock.protocols.kafka_wire import errors

MAX_PARTITIONS: Final = 500_000
"""Of all sessions together; each costs some 200 bytes. Beyond, whoever has most loses the session longest unused."""
MAX_ERRORS: Final = 1000
"""Partitions with an error in one answer. Every answer lists all of them, so a session with more ends with it."""
OPENING: Final = 0
CLOSING: Final = -1
_LAST_EPOCH: Final = (1 << 31) - 1
_NEVER_ANSWERED: Final = -1

Place = tuple[bytes, int]
"""A partition: its topic's 16-byte id, and its index."""


class Membership(NamedTuple):
    """Whose a session is. A member makes its id itself."""

    group: str
    member: str


class Peer:
    """A connection, as sessions know it: nothing but itself."""

    __slots__ = ("is_gone",)

    def __init__(self) -> None:
        self.is_gone = False


class ShareSession:
    """Attributes:
    epoch: what the next request must name.
    partitions: what is fetched, and the code last answered for it.
    held: where something was given to the member, perhaps all settled by now. A partition that was forgotten stays.
    """

    __slots__ = ("epoch", "held", "is_over", "membership", "owner", "partitions", "peer")

    def __init__(self, membership: Membership, peer: Peer, owner: Subject) -> None:
        self.membership = membership
        self.peer = peer
        self.owner = owner
        self.epoch = 1
        self.partitions: dict[Place, int] = {}
        self.held: dict[Place, None] = {}
        self.is_over = False

    def rotated(self, epoch: int) -> list[Place]:
        """All partitions, in the order in which they get their turn in the request of this epoch."""
        places = list(self.partitions)
        if not places:
            return places
        start = epoch % len(places)
        return places[start:] + places[:start]

    def is_news(self, place: Place, code: int) -> bool:
        """Whether the client has not been told of this error, so that an answer should not wait."""
        return self.partitions.get(place, code) != code

    def must_answer(self, place: Place) -> bool:
        return self.partitions.get(place, 0) != 0

    def answered(self, place: Place, code: int) -> None:
        if place in self.partitions:
            self.partitions[place] = code


class SessionRefusal(Exception):
    """A request does not fit any session; `code` is Kafka's."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ShareSessions:
    """The sessions of one broker."""

    def __init__(self, capacity: int = SHARE_SESSIONS, max_partitions: int = MAX_PARTITIONS) -> None:
        self._capacity = capacity
        self._max_partitions = max_partitions
        self._sessions: OrderedDict[Membership, ShareSession] = OrderedDict()
        """The one longest unused is first."""
        self._of_peer: dict[Peer, dict[Membership, ShareSession]] = {}
        self._partitions = 0
        self._partitions_of: Counter[str] = Counter()
        """By principal; who has none is not there."""

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, membership: Membership) -> ShareSession | None:
        return self._sessions.get(membership)

    def open(self, membership: Membership, peer: Peer, owner: Subject = ANONYMOUS) -> ShareSession:
        """A new one, which has nothing yet; an earlier one has been ended. Raises `SessionRefusal`."""
        assert membership not in self._sessions
        if len(self._sessions) >= self._capacity:
            raise SessionRefusal(errors.SHARE_SESSION_LIMIT_REACHED)
        session = ShareSession(membership, peer, owner)
        self._sessions[membership] = session
        self._of_peer.setdefault(peer, {})[membership] = session
        return session

    def accept(self, membership: Membership, epoch: int, asker: Subject = ANONYMOUS) -> ShareSession:
        """The session of a request that does not open one; unless it closes it, the next epoch is expected then.

        Raises:
            SessionRefusal: there is none, or it is in another epoch.
        """
        wrong = errors.INVALID_SHARE_SESSION_EPOCH
        session = self._sessions.get(membership)
        if session is None or session.owner.principal != asker.principal:
            raise SessionRefusal(wrong if epoch == OPENING else errors.SHARE_SESSION_NOT_FOUND)
        if epoch == CLOSING:
            return session
        if epoch != session.epoch:
            raise SessionRefusal(wrong)
        session.epoch = next_epoch(epoch)
        self._sessions.move_to_end(membership)
        return session

    def update(
        self, session: ShareSession, added: Iterable[Place], forgotten: Iterable[Place] = ()
    ) -> list[ShareSession]:
        """Add partitions, then take others out. Returns the sessions that had to end because there was no room."""
        partitions = session.partitions
        before = len(partitions)
        for place in added:
            partitions.setdefault(place, _NEVER_ANSWERED)
        for place in forgotten:
            partitions.pop(place, None)
        self._note_partitions(session, len(partitions) - before)
        ended = []
        while self._partitions > self._max_partitions:
            ended.append(self._longest_unused_of_who_has_most())
            self.end(ended[-1])
        return ended

    def end(self, session: ShareSession) -> bool:
        """The session is over. Returns whether it was not before."""
        if session.is_over:
            return False
        session.is_over = True
        del self._sessions[session.membership]
        of_peer = self._of_peer[session.peer]
        del of_peer[session.membership]
        if not of_peer:
            del self._of_peer[session.peer]
        self._note_partitions(session, -len(session.partitions))
        return True

    def disconnected(self, peer: Peer) -> list[ShareSession]:
        """A connection is gone, and what it opened is over. Returns that."""
        peer.is_gone = True
        ended = list(self._of_peer.get(peer, {}).values())
        for session in ended:
            self.end(session)
        return ended

    def _longest_unused_of_who_has_most(self) -> ShareSession:
        """So nobody can push out what others have."""
        held = self._partitions_of
        most = max(held.values())
        return next(each for each in self._sessions.values() if held[each.owner.principal] == most and each.partitions)

    def _note_partitions(self, session: ShareSession, more: int) -> None:
        principal = session.owner.principal
        self._partitions += more
        self._partitions_of[principal] += more
        if not self._partitions_of[principal]:
            del self._partitions_of[principal]


def next_epoch(epoch: int) -> int:
    return 1 if epoch == _LAST_EPOCH else epoch + 1


class Turn:
    """A request's place in the line of its membership.

    Args:
        begin: called when nobody is before it.
        hurry: called when somebody is behind it and it is its turn, perhaps more than once.
    """

    __slots__ = ("begin", "hurry", "membership")

    def __init__(self, membership: Membership, begin: Callable[[], None], hurry: Callable[[], None]) -> None:
        self.membership = membership
        self.begin = begin
        self.hurry = hurry


class Lines:
    """Who waits for whom: the requests of each membership, in the order in which they came."""

    def __init__(self) -> None:
        self._lines: dict[Membership, deque[Turn]] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def join(self, turn: Turn) -> None:
        line = self._lines.setdefault(turn.membership, deque())
        line.append(turn)
        if len(line) == 1:
            turn.begin()
        else:
            line[0].hurry()

    def leave(self, turn: Turn) -> None:
        """It is over, or was given up; the next one begins if it is its turn now."""
        line = self._lines[turn.membership]
        was_first = line[0] is turn
        line.remove(turn)
        if not line:
            del self._lines[turn.membership]
        elif was_first:
            line[0].begin()
            if len(line) > 1:
                line[0].hurry()
