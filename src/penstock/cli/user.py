"""`penstock user`: users, their passwords, and what they can come by instead.

A password goes over the network as Kafka's SCRAM credentials: it is salted here. A user gets keys for both mechanisms,
so that clients may take either. librdkafka has these requests, and corrupts its memory when the server refuses them
(2.16). Users themselves are Penstock's own (`verbs`); of another server Kafka's API tells those with a password.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from penstock.cli import wire
from penstock.cli.connection import Refused, Server, server_of_words, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import count_of, note, output_option, print_table, show, show_list
from penstock.cli.verbs import NotPenstock, Verbs

ITERATIONS: Final = 10_000
_SALT_BYTES: Final = 16
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""By Kafka's numbers."""
Fields = dict[str, Any]
Known = Mapping[str, Mapping[str, int]]
"""By user and mechanism, how often the password is hashed."""


class UserName(click.ParamType[str]):
    """A user's name, completed by asking the server."""

    name = "user"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        try:
            found = fetch_names(server_of_words(ctx.params))
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
    short_help="Create a user.",
    help="""Create a user with a password for SCRAM-SHA-256 and SCRAM-SHA-512, which PLAIN takes as well. A password
    is never a word of the command line. --no-password makes a user who comes by API keys ('penstock apikey create'),
    --certificate one who may come by a certificate that names it. The user may do nothing until --role, 'penstock
    role grant' or 'penstock acl add' says what.""",
    epilog="""\b
Examples:
  penstock user create alice
  penstock user create billing --password-file billing.password --role producer:orders-
  penstock user create robot --no-password --role consumer
  penstock user create CN=robot,O=Acme --certificate
  pwgen 32 1 | penstock user create billing --password-file -""",
)
@click.argument("name", metavar="NAME")
@password_option
@click.option("--no-password", is_flag=True, help="Nobody can log in as it by a password.")
@click.option("--certificate", is_flag=True, help="It comes by a certificate of this name, and has no password.")
@click.option("--role", "roles", metavar="ROLE", multiple=True, help="A role it has; may be repeated.")
@output_option
@server_options
def create(
    name: str,
    password_file: str | None,
    no_password: bool,
    certificate: bool,
    roles: tuple[str, ...],
    output: str,
    server: Server,
) -> None:
    if (no_password or certificate) and password_file is not None:
        raise CommandError("a user with --no-password or --certificate has no --password-file", code=USAGE)
    password = None if no_password or certificate else _read_password(name, password_file)
    _make(server, name, roles, certificate=certificate, of_kafka=password is not None and not roles)
    if password is not None:
        try:
            _set_password(server, name, password)
        except CommandError as error:
            note(f"user {name} may be there without a password; 'penstock user passwd {name}' sets one")
            raise error from None
    show({"user": name, "status": "created"}, output, lambda: click.echo(f"created user {name}"))


@command.command(
    "passwd",
    short_help="Set a user's password.",
    help="""Set another password of a user, for both mechanisms. Connections that logged in by the old one are closed
    within a second; API keys and certificates of the user stay good.""",
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
    known = fetch_names(server)
    if name not in known:
        raise _unknown(name, known)
    _set_password(server, name, _read_password(name, password_file))
    show({"user": name, "status": "changed"}, output, lambda: click.echo(f"changed the password of user {name}"))


@command.command(
    "list",
    short_help="List users.",
    help="""List all users: by what mechanisms each can log in with a password, whether it may come by a certificate,
    how many API keys it has, and its roles. Rules about users are shown by 'penstock acl list'.""",
    epilog="""\b
Examples:
  penstock user list
  penstock user list -o json""",
)
@output_option
@server_options
def list_users(output: str, server: Server) -> None:
    rows = _fetch_rows(server)

    def table() -> None:
        cells = [
            (
                row["user"],
                ", ".join(row["mechanisms"]) or None,
                row["iterations"],
                "yes" if row.get("certificate") else None,
                row.get("api_keys"),
                ", ".join(row.get("roles", ())) or None,
            )
            for row in rows
        ]
        print_table(cells, ["user", "mechanisms", "iterations", "certificate", "keys", "roles"])

    show_list(rows, output, "users", table, way_out="'penstock user create NAME' makes one")


@command.command(
    "delete",
    short_help="Delete users.",
    help="""Delete users with their passwords, API keys and roles. Connections that they logged in by are closed within
    a second. Rules about a user stay, as in Kafka, and would be those of the next user of the name: remove them with
    'penstock acl remove --user NAME'. Asks first; without a terminal it needs --yes.""",
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
    known = fetch_names(server)
    wanted = list(dict.fromkeys(names))
    if not if_exists and (missing := [name for name in wanted if name not in known]):
        raise _unknown(missing[0], known)
    found = [name for name in wanted if name in known]
    if found and not yes and not confirm(f"Delete user {', '.join(found)}?", "nothing was deleted"):
        return FAILED
    gone = _delete(server, found) if found else {}
    rows = [{"user": name, "status": "deleted", **gone[name]} if name in gone else _missing(name) for name in wanted]

    def lines() -> None:
        for row in rows:
            click.echo(_tell_gone(row) if row["status"] == "deleted" else f"no user {row['user']}")

    show(rows, output, lines)
    return None


def fetch_names(server: Server) -> list[str]:
    """All users, as far as the server tells of them. Raises `CommandError`."""
    return [row["user"] for row in _fetch_rows(server)]


def _fetch_rows(server: Server) -> list[Fields]:
    try:
        with Verbs(server) as verbs:
            return list(verbs.rows("the users cannot be listed", "user.list", by="user"))
    except NotPenstock:
        return [
            {"user": name, "mechanisms": sorted(kept), "iterations": min(kept.values(), default=None)}
            for name, kept in fetch_users(server).items()
        ]


def _make(server: Server, name: str, roles: Sequence[str], *, certificate: bool, of_kafka: bool) -> None:
    """A user without a password yet.

    Args:
        of_kafka: whether a server of Kafka's can have such a one; there it is made by its password.
    """
    way_out = f"user {name!r} exists already; 'penstock user passwd {name}' sets another password"
    try:
        with Verbs(server) as verbs:
            told = f"user {name!r} cannot be created"
            verbs.ask(told, "user.create", user=name, roles=list(roles), certificate=certificate)
    except NotPenstock:
        if not of_kafka:
            raise
        if name in fetch_users(server):
            raise CommandError(way_out) from None
    except Refused as error:
        raise CommandError(way_out) if error.name == "DUPLICATE_RESOURCE" else error from None


def _delete(server: Server, names: Sequence[str]) -> dict[str, Fields]:
    """What went with each, and what is left; of a server of Kafka's only passwords can go."""
    try:
        with Verbs(server) as verbs:
            return {name: verbs.ask(f"user {name!r} cannot be deleted", "user.delete", user=name) for name in names}
    except NotPenstock:
        known = fetch_users(server)
        numbers = {word: number for number, word in _MECHANISMS.items()}
        gone = [{"name": name, "mechanism": numbers[each]} for name in names for each in known.get(name, ())]
        _alter(server, "deleted", deletions=gone)
        return {name: {} for name in names}


def _missing(name: str) -> Fields:
    return {"user": name, "status": "missing"}


def _tell_gone(row: Fields) -> str:
    told = f"deleted user {row['user']}"
    if row.get("api_keys"):
        told += f" with {count_of(row['api_keys'], 'API key')}"
    if row.get("rules") != 0:
        some = f"{count_of(row['rules'], 'rule')} about it" if "rules" in row else "rules about it"
        told += f"; {some} stay: 'penstock acl remove --user {row['user']}' removes them"
    return told


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


def _unknown(name: str, known: Sequence[str]) -> CommandError:
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {close[0]}?" if close else ""
    return CommandError(f"no user {name!r}{hint} ('penstock user list' shows them all)")
