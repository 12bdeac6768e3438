"""Incremental fetch sessions (KIP-227): the broker remembers which partitions a client reads and from where.

(session id, epoch) of a request means: (0, -1) no session, everything is listed; (any, 0) begin a new one; (id,
n) continue, only changes are listed; (id, -1) end it. A table full of sessions or of partitions drops the session
longest unused; its client is told and begins anew.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from penstock.ports.randomness import Randomness

MAX_SESSIONS = 1000
MAX_PARTITIONS = 500_000  # of all sessions together; each costs some 200 bytes
_LAST_EPOCH = (1 << 31) - 1
TopicKey = bytes
"""A topic's name or 16-byte id, as the client sent it."""


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


@dataclass(slots=True)
class FetchSession:
    session_id: int
    uses_ids: bool
    epoch: int = 1
    wanted: "OrderedDict[tuple[TopicKey, int], Wanted]" = field(default_factory=OrderedDict)

    def update(self, changes: list[Wanted], forgotten: list[tuple[TopicKey, int]]) -> None:
        for change in changes:
            key = (change.topic, change.index)
            known = self.wanted.get(key)
            if known is not None:
                change.told = known.told
            self.wanted[key] = change
        for key in forgotten:
            self.wanted.pop(key, None)

    def move_to_end(self, wanted: Wanted) -> None:
        """A partition that was served goes last, so that the others get their turn (KIP-74)."""
        self.wanted.move_to_end((wanted.topic, wanted.index))


class FetchSessions:
    """The sessions of one broker."""

    def __init__(
        self, randomness: Randomness, capacity: int = MAX_SESSIONS, max_partitions: int = MAX_PARTITIONS
    ) -> None:
        self._randomness = randomness
        self._capacity = capacity
        self._max_partitions = max_partitions
        self._partitions = 0
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, wanted: list[Wanted], uses_ids: bool) -> FetchSession:
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._randomness.getrandbits(31)
        session = FetchSession(session_id, uses_ids)
        self._sessions[session_id] = session
        self.update(session, wanted, [])
        return session

    def update(self, session: FetchSession, changes: list[Wanted], forgotten: list[tuple[TopicKey, int]]) -> None:
        before = len(session.wanted)
        session.update(changes, forgotten)
        self._partitions += len(session.wanted) - before
        while len(self._sessions) > self._capacity or self._partitions > self._max_partitions:
            self._partitions -= len(self._sessions.popitem(last=False)[1].wanted)

    def get(self, session_id: int) -> FetchSession | None:
        session = self._sessions.get(session_id)
        if session is not None:
            self._sessions.move_to_end(session_id)
        return session

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.wanted)


def next_epoch(epoch: int) -> int:
    return 1 if epoch == _LAST_EPOCH else epoch + 1
