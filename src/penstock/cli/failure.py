"""How a command ends when it does not end well: one line on standard error, and an exit code scripts can rely on."""

import sys
from typing import Final

import click

from penstock.errors import PenstockError, StartupError

FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
CANCELLED: Final = 130
"""What a shell reports for a command ended by Ctrl+C."""


class CommandError(Exception):
    """The command cannot do what was asked; the text names the thing, the value and the way out."""

    def __init__(self, text: str, *, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


def report(error: Exception) -> int:
    """Say what went wrong in one line; returns the exit code. An error nobody foresaw is raised again, whole."""
    if isinstance(error, CommandError):
        text, code = str(error), error.code
    elif isinstance(error, click.ClickException):
        text, code = _format_click(error), error.exit_code
    elif isinstance(error, StartupError):
        text, code = str(error), USAGE
    elif isinstance(error, PenstockError):
        text, code = f"{error}; {error.help}" if error.help else str(error), FAILED
    elif isinstance(error, OSError):
        text, code = _explain_system(error)
    elif isinstance(error, ImportError):
        text, code = _explain_import(error), USAGE
    else:
        raise error
    from penstock.cli.output import printable

    sys.stdout.flush()
    click.echo(f"penstock: {printable(' '.join(text.split()))}", err=True)
    return code


def _explain_system(error: OSError) -> tuple[str, int]:
    from penstock import obstacles

    if error.filename and obstacles.is_lasting(error):
        return obstacles.tell_path(error), USAGE
    return f"{error.filename}: {error.strerror}" if error.filename else str(error), FAILED


def _explain_import(error: ImportError) -> str:
    from penstock.extras import tell_missing

    told = tell_missing(error.name) if isinstance(error, ModuleNotFoundError) and error.name else None
    if told is None:
        raise error
    return told


def _format_click(error: click.ClickException) -> str:
    text = error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{text} See '{error.ctx.command_path} --help'."
    return text
