"""A pipeline as a Python program. Calls and decorators only note what they are given; nothing runs.

    pipeline = Pipeline("revenue", every="1s")
    pipeline.topic("orders", topic="orders", format="json", schema="id BIGINT, amount DOUBLE")
    pipeline.sql("clean", "SELECT id, amount FROM orders", expect={"positive": "amount > 0"})

    @pipeline.step
    def large(clean):
        return clean.where("amount > 1000")

    pipeline.sink("lake", delta="./lake")

The notes become the tree that a YAML file becomes, and go the same way from there.
"""

import ast
import inspect
import linecache
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeVar, overload

from penstock.pipelines.errors import Finding, SpecError, Unreadable
from penstock.pipelines.model import Place, Spec
from penstock.pipelines.spec.functions import import_file
from penstock.pipelines.spec.parse import build
from penstock.pipelines.spec.tree import Entry, Findings, Items, Leaf, Node, Table, table_of

_Function = TypeVar("_Function", bound=Callable[..., Any])
_HERE: Final = __file__


class Pipeline:
    """A pipeline that a program puts together. Keyword arguments are the keys of a pipeline's file.

    A key that is a word of Python takes an underscore: `from_`. Relative paths are relative to the file that makes the
    pipeline.
    """

    def __init__(self, name: str, **keys: Any) -> None:
        """Notes the pipeline's own keys, as `server` and `every`.

        Args:
            name: as `name` in a file.
        """
        self._place, _ = _caller()
        self._keys = self._entries({"name": name, **keys}, self._place)
        self._sections: dict[str, list[Entry]] = {"sources": [], "steps": [], "sinks": []}

    def topic(self, name: str, **keys: Any) -> None:
        """A source: rows of topics.

        Args:
            name: the table's name in steps.
            keys: of a topic source, as `topic`, `format`, `schema`.
        """
        self._note("sources", name, keys)

    def files(self, name: str, **keys: Any) -> None:
        """A source: rows of files.

        Args:
            name: the table's name in steps.
            keys: of a files source, as `files`, `format`, `static`.
        """
        self._note("sources", name, keys)

    def sql(self, name: str, query: str, **keys: Any) -> None:
        """A step: a query over sources and the steps above.

        Args:
            keys: of a step, as `expect`, `watermark`, `inputs`.
        """
        place, frame = _caller()
        entries = self._entries(keys, place)
        leaf = Leaf(query, place, is_plain=False, text_place=_place_of_text(query, frame, place))
        self._add("steps", name, Table((Entry("sql", place, leaf), *entries), place))

    @overload
    def step(self, function: _Function, /) -> _Function: ...

    @overload
    def step(self, /, *, name: str | None = None, **keys: Any) -> Callable[[_Function], _Function]: ...

    def step(
        self, function: _Function | None = None, /, *, name: str | None = None, **keys: Any
    ) -> _Function | Callable[[_Function], _Function]:
        """A step: a function from DataFrames, named by its parameters, to a DataFrame. It is returned as it is.

        Args:
            name: the table's name in later steps, if not the function's.
            keys: of a step, as `expect`, `watermark`, `inputs`.
        """
        place, _ = _caller()

        def note(function: _Function) -> _Function:
            where, reference = _find(function, place)
            entry = Entry("python", where, Leaf(reference, where, is_plain=False, function=function))
            called = name or str(getattr(function, "__name__", type(function).__name__))
            self._add("steps", called, Table((entry, *self._entries(keys, place)), where))
            return function

        return note if function is None else note(function)

    def sink(self, name: str, *, source: str | None = None, **keys: Any) -> None:
        """Where rows go.

        Args:
            source: the step or source whose rows it takes, `from` in a file.
            keys: of the kind of sink, as `delta`, `partition_by`.
        """
        self._note("sinks", name, keys if source is None else {"from": source, **keys})

    def dead_letters(self, word: str | None = None, /, **keys: Any) -> None:
        """Where rows go that nobody takes.

        Args:
            word: `log` or `drop`; or else:
            keys: `topic` or `file`.
        """
        place, _ = _caller()
        value = Leaf(word, place) if word is not None and not keys else Table(tuple(self._entries(keys, place)), place)
        self._keys.append(Entry("dead_letters", place, value))

    def spec(self) -> Spec:
        """The pipeline, checked.

        Raises:
            SpecError: with all that is wrong.
        """
        findings = Findings()
        sections = [
            Entry(key, self._place, table_of(entries, self._place, findings.add))
            for key, entries in self._sections.items()
        ]
        root = table_of((*self._keys, *sections), self._place, findings.add)
        return build(root, Path(self._place.file), findings)

    def _note(self, section: str, name: str, keys: Mapping[str, Any]) -> None:
        place, _ = _caller()
        self._add(section, name, Table(tuple(self._entries(keys, place)), place))

    def _add(self, section: str, name: str, table: Table) -> None:
        self._sections[section].append(Entry(str(name), table.place, table))

    def _entries(self, keys: Mapping[str, Any], place: Place) -> list[Entry]:
        return [Entry(key.rstrip("_"), place, _node(value, place)) for key, value in keys.items()]


def _node(value: Any, place: Place) -> Node:
    """What a YAML file would say."""
    match value:
        case str() | Path():
            return Leaf(str(value), place, is_plain=False)
        case None:
            return Leaf("", place)
        case bool():
            return Leaf(str(value).lower(), place)
        case int() | float():
            return Leaf(str(value), place)
        case timedelta():
            return Leaf(f"{value.total_seconds():f}s", place)
        case Mapping():
            return Table(tuple(Entry(str(key), place, _node(each, place)) for key, each in value.items()), place)
        case list() | tuple() | set() | frozenset():
            return Items(tuple(_node(each, place) for each in value), place)
    raise TypeError(f"{place}: a {type(value).__name__} cannot stand in a pipeline; give a text, number, list or dict")


def _caller() -> tuple[Place, FrameType]:
    """The line that called into this file."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == _HERE and frame.f_back is not None:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno), frame


def _find(function: Callable[..., Any], place: Place) -> tuple[Place, str]:
    """Where a function stands, and how a file would name it."""
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    if not isinstance(code, CodeType):
        return place, f"{Path(place.file).name}:{name}"
    return Place(code.co_filename, code.co_firstlineno), f"{Path(code.co_filename).name}:{name}"


def _place_of_text(text: str, frame: FrameType, place: Place) -> Place:
    """Where a text stands that was an argument of the call on that line; the call's own place if it came otherwise."""
    linecache.checkcache(place.file)
    lines = linecache.getlines(place.file, frame.f_globals)
    try:
        module = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return place
    for call in ast.walk(module):
        if isinstance(call, ast.Call) and call.lineno <= place.line <= (call.end_lineno or 0):
            for each in (*call.args, *(keyword.value for keyword in call.keywords)):
                if isinstance(each, ast.Constant) and each.value == text:
                    return Place(place.file, each.lineno)
    return place


def load_program(path: Path) -> Spec:
    """The one pipeline that a Python file makes.

    Raises:
        SpecError: the file cannot be imported, or has no pipeline or several; or with all that is wrong with it.
    """
    if not path.is_file():
        raise Unreadable([Finding(Place(str(path), 1), "the file is not there")])
    module = import_file(path, path.absolute().parent)
    found = {id(each): (name, each) for name, each in vars(module).items() if isinstance(each, Pipeline)}
    if len(found) != 1:
        names = ", ".join(name for name, _ in found.values())
        said = f"several pipelines are here: {names}; make a file of each" if found else "no variable holds a Pipeline"
        raise SpecError([Finding(Place(str(path), 1), said)])
    ((_, pipeline),) = found.values()
    return pipeline.spec()
