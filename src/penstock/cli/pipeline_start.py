"""`penstock pipeline start`: say that a pipeline shall run, see to it that a driver is up, wait until it does."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import output_option, progress, show
from penstock.cli.pipeline_home import (
    LOOK_EVERY_S,
    busy_elsewhere,
    home_option,
    open_home,
    read_spec,
    timeout_option,
    translated,
)
from penstock.cli.pipeline_status import Seen, see

if TYPE_CHECKING:
    import subprocess

    from penstock.pipelines.driver.presence import Presence
    from penstock.pipelines.home import PipelineDirectory, Status, Wanted


@click.command(
    "start",
    short_help="Run a pipeline in the background.",
    help="""Run a pipeline in the background, from its file, and return when it runs.

    One driver process runs all pipelines of this home in one Spark session; the first start begins it, which takes some
    seconds. It ends by itself when nothing has run for ten minutes. If it dies, 'start' of any pipeline starts a new
    one, which continues all pipelines that were running, each after its last micro-batch.

    A pipeline that failed stays so until you start it again. To take up a changed file, stop the pipeline first.""",
    epilog="""\b
Examples:
  penstock pipeline start revenue.yaml
  penstock pipeline start revenue.yaml --once           what there is now, then the end
  penstock pipeline start revenue.yaml --master spark://cluster:7077
  penstock pipeline start revenue.yaml --http 0.0.0.0:9100""",
)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))
@click.option("--once", is_flag=True, help="Read what there is now, write it, and end.")
@click.option("--master", metavar="URL", help="Spark's master, for a driver that is begun now (default: local[*]).")
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where a driver that is begun now answers /health and /metrics (default: 127.0.0.1 and a free port).",
)
@click.option("--no-wait", is_flag=True, help="Return at once; 'status' shows how it goes.")
@timeout_option
@home_option
@output_option
def start(
    file: str,
    once: bool,
    master: str | None,
    http: str | None,
    no_wait: bool,
    timeout_s: float,
    home: str | None,
    output: str,
) -> None:
    from penstock.pipelines.driver.presence import DEFAULT_MASTER, Presence
    from penstock.pipelines.home import Wanted, Wish
    from penstock.pipelines.run.sessions import check_installed

    with translated():
        opened = open_home(home)
        spec = read_spec(Path(file))
        directory = opened.claim(spec.name, file)
        presence = Presence(opened)
        _refuse_other_driver(presence, master, http)
        seen = see(opened, spec.name)
        path = os.path.abspath(file)
        if seen.is_at_work and seen.state != "stopping":
            _refuse_other_run(seen, presence, path)
            _show_started(seen, presence, output, "runs already; to take up a changed file, stop it first")
            return
        if presence.holder() is None:
            check_installed(master or DEFAULT_MASTER)
        wanted = Wanted(path, Wish.RUNNING, once)
        directory.save_wanted(wanted)
        launch = _Launch(presence, master, http)
        launch.ensure()
        if not no_wait:
            with progress(f"starting {spec.name}"):
                _wait_for_start(directory, wanted, launch, timeout_s)
        _show_started(see(opened, spec.name), presence, output, "is asked for" if no_wait else "")


class _Launch:
    """Sees to it that a driver is up."""

    def __init__(self, presence: "Presence", master: str | None, http: str | None) -> None:
        self._presence = presence
        self._master = master
        self._http = http
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> int:
        """The driver's process id, or 0 while it begins. Raises `CommandError`: it does not come up."""
        from penstock.pipelines.driver.presence import DEFAULT_HTTP, DEFAULT_MASTER

        holder = self._presence.holder()
        if holder is not None:
            return holder.pid
        if self._process is None:
            self._process = self._presence.spawn(self._master or DEFAULT_MASTER, self._http or DEFAULT_HTTP)
        elif self._process.poll() is not None and self._presence.holder() is None:
            lines, ended = _last_lines(self._presence.log, 3), self._process.returncode
            raise CommandError(
                f"the driver ended with code {ended}: {' / '.join(lines) or 'it said nothing'}; all "
                "it said: penstock pipeline logs --driver",
                code=USAGE if ended == USAGE else FAILED,
            )
        return 0


def _wait_for_start(directory: "PipelineDirectory", wanted: "Wanted", launch: _Launch, timeout_s: float) -> None:
    from penstock.pipelines.home import State

    deadline = time.monotonic() + timeout_s
    strangers = 0
    while time.monotonic() < deadline:
        status = directory.load_status()
        said = status if status is not None and status.updated_ms >= wanted.asked_ms else None
        if said is not None and said.state is State.FAILED:
            raise _failed(said)
        if said is not None and said.state not in (State.STARTING, State.STOPPING):
            return
        driver, holder = launch.ensure(), directory.holder()
        # A command may have the lock for a moment; who has it twice in a row keeps it.
        strangers = strangers + 1 if driver and holder and holder.pid not in (0, driver) else 0
        if holder is not None and strangers > 1:
            raise busy_elsewhere(directory.name, holder)
        time.sleep(LOOK_EVERY_S)
    raise CommandError(
        f"pipeline {directory.name} does not run after {timeout_s:g} s; it is still being tried. 'penstock pipeline "
        f"status {directory.name}' and 'logs {directory.name}' tell how far it is"
    )


def _failed(status: "Status") -> CommandError:
    return CommandError(
        f"pipeline {status.pipeline} failed: {status.reason or 'it did not say why'}; see also: penstock pipeline logs "
        f"{status.pipeline}"
    )


def _refuse_other_driver(presence: "Presence", master: str | None, http: str | None) -> None:
    driver = presence.find()
    if driver is None:
        return
    way_out = "leave it out, or end the driver first: penstock pipeline stop --driver"
    if master is not None and master != driver.master:
        raise CommandError(f"--master {master}: the driver is up on {driver.master} already; {way_out}", code=USAGE)
    if http is not None and not http.endswith(":0") and http != driver.http:
        raise CommandError(f"--http {http}: the driver is up at {driver.http} already; {way_out}", code=USAGE)


def _refuse_other_run(seen: Seen, presence: "Presence", path: str) -> None:
    """It is at work; that is what was asked for only if the driver does it, from the same file."""
    driver = presence.holder()
    if seen.holder is not None and seen.holder.pid and (driver is None or seen.holder.pid != driver.pid):
        raise busy_elsewhere(seen.name, seen.holder)
    if seen.wanted is not None and seen.wanted.file != path:
        raise CommandError(
            f"pipeline {seen.name} runs from {seen.wanted.file} already; stop that first: penstock pipeline stop "
            f"{seen.name}"
        )


def _show_started(seen: Seen, presence: "Presence", output: str, said: str) -> None:
    driver = presence.find()
    facts = {
        "pipeline": seen.name,
        "state": seen.state,
        "reason": seen.reason,
        "driver": {"pid": driver.pid, "http": driver.http, "master": driver.master} if driver else None,
    }

    def text() -> None:
        state = f" ({seen.reason})" if seen.reason else ""
        click.echo(f"{seen.name} {said or f'is {seen.state}{state}'}")
        if driver is not None:
            click.echo(f"driver: process {driver.pid} on {driver.master}, http://{driver.http}/health and /metrics")
        click.echo(f"see also: penstock pipeline status {seen.name} --watch")

    show(facts, output, text)


def _last_lines(path: Path, count: int) -> Sequence[str]:
    with suppress(OSError):
        return [line.strip() for line in path.read_text("utf-8", "replace").splitlines() if line.strip()][-count:]
    return ()
