"""Which topics a regular expression of a subscription stands for.

A name matches once and for all: when topics come and go only the new names are looked at. One `TopicPatterns` serves
all groups of a shard. Who subscribes gets those of them that it may be told of (`Sight`).
"""

from collections.abc import Hashable, Sequence
from typing import Protocol

from penstock.engine.coordination.expressions import Expression

_MOST_PATTERNS = 1024  # kept compiled; one more and the one unused for longest is made again when it is needed
_MOST_LIKENESSES = 16  # whose names are kept of one pattern


class Sight(Protocol):
    """Which topics somebody may be told of, by the rules that are in force whenever it is asked."""

    @property
    def revision(self) -> int:
        """Of the rules."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether everybody may be told of everything."""
        ...

    @property
    def likeness(self) -> Hashable:
        """Equal for two that may be told of the same topics; another one for other rules."""
        ...

    def may_see(self, name: str) -> bool: ...


class SeesAll:
    """Where there are no rules."""

    revision = 0
    is_open = True
    likeness = None

    def may_see(self, name: str) -> bool:
        return True


SEES_ALL: Sight = SeesAll()


class TopicNames(Protocol):
    @property
    def revision(self) -> int:
        """Another number whenever anything about topics has changed."""
        ...

    def names(self) -> Sequence[str]:
        """Sorted, without internal topics."""
        ...


class _Pattern:
    __slots__ = ("_known", "_shown", "expression", "matched")

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self._known: frozenset[str] = frozenset()
        self.matched: tuple[str, ...] = ()
        self._shown: dict[Hashable, tuple[str, ...]] = {}

    def renew(self, names: frozenset[str]) -> None:
        if names is self._known:
            return
        new = self.expression.matches(names - self._known)
        gone = self._known - names
        if new or gone:
            self.matched = tuple(sorted([name for name in self.matched if name not in gone] + new))
            self._shown.clear()
        self._known = names

    def shown_to(self, sight: Sight) -> tuple[str, ...]:
        if sight.is_open:
            return self.matched
        likeness = sight.likeness
        shown = self._shown.get(likeness)
        if shown is None:
            shown = tuple([name for name in self.matched if sight.may_see(name)])
            if len(shown) == len(self.matched):
                shown = self.matched
            if len(self._shown) >= _MOST_LIKENESSES:
                self._shown.clear()
            self._shown[likeness] = shown
        return shown


class TopicPatterns:
    def __init__(self) -> None:
        self._patterns: dict[str, _Pattern] = {}
        self._revision: int | None = None
        self._names: frozenset[str] = frozenset()
        self._size_bytes = 0

    def check(self, pattern: str, topics: TopicNames) -> None:
        """Whether a pattern may be subscribed to; later, with more topics, one that may now is not refused any more.

        Raises:
            PenstockError: INVALID_REGEX, with RE2's own words, or because it is too much work with so many topics.
        """
        self._learn(topics)
        self._get(pattern).expression.check_work(len(self._names), self._size_bytes)

    def match(self, pattern: str, topics: TopicNames, sight: Sight = SEES_ALL) -> tuple[str, ...]:
        """The names, sorted, that the whole of the pattern matches and that may be told of.

        They are the same object as before if they are the same.

        Raises:
            PenstockError: INVALID_REGEX.
        """
        self._learn(topics)
        found = self._get(pattern)
        found.renew(self._names)
        return found.shown_to(sight)

    def _learn(self, topics: TopicNames) -> None:
        if topics.revision != self._revision:
            self._names = frozenset(topics.names())
            self._size_bytes = sum(map(len, self._names))
            self._revision = topics.revision

    def _get(self, pattern: str) -> _Pattern:
        found = self._patterns.pop(pattern, None)
        if found is None:
            found = _Pattern(Expression(pattern, ascii_only=True))  # as topics' names are
            if len(self._patterns) >= _MOST_PATTERNS:
                self._patterns.pop(next(iter(self._patterns)))
        self._patterns[pattern] = found
        return found
