"""Verbs about API keys. The text of one is told once, to who makes it."""

from typing import Final

from penstock.protocols.kafka.verbs.document import refused
from penstock.protocols.kafka.verbs.users import page
from penstock.protocols.kafka.verbs.verb import Answer, Asked, Verb, changing, reading

_LONGEST_MS: Final = 100 * 366 * 86_400_000


async def create_key(asked: Asked) -> Answer:
    """`lasts_ms` is 0 for a key that never ends; `rules` are what it is narrowed to."""
    document = asked.document
    rules = document.rules("rules")
    if rules is not None and not rules:
        raise refused("a key that is narrowed has at least one rule")
    made = await asked.guard.keys.create(
        document.text("user"),
        rules=rules,
        lasts_ms=document.number("lasts_ms", 0, _LONGEST_MS, 0),
        signs=document.flag("signing"),
        note=document.text("note", ""),
    )
    key = asked.directory.keys.get(made.id)
    return {
        "id": made.id,
        "user": document.text("user"),
        "key": made.text.reveal().decode(),
        "until_ms": key.until_ms if key is not None else None,
    }


async def list_keys(asked: Asked) -> Answer:
    directory, user = asked.directory, asked.document.text("user", "")
    await asked.context.turns.next()
    ids, is_more = page(asked, (key.id for key in directory.keys.values() if user in ("", key.user)))
    used = await asked.guard.keys.last_used_ms()
    rows = []
    for key_id in ids:
        key = directory.keys[key_id]
        rows.append(
            {
                "id": key.id,
                "prefix": key.shown,
                "user": key.user,
                "made_ms": key.made_ms,
                "until_ms": key.until_ms or None,
                "ended": asked.guard.keys.has_ended(key),
                "last_used_ms": used.get(key.id),
                "signing": key.sealed != "",
                "rules": None if key.rules is None else len(key.rules),
                "note": key.note,
            }
        )
    return {"rows": rows, "more": is_more}


async def delete_key(asked: Asked) -> Answer:
    key_id = asked.document.text("id")
    key = asked.directory.keys.get(key_id)
    await asked.guard.keys.delete(key_id)
    return {"id": key_id, "user": key.user if key is not None else None}


VERBS: Final[tuple[Verb, ...]] = (
    changing("apikey.create", create_key, "user", "rules", "lasts_ms", "signing", "note"),
    reading("apikey.list", list_keys, "user", "after", "limit"),
    changing("apikey.delete", delete_key, "id"),
)
