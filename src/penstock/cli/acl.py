"""`penstock acl`: rules about who may do what, which are Kafka's ACLs."""

from collections.abc import Sequence
from typing import Any

import click

from penstock.cli import acl_rules
from penstock.cli.acl_words import (
    Operations,
    Words,
    check_operation,
    read_principals,
    read_resources,
    resource_options,
    rule_options,
    who_options,
)
from penstock.cli.apikey import KeyId
from penstock.cli.connection import Server, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import count_of, note, output_option, print_table, show, show_list
from penstock.cli.verbs import NotPenstock, Verbs, fields_of, rule_of
from penstock.engine.access import ANONYMOUS, Operation, Resource, Subject
from penstock.security.rules import ANYBODY, Rule, hosts_about, plain_host
from penstock.security.ruleset import Ruleset

_COLUMNS = ("principal", "effect", "operation", "kind", "pattern", "name", "host")
_NOT_TOLD = (
    "by the rules alone: this server tells nothing of super users, roles, what API keys narrow, or its security.mode"
)


@click.group("acl", help="Add, list, remove and explain rules about who may do what (Kafka's ACLs).")
def command() -> None:
    pass


@command.command(
    "add",
    short_help="Add rules.",
    help="""Add rules that allow or deny operations. What no rule allows is refused, and a denial beats whatever allows
    the same. read, write, delete and alter include describe; alter-configs includes describe-configs. A rule that
    exists already stays as it is.""",
    epilog="""\b
Examples:
  penstock acl add --user billing --allow write --topic orders
  penstock acl add --user report --allow read --topic orders- --group report- --prefix
  penstock acl add --user ops --allow describe,alter,create --cluster
  penstock acl add --user report --deny read --topic orders-secret""",
)
@rule_options
@output_option
@server_options
def add(words: Words, output: str, server: Server) -> None:
    rules = words.rules()
    refused = acl_rules.create_rules(server, rules)
    if refused:
        raise CommandError("; ".join(refused))

    def lines() -> None:
        for rule in rules:
            click.echo(f"added: {rule}")

    show(_rows(rules), output, lines)


@command.command(
    "list",
    short_help="List rules.",
    help="""List the rules, or those that have what the flags say. A name means rules of just this name or prefix; with
    --covering all rules that decide about it.""",
    epilog="""\b
Examples:
  penstock acl list
  penstock acl list --user billing
  penstock acl list --topic orders --covering -o json""",
)
@rule_options
@click.option("--covering", is_flag=True, help="Rules about these things, also by a prefix or '*'.")
@output_option
@server_options
def list_rules(words: Words, covering: bool, output: str, server: Server) -> None:
    rules = words.choose(_fetch(server), covering=covering)
    way_out = "'penstock acl add' makes one"
    show_list(_rows(rules), output, "rules", lambda: _print(rules), narrowed=not words.is_empty, way_out=way_out)


@command.command(
    "remove",
    short_help="Remove rules.",
    help="""Remove the rules that have all that the flags say. Shows them, then asks; without a terminal it needs
    --yes. To remove all rules there are takes --all.""",
    epilog="""\b
Examples:
  penstock acl remove --user billing --topic orders
  penstock acl remove --user alice --yes
  penstock acl remove --all""",
)
@rule_options
@click.option("--all", "everything", is_flag=True, help="All rules there are.")
@click.option("--if-exists", is_flag=True, help="That there is no such rule is no error.")
@yes_option
@output_option
@server_options
def remove(words: Words, everything: bool, if_exists: bool, yes: bool, output: str, server: Server) -> int | None:
    if words.is_empty != everything:
        raise CommandError("say which rules, such as --user NAME; or, without any of these, --all", code=USAGE)
    rules = words.choose(_fetch(server))
    if not rules and not if_exists:
        raise CommandError("no rules like that; 'penstock acl list' shows what there is")
    if output == "table" and rules:
        _print(rules)
    count = count_of(len(rules), "rule")
    if rules and not yes and not confirm(f"Remove {count}?", "nothing was removed"):
        return FAILED
    refused = acl_rules.remove_rules(server, rules)
    if refused:
        raise CommandError("; ".join(refused))
    show(_rows(rules), output, lambda: click.echo(f"removed {count}"))
    return None


@command.command(
    "explain",
    short_help="Say which rule decides.",
    help="""Say whether a user may do something, and what decides: a rule, one of a role the user has, that it is a
    super user, or that no rule allows it. A broker works it out of what is in force there. --by-certificate is about
    who comes with a certificate of the name, --key about what an API key leaves of its user's rights. Exit code 0 says
    that there is an answer, whatever it is.""",
    epilog="""\b
Examples:
  penstock acl explain --user billing --operation write --topic orders
  penstock acl explain --user report --operation read --group report-1 --host 10.0.0.7
  penstock acl explain --user report --operation read --topic orders --key pk_0123456789abcdef""",
)
@who_options
@click.option("--operation", metavar="OPERATION", type=Operations(), required=True, help="What shall be done.")
@resource_options
@click.option("--host", metavar="ADDRESS", default="", help="Where it comes from; else rules for any host count alone.")
@click.option("--by-certificate", is_flag=True, help="It comes by a certificate; else as users do.")
@click.option("--key", metavar="KEY", type=KeyId(), help="It comes by this API key, as the list of keys shows it.")
@output_option
@server_options
def explain(
    users: tuple[str, ...],
    principals: tuple[str, ...],
    operation: tuple[Operation, ...],
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    ids: tuple[str, ...],
    cluster: bool,
    host: str,
    by_certificate: bool,
    key: str | None,
    output: str,
    server: Server,
) -> None:
    asked = read_principals(users, principals)
    resources = read_resources(topics, groups, ids, cluster)
    if len(asked) != 1 or len(operation) != 1 or len(resources) != 1:
        raise CommandError("say one user, one --operation, and one topic, group, id or --cluster", code=USAGE)
    if by_certificate and key is not None:
        raise CommandError("say --by-certificate or --key, not both", code=USAGE)
    (principal,), (wanted,), (resource,) = asked, operation, resources
    check_operation(wanted, resource.kind)
    by = "certificate" if by_certificate else None
    try:
        with Verbs(server) as verbs:
            told = verbs.ask(
                f"what {principal} may do cannot be explained",
                "rule.explain",
                principal=principal,
                operation=wanted.value,
                kind=resource.kind.value,
                name=resource.name,
                host=host,
                by=by,
                key=key,
            )
    except NotPenstock:
        if by or key:
            raise
        told = _explain_here(server, principal, wanted, resource, host)
    rule = rule_of(told["rule"]) if told["rule"] else None
    row = {
        "principal": principal,
        "operation": wanted.replace("_", "-"),
        "kind": resource.kind.value,
        "name": resource.name,
        "host": host or None,
        "allowed": told["allowed"],
        "why": _why(told["why"], rule),
        "rule": _rows([rule])[0] if rule else None,
        "roles": told.get("roles"),
        "mode": told.get("mode"),
    }

    def lines() -> None:
        may = "may" if row["allowed"] else "may not"
        click.echo(f"{principal} {may} {row['operation']} {resource.kind} {resource.name!r}: {row['why']}")
        if rule:
            also = f" (which includes {row['operation']})" if rule.operation is not wanted else ""
            click.echo(f"  {rule}{also}")

    show(row, output, lines)
    _add_notes(told, principal, host, by_certificate=by_certificate)


def _explain_here(
    server: Server, principal: str, operation: Operation, resource: Resource, host: str
) -> dict[str, Any]:
    """Of the rules that Kafka's API tells."""
    rules = _fetch(server)
    found = Ruleset(1, rules).explain(Subject(principal, host), operation, resource)
    about = Words((principal, ANYBODY), resources=(resource,)).choose(rules, covering=True)
    hosts = hosts_about(host)
    return {
        "allowed": found.allowed,
        "why": found.why,
        "rule": fields_of(found.rule) if found.rule else None,
        "of_other_hosts": sum(plain_host(rule.host) not in hosts for rule in about),
    }


def _why(why: str, rule: Rule | None) -> str:
    if rule is not None and rule.principal.startswith("Role:"):
        return f"{why} of role {rule.principal.removeprefix('Role:')}"
    return "no rule allows it, and what no rule allows is refused" if why == "allowed by no rule" else why


def _add_notes(told: dict[str, Any], principal: str, host: str, *, by_certificate: bool) -> None:
    """What a person may not have thought of."""
    if count := told["of_other_hosts"]:
        way_out = "" if host else "; --host counts them"
        note(f"{count_of(count, 'rule')} for single hosts {'is' if count == 1 else 'are'} not counted{way_out}")
    if "mode" not in told:
        note(_NOT_TOLD)
        return
    if not told["is_user"] and not by_certificate and principal not in (ANYBODY, ANONYMOUS.principal):
        note(f"there is no user {principal.removeprefix('User:')!r}: only a certificate can be of that name")
    if told["mode"] != "closed":
        note(f"security.mode is {told['mode']} now, so everything is allowed but to change users and rules")


def _fetch(server: Server) -> list[Rule]:
    found = acl_rules.fetch_rules(server)
    if found.unknown:
        note(f"{count_of(found.unknown, 'rule')} of kinds that are not known here are left out")
    return found.known


def _rows(rules: Sequence[Rule]) -> list[dict[str, str]]:
    return [
        {
            "principal": rule.principal,
            "effect": rule.effect.value,
            "operation": rule.operation.replace("_", "-"),
            "kind": rule.kind.value,
            "pattern": rule.pattern.value,
            "name": rule.name,
            "host": rule.host,
        }
        for rule in rules
    ]


def _print(rules: Sequence[Rule]) -> None:
    print_table([list(row.values()) for row in _rows(rules)], _COLUMNS)
