"""The file of contexts (`client.contexts` has its form), as commands load, change and save it.

It holds no secrets, but names the files that do. It is for its owner alone all the same, and written whole or not at
all.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from penstock.cli.failure import USAGE, CommandError
from penstock.client.contexts import Context, choose, load_contexts, path_of
from penstock.client.errors import ClientError

DEFAULT_SERVER = "127.0.0.1:9092"


@dataclass(slots=True)
class Contexts:
    path: Path
    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict)

    @classmethod
    def load(cls, env: Mapping[str, str]) -> "Contexts":
        """Read the file; none is as good as an empty one. Raises `CommandError` naming what is wrong in it."""
        path = path_of(env)
        try:
            return cls(path, *load_contexts(path))
        except ClientError as error:
            raise CommandError(str(error), code=USAGE) from None

    def get(self, name: str) -> Context:
        """One that may be used. Raises `CommandError` where it is not there, or holds a secret."""
        try:
            return choose(name, self.by_name, self.path)
        except ClientError as error:
            raise CommandError(str(error), code=USAGE) from None

    def save(self) -> None:
        import tempfile

        import yaml

        contexts = {
            name: {"server": context.server, **({"properties": dict(context.properties)} if context.properties else {})}
            for name, context in sorted(self.by_name.items())
        }
        text = yaml.safe_dump(
            {"current": self.current or "", "contexts": contexts}, sort_keys=False, allow_unicode=True
        )
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self.path.resolve()  # a link stays one
        handle, fresh = tempfile.mkstemp(dir=target.parent)  # readable by its owner alone
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, target)
        except BaseException:
            os.unlink(fresh)
            raise


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names a shell may offer for a word."""
    try:
        return [name for name in sorted(Contexts.load(os.environ).by_name) if name.startswith(incomplete)]
    except CommandError:  # a completion has nobody to tell
        return []
