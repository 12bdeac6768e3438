"""`penstock cluster`: see how a cluster does, move partitions, take brokers out and in.

The commands stand in modules that are imported when one of them is called; the table below is all that the help of the
group needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.failure import USAGE, CommandError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_STATUS, _MOVES, _BROKERS = "penstock.cli.cluster_status", "penstock.cli.cluster_moves", "penstock.cli.cluster_brokers"
COMMANDS: Final = {
    "status": (_STATUS, "one screen: brokers, health, what to do next"),
    "check": (_STATUS, "exit 0 if the cluster is healthy, 1 with the reasons if not"),
    "brokers": (_STATUS, "list brokers with what they hold and lead"),
    "topics": (_STATUS, "list topics with what is the matter with them"),
    "reassign": (_MOVES, "move partitions, see how far that is, take it back"),
    "balance": (_MOVES, "even out bytes, leaders or disks"),
    "elect": (_MOVES, "let preferred brokers lead"),
    "cordon": (_BROKERS, "give a broker no new replicas"),
    "uncordon": (_BROKERS, "let it have them again"),
    "drain": (_BROKERS, "have a broker lead nothing, before work on it"),
    "decommission": (_BROKERS, "empty a broker and forget it"),
    "replace": (_BROKERS, "give what a lost broker held to another one"),
    "config": (_BROKERS, "settings of brokers that act at once"),
    "restart": ("penstock.cli.cluster_restart", "restart one broker after the other"),
}


class _Cluster(click.Group):
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
    "cluster",
    cls=_Cluster,
    help="""See how a cluster does, move partitions, take brokers out and in. Any broker can be asked. Whatever moves
    data shows its plan and asks first; brokers go on with it when the command has ended.""",
    epilog="""\b
Every day:
  penstock cluster status --watch
  penstock cluster check && echo healthy

\b
Work on a machine, then the next one:
  penstock cluster drain 2
  penstock cluster drain 2 --undo

\b
A broker joins, leaves, is lost:
  penstock cluster balance
  penstock cluster decommission 4
  penstock cluster replace 2 5""",
)
def command() -> None:
    pass


def _unknown(word: str) -> str:
    import difflib

    close = difflib.get_close_matches(word, COMMANDS, n=1)
    way_out = f"did you mean {close[0]}?" if close else "see penstock cluster --help"
    return f"no command cluster {word!r}; {way_out}"
