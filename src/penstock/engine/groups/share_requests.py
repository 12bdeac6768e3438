"""What is asked of a share group and what it answers, in the engine's own words; and the limits it keeps to."""

from typing import NamedTuple

from penstock.engine.coordination.schemas import BegunTopic, ShareMemberValue, TopicPartitions
from penstock.engine.groups.consumer_requests import DescribedPartitions
from penstock.errors import Code, PenstockError

JOINING, LEAVING = 0, -1
"""What a member's epoch says when it is not the number of a target."""
ASSIGNOR = "simple"


class ShareTimes(NamedTuple):
    """Of the members of one group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000


class ShareLimits(NamedTuple):
    max_size: int = 200
    """Members of a group, as Kafka has it."""
    max_subscribed_topics: int = 10_000
    """Names in one subscription: as many as a broker holds partitions."""
    max_member_bytes: int = 1 << 20
    """What a member says of itself is one record."""
    max_group_bytes: int = 64 << 20
    """What all members say of themselves, and what the group was given so far, is kept in memory."""
    max_id_chars: int = 36
    """A member's id: Kafka's limit, as long as a UUID in letters."""
    max_name_chars: int = 249
    """A rack or a topic: Kafka's limit for names."""


class ShareHeartbeat(NamedTuple):
    group_id: str
    member_id: str
    """Members name themselves."""
    member_epoch: int
    """The last one it was told, or the one before if an answer was lost; or JOINING, LEAVING."""
    rack_id: str | None = None
    subscribed_topic_names: tuple[str, ...] | None = None
    """What is None is as it was."""
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Whether it says all there is to say, as clients do when they may have missed an answer."""
        return self.member_epoch == JOINING or self.subscribed_topic_names is not None


class ShareHeartbeatResult(NamedTuple):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: tuple[TopicPartitions, ...] | None
    """None if it is as the member knows it."""


class ShareMemberDescription(NamedTuple):
    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    assignment: tuple[DescribedPartitions, ...]


class ShareDescription(NamedTuple):
    group_id: str
    state: str
    """Empty, Stable or Dead."""
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: tuple[ShareMemberDescription, ...]


class LostMember(NamedTuple):
    """A member of a share group that was given up, and what it had then."""

    group_id: str
    epoch: int
    member_id: str
    assignment: tuple[TopicPartitions, ...]


class ShareStart(NamedTuple):
    """How a partition begins in a share group."""

    state_epoch: int
    """The group's when the partition was first given to it."""
    offset: int | None
    """None for one of a topic that was new to the group: its `share.auto.offset.reset` says where, when the partition
    is first read. 0 for one that the topic was given later, of which the group is to miss nothing."""


def check_heartbeat(request: ShareHeartbeat, limits: ShareLimits) -> None:
    """Raises PenstockError INVALID_REQUEST for what no group would accept."""
    if request.member_epoch < LEAVING:
        raise _invalid(request, f"member epoch {request.member_epoch} is not one")
    if not request.member_id.strip():
        raise _invalid(request, "the member id is empty; a member makes up its own")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid(request, "the rack id is empty; leave it out if there is none")
    for what, text, allowed in (
        ("member id", request.member_id, limits.max_id_chars),
        ("rack id", request.rack_id, limits.max_name_chars),
    ):
        if text is not None and len(text) > allowed:
            raise _invalid(request, f"the {what} has {len(text)} characters, {allowed} are allowed")
    if request.member_epoch == JOINING and not request.subscribed_topic_names:
        raise _invalid(request, "a member that joins must name topics to subscribe to")
    names = request.subscribed_topic_names or ()
    if len(names) > limits.max_subscribed_topics:
        raise _invalid(request, f"{len(names)} topics subscribed to, {limits.max_subscribed_topics} are allowed")
    longest = max(map(len, names), default=0)
    if longest > limits.max_name_chars:
        raise _invalid(request, f"a topic name of {longest} characters, {limits.max_name_chars} are allowed")


def member_value(before: ShareMemberValue | None, request: ShareHeartbeat) -> ShareMemberValue:
    """What is to be known of a member after a heartbeat: what it did not say is as it was."""
    names = request.subscribed_topic_names
    return ShareMemberValue(
        rack_id=request.rack_id if request.rack_id is not None or before is None else before.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=(
            tuple(sorted(set(names))) if names is not None else before.subscribed_topic_names if before else ()
        ),
    )


def member_bytes(member: ShareMemberValue) -> int:
    """About what a member takes up, in its record and in memory."""
    texts = (member.rack_id or "", member.client_id, member.client_host, *member.subscribed_topic_names)
    return sum(map(len, texts)) + 100


def begun_bytes(topic: BegunTopic) -> int:
    """About what is remembered of a topic that a group was given."""
    return len(topic.topic_name) + 16 * len(topic.partitions) + 100


def _invalid(request: ShareHeartbeat, text: str) -> PenstockError:
    shown = request.member_id[:60]
    return PenstockError(Code.INVALID_REQUEST, f"group {request.group_id!r}, member {shown!r}: {text}")
