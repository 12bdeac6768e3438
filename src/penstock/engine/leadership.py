"""What a partition's leader knows in its epoch: where the epoch began, and how far each follower has come.

Pure: told of fetches and of who is in sync, asked how far everything is committed. Four rules keep what was
acknowledged (specs/Replication.tla shows that none can be left out):
  R1  a follower truncates to where its history parts from the leader's, by epochs, never to its high watermark;
  R2  and only by what the leader of its own epoch tells;
  R3  a follower's end counts from its first fetch in this epoch on;
  R4  a follower comes into sync when it has what is committed, and the beginning of this epoch.
"""

from collections.abc import Collection, Iterable

UNKNOWN = -1


class Follower:
    """One follower; everything of this epoch only."""

    __slots__ = ("_leader_end", "broker_id", "caught_up_at", "end", "fetched_at", "incarnation")

    def __init__(self, broker_id: int, now: float) -> None:
        self.broker_id = broker_id
        self.incarnation = -1
        self.end = UNKNOWN
        """Everything below it is where `acks=all` wants it on this follower."""
        self.caught_up_at = now
        self.fetched_at = now
        self._leader_end = 1 << 62

    def fetched(self, offset: int, incarnation: int, leader_end: int, now: float) -> None:
        """It asks for `offset`, so it has what lies below."""
        if offset >= leader_end:
            self.caught_up_at = now
        elif offset >= self._leader_end:
            self.caught_up_at = self.fetched_at  # it had everything when it asked the time before
        self.end = offset
        self.incarnation = incarnation
        self.fetched_at = now
        self._leader_end = leader_end


class Leadership:
    """Of one partition in one epoch.

    Args:
        node_id: the leader, this broker.
        epoch_start: where its log ended when it became the leader.
    """

    __slots__ = ("_counted", "_followers", "_node_id", "enough", "epoch_start", "is_alone")

    def __init__(self, node_id: int, epoch_start: int) -> None:
        self._node_id = node_id
        self.epoch_start = epoch_start
        self._followers: dict[int, Follower] = {}
        self._counted: list[Follower] = []
        self.enough = True
        """Whether so many are in sync that something may be acknowledged."""
        self.is_alone = False
        """Whether this broker is the only one in sync, of several."""

    def use(
        self,
        replicas: Iterable[int],
        isr: Collection[int],
        joining: Collection[int],
        waiting: Collection[int],
        least: int,
        now: float,
    ) -> None:
        """Who is in sync from now on.

        Args:
            joining: those that may be in sync already, if a change whose outcome is not known was made.
            waiting: those that held everything when too few stayed (`elr`, `last`): one of them may be elected by what
                it holds, so nothing new may be committed while there are any.
        """
        others = [broker_id for broker_id in replicas if broker_id != self._node_id]
        self._followers = {
            broker_id: self._followers.get(broker_id) or Follower(broker_id, now) for broker_id in others
        }
        self._counted = [
            follower for broker_id, follower in self._followers.items() if broker_id in isr or broker_id in joining
        ]
        self.enough = len(isr) >= least and not waiting
        self.is_alone = bool(others) and not self._counted

    def committed(self, own_end: int) -> int:
        """Up to where every replica in sync has everything; R3: at most -1 while one has not been heard of."""
        for follower in self._counted:
            if follower.end < own_end:
                own_end = follower.end
        return own_end

    def fetched(self, broker_id: int, offset: int, incarnation: int, leader_end: int, now: float) -> bool:
        """Note a fetch; False if the broker is no replica, or the fetch is of a process that has ended."""
        follower = self._followers.get(broker_id)
        if follower is None or incarnation < follower.incarnation:
            return False
        follower.fetched(offset, incarnation, leader_end, now)
        return True

    def is_deaf(self, since: float) -> bool:
        """Whether one that is in sync has not asked for anything since then: nothing can be committed without it."""
        return any(follower.fetched_at < since for follower in self._counted)

    def follower(self, broker_id: int) -> Follower | None:
        return self._followers.get(broker_id)

    def joinable(self, isr: Collection[int], high_watermark: int) -> list[Follower]:
        """Those not in sync that could be (R4)."""
        least = max(high_watermark, self.epoch_start)
        return [
            follower
            for broker_id, follower in self._followers.items()
            if broker_id not in isr and follower.end >= least
        ]

    def lacking(self, isr: Collection[int], high_watermark: int) -> list[int]:
        """Those in sync that lack what is committed: a disk lost it. They must not be eligible to lead."""
        return [
            broker_id
            for broker_id, follower in self._followers.items()
            if broker_id in isr and UNKNOWN < follower.end < high_watermark
        ]

    def lagging(self, isr: Collection[int], high_watermark: int, lag_s: float, now: float) -> list[int]:
        """Those in sync that have not had everything for `lag_s`, or lack what is committed."""
        late = [
            broker_id
            for broker_id, follower in self._followers.items()
            if broker_id in isr and now - follower.caught_up_at > lag_s
        ]
        return [*late, *self.lacking(isr, high_watermark)]
