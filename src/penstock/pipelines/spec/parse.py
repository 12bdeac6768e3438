"""A tree → a pipeline, with all that is wrong found at once. YAML files and Python programs both come by here."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.client.credentials import anchored
from penstock.pipelines import sinks
from penstock.pipelines.errors import Finding, SpecError, Unreadable
from penstock.pipelines.model import CONTEXT, DeadLetters, Place, SinkSpec, Source, Spec, Step
from penstock.pipelines.spec import document, tables
from penstock.pipelines.spec.sources import read_source
from penstock.pipelines.spec.steps import Known, read_step
from penstock.pipelines.spec.tree import (
    Entry,
    Findings,
    Leaf,
    Node,
    Table,
    describe,
    is_lost,
    is_nothing,
    nearest,
    shorten,
)
from penstock.pipelines.spec.values import read_options

_PIPELINE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_SINK_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SECTIONS: Final = ("sources", "steps", "sinks", "dead_letters")


def load(path: Path) -> Spec:
    """The pipeline of a `.yaml` or `.yml` file, or of a Python program.

    Raises:
        SpecError: with all that is wrong.
    """
    place = Place(str(path), 1)
    if path.suffix == ".py":
        # It imports this module, to make its tree a pipeline.
        from penstock.pipelines.spec.definition import load_program

        return load_program(path)
    if path.suffix not in (".yaml", ".yml"):
        raise Unreadable([Finding(place, "a pipeline is a .yaml, .yml or .py file")])
    try:
        with path.open("rb") as file:
            data = file.read(document.MAX_BYTES + 1)
        # A cut that falls into a character is no reason to speak of UTF-8: the size is told.
        return parse(data.decode("utf-8-sig", "strict" if len(data) <= document.MAX_BYTES else "replace"), path)
    except OSError as error:
        raise Unreadable([Finding(place, f"the file cannot be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError([Finding(Place(str(path), line), "the file is not UTF-8")]) from error


def parse(text: str, file: Path | str) -> Spec:
    """The pipeline of a YAML text.

    Args:
        file: where it is from; its directory is what relative paths are relative to.

    Raises:
        SpecError: with all that is wrong.
    """
    findings = Findings()
    path = Path(file)
    root = document.read(text, str(file), findings)
    if root is None or is_nothing(root):
        if not findings:
            findings.add(Place(str(file), 1), "the file is empty; `penstock pipeline new` writes one to begin with")
        raise findings.error()
    return build(root, path, findings)


def build(root: Node, file: Path, findings: Findings) -> Spec:
    """The pipeline of a tree. `findings` may hold what was wrong before."""
    if not isinstance(root, Table):
        findings.add(root.place, f"a pipeline is a map with `sources`, `steps` and `sinks`; this is {describe(root)}")
        raise findings.error()
    values, places = read_options(root, tables.PIPELINE, "", findings, apart=_SECTIONS)
    name = _name(values["name"], places.get("name", root.place), file, findings)
    nodes = _Nodes(Path(os.path.abspath(file.parent)), findings)
    nodes.read(root)
    read_sinks = _read_sinks(root, nodes, findings)
    letters = _read_letters(root.get("dead_letters"), name, findings)
    findings.raise_any()
    return Spec(
        name=name,
        sources=tuple(nodes.sources),
        steps=tuple(nodes.steps),
        sinks=tuple(read_sinks),
        dead_letters=letters,
        server="" if values["context"] and "server" not in places else values["server"],
        client=_client(values, nodes.directory),
        description=values["description"],
        every_s=values["every"],
        limit=values["limit"],
        mode=values["mode"],
        patience_s=values["patience"],
        spark=values["spark"],
        directory=nodes.directory,
        file=file,
        place=root.place,
    )


def _client(values: Mapping[str, Any], directory: Path) -> Mapping[str, str]:
    """The properties, with the context among them under its own name; no property of Kafka's has that."""
    return anchored(values["client"], directory) | ({CONTEXT: values["context"]} if values["context"] else {})


def _name(given: str | None, place: Place, file: Path, findings: Findings) -> str:
    name = file.stem if given is None else given
    if not _PIPELINE_NAME.fullmatch(name):
        whose = "" if given is not None else ", from the file's name"
        findings.add(
            place,
            f"the pipeline's name {shorten(name)}{whose}, must be of a-z, 0-9, '.', '_' and '-', begin with a letter "
            "or digit, and have 100 at most; set `name`",
        )
    return name


def _section(root: Table, key: str, of: str, findings: Findings) -> Iterable[Entry]:
    """The entries of `sources`, `steps` or `sinks`."""
    entry = root.get(key)
    if entry is None:
        return ()
    if not isinstance(entry.value, Table):
        findings.add(entry.place, f"`{key}` must be a map from names to {of}; it is {describe(entry.value)}")
        return ()
    if not entry.value.entries and key != "steps":
        findings.add(entry.place, f"`{key}` is empty; a pipeline needs one at least")
    return entry.value.entries


class _Nodes:
    """Sources and steps, in order, each with what stands above it."""

    def __init__(self, directory: Path, findings: Findings) -> None:
        self.directory = directory
        self.sources: list[Source] = []
        self.steps: list[Step] = []
        self.source_names: list[str] = []
        self.step_names: list[str] = []
        self._findings = findings

    def read(self, root: Table) -> None:
        known = Known(self._findings)
        sources = list(_section(root, "sources", "sources", self._findings))
        steps = list(_section(root, "steps", "steps", self._findings))
        self.source_names = [each.key for each in sources]
        self.step_names = [each.key for each in steps]
        for entry in sources:
            known.add("source", entry)
            if source := read_source(entry, self._findings):
                self.sources.append(source)
        if self.sources and len(self.sources) == len(sources) and all(each.is_static for each in self.sources):
            self._findings.add(
                self.sources[0].place, "every source is static, so nothing begins a micro-batch; stream one"
            )
        below = {each.key.casefold(): each.key for each in steps}
        for entry in steps:
            known.below = below
            if step := read_step(entry, known, self.directory, self._findings):
                self.steps.append(step)
            known.add("step", entry)
            below.pop(entry.key.casefold(), None)

    @property
    def names(self) -> list[str]:
        return self.source_names + self.step_names


def _read_sinks(root: Table, nodes: _Nodes, findings: Findings) -> list[SinkSpec]:
    found = []
    for entry in _section(root, "sinks", "sinks", findings):
        if not _SINK_NAME.fullmatch(entry.key):
            findings.add(
                entry.place,
                f"sink {shorten(entry.key)}: the name must be of letters, digits, '_', '.' and '-', begin with no '.' "
                "or '-', and have 100 at most",
            )
        if not isinstance(entry.value, Table):
            findings.add(
                entry.place, f"sink {entry.key}: must be a map, as {{delta: ./lake}}; it is {describe(entry.value)}"
            )
            continue
        if kind := _kind(entry, entry.value, findings):
            values, places = read_options(
                entry.value, tables.sink_keys(kind), f"sink {entry.key}", findings, apart=("from",)
            )
            source = _source_of(entry, entry.value.get("from"), nodes, findings)
            found.append(SinkSpec(entry.key, kind, source, values, entry.place, places))
    return found


def _kind(entry: Entry, table: Table, findings: Findings) -> str | None:
    """The key that is a kind's name."""
    kinds = [each for each in table if each.key in sinks.KINDS]
    if len(kinds) == 1:
        return kinds[0].key
    if kinds:
        names = " and ".join(f"`{each.key}`" for each in kinds)
        findings.add(kinds[1].place, f"sink {entry.key}: {names} are two kinds; make two sinks of it, or remove one")
        return None
    others = [each for each in table if each.key != "from"]
    hints = [hint for each in others if "did you mean" in (hint := nearest(each.key, sinks.KINDS))]
    hint = hints[0] if hints else f"give one of {', '.join(f'`{each}`' for each in sinks.KINDS)}"
    findings.add(entry.place, f"sink {entry.key}: no key says what kind it is; {hint}")
    return None


def _source_of(entry: Entry, given: Entry | None, nodes: _Nodes, findings: Findings) -> str:
    if given is not None and not is_lost(given.value):
        if not isinstance(given.value, Leaf):
            findings.add(given.place, f"sink {entry.key}: `from` must be the name of a step or source")
            return ""
        return resolve(given.value.text, nodes.names, given.place, f"sink {entry.key}: `from`", findings)
    if nodes.step_names:
        return nodes.step_names[-1]
    if len(nodes.source_names) > 1:
        names = ", ".join(nodes.source_names)
        findings.add(
            entry.place, f"sink {entry.key}: there are several sources and no step; say which with `from`: {names}"
        )
    return nodes.source_names[0] if nodes.source_names else ""


def resolve(name: str, names: list[str], place: Place, what: str, findings: Findings) -> str:
    """The name as it was given to its owner: in SQL, and so here, case does not matter."""
    found = next((each for each in names if each.casefold() == name.casefold()), None)
    if found is None and names:
        findings.add(place, f"{what} names {shorten(name)}, which is no source or step; {nearest(name, names)}")
    return found or name


def _read_letters(entry: Entry | None, name: str, findings: Findings) -> DeadLetters:
    if entry is None or is_lost(entry.value):
        return DeadLetters("topic", f"{name}.dead")
    where = "`{topic: NAME}`, `{file: DIR}`, `log` or `drop`"
    if isinstance(entry.value, Leaf):
        if entry.value.text in ("log", "drop"):
            return DeadLetters(entry.value.text, "", entry.place)
    elif isinstance(entry.value, Table):
        values, _ = read_options(entry.value, tables.DEAD_LETTERS, "dead_letters", findings)
        given = [each.key for each in entry.value if each.key in values]
        if len(given) == 1:
            return DeadLetters(given[0], values[given[0]] or "", entry.place)
    findings.add(entry.place, f"`dead_letters` must be one of {where}; it is {describe(entry.value)}")
    return DeadLetters("drop", "", entry.place)
