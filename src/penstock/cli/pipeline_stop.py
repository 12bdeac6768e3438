"""`penstock pipeline stop`: say that pipelines shall not run, and wait until their micro-batches are done."""

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from penstock.cli import pipeline_status
from penstock.cli.failure import USAGE, CommandError
from penstock.cli.output import note, output_option, progress, show
from penstock.cli.pipeline_home import (
    LOOK_EVERY_S,
    PipelineWord,
    busy_elsewhere,
    home_option,
    open_home,
    timeout_option,
    translated,
)
from penstock.cli.pipeline_status import Seen, find_name, see

if TYPE_CHECKING:
    from penstock.pipelines.driver.presence import Presence
    from penstock.pipelines.home import Home, PipelineDirectory


@click.command(
    "stop",
    short_help="Stop pipelines that run in the background.",
    help="""Stop pipelines that run in the background, and wait until they have: each finishes the micro-batch it is at
    first. A pipeline that is stopped stays so until it is started again.

    --driver ends the driver process too. Alone, without a name or --all, it stops all pipelines with it, and the next
    driver takes them up again.""",
    epilog="""\b
Examples:
  penstock pipeline stop revenue
  penstock pipeline stop --all --driver
  penstock pipeline stop --driver         then start any pipeline: all go on in a new driver""",
)
@click.argument("words", metavar="[NAME...]", nargs=-1, type=PipelineWord())
@click.option("--all", "everything", is_flag=True, help="All pipelines.")
@click.option("--driver", "ending_driver", is_flag=True, help="End the driver process too.")
@timeout_option
@home_option
@output_option
def stop(
    words: tuple[str, ...], everything: bool, ending_driver: bool, timeout_s: float, home: str | None, output: str
) -> None:
    from penstock.pipelines.driver.presence import Presence

    if bool(words) == everything and not (ending_driver and not words):
        raise CommandError("say which pipelines: either NAME... or --all", code=USAGE)
    deadline = time.monotonic() + timeout_s
    with translated():
        opened = open_home(home)
        presence = Presence(opened)
        names = [find_name(opened, word) for word in dict.fromkeys(words)] if words else []
        names = opened.names() if everything else names
        before = {name: _ask_to_stop(opened, name, presence, strict=not everything) for name in names}
        done = _wait_for_stop(opened, before, deadline, timeout_s)
        if ending_driver:
            done["the driver"] = _end_driver(presence, deadline)

    def lines() -> None:
        if not done:
            note("no pipelines run")
        for name, what in done.items():
            click.echo(f"{name}: {what}")

    show([{"name": name, "result": what} for name, what in done.items()], output, lines)


def _ask_to_stop(home: "Home", name: str, presence: "Presence", *, strict: bool) -> str:
    """Save the wish; returns the state before, or "" where there is nothing to do.

    Unless `strict`, what is in the way of stopping one pipeline does not keep others from it.
    """
    from penstock.pipelines.errors import PipelineError
    from penstock.pipelines.home import Wanted, Wish

    directory = home.pipeline(name)
    holder, driver = directory.holder(), presence.holder()
    if holder is not None and holder.pid and (driver is None or driver.pid != holder.pid):
        if strict:
            raise busy_elsewhere(name, holder)
        note(str(busy_elsewhere(name, holder)))
        return ""
    try:
        wanted = directory.load_wanted()
        asked = wanted is not None and wanted.state is Wish.RUNNING
        if wanted is not None and asked:
            directory.save_wanted(Wanted(wanted.file, Wish.STOPPED, wanted.once))
        seen = see(home, name)
    except PipelineError as error:
        if strict:
            raise
        note(f"{name}: {error}")
        return ""
    return seen.state if strict or asked or seen.is_at_work else ""


def _wait_for_stop(home: "Home", before: dict[str, str], deadline: float, timeout_s: float) -> dict[str, str]:
    """What became of each."""
    done: dict[str, str] = {}
    with progress("stopping", len(before), unit="pipelines") as bar:
        for name, state in before.items():
            if not state:
                continue
            seen = see(home, name)
            while seen.is_at_work:
                if time.monotonic() > deadline:
                    raise CommandError(
                        f"pipeline {name} is {seen.state} still, after {timeout_s:g} s: it finishes its micro-batch "
                        f"first, and then stops. 'penstock pipeline status {name} --watch' shows it"
                    )
                time.sleep(LOOK_EVERY_S)
                seen = see(home, name)
            if seen.state == pipeline_status.DIED:
                _mark_stopped(home.pipeline(name), seen)
            done[name] = _tell_stop(state, seen)
            bar.advance(1)
    return done


def _tell_stop(before: str, seen: Seen) -> str:
    if seen.state == pipeline_status.DIED:
        return "its process had died; stopped"
    if before in ("stopped", "finished", "failed", pipeline_status.NEW):
        return {"failed": "had failed already", pipeline_status.NEW: "nobody has run it"}.get(before, f"was {before}")
    return f"failed: {seen.reason}" if seen.state == "failed" else seen.state


def _mark_stopped(directory: "PipelineDirectory", seen: Seen) -> None:
    """Nobody is left to say it."""
    from dataclasses import replace

    from penstock.pipelines.home import State

    assert seen.status is not None
    with directory.locked(f"penstock pipeline stop {seen.name}"):
        reason = f"process {seen.status.pid} died"
        directory.save_status(
            replace(seen.status, state=State.STOPPED, reason=reason, rows_per_s=0.0, updated_ms=seen.at_ms)
        )
    directory.events.write("warning", "stopped", f"{reason}; it was stopped after that")


def _end_driver(presence: "Presence", deadline: float) -> str:
    holder = presence.holder()
    if holder is None:
        return "is not up"
    if holder.pid:
        with suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)
    with progress("ending the driver"):
        while (now := presence.holder()) is not None and now.pid == holder.pid:
            if time.monotonic() > deadline:
                raise CommandError(
                    f"the driver, process {holder.pid}, is at a micro-batch still and ends after it; 'kill -9 "
                    f"{holder.pid}' ends it now, and the next start repeats that micro-batch"
                )
            time.sleep(LOOK_EVERY_S)
    return "ended"
