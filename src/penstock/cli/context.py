"""`penstock context`: name the servers you work with, and choose one."""

import os
from pathlib import Path

import click

from penstock.cli import login
from penstock.cli.connection import read_properties
from penstock.cli.contexts import Contexts, complete_context
from penstock.cli.output import note, output_option, print_table, show_list
from penstock.client.contexts import Context
from penstock.client.credentials import anchored


@click.group("context", help="Name the servers you work with, and choose one of them.")
def command() -> None:
    pass


@command.command("list", help="Show all contexts; the current one has a star.")
@output_option
def list_contexts(output: str) -> None:
    contexts = Contexts.load(os.environ)
    known = sorted(contexts.by_name.items())
    rows = [
        {
            "name": name,
            "current": name == contexts.current,
            "server": each.server,
            "properties": sorted(each.properties),
        }
        for name, each in known
    ]

    def table() -> None:
        star = {contexts.current: "*"}
        cells = [
            (star.get(name, ""), name, each.server, ", ".join(sorted(each.properties)) or None) for name, each in known
        ]
        print_table(cells, ["", "name", "server", "properties"])

    show_list(rows, output, "contexts", table, way_out="'penstock context add NAME --server HOST:PORT' adds one")


@command.command(
    "add", help="Add a context, or replace the one of that name whole. The first one becomes the current one."
)
@click.argument("name")
@click.option("-s", "--server", required=True, metavar="HOST:PORT", help="The server, or several, with commas.")
@click.option(
    "-X",
    "properties",
    metavar="KEY=VALUE",
    multiple=True,
    help="A librdkafka property to use with it; sasl.password.file=FILE for a password.",
)
def add(name: str, server: str, properties: tuple[str, ...]) -> None:
    given = read_properties(properties)
    login.refuse_secrets(given)
    contexts = Contexts.load(os.environ)
    contexts.by_name[name] = Context(server, anchored(given, Path.cwd()))
    contexts.current = contexts.current or name
    contexts.save()
    note(f"context {name} is {server}, in {contexts.path}")


@command.command("use", help="Make a context the current one.")
@click.argument("name", shell_complete=complete_context)
def use(name: str) -> None:
    contexts = Contexts.load(os.environ)
    contexts.get(name)
    contexts.current = name
    contexts.save()
    note(f"context {name} is now current")


@command.command("remove", help="Forget a context.")
@click.argument("name", shell_complete=complete_context)
def remove(name: str) -> None:
    contexts = Contexts.load(os.environ)
    if name not in contexts.by_name:
        contexts.get(name)  # which says so
    del contexts.by_name[name]
    if contexts.current == name:
        contexts.current = None
    contexts.save()
    note(f"context {name} is gone")
