"""`penstock acl`: rules about who may do what, which are Kafka's ACLs."""

from collections.abc import Sequence

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
from penstock.cli.connection import Server, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import count_of, note, output_option, print_table, show, show_list
from penstock.engine.access import Operation, Subject
from penstock.security.rules import ANY_HOST, ANYBODY, Rule
from penstock.security.ruleset import Ruleset

_COLUMNS = ("principal", "effect", "operation", "kind", "pattern", "name", "host")
_NOT_TOLD = (
    "by the rules alone: Kafka's API tells nothing of super users, roles, what API keys narrow, or security.mode; with "
    "modes open and watch everything is allowed"
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
    help="""Say whether the rules allow a user an operation, and which one of them decides. It is worked out here, from
    all rules, as a broker does. Kafka's API tells nothing of super users, roles and API keys, or of security.mode.""",
    epilog="""\b
Examples:
  penstock acl explain --user billing --operation write --topic orders
  penstock acl explain --user report --operation read --group report-1 --host 10.0.0.7""",
)
@who_options
@click.option("--operation", metavar="OPERATION", type=Operations(), required=True, help="What shall be done.")
@resource_options
@click.option("--host", metavar="ADDRESS", default="", help="Where it comes from; else rules for any host count alone.")
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
    output: str,
    server: Server,
) -> None:
    asked = read_principals(users, principals)
    resources = read_resources(topics, groups, ids, cluster)
    if len(asked) != 1 or len(operation) != 1 or len(resources) != 1:
        raise CommandError("say one user, one --operation, and one topic, group, id or --cluster", code=USAGE)
    (principal,), (wanted,), (resource,) = asked, operation, resources
    check_operation(wanted, resource.kind)
    rules = _fetch(server)
    found = Ruleset(1, rules).explain(Subject(principal, host), wanted, resource)
    row = {
        "principal": principal,
        "operation": wanted.replace("_", "-"),
        "kind": resource.kind.value,
        "name": resource.name,
        "host": host or None,
        "allowed": found.allowed,
        "why": found.why,
        "rule": _rows([found.rule])[0] if found.rule else None,
    }

    def lines() -> None:
        may = "may" if found.allowed else "may not"
        click.echo(f"{principal} {may} {row['operation']} {resource.kind} {resource.name!r}: {found.why}")
        if found.rule:
            also = f" (which includes {row['operation']})" if found.rule.operation is not wanted else ""
            click.echo(f"  {found.rule}{also}")

    show(row, output, lines)
    elsewhere = Words((principal, ANYBODY), resources=(resource,)).choose(rules, covering=True)
    if not host and (count := sum(rule.host != ANY_HOST for rule in elsewhere)):
        note(f"{count_of(count, 'rule')} for single hosts {'is' if count == 1 else 'are'} not counted; --host does")
    note(_NOT_TOLD)


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
