"""The groups of one shard: finds the group a request is for, and what happens between groups and offsets.

A group id is one of four things. A *classic*, a *consumer* or a *share* group has, or had, members; a *simple* one has
only offsets, committed without membership, and is looked at as an empty classic group. An empty classic, simple or
consumer group becomes classic or consumer when the first member of that kind comes; its offsets stay. A share group is
one for good, and no other group becomes one: it has no offsets, and leases in its place (`engine/queues`).

Every verb is a step: `verb(now, token, …)` raises PenstockError and has changed nothing, or returns an `Outcome` with a
`Reply(token, result)`, for joins and syncs perhaps that of a later step.

Every ten minutes a sweep takes expired offsets (`retention.py`) and empty groups without offsets away, but no share
group that was ever given a partition. When a consumer group became empty is not in the log, so after a start that
counts from there.

A step's records are one batch, and all others wait for it, so a group with many offsets is deleted in several: ticks
take its offsets, the last one the group itself and answers. Meanwhile the group is nobody's: whoever asks for it is to
ask again. A crash in between leaves a group with fewer offsets, whose deletion nobody was told of. A share group is
nobody's while the leaders of its partitions are told to forget what it has done (`queues/share_offsets.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from penstock.engine.coordination.deadlines import Deadlines
from penstock.engine.coordination.outcome import Outcome, Reply, Token
from penstock.engine.coordination.schemas import SHARE_KINDS, Entry, Kind
from penstock.engine.groups.classic import CONSUMER, ClassicGroup
from penstock.engine.groups.classic_requests import (
    GroupLimits,
    HeartbeatRequest,
    JoinRequest,
    LeavingMember,
    SyncRequest,
)
from penstock.engine.groups.consumer import ConsumerGroup
from penstock.engine.groups.consumer_requests import ConsumerHeartbeat, ConsumerLimits, LimitsOf
from penstock.engine.groups.known_topics import TopicView
from penstock.engine.groups.member_room import MemberRoom, Share
from penstock.engine.groups.offsets import (
    CommitRequest,
    FetchRequest,
    Offsets,
    Spot,
    TransactionalCommit,
)
from penstock.engine.groups.retention import RETENTION_MS, Group, expired, reads
from penstock.engine.groups.share import ShareGroup, TimesOf
from penstock.engine.groups.share_requests import ShareLimits, ShareTimes
from penstock.engine.groups.share_verbs import ShareVerbs, answered, unknown_group
from penstock.engine.groups.topic_patterns import Sight, TopicPatterns
from penstock.errors import Code, PenstockError

CLASSIC, SHARE = "classic", "share"
MAX_GROUPS = 10_000  # in one shard, with members and again with offsets: ids are made up by clients
SWEEP_MS = 10 * 60 * 1000  # Kafka's offsets.retention.check.interval.ms
_OFFSETS_PER_TICK = 10_000  # looked at: 5 ms for which all others wait
_BYTES_PER_NAME = 8  # of topics members read, at least: what they read is looked at with their offsets
RECORDS_PER_STEP = 500  # of a verb that may have any number of them: they are one batch, and take some 5 ms
Led = ConsumerGroup | ShareGroup
"""Groups whose members the broker gives their partitions."""


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    group_type: str
    """"classic", "consumer" or "share"."""


class GroupMachine(ShareVerbs):
    """Args:
    now: the time of its beginning.
    new_id: makes the unique part of a member id.
    topics: the topics there are.
    consumer_limits_of: what a group of the consumer protocol goes by, where they do not all go by `consumer_limits`.
    share_times_of: the times of a share group.
    room: this shard's part of the room all members share.
    """

    def __init__(
        self,
        now: int,
        new_id: Callable[[], str],
        topics: TopicView,
        *,
        classic_limits: GroupLimits | None = None,
        consumer_limits: ConsumerLimits | None = None,
        consumer_limits_of: LimitsOf | None = None,
        share_limits: ShareLimits | None = None,
        share_times_of: TimesOf = lambda group_id: ShareTimes(),
        offsets: Offsets | None = None,
        retention_ms: int = RETENTION_MS,
        max_groups: int = MAX_GROUPS,
        room: Share | None = None,
    ) -> None:
        super().__init__()
        self._new_id = new_id
        self._topics = topics
        self._classic_limits = classic_limits or GroupLimits()
        self._consumer_limits = consumer_limits or ConsumerLimits()
        self._consumer_limits_of = consumer_limits_of
        self._share_limits = share_limits or ShareLimits()
        self._share_times_of = share_times_of
        self._offsets = offsets or Offsets()
        self._retention_ms = retention_ms
        self._max_groups = max_groups
        self._room = room or MemberRoom().share()
        self._room.clear()
        self._groups: dict[str, Group] = {}
        self._empty_since: dict[str, int] = {}
        """Of consumer and share groups; classic ones know it themselves."""
        self._deadlines: Deadlines[str] = Deadlines()
        self._patterns = TopicPatterns()
        self._next_sweep = now + SWEEP_MS
        self._unswept: list[str] = []
        self._unswept_spots: list[Spot] | None = None
        """Of the last of those groups; None before it is looked at."""
        self._deleting: dict[str, list[Token]] = {}
        """Groups whose offsets are being taken away, and who waits for it."""

    # --- members

    def join(self, now: int, token: Token, request: JoinRequest) -> Outcome:
        self._check_kept(request.group_id)
        group = self._groups.get(request.group_id)
        replaced = None
        if isinstance(group, ShareGroup):
            raise PenstockError(
                Code.INCONSISTENT_PROTOCOL,
                f"group {request.group_id!r} is a share group; a classic member cannot join it",
                help="use another group id",
            )
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                raise PenstockError(
                    Code.INCONSISTENT_PROTOCOL,
                    f"group {request.group_id!r} is a consumer group with members; a classic member cannot join it",
                    help="stop its members first, or set group.protocol=consumer",
                )
            replaced, group = group, None
        if group is None:
            if request.member_id:
                raise self._unknown_member(request.group_id, request.member_id)
            self._check_room(request.group_id)
            group = self._blank(request.group_id)
        outcome = group.join(now, token, request, self._room.left_bytes)
        taken_back = replaced.delete() if replaced is not None else ()
        self._groups[request.group_id] = group
        self._settle(group, now)
        return Outcome(tuple(taken_back)) + outcome

    def sync(self, now: int, token: Token, request: SyncRequest) -> Outcome:
        group = self._classic(request.group_id, request.member_id)
        outcome = group.sync(now, token, request, self._room.left_bytes)
        self._settle(group, now)
        return outcome

    def heartbeat(self, now: int, token: Token, request: HeartbeatRequest) -> Outcome:
        group = self._classic(request.group_id, request.member_id)
        group.heartbeat(now, request)
        self._settle(group, now)
        return answered(token, None)

    def leave(self, now: int, token: Token, group_id: str, members: tuple[LeavingMember, ...]) -> Outcome:
        """Members of either kind; administrators remove those of consumer groups like this, too."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            results, entries = group.leave(now, members, self._topics)
            outcome = Outcome(entries)
        else:
            group = self._classic(group_id, members[0].member_id if members else "")
            results, outcome = group.leave(now, members)
        self._settle(group, now)
        return outcome + answered(token, results)

    def consumer_heartbeat(self, now: int, token: Token, request: ConsumerHeartbeat, sight: Sight) -> Outcome:
        """Args:
        sight: the topics that who sends it may be told of.
        """
        self._check_kept(request.group_id)
        group = self._groups.get(request.group_id)
        replaced = None
        if isinstance(group, ShareGroup):
            raise group.refused("members of a consumer group cannot join it")
        if isinstance(group, ClassicGroup):
            if not group.is_empty or request.member_epoch != 0:
                raise PenstockError(
                    Code.GROUP_NOT_FOUND,
                    f"group {request.group_id!r} is a classic group in state {group.state}, not a consumer group",
                    help="stop its members first, or set group.protocol=classic",
                )
            replaced, group = group, None
        if group is None:
            if request.member_epoch != 0:
                raise unknown_group(request.group_id)
            self._check_room(request.group_id)
            group = self._blank_consumer(request.group_id)
        result, entries = group.heartbeat(now, request, self._topics, self._room.left_bytes, sight)
        taken_back = replaced.delete() if replaced is not None else ()
        self._groups[request.group_id] = group
        self._settle(group, now)
        return Outcome((*taken_back, *entries), (Reply(token, result),))

    # --- offsets

    def commit(self, now: int, token: Token, request: CommitRequest) -> Outcome:
        """Answered with what became of each partition: None, or a PenstockError."""
        group = self._find(request.group_id)
        if group is None:
            if request.generation >= 0:
                if request.knows_epochs:
                    raise unknown_group(request.group_id)
                raise self._unknown_generation(request.group_id, request.generation)
            self._check_room(request.group_id)
        else:
            group.check_commit(now, request.member_id, request.generation, request.group_instance_id)
            if isinstance(group, ConsumerGroup) and not group.is_empty and not request.knows_epochs:
                raise PenstockError(
                    Code.UNSUPPORTED_VERSION,
                    f"member {request.member_id!r} of consumer group {request.group_id!r} commits in a version that "
                    "has no member epochs",
                    help="use OffsetCommit 9 or later",
                )
        results, entries = self._offsets.commit(request.group_id, request.offsets, now)
        return Outcome(entries, (Reply(token, results),))

    def commit_in_transaction(self, now: int, token: Token, request: TransactionalCommit) -> Outcome:
        """As `commit`; its records are to be appended as a transactional batch of the producer."""
        group = self._find(request.group_id)
        if group is None:
            if request.generation >= 0:
                raise self._unknown_generation(request.group_id, request.generation)
            self._check_room(request.group_id)
        elif isinstance(group, ClassicGroup):
            group.check_commit(
                now, request.member_id, request.generation, request.group_instance_id, transactional=True
            )
        else:
            try:
                group.check_commit(now, request.member_id, request.generation, request.group_instance_id)
            except PenstockError as error:
                if error.code is not Code.STALE_MEMBER_EPOCH:
                    raise
                raise PenstockError(Code.ILLEGAL_GENERATION, str(error), help=error.help) from None
        results, entries = self._offsets.commit(request.group_id, request.offsets, now, request.producer_id)
        return Outcome(entries, (Reply(token, results),))

    def fetch(self, now: int, token: Token, request: FetchRequest) -> Outcome:
        self._check_kept(request.group_id)
        group = self._groups.get(request.group_id)
        is_member = request.member_id is not None or request.member_epoch >= 0
        if isinstance(group, ConsumerGroup) and is_member:
            group.check_commit(now, request.member_id or "", request.member_epoch, None)
        fetched = self._offsets.fetch(request.group_id, request.partitions, require_stable=request.require_stable)
        return answered(token, fetched)

    def delete_offsets(self, now: int, token: Token, group_id: str, spots: Iterable[Spot]) -> Outcome:
        """Answered with what became of each partition: None, or a PenstockError."""
        group = self._known(group_id)
        if isinstance(group, ShareGroup):
            raise group.refused("it has no offsets to delete")
        if isinstance(group, ClassicGroup) and not group.is_empty and group.protocol_type != CONSUMER:
            raise PenstockError(
                Code.NON_EMPTY_GROUP,
                f"group {group_id!r} has members, and what they read is not known; stop them first",
            )
        spots = tuple(spots)
        is_read = reads(group)
        results = {
            spot: PenstockError(Code.GROUP_SUBSCRIBED_TO_TOPIC, f"group {group_id!r} is reading topic {spot[0]!r}")
            if is_read(spot[0])
            else None
            for spot in spots
        }
        entries = self._offsets.delete(group_id, [spot for spot in spots if results[spot] is None])
        return Outcome(entries, (Reply(token, results),))

    def groups_with_topics(self) -> list[str]:
        """Those that remember something of topics: offsets, or that they were given partitions."""
        shares = [group.group_id for group in self._groups.values() if isinstance(group, ShareGroup)]
        return [*self._offsets.groups(), *shares]

    def topic_deleted(self, topic: str, unlooked: list[str]) -> Outcome:
        """A topic is no more, so what was committed for it means nothing: a new one of that name begins at 0.

        Args:
            unlooked: `groups_with_topics`; those that are done are taken off, and it is to be repeated for the others.
        """
        records: list[Entry] = []
        looked_at = 0
        while unlooked and looked_at < _OFFSETS_PER_TICK and len(records) < RECORDS_PER_STEP:
            looked_at += 1 + self._offsets.count(unlooked[-1])
            room = RECORDS_PER_STEP - len(records)
            taken_back = self._offsets.delete_of_topic(unlooked[-1], topic, room)
            records += taken_back
            if isinstance(group := self._groups.get(unlooked[-1]), ShareGroup):
                records += group.forget_topic(topic, self._topics)
                self._room.put(group.group_id, group.size_bytes)
            if len(taken_back) < room:  # else there may be more
                unlooked.pop()
        return Outcome(records)

    def marker(self, producer_id: int, *, committed: bool) -> None:
        """The marker of a producer's transaction is in this shard's log."""
        self._offsets.end(producer_id, committed=committed)

    # --- groups as a whole

    def list_groups(self, now: int, token: Token, states: frozenset[str], types: frozenset[str]) -> Outcome:
        """Answered with a tuple of GroupListing. Empty filters let all through; case does not matter."""
        states = frozenset(state.strip().lower() for state in states)
        types = frozenset(kind.strip().lower() for kind in types)
        listed = [
            listing
            for listing in map(_listing, self._all())
            if listing.group_id not in self._deleting
            and (not states or listing.state.lower() in states)
            and (not types or listing.group_type in types)
        ]
        return answered(token, tuple(listed))

    def describe_classic(self, now: int, token: Token, group_id: str) -> Outcome:
        group = self._known(group_id)
        if not isinstance(group, ClassicGroup):
            raise PenstockError(Code.GROUP_NOT_FOUND, f"group {group_id!r} is not a classic group")
        return answered(token, group.describe())

    def describe_consumer(self, now: int, token: Token, group_id: str) -> Outcome:
        group = self._known(group_id)
        if not isinstance(group, ConsumerGroup):
            raise PenstockError(Code.GROUP_NOT_FOUND, f"group {group_id!r} is not a consumer group")
        return answered(token, group.describe(self._topics))

    def delete(self, now: int, token: Token, group_id: str) -> Outcome:
        """Answered when the last of its offsets is gone."""
        if group_id in self._deleting:
            self._deleting[group_id].append(token)
            return Outcome()
        self._known(group_id).check_deletable()
        self._deleting[group_id] = [token]
        return self._delete_some(group_id)

    def _delete_some(self, group_id: str) -> Outcome:
        entries = self._offsets.delete_some(group_id, RECORDS_PER_STEP)
        if group_id in self._offsets:
            return Outcome(entries)
        tokens = self._deleting.pop(group_id)
        if (group := self._groups.get(group_id)) is not None:
            entries += group.delete()
            self._drop(group_id)
        return Outcome(entries, [Reply(token, None) for token in tokens])

    # --- time

    def next_deadline(self) -> int:
        if self._deleting:
            return 0  # it goes on at once
        due = self._deadlines.next()
        return self._next_sweep if due is None else min(due, self._next_sweep)

    def tick(self, now: int) -> Outcome:
        """What time has brought about; it may be due again at once, so that one tick's records are not too many."""
        records: list[Entry] = []
        replies: list[Reply] = []
        if self._deleting:
            outcome = self._delete_some(next(iter(self._deleting)))
            records += outcome.records
            replies += outcome.replies
        while len(records) < RECORDS_PER_STEP and (group_id := self._deadlines.pop_due(now)) is not None:
            group = self._groups[group_id]
            if isinstance(group, ClassicGroup):
                outcome = group.tick(now)
                records += outcome.records
                replies += outcome.replies
            else:
                records += group.tick(now, self._topics)
            if isinstance(group, ShareGroup):
                self._lost += group.take_lost()
            self._settle(group, now)
        if now >= self._next_sweep and len(records) < RECORDS_PER_STEP:
            records += self._sweep(now)
        return Outcome(records, replies)

    def _sweep(self, now: int) -> list[Entry]:
        if not self._unswept:
            self._unswept = [group.group_id for group in self._all()]
        records: list[Entry] = []
        looked_at = 0
        while self._unswept and looked_at < _OFFSETS_PER_TICK and len(records) < RECORDS_PER_STEP:
            group_id = self._unswept[-1]
            if self._unswept_spots is None:
                self._unswept_spots = self._offsets.committed_spots(group_id)
            looked_at += (
                1 + self._room.of(group_id) // _BYTES_PER_NAME + min(len(self._unswept_spots), _OFFSETS_PER_TICK)
            )
            records += self._expire(group_id, self._unswept_spots, now, RECORDS_PER_STEP - len(records))
            if not self._unswept_spots:
                self._unswept.pop()
                self._unswept_spots = None
        self._next_sweep = now if self._unswept else now + SWEEP_MS
        return records

    def _expire(self, group_id: str, unswept: list[Spot], now: int, at_most: int) -> list[Entry]:
        """Takes from `unswept` what it has looked at and need not look at again."""
        if {group_id} & (self._deleting.keys() | self._forgetting.keys()) or (group := self._find(group_id)) is None:
            unswept.clear()
            return []
        is_expired = expired(group, now, self._retention_ms, self._since(group))
        looked_at, unswept[-_OFFSETS_PER_TICK:] = unswept[-_OFFSETS_PER_TICK:], []
        late = self._offsets.expired(group_id, looked_at, is_expired)
        unswept += late[at_most:]
        entries = self._offsets.delete(group_id, late[:at_most])
        stays = isinstance(group, ShareGroup) and group.has_begun
        if group.is_empty and not stays and group_id not in self._offsets and group.next_deadline() is None:
            entries += group.delete()
            self._drop(group_id)
        return entries

    def _since(self, group: Group) -> int:
        if isinstance(group, ClassicGroup):
            return group.state_since if group.is_empty else -1
        return self._empty_since.get(group.group_id, -1)

    # --- the log

    def replay(self, entry: Entry, log_offset: int, producer_id: int | None, now: int) -> None:
        """Apply one record from the log; `producer_id` is that of a transactional batch, None for any other."""
        group_id = entry.key[0]
        group = self._groups.get(group_id)
        if entry.kind is Kind.OFFSET:
            self._offsets.replay(entry, log_offset, producer_id)
        elif entry.kind is Kind.GROUP:
            self._replay_classic(entry, group, now)
        elif entry.kind in SHARE_KINDS:
            self._replay_led(entry, group if isinstance(group, ShareGroup) else None, self._blank_share, now)
        else:
            self._replay_led(entry, group if isinstance(group, ConsumerGroup) else None, self._blank_consumer, now)

    def _replay_classic(self, entry: Entry, group: Group | None, now: int) -> None:
        group_id = entry.key[0]
        if entry.value is not None:
            if not isinstance(group, ClassicGroup):
                group = self._groups[group_id] = self._blank(group_id)
            group.replay(entry.value, now)
            self._settle(group, now)
        elif isinstance(group, ClassicGroup):
            self._drop(group_id)

    def _replay_led(self, entry: Entry, group: Led | None, make: Callable[[str], Led], now: int) -> None:
        """Of a group whose members the broker gives their partitions; None for one of another kind, or for none."""
        group_id = entry.key[0]
        if group is None:
            if entry.value is None:
                return  # the end of a group whose beginning is not in the log any more
            group = self._groups[group_id] = make(group_id)
        group.replay(entry, now)
        if group.is_dead:
            self._drop(group_id)
        else:
            self._settle(group, now)

    def dump(self) -> Iterator[tuple[Entry, int | None]]:
        """What is durable as records, in the order to be replayed; with the producer of a transaction under way.

        It is copied by the call, and made into records when they are taken, so that this may be done bit by bit.
        """
        classic: list[Entry] = []
        led: list[Iterator[Entry]] = []
        for group in self._groups.values():
            if not isinstance(group, ClassicGroup):
                led.append(group.dump())
            elif (entry := group.dump()) is not None:
                classic.append(entry)
        groups = ((entry, None) for entry in chain(classic, chain.from_iterable(led)))
        return chain(groups, self._offsets.dump())

    # --- finding groups

    def _all(self) -> Iterator[Group]:
        yield from self._groups.values()
        yield from (self._blank(group_id) for group_id in self._offsets.groups() if group_id not in self._groups)

    def _find(self, group_id: str) -> Group | None:
        self._check_kept(group_id)
        group = self._groups.get(group_id)
        return self._blank(group_id) if group is None and group_id in self._offsets else group

    def _known(self, group_id: str) -> Group:
        group = self._find(group_id)
        if group is None:
            raise unknown_group(group_id)
        return group

    def _classic(self, group_id: str, member_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise self._unknown_member(group_id, member_id)
        return group

    def _blank(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self._new_id, self._classic_limits)

    def _blank_consumer(self, group_id: str) -> ConsumerGroup:
        return ConsumerGroup(group_id, self._new_id, self._consumer_limits, self._patterns, self._consumer_limits_of)

    def _blank_share(self, group_id: str) -> ShareGroup:
        return ShareGroup(group_id, self._share_limits, self._share_times_of)

    def _settle(self, group: Group, now: int) -> None:
        """After each step of a group that is in `_groups`."""
        group_id, deadline = group.group_id, group.next_deadline()
        if isinstance(group, ClassicGroup):
            if group.is_empty and deadline is None and group.dump() is None:
                self._drop(group_id)  # only ids were given out, and nobody came back with one
                return
        elif group.is_empty:
            self._empty_since.setdefault(group_id, now)
        else:
            self._empty_since.pop(group_id, None)
        self._deadlines.set(group_id, deadline)
        self._room.put(group_id, group.size_bytes)

    def _drop(self, group_id: str) -> None:
        self._groups.pop(group_id, None)
        self._empty_since.pop(group_id, None)
        self._deadlines.set(group_id, None)
        self._room.put(group_id, 0)

    def _check_kept(self, group_id: str) -> None:
        if group_id in self._deleting or group_id in self._forgetting:
            raise PenstockError(Code.COORDINATOR_LOADING, f"group {group_id!r} is being deleted", help="retry")

    def _check_room(self, group_id: str) -> None:
        if max(len(self._groups), self._offsets.group_count) >= self._max_groups:
            raise PenstockError(
                Code.LIMIT_EXCEEDED,
                f"group {group_id!r} is new, and {self._max_groups} groups are kept with it already",
                help="delete groups that are not needed",
            )

    def _unknown_member(self, group_id: str, member_id: str) -> PenstockError:
        return PenstockError(Code.UNKNOWN_MEMBER, f"group {group_id!r} has no classic member {member_id!r}")

    def _unknown_generation(self, group_id: str, generation: int) -> PenstockError:
        return PenstockError(
            Code.ILLEGAL_GENERATION, f"group {group_id!r} has no generation {generation}: it is unknown"
        )


def _listing(group: Group) -> GroupListing:
    if isinstance(group, ConsumerGroup):
        return GroupListing(group.group_id, CONSUMER, group.state, CONSUMER)
    if isinstance(group, ShareGroup):
        return GroupListing(group.group_id, SHARE, group.state, SHARE)
    return GroupListing(group.group_id, group.protocol_type or "", group.state, CLASSIC)
