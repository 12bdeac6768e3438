"""One revision of all rules, as a policy: indexed by principal and host, then by the name or the prefix of a thing.

Of a thing it finds at once everything a subject may do to it, as bits, and keeps that. So a second decision is two
looks into dictionaries, and Kafka's authorized_operations cost nothing more. Nothing here changes once it is made but
what is kept, which goes with the revision.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from penstock.engine.access import LONGEST_KEPT, Kind, Operation, Resource, Subject
from penstock.security.methods import SuperUsers
from penstock.security.rules import (
    ANY_NAME,
    ANYBODY,
    BITS,
    EVERYTHING,
    IMPLYING,
    Effect,
    Pattern,
    Rule,
    allowed_bits,
    hosts_about,
    plain_host,
)

K = TypeVar("K")

KEPT_PER_SUBJECT: Final = 4096
KEPT_IN_ALL: Final = 1 << 18
SUBJECTS_KEPT: Final = 1 << 14
_NOBODY_ELSE: Final = SuperUsers()


class Explanation(NamedTuple):
    """A verdict, and what it comes from."""

    allowed: bool
    rule: Rule | None
    """The one that decides; None: a word of `why` says it all."""
    why: str


class Ruleset:
    """A policy of rules, for `Access.policy`.

    Args:
        revision: another one for other rules.
        members: the roles (`Role:name`) of a principal.
        scopes: by the id of an API key what it narrows its user to; None: to nothing. A key that is not here is gone,
            and nothing may be done by it.
    """

    is_open: Final = False

    def __init__(
        self,
        revision: int,
        rules: Iterable[Rule],
        *,
        members: Mapping[str, Sequence[str]] | None = None,
        scopes: Mapping[str, Sequence[Rule] | None] | None = None,
        supers: SuperUsers = _NOBODY_ELSE,
    ) -> None:
        self.revision = revision
        self.rules = tuple(dict.fromkeys(rules))
        self._members = members or {}
        self._scopes = scopes or {}
        self._supers = supers
        self._books = _bind(self.rules)
        self._scope_books = {key: None if scope is None else _bind(scope) for key, scope in self._scopes.items()}
        self._readers: dict[Subject, _Reader] = {}
        self._kept = 0

    def decide(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        try:
            return self._readers[subject].rights[resource] & BITS[operation] != 0
        except KeyError:
            return self.rights(subject, resource) & BITS[operation] != 0

    def rights(self, subject: Subject, resource: Resource) -> int:
        """All that the subject may do to a thing, as bits."""
        reader = self._reader(subject)
        found = reader.rights.get(resource)
        if found is None:
            found = reader.find(resource)
            if len(resource.name) <= LONGEST_KEPT:
                self._keep(reader, resource, found)
        return found

    def decide_any(self, subject: Subject, operation: Operation, kind: Kind) -> bool:
        reader = self._reader(subject)
        found = reader.some.get((operation, kind))
        if found is None:
            found = reader.some[operation, kind] = reader.find_any(operation, kind)
        return found

    def likeness(self, subject: Subject) -> Hashable:
        return self._reader(subject).likeness

    def explain(self, subject: Subject, operation: Operation, resource: Resource) -> Explanation:
        """The verdict of `decide`, and where it comes from. Reads every rule."""
        found = self._explain_user(subject, operation, resource)
        if not subject.key or not found.allowed:
            return found
        scope = self._scopes.get(subject.key, ())
        if scope is None:
            return found
        if subject.key not in self._scopes:
            return Explanation(False, None, "the API key is gone")
        narrowed = _explain(scope, hosts_about(subject.host), operation, resource)
        return found if narrowed.allowed else narrowed._replace(why=f"{narrowed.why}, of those of the API key")

    def _explain_user(self, subject: Subject, operation: Operation, resource: Resource) -> Explanation:
        if self._supers.has(subject):
            return Explanation(True, None, "a super user")
        principals = set(self._principals(subject))
        rules = [rule for rule in self.rules if rule.principal in principals]
        return _explain(rules, hosts_about(subject.host), operation, resource)

    def _principals(self, subject: Subject) -> list[str]:
        return [subject.principal, ANYBODY, *self._members.get(subject.principal, ())]

    def _reader(self, subject: Subject) -> "_Reader":
        reader = self._readers.get(subject)
        if reader is None:
            if len(self._readers) >= SUBJECTS_KEPT:
                self._forget()
            hosts = hosts_about(subject.host)
            books = None
            if not self._supers.has(subject):
                books = _chosen(self._books, self._principals(subject), hosts)
            scope: Sequence[_Book] | None = None
            if subject.key:
                bound = self._scope_books.get(subject.key, {})
                scope = None if bound is None else [book for (_, host), book in bound.items() if host in hosts]
            reader = self._readers[subject] = _Reader(books, scope)
        return reader

    def _keep(self, reader: "_Reader", resource: Resource, found: int) -> None:
        if len(reader.rights) >= KEPT_PER_SUBJECT:
            self._kept -= len(reader.rights)
            reader.rights.clear()
        if self._kept >= KEPT_IN_ALL:
            self._forget()
        else:
            reader.rights[resource] = found
            self._kept += 1

    def _forget(self) -> None:
        self._readers.clear()
        self._kept = 0


class _Book:
    """The rules of one principal from one host: what they allow and deny, as bits."""

    __slots__ = ("literals", "prefixes")

    def __init__(self) -> None:
        self.literals: dict[tuple[Kind, str], tuple[int, int]] = {}
        self.prefixes: dict[Kind, dict[int, dict[str, tuple[int, int]]]] = {}
        """By their lengths, so that a name is looked for once per length and not once per prefix."""

    def add(self, rule: Rule) -> None:
        bit = BITS[rule.operation]
        if rule.pattern is Pattern.LITERAL:
            _mark(self.literals, (rule.kind, rule.name), rule.effect, bit)
        else:
            lengths = self.prefixes.setdefault(rule.kind, {})
            _mark(lengths.setdefault(len(rule.name), {}), rule.name, rule.effect, bit)

    def find(self, kind: Kind, name: str) -> tuple[int, int]:
        """What is allowed and what is denied to a thing."""
        allowed, denied = self.literals.get((kind, name), (0, 0))
        more = self.literals.get((kind, ANY_NAME))
        if more is not None:
            allowed |= more[0]
            denied |= more[1]
        for length, prefixes in self.prefixes.get(kind, {}).items():
            more = prefixes.get(name[:length])
            if more is not None:
                allowed |= more[0]
                denied |= more[1]
        return allowed, denied


class _Names(NamedTuple):
    """Names that rules are about: one, or all that begin with it."""

    text: str
    is_prefix: bool

    def and_also(self, other: "_Names") -> "_Names | None":
        """The names that are of both."""
        longer, shorter = (self, other) if len(self.text) >= len(other.text) else (other, self)
        if self.text == other.text:
            return self if not self.is_prefix else other
        return longer if shorter.is_prefix and longer.text.startswith(shorter.text) else None


class _Spread:
    """What rules allow and deny for one operation on one kind, whatever the name."""

    def __init__(self, books: Sequence[_Book], operation: Operation, kind: Kind) -> None:
        self.allowed: dict[_Names, None] = {}
        self._denied: set[_Names] = set()
        denying = BITS[operation] | BITS[Operation.ALL]
        allowing = denying | sum(BITS[by] for by in IMPLYING.get(operation, ()))
        for book in books:
            for (found, name), (allow, deny) in book.literals.items():
                if found is kind:
                    names = _Names("", True) if name == ANY_NAME else _Names(name, False)
                    self._note(names, allow & allowing, deny & denying)
            for prefixes in book.prefixes.get(kind, {}).values():
                for name, (allow, deny) in prefixes.items():
                    self._note(_Names(name, True), allow & allowing, deny & denying)

    def _note(self, names: _Names, allow: int, deny: int) -> None:
        if allow:
            self.allowed[names] = None
        if deny:
            self._denied.add(names)

    def spares(self, names: _Names) -> bool:
        """Whether some of these names are denied by nothing: no denial is of the same names, or of a prefix of them.

        A denial of all of them one by one is not found; Kafka does not look for that either.
        """
        if names in self._denied:
            return False
        return not any(_Names(names.text[:length], True) in self._denied for length in range(len(names.text) + 1))


class _Reader:
    """What one subject may do.

    Args:
        books: with the rules about it; None: it may do everything.
        scope: what its API key narrows that to; None: to nothing.
    """

    __slots__ = ("_books", "_scope", "likeness", "rights", "some")

    def __init__(self, books: Sequence[_Book] | None, scope: Sequence[_Book] | None) -> None:
        self._books = books
        self._scope = scope
        self.likeness: Hashable = _identity(books), _identity(scope)
        """Equal for two about whom the same rules are."""
        self.rights: dict[Resource, int] = {}
        self.some: dict[tuple[Operation, Kind], bool] = {}

    def find(self, resource: Resource) -> int:
        found = EVERYTHING if self._books is None else _find(self._books, resource)
        return found if self._scope is None else found & _find(self._scope, resource)

    def find_any(self, operation: Operation, kind: Kind) -> bool:
        """Kafka's `authorizeByResourceType` (KIP-679)."""
        spreads = [_Spread(books, operation, kind) for books in (self._books, self._scope) if books is not None]
        met = [_Names("", True)]
        for spread in spreads:
            both = (names.and_also(allowed) for names in met for allowed in spread.allowed)
            met = list(dict.fromkeys(names for names in both if names is not None))
        return any(all(spread.spares(names) for spread in spreads) for names in met)


def _bind(rules: Iterable[Rule]) -> dict[tuple[str, str], _Book]:
    books: dict[tuple[str, str], _Book] = {}
    hosts: dict[str, str] = {}
    for rule in rules:
        host = hosts.get(rule.host)
        if host is None:
            host = hosts[rule.host] = plain_host(rule.host)
        book = books.get((rule.principal, host))
        if book is None:
            book = books[rule.principal, host] = _Book()
        book.add(rule)
    return books


def _chosen(books: Mapping[tuple[str, str], _Book], principals: Iterable[str], hosts: Sequence[str]) -> Sequence[_Book]:
    found = (books.get((principal, host)) for principal in principals for host in hosts)
    return [book for book in found if book is not None]


def _identity(books: Sequence[_Book] | None) -> tuple[int, ...] | None:
    return None if books is None else tuple(map(id, books))


def _mark(cells: dict[K, tuple[int, int]], key: K, effect: Effect, bit: int) -> None:
    allowed, denied = cells.get(key, (0, 0))
    cells[key] = (allowed | bit, denied) if effect is Effect.ALLOW else (allowed, denied | bit)


def _find(books: Sequence[_Book], resource: Resource) -> int:
    allowed = denied = 0
    kind, name = resource
    for book in books:
        more, less = book.find(kind, name)
        allowed |= more
        denied |= less
    return allowed_bits(allowed, denied)


def _explain(rules: Iterable[Rule], hosts: Sequence[str], operation: Operation, resource: Resource) -> Explanation:
    denying = (operation, Operation.ALL)
    allowing = (*denying, *IMPLYING.get(operation, ()))
    about = [rule for rule in rules if plain_host(rule.host) in hosts and rule.covers(*resource)]
    for rule in about:
        if rule.effect is Effect.DENY and rule.operation in denying:
            return Explanation(False, rule, "denied by a rule")
    for rule in about:
        if rule.effect is Effect.ALLOW and rule.operation in allowing:
            return Explanation(True, rule, "allowed by a rule")
    return Explanation(False, None, "allowed by no rule")
