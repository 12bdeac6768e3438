"""Incremental fetch sessions (KIP-227): the broker remembers which partitions a client reads and from where.

(session id, epoch) of a request means: (0, -1) no session, everything is listed; (any, 0) begin a new one; (id,
n) continue, only changes are listed; (id, -1) end it. A table full of sessions or of partitions drops a session of
the user who has most of them, the one longest unused; its client is told and begins anew. A session with very many
partitions that cannot be read is closed with the answer that says so: they are listed in every answer, and nobody gets
that for 50 bytes. So what a session holds is bounded by the partitions that are here.

A session knows which of its partitions have nothing new for the client. They are `watched`: the partition itself says
when something moves, once. A fetch looks at the others only, so an idle one costs the same for one and ten thousand.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.engine.access import ANONYMOUS, Subject
from penstock.engine.partition import Partition
from penstock.ports.randomness import Randomness

MAX_SESSIONS = 1000
MAX_PARTITIONS = 500_000  # of all sessions together; each costs some 400 bytes
MAX_ERRORS = 1000
"""Partitions with an error in one answer of a session. A client learns late of topics that were deleted or moved."""
_LAST_EPOCH = (1 << 31) - 1
TopicKey = bytes
"""A topic's name or 16-byte id, as the client sent it."""
Key = tuple[TopicKey, int]


@dataclass(slots=True)
class Wanted:
    """One partition a client reads, and what it was last told about it."""

    topic: TopicKey
    index: int
    fetch_offset: int
    max_bytes: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    told: tuple[int, int, int] | None = None
    """High watermark, log start and stable offset of the last answer."""
    session: "FetchSession | None" = field(default=None, repr=False, compare=False)
    watched: Partition | None = field(default=None, repr=False, compare=False)
    """Which calls `moved` when there is something new."""

    def watch(self, partition: Partition, *, as_follower: bool) -> None:
        if self.watched is not partition:
            self.unwatch()
            self.watched = partition
        partition.watch(self.moved, as_replica=as_follower)

    def unwatch(self) -> None:
        if self.watched is not None:
            self.watched.unwatch(self.moved)
            self.watched = None

    def moved(self) -> None:
        self.watched = None
        if self.session is not None:
            self.session.wake(self)


@dataclass(slots=True)
class FetchSession:
    """What one client reads; of id 0 while one request lasts.

    `ready` has the partitions that may have something for the client, in the order in which they get their turn. All
    others are watched.
    """

    session_id: int
    uses_ids: bool
    owner: Subject = ANONYMOUS
    """Whose it is: for anybody else it is not there."""
    epoch: int = 1
    wanted: dict[Key, Wanted] = field(default_factory=dict)
    ready: dict[Key, Wanted] = field(default_factory=dict)
    is_over: bool = False
    _kind: tuple[bool, int] | None = None
    _on_moved: Callable[[Key, Wanted], None] | None = None

    def update(self, changes: Iterable[Wanted], forgotten: Iterable[Key]) -> None:
        for change in changes:
            key = (change.topic, change.index)
            known = self.wanted.get(key)
            if known is not None:
                change.told = known.told
                known.unwatch()
                known.session = None
            change.session = self
            self.wanted[key] = self.ready[key] = change
        for key in forgotten:
            gone = self.wanted.pop(key, None)
            if gone is not None:
                gone.unwatch()
                gone.session = None
                self.ready.pop(key, None)

    def begin_fetch(
        self, is_follower: bool, isolation_level: int, on_moved: Callable[[Key, Wanted], None]
    ) -> dict[Key, Wanted]:
        """What a fetch of this kind has to look at; `on_moved` is told what else moves until it ends.

        A follower's request says of every partition how far it is, so it looks at all of them.
        """
        kind = (is_follower, isolation_level)
        if is_follower or kind != self._kind:
            self._kind = kind
            for key, wanted in self.wanted.items():
                self.ready.setdefault(key, wanted)
        self._on_moved = on_moved
        return dict(self.ready)

    def wake(self, wanted: Wanted) -> None:
        key = (wanted.topic, wanted.index)
        self.ready[key] = wanted
        if self._on_moved is not None:
            self._on_moved(key, wanted)

    def rest(self, wanted: Wanted, partition: Partition, *, as_follower: bool) -> None:
        """There is nothing for the client there until it moves."""
        if wanted.session is self:  # and not replaced by a later request
            self.ready.pop((wanted.topic, wanted.index), None)
            wanted.watch(partition, as_follower=as_follower)

    def served(self, wanted: Wanted) -> None:
        """A partition that was served goes last, so that the others get their turn (KIP-74)."""
        key = (wanted.topic, wanted.index)
        for order in (self.wanted, self.ready):
            if key in order:
                order[key] = order.pop(key)

    def end_fetch(self, on_moved: Callable[[Key, Wanted], None]) -> None:
        if self._on_moved == on_moved:  # or another fetch has the session by now
            self._on_moved = None
            if self.is_over or self.session_id == 0:
                self._unwatch()

    def end(self) -> None:
        """The session is of no use any more, but for a fetch that is under way."""
        self.is_over = True
        if self._on_moved is None:
            self._unwatch()

    def _unwatch(self) -> None:
        for wanted in self.wanted.values():
            wanted.unwatch()
            wanted.session = None  # they would keep each other


class FetchSessions:
    """The sessions of one broker."""

    def __init__(
        self, randomness: Randomness, capacity: int = MAX_SESSIONS, max_partitions: int = MAX_PARTITIONS
    ) -> None:
        self._randomness = randomness
        self._capacity = capacity
        self._max_partitions = max_partitions
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._sessions_of: Counter[str] = Counter()
        self._partitions_of: Counter[str] = Counter()
        """By principal; who has none is not there."""
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, wanted: list[Wanted], uses_ids: bool, owner: Subject = ANONYMOUS) -> FetchSession:
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._randomness.getrandbits(31)
        session = FetchSession(session_id, uses_ids, owner)
        self._sessions[session_id] = session
        self._sessions_of[owner.principal] += 1
        self.update(session, wanted, [])
        return session

    def update(self, session: FetchSession, changes: list[Wanted], forgotten: list[Key]) -> None:
        before = len(session.wanted)
        session.update(changes, forgotten)
        self._note_partitions(session, len(session.wanted) - before)
        while len(self._sessions) > self._capacity:
            self._drop(self._longest_unused(self._sessions_of))
        while self._partitions > self._max_partitions:
            self._drop(self._longest_unused(self._partitions_of))

    def get(self, session_id: int, asker: Subject = ANONYMOUS) -> FetchSession | None:
        session = self._sessions.get(session_id)
        if session is None or session.owner.principal != asker.principal:
            return None
        self._sessions.move_to_end(session_id)
        return session

    def end(self, session_id: int, asker: Subject = ANONYMOUS) -> None:
        session = self.get(session_id, asker)
        if session is not None:
            self._drop(session)

    def _longest_unused(self, held: Counter[str]) -> FetchSession:
        """Of those of who has most: so nobody can push out what others have."""
        most = max(held.values())
        return next(session for session in self._sessions.values() if held[session.owner.principal] == most)

    def _drop(self, session: FetchSession) -> None:
        principal = session.owner.principal
        del self._sessions[session.session_id]
        self._sessions_of[principal] -= 1
        self._note_partitions(session, -len(session.wanted))
        if not self._sessions_of[principal]:
            del self._sessions_of[principal], self._partitions_of[principal]
        session.end()

    def _note_partitions(self, session: FetchSession, more: int) -> None:
        self._partitions += more
        self._partitions_of[session.owner.principal] += more


def next_epoch(epoch: int) -> int:
    return 1 if epoch == _LAST_EPOCH else epoch + 1
