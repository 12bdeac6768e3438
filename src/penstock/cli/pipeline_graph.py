"""`penstock pipeline graph`: a pipeline as text or SVG, with the numbers of its last status."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click

from penstock import obstacles
from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import note
from penstock.cli.pipeline_home import PipelineWord, home_option, open_home, read_spec, translated
from penstock.cli.watch import WatchCommand, answer, watch_option

if TYPE_CHECKING:
    from penstock.cli.connection import Server
    from penstock.pipelines.drawing.figure import Figure
    from penstock.pipelines.home import Home

_PIPED_WIDTH: Final = 120


@click.command(
    "graph",
    cls=WatchCommand,
    short_help="Draw a pipeline.",
    help="""Draw a pipeline: sources, steps, sinks and dead letters, with rates, lag and failures if it has run. As
    text, or with --svg as a picture for browsers and documents.

    FILE is the pipeline's file, or the NAME of one that has run.""",
    epilog="""\b
Examples:
  penstock pipeline graph revenue.yaml
  penstock pipeline graph revenue --watch
  penstock pipeline graph revenue.yaml --svg revenue.svg""",
)
@click.argument("word", metavar="FILE|NAME", type=PipelineWord())
@click.option("--svg", metavar="OUT", type=click.Path(dir_okay=False), help="Write an SVG file; - is standard output.")
@watch_option
@home_option
def graph(word: str, svg: str | None, interval_s: float | None, home: str | None) -> None:
    opened = open_home(home)
    if svg == "-" and interval_s is not None:
        raise CommandError("--watch with --svg needs a file to write again and again, not standard output", code=USAGE)

    def ask(_: object) -> "Figure":
        with translated():
            return _see(opened, word)

    answer(cast("Server", _Nobody()), interval_s, "table", ask, _drawer(svg))


class _Nobody:
    """What `answer` asks in a server's place."""

    def admin(self) -> object:
        return self


def _see(home: "Home", word: str) -> "Figure":
    """The pipeline's figure as of now."""
    from penstock.cli.pipeline_status import find_name, see
    from penstock.pipelines.drawing.figure import make_figure

    spec = read_spec(Path(word)) if _is_file(word) else None
    if spec is not None and home.pipeline(spec.name).find_other(word):
        return make_figure(spec, None)  # the numbers under its name are of another
    seen = see(home, spec.name if spec else find_name(home, word))
    if spec is None:
        file = seen.status.file if seen.status else seen.wanted.file if seen.wanted else ""
        if not file:
            raise CommandError(f"pipeline {word} has not run, so its file is not known; name the file")
        spec = read_spec(Path(file))
    return make_figure(spec, seen.status, state=seen.state)


def _is_file(word: str) -> bool:
    return Path(word).suffix in (".yaml", ".yml", ".py") or Path(word).is_file()


def _drawer(svg: str | None) -> "Callable[[Figure], None]":
    """How a figure is shown. What the terminal can do is asked now: later somebody else may stand in its place."""
    from penstock.pipelines.drawing import svg as pictures
    from penstock.pipelines.drawing import text

    unicode = text.can_draw(sys.stdout.encoding)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def draw(figure: "Figure") -> None:
        if svg is None:
            width = shutil.get_terminal_size((_PIPED_WIDTH, 0)).columns
            click.echo(text.draw(figure, width=width, unicode=unicode, colour=bool(colour)))
        elif svg == "-":
            click.echo(pictures.draw(figure), nl=False)
        else:
            _write_whole(Path(svg), pictures.draw(figure))
            note(f"wrote {svg}")

    return draw


def _write_whole(path: Path, text: str) -> None:
    """A browser that loads it again never sees half of it."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        made.write_text(text, encoding="utf-8")
        made.replace(path)
    except OSError as error:
        made.unlink(missing_ok=True)
        code = USAGE if obstacles.is_lasting(error) else FAILED
        raise CommandError(f"{path} cannot be written: {error.strerror}; choose another --svg", code=code) from error


COMMANDS: Final = (graph,)
