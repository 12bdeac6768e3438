"""Asking before something is changed that cannot be changed back."""

import sys

import click

from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import note

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, otherwise: str) -> bool:
    """Ask on the terminal; where there is none, only --yes can answer. `otherwise` is said after a no."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Nobody can be asked here: say --yes", code=USAGE)
    agreed = click.confirm(question, err=True)
    if not agreed:
        note(otherwise)
    return agreed
