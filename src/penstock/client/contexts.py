"""Named servers in `~/.penstock/config.yaml`: an address and client properties each, and which one is current.

current: staging
contexts:
  staging:
    server: broker-1:9092,broker-2:9092
    properties: {security.protocol: SSL}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.client.credentials import refuse_secrets_of_context
from penstock.client.errors import ClientError


@dataclass(frozen=True, slots=True)
class Context:
    server: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)


def path_of(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or Path.home()) / ".penstock" / "config.yaml"


def load_contexts(path: Path) -> tuple[str | None, dict[str, Context]]:
    """Which is current, and all by name; no file is as good as an empty one. Raises `ClientError` for a wrong one."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None, {}
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ClientError(f"cannot read {path}: {reason}") from None
    return _parse(text, path)


def choose(name: str, contexts: Mapping[str, Context], path: Path) -> Context:
    """Raises `ClientError` for a context that is not there, or holds a secret."""
    context = contexts.get(name)
    if context is None:
        known = f"known: {', '.join(sorted(contexts))}" if contexts else "there is none yet"
        raise ClientError(f"context {name!r} is unknown; {known}. Add it with 'penstock context add'")
    refuse_secrets_of_context(name, context.properties, path)
    return context


def _parse(text: str, path: Path) -> tuple[str | None, dict[str, Context]]:
    import yaml

    try:
        read = yaml.load(text, yaml.BaseLoader) or {}  # noqa: S506 - makes strings only: 0123 stays what it is
    except yaml.YAMLError as error:  # whose text may quote a password
        line = error.problem_mark.line + 1 if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark else 1
        raise ClientError(f"{path}, line {line}: this is no YAML") from None
    if not isinstance(read, dict) or set(read) - {"current", "contexts"}:
        raise ClientError(f"{path}: expected the keys current and contexts")
    by_name = {}
    listed = read.get("contexts") or {}
    for name, given in listed.items() if isinstance(listed, dict) else [("contexts", listed)]:
        properties = given.get("properties") or {} if isinstance(given, dict) else None
        if not isinstance(given, dict) or not isinstance(given.get("server"), str) or not isinstance(properties, dict):
            raise ClientError(f"{path}: context {name!r} has no server; expected server: HOST:PORT")
        by_name[str(name)] = Context(given["server"], {str(key): str(value) for key, value in properties.items()})
    return read.get("current") or None, by_name
