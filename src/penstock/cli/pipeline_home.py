"""What the commands for pipelines share: where pipelines are kept, how they are named, what goes wrong with them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli.failure import FAILED, USAGE, CommandError
from penstock.cli.output import note, printable

if TYPE_CHECKING:
    from penstock.pipelines.home import Holder, Home
    from penstock.pipelines.model import Spec

F = TypeVar("F", bound=Callable[..., Any])

LOOK_EVERY_S: Final = 0.1
"""How often a command that waits looks again."""


def open_home(path: str | None) -> "Home":
    from penstock.pipelines.home import Home, default_home

    return Home(Path(path).expanduser() if path else default_home())


def read_spec(file: Path) -> "Spec":
    from penstock.pipelines.spec import load

    return load(file)


class PipelineWord(click.ParamType[str]):
    """A pipeline's name, completed from its home, or its file."""

    name = "pipeline"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        with suppress(OSError):
            names = open_home(ctx.params.get("home")).names()
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []


def home_option(command: F) -> F:
    """Adds `--home`; the command gets it as `home`."""
    return click.option(
        "--home",
        metavar="DIR",
        type=click.Path(file_okay=False),
        help="Where pipelines keep their state (default: $PENSTOCK_PIPELINES, or ~/.local/state/penstock/pipelines).",
    )(command)


timeout_option = click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=300.0,
    show_default=True,
    help="How long to wait for that.",
)
word_argument = click.argument("word", metavar="NAME", type=PipelineWord())


@contextmanager
def translated() -> Iterator[None]:
    """What goes wrong with pipelines, as a command's error. Of several mistakes in a file each has its line."""
    from penstock.pipelines.errors import Misconfigured, PipelineError, SpecError

    try:
        yield
    except SpecError as error:
        if len(error.findings) < 2:
            raise CommandError(str(error), code=USAGE) from error
        for finding in error.findings:
            note(printable(str(finding)))
        raise CommandError(f"{len(error.findings)} mistakes in the pipeline's file, see above", code=USAGE) from error
    except PipelineError as error:
        raise CommandError(str(error), code=USAGE if isinstance(error, Misconfigured) else FAILED) from error


def busy_elsewhere(name: str, holder: "Holder") -> CommandError:
    """Somebody runs it, and not the driver."""
    return CommandError(
        f"pipeline {name} is at work in process {holder.pid} ({holder.command}), not in the background; end that "
        f"first: Ctrl+C where it runs, or kill {holder.pid}"
    )
