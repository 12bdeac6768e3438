"""Whether two pipelines mean the same to the state they keep: a hash for each node of what decides on its rows.

How often and how fast it runs, who it logs in as, and how its file is laid out do not count.
"""

import ast
import hashlib
import inspect
import io
import json
import re
import textwrap
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.pipelines.errors import SpecError
from penstock.pipelines.model import Action, Expectation, SinkSpec, Source, Spec, Step, Watermark
from penstock.pipelines.spec.functions import find_definition, find_file, parse_file, parse_reference
from penstock.pipelines.spec.queries import normalise

_PLACE: Final = ("table", "warehouse", "server")
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]*@|(?<=[?&;])(?:user|password)=[^&;]*[&;]?", re.IGNORECASE)


def fingerprint(spec: Spec) -> dict[str, str]:
    """Hashes by node: `pipeline`, `source orders`, `step clean`, `sink lake`."""
    nodes: dict[str, Any] = {"pipeline": {"mode": spec.mode}}
    nodes |= {f"source {each.name}": _source(each, spec.directory) for each in spec.sources}
    nodes |= {f"step {each.name}": _step(each, spec.directory) for each in spec.steps}
    nodes |= {f"sink {each.name}": _sink(each) for each in spec.sinks}
    return {name: _hash(meaning) for name, meaning in nodes.items()}


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What is different, a sentence each: `step clean changed`, `sink x is new`, `source y is gone`."""
    told = []
    for name in new:
        if name not in old:
            told.append(f"{name} is new")
        elif old[name] != new[name]:
            told.append("the pipeline's mode changed" if name == "pipeline" else f"{name} changed")
    return told + [f"{name} is gone" for name in old if name not in new]


def _hash(meaning: Any) -> str:
    return hashlib.sha256(json.dumps(meaning, sort_keys=True, default=str).encode(errors="replace")).hexdigest()


def _source(source: Source, directory: Path) -> dict[str, Any]:
    options = source.options
    where = {key: options.get(key) for key in ("topic", "pattern", "files", "format", "message", "static")}
    return {
        "kind": source.kind,
        **where,
        "schema": normalise(options.get("schema") or ""),
        "schema_file": _content(directory, options.get("schema_file")),
        **_rows(source.watermark, source.expect),
    }


def _content(directory: Path, file: str | None) -> str | None:
    """A schema's file counts by what is in it; one that cannot be read, by its name."""
    if not file:
        return None
    try:
        return hashlib.sha256((directory / file).read_bytes()).hexdigest()
    except OSError:
        return file


def _rows(watermark: Watermark | None, expect: tuple[Expectation, ...]) -> dict[str, Any]:
    """What keeps rows from going on. An expectation that only warns does not; one that fails lets no others pass."""
    kept = {normalise(each.that) for each in expect if each.otherwise in (Action.DROP, Action.QUARANTINE)}
    return {
        "watermark": [watermark.column, watermark.delay] if watermark else None,
        "expect": sorted(kept),
    }


def _step(step: Step, directory: Path) -> dict[str, Any]:
    if step.sql:
        # The order in which a query names its tables is in the query.
        return {
            "sql": normalise(step.sql),
            "inputs": sorted(step.inputs),
            **_rows(step.watermark, step.expect),
        }
    return {
        "python": _function(step, directory),
        "inputs": step.inputs,
        **_rows(step.watermark, step.expect),
    }


def _sink(sink: SinkSpec) -> dict[str, Any]:
    destination = sink.options.get(sink.kind)
    if isinstance(destination, str):
        destination = _CREDENTIALS.sub("", destination)
    # Where the destination is, if its own name does not say it.
    place = {name: sink.options[name] for name in _PLACE if sink.options.get(name)}
    catalog = sink.options.get("catalog") or {}
    uri = _CREDENTIALS.sub("", str(catalog.get("uri", "")))
    return {"kind": sink.kind, "from": sink.source, "destination": destination, "place": place, "catalog": uri}


def _function(step: Step, directory: Path) -> str:
    """The function's source without comments and empty lines; its name where there is no source to be had."""
    reference = parse_reference(step.python)
    if reference and (source := _source_of(find_file(reference, directory), reference.function)):
        return source
    function = inspect.unwrap(step.function) if step.function else None
    code = getattr(function, "__code__", None)
    return (code and _source_of(Path(code.co_filename), code.co_name)) or step.python


def _source_of(path: Path | None, function: str) -> str | None:
    try:
        definition = find_definition(parse_file(path), function) if path else None
    except SpecError:
        return None
    return strip(_lines_of(path, definition)) if path and definition else None


def _lines_of(path: Path, definition: ast.FunctionDef) -> str:
    """From `def` on: decorators say what else is hashed."""
    with tokenize.open(path) as file:
        lines = file.readlines()
    return textwrap.dedent("".join(lines[definition.lineno - 1 : definition.end_lineno]))


def strip(source: str) -> str:
    """Python source without comments, empty lines and spaces at the ends of lines, but for what is in strings."""
    lines = source.splitlines()
    inside: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            (row, column), (last, _) = token.start, token.end
            if token.type == tokenize.COMMENT:
                lines[row - 1] = lines[row - 1][:column]
            elif last > row and token.type not in (tokenize.NEWLINE, tokenize.NL):
                inside.update(range(row, last))
    except (tokenize.TokenError, SyntaxError):
        return source
    kept = (line if number in inside else line.rstrip() for number, line in enumerate(lines, 1))
    return "\n".join(line for number, line in enumerate(kept, 1) if line or number in inside)
