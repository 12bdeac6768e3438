"""A group of commands that stand in modules of their own, each imported when one of them is called.

A table says where each command is and what it does, which is all that the help of the group needs. A module has its
commands in `COMMANDS`.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.failure import USAGE, CommandError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LateGroup(click.Group):
    """Args:
    table: by name, the module of each command, and a line about it.
    """

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        found: tuple[click.Command, ...] = import_module(self._table[cmd_name][0]).COMMANDS
        return next(each for each in found if each.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._table and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise CommandError(self._unknown(args[0]), code=USAGE)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        table = self._table.items()
        words = [CompletionItem(name, help=what) for name, (_, what) in table if name.startswith(incomplete)]
        return [*words, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in self._table.items()])

    def _unknown(self, word: str) -> str:
        import difflib

        close = difflib.get_close_matches(word, self._table, n=1)
        way_out = f"did you mean {close[0]}?" if close else f"see penstock {self.name} --help"
        return f"no command {self.name} {word!r}; {way_out}"
