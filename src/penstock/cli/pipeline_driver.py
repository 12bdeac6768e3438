"""`penstock pipeline list | status | logs | reset`, and with `start` and `stop` all commands for the background.

One driver process runs the pipelines. Commands say what is wanted and look at what became of it, through files only
(penstock.pipelines.home), so none of them needs Spark.
"""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from penstock.cli import pipeline_status
from penstock.cli.consent import confirm, yes_option
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import note, output_option, printable, show
from penstock.cli.pipeline_home import (
    LOOK_EVERY_S,
    PipelineWord,
    home_option,
    open_home,
    translated,
    word_argument,
)
from penstock.cli.pipeline_start import start
from penstock.cli.pipeline_status import find_name, format_seen, see
from penstock.cli.pipeline_stop import stop
from penstock.cli.watch import WatchCommand, answer, watch_option

if TYPE_CHECKING:
    from penstock.cli.connection import Server
    from penstock.pipelines.home import Event, Home

_LOG_LINES: Final = 20


@click.command(
    "list",
    help="""List pipelines with their state, rate and lag: all that this home knows, whether they run or not, in the
    background or in a terminal.""",
    epilog="""\b
Examples:
  penstock pipeline list
  penstock pipeline list -o json""",
)
@home_option
@output_option
def list_pipelines(home: str | None, output: str) -> None:
    from penstock.pipelines.driver.presence import Presence

    opened = open_home(home)
    found = [_see_or_explain(opened, name) for name in opened.names()]

    def table() -> None:
        driver = None
        with translated():
            driver = Presence(opened).find()
        pipeline_status.print_list(found, driver)

    show(found, output, table)


def _see_or_explain(home: "Home", name: str) -> dict[str, Any]:
    """A pipeline whose files are damaged is one line of the list, and not the end of it."""
    from penstock.pipelines.errors import PipelineError

    try:
        return format_seen(see(home, name))
    except PipelineError as error:
        return {"pipeline": name, "state": "unknown", "reason": str(error), "wanted": None, "silent_s": None}


class _Files:
    """What `answer` asks in a server's place."""

    def admin(self) -> "_Files":
        return self


@click.command(
    "status",
    cls=WatchCommand,
    short_help="Show how a pipeline does.",
    help="""Show how a pipeline does: state, rate, lag, the last micro-batch, dead letters; then its sources, its steps
    with the expectations that rows broke, and its sinks with what troubles them. Counts are totals since the pipeline
    began, over restarts.

    States: starting, running, waiting (something is away and is tried again), stopping, stopped, finished (--once),
    failed, died (its process is gone), new (nobody has run it). NAME may be the pipeline's file.""",
    epilog="""\b
Examples:
  penstock pipeline status revenue
  penstock pipeline status revenue --watch
  penstock pipeline status revenue -o json | jq .lag""",
)
@word_argument
@watch_option
@home_option
@output_option
def status(word: str, interval_s: float | None, home: str | None, output: str) -> None:
    opened = open_home(home)
    with translated():
        name = find_name(opened, word)

    def ask(_: object) -> dict[str, Any]:
        with translated():
            return format_seen(see(opened, name))

    answer(cast("Server", _Files()), interval_s, output, ask, pipeline_status.print_seen)


@click.command(
    "logs",
    short_help="Show what happened to a pipeline.",
    help="""Show what happened to a pipeline: starts, stops, trouble, failures with their reason; oldest first. With
    --driver, what the driver process and Spark said instead.""",
    epilog="""\b
Examples:
  penstock pipeline logs revenue
  penstock pipeline logs revenue -f
  penstock pipeline logs revenue -n 1000 -o json | jq 'select(.level == "error")'
  penstock pipeline logs --driver -f""",
)
@click.argument("word", metavar="[NAME]", required=False, type=PipelineWord())
@click.option("-f", "--follow", is_flag=True, help="Go on until Ctrl+C, with new lines as they come.")
@click.option(
    "-n",
    "--lines",
    "count",
    metavar="N",
    type=click.IntRange(0, 1_000_000),
    default=_LOG_LINES,
    show_default=True,
    help="How many of the last lines.",
)
@click.option("--driver", "of_driver", is_flag=True, help="The driver's own log.")
@home_option
@output_option
def logs(word: str | None, follow: bool, count: int, of_driver: bool, home: str | None, output: str) -> None:
    from penstock.pipelines.driver.presence import Presence

    if (word is None) != of_driver:
        raise CommandError("say whose log: either NAME or --driver", code=USAGE)
    opened = open_home(home)
    if word is None:
        if output != "table":
            raise CommandError(f"-o {output}: the driver's log is plain text", code=USAGE)
        _print_text(Presence(opened).log, count, follow)
        return
    with translated():
        name = find_name(opened, word)
        events = opened.pipeline(name).events
        for event in events.follow(count) if follow else events.read(count):
            _print_event(event, output)


def _print_event(event: "Event", output: str) -> None:
    if output == "json":
        import orjson

        click.echo(orjson.dumps(event.to_json()))
    elif output == "yaml":
        click.echo("---")
        show(event.to_json(), "yaml", lambda: None)
    else:
        facts = " ".join(f"{name}={value}" for name, value in event.facts.items())
        click.echo(printable(f"{event.time}  {event.level:7}  {event.text}{'  ' if facts else ''}{facts}"))
    sys.stdout.flush()


def _print_text(path: Path, count: int, follow: bool) -> None:
    if not path.exists():
        raise CommandError(f"{path} does not exist: no driver has been up here")
    with open(path, "rb") as file:
        for line in file.read().splitlines()[-count:] if count else []:
            click.echo(printable(line.decode("utf-8", "replace")))
        while follow:
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)  # it was emptied when it had grown too large
            line = file.readline()
            if line:
                click.echo(printable(line.decode("utf-8", "replace").rstrip("\n")))
            else:
                sys.stdout.flush()
                time.sleep(LOOK_EVERY_S)


@click.command(
    "reset",
    short_help="Make a pipeline begin anew.",
    help="""Make a pipeline begin anew: its checkpoint, what its sinks keep here, its identity and its counts are moved
    to previous-N in its directory. Nothing is deleted.

    The next start reads the sources from where their 'from' says, and the rows it writes are new to the sinks: those
    keep what they have, so rows that were written before are written again. Asks first; the pipeline must not be at
    work.""",
    epilog="""\b
Examples:
  penstock pipeline reset revenue
  penstock pipeline reset revenue --yes""",
)
@word_argument
@yes_option
@home_option
@output_option
def reset(word: str, yes: bool, home: str | None, output: str) -> int | None:
    with translated():
        opened = open_home(home)
        name = find_name(opened, word)
        directory = opened.pipeline(name)
        if (holder := directory.holder()) is not None:
            raise CommandError(
                f"pipeline {name} is at work in process {holder.pid} ({holder.command}); stop it first: penstock "
                f"pipeline stop {name}, or Ctrl+C where it runs"
            )
        if not yes:
            note(f"the state of {name} moves to a directory previous-N in {directory.path}; sinks keep what they have")
            note("the next start reads the sources from where their 'from' says, and writes what it reads again")
            if not confirm(f"Reset {name}?", "nothing was reset"):
                return FAILED
        moved = directory.reset()
    facts = {"pipeline": name, "moved_to": None if moved is None else str(moved)}
    said = f"{name} has no state to reset" if moved is None else f"{name} begins anew; its state was moved to {moved}"
    show(facts, output, lambda: click.echo(said))
    return None


COMMANDS: Final = (start, list_pipelines, status, stop, logs, reset)
