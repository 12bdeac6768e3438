"""A member of a classic group: who it is, what it can do and what it was given."""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812

from penstock.engine.coordination.schemas import ClassicMember
from penstock.engine.groups.classic_requests import DescribedMember, JoinRequest, Protocols

_SHORT = Struct(">h")
_HEAD = Struct(">hi")  # version, number of topics
MOST_TOPICS = 10_000
"""In one subscription: as many as a broker holds partitions, and as a consumer group takes."""
_MOST_NAMES = 100_000  # of all members that differ: 25 ms for which all others wait
_BYTES_PER_PROTOCOL = 200  # kept around each name and metadata; without it many empty protocols would count for nothing


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""

    @classmethod
    def of(cls, member_id: str, request: JoinRequest) -> "Member":
        return cls(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            _rebalance_timeout(request.rebalance_timeout_ms, request.session_timeout_ms),
            distinct(request.protocols),
        )

    @classmethod
    def restored(cls, kept: ClassicMember, protocol: str) -> "Member":
        """As the log has it: only with the protocol that was chosen."""
        return cls(
            kept.member_id,
            kept.group_instance_id,
            kept.client_id,
            kept.client_host,
            kept.session_timeout,
            _rebalance_timeout(kept.rebalance_timeout, kept.session_timeout),
            ((protocol, kept.subscription),),
            kept.assignment,
        )

    def update(self, request: JoinRequest) -> None:
        self.protocols = distinct(request.protocols)
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = _rebalance_timeout(request.rebalance_timeout_ms, request.session_timeout_ms)

    @property
    def size_bytes(self) -> int:
        return size_of(self.protocols) + len(self.client_id) + len(self.client_host)

    def metadata(self, protocol: str | None) -> bytes | None:
        """What it said in a protocol; None if it does not know it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), None)

    def vote(self, candidates: Container[str]) -> str:
        return next(name for name, _ in self.protocols if name in candidates)

    def kept(self, protocol: str | None) -> ClassicMember:
        return ClassicMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol) or b"",
            self.assignment,
        )

    def described(self, protocol: str | None) -> DescribedMember:
        return DescribedMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.metadata(protocol) or b"",
            self.assignment,
        )

    def topics(self, protocol: str | None) -> frozenset[str] | None:
        """What a consumer is subscribed to; None if that is not known."""
        found = decode_topics(self.subscription(protocol))
        return None if found is None else frozenset(found[0])

    def subscription(self, protocol: str | None) -> bytes:
        """In the group's protocol, or its favourite one while there is none."""
        metadata = self.metadata(protocol)
        return self.protocols[0][1] if metadata is None else metadata


def distinct(protocols: Protocols) -> Protocols:
    """Each name once, where it is first: a second one would vote twice."""
    if len({name for name, _ in protocols}) == len(protocols):
        return protocols
    first: dict[str, bytes] = {}
    for name, metadata in protocols:
        first.setdefault(name, metadata)
    return tuple(first.items())


def size_of(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) + _BYTES_PER_PROTOCOL for name, metadata in protocols)


def decode_topics(metadata: bytes) -> tuple[list[str], int] | None:
    """The topics in a ConsumerProtocolSubscription and where they end; None if it is none, or of too many topics.

    Every version begins as version 0 did.
    """
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or count > MOST_TOPICS:
            return None
        position = _HEAD.size
        topics = []
        for _ in range(count):
            size = _SHORT.unpack_from(metadata, position)[0]
            name = metadata[position + 2 : position + 2 + size]
            if len(name) != size:
                return None
            topics.append(name.decode())
            position += 2 + size
    except (StructError, UnicodeDecodeError):
        return None
    return topics, position


def decode_all(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics in all subscriptions; None if they are not known, or it were too much to look at."""
    topics: set[str] = set()
    looked_at = 0
    same: bytes | None = None
    for metadata in subscriptions:
        if same is not None and metadata.startswith(same):
            continue  # most members of a group read the same, and differ in what they had before
        found = decode_topics(metadata)
        if found is None:
            return None
        names, end = found
        looked_at += len(names)
        if looked_at > _MOST_NAMES:
            return None
        topics.update(names)
        same = metadata[:end]
    return frozenset(topics)


def _rebalance_timeout(asked_ms: int, session_timeout_ms: int) -> int:
    return asked_ms if asked_ms >= 0 else session_timeout_ms
