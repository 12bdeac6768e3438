"""`penstock security`: what mode closed would refuse, and what secrets are sealed by."""

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

import click

from penstock.cli.connection import Server, server_options
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import count_of, note, output_option, print_table, printable, show
from penstock.cli.verbs import Verbs, rule_of

Row = dict[str, Any]
_FLAGS: Final = {"topic": "--topic", "group": "--group", "transactional id": "--transactional-id"}
_WHAT_REFUSED: Final = "what would be refused cannot be listed"
_WHAT_SEALED: Final = "what secrets are sealed by cannot be told"
_SETTING: Final = "security.other_seal_key_files"


@click.group("security", help="Look what mode closed would refuse; replace the key that secrets are sealed by.")
def command() -> None:
    pass


@command.command(
    "check",
    short_help="List what mode closed would refuse.",
    help="""List what clients have done while security.mode was 'watch' and 'closed' would have refused, most often
    first, each with the command that would permit it. Asks every broker, as each counts for itself, from its start or
    the last --clear. What the rules allow by now is left out; --all shows it too. Exit code 1 says that there is
    something, or that a broker could not be asked.""",
    epilog="""\b
Examples:
  penstock security check
  penstock security check --clear
  penstock security check -o json""",
)
@click.option("--all", "everything", is_flag=True, help="Also what the rules allow by now.")
@click.option("--clear", is_flag=True, help="Let the brokers forget it, and count from now on.")
@output_option
@server_options
def check(everything: bool, clear: bool, output: str, server: Server) -> int | None:
    with Verbs(server) as verbs:
        told, silent = verbs.ask_all(_WHAT_REFUSED, "security.refusals")
        if clear:
            verbs.ask_all("what was counted cannot be forgotten", "security.forget")
    rows = sorted(_merge(told), key=lambda row: (-row["count"], row["principal"], row["kind"], row["name"] or ""))
    shown = [row for row in rows if everything or not row["allowed_now"]]
    open_rules = told[0]["open_rules"] if told else []
    answer = {
        "mode": sorted({each["mode"] for each in told}),
        "would_be_refused": shown,
        "unlisted": sum(each["unlisted"] for each in told),
        "rules_for_everybody": open_rules,
        "brokers_not_asked": sorted(silent),
    }

    def lines() -> None:
        if shown:
            cells = [
                (row["count"], row["principal"], row["operation"], row["kind"], row["name"] or "(any)") for row in shown
            ]
            print_table(cells, ["times", "who", "operation", "kind", "name"])
            click.echo()
        for line in dict.fromkeys(row["permit"] for row in shown if row["permit"] and not row["allowed_now"]):
            click.echo(line)

    show(answer, output, lines)
    _note_about(answer, rows, everything=everything)
    left = sum(not row["allowed_now"] for row in rows)
    if left or answer["unlisted"]:
        raise CommandError(f"closed would refuse {count_of(left, 'thing')} that clients did")
    return FAILED if silent else None


def _merge(told: Iterable[Row]) -> list[Row]:
    """What brokers have counted, as one."""
    found: dict[tuple[str, ...], Row] = {}
    for answer in told:
        for row in answer["rows"]:
            key = (row["principal"], row["operation"], row["kind"], row["name"] or "", str(row["is_whole"]))
            kept = found.setdefault(key, {**row, "count": 0, "permit": permit(row)})
            kept["count"] += row["count"]
            kept["allowed_now"] = kept["allowed_now"] and row["allowed_now"]
    rows = list(found.values())
    for row in rows:
        if _is_implied(row, rows):
            row["permit"] = None
    return rows


def _is_implied(row: Row, rows: Iterable[Row]) -> bool:
    """Whether what permits another one of the rows permits this one as well."""
    from penstock.engine.access import Operation
    from penstock.security.rules import IMPLYING

    more = IMPLYING.get(Operation(row["operation"]), ())
    for other in rows:
        if other["principal"] != row["principal"] or not other["permit"]:
            continue
        if (other["kind"], other["name"]) == (row["kind"], row["name"]) and other["operation"] in more:
            return True
        if _is_idempotence(row) and other["kind"] == "topic" and other["operation"] == "write" and other["name"]:
            return True
    return False


def _is_idempotence(row: Mapping[str, Any]) -> bool:
    """Whoever may write any topic may do this, too (KIP-679)."""
    return row["operation"] == "idempotent_write" or (row["name"] is None and row["operation"] == "write")


def permit(row: Mapping[str, Any]) -> str | None:
    """The command that makes a rule which allows it; None where there can be none."""
    kind, _, name = row["principal"].partition(":")
    operation, resource = row["operation"].replace("_", "-"), row["name"] or ""
    if _is_idempotence(row):
        operation, about = "idempotent-write", "--cluster"  # a rule for all topics would allow too much
    elif row["kind"] == "cluster":
        about = "--cluster"
    elif row["kind"] in _FLAGS and row["is_whole"] and resource and resource.isprintable():
        about = _flag(_FLAGS[row["kind"]], resource)
    else:
        return None
    if not name.isprintable():
        return None
    whom = _flag("--user", name) if kind == "User" else _flag("--principal", row["principal"])
    return f"penstock acl add {whom} --allow {operation} {about}"


def _flag(flag: str, value: str) -> str:
    """With its value; one that would be taken for a flag is joined to it."""
    return f"{flag}={shlex.quote(value)}" if value.startswith("-") else f"{flag} {shlex.quote(value)}"


def _note_about(answer: Row, rows: list[Row], *, everything: bool) -> None:
    mended = sum(row["allowed_now"] for row in rows)
    if mended and not everything:
        note(
            f"the rules allow {count_of(mended, 'other thing')} by now, unless an API key narrows it; --all shows them"
        )
    if answer["unlisted"]:
        note(f"{count_of(answer['unlisted'], 'more refusal')} found no room in the lists of the brokers")
    for each in answer["rules_for_everybody"]:
        note(f"everybody has a right that is as wide as can be: {printable(str(rule_of(each)))}")
    for broker in answer["brokers_not_asked"]:
        note(f"broker {broker} does not answer: what it has counted is missing")
    if answer["mode"] != ["watch"]:
        modes = " and ".join(answer["mode"])
        note(f"security.mode is {modes}: only 'watch' counts what closed would refuse")
    elif not rows:
        note("nothing was counted since the brokers were started, or --clear was said")


@command.command(
    "new-key",
    short_help="Make a file with a new key.",
    help="""Make a new file with a new key that secrets can be sealed by (security.seal_key_file), on this machine.
    Only its owner may read it. Copy it to every broker, and keep a copy elsewhere: without it, what it has sealed is
    lost.""",
    epilog="""\b
Examples:
  penstock security new-key sealing-2.key""",
)
@click.argument("path", metavar="FILE")
def new_key(path: str) -> None:
    import os
    import random

    from penstock.security.secret_files import load_key

    if os.path.lexists(path):
        raise CommandError(f"{path} is there already; choose another name", code=USAGE)
    load_key(path, random.SystemRandom())
    click.echo(f"made {path}")


@command.command(
    "rotate-key",
    short_help="Seal all secrets anew by the key in use.",
    help="""Seal the secrets of signing API keys anew, by the key that the brokers seal by now. That is the second of
    three steps, and at no moment a broker meets a secret that it cannot open:

    \b
    1. Give every broker the new key, first as one that only opens
       (security.other_seal_key_files), then as the one that seals
       (security.seal_key_file, with the old one among the others).
       Restart the brokers one after the other for each.
    2. penstock security rotate-key
    3. Take the old key out of the settings.

    It asks every broker which keys it has, and changes nothing while one of them lacks the key or does not answer.
    --dry-run only tells. Asks first; without a terminal it needs --yes.""",
    epilog="""\b
Examples:
  penstock security rotate-key --dry-run
  penstock security rotate-key --yes""",
)
@click.option("--dry-run", is_flag=True, help="Only tell which broker has which keys, and what is sealed by them.")
@yes_option
@output_option
@server_options
def rotate_key(dry_run: bool, yes: bool, output: str, server: Server) -> int | None:
    with Verbs(server) as verbs:
        told, silent = verbs.ask_all(_WHAT_SEALED, "security.sealing")
        counts = {key: max(each["secrets"].get(key, 0) for each in told) for key in _keys(told)}
        if dry_run:
            answer = {"brokers": told, "brokers_not_asked": sorted(silent), "secrets": counts}
            show(answer, output, lambda: _print_keys(told, counts))
            for broker in silent:
                note(f"broker {broker} does not answer")
            return None
        by = _check_ready(told, silent)
        old = sum(count for key, count in counts.items() if key != by)
        if old and not yes and not confirm(f"Seal {count_of(old, 'secret')} anew by key {by}?", "nothing was changed"):
            return FAILED
        done = verbs.ask("the secrets cannot be sealed anew", "security.reseal", by=by) if old else {"resealed": 0}
    unused = sorted({key for each in told for key in each["opens"]} - {by})

    def lines() -> None:
        click.echo(f"sealed {count_of(done['resealed'], 'secret')} anew by key {by}")
        if unused:
            click.echo(f"nothing is sealed by {', '.join(unused)} any more; take it out of {_SETTING}")

    show({"by": by, "resealed": done["resealed"], "unused": unused}, output, lines)
    return None


def _check_ready(told: list[Row], silent: Iterable[int]) -> str:
    """The key that all brokers seal by. Raises `CommandError` while there is none, or a broker may not know it."""
    if missing := sorted(silent):
        names = ", ".join(map(str, missing))
        raise CommandError(
            f"broker {names} does not answer, and may not have the key; start it, or take it out of the cluster"
        )
    seals = sorted({each["seals"] for each in told})
    for each in told:
        if lacking := [key for key in seals if key not in each["opens"]]:
            raise CommandError(
                f"broker {each['broker']} does not have key {lacking[0]}, by which others seal; add its file to "
                f"{_SETTING} there and restart it"
            )
    if len(seals) > 1:
        by = "; ".join(f"broker {each['broker']} by {each['seals']}" for each in told)
        raise CommandError(f"brokers seal by different keys ({by}); set security.seal_key_file to the same on all")
    return str(seals[0])


def _keys(told: Iterable[Row]) -> list[str]:
    return sorted({key for each in told for key in (*each["opens"], *each["secrets"])})


def _print_keys(told: list[Row], counts: Mapping[str, int]) -> None:
    cells = []
    for key, count in counts.items():
        sealing = ", ".join(str(each["broker"]) for each in told if each["seals"] == key)
        opening = ", ".join(str(each["broker"]) for each in told if key in each["opens"])
        cells.append((key, count, sealing or None, opening or None))
    print_table(cells, ["key", "secrets", "seals on", "opens on"])
