"""What is asked of a consumer group and what it answers, in the engine's own words; and the limits it keeps to."""

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from penstock.engine.coordination.schemas import ConsumerMemberValue, TopicPartitions
from penstock.engine.groups.assignors import ASSIGNORS
from penstock.errors import Code, PenstockError

JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2
"""What a member's epoch says when it is not the number of a target."""
UNCHANGED_MS = -1


class ConsumerLimits(NamedTuple):
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 5_000
    """Members of a group. Half the partitions a broker holds; each change of the group looks at all of them."""
    max_subscribed_topics: int = 10_000
    """Names in one subscription: as many as a broker holds partitions."""
    max_member_bytes: int = 1 << 20
    """What a member says of itself is one record."""
    max_group_bytes: int = 64 << 20
    """What all members say of themselves is kept in memory."""
    max_name_chars: int = 249
    """A member, an instance, a rack or a topic: Kafka's limit for names."""


LimitsOf = Callable[[str], ConsumerLimits]
"""What a group goes by now, by its id."""


class ConsumerHeartbeat(NamedTuple):
    group_id: str
    member_id: str
    """Empty from one that joins and leaves it to the broker to name it."""
    member_epoch: int
    """The last one it was told, or JOINING, LEAVING, LEAVING_FOR_A_WHILE (static members only)."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    """How long it may take to let go of partitions."""
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    """Empty takes it back. What is None is as it was."""
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None
    """What it has now."""
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether it says all there is to say, as clients do when they may have missed an answer."""
        return self.member_epoch == JOINING or (
            self.rebalance_timeout_ms != UNCHANGED_MS
            and (self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None)
            and self.topic_partitions is not None
        )


class ConsumerHeartbeatResult(NamedTuple):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: tuple[TopicPartitions, ...] | None
    """None if it is as the member knows it."""


class DescribedPartitions(NamedTuple):
    topic_id: UUID
    topic_name: str
    partitions: tuple[int, ...]


class ConsumerMemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: tuple[DescribedPartitions, ...]
    target_assignment: tuple[DescribedPartitions, ...]
    member_type: int = 1
    """Kafka's number for members that speak this protocol."""


class ConsumerDescription(NamedTuple):
    group_id: str
    state: str
    """Empty, Assigning, Reconciling, Stable or Dead."""
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: tuple[ConsumerMemberDescription, ...]


def check_heartbeat(request: ConsumerHeartbeat, limits: ConsumerLimits) -> None:
    """Raises PenstockError INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for what no group would accept."""
    if request.member_epoch < LEAVING_FOR_A_WHILE:
        raise _invalid(request, f"member epoch {request.member_epoch} is not one")
    if request.rebalance_timeout_ms < UNCHANGED_MS:
        raise _invalid(request, f"a rebalance time-out of {request.rebalance_timeout_ms} ms is not a time")
    if not request.member_id and request.member_epoch != JOINING:
        raise _invalid(request, "the member id is empty; only a member that joins may have none")
    for what, text in (("instance id", request.instance_id), ("rack id", request.rack_id)):
        if text == "":
            raise _invalid(request, f"the {what} is empty; leave it out if there is none")
    for what, text in (
        ("member id", request.member_id),
        ("instance id", request.instance_id),
        ("rack id", request.rack_id),
    ):
        if text is not None and len(text) > limits.max_name_chars:
            raise _invalid(request, f"the {what} has {len(text)} characters, {limits.max_name_chars} are allowed")
    if request.member_epoch == LEAVING_FOR_A_WHILE and request.instance_id is None:
        raise _invalid(request, "a member without an instance id cannot leave for a while (epoch -2)")
    if request.member_epoch == JOINING:
        _check_join(request)
    _check_subscription(request, limits)


def _check_join(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms == UNCHANGED_MS:
        raise _invalid(request, "a member that joins must name its rebalance time-out")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid(request, "the partitions of a member that joins must be an empty list: it can have none yet")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid(request, "a member that joins must name topics or a regular expression to subscribe to")


def _check_subscription(request: ConsumerHeartbeat, limits: ConsumerLimits) -> None:
    names = request.subscribed_topic_names or ()
    if len(names) > limits.max_subscribed_topics:
        raise _invalid(request, f"{len(names)} topics subscribed to, {limits.max_subscribed_topics} are allowed")
    longest = max(map(len, names), default=0)
    if longest > limits.max_name_chars:
        raise _invalid(request, f"a topic name of {longest} characters, {limits.max_name_chars} are allowed")
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        raise PenstockError(
            Code.UNSUPPORTED_ASSIGNOR,
            f"assignor {request.server_assignor!r} of member {request.member_id!r} in group {request.group_id!r} is "
            f"not supported; supported are {', '.join(sorted(ASSIGNORS))}",
        )


def member_value(before: ConsumerMemberValue | None, request: ConsumerHeartbeat) -> ConsumerMemberValue:
    """What is to be known of a member after a heartbeat: what it did not say is as it was."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return ConsumerMemberValue(
        instance_id=request.instance_id if request.instance_id is not None or before is None else before.instance_id,
        rack_id=request.rack_id if request.rack_id is not None or before is None else before.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=(
            tuple(sorted(set(names))) if names is not None else before.subscribed_topic_names if before else ()
        ),
        subscribed_topic_regex=(
            regex or None if regex is not None else before.subscribed_topic_regex if before else None
        ),
        rebalance_timeout_ms=(
            before.rebalance_timeout_ms
            if before is not None and request.rebalance_timeout_ms == UNCHANGED_MS
            else request.rebalance_timeout_ms
        ),
        server_assignor=(
            request.server_assignor if request.server_assignor is not None or before is None else before.server_assignor
        ),
    )


def size_bytes(member: ConsumerMemberValue) -> int:
    """About what a member takes up, in its record and in memory."""
    texts = (member.instance_id, member.rack_id, member.client_id, member.client_host, member.subscribed_topic_regex)
    return sum(len(text) for text in texts if text) + sum(map(len, member.subscribed_topic_names)) + 100


def _invalid(request: ConsumerHeartbeat, text: str) -> PenstockError:
    shown = request.member_id[:60]
    return PenstockError(Code.INVALID_REQUEST, f"group {request.group_id!r}, member {shown!r}: {text}")
