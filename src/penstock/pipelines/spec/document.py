"""YAML text → a tree that knows the line of every key and value, with `${VAR}` and `${VAR:default}` filled in.

Only PyYAML's composer is used: what a scalar means (number, flag, text) is decided by the key it stands at, so that
`version: 1.10` and `name: no` stay what was written.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

import yaml

from penstock.pipelines.model import Place
from penstock.pipelines.spec.tree import Entry, Findings, Items, Leaf, Node, Table, table_of

MAX_BYTES: Final = 1_000_000
MAX_DEPTH: Final = 40
MAX_NODES: Final = 20_000
"""After aliases are followed: nine lines of aliases can stand for a billion nodes."""

_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")
)
_MERGE: Final = "tag:yaml.org,2002:merge"
_BLOCK: Final = re.compile(r"(?:^|(?<=\s))[|>][-+0-9]*[ \t]*(?:#.*)?$", re.MULTILINE)
_VARIABLE: Final = re.compile(r"\$\$\{|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<default>[^}]*))?\})?")


class _Refused(yaml.MarkedYAMLError):
    """The document is well-formed and too much."""


class _Composer(yaml.SafeLoader):
    """Composes nodes up to a number, as PyYAML takes its time, and to a depth, as it descends by recursion."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._composed = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        self._composed += 1
        if self._composed > MAX_NODES:
            raise _Refused(problem=f"more than {MAX_NODES} values", problem_mark=self.get_mark())
        if self._depth > MAX_DEPTH:
            raise _Refused(problem=f"nested deeper than {MAX_DEPTH}", problem_mark=self.get_mark())
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def read(text: str, file: str, findings: Findings, environment: Mapping[str, str] = os.environ) -> Node | None:
    """The tree of a document; None where there is none.

    Args:
        file: what places name.
        findings: takes what is wrong. After a finding the tree is good for finding more, and for nothing else.
    """
    if len(text.encode(errors="replace")) > MAX_BYTES:
        findings.add(Place(file, 1), f"the file is larger than {MAX_BYTES} bytes; is it a pipeline?")
        return None
    try:
        root = _Composer(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        findings.add(Place(file, _line_of(error)), _reason_of(error, text))
        return None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        findings.add(Place(file, line), f"not YAML: the character U+{_code_of(error):04X} may not stand in a file")
        return None
    except (ValueError, ArithmeticError, LookupError) as error:
        # PyYAML lets some of Python's own errors through, as for "\UFFFFFFFF", which is no character.
        findings.add(Place(file, 1), f"not YAML: {error}")
        return None
    return _Reader(text, file, findings, environment).node(root) if root else None


def _line_of(error: yaml.MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


def _code_of(error: yaml.reader.ReaderError) -> int:
    return ord(error.character) if isinstance(error.character, str) else int(error.character)


def _reason_of(error: yaml.MarkedYAMLError, text: str) -> str:
    if isinstance(error, _Refused):
        return f"the file is {error.problem}; is it a pipeline?"
    if isinstance(error, yaml.composer.ComposerError) and error.context == "expected a single document in the stream":
        return "a second document begins here; a file has one pipeline"
    since = f" ({error.context}, line {error.context_mark.line + 1})" if error.context and error.context_mark else ""
    is_bare = error.problem_mark and text[max(error.problem_mark.index - 1, 0) :].startswith("${")
    hint = '; between { } or [ ] a variable needs quotes: "${NAME}"' if is_bare else ""
    return f"not YAML: {error.problem}{since}{hint}"


class _Reader:
    """Nodes of PyYAML → ours."""

    def __init__(self, text: str, file: str, findings: Findings, environment: Mapping[str, str]) -> None:
        self._text = text
        self._file = file
        self._findings = findings
        self._environment = environment
        self._open: set[int] = set()
        self._read = 0
        self._told: set[tuple[int, str]] = set()

    def node(self, node: yaml.Node) -> Node:
        place = self._place(node)
        self._read += 1
        if self._read > MAX_NODES:
            self._tell(Place(self._file, 1), f"aliases make more than {MAX_NODES} values of the file; write less")
            return Leaf("", place)
        if id(node) in self._open:
            self._tell(place, "what stands here is a part of itself, by an alias; write it out")
            return Leaf("", place)
        if node.tag not in _TAGS:
            self._tell(place, f"the tag {node.tag} means nothing here; remove it")
        self._open.add(id(node))
        try:
            return self._open_node(node, place)
        finally:
            self._open.discard(id(node))

    def _open_node(self, node: yaml.Node, place: Place) -> Node:
        match node:
            case yaml.MappingNode():
                return self._table(node, place)
            case yaml.SequenceNode():
                return Items(tuple(map(self.node, node.value)), place)
            case _:
                assert isinstance(node, yaml.ScalarNode)
                return self._leaf(node, place)

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._file, node.start_mark.line + 1)

    def _tell(self, place: Place, text: str) -> None:
        """An alias shows the same node again; what is wrong with it is told once."""
        if (place.line, text) not in self._told:
            self._told.add((place.line, text))
            self._findings.add(place, text)

    def _table(self, node: yaml.MappingNode, place: Place) -> Table:
        own: list[Entry] = []
        merged: list[Entry] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                merged += self._merged(value)
            elif isinstance(key, yaml.ScalarNode):
                own.append(Entry(key.value, self._place(key), self.node(value)))
            else:
                self._tell(self._place(key), "a key must be a text")
        table = table_of(own, place, self._tell)
        # What a table says itself goes before what it takes over, and of several the first one counts.
        return table_of((*table.entries, *merged), place, lambda place, text: None) if merged else table

    def _merged(self, value: yaml.Node) -> Iterator[Entry]:
        for each in value.value if isinstance(value, yaml.SequenceNode) else (value,):
            read = self.node(each)
            if isinstance(read, Table):
                yield from read.entries
            else:
                self._tell(self._place(each), "`<<` takes over a map, or a list of maps")

    def _leaf(self, node: yaml.ScalarNode, place: Place) -> Leaf:
        first = place.line
        raw = self._text[node.start_mark.index : node.end_mark.index]
        if node.style in ("|", ">") and (header := _BLOCK.search(raw)):
            first += raw.count("\n", 0, header.start()) + 1
            raw = raw[header.end() + 1 :]
        text = self._fill(node.value, raw, first)
        return Leaf(text or "", place, node.style is None, Place(self._file, first), is_lost=text is None)

    def _fill(self, text: str, raw: str, line: int) -> str | None:
        """The text with its variables; None where one is not set.

        Args:
            raw: as it stands in the file, from `line` on, with line ends that `text` may not have.
        """
        lines = iter([line + raw.count("\n", 0, each.start()) for each in _VARIABLE.finditer(raw)])
        filled, end, is_lost = "", 0, False
        for found in _VARIABLE.finditer(text):
            place = Place(self._file, next(lines, line))
            value = "${" if found[0] == "$${" else self._variable(found["name"], found["default"], place)
            is_lost = is_lost or value is None
            filled += text[end : found.start()] + (value or "")
            end = found.end()
        return None if is_lost else filled + text[end:]

    def _variable(self, name: str | None, default: str | None, place: Place) -> str | None:
        if name is None:
            self._tell(place, "`${` begins a variable, as ${NAME} or ${NAME:default}; for the characters write `$${`")
            return None
        value = self._environment.get(name, default)
        if value is None:
            self._tell(place, f"the variable {name} is not set; set it, or give a default: ${{{name}:...}}")
        return value
