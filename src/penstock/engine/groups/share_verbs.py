"""What share groups alone are asked, as part of the machine of their shard (`machine.py`): each verb is a step."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from uuid import UUID

from penstock.engine.coordination.outcome import Outcome, Reply, Token
from penstock.engine.groups.classic import ClassicGroup
from penstock.engine.groups.known_topics import TopicInfo, TopicView
from penstock.engine.groups.member_room import Share
from penstock.engine.groups.retention import Group
from penstock.engine.groups.share import ShareGroup
from penstock.engine.groups.share_requests import LostMember, ShareHeartbeat
from penstock.errors import Code, PenstockError


class ShareVerbs(ABC):
    """Attributes are those of the machine."""

    _groups: dict[str, Group]
    _topics: TopicView
    _room: Share

    def __init__(self) -> None:
        self._lost: list[LostMember] = []
        self._forgetting: dict[str, object] = {}
        """Share groups of which others are being told that they are deleted, and who tells them."""

    @abstractmethod
    def delete(self, now: int, token: Token, group_id: str) -> Outcome: ...

    @abstractmethod
    def _find(self, group_id: str) -> Group | None: ...

    @abstractmethod
    def _known(self, group_id: str) -> Group: ...

    @abstractmethod
    def _check_room(self, group_id: str) -> None: ...

    @abstractmethod
    def _blank_share(self, group_id: str) -> ShareGroup: ...

    @abstractmethod
    def _settle(self, group: Group, now: int) -> None: ...

    def share_heartbeat(self, now: int, token: Token, request: ShareHeartbeat) -> Outcome:
        group = self._find(request.group_id)
        if group is None:
            if request.member_epoch != 0:
                raise unknown_group(request.group_id)
            self._check_room(request.group_id)
            group = self._blank_share(request.group_id)
        elif not isinstance(group, ShareGroup):
            raise _no_share_group(group)
        result, entries = group.heartbeat(now, request, self._topics, self._room.left_bytes)
        self._groups[request.group_id] = group
        self._settle(group, now)
        return Outcome(entries, (Reply(token, result),))

    def describe_share(self, now: int, token: Token, group_id: str) -> Outcome:
        return answered(token, self._share(group_id).describe(self._topics))

    def share_start(self, now: int, token: Token, group_id: str, topic_id: UUID, partition: int) -> Outcome:
        """Answered with a ShareStart, or None for a partition that the group was never given."""
        return answered(token, self._share(group_id).start_of(topic_id, partition))

    def share_topics(self, now: int, token: Token, group_id: str) -> Outcome:
        """Answered with a tuple of BegunTopic: what there is to forget when the group is deleted."""
        return answered(token, self._share(group_id).begun_topics())

    def restart_share(
        self, now: int, token: Token, group_id: str, starts: Mapping[TopicInfo, Mapping[int, int]]
    ) -> Outcome:
        """Have partitions begin anew in a share group without members, which is made if there is none.

        Answered with the group's epoch then.
        """
        group = self._find(group_id)
        if group is None:
            if not starts:
                return answered(token, 0)
            self._check_room(group_id)
            group = self._blank_share(group_id)
        elif not isinstance(group, ShareGroup):
            raise _no_share_group(group)
        epoch, entries = group.restart(starts, self._room.left_bytes)
        self._groups[group_id] = group
        self._settle(group, now)
        return Outcome(entries, (Reply(token, epoch),))

    def forget_share_topics(self, now: int, token: Token, group_id: str, topic_ids: Iterable[UUID]) -> Outcome:
        """Have it be as if topics had never been given to a share group. Answered with the group's epoch then."""
        group = self._share(group_id)
        epoch, entries = group.forget(topic_ids)
        self._settle(group, now)
        return Outcome(entries, (Reply(token, epoch),))

    def begin_forgetting(self, now: int, token: Token, group_id: str, owner: object) -> Outcome:
        """A share group is about to be deleted: it is nobody's until `end_forgetting`, or until this machine ends.

        Answered with its epoch and the topics it was given, or None for a group of another kind.

        Args:
            owner: who deletes it, and nobody else ends that.
        """
        group = self._known(group_id)
        if not isinstance(group, ShareGroup):
            return answered(token, None)
        group.check_deletable()
        self._forgetting[group_id] = owner
        return answered(token, (group.epoch, group.begun_topics()))

    def end_forgetting(self, group_id: str, owner: object) -> Outcome:
        if self._forgetting.get(group_id) is owner:
            del self._forgetting[group_id]
        return Outcome()

    def delete_forgotten(self, now: int, token: Token, group_id: str, owner: object) -> Outcome:
        """Nobody remembers anything of it any more."""
        self.end_forgetting(group_id, owner)
        return self.delete(now, token, group_id)

    def take_lost(self) -> list[LostMember]:
        """Members of share groups given up since this was called last: what they have leased is to be ended."""
        if not self._lost:
            return []
        lost, self._lost = self._lost, []
        return lost

    def _share(self, group_id: str) -> ShareGroup:
        group = self._known(group_id)
        if not isinstance(group, ShareGroup):
            raise _no_share_group(group)
        return group


def _no_share_group(group: Group) -> PenstockError:
    kind = "classic" if isinstance(group, ClassicGroup) else "consumer"
    return PenstockError(
        Code.GROUP_NOT_FOUND,
        f"group {group.group_id!r} is a {kind} group, not a share group",
        help="use another group id",
    )


def unknown_group(group_id: str) -> PenstockError:
    return PenstockError(Code.GROUP_NOT_FOUND, f"group {group_id!r} not found")


def answered(token: Token, result: object) -> Outcome:
    return Outcome(replies=(Reply(token, result),))
