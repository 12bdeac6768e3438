"""Verbs about roles, and who has them."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.verbs.document import MAX_ROWS, refused, rule_fields
from penstock.protocols.kafka.verbs.users import page
from penstock.protocols.kafka.verbs.verb import Answer, Asked, Verb, changing, reading
from penstock.security.directory import Directory
from penstock.security.roles import BUILT_IN, built_in_rules, check_grants, role_principal
from penstock.security.rule_changes import Setting
from penstock.security.rules import Rule


async def list_roles(asked: Asked) -> Answer:
    directory = asked.directory
    await asked.context.turns.next()
    names, is_more = page(asked, {*BUILT_IN, *directory.roles})
    having = Counter(name for user in directory.users.values() for name in {_name_of(role) for role in user.roles})
    rows = [
        {
            "role": name,
            "built_in": name in BUILT_IN,
            "rules": len(_rules_of(directory, name)),
            "users": having[name],
        }
        for name in names
    ]
    return {"rows": rows, "more": is_more}


async def show_role(asked: Asked) -> Answer:
    """Its rules, and the users who have it, for whatever prefix."""
    role, directory = asked.document.text("role"), asked.directory
    _check_there(directory, role)
    users = sorted(
        (user.name, grant)
        for user in directory.users.values()
        for grant in user.roles
        if role in (grant, _name_of(grant))
    )
    rules = _rules_of(directory, role)
    return {
        "role": role,
        "built_in": _name_of(role) in BUILT_IN,
        "rules": [rule_fields(rule) for rule in rules[:MAX_ROWS]],
        "rule_count": len(rules),
        "users": [{"user": name, "role": grant} for name, grant in users[:MAX_ROWS]],
        "user_count": len(users),
    }


async def set_role(asked: Asked) -> Answer:
    role = asked.document.text("role")
    rules = asked.document.rules("rules")
    if not rules:
        raise refused("a role has at least one rule")
    how = asked.document.word("how", Setting, Setting.NEW)
    await asked.guard.rules.set_role(role, [rule._replace(principal=role_principal(role)) for rule in rules], how)
    return {"role": role, "rules": len(asked.directory.roles.get(role, ()))}


async def delete_role(asked: Asked) -> Answer:
    role = asked.document.text("role")
    if role in BUILT_IN:
        raise PenstockError(
            Code.NOT_ALLOWED, f"role {role!r} is always there", help="take it from users with role revoke"
        )
    await asked.guard.rules.delete_role(role)
    return {"role": role}


async def grant_role(asked: Asked) -> Answer:
    user, role = asked.document.text("user"), asked.document.text("role")
    return {"user": user, "roles": list(await asked.guard.users.change_roles(user, give=[role]))}


async def revoke_role(asked: Asked) -> Answer:
    user, role = asked.document.text("user"), asked.document.text("role")
    return {"user": user, "roles": list(await asked.guard.users.change_roles(user, take=[role]))}


def _check_there(directory: Directory, role: str) -> None:
    try:
        check_grants([role], directory.roles)
    except PenstockError as error:
        raise PenstockError(Code.NOT_FOUND, str(error), help=error.help) from None


def _rules_of(directory: Directory, role: str) -> list[Rule]:
    """In force, also those that were made of it as of a principal."""
    own: Iterable[Rule] = directory.roles.get(role, ()) if _name_of(role) not in BUILT_IN else built_in_rules(role)
    principal = role_principal(role)
    return list(dict.fromkeys([*own, *(rule for rule in directory.rules.values() if rule.principal == principal)]))


def _name_of(role: str) -> str:
    """Without the prefix that it is given for."""
    return role.partition(":")[0]


VERBS: Final[tuple[Verb, ...]] = (
    reading("role.list", list_roles, "after", "limit"),
    reading("role.show", show_role, "role"),
    changing("role.set", set_role, "role", "rules", "how"),
    changing("role.delete", delete_role, "role"),
    changing("role.grant", grant_role, "user", "role"),
    changing("role.revoke", revoke_role, "user", "role"),
)
