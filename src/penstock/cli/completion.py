"""`penstock completion`: the script a shell needs to complete commands, options and topic names."""

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from penstock.cli.failure import USAGE, CommandError

_SHELLS = ("bash", "zsh", "fish")
_INSTALL = {
    "bash": "penstock completion bash > ~/.local/share/bash-completion/completions/penstock",
    "zsh": 'penstock completion zsh > "${fpath[1]}/_penstock"',
    "fish": "penstock completion fish > ~/.config/fish/completions/penstock.fish",
}


@click.command(
    "completion",
    help="Print the completion script of a shell (default: the one in $SHELL).",
    epilog="\b\nInstall it:\n" + "\n".join(f"  {line}" for line in _INSTALL.values()),
)
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
def command(shell: str | None) -> None:
    from penstock.cli.main import root

    chosen = shell or Path(os.environ.get("SHELL", "")).name
    if chosen not in _SHELLS:
        raise CommandError(f"no completion for the shell {chosen!r}; say one of {', '.join(_SHELLS)}", code=USAGE)
    completion = get_completion_class(chosen)
    assert completion is not None
    click.echo(completion(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())
