"""A consumer group whose partitions the broker divides among its members (KIP-848).

Three epochs chase each other. The group's rises with every change of members, subscriptions or topics. The target,
what each member is to have, is computed anew by the next heartbeat and takes the group's epoch. Each member is led to
its target by its own heartbeats (`reconciliation.py`) and takes the target's epoch when it has nothing left to give up.
A member is told what it has whenever that changes; an answer can be lost, so a member may come with the epoch before
the one it should have, as long as it has nothing it was not given.

Everything a group is follows from its records (`consumer_state.py`), except when it last heard of whom, and what each
of them may be told of (`sights.py`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from penstock.engine.coordination.schemas import (
    ConsumerGroupValue,
    ConsumerMemberValue,
    CurrentValue,
    Entry,
    Kind,
    RegexValue,
    TargetEpochValue,
    TargetValue,
)
from penstock.engine.groups.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Assignment, Subscriber, even_out
from penstock.engine.groups.classic_requests import LeaveResult, LeavingMember
from penstock.engine.groups.consumer_requests import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    ConsumerDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerLimits,
    ConsumerMemberDescription,
    LimitsOf,
    check_heartbeat,
    member_value,
    size_bytes,
)
from penstock.engine.groups.consumer_state import ConsumerState
from penstock.engine.groups.known_topics import TopicView, find, hash_of, named
from penstock.engine.groups.name_lists import Names, union
from penstock.engine.groups.reconciliation import STABLE, UNREVOKED, is_part_of, reconcile
from penstock.engine.groups.sights import Sights
from penstock.engine.groups.steps import Step
from penstock.engine.groups.topic_patterns import SEES_ALL, Sight, TopicPatterns
from penstock.errors import Code, PenstockError

_NO_LIMIT = 1 << 62


class ConsumerGroup:
    def __init__(
        self,
        group_id: str,
        new_member_id: Callable[[], str],
        limits: ConsumerLimits,
        patterns: TopicPatterns | None = None,
        limits_of: LimitsOf | None = None,
    ) -> None:
        """Args:
        limits_of: what it goes by instead of `limits`, asked whenever that matters.
        patterns: shared by all groups of a shard, so that they do not each match every topic.
        """
        self.group_id = group_id
        self._limits_of = limits_of or (lambda _: limits)
        self._new_member_id = new_member_id
        self._patterns = TopicPatterns() if patterns is None else patterns
        self._sights = Sights(self._patterns)
        self._state = ConsumerState(group_id)
        self._revision: int | None = None
        """Of the topics this group was last held against."""
        self._hashed: tuple[int, frozenset[str], int] | None = None
        """That revision, the topics it subscribes to, and their hash."""
        self._evenly: tuple[int, Names, Names] | None = None
        """The revision and the subscription for which the members' targets are all there is, divided evenly."""
        self._sessions: dict[str, int] = {}
        """When each member is given up."""
        self._revoking: dict[str, int] = {}
        """Since when members have been asked to let go of partitions."""
        self._alarm: int | None = None

    @property
    def _limits(self) -> ConsumerLimits:
        return self._limits_of(self.group_id)

    @property
    def is_empty(self) -> bool:
        return not self._state.members

    @property
    def size_bytes(self) -> int:
        """Of what members say of themselves."""
        return self._state.size_bytes

    @property
    def is_dead(self) -> bool:
        """Whether nothing is left of it: it was deleted, or never had a member."""
        return self._state.is_blank

    @property
    def state(self) -> str:
        state = self._state
        if not state.members:
            return "Dead" if state.is_blank else "Empty"
        if state.target_epoch is None or state.epoch > state.target_epoch:
            return "Assigning"
        for member_id in state.members:
            current = state.current(member_id)
            if current.state != STABLE or current.member_epoch != state.target_epoch:
                return "Reconciling"
        return "Stable"

    def heartbeat(
        self,
        now: int,
        request: ConsumerHeartbeat,
        topics: TopicView,
        room_bytes: int = _NO_LIMIT,
        sight: Sight = SEES_ALL,
    ) -> tuple[ConsumerHeartbeatResult, tuple[Entry, ...]]:
        """
        Args:
            sight: the topics that who sends it may be told of; a regular expression stands for no others.

        Raises:
            PenstockError: Before anything has changed: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGEX,
                GROUP_FULL, UNKNOWN_MEMBER, FENCED_MEMBER_EPOCH, FENCED_INSTANCE or UNRELEASED_INSTANCE.
        """
        check_heartbeat(request, self._limits)
        step = Step(self._state)
        if request.member_epoch < JOINING:
            result = self._leave(now, request, topics, step)
        else:
            result = self._beat(now, request, topics, step, room_bytes, sight)
        return result, tuple(step.entries)

    def _beat(
        self, now: int, request: ConsumerHeartbeat, topics: TopicView, step: Step, room_bytes: int, sight: Sight
    ) -> ConsumerHeartbeatResult:
        state = self._state
        departed = self._admit(request)
        member_id = request.member_id or self._new_member_id()
        before = state.members.get(departed or member_id)
        member = member_value(before, request)
        heard = state.current(departed or member_id)
        self._check_growth(request, before, member, topics, room_bytes)
        if departed is not None:
            self._take_over(step, departed, member_id, member)
        elif heard.member_epoch == LEAVING_FOR_A_WHILE:
            step.write(Kind.CONSUMER_CURRENT, heard._replace(member_epoch=0, previous_member_epoch=0), member_id)
        if state.members.get(member_id) != member:
            step.write(Kind.CONSUMER_MEMBER, member, member_id)
        subscribes = before is None or _subscription(before) != _subscription(member)
        votes = before is None or before.server_assignor != member.server_assignor
        looks_anew = self._sights.hear(member_id, member.subscribed_topic_regex, sight)
        sees_others = self._refresh(now, topics, step, subscribes or votes, looks_anew)
        if state.target_epoch is None or state.epoch > state.target_epoch:
            self._retarget(topics, step)
        gives_up = subscribes or (looks_anew and sees_others)
        current = self._reconcile(now, member_id, request, topics if gives_up else None, step)
        self._sessions[member_id] = now + self._limits.session_timeout_ms
        self._wake(self._sessions[member_id])
        may_have_missed_it = request.is_full or request.member_epoch != heard.member_epoch
        changed = may_have_missed_it or current.assigned_partitions != heard.assigned_partitions
        return self._result(member_id, current.member_epoch, current.assigned_partitions if changed else None)

    def _result(self, member_id: str, epoch: int, assignment: Assignment | None) -> ConsumerHeartbeatResult:
        return ConsumerHeartbeatResult(member_id, epoch, self._limits.heartbeat_interval_ms, assignment)

    # --- who may come

    def _admit(self, request: ConsumerHeartbeat) -> str | None:
        """The id under which a static member that joins was known until it left for a while, if it is another."""
        if request.member_epoch != JOINING:
            self._check_epoch(self._find(request.member_id, request.instance_id), request)
            return None
        state, member_id = self._state, request.member_id
        holder = None if request.instance_id is None else state.instances.get(request.instance_id)
        if holder is not None and holder != member_id:
            if state.current(holder).member_epoch != LEAVING_FOR_A_WHILE:
                raise self._error(
                    Code.UNRELEASED_INSTANCE,
                    f"instance {request.instance_id!r} is member {holder!r}, which has not left",
                    "wait until it has left or its session has expired, or use another instance id",
                )
            if member_id in state.members:
                raise self._error(
                    Code.INVALID_REQUEST,
                    f"member {member_id!r} is another member than instance {request.instance_id!r}",
                )
            return holder
        if member_id not in state.members and len(state.members) >= self._limits.max_size:
            raise self._error(Code.GROUP_FULL, f"it has {len(state.members)} members, as many as a group can have")
        return None

    def _find(self, member_id: str, instance_id: str | None) -> str:
        if instance_id is not None:
            holder = self._state.instances.get(instance_id)
            if holder is None:
                raise self._error(Code.UNKNOWN_MEMBER, f"instance {instance_id!r} is not in it")
            if holder != member_id:
                raise self._error(
                    Code.FENCED_INSTANCE, f"instance {instance_id!r} is member {holder!r} now, not {member_id!r}"
                )
        elif member_id not in self._state.members:
            raise self._error(Code.UNKNOWN_MEMBER, f"member {member_id!r} is not in it")
        return member_id

    def _check_epoch(self, member_id: str, request: ConsumerHeartbeat) -> None:
        current = self._state.current(member_id)
        if request.member_epoch == current.member_epoch or (
            request.member_epoch == current.previous_member_epoch
            and is_part_of(request.topic_partitions, current.assigned_partitions)
        ):
            return
        raise self._error(
            Code.FENCED_MEMBER_EPOCH,
            f"member {member_id!r} came with epoch {request.member_epoch} and has epoch {current.member_epoch}",
            "give up all partitions and join again",
        )

    def _check_growth(
        self,
        request: ConsumerHeartbeat,
        before: ConsumerMemberValue | None,
        member: ConsumerMemberValue,
        topics: TopicView,
        room_bytes: int,
    ) -> None:
        if before is not None and member == before:
            return
        regex = member.subscribed_topic_regex
        if regex is not None and regex not in self._state.regexes:
            self._patterns.check(regex, topics)
        size, limits = size_bytes(member), self._limits
        if size > limits.max_member_bytes:
            raise self._error(
                Code.INVALID_REQUEST,
                f"member {request.member_id!r} describes itself in {size} bytes, {limits.max_member_bytes} are allowed",
            )
        growth = size - (size_bytes(before) if before is not None else 0)
        total = self._state.size_bytes + growth
        if growth > room_bytes:
            raise self._error(
                Code.GROUP_FULL,
                f"member {request.member_id!r} describes itself in {size} bytes; all groups have room for {room_bytes}",
            )
        if total > limits.max_group_bytes:
            raise self._error(
                Code.GROUP_FULL,
                f"its members would describe themselves in {total} bytes, {limits.max_group_bytes} are allowed",
            )

    def check_commit(self, now: int, member_id: str, member_epoch: int, instance_id: str | None) -> None:
        """Whether a member may commit offsets; somebody who is no member may, while there is none.

        Raises:
            PenstockError: UNKNOWN_MEMBER or STALE_MEMBER_EPOCH.
        """
        if member_epoch < 0 and not self._state.members:
            return
        if member_id not in self._state.members:
            shown = "" if instance_id is None else f" (instance {instance_id!r})"
            raise self._error(Code.UNKNOWN_MEMBER, f"member {member_id!r}{shown} is not in it")
        epoch = self._state.current(member_id).member_epoch
        if member_epoch != epoch:
            raise self._error(
                Code.STALE_MEMBER_EPOCH,
                f"member {member_id!r} commits at epoch {member_epoch} and has epoch {epoch}",
                "commit again after the next heartbeat",
            )

    # --- who comes and goes

    def _take_over(self, step: Step, departed: str, member_id: str, member: ConsumerMemberValue) -> None:
        """A static member comes back under another id: all that was the old one's is the new one's."""
        target, current = self._state.targets.get(departed, ()), self._state.current(departed)
        self._sights.move(departed, member_id)
        self._forget(departed)
        step.remove_member(departed)
        step.write(Kind.CONSUMER_MEMBER, member, member_id)
        step.write(Kind.CONSUMER_TARGET, TargetValue(target), member_id)
        step.write(Kind.CONSUMER_CURRENT, current._replace(member_epoch=0, previous_member_epoch=0), member_id)

    def _leave(self, now: int, request: ConsumerHeartbeat, topics: TopicView, step: Step) -> ConsumerHeartbeatResult:
        member_id = self._find(request.member_id, request.instance_id)
        if request.member_epoch == LEAVING_FOR_A_WHILE:
            current = self._state.current(member_id)
            left = current._replace(member_epoch=LEAVING_FOR_A_WHILE, state=STABLE, partitions_pending_revocation=())
            if left != current:
                step.write(Kind.CONSUMER_CURRENT, left, member_id)
                self._revoking.pop(member_id, None)
                self._sessions[member_id] = now + self._limits.session_timeout_ms
        else:
            self._remove(now, (member_id,), topics, step)
        return self._result(member_id, request.member_epoch, None)

    def leave(
        self, now: int, members: Sequence[LeavingMember], topics: TopicView
    ) -> tuple[tuple[LeaveResult, ...], tuple[Entry, ...]]:
        """Removes members, each on its own: by member id, or static ones by instance id alone."""
        results, leaving = [], []
        for member in members:
            error = None
            try:
                leaving.append(self._find_leaving(member))
            except PenstockError as refused:
                error = refused.kept()
            results.append(LeaveResult(member.member_id, member.group_instance_id, error))
        step = Step(self._state)
        if leaving:
            self._remove(now, tuple(dict.fromkeys(leaving)), topics, step)
        return tuple(results), tuple(step.entries)

    def _find_leaving(self, member: LeavingMember) -> str:
        member_id = member.member_id
        if member.group_instance_id is not None and not member_id:
            member_id = self._state.instances.get(member.group_instance_id, "")
        return self._find(member_id, member.group_instance_id)

    def _remove(self, now: int, member_ids: Sequence[str], topics: TopicView, step: Step) -> None:
        self._evenly = None  # what they were to have is nobody's now
        for member_id in member_ids:
            self._forget(member_id)
            step.remove_member(member_id)
        self._refresh(now, topics, step, True)
        if not self._state.members:  # nobody is left whose heartbeat would make the target catch up
            step.write(Kind.CONSUMER_TARGET_EPOCH, TargetEpochValue(self._state.epoch))

    def _forget(self, member_id: str) -> None:
        self._sessions.pop(member_id, None)
        self._revoking.pop(member_id, None)
        self._sights.forget(member_id)

    def check_deletable(self) -> None:
        """Raises PenstockError NON_EMPTY_GROUP."""
        if self._state.members:
            raise self._error(Code.NON_EMPTY_GROUP, f"it has {len(self._state.members)} members")

    def delete(self) -> tuple[Entry, ...]:
        """Raises PenstockError NON_EMPTY_GROUP."""
        self.check_deletable()
        step = Step(self._state)
        for kind, key, _ in reversed(list(self._state.entries())):
            step.write(kind, None, *key[1:])
        return tuple(step.entries)

    # --- what is to be

    def _refresh(self, now: int, topics: TopicView, step: Step, has_changed: bool, looks_anew: bool = False) -> bool:
        """Raises the group's epoch if it changed, or if the topics it subscribes to did, be it for one member alone.

        Returns whether some member may see others than before.
        """
        has_news = has_changed or topics.revision != self._revision
        if not (has_news or looks_anew):
            return False
        state = self._state
        sees_others = self._sights.look(state.members, topics, state.regexes)
        if self._sights.take_whole() and not (has_changed or sees_others):
            sees_others = any(state.targets.get(member) != target for member, target in self._divide(topics).items())
        if not (has_news or sees_others):
            return False
        self._revision = topics.revision
        resolved = self._sights.resolve(state.members, state.regexes)
        for regex in sorted(state.regexes.keys() - resolved.keys()):
            step.write(Kind.CONSUMER_REGEX, None, regex)
        for regex, names in sorted(resolved.items()):
            if regex not in state.regexes or state.regexes[regex].topics != names:
                step.write(Kind.CONSUMER_REGEX, RegexValue(names, topics.revision, now), regex)
        metadata_hash = self._hash(topics)
        if has_changed or sees_others or metadata_hash != state.metadata_hash:
            step.write(Kind.CONSUMER_GROUP, ConsumerGroupValue(state.epoch + 1, metadata_hash))
        return sees_others

    def _hash(self, topics: TopicView) -> int:
        names = self.subscribed_topics()
        if self._hashed is None or self._hashed[:2] != (topics.revision, names):
            self._hashed = topics.revision, names, hash_of(find(names, topics))
        return self._hashed[2]

    def _retarget(self, topics: TopicView, step: Step) -> None:
        state = self._state
        subscription = self._one_subscription(topics)
        evenly = None
        if subscription is not None and self._assignor() == DEFAULT_ASSIGNOR:
            evenly = topics.revision, *subscription
        if evenly is not None and evenly == self._evenly:
            targets = even_out([self._subscriber(member_id, frozenset()) for member_id in state.members])
        else:
            targets = self._divide(topics)
        self._evenly = evenly
        for member_id, target in sorted(targets.items()):
            if state.targets.get(member_id) != target:
                step.write(Kind.CONSUMER_TARGET, TargetValue(target), member_id)
        step.write(Kind.CONSUMER_TARGET_EPOCH, TargetEpochValue(state.epoch))

    def _one_subscription(self, topics: TopicView) -> tuple[Names, Names] | None:
        """That of all members, by name and by regular expression, if they have the same; None otherwise."""
        subscriptions = (
            (member.subscribed_topic_names, self._by_regex(member_id, topics))
            for member_id, member in self._state.members.items()
        )
        first = next(subscriptions)
        return first if all(other == first for other in subscriptions) else None

    def _subscriber(self, member_id: str, topics: frozenset[UUID]) -> Subscriber:
        state = self._state
        return Subscriber(member_id, state.members[member_id].instance_id, topics, state.targets.get(member_id, ()))

    def _divide(self, topics: TopicView) -> dict[str, Assignment]:
        state = self._state
        ids: dict[tuple[int, int], frozenset[UUID]] = {}
        """By the tuples of names that are subscribed to: who has the same names nearly always has the same tuples."""
        partitions: dict[UUID, int] = {}
        subscribers = []
        for member_id, member in sorted(state.members.items()):
            by_name, by_regex = member.subscribed_topic_names, self._by_regex(member_id, topics)
            subscription = id(by_name), id(by_regex)
            if subscription not in ids:
                names = frozenset(by_name).union(by_regex)
                found = [info for name in names if (info := topics.get(name)) is not None]
                partitions.update((info.topic_id, info.partitions) for info in found)
                ids[subscription] = frozenset(info.topic_id for info in found)
            subscribers.append(self._subscriber(member_id, ids[subscription]))
        return ASSIGNORS[self._assignor()](subscribers, partitions)

    def _reconcile(
        self, now: int, member_id: str, request: ConsumerHeartbeat, subscribed_in: TopicView | None, step: Step
    ) -> CurrentValue:
        state = self._state
        current = state.current(member_id)
        member = state.members[member_id]
        subscribed = None
        if subscribed_in is not None and current.state == UNREVOKED:
            names = (*member.subscribed_topic_names, *self._by_regex(member_id, subscribed_in))
            found = map(subscribed_in.get, names)
            subscribed = frozenset(info.topic_id for info in found if info is not None)
        assert state.target_epoch is not None
        following = reconcile(
            current,
            state.target_epoch,
            state.targets.get(member_id, ()),
            request.topic_partitions,
            lambda topic_id, numbers: state.free_of(topic_id, numbers, member_id),
            subscribed,
        )
        if following is not current:
            step.write(Kind.CONSUMER_CURRENT, following, member_id)
            if following.state != UNREVOKED:
                self._revoking.pop(member_id, None)
            elif current.state != UNREVOKED or current.member_epoch != following.member_epoch:
                self._revoking[member_id] = now
        if member_id in self._revoking:
            self._wake(self._revoking[member_id] + member.rebalance_timeout_ms)
        return following

    def _assignor(self) -> str:
        """The one most members ask for; of two the first by name."""
        votes = Counter(member.server_assignor for member in self._state.members.values() if member.server_assignor)
        return min(votes, key=lambda name: (-votes[name], name), default=DEFAULT_ASSIGNOR)

    def _by_regex(self, member_id: str, topics: TopicView) -> Names:
        """What the regular expression of a member stands for, to this member."""
        state = self._state
        regex = state.members[member_id].subscribed_topic_regex
        if regex is None:
            return ()
        names = self._sights.shown(member_id, regex, state.regexes)
        if names is None:
            infos = (topics.get_by_id(topic_id) for topic_id, _ in state.targets.get(member_id, ()))
            names = tuple(sorted(info.name for info in infos if info is not None))
            self._sights.reckon(member_id, names)
        return names

    def subscribed_topics(self) -> frozenset[str]:
        """By name or by regular expression; some may not exist."""
        members = self._state.members.values()
        by_name = union(member.subscribed_topic_names for member in members)
        return by_name.union(*(matched.topics for matched in self._state.regexes.values()))

    # --- time

    def next_deadline(self) -> int | None:
        """When to call `tick` next. Sometimes early: a heartbeat does not look for whose session ends first now."""
        return self._alarm

    def tick(self, now: int, topics: TopicView) -> tuple[Entry, ...]:
        """Gives up members that have not been heard of, or have not let go of partitions, for too long."""
        if self._alarm is None or now < self._alarm:
            return ()
        deadlines = {member_id: self._deadline(member_id) for member_id in self._state.members}
        late = [member_id for member_id, at in deadlines.items() if at <= now]
        self._alarm = min((at for at in deadlines.values() if at > now), default=None)
        step = Step(self._state)
        if late:
            self._remove(now, late, topics, step)
        return tuple(step.entries)

    def _deadline(self, member_id: str) -> int:
        session = self._sessions[member_id]
        if member_id not in self._revoking:
            return session
        return min(session, self._revoking[member_id] + self._state.members[member_id].rebalance_timeout_ms)

    def _wake(self, at: int) -> None:
        if self._alarm is None or at < self._alarm:
            self._alarm = at

    # --- records and descriptions

    def replay(self, entry: Entry, now: int) -> None:
        """Applies a record from the log; everybody in it was heard of `now`."""
        self._evenly = None
        self._state.apply(entry)
        if entry.kind is Kind.CONSUMER_MEMBER:
            if entry.value is None:
                self._forget(entry.key[1])
            else:
                self._sessions[entry.key[1]] = now + self._limits.session_timeout_ms
                self._sights.replay(entry.key[1], entry.value.subscribed_topic_regex)
        elif entry.kind is Kind.CONSUMER_CURRENT:
            if entry.value is not None and entry.value.state == UNREVOKED:
                self._revoking[entry.key[1]] = now
            else:
                self._revoking.pop(entry.key[1], None)
        self._wake(now)

    def dump(self) -> Iterator[Entry]:
        return self._state.entries()

    def describe(self, topics: TopicView) -> ConsumerDescription:
        state = self._state
        members = []
        for member_id, member in sorted(state.members.items()):
            current = state.current(member_id)
            members.append(
                ConsumerMemberDescription(
                    member_id,
                    member.instance_id,
                    member.rack_id,
                    current.member_epoch,
                    member.client_id,
                    member.client_host,
                    member.subscribed_topic_names,
                    member.subscribed_topic_regex,
                    named(current.assigned_partitions, topics),
                    named(state.targets.get(member_id, ()), topics),
                )
            )
        return ConsumerDescription(
            self.group_id, self.state, state.epoch, state.target_epoch or 0, self._assignor(), tuple(members)
        )

    def _error(self, code: Code, text: str, help_text: str = "") -> PenstockError:
        return PenstockError(code, f"group {self.group_id!r}: {text}", help=help_text)


def _subscription(member: ConsumerMemberValue) -> tuple[tuple[str, ...], str | None]:
    return member.subscribed_topic_names, member.subscribed_topic_regex
