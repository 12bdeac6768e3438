"""What stands in a pipeline's file, before anybody asks what it means: tables, lists and texts, each with its line.

A YAML file and a Python program both become such a tree, so one parser reads both.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from penstock.pipelines.errors import Finding, SpecError
from penstock.pipelines.model import Place

_NOTHING = frozenset(("", "~", "null", "Null", "NULL"))


@dataclass(frozen=True, slots=True)
class Leaf:
    """A text, or what a text stands for.

    Attributes:
        is_plain: not quoted, so that it may be a number, a flag or nothing.
        text_place: where the text's first line stands, if that is not `place`.
        is_lost: a variable in it is not set; that is told, and nothing else need be said of it.
        function: what a Python program gave instead of a text.
    """

    text: str
    place: Place
    is_plain: bool = True
    text_place: Place | None = None
    is_lost: bool = False
    function: Callable[..., Any] | None = None

    @property
    def is_nothing(self) -> bool:
        return self.is_plain and self.function is None and not self.is_lost and self.text in _NOTHING


class Entry(NamedTuple):
    """A key with its value; `place` is the key's."""

    key: str
    place: Place
    value: "Node"


@dataclass(frozen=True, slots=True)
class Table:
    """Keys with values, in the order in which they stand; no key twice."""

    entries: tuple[Entry, ...]
    place: Place

    def get(self, key: str) -> Entry | None:
        """The entry, unless it is missing or has nothing behind it."""
        return next((each for each in self if each.key == key), None)

    def __iter__(self) -> Iterator[Entry]:
        return (each for each in self.entries if not is_nothing(each.value))


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    nodes: tuple["Node", ...]
    place: Place


Node = Leaf | Table | Items


def is_nothing(node: Node) -> bool:
    return isinstance(node, Leaf) and node.is_nothing


def is_lost(node: Node) -> bool:
    return isinstance(node, Leaf) and node.is_lost


def describe(node: Node) -> str:
    """What it is, for an error's text."""
    match node:
        case Table():
            return "a map"
        case Items():
            return "a list"
        case Leaf(function=None):
            return shorten(node.text)
        case _:
            return "a function"


def shorten(text: str) -> str:
    """A value for an error's text: quoted, on one line and no longer than that."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


class Findings:
    """All that is wrong, in the order of places."""

    def __init__(self) -> None:
        self._found: list[Finding] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, place: Place | None, text: str) -> None:
        self._found.append(Finding(place, text))

    def extend(self, findings: Iterable[Finding]) -> None:
        self._found.extend(findings)

    def error(self) -> SpecError:
        return SpecError(
            sorted(self._found, key=lambda each: (each.place.file, each.place.line) if each.place else ("", 0))
        )

    def raise_any(self) -> None:
        if self._found:
            raise self.error()


def table_of(entries: Iterable[Entry], place: Place, tell: Callable[[Place, str], None]) -> Table:
    """A table; a key that comes twice is told, and the first one counts."""
    kept: dict[str, Entry] = {}
    for each in entries:
        if first := kept.get(each.key):
            tell(each.place, f"`{each.key}` is there twice, first on line {first.place.line}; remove or rename one")
        else:
            kept[each.key] = each
    return Table(tuple(kept.values()), place)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what may have been meant, or what there is."""
    by_fold = {each.casefold(): each for each in known}
    close = get_close_matches(name[:100].casefold(), by_fold, 1, 0.6)
    if close:
        return f"did you mean `{by_fold[close[0]]}`?"
    return f"there is {', '.join(f'`{each}`' for each in by_fold.values())}" if by_fold else "there is none"
