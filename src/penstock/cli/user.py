"""`penstock user`: users and their passwords, by Kafka's SCRAM credentials.

A password is salted here, and does not go over the network. A user gets keys for both mechanisms, so that clients may
take either. librdkafka has these requests, and corrupts its memory when the server refuses them (2.16).
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from penstock.cli import wire
from penstock.cli.connection import Refused, Server, server_of_words, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import output_option, print_table, show, show_list

ITERATIONS: Final = 10_000
_SALT_BYTES: Final = 16
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""By Kafka's numbers."""
_STAYS: Final = "its rules stay, whatever roles or API keys it has, and connections that are open"

Fields = dict[str, Any]
Known = Mapping[str, Mapping[str, int]]
"""By user and mechanism, how often the password is hashed."""


class UserName(click.ParamType[str]):
    """A user's name, completed by asking the server."""

    name = "user"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        try:
            found = fetch_users(server_of_words(ctx.params))
        except Exception:  # noqa: BLE001 - a completion has nobody to tell
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


name_argument = click.argument("name", metavar="NAME", type=UserName())
password_option = click.option(
    "--password-file",
    metavar="FILE",
    help="Holds the new password in one line and is its owner's alone; - is standard input. Else it is asked for.",
)


@click.group("user", help="Create, list and delete users, set their passwords.")
def command() -> None:
    pass


@command.command(
    "create",
    short_help="Create a user with a password.",
    help="""Create a user with a password for SCRAM-SHA-256 and SCRAM-SHA-512, which PLAIN takes as well. It may do
    nothing until 'penstock acl add' says what. A password is never a word of the command line.""",
    epilog="""\b
Examples:
  penstock user create alice
  penstock user create billing --password-file billing.password
  pwgen 32 1 | penstock user create billing --password-file -""",
)
@click.argument("name", metavar="NAME")
@password_option
@output_option
@server_options
def create(name: str, password_file: str | None, output: str, server: Server) -> None:
    if name in fetch_users(server):
        raise CommandError(f"user {name!r} exists already; 'penstock user passwd {name}' sets another password")
    _set_password(server, name, _read_password(name, password_file))
    show({"user": name, "status": "created"}, output, lambda: click.echo(f"created user {name}"))


@command.command(
    "passwd",
    short_help="Set a user's password.",
    help="""Set another password of a user, for both mechanisms. Whoever is logged in by the old one stays until the
    connection ends.""",
    epilog="""\b
Examples:
  penstock user passwd alice
  penstock user passwd billing --password-file billing.password""",
)
@name_argument
@password_option
@output_option
@server_options
def passwd(name: str, password_file: str | None, output: str, server: Server) -> None:
    known = fetch_users(server)
    if name not in known:
        raise _unknown(name, known)
    _set_password(server, name, _read_password(name, password_file))
    show({"user": name, "status": "changed"}, output, lambda: click.echo(f"changed the password of user {name}"))


@command.command(
    "list",
    help="List the users that have a password, with the mechanisms it is for. Kafka's API tells of no others.",
    epilog="""\b
Examples:
  penstock user list
  penstock user list -o json""",
)
@output_option
@server_options
def list_users(output: str, server: Server) -> None:
    known = fetch_users(server)
    rows = [
        {"user": name, "mechanisms": sorted(kept), "iterations": min(kept.values(), default=None)}
        for name, kept in known.items()
    ]

    def table() -> None:
        cells = [(name, ", ".join(sorted(kept)), min(kept.values(), default=None)) for name, kept in known.items()]
        print_table(cells, ["user", "mechanisms", "iterations"])

    show_list(rows, output, "users", table, way_out="'penstock user create NAME' makes one")


@command.command(
    "delete",
    short_help="Take users their passwords.",
    help="""Delete the passwords of users, by which nobody can log in any more. Kafka's API deletes no more than that:
    rules about a user stay, and whatever roles and API keys it has. A user of the same name that is made later has
    them, and a connection that is open stays open. So remove the rules as well ('penstock acl remove --user NAME'),
    which takes effect at once. Asks first; without a terminal it needs --yes.""",
    epilog="""\b
Examples:
  penstock user delete alice
  penstock acl remove --user alice""",
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=UserName())
@click.option("--if-exists", is_flag=True, help="Users that do not exist are no error.")
@yes_option
@output_option
@server_options
def delete(names: tuple[str, ...], if_exists: bool, yes: bool, output: str, server: Server) -> int | None:
    known = fetch_users(server)
    wanted = list(dict.fromkeys(names))
    if not if_exists and (missing := [name for name in wanted if name not in known]):
        raise _unknown(missing[0], known)
    found = [name for name in wanted if name in known]
    if found and not yes and not confirm(f"Delete user {', '.join(found)}?", "nothing was deleted"):
        return FAILED
    numbers = {word: number for number, word in _MECHANISMS.items()}
    gone = [{"name": name, "mechanism": numbers[each]} for name in found for each in known[name]]
    _alter(server, "deleted", deletions=gone)
    rows = [{"user": name, "status": "deleted" if name in known else "missing"} for name in wanted]

    def lines() -> None:
        for row in rows:
            click.echo(f"deleted user {row['user']}; {_STAYS}" if row["user"] in known else f"no user {row['user']}")

    show(rows, output, lines)
    return None


def fetch_users(server: Server) -> Known:
    """Every user with a password, by name. Raises `CommandError`."""
    with wire.Cluster(server, any_security=True) as cluster:
        answer = cluster.ask(None, "describe_user_scram_credentials", users=None)
    wire.check(answer.error_code, "the users cannot be listed", answer.error_message)
    return {
        each.user: {_MECHANISMS.get(one.mechanism, "unknown"): one.iterations for one in each.credential_infos}
        for each in sorted(answer.results, key=lambda each: each.user)
    }


def _set_password(server: Server, name: str, password: str) -> None:
    from secrets import token_bytes

    from penstock.security.scram import Mechanism, salt_password

    rows = []
    for number, word in _MECHANISMS.items():
        salt = token_bytes(_SALT_BYTES)
        salted = salt_password(Mechanism(word), password.encode(), salt, ITERATIONS)
        row = {"name": name, "mechanism": number, "iterations": ITERATIONS, "salt": salt, "salted_password": salted}
        rows.append(row)
    _alter(server, "given a password", upsertions=rows)


def _alter(server: Server, done: str, *, deletions: Sequence[Fields] = (), upsertions: Sequence[Fields] = ()) -> None:
    refused = []
    with wire.Cluster(server, any_security=True) as cluster:
        answer = cluster.ask(None, "alter_user_scram_credentials", deletions=deletions, upsertions=upsertions)
    for each in answer.results:
        try:
            wire.check(each.error_code, f"user {each.user!r} cannot be {done}", each.error_message)
        except Refused as error:
            refused.append(str(error))
    if refused:
        raise CommandError("; ".join(refused))


def _read_password(name: str, path: str | None) -> str:
    """Raises `CommandError`."""
    if path == "-":
        said = sys.stdin.readline().rstrip("\r\n")
    elif path is not None:
        from penstock.cli.login import read_password_file

        said = read_password_file(path)
    elif sys.stdin.isatty():
        said = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise CommandError("nobody can be asked for the password here: say --password-file FILE", code=USAGE)
    if not said or "\0" in said:
        raise CommandError("a password has at least one character, and no zero byte", code=USAGE)
    return said


def _unknown(name: str, known: Known) -> CommandError:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {close[0]}?" if close else ""
    return CommandError(f"no user {name!r} with a password{hint} ('penstock user list' shows them all)")
