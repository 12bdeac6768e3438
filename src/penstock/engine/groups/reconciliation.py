"""How a member of a consumer group gets from what it has to what it is to have (KIP-848).

A partition has one owner at a time, so a member that is to lose some and gain some does the first before the second:

    STABLE ───────── a newer target ──────────┬──────────► UNREVOKED   told to let go of partitions; keeps its epoch
      ▲                                       │                │       until it reports that it has none of them
      │                                       │                │
      │        it reports that it let go, or had nothing to let go of: on to the target's epoch
      │                                       │                │
      ├─────── all it is to have is free ─────┴────────────────┤
      │                                                        ▼
      └─────── others have let go ────────────────────── UNRELEASED    has what is free, waits for the rest

A partition is free when no member has it assigned or has yet to let go of it.
"""

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from penstock.engine.coordination.schemas import CurrentValue, TopicPartitions
from penstock.engine.groups.assignors import Assignment, make_assignment

STABLE, UNREVOKED, UNRELEASED = 0, 1, 2
"""As Kafka numbers them in its records."""

Partitions = Mapping[UUID, set[int]]
FreeOf = Callable[[UUID, set[int]], set[int]]


def reconcile(
    current: CurrentValue,
    target_epoch: int,
    target: Assignment,
    owned: Sequence[TopicPartitions] | None,
    free_of: FreeOf,
    subscribed: frozenset[UUID] | None = None,
) -> CurrentValue:
    """A member's next standing; the same object when there is nothing to change.

    Args:
        owned: what the member reports to have; None if it reports nothing new.
        free_of: those of a topic's partitions that nobody else has.
        subscribed: the topics it has just subscribed to, if it has.
    """
    if current.state == STABLE and current.member_epoch == target_epoch:
        return current
    epoch = current.member_epoch
    if current.state == UNREVOKED:
        if _owns_any(owned, _sets(current.partitions_pending_revocation)):
            return current if subscribed is None else _without_unsubscribed(current, subscribed)
        epoch += 1
    following = _approach(current, epoch, target_epoch, target, owned, free_of)
    return current if following == current else following


def _approach(
    current: CurrentValue,
    epoch: int,
    target_epoch: int,
    target: Assignment,
    owned: Sequence[TopicPartitions] | None,
    free_of: FreeOf,
) -> CurrentValue:
    has, wanted = _sets(current.assigned_partitions), _sets(target)
    kept = {topic_id: numbers & wanted.get(topic_id, set()) for topic_id, numbers in has.items()}
    revoked = {topic_id: numbers - kept[topic_id] for topic_id, numbers in has.items() if numbers != kept[topic_id]}
    if revoked and _owns_any(owned, revoked):
        return _at(current, epoch, UNREVOKED, make_assignment(kept), make_assignment(revoked))
    state = STABLE
    for topic_id, numbers in wanted.items():
        mine = kept.setdefault(topic_id, set())
        mine |= free_of(topic_id, numbers - mine)
        if len(mine) < len(numbers):
            state = UNRELEASED
    return _at(current, target_epoch, state, make_assignment(kept), ())


def _at(current: CurrentValue, epoch: int, state: int, assigned: Assignment, revoked: Assignment) -> CurrentValue:
    """The epoch before stays with the member until the next one: it may not have heard of this one yet."""
    previous = current.previous_member_epoch if epoch == current.member_epoch else current.member_epoch
    return CurrentValue(epoch, previous, state, assigned, revoked)


def _without_unsubscribed(current: CurrentValue, subscribed: frozenset[UUID]) -> CurrentValue:
    """While it has yet to let go, what it no longer subscribes to must not come back to it with every answer."""
    kept = tuple(topic for topic in current.assigned_partitions if topic.topic_id in subscribed)
    if len(kept) == len(current.assigned_partitions):
        return current
    revoked = _sets(current.partitions_pending_revocation)
    for topic_id, numbers in current.assigned_partitions:
        if topic_id not in subscribed:
            revoked.setdefault(topic_id, set()).update(numbers)
    return current._replace(assigned_partitions=kept, partitions_pending_revocation=make_assignment(revoked))


def is_part_of(owned: Sequence[TopicPartitions] | None, assigned: Assignment) -> bool:
    """Whether a member reports to have nothing but what it was given."""
    given = _sets(assigned)
    return owned is not None and all(given.get(topic_id, set()).issuperset(numbers) for topic_id, numbers in owned)


def _owns_any(owned: Sequence[TopicPartitions] | None, revoked: Partitions) -> bool:
    if owned is None:
        return True
    return any(not revoked[topic_id].isdisjoint(numbers) for topic_id, numbers in owned if topic_id in revoked)


def _sets(assignment: Assignment) -> dict[UUID, set[int]]:
    return {topic_id: set(numbers) for topic_id, numbers in assignment}
