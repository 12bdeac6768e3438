"""`penstock version`: what is installed here."""

import platform

import click

from penstock import __version__
from penstock.cli.output import output_option, show
from penstock.compiled import form


@click.command("version", help="Print the version of Penstock and of what it runs on.")
@output_option
def command(output: str) -> None:
    facts = {
        "penstock": __version__,
        "records": form(),
        "python": platform.python_version(),
        "system": platform.system().lower(),
    }
    show(facts, output, lambda: click.echo(f"penstock {__version__} (records: {form()})"))
