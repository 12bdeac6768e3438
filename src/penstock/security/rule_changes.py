"""Rules and roles: made and removed. Who asks is not asked here (see `user_changes`)."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from penstock.errors import Code, PenstockError
from penstock.security import paths
from penstock.security.changes import MAX_KEYS, Change, Changes, Plan
from penstock.security.directory import Directory, encode_role, encode_rule
from penstock.security.loader import Loader
from penstock.security.roles import check_made_role
from penstock.security.rules import Effect, Filter, Rule, check_rule

MAX_RULES = 100_000
MAX_RULES_OF_A_ROLE = 1000


class Setting(StrEnum):
    """What becomes of a role that has rules already."""

    NEW = "new"
    ADD = "add"
    REPLACE = "replace"


class RuleChanges:
    """What is too much for one transaction is made by several: so that nothing is open in between that was not before
    nor will be after, denials come first and go last."""

    def __init__(self, changes: Changes, loader: Loader) -> None:
        self._changes = changes
        self._loader = loader

    async def create(self, rules: Iterable[Rule]) -> None:
        """A rule that is there already is left as it is. Raises PenstockError INVALID_REQUEST, LIMIT_EXCEEDED."""
        wanted = list(dict.fromkeys(rules))
        for rule in wanted:
            check_rule(rule)
        wanted.sort(key=lambda rule: rule.effect is not Effect.DENY)
        await self._changes.make_all(map(_creation, _chunks(wanted)))

    async def delete(self, filters: Sequence[Filter]) -> list[list[Rule]]:
        """What each filter has removed, as it was found at first."""
        found: list[list[Rule]] = []

        def look(directory: Directory) -> Change:
            found[:] = [[rule for rule in directory.rules.values() if each.matches(rule)] for each in filters]
            gone = sorted({rule for rules in found for rule in rules}, key=lambda rule: rule.effect is Effect.DENY)
            return _deletion(gone[:MAX_KEYS])(directory)

        await self._changes.make(look)
        gone = sorted({rule for rules in found for rule in rules}, key=lambda rule: rule.effect is Effect.DENY)
        await self._changes.make_all(map(_deletion, _chunks(gone[MAX_KEYS:])))
        return found

    def find(self, wanted: Filter) -> list[Rule]:
        """Rules in force that a filter means; not those of roles, which Kafka has not."""
        directory = self._loader.directory
        return [rule for rule in directory.rules.values() if wanted.matches(rule)] if directory is not None else []

    async def set_role(self, name: str, rules: Iterable[Rule], how: Setting = Setting.REPLACE) -> None:
        """A role of that name has these rules, about `Role:{name}`.

        Raises PenstockError INVALID_REQUEST, LIMIT_EXCEEDED, EXISTS for a new one, NOT_FOUND for one to add to.
        """
        said = list(dict.fromkeys(rules))
        check_made_role(name, said)
        for rule in said:
            check_rule(rule)

        def plan(directory: Directory) -> Change:
            there = directory.roles.get(name)
            if how is Setting.NEW and there is not None:
                raise PenstockError(Code.EXISTS, f"role {name!r} exists already")
            if how is Setting.ADD and there is None:
                raise PenstockError(Code.NOT_FOUND, f"there is no role {name!r} that was made")
            kept = list(dict.fromkeys([*(there or ()), *said])) if how is Setting.ADD else said
            if len(kept) > MAX_RULES_OF_A_ROLE:
                raise PenstockError(Code.LIMIT_EXCEEDED, f"{len(kept)} rules; a role may have {MAX_RULES_OF_A_ROLE}")
            return Change({paths.role_path(name): encode_role(name, kept)})

        await self._changes.make(plan)

    async def delete_role(self, name: str) -> None:
        """Raises PenstockError NOT_FOUND; NOT_ALLOWED while a user has it."""

        def plan(directory: Directory) -> Change:
            if name not in directory.roles:
                raise PenstockError(Code.NOT_FOUND, f"there is no role {name!r} that was made")
            having = sorted(user.name for user in directory.users.values() if name in user.roles)
            if having:
                raise PenstockError(
                    Code.NOT_ALLOWED,
                    f"role {name!r} is that of user {having[0]!r}",
                    help="take it from its users first",
                )
            return Change(delete=[paths.role_path(name)])

        await self._changes.make(plan)


def _creation(rules: Sequence[Rule]) -> Plan:
    def plan(directory: Directory) -> Change:
        new = [rule for rule in rules if rule.id not in directory.rules]
        if len(directory.rules) + len(new) > MAX_RULES:
            raise PenstockError(Code.LIMIT_EXCEEDED, f"there would be more than {MAX_RULES} rules")
        return Change({paths.rule_path(rule.id): encode_rule(rule) for rule in new})

    return plan


def _deletion(rules: Sequence[Rule]) -> Plan:
    def plan(directory: Directory) -> Change:
        return Change(delete=[paths.rule_path(rule.id) for rule in rules if rule.id in directory.rules])

    return plan


def _chunks(rules: Sequence[Rule]) -> list[Sequence[Rule]]:
    return [rules[at : at + MAX_KEYS] for at in range(0, len(rules), MAX_KEYS)]
