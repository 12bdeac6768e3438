"""The layers settings come from: a YAML file, maps in the environment, `key=value` flags, each value with its place."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from penstock.errors import StartupError

_LISTENERS = "listeners."
_SUBSTITUTION = re.compile(r"\$(\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")


class ConfigError(StartupError):
    """A setting is unknown, malformed or forbidden; the text names key, value, source and what is allowed."""


class Given(NamedTuple):
    """A value as somebody wrote it, and where."""

    value: object
    source: str


def show(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 200 else text[:200] + "..."


def flatten(tree: Mapping[object, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested maps to dotted keys; a key may also be written dotted, as topic settings are."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from flatten(value, key + ".")
        else:
            yield key, value


def read_file(path: Path, env: Mapping[str, str], problems: list[ConfigError] | None = None) -> dict[str, Given]:
    """A file's settings. What is wrong with one of them is raised, or noted in `problems` where that is given."""
    source = f"file {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}; choose another --config") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"config file {path} is not UTF-8 text (byte {error.start})") from None
    tree = read_yaml(text, source)
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError(f"config file {path} must hold settings as `key: value`, not {show(tree)}")
    given: dict[str, Given] = {}
    for key, value in flatten(tree):
        try:
            if key in given:
                was = show(given[key].value)
                raise ConfigError(f"{key} (from {source}) is given twice, as {was} and {show(value)}")
            if value is None:
                continue  # `key:` with nothing after it keeps the default
            given[key] = Given(_substitute(value, env, key, source), source)
        except ConfigError as error:
            if problems is None:
                raise
            problems.append(error)
    return given


def read_yaml(text: str, source: str) -> object:
    """Raises `ConfigError`, which names the source."""
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML keeps the last of two equal keys; a setting silently lost is worse than an error."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
            names = [name.value for name, _ in node.value]
            for name in names:
                if names.count(name) > 1:
                    raise yaml.constructor.ConstructorError(None, None, f"{name!r} is given twice", node.start_mark)
            return cast(dict[object, object], super().construct_mapping(node, deep))

    try:
        return cast(object, yaml.load(text, Loader))  # noqa: S506 - derived from SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{source} is not valid YAML{where}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None


def _substitute(value: object, env: Mapping[str, str], key: str, source: str) -> object:
    """Replace `${VAR}` and `${VAR:default}` in texts; `$${` stands for a plain `${`.

    Done on values after YAML was read, so nothing in the environment can change the file's structure.
    """
    if isinstance(value, list):
        return [_substitute(item, env, key, source) for item in value]
    if isinstance(value, Mapping):  # in a list; others are flattened by now
        return {name: _substitute(item, env, key, source) for name, item in value.items()}
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        escaped, name, default = match.groups()
        if escaped:
            return "${"
        found = env.get(name, default)
        if found is None:
            raise ConfigError(
                f"{key} = {show(value)} (from {source}): {name} is not set in the environment; "
                f"set it, or give a default with ${{{name}:value}}"
            )
        return str(found)

    return _SUBSTITUTION.sub(replace, value)


def read_map(key: str, given: Given) -> dict[str, Given]:
    tree = read_yaml(str(given.value), given.source)
    if not isinstance(tree, Mapping):
        raise ConfigError(
            f"{key} = {show(given.value)} (from {given.source}) is not allowed: expected a map as JSON "
            'or YAML, such as {"flush": "os", "retention.ms": 60000}'
        )
    return {name: Given(value, given.source) for name, value in flatten(tree, key + ".")}


def read_assignments(pairs: Sequence[str], flag: str) -> dict[str, Given]:
    """Read `key=value` texts of a repeatable flag.

    Raises:
        ConfigError: One of them has no `=`, or a listener is given twice.
    """
    given: dict[str, Given] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{flag} {pair!r}: expected key=value, such as {flag} limits.max_connections=500")
        key = key.strip()
        if key in given and key.startswith(_LISTENERS):
            raise ConfigError(f"{flag} {key} is given twice, as {given[key].value} and {value}; keep one of the two")
        given[key] = Given(value, flag)
    return given
