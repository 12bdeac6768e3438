"""What a regular expression of a subscription stands for to each member: the matching topics that it may be told of.

Two members of a group can have the same expression and get different topics. What is recorded of it is what any of them
may see. What each may see is not: the rules are asked, for who has sent the member's last heartbeat, whenever topics,
rules or subscriptions change.

A group that was made from its records has heard of nobody yet. Such a member gets nothing new until its next heartbeat,
and keeps what it was to have; where everybody may see everything it gets what was recorded. When all have been heard
of, the group looks once whether it would divide what there is otherwise: some may see more than when that was done.
"""

from collections.abc import Mapping

from penstock.engine.coordination.schemas import ConsumerMemberValue, RegexValue
from penstock.engine.groups.name_lists import Names
from penstock.engine.groups.topic_patterns import Sight, TopicNames, TopicPatterns

Members = Mapping[str, ConsumerMemberValue]
Recorded = Mapping[str, RegexValue]


class Sights:
    """Of the members of one group that have a regular expression.

    Args:
        patterns: shared by all groups of a shard, so that they do not each match every topic.
    """

    __slots__ = ("_due", "_is_open", "_is_whole", "_looked_at", "_of", "_patterns", "_rules", "_shown", "_unheard")

    def __init__(self, patterns: TopicPatterns) -> None:
        self._patterns = patterns
        self._of: dict[str, Sight] = {}
        """Those that have been heard of."""
        self._shown: dict[str, Names] = {}
        """What each has been reckoned with, also one that has not been heard of."""
        self._unheard: set[str] = set()
        """All others."""
        self._is_whole = False
        self._due: set[str] = set()
        self._rules: int | None = None
        self._looked_at: tuple[int, int | None] | None = None
        """Topics and rules."""
        self._is_open = False

    def replay(self, member_id: str, regex: str | None) -> None:
        """A member is in the records."""
        if regex is None:
            self.forget(member_id)
        else:
            self._unheard.add(member_id)

    def hear(self, member_id: str, regex: str | None, sight: Sight) -> bool:
        """A heartbeat has come. Returns whether it is to be looked anew at what may be seen."""
        self._is_open = sight.is_open
        if self._unheard:
            self._unheard.discard(member_id)
            self._is_whole = not self._unheard
        if regex is None:
            if self._shown:
                self.forget(member_id)
        elif self._of.get(member_id) != sight:
            self._of[member_id] = sight
            self._due.add(member_id)
        has_new_rules = bool(self._of) and sight.revision != self._rules
        if has_new_rules:
            self._rules = sight.revision
        return has_new_rules or bool(self._due)

    def move(self, departed: str, member_id: str) -> None:
        """A member is known by another id; it has not been heard of by that one."""
        shown = self._shown.get(departed)
        if departed in self._unheard:
            self._unheard.add(member_id)
        self.forget(departed)
        if shown is not None:
            self._shown[member_id] = shown

    def forget(self, member_id: str) -> None:
        self._unheard.discard(member_id)
        self._of.pop(member_id, None)
        self._shown.pop(member_id, None)
        self._due.discard(member_id)

    def look(self, members: Members, topics: TopicNames, recorded: Recorded) -> bool:
        """Ask the rules where that may matter. Returns whether a member sees other topics than it was reckoned with."""
        looks_at = topics.revision, self._rules
        asked = list(self._due) if looks_at == self._looked_at else list(self._of)
        self._looked_at = looks_at
        self._due.clear()
        is_otherwise = False
        for member_id in asked:
            regex = members[member_id].subscribed_topic_regex
            assert regex is not None
            before = self._shown.get(member_id)
            if before is None:
                before = _recorded(recorded, regex)
            shown = self._shown[member_id] = self._patterns.match(regex, topics, self._of[member_id])
            is_otherwise = is_otherwise or (shown is not before and shown != before)
        return is_otherwise

    def take_whole(self) -> bool:
        """Whether now, for the first time, all have been heard of; nobody knows what each was reckoned with before."""
        is_whole, self._is_whole = self._is_whole, False
        return is_whole and not self._is_open

    def resolve(self, members: Members, recorded: Recorded) -> dict[str, Names]:
        """What each regular expression stands for in the group."""
        found: dict[str, dict[int, Names]] = {}
        for member_id, member in members.items():
            regex = member.subscribed_topic_regex
            if regex is not None:
                is_known = member_id in self._of
                shown = self._shown[member_id] if is_known else _recorded(recorded, regex)
                found.setdefault(regex, {})[id(shown)] = shown
        return {regex: _merge(list(parts.values())) for regex, parts in found.items()}

    def shown(self, member_id: str, regex: str, recorded: Recorded) -> Names | None:
        """What a regular expression stands for to a member; None if it has not been heard of, so that nobody knows."""
        if member_id in self._of:
            return self._shown[member_id]
        return _recorded(recorded, regex) if self._is_open else None

    def reckon(self, member_id: str, names: Names) -> None:
        """Take it, until the member is heard of, that it may see these."""
        self._shown[member_id] = names


def _recorded(recorded: Recorded, regex: str) -> Names:
    found = recorded.get(regex)
    return () if found is None else found.topics


def _merge(parts: list[Names]) -> Names:
    return parts[0] if len(parts) == 1 else tuple(sorted(set().union(*parts)))
