"""`penstock config`: check a broker's settings before it is started with them, and show what they come to."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from penstock.cli.failure import USAGE
from penstock.cli.output import note, output_option, print_table, show, show_list
from penstock.server import config_loading as settings
from penstock.server.config import Config
from penstock.server.config_layers import Given, read_assignments
from penstock.server.config_table import PARTITIONS_KEY, TOPIC_PREFIX


@click.group("config", help="Check and show the settings a broker would start with.")
def command() -> None:
    pass


@command.command(
    "check",
    help="""Check a settings file together with the environment, as 'penstock serve' would read them.

    FILE is a YAML file (default: $PENSTOCK_CONFIG, or none). All problems are listed, not only the first. The exit
    code is 0 when a broker would accept the settings, 2 when not. It does not check whether ports are free.""",
    epilog="""\b
Examples:
  penstock config check penstock.yaml
  PENSTOCK_NODE__ID=2 penstock config check
  penstock config check penstock.yaml -o json""",
)
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="A setting, as a flag of serve would be."
)
@output_option
def check(file: str | None, assignments: tuple[str, ...], output: str) -> int:
    flags = read_assignments(list(assignments), "--set")
    errors, given = settings.find_problems(file=file, flags=flags)
    problems = [str(error) for error in errors]
    problems += _topic_problems(given)
    if not any(problem.startswith("data_dir") for problem in problems):
        problems += _directory_problems(given)
    place = file or os.environ.get(settings.ENV_CONFIG_FILE)

    def table() -> None:
        for problem in problems:
            click.echo(f"- {problem}")
        what = f"{place} and the environment" if place else "the environment"
        verdict = f"{len(problems)} problems" if len(problems) != 1 else "1 problem"
        click.echo(f"{what}: {verdict}" if problems else f"{what}: sound, {len(given)} settings given")

    if not errors:
        for name in settings.load(file=file, flags=flags).ignored_env:
            note(f"{name} in the environment is no setting and is ignored")
    show({"file": place, "sound": not problems, "problems": problems}, output, table)
    return USAGE if problems else 0


def _topic_problems(given: Mapping[str, Given]) -> list[str]:
    from penstock.engine.topic_config import check_settings
    from penstock.errors import PenstockError

    problems = []
    for key, each in given.items():
        if key.startswith(TOPIC_PREFIX) and key != PARTITIONS_KEY:
            value = settings.topic_value(key, each)
            try:
                check_settings({key.removeprefix(TOPIC_PREFIX): value})
            except PenstockError as error:
                problems.append(f"{key} (from {each.source}): {error}")
    return problems


def _directory_problems(given: Mapping[str, Given]) -> list[str]:
    """Whether a broker could use, or make, the data directory."""
    each = given.get("data_dir")
    path = Path(str(each.value)) if each is not None else Config().data_dir
    what = f"data_dir = {str(path)!r} (from {each.source if each is not None else settings.DEFAULT_SOURCE})"
    if path.exists() and not path.is_dir():
        return [f"{what} is a file; name a directory"]
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return [f"{what} cannot be made: {place} is a file"]
    if not os.access(place, os.W_OK | os.X_OK):
        deed = "written to" if place == path.absolute() else f"made in {place}"
        return [f"{what} cannot be {deed} by this user; change its owner, or name another"]
    return []


@command.command(
    "show",
    help="""Show the settings a broker would start with, and where each of them is set.

    The order is: default, file, environment, flag; the last one wins.""",
    epilog="""\b
Examples:
  penstock config show
  penstock config show --config penstock.yaml --changed
  penstock config show --topic-settings""",
)
@click.option("--config", "file", metavar="FILE", help="YAML file with settings (default: $PENSTOCK_CONFIG, or none).")
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="A setting, as a flag of serve would be."
)
@click.option("--changed", is_flag=True, help="Leave out what is as by default.")
@click.option("--topic-settings", is_flag=True, help="Show the settings topics may have, instead.")
@output_option
def show_settings(
    file: str | None,
    assignments: tuple[str, ...],
    changed: bool,
    topic_settings: bool,
    output: str,
) -> None:
    found = settings.explain(file=file, flags=read_assignments(list(assignments), "--set"))
    if topic_settings:
        _show_topic_settings(found, output)
        return
    rows = [
        {
            "key": each.key,
            "value": _plain(each.value),
            "origin": _origin(each.source),
            "source": each.source,
            "purpose": each.purpose,
        }
        for each in found
        if not (changed and each.is_default)
    ]
    cells = [[row["key"], _word(row["value"]), row["source"], row["purpose"]] for row in rows]
    heads = ["key", "value", "source", "purpose"]
    show_list(rows, output, "changed settings", lambda: print_table(cells, heads))


def _show_topic_settings(found: list[settings.Effective], output: str) -> None:
    from penstock.engine.topic_config import SETTINGS

    given = {each.key: each for each in found}
    rows: list[dict[str, Any]] = []
    for setting in SETTINGS.values():
        here = given.get(TOPIC_PREFIX + setting.name)
        rows.append(
            {
                "name": setting.name,
                "default": str(here.value) if here is not None else setting.default,
                "source": here.source if here is not None else settings.DEFAULT_SOURCE,
                "type": setting.kind,
                "documentation": setting.documentation,
            }
        )
    names = ["name", "default", "source", "type", "documentation"]
    show(rows, output, lambda: print_table([[row[name] for name in names] for row in rows], names))


def _plain(value: object) -> object:
    return value if isinstance(value, int) or value is None else str(value)


def _word(value: object) -> object:
    """As it would be written in a file."""
    return str(value).lower() if isinstance(value, bool) else value


def _origin(source: str) -> str:
    if source == settings.DEFAULT_SOURCE:
        return "default"
    if source.startswith("file "):
        return "file"
    return "env" if source.startswith(settings.ENV_PREFIX) else "flag"
