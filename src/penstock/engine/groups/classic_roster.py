"""Who is in a classic group: its members, the ids given to members to come, who leads, and what they all understand."""

from collections import Counter

from penstock.engine.groups.classic_member import Member, size_of
from penstock.engine.groups.classic_requests import GroupLimits, JoinRequest
from penstock.errors import Code, PenstockError

_SHORTEST_REBALANCE_MS = 1_000  # a member may ask for 0, and nobody would be in time


class Roster:
    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self._group_id = group_id
        self._limits = limits
        self.protocol_type: str | None = None
        """Stays when the last member goes: it tells a group of consumers from offsets somebody keeps by hand."""
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        """Member ids of the static members."""
        self.pending: dict[str, None] = {}
        """Ids given to those who have yet to join with them."""
        self._supported: Counter[str] = Counter()
        """How many members know each protocol."""
        self.size_bytes = 0
        """Of what all members say of themselves."""

    def known(self, member_id: str, instance_id: str | None) -> Member:
        """Raises UNKNOWN_MEMBER, or FENCED_INSTANCE when another one has come under the same instance id."""
        if instance_id is not None:
            seated = self.instances.get(instance_id)
            if seated is None:
                raise self._unknown(f"instance {instance_id!r}")
            if seated != member_id:
                raise PenstockError(
                    Code.FENCED_INSTANCE,
                    f"group {self._group_id!r}: instance {instance_id!r} is member {seated!r} now, not {member_id!r}",
                )
        member = self.members.get(member_id)
        if member is None:
            raise self._unknown(f"member {member_id!r}")
        return member

    def _unknown(self, who: str) -> PenstockError:
        return PenstockError(Code.UNKNOWN_MEMBER, f"group {self._group_id!r} has no {who}; join it first")

    # --- changes

    def seat(self, member: Member) -> None:
        self.pending.pop(member.member_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._count(member, 1)

    def unseat(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self._count(member, -1)

    def replace(self, old: Member, new: Member) -> None:
        leads = self.leader == old.member_id
        self.unseat(old.member_id)
        self.seat(new)
        if leads:
            self.leader = new.member_id

    def update(self, member: Member, request: JoinRequest) -> None:
        self._count(member, -1)
        member.update(request)
        self._count(member, 1)

    def _count(self, member: Member, by: int) -> None:
        self.size_bytes += by * member.size_bytes
        for name, _ in member.protocols:
            self._supported[name] += by
            if not self._supported[name]:
                del self._supported[name]

    # --- protocols

    def common_protocols(self) -> list[str]:
        return [name for name, knowing in self._supported.items() if knowing == len(self.members)]

    def choose_protocol(self) -> str:
        """The one most members like best among those all know; of equals the one the earliest member voted for."""
        candidates = frozenset(self.common_protocols())
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of the members'; nothing to wait for without any."""
        longest = max((member.rebalance_timeout_ms for member in self.members.values()), default=None)
        return 0 if longest is None else max(longest, _SHORTEST_REBALANCE_MS)

    # --- who may come in

    def check(self, request: JoinRequest, room_bytes: int) -> None:
        """Raises when the limits, the room all groups share, or the protocols of those who are here forbid to join."""
        limits = self._limits
        if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
            raise self._refusal(
                Code.INVALID_SESSION_TIMEOUT,
                request,
                f"its session time-out of {request.session_timeout_ms} ms is not within "
                f"{limits.min_session_timeout_ms} and {limits.max_session_timeout_ms}",
            )
        names = [request.protocol_type, request.group_instance_id or "", *(name for name, _ in request.protocols)]
        longest = max(names, key=len)
        if len(longest) > limits.max_name_chars:
            raise self._refusal(
                Code.INVALID_REQUEST,
                request,
                f"the name {longest[:20]!r}... has {len(longest)} characters; {limits.max_name_chars} are allowed",
            )
        self._check_room(request, room_bytes)
        self._check_protocols(request)

    def _check_room(self, request: JoinRequest, room_bytes: int) -> None:
        limits, size = self._limits, size_of(request.protocols)
        if size > limits.max_member_bytes:
            problem = f"its protocols take {size} bytes; {limits.max_member_bytes} are allowed for one member"
            raise self._refusal(Code.LIMIT_EXCEEDED, request, problem)
        seat, instance = request.member_id, request.group_instance_id
        if not seat and instance is not None:
            seat = self.instances.get(instance, "")
        taken = len(self.members) + len(self.pending)
        if seat not in self.members and seat not in self.pending and taken >= limits.max_size:
            raise self._refusal(
                Code.GROUP_FULL, request, f"{taken} members are there or on their way; {limits.max_size} are allowed"
            )
        before = self.members[seat].size_bytes if seat in self.members else 0
        if self.size_bytes - before + size > limits.max_group_bytes:
            raise self._refusal(
                Code.GROUP_FULL, request, f"its members' protocols would take more than {limits.max_group_bytes} bytes"
            )
        if size - before > room_bytes:
            raise self._refusal(
                Code.GROUP_FULL, request, f"its protocols take {size} bytes; all groups have room for {room_bytes} more"
            )

    def _check_protocols(self, request: JoinRequest) -> None:
        """One that shares no protocol with all others could never be told anything."""
        names = [name for name, _ in request.protocols]
        if not request.protocol_type or not names:
            problem = "it names no protocol, or not of which type"
        elif not self.members:
            return
        elif request.protocol_type != self.protocol_type:
            problem = f"it speaks {request.protocol_type!r}, the group speaks {self.protocol_type!r}"
        elif not any(self._supported[name] == len(self.members) for name in names):
            problem = f"it knows {names[:10]}, but what all members know is {self.common_protocols()[:10]}"
        else:
            return
        raise self._refusal(Code.INCONSISTENT_PROTOCOL, request, problem)

    def _refusal(self, code: Code, request: JoinRequest, problem: str) -> PenstockError:
        who = f"member {request.member_id!r}" if request.member_id else f"client {request.client_id!r}"
        return PenstockError(code, f"{who} cannot join group {self._group_id!r}: {problem}")
