"""`penstock apikey`: keys that stand for a user and its password, for a while, for programs."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli.acl_words import Words, right_options
from penstock.cli.connection import Server, server_of_words, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import note, output_option, print_table, show, show_list
from penstock.cli.user import UserName
from penstock.cli.verbs import Verbs, fields_of, format_moment

_UNITS_MS: Final = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 365 * 86_400_000}
_LONGEST_MS: Final = 100 * _UNITS_MS["y"]
_SPAN: Final = re.compile(r"(\d{1,9})([mhdwy])")
_KEY: Final = re.compile(r"(?:pk_)?([0-9a-f]{16})(?:_\S*)?")
_CANNOT_LIST: Final = "the API keys cannot be listed"


class Lifetime(click.ParamType[int]):
    """Milliseconds from `90d`, `12h`, `1y`; 0 for `never`."""

    name = "lifetime"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if text == "never":
            return 0
        found = _SPAN.fullmatch(text)
        lasts_ms = int(found[1]) * _UNITS_MS[found[2]] if found else 0
        if not 0 < lasts_ms <= _LONGEST_MS:
            self.fail(f"{text!r} is no lifetime; write 90d, 12h, 4w or 1y (at most 100y), or never.", param, ctx)
        return lasts_ms


class KeyId(click.ParamType[str]):
    """A key's id, from what is shown of it: `pk_0123456789abcdef_...`."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        found = _KEY.fullmatch(str(value).strip())
        if found is None:  # it is not quoted: it may be a secret
            self.fail(
                "that is no key; write what 'penstock apikey list' shows of it, pk_0123456789abcdef_...", param, ctx
            )
        return found[1]

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        try:
            with Verbs(server_of_words(ctx.params)) as verbs:
                rows = list(verbs.rows(_CANNOT_LIST, "apikey.list", by="id"))
        except Exception:  # noqa: BLE001 - a completion has nobody to tell
            return []
        return [CompletionItem(f"pk_{row['id']}") for row in rows if f"pk_{row['id']}".startswith(incomplete)]


@click.group("apikey", help="Create, list and delete API keys of users.")
def command() -> None:
    pass


@command.command(
    "create",
    short_help="Create an API key of a user.",
    help="""Create a key by which a program comes as a user. The key is shown this once, on standard output, and no
    broker can tell it again; --key-file writes it to a new file that only you may read. It may do what its user may;
    flags as those of 'penstock acl add' narrow it to less. It can never change users, rules or keys. --signing keeps
    its secret sealed on the brokers, for requests that are signed by it.""",
    epilog="""\b
Examples:
  penstock apikey create --for billing --expires 90d
  penstock apikey create --for billing --expires 1y --key-file billing.key --note 'nightly export'
  penstock apikey create --for report --expires 12h --allow read --topic orders""",
)
@click.option("--for", "user", metavar="USER", required=True, type=UserName(), help="Whose key it is.")
@click.option(
    "--expires", "lasts_ms", metavar="WHEN", required=True, type=Lifetime(), help="90d, 12h, 4w, 1y from now, or never."
)
@click.option("--signing", is_flag=True, help="Requests will be signed by it.")
@click.option("--note", "said", metavar="TEXT", default="", help="What it is for; the list shows it.")
@click.option("--key-file", "path", metavar="FILE", help="A new file for the key, in place of standard output.")
@right_options
@output_option
@server_options
def create(
    user: str, lasts_ms: int, signing: bool, said: str, path: str | None, words: Words, output: str, server: Server
) -> None:
    if path is not None and Path(path).exists():
        raise CommandError(f"{path} is there already; choose another name", code=USAGE)
    rules = None
    if not words.is_empty:
        rules = [fields_of(rule) for rule in replace(words, principals=("Key:new",)).rules()]
    with Verbs(server) as verbs:
        told = verbs.ask(
            f"user {user!r} cannot be given an API key",
            "apikey.create",
            user=user,
            lasts_ms=lasts_ms,
            signing=signing,
            note=said,
            rules=rules,
        )
    until = format_moment(told["until_ms"] or None)
    if path is not None:
        from penstock.cli.new_files import write_new

        try:
            write_new({Path(path): f"{told.pop('key')}\n".encode()}, replace=False)
        except (OSError, CommandError) as error:
            raise CommandError(
                f"the key could not be written to {path} ({error}), and is lost; "
                f"'penstock apikey delete pk_{told['id']}' removes it"
            ) from None
        told["key_file"] = path

    def lines() -> None:
        if path is None:
            click.echo(told["key"])
        where = f"is in {path}" if path is not None else "is shown this once"
        note(f"API key pk_{told['id']}_... of user {user} {where}; it ends {until or 'never'}")

    show(told, output, lines)


@command.command(
    "list",
    short_help="List API keys.",
    help="""List keys: what may be shown of each, whose it is, when it ends, the hour it was last used in. Times are
    this machine's.""",
    epilog="""\b
Examples:
  penstock apikey list
  penstock apikey list --for billing -o json""",
)
@click.option("--for", "user", metavar="USER", type=UserName(), help="Only of this user.")
@output_option
@server_options
def list_keys(user: str | None, output: str, server: Server) -> None:
    with Verbs(server) as verbs:
        rows = list(verbs.rows(_CANNOT_LIST, "apikey.list", by="id", user=user))

    def table() -> None:
        cells = [
            (
                row["prefix"],
                row["user"],
                "ended" if row["ended"] else format_moment(row["until_ms"]) or "never",
                format_moment(row["last_used_ms"]) or "never",
                ", ".join(_marks(row)) or None,
            )
            for row in rows
        ]
        print_table(cells, ["key", "user", "ends", "last used", "notes"])

    way_out = "'penstock apikey create --for USER --expires 90d' makes one"
    show_list(rows, output, "API keys", table, narrowed=user is not None, way_out=way_out)


@command.command(
    "delete",
    short_help="Delete API keys.",
    help="""Delete keys, by what the list shows of them. Connections that came by one are closed within a second. Asks
    first; without a terminal it needs --yes.""",
    epilog="""\b
Examples:
  penstock apikey delete pk_0123456789abcdef
  penstock apikey delete pk_0123456789abcdef_... --yes""",
)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True, type=KeyId())
@yes_option
@output_option
@server_options
def delete(keys: tuple[str, ...], yes: bool, output: str, server: Server) -> int | None:
    wanted = list(dict.fromkeys(keys))
    shown = ", ".join(f"pk_{key}_..." for key in wanted)
    if not yes and not confirm(f"Delete API key {shown}?", "nothing was deleted"):
        return FAILED
    with Verbs(server) as verbs:
        rows = [verbs.ask(f"API key pk_{key}_... cannot be deleted", "apikey.delete", id=key) for key in wanted]

    def lines() -> None:
        for row in rows:
            click.echo(f"deleted API key pk_{row['id']}_... of user {row['user']}")

    show(rows, output, lines)
    return None


def _marks(row: dict[str, Any]) -> list[str]:
    found = [row["note"]] if row["note"] else []
    if row["rules"] is not None:
        found.append("narrowed")
    if row["signing"]:
        found.append("signs")
    return found
