"""A share group: members take from the same partitions, and the broker says who takes from which (KIP-932).

It is a consumer group (`consumer.py`) without what makes sure that a partition has one reader: nobody has to let go of
a partition before another one has it, so a new target is in force for each member with its next heartbeat.

    Dead ──first member joins──► Stable ──the last one leaves or falls silent──► Empty ──deleted──► Dead
                                    ▲                                              │
                                    └────────────── a member joins ────────────────┘

The group's epoch rises with every change of members, subscriptions or topics; the target is computed anew by the next
heartbeat. A member's answer may be lost, so it may come with the epoch before the one it should have.

What is taken and not done yet is known where the partitions are (`engine/queues`), not here. An empty group stays until
it is deleted once it was given anything: nobody else knows that its partitions have begun (`share_state.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from penstock.engine.coordination.schemas import (
    BegunTopic,
    Entry,
    Kind,
    ShareCurrentValue,
    ShareGroupValue,
    ShareMemberValue,
    TargetEpochValue,
    TargetValue,
    TopicPartitions,
)
from penstock.engine.groups.assignors import Subscriber
from penstock.engine.groups.known_topics import TopicInfo, TopicView, find, hash_of, named
from penstock.engine.groups.name_lists import union
from penstock.engine.groups.reconciliation import STABLE
from penstock.engine.groups.share_assignor import assign_simple
from penstock.engine.groups.share_requests import (
    ASSIGNOR,
    JOINING,
    LEAVING,
    LostMember,
    ShareDescription,
    ShareHeartbeat,
    ShareHeartbeatResult,
    ShareLimits,
    ShareMemberDescription,
    ShareStart,
    ShareTimes,
    begun_bytes,
    check_heartbeat,
    member_bytes,
    member_value,
)
from penstock.engine.groups.share_state import ShareState, state_value
from penstock.engine.groups.steps import Step
from penstock.errors import Code, PenstockError

_NO_LIMIT = 1 << 62
TimesOf = Callable[[str], ShareTimes]
"""Those in force for a group, by its id."""


class ShareGroup:
    def __init__(self, group_id: str, limits: ShareLimits, times_of: TimesOf) -> None:
        self.group_id = group_id
        self._limits = limits
        self._times_of = times_of
        self._state = ShareState(group_id)
        self._revision: int | None = None
        """Of the topics this group was last held against."""
        self._sessions: dict[str, int] = {}
        """When each member is given up."""
        self._alarm: int | None = None
        self._lost: list[LostMember] = []

    @property
    def is_empty(self) -> bool:
        return not self._state.members

    @property
    def size_bytes(self) -> int:
        """Of what members say of themselves, and of the topics the group was given."""
        return self._state.size_bytes

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def is_dead(self) -> bool:
        """Whether nothing is left of it: it was deleted, or never had a member."""
        return self._state.is_blank

    @property
    def has_begun(self) -> bool:
        """Whether there are partitions that it was given."""
        return bool(self._state.begun)

    @property
    def state(self) -> str:
        if self._state.members:
            return "Stable"
        return "Dead" if self._state.is_blank else "Empty"

    def heartbeat(
        self, now: int, request: ShareHeartbeat, topics: TopicView, room_bytes: int = _NO_LIMIT
    ) -> tuple[ShareHeartbeatResult, tuple[Entry, ...]]:
        """
        Raises:
            PenstockError: Before anything has changed: INVALID_REQUEST, GROUP_FULL, UNKNOWN_MEMBER or
                FENCED_MEMBER_EPOCH.
        """
        check_heartbeat(request, self._limits)
        step = Step(self._state)
        if request.member_epoch == LEAVING:
            self._check_member(request.member_id)
            self._remove((request.member_id,), topics, step)
            result = self._result(request.member_id, LEAVING, None)
        else:
            result = self._beat(now, request, topics, step, room_bytes)
        return result, tuple(step.entries)

    def _beat(
        self, now: int, request: ShareHeartbeat, topics: TopicView, step: Step, room_bytes: int
    ) -> ShareHeartbeatResult:
        state, member_id = self._state, request.member_id
        self._admit(request)
        before = state.members.get(member_id)
        member = member_value(before, request)
        self._check_growth(member_id, before, member, topics, room_bytes)
        heard = state.current(member_id)
        if member != before:
            step.write(Kind.SHARE_MEMBER, member, member_id)
        subscribes = before is None or before.subscribed_topic_names != member.subscribed_topic_names
        self._refresh(topics, step, subscribes)
        if state.target_epoch is None or state.epoch > state.target_epoch:
            self._retarget(topics, step)
        current = self._follow(member_id, step)
        self._sessions[member_id] = now + self._times_of(self.group_id).session_timeout_ms
        self._wake(self._sessions[member_id])
        may_have_missed_it = request.is_full or request.member_epoch != heard.member_epoch
        changed = may_have_missed_it or current.assigned_partitions != heard.assigned_partitions
        return self._result(member_id, current.member_epoch, current.assigned_partitions if changed else None)

    def _result(
        self, member_id: str, epoch: int, assignment: tuple[TopicPartitions, ...] | None
    ) -> ShareHeartbeatResult:
        return ShareHeartbeatResult(member_id, epoch, self._times_of(self.group_id).heartbeat_interval_ms, assignment)

    # --- who may come

    def _admit(self, request: ShareHeartbeat) -> None:
        members, member_id = self._state.members, request.member_id
        if request.member_epoch != JOINING:
            self._check_member(member_id)
            current = self._state.current(member_id)
            if request.member_epoch not in (current.member_epoch, current.previous_member_epoch):
                raise self._error(
                    Code.FENCED_MEMBER_EPOCH,
                    f"member {member_id!r} came with epoch {request.member_epoch} and has epoch {current.member_epoch}",
                    "give up all partitions and join again",
                )
        elif member_id not in members and len(members) >= self._limits.max_size:
            raise self._error(Code.GROUP_FULL, f"it has {len(members)} members, as many as a share group can have")

    def _check_member(self, member_id: str) -> None:
        if member_id not in self._state.members:
            raise self._error(Code.UNKNOWN_MEMBER, f"member {member_id!r} is not in it")

    def _check_growth(
        self,
        member_id: str,
        before: ShareMemberValue | None,
        member: ShareMemberValue,
        topics: TopicView,
        room_bytes: int,
    ) -> None:
        if member == before:
            return
        size, limits = member_bytes(member), self._limits
        if size > limits.max_member_bytes:
            raise self._error(
                Code.INVALID_REQUEST,
                f"member {member_id!r} describes itself in {size} bytes, {limits.max_member_bytes} are allowed",
            )
        growth = size - (member_bytes(before) if before is not None else 0)
        growth += sum(map(begun_bytes, self._state.unbegun(find(member.subscribed_topic_names, topics))))
        if growth > room_bytes:
            raise self._error(
                Code.GROUP_FULL,
                f"member {member_id!r} and the topics that are new with it take {growth} bytes; all groups have room "
                f"for {room_bytes}",
                "subscribe to fewer topics, or delete groups that are not needed",
            )
        total = self._state.size_bytes + growth
        if total > limits.max_group_bytes:
            raise self._error(
                Code.GROUP_FULL,
                f"its members and topics would take {total} bytes, {limits.max_group_bytes} are allowed",
            )

    def check_commit(self, now: int, member_id: str, member_epoch: int, instance_id: str | None) -> None:
        """Raises PenstockError GROUP_NOT_FOUND: what members have done is not told as offsets."""
        raise self.refused("offsets cannot be committed for it")

    def refused(self, text: str) -> PenstockError:
        """The error for what only groups of other kinds do: to Kafka's clients there is no such group."""
        return self._error(Code.GROUP_NOT_FOUND, f"it is a share group; {text}", "use another group id")

    # --- who goes

    def _remove(self, member_ids: Sequence[str], topics: TopicView, step: Step) -> None:
        for member_id in member_ids:
            self._sessions.pop(member_id, None)
            step.remove_member(member_id)
        self._refresh(topics, step, True)

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

    def subscribed_topics(self) -> frozenset[str]:
        """Some may not exist."""
        return union(member.subscribed_topic_names for member in self._state.members.values())

    def _refresh(self, topics: TopicView, step: Step, has_changed: bool) -> None:
        """Raises the group's epoch if it changed, or if the topics it subscribes to did."""
        if not has_changed and topics.revision == self._revision:
            return
        state, self._revision = self._state, topics.revision
        found = find(self.subscribed_topics(), topics)
        metadata_hash = hash_of(found)
        if has_changed or metadata_hash != state.metadata_hash:
            step.write(Kind.SHARE_GROUP, ShareGroupValue(state.epoch + 1, metadata_hash))
            self._begin(state.unbegun(found), step)

    def _begin(self, new: Sequence[BegunTopic], step: Step) -> None:
        if new:
            begun = self._state.begun | {topic.topic_id: topic for topic in new}
            step.write(Kind.SHARE_STATE, state_value(begun.values()))

    def _retarget(self, topics: TopicView, step: Step) -> None:
        state = self._state
        ids: dict[int, frozenset[UUID]] = {}
        """By the list of names: the same names are the same list."""
        partitions: dict[UUID, int] = {}
        subscribers = []
        for member_id, member in state.members.items():
            names = member.subscribed_topic_names
            if id(names) not in ids:
                found = find(names, topics)
                partitions.update((info.topic_id, info.partitions) for info in found)
                ids[id(names)] = frozenset(info.topic_id for info in found)
            subscribers.append(Subscriber(member_id, None, ids[id(names)], state.targets.get(member_id, ())))
        for member_id, target in sorted(assign_simple(subscribers, partitions).items()):
            if state.targets.get(member_id) != target:
                step.write(Kind.SHARE_TARGET, TargetValue(target), member_id)
        step.write(Kind.SHARE_TARGET_EPOCH, TargetEpochValue(state.epoch))

    def _follow(self, member_id: str, step: Step) -> ShareCurrentValue:
        """A member has what it is to have, at once."""
        state, current = self._state, self._state.current(member_id)
        epoch = state.target_epoch
        assert epoch is not None
        if current.member_epoch != epoch:
            current = ShareCurrentValue(epoch, current.member_epoch, STABLE, state.targets.get(member_id, ()))
            step.write(Kind.SHARE_CURRENT, current, member_id)
        return current

    # --- what it was given

    def start_of(self, topic_id: UUID, partition: int) -> ShareStart | None:
        """How a partition begins in the group; None for one that it was never given."""
        return self._state.start_of(topic_id, partition)

    def begun_topics(self) -> tuple[BegunTopic, ...]:
        """All that it was ever given and that is there, as far as is known."""
        return tuple(self._state.begun.values())

    def restart(
        self, starts: Mapping[TopicInfo, Mapping[int, int]], room_bytes: int = _NO_LIMIT
    ) -> tuple[int, tuple[Entry, ...]]:
        """Have partitions begin anew, each at an offset or at `OPEN`: the group's epoch then, and the records.

        Raises:
            PenstockError: NON_EMPTY_GROUP, GROUP_FULL.
        """
        self.check_deletable()
        epoch = self._state.epoch + 1
        new = [self._state.restarted(topic, offsets, epoch) for topic, offsets in starts.items()]
        before = self._state.begun
        growth = sum(begun_bytes(each) - _bytes_of(before.get(each.topic_id)) for each in new)
        if growth > room_bytes or self._state.size_bytes + growth > self._limits.max_group_bytes:
            raise self._error(
                Code.GROUP_FULL,
                f"its topics would take {growth} bytes more, and there is no room for them",
                "name fewer topics, or delete groups that are not needed",
            )
        return epoch, self._begin_epoch(epoch, before | {each.topic_id: each for each in new})

    def forget(self, topic_ids: Iterable[UUID]) -> tuple[int, tuple[Entry, ...]]:
        """Have it be as if topics had never been given to it: the group's epoch then, and the records.

        Raises:
            PenstockError: NON_EMPTY_GROUP.
        """
        self.check_deletable()
        gone = set(topic_ids)
        epoch = self._state.epoch + 1
        left = {topic_id: each for topic_id, each in self._state.begun.items() if topic_id not in gone}
        return epoch, self._begin_epoch(epoch, left)

    def _begin_epoch(self, epoch: int, begun: Mapping[UUID, BegunTopic]) -> tuple[Entry, ...]:
        """Of a group without members: nobody is to have anything."""
        step = Step(self._state)
        step.write(Kind.SHARE_GROUP, ShareGroupValue(epoch, self._state.metadata_hash))
        if begun or self._state.begun:
            step.write(Kind.SHARE_STATE, state_value(begun.values()))
        step.write(Kind.SHARE_TARGET_EPOCH, TargetEpochValue(epoch))
        return tuple(step.entries)

    def forget_topic(self, name: str, topics: TopicView) -> tuple[Entry, ...]:
        """A topic of that name was deleted; one that has the name now is another one."""
        begun = self._state.begun.values()
        left = [topic for topic in begun if topic.topic_name != name or topics.get_by_id(topic.topic_id) is not None]
        step = Step(self._state)
        if len(left) < len(begun):
            step.write(Kind.SHARE_STATE, state_value(left))
        return tuple(step.entries)

    # --- time

    def next_deadline(self) -> int | None:
        """When to call `tick` next. Sometimes early: a heartbeat does not look for whose session ends first now."""
        return self._alarm

    def tick(self, now: int, topics: TopicView) -> tuple[Entry, ...]:
        """Gives up members that have not been heard of for too long."""
        if self._alarm is None or now < self._alarm:
            return ()
        late = [member_id for member_id, at in self._sessions.items() if at <= now]
        self._alarm = min((at for at in self._sessions.values() if at > now), default=None)
        step = Step(self._state)
        for member_id in late:
            had = self._state.current(member_id).assigned_partitions
            self._lost.append(LostMember(self.group_id, self._state.epoch, member_id, had))
        if late:
            self._remove(late, topics, step)
        return tuple(step.entries)

    def take_lost(self) -> list[LostMember]:
        """Members given up since this was called last."""
        lost, self._lost = self._lost, []
        return lost

    def _wake(self, at: int) -> None:
        if self._alarm is None or at < self._alarm:
            self._alarm = at

    # --- records and descriptions

    def replay(self, entry: Entry, now: int) -> None:
        """Applies a record from the log; everybody in it was heard of `now`."""
        self._state.apply(entry)
        if entry.kind is Kind.SHARE_MEMBER:
            if entry.value is None:
                self._sessions.pop(entry.key[1], None)
            else:
                self._sessions[entry.key[1]] = now + self._times_of(self.group_id).session_timeout_ms
        self._wake(now)

    def dump(self) -> Iterator[Entry]:
        return self._state.entries()

    def describe(self, topics: TopicView) -> ShareDescription:
        state = self._state
        members = []
        for member_id, member in sorted(state.members.items()):
            current = state.current(member_id)
            members.append(
                ShareMemberDescription(
                    member_id,
                    member.rack_id,
                    current.member_epoch,
                    member.client_id,
                    member.client_host,
                    member.subscribed_topic_names,
                    named(current.assigned_partitions, topics),
                )
            )
        return ShareDescription(
            self.group_id, self.state, state.epoch, state.target_epoch or 0, ASSIGNOR, tuple(members)
        )

    def _error(self, code: Code, text: str, help_text: str = "") -> PenstockError:
        return PenstockError(code, f"group {self.group_id!r}: {text}", help=help_text)


def _bytes_of(topic: BegunTopic | None) -> int:
    return 0 if topic is None else begun_bytes(topic)
