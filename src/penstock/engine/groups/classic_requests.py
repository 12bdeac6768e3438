"""What is asked of a classic group and what it answers, in the engine's own words; and the limits it keeps to."""

from typing import NamedTuple

from penstock.errors import Code, PenstockError

Protocols = tuple[tuple[str, bytes], ...]
"""Ways to divide the partitions a member knows, the one it likes best first: name, and what it wants in that way."""


class GroupLimits(NamedTuple):
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 300
    """How long an empty group waits for more members after its first one, again after each that comes. Kafka waits 3 s,
    and everybody who starts one consumer waits with it; members of one start are here within a few round trips."""
    new_member_join_timeout_ms: int = 300_000
    """A new member cannot heartbeat while its first join waits, so its session would not tell whether it is there."""
    max_size: int = 5_000
    """Members and ids given out to members to come: whoever got an id has a seat. Half the partitions a broker holds;
    all members of a generation are in one record and in one answer to the leader."""
    max_member_bytes: int = 1 << 20
    """What a member says of itself in all its protocols: 10,000 topics in two of them."""
    max_group_bytes: int = 16 << 20
    """What all members say of themselves, and again what the leader assigns to them."""
    max_name_chars: int = 249
    """A name of an instance, a protocol or a type of protocol: Kafka's limit for names."""


class JoinRequest(NamedTuple):
    group_id: str
    member_id: str
    """Empty from one that has no id yet."""
    group_instance_id: str | None
    """What a static member (KIP-345) is known by, whatever its member id."""
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """Negative: the session time-out."""
    requires_known_member_id: bool = True
    """The client comes back with the id it is given (KIP-394), so that lost answers leave no members behind."""
    supports_skipping_assignment: bool = True
    """The client can be leader without assigning anything (KIP-814)."""
    reason: str | None = None


class JoinedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinedMember, ...]
    """Only for the leader."""


class SyncRequest(NamedTuple):
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]
    """Only from the leader."""


class SyncResult(NamedTuple):
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes


class HeartbeatRequest(NamedTuple):
    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None


class LeavingMember(NamedTuple):
    member_id: str
    """Empty to remove whoever has the instance id."""
    group_instance_id: str | None
    reason: str | None = None


class LeaveResult(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error: PenstockError | None


class DescribedMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class ClassicDescription(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


class MemberIdRequired(PenstockError):
    """Not a failure: the client is to join again with the id it is given here."""

    def __init__(self, group_id: str, member_id: str) -> None:
        super().__init__(Code.MEMBER_ID_REQUIRED, f"group {group_id!r}: join again as member {member_id!r}")
        self.member_id = member_id
