"""`penstock pipeline`: sources → steps → sinks on Spark, in the foreground or the background.

The commands stand in modules that are imported when one of them is called; the table below is all that the help of the
group needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.failure import USAGE, CommandError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_HERE, _BACKGROUND = "penstock.cli.pipeline_run", "penstock.cli.pipeline_driver"
COMMANDS: Final = {
    "new": (_HERE, "write a pipeline's file to begin with"),
    "check": (_HERE, "find what is wrong with a pipeline's file"),
    "run": (_HERE, "run a pipeline here, until Ctrl+C or once"),
    "graph": ("penstock.cli.pipeline_graph", "draw a pipeline, with its rates and lag"),
    "start": (_BACKGROUND, "run a pipeline in the background"),
    "list": (_BACKGROUND, "list pipelines and how they do"),
    "status": (_BACKGROUND, "show how a pipeline does"),
    "stop": (_BACKGROUND, "end a pipeline in the background"),
    "logs": (_BACKGROUND, "show what happened to a pipeline"),
    "backfill": ("penstock.cli.pipeline_backfill", "run older rows of a topic through a pipeline"),
    "reset": (_BACKGROUND, "have a pipeline begin anew"),
}


class _Pipelines(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: tuple[click.Command, ...] = import_module(COMMANDS[cmd_name][0]).COMMANDS
        return next(each for each in found if each.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise CommandError(_unknown(args[0]), code=USAGE)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        words = [CompletionItem(name, help=what) for name, (_, what) in COMMANDS.items() if name.startswith(incomplete)]
        return [*words, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])


@click.command(
    "pipeline",
    cls=_Pipelines,
    help="""Run data pipelines on Spark: rows of topics and files go through SQL or Python steps into sinks, each
    micro-batch once.""",
    epilog="""\b
A first pipeline:
  penstock pipeline new revenue.yaml
  penstock pipeline check revenue.yaml
  penstock pipeline run revenue.yaml --once""",
)
def command() -> None:
    pass


def _unknown(word: str) -> str:
    import difflib

    close = difflib.get_close_matches(word, COMMANDS, n=1)
    way_out = f"did you mean {close[0]}?" if close else "see penstock pipeline --help"
    return f"no command pipeline {word!r}; {way_out}"
