"""What the flags of `penstock acl` mean: the rules that `add` makes, and which ones `list` and `remove` are about.

Flags of one sort are alternatives: two users, two topics and two operations are eight rules.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, TypeVar

import click

from penstock.cli.failure import USAGE, CommandError
from penstock.engine.access import THE_CLUSTER, Kind, Operation, Resource
from penstock.errors import PenstockError
from penstock.security.rules import ANY_HOST, BITS, SUPPORTED, Effect, Pattern, Rule, check_rule

F = TypeVar("F", bound=Callable[..., Any])
_BY_WORD: Final = {each.replace("_", "-"): each for each in Operation}


class Operations(click.ParamType[tuple[Operation, ...]]):
    """`read,write`, as Kafka calls them; `-` or `_` between words, in any case."""

    name = "operations"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Operation, ...]:
        if isinstance(value, tuple):
            return value
        found = []
        for word in str(value).split(","):
            operation = _BY_WORD.get(word.strip().lower().replace("_", "-"))
            if operation is None:
                self.fail(f"{word.strip()!r} is no operation; there are {', '.join(_BY_WORD)}.", param, ctx)
            found.append(operation)
        return tuple(found)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + word) for word in _BY_WORD if word.startswith(last)]


@dataclass(frozen=True, slots=True)
class Words:
    """What was said; what was not is empty."""

    principals: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    allowed: tuple[Operation, ...] = ()
    denied: tuple[Operation, ...] = ()
    resources: tuple[Resource, ...] = ()
    is_prefix: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.principals or self.hosts or self.allowed or self.denied or self.resources or self.is_prefix)

    @property
    def effects(self) -> list[tuple[Effect, Operation]]:
        return [(Effect.ALLOW, each) for each in self.allowed] + [(Effect.DENY, each) for each in self.denied]

    def rules(self) -> list[Rule]:
        """What `add` makes. Raises `CommandError` naming the flag that is missing, or does not fit."""
        for given, what in (
            (self.principals, "whom: --user or --principal"),
            (self.effects, "what: --allow or --deny with operations such as read,write"),
            (self.resources, "on what: --topic, --group, --transactional-id or --cluster"),
        ):
            if not given:
                raise CommandError(f"say {what}", code=USAGE)
        made = []
        for principal, host, (effect, operation), resource in product(
            self.principals, self.hosts or (ANY_HOST,), self.effects, self.resources
        ):
            check_operation(operation, resource.kind)
            rule = Rule(principal, host, operation, resource.kind, self._pattern(resource), resource.name, effect)
            try:
                check_rule(rule)
            except PenstockError as error:
                raise CommandError(str(error), code=USAGE) from None
            made.append(rule)
        return list(dict.fromkeys(made))

    def choose(self, rules: Iterable[Rule], *, covering: bool = False) -> list[Rule]:
        """Those of the rules that the words are about.

        Args:
            covering: rules that decide about a thing of the name, also those of prefixes and of `*`.
        """
        return [rule for rule in rules if self._means(rule, covering=covering)]

    def _means(self, rule: Rule, *, covering: bool) -> bool:
        if self.principals and rule.principal not in self.principals:
            return False
        if self.hosts and rule.host not in self.hosts:
            return False
        if self.effects and (rule.effect, rule.operation) not in self.effects:
            return False
        if self.is_prefix and rule.pattern is not Pattern.PREFIXED:
            return False
        if covering:
            return not self.resources or any(rule.covers(*resource) for resource in self.resources)
        return not self.resources or (rule.kind, rule.name) in self.resources

    def _pattern(self, resource: Resource) -> Pattern:
        return Pattern.PREFIXED if self.is_prefix and resource.kind is not Kind.CLUSTER else Pattern.LITERAL


def check_operation(operation: Operation, kind: Kind) -> None:
    """Raises `CommandError` for what cannot be done to a thing of the kind."""
    if operation is Operation.ALL or SUPPORTED[kind] & BITS[operation]:
        return
    fitting = [word for word, each in _BY_WORD.items() if each is Operation.ALL or SUPPORTED[kind] & BITS[each]]
    word = operation.replace("_", "-")
    raise CommandError(f"{word} is nothing that can be done to a {kind}; there are {', '.join(fitting)}", code=USAGE)


def who_options(command: F) -> F:
    """--user and --principal; the command gets `users` and `principals`."""
    for option in (
        click.option("--principal", "principals", metavar="TYPE:NAME", multiple=True, help="Whom, as Kafka writes it."),
        click.option("--user", "users", metavar="NAME", multiple=True, help="Whom: a user; '*' is everybody."),
    ):
        command = option(command)
    return command


def resource_options(command: F) -> F:
    """--topic, --group, --transactional-id and --cluster; the command gets `topics`, `groups`, `ids`, `cluster`."""
    for option in (
        click.option("--cluster", is_flag=True, help="On the cluster."),
        click.option("--transactional-id", "ids", metavar="NAME", multiple=True, help="On a transactional id."),
        click.option("--group", "groups", metavar="NAME", multiple=True, help="On a consumer group."),
        click.option("--topic", "topics", metavar="NAME", multiple=True, help="On a topic; '*' is all of them."),
    ):
        command = option(command)
    return command


def rule_options(command: F) -> F:
    """All flags that say what is in a rule; the command gets them as one `words: Words`."""
    import functools

    @who_options
    @right_options
    @functools.wraps(command)
    def with_words(*args: Any, users: Sequence[str], principals: Sequence[str], words: Words, **kwargs: Any) -> Any:
        return command(*args, words=replace(words, principals=read_principals(users, principals)), **kwargs)

    return with_words  # type: ignore[return-value]  # the wrapper takes what click hands it


def right_options(command: F) -> F:
    """The same without whom it is about."""
    import functools

    @click.option("--allow", metavar="OPERATION,...", type=Operations(), multiple=True, help="What is allowed.")
    @click.option("--deny", metavar="OPERATION,...", type=Operations(), multiple=True, help="What is denied.")
    @resource_options
    @click.option("--prefix", "is_prefix", is_flag=True, help="Names are prefixes: of all that begin with them.")
    @click.option("--host", "hosts", metavar="ADDRESS", multiple=True, help="From this address  [default: any]")
    @functools.wraps(command)
    def with_words(
        *args: Any,
        allow: Sequence[tuple[Operation, ...]],
        deny: Sequence[tuple[Operation, ...]],
        is_prefix: bool,
        hosts: Sequence[str],
        topics: Sequence[str],
        groups: Sequence[str],
        ids: Sequence[str],
        cluster: bool,
        **kwargs: Any,
    ) -> Any:
        words = Words(
            (),
            tuple(hosts),
            tuple(operation for each in allow for operation in each),
            tuple(operation for each in deny for operation in each),
            read_resources(topics, groups, ids, cluster),
            is_prefix,
        )
        return command(*args, words=words, **kwargs)

    return with_words  # type: ignore[return-value]  # the wrapper takes what click hands it


def read_principals(users: Sequence[str], principals: Sequence[str]) -> tuple[str, ...]:
    """Raises `CommandError`."""
    for name in users:
        if name.startswith("User:") or not name:
            raise CommandError(f"--user {name!r}: a user's bare name; --principal takes User:NAME", code=USAGE)
    for principal in principals:
        kind, _, name = principal.partition(":")
        if not (kind and name):
            raise CommandError(f"--principal {principal!r} is not of the form User:NAME", code=USAGE)
    return (*(f"User:{name}" for name in users), *principals)


def read_resources(
    topics: Sequence[str], groups: Sequence[str], ids: Sequence[str], cluster: bool
) -> tuple[Resource, ...]:
    named = ((Kind.TOPIC, topics), (Kind.GROUP, groups), (Kind.TRANSACTIONAL_ID, ids))
    found = [Resource(kind, name) for kind, names in named for name in names]
    return (*found, *([THE_CLUSTER] if cluster else []))
