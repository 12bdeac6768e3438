"""A classic consumer group: members join, one of them divides the partitions, everybody is told its part.

    Empty ──first join──► PreparingRebalance ──all joined, or time is up──► CompletingRebalance ──leader syncs──► Stable
      ▲                      ▲    │                                              │                                │
      └──── nobody is left ──┼────┘◄─ somebody comes, leaves, changes, falls silent ◄─────────────────────────────┘

A *generation* begins when the join phase ends: the group chooses the protocol most members vote for among those all of
them know, and answers every join. The leader's answer lists the members; it computes the assignments and sends them
with its sync. They are recorded, then all syncs are answered. What a generation decided is void in the next one, so
every request names its generation. Only Stable and Empty are recorded: after a crash the last of these is back, and
those who came later are unknown and join again.

Time-outs: a *session* ends when a member has not been heard of; it stands still while the member waits for an answer.
The join phase ends after the longest rebalance time-out of the members: who has not joined again is out, but for static
members, which may be away as long as their session lasts. Who does not sync for as long again is out, static or not.
An empty group waits a little for more members before its first generation (`initial_rebalance_delay_ms`).

A request that comes again while the first waits takes its place. Kafka never answers the first; here somebody waits for
it, and is told REBALANCE_IN_PROGRESS.
"""

from collections.abc import Callable
from enum import StrEnum

from penstock.engine.coordination.deadlines import Deadlines
from penstock.engine.coordination.outcome import Outcome, Reply, Token
from penstock.engine.coordination.schemas import Entry, GroupValue, Kind
from penstock.engine.groups.classic_member import Member, decode_all, distinct
from penstock.engine.groups.classic_requests import (
    ClassicDescription,
    DescribedMember,
    GroupLimits,
    HeartbeatRequest,
    JoinedMember,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    MemberIdRequired,
    SyncRequest,
    SyncResult,
)
from penstock.engine.groups.classic_roster import Roster
from penstock.errors import Code, PenstockError

__all__ = [
    "ClassicDescription",
    "ClassicGroup",
    "DescribedMember",
    "GroupLimits",
    "HeartbeatRequest",
    "JoinRequest",
    "JoinResult",
    "JoinedMember",
    "LeaveResult",
    "LeavingMember",
    "MemberIdRequired",
    "State",
    "SyncRequest",
    "SyncResult",
]

CONSUMER = "consumer"
"""The type of protocol consumers speak; others (Connect has one) are opaque."""
_DEFAULT_LIMITS = GroupLimits()
_NO_LIMIT = 1 << 62
_LONGEST_PREFIX = 200  # of a member id: a client's name may be 32 KiB, and an id is kept for whoever asks


class State(StrEnum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroup:
    """Args:
    group_id: the group's name.
    new_id: makes the unique part of a member id.
    limits: what members may ask for and how much of it.
    """

    def __init__(self, group_id: str, new_id: Callable[[], str], limits: GroupLimits = _DEFAULT_LIMITS) -> None:
        self.group_id = group_id
        self._new_id = new_id
        self._limits = limits
        self._records: list[Entry] = []
        self._replies: list[Reply] = []
        self._begin(None)

    def _begin(self, recorded: GroupValue | None) -> None:
        self._recorded = recorded
        self._state = State.EMPTY
        self.state_since = -1
        self.generation = 0
        self._protocol: str | None = None
        self._roster = Roster(self.group_id, self._limits)
        self._joins: dict[str, Token] = {}
        self._syncs: dict[str, Token] = {}
        self._unsynced: dict[str, None] = {}
        """Members of this generation that have not asked for their assignment."""
        self._sessions: Deadlines[str] = Deadlines()
        self._sync_deadline: int | None = None
        self._join_deadline: int | None = None
        self._initial_left_ms: int | None = None
        """What is left of the time a group that was empty may wait for more members; None in other join phases."""
        self._grown = False
        """A member came since that wait was last set."""
        self._assigned_bytes = 0

    @property
    def state(self) -> str:
        return self._state

    @property
    def is_empty(self) -> bool:
        return self._state is State.EMPTY

    @property
    def size_bytes(self) -> int:
        """Of what members say of themselves, and of what they were assigned last."""
        return self._roster.size_bytes + self._assigned_bytes if self._roster.members else 0

    @property
    def protocol_type(self) -> str | None:
        return self._roster.protocol_type

    # --- what members ask

    def join(self, now: int, token: Token, request: JoinRequest, room_bytes: int = _NO_LIMIT) -> Outcome:
        """Answered with a JoinResult when the generation begins, or at once with the current one if nothing changed.

        Args:
            room_bytes: how much more members of all groups may say of themselves.
        """
        self._check_alive()
        self._roster.check(request, room_bytes)
        instance = request.group_instance_id
        if request.member_id in self._roster.pending and instance is None:
            self._add(now, token, request, request.member_id)
        elif request.member_id:
            self._join_again(now, token, request, self._roster.known(request.member_id, instance))
        elif instance in self._roster.instances:
            self._replace(now, token, request, self._roster.members[self._roster.instances[instance]])
        elif request.requires_known_member_id and instance is None:
            self._give_id(now, token, request)
        else:
            self._add(now, token, request, self._make_id(request))
        return self._outcome()

    def sync(self, now: int, token: Token, request: SyncRequest, room_bytes: int = _NO_LIMIT) -> Outcome:
        """Answered with a SyncResult when the leader has sent the assignments.

        Args:
            room_bytes: how much more may be assigned in all groups.
        """
        member = self._current(request.member_id, request.generation, request.group_instance_id)
        self._check_sync(member, request, room_bytes)
        if self._state is State.PREPARING:
            raise self._rebalancing(member)
        self._unsynced.pop(member.member_id, None)
        if not self._unsynced:
            self._sync_deadline = None
        if self._state is State.STABLE:
            self._heard(now, member)
            self._replies.append(Reply(token, self._assigned(member)))
        else:
            self._wait(self._syncs, member, token)
            if member.member_id == self._roster.leader:
                self._assign(now, dict(request.assignments))
        return self._outcome()

    def heartbeat(self, now: int, request: HeartbeatRequest) -> None:
        """Raises REBALANCE_IN_PROGRESS when the member is to join again; it was heard of all the same."""
        member = self._current(request.member_id, request.generation, request.group_instance_id)
        self._heard(now, member)
        if self._state is State.PREPARING:
            raise self._rebalancing(member)

    def leave(self, now: int, members: tuple[LeavingMember, ...]) -> tuple[tuple[LeaveResult, ...], Outcome]:
        """Removes members, each on its own: by member id, or static ones by instance id alone."""
        self._check_alive()
        results, removed = [], False
        for leaving in members:
            error = None
            try:
                removed |= self._leave(leaving)
            except PenstockError as refused:
                error = refused.kept()
            results.append(LeaveResult(leaving.member_id, leaving.group_instance_id, error))
        self._after_removal(now, removed)
        return tuple(results), self._outcome()

    def check_commit(
        self,
        now: int,
        member_id: str,
        generation: int,
        group_instance_id: str | None,
        *,
        transactional: bool = False,
    ) -> None:
        """Whether offsets may be committed; a member that may was heard of.

        Without membership (generation -1, no member id) only an empty group takes offsets: from a tool, or from a
        consumer that chooses its partitions itself. Old transactional producers cannot name a member, so their commits
        are taken in any state.
        """
        self._check_alive()
        if generation < 0 and self.is_empty:
            return
        if generation < 0 and not member_id and group_instance_id is None:
            if transactional:
                return
            raise PenstockError(
                Code.UNKNOWN_MEMBER, f"group {self.group_id!r} is {self._state}; only its members can commit offsets"
            )
        member = self._current(member_id, generation, group_instance_id)
        if self._state is State.COMPLETING:
            if not transactional:
                raise self._rebalancing(member)
        else:
            self._heard(now, member)

    # --- time

    def next_deadline(self) -> int | None:
        times = (self._join_deadline, self._sync_deadline, self._sessions.next())
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: int) -> Outcome:
        while (due := self.next_deadline()) is not None and due <= now:
            if due == self._join_deadline:
                self._end_join_phase(now)
            elif due == self._sync_deadline:
                for member_id in tuple(self._unsynced):
                    self._remove(member_id)
                self._prepare(now)
            else:
                self._end_sessions(now)
        return self._outcome()

    def _end_join_phase(self, now: int) -> None:
        if self._grown and self._initial_left_ms:
            self._wait_for_more(now, self._initial_left_ms)
        else:
            self._complete(now)

    def _end_sessions(self, now: int) -> None:
        removed = False
        for member_id in self._sessions.take_due(now):
            if member_id in self._roster.pending:
                del self._roster.pending[member_id]
            else:
                self._remove(member_id)
                removed = True
        self._after_removal(now, removed)

    # --- the log

    def replay(self, value: GroupValue | None, now: int) -> None:
        """A record of this group from the log; sessions begin anew."""
        self._begin(value)
        if value is None:
            return
        self.state_since, self.generation = value.current_state_timestamp, value.generation
        self._protocol = value.protocol
        self._roster.protocol_type = value.protocol_type or None
        self._roster.leader = value.leader
        for kept in value.members:
            member = Member.restored(kept, value.protocol or "")
            self._roster.seat(member)
            self._heard(now, member)
        self._state = State.STABLE if value.members else State.EMPTY
        self._assigned_bytes = self._count_assigned()

    def dump(self) -> Entry | None:
        """The record that brings the durable state back; None if there is none."""
        return None if self._recorded is None else Entry(Kind.GROUP, (self.group_id,), self._recorded)

    def check_deletable(self) -> None:
        """Raises PenstockError NON_EMPTY_GROUP."""
        if not self.is_empty:
            raise PenstockError(
                Code.NON_EMPTY_GROUP,
                f"group {self.group_id!r} is {self._state} with {len(self._roster.members)} members; stop them first",
            )

    def delete(self) -> tuple[Entry, ...]:
        """Ends the group, which must be empty: NON_EMPTY_GROUP otherwise. Returns what takes its record back."""
        self._check_alive()
        self.check_deletable()
        entries = () if self._recorded is None else (Entry(Kind.GROUP, (self.group_id,), None),)
        self._begin(None)
        self._state = State.DEAD
        return entries

    def _record(self) -> None:
        self._recorded = GroupValue(
            self.protocol_type or "",
            self.generation,
            self._protocol,
            self._roster.leader,
            self.state_since,
            tuple(member.kept(self._protocol) for member in self._roster.members.values()),
        )
        self._records.append(Entry(Kind.GROUP, (self.group_id,), self._recorded))

    def _outcome(self) -> Outcome:
        outcome = Outcome(tuple(self._records), tuple(self._replies))
        self._records.clear()
        self._replies.clear()
        return outcome

    # --- what others ask

    def describe(self) -> ClassicDescription:
        """With protocol and metadata only while they hold: in Stable."""
        protocol = self._protocol if self._state is State.STABLE else None
        return ClassicDescription(
            self.group_id,
            self._state,
            self.protocol_type or "",
            protocol or "",
            tuple(member.described(protocol) for member in self._roster.members.values()),
        )

    def subscribed_topics(self) -> frozenset[str] | None:
        """None if that is not known: not a group of consumers, or one of them speaks in a way of its own."""
        if self.protocol_type != CONSUMER:
            return None
        return decode_all(member.subscription(self._protocol) for member in self._roster.members.values())

    # --- joining

    def _make_id(self, request: JoinRequest) -> str:
        return f"{(request.group_instance_id or request.client_id)[:_LONGEST_PREFIX]}-{self._new_id()}"

    def _give_id(self, now: int, token: Token, request: JoinRequest) -> None:
        member_id = self._make_id(request)
        self._roster.pending[member_id] = None
        self._sessions.set(member_id, now + request.session_timeout_ms)
        self._replies.append(Reply(token, MemberIdRequired(self.group_id, member_id)))

    def _add(self, now: int, token: Token, request: JoinRequest, member_id: str) -> None:
        if not self._roster.members:
            self._roster.protocol_type = request.protocol_type
        self._roster.seat(Member.of(member_id, request))
        self._joins[member_id] = token
        self._sessions.set(member_id, now + self._limits.new_member_join_timeout_ms)
        self._grown = True
        self._rebalance(now)

    def _join_again(self, now: int, token: Token, request: JoinRequest, member: Member) -> None:
        unchanged = member.protocols == distinct(request.protocols)
        # A leader that joins again in Stable wants a rebalance: it has seen topics change that metadata does not show.
        follows = self._state is State.STABLE and member.member_id != self._roster.leader
        if unchanged and (follows or self._state is State.COMPLETING):
            self._heard(now, member)
            self._replies.append(Reply(token, self._joined(member.member_id)))
            return
        self._roster.update(member, request)
        self._wait(self._joins, member, token)
        self._rebalance(now)

    def _replace(self, now: int, token: Token, request: JoinRequest, old: Member) -> None:
        """A static member is back, under a new member id; the one that had the old id is fenced."""
        new = Member.of(self._make_id(request), request)
        new.assignment = old.assignment
        leader_before, owed_sync = self._roster.leader, old.member_id in self._unsynced
        self._roster.replace(old, new)
        self._dismiss(
            old.member_id,
            PenstockError(
                Code.FENCED_INSTANCE,
                f"group {self.group_id!r}: instance {new.instance_id!r} has joined as member {new.member_id!r}",
            ),
        )
        if self._state is State.STABLE and self._fits(old, new):
            if owed_sync:
                self._unsynced[new.member_id] = None
            self._heard(now, new)
            self._record()
            self._replies.append(Reply(token, self._rejoined(new, leader_before, request.supports_skipping_assignment)))
        else:
            self._wait(self._joins, new, token)
            self._rebalance(now)

    def _fits(self, old: Member, new: Member) -> bool:
        """Whether the assignment of an instance still holds after its return.

        Its metadata may differ: sticky assignors put in what they held before. Kafka looks at the protocol only, and
        an instance that comes back with other topics keeps its old partitions.
        """
        return self._roster.choose_protocol() == self._protocol and (
            self.protocol_type != CONSUMER or old.topics(self._protocol) == new.topics(self._protocol)
        )

    def _rejoined(self, member: Member, leader_before: str | None, can_skip: bool) -> JoinResult:
        joined = self._joined(member.member_id)
        if can_skip:
            return joined._replace(skip_assignment=member.member_id == self._roster.leader)
        # A client that cannot skip the assignment is not told that it leads, or its assignment would be lost in sync.
        return joined._replace(leader=leader_before or "", members=())

    def _joined(self, member_id: str) -> JoinResult:
        leader = self._roster.leader or ""
        members: tuple[JoinedMember, ...] = ()
        if member_id == leader:
            members = tuple(
                JoinedMember(member.member_id, member.instance_id, member.metadata(self._protocol) or b"")
                for member in self._roster.members.values()
            )
        return JoinResult(self.generation, self.protocol_type, self._protocol, leader, False, member_id, members)

    # --- generations

    def _rebalance(self, now: int) -> None:
        if self._state is State.PREPARING:
            self._advance(now)
        else:
            self._prepare(now)

    def _prepare(self, now: int) -> None:
        if self._state is State.COMPLETING:
            self._cancel_syncs(now)
        self._unsynced.clear()
        self._sync_deadline = None
        was_empty = self.is_empty
        self._turn(now, State.PREPARING)
        if was_empty:
            self._wait_for_more(now, self._roster.rebalance_timeout_ms)
        else:
            self._initial_left_ms = None
            self._join_deadline = now + self._roster.rebalance_timeout_ms
            self._advance(now)

    def _wait_for_more(self, now: int, left_ms: int) -> None:
        delay_ms = min(self._limits.initial_rebalance_delay_ms, left_ms)
        self._grown = False
        self._join_deadline = now + delay_ms
        self._initial_left_ms = left_ms - delay_ms

    def _advance(self, now: int) -> None:
        waiting_for_more = self._initial_left_ms is not None
        if not waiting_for_more and len(self._joins) == len(self._roster.members) and not self._roster.pending:
            self._complete(now)

    def _complete(self, now: int) -> None:
        """Ends the join phase: who is not here is out, the generation begins."""
        members = self._roster.members
        for member in tuple(members.values()):
            if member.member_id not in self._joins and member.instance_id is None:
                self._remove(member.member_id)
        if members and not self._joins:  # static members only: they come back, or their sessions end
            self._join_deadline = now + self._roster.rebalance_timeout_ms
            return
        self._join_deadline = self._initial_left_ms = None
        self.generation += 1
        if not members:
            self._protocol = None
            self._turn(now, State.EMPTY)
            self._record()
            return
        if self._roster.leader not in self._joins:
            self._roster.leader = next(member_id for member_id in members if member_id in self._joins)
        self._protocol = self._roster.choose_protocol()
        self._turn(now, State.COMPLETING)
        self._replies += (Reply(token, self._joined(member_id)) for member_id, token in self._joins.items())
        self._joins.clear()
        for member in members.values():
            self._heard(now, member)
        self._unsynced = dict.fromkeys(members)
        self._sync_deadline = now + self._roster.rebalance_timeout_ms

    def _turn(self, now: int, state: State) -> None:
        self._state, self.state_since = state, now

    # --- assignments

    def _check_sync(self, member: Member, request: SyncRequest, room_bytes: int) -> None:
        for asked, ours in ((request.protocol_type, self.protocol_type), (request.protocol_name, self._protocol)):
            if asked is not None and asked != ours:
                raise PenstockError(
                    Code.INCONSISTENT_PROTOCOL,
                    f"group {self.group_id!r} is in {ours!r}; member {member.member_id!r} cannot sync in {asked!r}",
                )
        size = sum(len(assignment) for _, assignment in request.assignments)
        allowed = min(self._limits.max_group_bytes, self._assigned_bytes + room_bytes)
        if size and size > allowed:
            raise PenstockError(
                Code.LIMIT_EXCEEDED,
                f"group {self.group_id!r}: {size} bytes of assignments from member {member.member_id!r}; "
                f"{allowed} are allowed",
            )

    def _assign(self, now: int, assignments: dict[str, bytes]) -> None:
        for member in self._roster.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self._assigned_bytes = self._count_assigned()
        self._turn(now, State.STABLE)
        self._record()
        syncs, self._syncs = self._syncs, {}
        for member_id, token in syncs.items():
            member = self._roster.members[member_id]
            self._heard(now, member)
            self._replies.append(Reply(token, self._assigned(member)))

    def _count_assigned(self) -> int:
        return sum(len(member.assignment) for member in self._roster.members.values())

    def _assigned(self, member: Member) -> SyncResult:
        return SyncResult(self.protocol_type, self._protocol, member.assignment)

    def _cancel_syncs(self, now: int) -> None:
        syncs, self._syncs = self._syncs, {}
        for member_id, token in syncs.items():
            member = self._roster.members[member_id]
            self._heard(now, member)
            self._replies.append(Reply(token, self._rebalancing(member)))
        for member in self._roster.members.values():
            member.assignment = b""
        self._assigned_bytes = 0

    # --- leaving

    def _leave(self, leaving: LeavingMember) -> bool:
        """Whether a member is gone, not only an id that nobody had joined with."""
        member_id, instance = leaving.member_id, leaving.group_instance_id
        if member_id in self._roster.pending:
            del self._roster.pending[member_id]
            self._sessions.set(member_id, None)
            return False
        if not member_id and instance is not None:
            member_id = self._roster.instances.get(instance, "")
        self._remove(self._roster.known(member_id, instance).member_id)
        return True

    def _after_removal(self, now: int, removed: bool) -> None:
        if self._state is State.PREPARING:
            self._advance(now)
        elif removed:
            self._prepare(now)

    def _remove(self, member_id: str) -> None:
        self._roster.unseat(member_id)
        self._dismiss(
            member_id,
            PenstockError(
                Code.UNKNOWN_MEMBER, f"member {member_id!r} is no longer in group {self.group_id!r}; join it again"
            ),
        )

    def _dismiss(self, member_id: str, error: PenstockError) -> None:
        """A member id means nothing any more: who waits under it is told why."""
        self._sessions.set(member_id, None)
        self._unsynced.pop(member_id, None)
        self._replies += (
            Reply(waiting.pop(member_id), error) for waiting in (self._joins, self._syncs) if member_id in waiting
        )

    # --- members

    def _current(self, member_id: str, generation: int, instance_id: str | None) -> Member:
        self._check_alive()
        member = self._roster.known(member_id, instance_id)
        if generation != self.generation:
            raise PenstockError(
                Code.ILLEGAL_GENERATION,
                f"group {self.group_id!r} is in generation {self.generation}; member {member_id!r} is in {generation}",
            )
        return member

    def _check_alive(self) -> None:
        if self._state is State.DEAD:
            raise PenstockError(
                Code.COORDINATOR_NOT_AVAILABLE, f"group {self.group_id!r} has just been deleted; try again"
            )

    def _heard(self, now: int, member: Member) -> None:
        """Its session begins anew, unless it waits for us."""
        if member.member_id not in self._joins and member.member_id not in self._syncs:
            self._sessions.set(member.member_id, now + member.session_timeout_ms)

    def _wait(self, waiting: dict[str, Token], member: Member, token: Token) -> None:
        if member.member_id in waiting:
            self._replies.append(Reply(waiting[member.member_id], self._rebalancing(member)))
        else:
            self._sessions.set(member.member_id, None)
        waiting[member.member_id] = token

    def _rebalancing(self, member: Member) -> PenstockError:
        return PenstockError(
            Code.REBALANCE_IN_PROGRESS,
            f"group {self.group_id!r} is {self._state}; member {member.member_id!r} is to join again",
        )
