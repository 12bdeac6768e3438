"""The root of the command line: finds the command that was typed, imports its module and nothing else.

A command's module has `command`, a click command or group. The table below is all that `penstock --help` needs, so
help costs the import of click alone.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from penstock import __version__
from penstock.cli.failure import CANCELLED, USAGE, CommandError, report

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "serve": "run a broker until Ctrl+C or SIGTERM",
    "topic": "create, list, describe, alter and delete topics",
    "produce": "write records from standard input or files",
    "consume": "read records, once or as they come",
    "queue": "make queues, send, receive and settle messages",
    "group": "list and describe groups, show their lag, reset their offsets",
    "txn": "list, describe and abort transactions",
    "user": "create, list and delete users, set their passwords",
    "role": "give users roles: rights under a name, built in or made",
    "apikey": "create, list and delete API keys of users",
    "acl": "add, list, remove and explain rules: who may do what",
    "security": "look what mode closed would refuse, replace the sealing key",
    "cluster": "show a cluster's state, move partitions, add and remove brokers",
    "config": "check and show a broker's settings",
    "tls": "make certificates for trying TLS out, look into any",
    "log": "look into, verify and repair a data directory",
    "spark": "check what Spark needs, make it start faster",
    "pipeline": "run data pipelines on Spark",
    "bench": "measure a broker's throughput and latency",
    "context": "name the servers you work with",
    "completion": "print the shell's completion script",
    "version": "print the version",
}

_EPILOG = """\
\b
A broker on this machine, data in ./data, and a first record:
  penstock serve
  echo hello | penstock produce greetings
  penstock consume greetings

\b
Which server: --server, else $PENSTOCK_SERVER, else the context (--context,
$PENSTOCK_CONTEXT, 'penstock context use'), else 127.0.0.1:9092.
Exit codes: 0 done, 1 failed, 2 wrong usage or settings, 3 no server reached.
"""


class Root(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"penstock.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise CommandError(_unknown(args[0]), code=USAGE)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """From the table: the modules of all commands would take longer to import than a person waits for a word."""
        from click.shell_completion import CompletionItem

        words = [CompletionItem(name, help=what) for name, what in COMMANDS.items() if name.startswith(incomplete)]
        return [*words, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=Root,
    name="penstock",
    help="Penstock: a durable message queue that speaks the Kafka protocol.",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.version_option(__version__, "-V", "--version", message="penstock %(version)s")
@click.pass_context
def root(context: click.Context) -> int | None:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(USAGE)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the process's exit code."""
    _open_closed_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        if "_PENSTOCK_COMPLETE" in os.environ:
            root.main(words, prog_name="penstock")  # answers the shell and ends the process
        # As root.main would, which takes a closed pipe for a failure.
        with root.make_context("penstock", words) as context:
            result = root.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (KeyboardInterrupt, EOFError, click.Abort):
        if sys.stderr.isatty():
            click.echo(err=True)  # the prompt shall not follow the ^C
        return CANCELLED
    except BrokenPipeError:
        # Whoever reads has gone, as `| head` does; nothing more can be said, nor may the exit's own flush try.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the border where every error becomes a line and an exit code
        if isinstance(error, SystemError) and isinstance(error.__cause__, KeyboardInterrupt):
            return CANCELLED  # Ctrl+C came while librdkafka's binding was about to return something
        return report(error)
    return result if isinstance(result, int) else 0


def _open_closed_streams() -> None:
    """Whoever starts us may have closed a standard stream; the next file opened would take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _unknown(word: str) -> str:
    import difflib

    close = difflib.get_close_matches(word, [*COMMANDS, "help"], n=1)
    return f"no command {word!r}; " + (f"did you mean {close[0]}?" if close else "see penstock --help")


if __name__ == "__main__":
    sys.exit(main())
