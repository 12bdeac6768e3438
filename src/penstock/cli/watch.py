"""`--watch`: the same answer again and again, drawn in place on a terminal, one after the other elsewhere.

The first answer has to come; after that a server that is away is waited for, and told as away.
"""

import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click

from penstock.cli.connection import Server
from penstock.cli.failure import CommandError
from penstock.cli.output import note, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka.admin import AdminClient

T = TypeVar("T")

_USUAL_S: Final = 2.0


class WatchCommand(click.Command):
    """Lets `--watch` stand without a number before a name: click would take the name for the number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, add_interval(args))


watch_option = click.option(
    "--watch",
    "interval_s",
    metavar="[SECONDS]",
    type=click.FloatRange(0.1, 86_400),
    help=f"Go on until Ctrl+C, with a new answer every so often (default: {_USUAL_S:g}).",
)


def add_interval(words: Sequence[str]) -> list[str]:
    """The words with the usual interval behind each `--watch` that has none."""
    written = list(words)
    stop = written.index("--") if "--" in written else len(written)
    for at, word in enumerate(written[:stop]):
        following = written[at + 1] if at + 1 < stop else ""
        if word == "--watch" and not following.replace(".", "", 1).isdecimal():
            written[at] = f"--watch={_USUAL_S:g}"
    return written


def answer(
    server: Server, interval_s: float | None, output: str, ask: "Callable[[AdminClient], T]", table: Callable[[T], None]
) -> None:
    """Ask and show, once or until Ctrl+C."""
    admin: AdminClient | None = server.admin()
    assert admin is not None
    value = ask(admin)
    if interval_s is None:
        show(value, output, lambda: table(value))
        return
    with _sink(output, interval_s, table) as sink:
        sink.put(value)
        while True:
            time.sleep(interval_s)
            try:
                with sink.asking():
                    admin = admin or server.admin()
                    value = ask(admin)
            except CommandError as error:
                admin = None  # librdkafka waits longer and longer before it tries a lost server again
                sink.tell(f"{error}; trying again every {interval_s:g} s")
            else:
                sink.put(value)


class _Sink(Protocol):
    def asking(self) -> AbstractContextManager[object]: ...

    def put(self, value: Any) -> None: ...

    def tell(self, trouble: str) -> None: ...


@contextmanager
def _sink(output: str, interval_s: float, table: Callable[[Any], None]) -> "Iterator[_Sink]":
    if output != "table" or not sys.stdout.isatty():
        yield _Stream(output, table)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout, highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        yield _Screen(live, interval_s, table)


class _Stream:
    """One answer below the other: tables with the time above each, a line of JSON, or a document of YAML."""

    def __init__(self, output: str, table: Callable[[Any], None]) -> None:
        self._output = output
        self._table = table

    def asking(self) -> AbstractContextManager[object]:
        return nullcontext()

    def put(self, value: Any) -> None:
        if self._output == "json":
            import orjson

            click.echo(orjson.dumps(value))
        elif self._output == "yaml":
            click.echo("---")
            show(value, "yaml", lambda: None)
        else:
            click.echo(_clock())
            self._table(value)
            click.echo()
        sys.stdout.flush()

    def tell(self, trouble: str) -> None:
        note(f"{_clock()}: {trouble}")


class _Screen:
    """The last answer, redrawn where it stands."""

    def __init__(self, live: Any, interval_s: float, table: Callable[[Any], None]) -> None:
        self._live = live
        self._interval_s = interval_s
        self._table = table
        self._drawn = ""
        self._notes = io.StringIO()

    def asking(self) -> AbstractContextManager[object]:
        self._notes = io.StringIO()  # neither a note nor a bar may stand in the middle of the drawing
        return redirect_stderr(self._notes)

    def put(self, value: Any) -> None:
        canvas = _Canvas()
        with redirect_stdout(canvas), redirect_stderr(canvas):
            self._table(value)
        self._drawn = canvas.getvalue().strip("\n")
        self._draw(f"every {self._interval_s:g} s; Ctrl+C ends\n{self._notes.getvalue()}")

    def tell(self, trouble: str) -> None:
        self._draw(f"{trouble}\n")

    def _draw(self, headline: str) -> None:
        from rich.text import Text

        self._live.update(Text(f"{_clock()}: {headline}\n") + Text.from_ansi(self._drawn), refresh=True)


class _Canvas(io.StringIO):
    """Standard output while a table is drawn that goes to a terminal in the end."""

    def isatty(self) -> bool:
        return True


def _clock() -> str:
    return time.strftime("%H:%M:%S")
