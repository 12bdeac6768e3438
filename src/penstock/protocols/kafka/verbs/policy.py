"""Verbs about what is in force: which rule decides, what `closed` would refuse, what secrets are sealed by."""

from typing import Final

from penstock.engine.access import THE_CLUSTER, Kind, Operation, Resource, Subject
from penstock.errors import Code, PenstockError
from penstock.protocols.kafka.verbs.document import refused, rule_fields
from penstock.protocols.kafka.verbs.verb import Answer, Asked, Verb, changing, reading
from penstock.security.methods import Method
from penstock.security.modes import ANY_THING, Refusal
from penstock.security.names import user_principal
from penstock.security.rules import ANY_NAME, ANYBODY, MAX_NAME_CHARS, Effect, Rule, hosts_about, plain_host
from penstock.security.ruleset import Ruleset

_MOST_OPEN_RULES: Final = 100
_ROWS_A_STEP: Final = 100  # 2 ms, if the rules have not been asked about them before


async def explain(asked: Asked) -> Answer:
    """Which rule decides about a principal; `by` says how it has proved who it is, `key` by which API key."""
    document, directory, loader = asked.document, asked.directory, asked.guard.loader
    principal, host, key_id = document.text("principal"), document.text("host", ""), document.text("key", "")
    operation, kind = document.word("operation", Operation), document.word("kind", Kind)
    resource = THE_CLUSTER if kind is Kind.CLUSTER else Resource(kind, document.text("name"))
    user = directory.users.get(principal.removeprefix("User:")) if principal.startswith("User:") else None
    by = document.word("by", Method, Method.SCRAM if user is not None else Method.CERTIFICATE)
    if key_id:
        key = directory.keys.get(key_id)
        if key is None or user_principal(key.user) != principal:
            raise PenstockError(Code.NOT_FOUND, f"{principal} has no API key {key_id!r}")
        by = Method.API_KEY
    subject = Subject(principal, host, "", by, key_id)
    await asked.context.turns.next()
    found = loader.rules.explain(subject, operation, resource)
    roles = () if user is None else user.roles
    return {
        "allowed": found.allowed,
        "why": found.why,
        "rule": None if found.rule is None else rule_fields(found.rule),
        "roles": list(roles),
        "is_user": user is not None,
        "mode": str(loader.mode),
        "of_other_hosts": _of_other_hosts(
            loader.rules, {principal, ANYBODY, *(f"Role:{each}" for each in roles)}, resource, host
        ),
    }


def _of_other_hosts(rules: Ruleset, principals: set[str], resource: Resource, host: str) -> int:
    """How many rules about it are for single hosts that were not asked about."""
    asked = hosts_about(host)
    return sum(
        rule.principal in principals and rule.covers(*resource) and plain_host(rule.host) not in asked
        for rule in rules.rules
    )


async def list_refusals(asked: Asked) -> Answer:
    """What this broker has let pass in mode `watch`, and whether the rules allow it by now; rules that are for all."""
    loader = asked.guard.loader
    await asked.context.turns.next()
    refusals = loader.refusals
    rows: list[Answer] = []
    for each, count in refusals.listed.items():
        if len(rows) % _ROWS_A_STEP == _ROWS_A_STEP - 1:
            await asked.context.turns.next()
        name = each.resource.name
        rows.append(
            {
                "principal": each.principal,
                "operation": str(each.operation),
                "kind": str(each.resource.kind),
                "name": None if name == ANY_THING else name[:MAX_NAME_CHARS],
                "is_whole": len(name) <= MAX_NAME_CHARS,
                "count": count,
                "allowed_now": _is_allowed(loader.rules, each),
            }
        )
    await asked.context.turns.next()
    open_rules = [rule for rule in asked.directory.rules.values() if _is_for_all(rule)]
    return {
        "broker": asked.context.node_id,
        "mode": str(loader.mode),
        "total": refusals.total,
        "unlisted": refusals.unlisted,
        "rows": rows,
        "open_rules": [rule_fields(rule) for rule in open_rules[:_MOST_OPEN_RULES]],
        "open_rule_count": len(open_rules),
    }


async def forget_refusals(asked: Asked) -> Answer:
    """Let this broker begin to count anew. Whoever may not change rules may hide nothing by it."""
    refusals = asked.guard.loader.refusals
    total = refusals.total
    refusals.clear()
    return {"broker": asked.context.node_id, "forgotten": total}


def _is_allowed(rules: Ruleset, refusal: Refusal) -> bool:
    """From any host, as far as rules say: what an API key narrows is not known here."""
    subject = Subject(refusal.principal)
    if refusal.resource.name == ANY_THING:
        return rules.decide_any(subject, refusal.operation, refusal.resource.kind)
    return rules.decide(subject, refusal.operation, refusal.resource)


def _is_for_all(rule: Rule) -> bool:
    """Whether it gives everybody a right to all things of a kind, as rules of a migration do that were left over."""
    return (
        rule.effect is Effect.ALLOW
        and rule.principal == ANYBODY
        and (rule.name == ANY_NAME or rule.kind is Kind.CLUSTER)
        and rule.operation is not Operation.DESCRIBE
    )


async def tell_sealing(asked: Asked) -> Answer:
    """Which keys this broker seals by and can open; ids, which tell nothing of the keys."""
    found = asked.guard.keys.sealed_by()
    return {
        "broker": asked.context.node_id,
        "seals": found.current,
        "opens": list(found.known),
        "secrets": dict(found.counts),
    }


async def reseal(asked: Asked) -> Answer:
    """Seal anew what is sealed by other keys, by the one that is named: another one than the asker knows of is none."""
    wanted, found = asked.document.text("by"), asked.guard.keys.sealed_by()
    if wanted != found.current:
        raise refused(f"this broker seals by {found.current}, and not by {wanted[:50]!r}")
    return {"resealed": await asked.guard.keys.reseal(), "by": found.current}


VERBS: Final[tuple[Verb, ...]] = (
    reading("rule.explain", explain, "principal", "host", "operation", "kind", "name", "by", "key"),
    reading("security.refusals", list_refusals),
    changing("security.forget", forget_refusals),
    reading("security.sealing", tell_sealing),
    changing("security.reseal", reseal, "by"),
)
