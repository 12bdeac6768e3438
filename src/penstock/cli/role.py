"""`penstock role`: rules under a name, and the users who have them."""

from dataclasses import replace
from typing import Any

import click

from penstock.cli.acl_words import Words, right_options
from penstock.cli.connection import Refused, Server, server_of_words, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import count_of, note, output_option, print_fields, print_table, show, show_list
from penstock.cli.user import UserName
from penstock.cli.verbs import Verbs, fields_of, rule_of

_CANNOT_LIST = "the roles cannot be listed"


class RoleName(click.ParamType[str]):
    """A role's name, completed by asking the server."""

    name = "role"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        try:
            with Verbs(server_of_words(ctx.params)) as verbs:
                found = [row["role"] for row in verbs.rows(_CANNOT_LIST, "role.list", by="role")]
        except Exception:  # noqa: BLE001 - a completion has nobody to tell
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


role_argument = click.argument("role", metavar="ROLE", type=RoleName())
users_option = click.option(
    "--user", "users", metavar="NAME", multiple=True, required=True, type=UserName(), help="Whom; may be repeated."
)


@click.group("role", help="Give rights by roles: rules under a name, which users have.")
def command() -> None:
    pass


@command.command(
    "list",
    short_help="List roles.",
    help="""List the roles, how many rules each has and how many users have it. Five are always there:

    \b
    admin      everything
    producer   writes topics, in transactions too
    consumer   reads topics, in groups
    read-only  reads topics, sees groups, settings and the cluster
    auditor    sees topics, groups, users and settings, reads no records

    These may be given for a prefix: producer:orders- is about what begins with orders-.""",
    epilog="""\b
Examples:
  penstock role list
  penstock role list -o json""",
)
@output_option
@server_options
def list_roles(output: str, server: Server) -> None:
    with Verbs(server) as verbs:
        rows = list(verbs.rows(_CANNOT_LIST, "role.list", by="role"))

    def table() -> None:
        cells = [(row["role"], _sort_of(row["built_in"]), row["rules"], row["users"]) for row in rows]
        print_table(cells, ["role", "sort", "rules", "users"])

    show_list(rows, output, "roles", table)


@command.command(
    "show",
    short_help="Show a role's rules, and who has it.",
    help="Show what a role allows and denies, and the users who have it, for whatever prefix.",
    epilog="""\b
Examples:
  penstock role show admin
  penstock role show producer:orders-""",
)
@role_argument
@output_option
@server_options
def show_role(role: str, output: str, server: Server) -> None:
    with Verbs(server) as verbs:
        told = verbs.ask(f"role {role!r} cannot be shown", "role.show", role=role)

    def lines() -> None:
        print_fields({"sort": _sort_of(told["built_in"]), "users": told["user_count"]}, title=f"role {role}")
        for each in told["rules"]:
            click.echo(f"  {rule_of(each)}")
        if (left := told["rule_count"] - len(told["rules"])) > 0:
            click.echo(f"  and {count_of(left, 'rule')} more: penstock acl list --principal Role:{role}")
        for each in told["users"]:
            click.echo(f"  user {each['user']}" + (f" has {each['role']}" if each["role"] != role else ""))

    show(told, output, lines)


@command.command(
    "create",
    short_help="Make a role of rules.",
    help="""Make a role that has rules, said as 'penstock acl add' says them, without whom they are about. --add puts
    more rules into a role that is there; --replace gives it these in place of its own. Users who have it have the new
    rights within a second.""",
    epilog="""\b
Examples:
  penstock role create clerk --allow read,write --topic orders- --prefix
  penstock role create clerk --add --allow read --group clerk- --prefix
  penstock role grant clerk --user billing""",
)
@click.argument("role", metavar="ROLE")
@right_options
@click.option("--add", "is_more", is_flag=True, help="Put the rules into a role that is there.")
@click.option("--replace", "is_other", is_flag=True, help="Let the role have these rules alone.")
@output_option
@server_options
def create(role: str, words: Words, is_more: bool, is_other: bool, output: str, server: Server) -> None:
    if is_more and is_other:
        raise CommandError("say --add or --replace, not both", code=USAGE)
    rules = replace(words, principals=(f"Role:{role}",)).rules()
    how = "add" if is_more else "replace" if is_other else "new"
    try:
        with Verbs(server) as verbs:
            told = verbs.ask(
                f"role {role!r} cannot be made",
                "role.set",
                role=role,
                rules=[fields_of(each) for each in rules],
                how=how,
            )
    except Refused as error:
        raise _with_way_out(error, role) from None
    show(told, output, lambda: click.echo(f"role {role} has {count_of(told['rules'], 'rule')}"))


@command.command(
    "delete",
    short_help="Delete a role.",
    help="""Delete a role that was made, and that no user has any more ('penstock role show' says who has it). Asks
    first; without a terminal it needs --yes.""",
    epilog="""\b
Examples:
  penstock role revoke clerk --user billing
  penstock role delete clerk""",
)
@role_argument
@yes_option
@output_option
@server_options
def delete(role: str, yes: bool, output: str, server: Server) -> int | None:
    if not yes and not confirm(f"Delete role {role}?", "nothing was deleted"):
        return FAILED
    with Verbs(server) as verbs:
        told = verbs.ask(f"role {role!r} cannot be deleted", "role.delete", role=role)
    show(told, output, lambda: click.echo(f"deleted role {role}"))
    return None


@command.command(
    "grant",
    short_help="Give users a role.",
    help="""Give users a role. One of those that are always there may be for a prefix. Who is to come by a certificate,
    and is in no list of users, is made one first: 'penstock user create NAME --certificate'.""",
    epilog="""\b
Examples:
  penstock role grant consumer --user report
  penstock role grant producer:orders- --user billing --user shop""",
)
@role_argument
@users_option
@output_option
@server_options
def grant(role: str, users: tuple[str, ...], output: str, server: Server) -> None:
    _change(server, "role.grant", role, users, output, "given to")


@command.command(
    "revoke",
    short_help="Take a role from users.",
    help="Take a role from users. It acts within a second, on connections that are open too.",
    epilog="""\b
Examples:
  penstock role revoke consumer --user report
  penstock role revoke producer:orders- --user billing""",
)
@role_argument
@users_option
@output_option
@server_options
def revoke(role: str, users: tuple[str, ...], output: str, server: Server) -> None:
    _change(server, "role.revoke", role, users, output, "taken from")


def _change(server: Server, verb: str, role: str, users: tuple[str, ...], output: str, done: str) -> None:
    rows: list[Any] = []
    refused = []
    with Verbs(server) as verbs:
        for user in dict.fromkeys(users):
            try:
                rows.append(verbs.ask(f"role {role!r} cannot be {done} user {user!r}", verb, role=role, user=user))
            except Refused as error:
                refused.append(str(error))

    def lines() -> None:
        for row in rows:
            click.echo(f"user {row['user']} has {', '.join(row['roles']) or 'no roles'}")

    if rows or not refused:
        show(rows, output, lines)
    if refused:
        raise CommandError("; ".join(refused))


def _with_way_out(error: Refused, role: str) -> Exception:
    if error.name == "DUPLICATE_RESOURCE":
        note(f"'penstock role show {role}' shows its rules; --add adds to them, --replace replaces them")
    return error


def _sort_of(is_built_in: bool) -> str:
    return "built-in" if is_built_in else "made"
