"""What commands print: tables for people, JSON or YAML for scripts, progress on standard error.

A table on a terminal is drawn by rich; piped, it is plain aligned columns without borders or colour. Progress shows
only where standard error is a terminal. Both keep to NO_COLOR. rich is imported when it is needed.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

FORMATS = ("table", "json", "yaml")
_GAP: Final = 2
F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """Adds `-o/--output`; the command gets it as `output`."""
    return click.option(
        "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="The form of the answer."
    )(command)


def show(value: Any, output: str, table: Callable[[], None]) -> None:
    """Print `value` as JSON or YAML, or call `table` for people."""
    if output == "json":
        import orjson

        click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)
    else:
        table()


def show_list(
    rows: Sequence[Any],
    output: str,
    things: str,
    table: Callable[[], None],
    *,
    narrowed: bool = False,
    way_out: str = "",
) -> None:
    """The same for a list, which may be empty: scripts get an empty list, people `note_none`."""
    show(rows, output, table if rows else lambda: note_none(things, narrowed=narrowed, way_out=way_out))


def note_none(things: str, *, narrowed: bool = False, way_out: str = "") -> None:
    """Say that a list is empty. It is no part of the answer, so it stands where notes do.

    Args:
        things: what it would list, in the plural.
        narrowed: only some were asked for, and there may be others.
        way_out: how there would be some.
    """
    note(f"no {things} like that" if narrowed else f"no {things}; {way_out}" if way_out else f"no {things}")


def print_table(rows: Iterable[Sequence[object]], columns: Sequence[str], *, title: str = "") -> None:
    """Rows for people. Numbers stand on the right; None is a dash. What a terminal is too narrow for is not folded."""
    cells = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    right = [all(_is_number(row[at]) for row in cells) and bool(cells) for at in range(len(columns))]
    widths = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(columns)]
    if sys.stdout.isatty() and sum(widths) + _GAP * len(widths) <= shutil.get_terminal_size().columns:
        _draw(cells, columns, right, title)
        return
    if title:
        click.echo(title)
    for row in [[name.upper() for name in columns], *cells]:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        click.echo((" " * _GAP).join(padded).rstrip())


def print_fields(fields: Mapping[str, object], *, title: str = "") -> None:
    """One thing for people: a name and a value a line."""
    if title:
        click.echo(click.style(title, bold=True) if sys.stdout.isatty() and not _is_plain() else title)
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"  {name:{width}}  {'-' if value is None else printable(str(value))}")


def printable(text: str) -> str:
    """Control characters escaped: what a server or a record says must not drive the terminal of whoever looks at it."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def note(text: str) -> None:
    """Something a person should know that is no part of the answer."""
    # Not click's echo: that looks for the bytes below the stream, and would write into the middle of a progress bar.
    print(text, file=sys.stderr, flush=True)


def format_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def count_of(number: int, thing: str) -> str:
    """`1 partition`, `1,200 partitions`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


class Progress(Protocol):
    def advance(self, amount: float) -> None: ...


class _Silent:
    def advance(self, amount: float) -> None:
        pass


@contextmanager
def progress(label: str, total: float | None = None, *, unit: str = "") -> Iterator[Progress]:
    """A bar (or a count, without `total`) on standard error; nothing when that is no terminal."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    amount = "{task.completed:,.0f}" + ("" if total is None else "/{task.total:,.0f}") + f" {unit}"
    left = [TimeRemainingColumn()] if total is not None else []
    columns = [TextColumn(label), BarColumn(), TextColumn(amount), TimeElapsedColumn(), *left]
    with Bars(*columns, console=_console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield _Bar(lambda amount: bars.advance(task, amount))


class _Bar:
    def __init__(self, advance: Callable[[float], None]) -> None:
        self.advance = advance


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, color_system=None if _is_plain() else "auto")


def _is_plain() -> bool:
    return bool(os.environ.get("NO_COLOR"))


def _draw(cells: list[list[str]], columns: Sequence[str], right: list[bool], title: str) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # The box has a space of its own between columns.
    table = Table(
        box=box.SIMPLE_HEAD, title=title or None, title_justify="left", padding=(0, _GAP - 1, 0, 0), pad_edge=False
    )
    for name, to_right in zip(columns, right, strict=True):
        table.add_column(name, justify="right" if to_right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    _console().print(table)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "", 1).lstrip("-").isdigit()
