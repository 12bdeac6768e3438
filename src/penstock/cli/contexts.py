"""Named servers in `~/.penstock/config.yaml`: an address and client properties each, and which one is current.

The file may hold passwords, so it is written for its owner alone, and whole or not at all.

    current: staging
    contexts:
      staging:
        server: broker-1:9092,broker-2:9092
        properties: {security.protocol: SSL}
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from penstock.cli.failure import USAGE, CommandError

DEFAULT_SERVER = "127.0.0.1:9092"


@dataclass(frozen=True, slots=True)
class Context:
    server: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Contexts:
    path: Path
    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict)

    @classmethod
    def load(cls, env: Mapping[str, str]) -> "Contexts":
        """Read the file; none is as good as an empty one. Raises `CommandError` naming what is wrong in it."""
        path = Path(env.get("HOME") or Path.home()) / ".penstock" / "config.yaml"
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls(path)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise CommandError(f"cannot read {path}: {reason}", code=USAGE) from None
        return cls(path, *_parse(text, path))

    def get(self, name: str) -> Context:
        context = self.by_name.get(name)
        if context is None:
            known = f"known: {', '.join(sorted(self.by_name))}" if self.by_name else "there is none yet"
            raise CommandError(f"context {name!r} is unknown; {known}. Add it with 'penstock context add'", code=USAGE)
        return context

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


def _parse(text: str, path: Path) -> tuple[str | None, dict[str, Context]]:
    import yaml

    try:
        read = yaml.load(text, yaml.BaseLoader) or {}  # noqa: S506 - makes strings only: 0123 stays a password
    except yaml.YAMLError as error:  # whose text may quote a password
        line = error.problem_mark.line + 1 if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark else 1
        raise CommandError(f"{path}, line {line}: this is no YAML", code=USAGE) from None
    if not isinstance(read, dict) or set(read) - {"current", "contexts"}:
        raise CommandError(f"{path}: expected the keys current and contexts", code=USAGE)
    by_name = {}
    listed = read.get("contexts") or {}
    for name, given in listed.items() if isinstance(listed, dict) else [("contexts", listed)]:
        properties = given.get("properties") or {} if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(given.get("server"), str) or not isinstance(properties, dict):
            raise CommandError(f"{path}: context {name!r} has no server; expected server: HOST:PORT", code=USAGE)
        by_name[str(name)] = Context(given["server"], {str(key): str(value) for key, value in properties.items()})
    return read.get("current") or None, by_name
