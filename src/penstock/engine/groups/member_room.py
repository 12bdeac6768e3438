"""How much all members of all groups may make a broker keep.

A group has a limit of its own, but names of groups are made up by clients. Memory is the broker's, not a shard's, so
the shards share one limit: a group is refused because of others only when the broker as a whole has too much.
"""

MAX_MEMBER_BYTES = 64 << 20
"""What members say of themselves and are assigned: a thousand of them with a thousand topics each. It takes about three
times as much memory, with the records and answers made of it."""


class MemberRoom:
    def __init__(self, limit_bytes: int = MAX_MEMBER_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._shares: list[Share] = []

    def share(self) -> "Share":
        """The part of one shard."""
        share = Share(self)
        self._shares.append(share)
        return share

    @property
    def left_bytes(self) -> int:
        taken = sum(share.taken_bytes for share in self._shares)
        return max(0, self.limit_bytes - taken)  # more may have been found in the logs


class Share:
    """What one shard has of the room, group by group."""

    __slots__ = ("_groups", "_room", "taken_bytes")

    def __init__(self, room: MemberRoom) -> None:
        self._room = room
        self._groups: dict[str, int] = {}
        self.taken_bytes = 0

    @property
    def left_bytes(self) -> int:
        return self._room.left_bytes

    def of(self, group_id: str) -> int:
        return self._groups.get(group_id, 0)

    def put(self, group_id: str, size_bytes: int) -> None:
        """A group has so much now."""
        before = self._groups.get(group_id, 0)
        if size_bytes == before:
            return
        self.taken_bytes += size_bytes - before
        if size_bytes:
            self._groups[group_id] = size_bytes
        else:
            del self._groups[group_id]

    def clear(self) -> None:
        """The shard begins anew."""
        self._groups.clear()
        self.taken_bytes = 0
