"""Verbs about users. Passwords are none of theirs: Kafka's AlterUserScramCredentials sets those."""

from collections import Counter
from collections.abc import Iterable
from heapq import nsmallest
from typing import Final

from penstock.protocols.kafka.verbs.document import MAX_ROWS
from penstock.protocols.kafka.verbs.verb import Answer, Asked, Verb, changing, reading
from penstock.security.names import user_principal
from penstock.security.roles import MAX_ROLES_OF_A_USER

_BY_PAGE: Final = ("after", "limit")


def page(asked: Asked, names: Iterable[str]) -> tuple[list[str], bool]:
    """Those of the names that were asked for, in order, and whether there are more."""
    after = asked.document.text("after", "")
    limit = asked.document.number("limit", 1, MAX_ROWS, MAX_ROWS)
    found = nsmallest(limit + 1, (name for name in names if name > after))
    return found[:limit], len(found) > limit


async def list_users(asked: Asked) -> Answer:
    """All users, also those without a password."""
    directory = asked.directory
    await asked.context.turns.next()
    names, is_more = page(asked, directory.users.keys() | directory.credentials.keys())
    keys = Counter(key.user for key in directory.keys.values())
    rows = []
    for name in names:
        user, kept = directory.users.get(name), directory.credentials.get(name)
        passwords = {} if kept is None else kept.keys
        rows.append(
            {
                "user": name,
                "mechanisms": sorted(map(str, passwords)),
                "iterations": min((each.iterations for each in passwords.values()), default=None),
                "roles": [] if user is None else list(user.roles),
                "certificate": user is not None and user.may_use_certificate,
                "api_keys": keys[name],
                "enabled": user is None or user.is_enabled,
            }
        )
    return {"rows": rows, "more": is_more}


async def create_user(asked: Asked) -> Answer:
    """One without a password."""
    name = asked.document.text("user")
    await asked.guard.users.create(
        name,
        None,
        roles=asked.document.texts("roles", MAX_ROLES_OF_A_USER),
        may_use_certificate=asked.document.flag("certificate"),
    )
    return {"user": name}


async def delete_user(asked: Asked) -> Answer:
    """With its password, its roles and its API keys; what is left are rules."""
    name, directory = asked.document.text("user"), asked.directory
    keys = sum(key.user == name for key in directory.keys.values())
    await asked.guard.users.delete(name)
    principal = user_principal(name)
    return {
        "user": name,
        "api_keys": keys,
        "rules": sum(rule.principal == principal for rule in directory.rules.values()),
    }


VERBS: Final[tuple[Verb, ...]] = (
    reading("user.list", list_users, *_BY_PAGE),
    changing("user.create", create_user, "user", "roles", "certificate"),
    changing("user.delete", delete_user, "user"),
)
