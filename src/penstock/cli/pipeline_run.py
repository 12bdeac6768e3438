"""`penstock pipeline new | check | run`: what is done with a pipeline's file here, in the foreground."""

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from penstock.cli.connection import read_properties
from penstock.cli.failure import CANCELLED, FAILED, USAGE, CommandError
from penstock.cli.output import note, output_option, print_fields, printable, progress, show
from penstock.cli.pipeline_home import home_option, open_home, read_spec, translated

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

    from penstock.cli.pipeline_view import View
    from penstock.pipelines.errors import Finding
    from penstock.pipelines.home import PipelineDirectory, Status
    from penstock.pipelines.model import Spec

_LOOK_EVERY_S: Final = 0.1
SPARK_LOG: Final = "spark.log"
"""In the pipeline's directory: what Spark said while its place was taken by the display."""
_PYTHON: Final = "python"
_SAMPLES: Final = ("topic", "delta", _PYTHON)
_LONGEST_NAME: Final = 100

file_argument = click.argument("file", metavar="FILE", type=click.Path(dir_okay=False))


@click.command(
    "new",
    help="""Write a pipeline's file to begin with, with comments on what may stand in it. A file that is there is not
    touched.""",
    epilog="""\b
Examples:
  penstock pipeline new                          pipeline.yaml, from a topic to a topic
  penstock pipeline new lake.yaml --sample delta
  penstock pipeline new prices.py                the same as a Python program""",
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--sample", "kind", type=click.Choice(_SAMPLES), help="What it shows (default: topic, or by FILE's ending)."
)
def new(file: str | None, kind: str | None) -> None:
    from penstock.pipelines.spec.sample import sample

    path = Path(file or ("pipeline.py" if kind == _PYTHON else "pipeline.yaml"))
    kind = kind or (_PYTHON if path.suffix == ".py" else _SAMPLES[0])
    endings = (".py",) if kind == _PYTHON else (".yaml", ".yml")
    if path.suffix not in endings:
        raise CommandError(f"{path}: the sample {kind} is a file that ends in {' or '.join(endings)}", code=USAGE)
    name = re.sub(r"[^a-z0-9._-]", "-", path.stem.lower()).lstrip("._-")[:_LONGEST_NAME] or "pipeline"
    try:
        with open(path, "x", encoding="utf-8") as out:
            out.write(sample(kind, name))
    except FileExistsError:
        raise CommandError(f"{path} exists; name another file, or move it away", code=USAGE) from None
    note(f"wrote {path}; next: penstock pipeline check {path}")


@click.command(
    "check",
    help="""Find what is wrong with a pipeline's file before it runs: keys and values, topics, files and functions that
    are not there, sinks that do not answer, columns and queries that Spark does not understand.

    It reports everything at once, a line each: FILE:LINE: what is wrong. It changes nothing: it makes no topic and no
    table. The exit code is 1 when something was found, 2 when FILE cannot be read or only packages are missing.""",
    epilog="""\b
Examples:
  penstock pipeline check revenue.yaml
  penstock pipeline check revenue.yaml --offline --no-spark     the file alone, at once
  penstock pipeline check revenue.yaml -o json | jq '.findings[].text'""",
)
@file_argument
@click.option("--no-spark", is_flag=True, help="Leave out what Spark would say of queries and columns.")
@click.option("--offline", is_flag=True, help="Ask no broker and no sink.")
@output_option
def check(file: str, no_spark: bool, offline: bool, output: str) -> int:
    from penstock.pipelines.errors import Missing, NotInstalled, SpecError, Unreadable

    spec: Spec | None = None
    try:
        spec = read_spec(Path(file))
        found = _find_all(spec, reach=not offline, analyse=not no_spark)
    except (NotInstalled, Unreadable) as error:
        raise CommandError(str(error), code=USAGE) from error
    except SpecError as error:
        found = list(error.findings)
    facts = {
        "file": file,
        "pipeline": spec.name if spec else None,
        "fine": not found,
        "unchecked": _tell_unchecked(no_spark=no_spark, offline=offline),
        "findings": [_format_finding(each) for each in found],
    }

    def table() -> None:
        for each in found:
            click.echo(printable(str(each)))
        if spec is not None and not found:
            _print_summary(f"{file}: {spec.name}{_tell_fine(no_spark=no_spark, offline=offline)}", spec)

    show(facts, output, table)
    if not found:
        return 0
    return USAGE if all(isinstance(each, Missing) for each in found) else FAILED


def _find_all(spec: "Spec", *, reach: bool, analyse: bool) -> "list[Finding]":
    from penstock.pipelines.check import check_analysed, check_static
    from penstock.pipelines.errors import Finding, Missing, NotInstalled, PipelineError

    with progress("checking the file" if not reach else "asking brokers and sinks"):
        found = check_static(spec, reach=reach)
    if analyse:
        try:
            with progress("checking queries with Spark"), open_spark("local[1]", spec, {}) as spark:
                found += check_analysed(spec, spark)
        except PipelineError as error:
            kind = Missing if isinstance(error, NotInstalled) else Finding
            found.append(kind(None, f"{error}; --no-spark leaves queries unchecked"))
    # A function that is not there is missed by both.
    return list({str(each): each for each in found}.values())


def _format_finding(finding: "Finding") -> dict[str, Any]:
    place = finding.place
    return {"file": place.file if place else None, "line": place.line if place else None, "text": finding.text}


def _tell_unchecked(*, no_spark: bool, offline: bool) -> list[str]:
    left = {"brokers and sinks (--offline)": offline, "queries and columns (--no-spark)": no_spark}
    return [part for part, is_left in left.items() if is_left]


def _tell_fine(*, no_spark: bool, offline: bool) -> str:
    unchecked = _tell_unchecked(no_spark=no_spark, offline=offline)
    if not unchecked:
        return " is fine"
    looked_at = "the file is" if offline else "the file, brokers and sinks are"
    return f": {looked_at if no_spark else 'the file and its queries are'} fine; not looked at: {', '.join(unchecked)}"


def _print_summary(title: str, spec: "Spec") -> None:
    from penstock.pipelines.drawing import figure

    sources = [f"{each.name} ({figure.describe_source(each)})" for each in spec.sources]
    steps = [f"{each.name} ({figure.describe_step(each)})" for each in spec.steps]
    sinks = [f"{each.name} ({figure.describe_sink(each, spec.directory)})" for each in spec.sinks]
    fields = {"sources": ", ".join(sources), "steps": ", ".join(steps) or None, "sinks": ", ".join(sinks)}
    print_fields(fields | {"dead letters": figure.describe_letters(spec)}, title=title)


@contextmanager
def open_spark(master: str, spec: "Spec", conf: Mapping[str, str]) -> "Iterator[SparkSession]":
    from penstock.pipelines.run.sessions import open_session

    spark = open_session(master, {**{name: str(value) for name, value in spec.spark.items()}, **conf})
    try:
        yield spark
    finally:
        spark.stop()


@click.command(
    "run",
    help="""Run a pipeline here, until Ctrl+C, or with --once until all that there is now is written.

    Ctrl+C and SIGTERM end it after the current micro-batch; a second one ends it at once, and the next run repeats that
    micro-batch, which no sink writes twice. The exit code is 0 when it was finished or stopped, 1 when it failed, 2
    when the pipeline's file or an option is wrong, or something is not installed.

    What was read and written is kept between runs in a home (--home). One process at a time runs a pipeline.""",
    epilog="""\b
Examples:
  penstock pipeline run revenue.yaml
  penstock pipeline run revenue.yaml --once
  penstock pipeline run revenue.yaml --http 127.0.0.1:9100     /health and /metrics
  penstock pipeline run revenue.yaml --master spark://cluster:7077 --conf spark.executor.memory=4g""",
)
@file_argument
@click.option("--once", is_flag=True, help="Read what there is now, write it, and end.")
@click.option(
    "--master", metavar="URL", default="local[*]", show_default=True, help="Spark's master; sc:// is Connect."
)
@click.option("--http", metavar="HOST:PORT", help="Answer /health and /metrics here.")
@click.option("--conf", "settings", metavar="KEY=VALUE", multiple=True, help="A Spark setting; may be repeated.")
@home_option
def run(file: str, once: bool, master: str, http: str | None, settings: tuple[str, ...], home: str | None) -> int:
    from penstock.cli.pipeline_view import open_view
    from penstock.pipelines.check import check_static
    from penstock.pipelines.errors import SpecError
    from penstock.pipelines.run.sessions import check_installed

    conf = read_properties(settings)
    with translated():
        spec = read_spec(Path(file))
        directory = open_home(home).claim(spec.name, file)
        if wrong := check_static(spec, reach=False):
            raise SpecError(wrong)
        check_installed(master)
        with directory.locked("run"):
            pass  # whoever runs it already is named before Spark takes its time
        with open_view(spec.name, once=once) as view, stopping() as stops:
            ended = _run_here(spec, directory, view, stops, master=master, conf=conf, once=once, http=http)
    note(ended)
    return 0


def _run_here(
    spec: "Spec",
    directory: "PipelineDirectory",
    view: "View",
    stops: "Stops",
    *,
    master: str,
    conf: dict[str, str],
    once: bool,
    http: str | None,
) -> str:
    """Runs it to its end; returns what there is to say then. Raises `PipelineError`."""
    from penstock.pipelines.run.run import Run

    address = _parse_http(http)
    view.phase("starting Spark")
    with ExitStack() as held:
        with view.keep_apart(directory.path / SPARK_LOG):
            spark = held.enter_context(open_spark(master, spec, conf))
        stops.listen()  # Spark has taken Ctrl+C for itself
        view.phase("checking")
        work = Run(spec, directory, spark, once=once, on_status=view.update)
        with _serving(address, lambda: [work.status], view):
            work.start()
            stops.is_starting = False
            follow(work, view, stops)
    if work.error is not None:
        raise work.error
    return _tell_end(work.status)


class Work(Protocol):
    """A run or a backfill."""

    def stop(self) -> None: ...

    def wait(self, timeout_s: float | None = None) -> bool: ...


def follow(work: "Work", view: "View", stops: "Stops", leave: Callable[[int], object] = os._exit) -> None:
    """Until the run has ended. The first signal asks it to, the second leaves the process as it is."""
    heard = 0
    while not work.wait(_LOOK_EVERY_S):
        view.tick()
        if stops.count == heard:
            continue
        if heard == 0:
            work.stop()
            view.tell("stopping after the micro-batch at work; once more ends it at once")
        heard = stops.count
        if heard > 1:
            view.close()
            note("ended at once; the next run repeats the micro-batch that was at work")
            leave(CANCELLED)
            return


class Stops:
    """Counts Ctrl+C and SIGTERM. Before the run has begun there is no micro-batch to finish: they end the command."""

    def __init__(self) -> None:
        self.count = 0
        self.is_starting = True

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, number: int, _frame: "FrameType | None") -> None:
        self.count += 1
        if self.is_starting:
            raise KeyboardInterrupt


@contextmanager
def stopping() -> Iterator[Stops]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    stops = Stops()
    stops.listen()
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parse_http(word: str | None) -> tuple[str, int] | None:
    if word is None:
        return None
    from penstock.pipelines.http import parse_address

    return parse_address(word)


@contextmanager
def _serving(
    address: tuple[str, int] | None, statuses: "Callable[[], Sequence[Status]]", view: "View"
) -> Iterator[None]:
    if address is None:
        yield
        return
    from penstock.pipelines.http import HttpServer, create_app

    server = HttpServer(*address, create_app(statuses))
    server.start()
    view.tell(f"health and metrics at http://{server.address}")
    try:
        yield
    finally:
        server.stop()


def _tell_end(status: "Status") -> str:
    from penstock.pipelines.drawing.quantity import plural

    facts = [plural(status.rows, "row"), plural(status.batches, "batch")]
    if status.dead_letters:
        facts.append(plural(status.dead_letters, "dead letter"))
    return f"{status.pipeline} {status.state}: {', '.join(facts)} since it began"


COMMANDS: Final = (new, check, run)
