"""How a pipeline does while it runs here: a display on a terminal, else a line now and then. Both on standard error.

Statuses come from the run's thread; what is shown is drawn from the last one.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Protocol

import click

from penstock.cli.output import printable
from penstock.pipelines.drawing.quantity import format_count, format_rate, format_seconds, plural
from penstock.pipelines.home.status import State

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from penstock.pipelines.home.status import Status

LINE_EVERY_S: Final = 10.0
_COLOURS: Final[Mapping[str, str]] = {
    "running": "green",
    "finished": "green",
    "waiting": "yellow",
    "stopping": "yellow",
    "failed": "red",
}
_REDRAWS_PER_S: Final = 8
_BAR_WIDTH: Final = 40
_FIRST: Final = "waiting for the first batch"


class View(Protocol):
    def phase(self, text: str) -> None:
        """What is being done before the first status."""
        ...

    def update(self, status: "Status") -> None: ...

    def tell(self, text: str) -> None:
        """Something a person should read, that stays."""
        ...

    def tick(self) -> None:
        """Called several times a second."""
        ...

    def keep_apart(self, log: Path) -> AbstractContextManager[object]:
        """Programs that are begun meanwhile, as Spark's JVM, write what they say into a file, if it would spoil the
        display."""
        ...

    def close(self) -> None:
        """Gives the terminal back."""
        ...


@contextmanager
def open_view(name: str, *, once: bool) -> Iterator[View]:
    view: View = Screen(name, once=once) if sys.stderr.isatty() else Lines(name)
    try:
        yield view
    finally:
        view.close()


class Lines:
    """A line every few seconds, and at once when something else is going on."""

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._status: Status | None = None
        self._told: tuple[str, str] = ("", "")
        self._due = 0.0

    def phase(self, text: str) -> None:
        self.tell(f"{self._name}: {text}")

    def update(self, status: "Status") -> None:
        self._status = status

    def tell(self, text: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')} {printable(text)}", err=True)

    def tick(self) -> None:
        status = self._status
        if status is None:
            return
        what = (str(status.state), status.reason)
        if what != self._told or self._clock() >= self._due:
            self._told = what
            self._due = self._clock() + LINE_EVERY_S
            self.tell(format_line(status))

    def keep_apart(self, log: Path) -> AbstractContextManager[object]:
        return nullcontext()

    def close(self) -> None:
        pass


def format_line(status: "Status") -> str:
    """`revenue running: 1,200 rows, 400 rows/s, lag 30, batch 12 in 80 ms, 3 dead letters`."""
    head = f"{status.pipeline} {status.state}"
    doing = _tell_doing(status)
    if not status.batches:
        return f"{head}: {doing}" if doing else head
    facts = list(_tell_numbers(status))
    if status.dead_letters:
        facts.append(plural(status.dead_letters, "dead letter"))
    return f"{head}: {', '.join(facts)}" + (f"; {doing}" if doing else "")


def _tell_doing(status: "Status") -> str:
    return status.reason or (_FIRST if status.state is State.RUNNING and not status.batch_s else "")


def _tell_numbers(status: "Status") -> Iterator[str]:
    yield plural(status.rows, "row")
    yield format_rate(status.rows_per_s)
    if status.lag is not None:
        yield f"lag {format_count(status.lag)}"
    elif any(each.trouble for each in status.sources.values()):
        yield "lag unknown"
    if status.batch_s:
        yield f"batch {status.batch} in {format_seconds(status.batch_s)}"


class Screen:
    """Drawn in place, and gone when it is closed."""

    def __init__(self, name: str, *, once: bool, file: IO[str] | None = None) -> None:
        """`file`: the terminal; standard error, kept open under a number of its own, where it is not said."""
        from rich.console import Console
        from rich.live import Live

        self._name = name
        self._once = once
        self._phase = "starting"
        self._status: Status | None = None
        self._rows_before: int | None = None
        self._began_s = time.monotonic()
        plain = bool(os.environ.get("NO_COLOR"))
        self._file = file or os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding=sys.stderr.encoding)
        self._console = Console(file=self._file, highlight=False, color_system=None if plain else "auto")
        self._live = Live(
            console=self._console,
            get_renderable=self.draw,
            refresh_per_second=_REDRAWS_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def phase(self, text: str) -> None:
        self._phase = text

    def update(self, status: "Status") -> None:
        if self._rows_before is None:
            self._rows_before = status.rows if status.state is State.STARTING else 0
        self._status = status

    def tell(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(printable(text)))

    def tick(self) -> None:
        pass

    @contextmanager
    def keep_apart(self, log: Path) -> Iterator[None]:
        number = sys.stderr.fileno()
        before = os.dup(number)
        with open(log, "wb") as file:
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            os.dup2(before, number)
            os.close(before)

    def close(self) -> None:
        self._live.stop()
        self._file.flush()

    def draw(self) -> "RenderableType":
        """What is on the screen now."""
        from rich.console import Group

        status = self._status
        elapsed_s = time.monotonic() - self._began_s
        done, total = 0, None
        if status is not None and self._once and status.lag is not None:
            done = status.rows - (self._rows_before or 0)
            total = done + status.lag
        head = _draw_head(self._name, status, self._phase, elapsed_s)
        bar = _draw_bar(done, total, elapsed_s)
        if status is None or not status.batches:
            return Group(head, bar)
        return Group(head, bar, _draw_numbers(status), _draw_parts(status))


def _draw_bar(done: int, total: int | None, elapsed_s: float) -> "Table":
    """How much is done of what there is; only that something is, where nobody knows how much there is."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    if total:
        grid.add_row(ProgressBar(total=total, completed=done, width=_BAR_WIDTH), f"{100 * done // total}%")
    else:
        grid.add_row(ProgressBar(total=None, width=_BAR_WIDTH, pulse=True, animation_time=elapsed_s))
    return grid


def _draw_head(name: str, status: "Status | None", phase: str, elapsed_s: float) -> "Text":
    from rich.text import Text

    state = str(status.state) if status else "starting"
    if status is not None:
        phase = _tell_doing(status)
    colour = _COLOURS.get(state, "cyan")
    text = Text.assemble((name, "bold"), "  ", (state, colour), f"  {format_seconds(elapsed_s)}")
    if phase:
        text.append(f"  {printable(phase)}", style=colour if state in ("waiting", "failed") else "dim")
    return text


def _draw_numbers(status: "Status") -> "Text":
    from rich.text import Text

    text = Text("  ".join(_tell_numbers(status)))
    if status.dead_letters:
        text.append(f"  {plural(status.dead_letters, 'dead letter')}", style="yellow")
    if status.restarts:
        text.append(f"  {plural(status.restarts, 'restart')}", style="yellow")
    return text


def _draw_parts(status: "Status") -> "Table":
    """A line for each source, sink and broken expectation."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for justify in ("left", "left", "right", "right", "left"):
        table.add_column(justify=justify)
    for name, source in status.sources.items():
        words = Text(printable(source.trouble), style="red")
        if source.lag is not None:
            words = Text(f"lag {format_count(source.lag)}")
        table.add_row("source", Text(name), format_rate(source.rows_per_s), plural(source.rows, "row"), words)
    for name, sink in status.sinks.items():
        words = Text(printable(sink.trouble), style="red")
        if sink.rejected:
            words = Text(f"{format_count(sink.rejected)} rejected  ", style="yellow") + words
        table.add_row("sink", Text(name), format_rate(sink.rows_per_s), plural(sink.rows, "row"), words)
    for name, step in status.steps.items():
        for expectation, count in step.failed.items():
            if count:
                # Rows that could not be decoded are counted under no name.
                words = Text(f"not: {printable(expectation)}" if expectation else "not decoded", style="yellow")
                table.add_row("expect", Text(name), "", plural(count, "row"), words)
    return table
