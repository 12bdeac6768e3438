"""Records of one step of a group, each applied when it is written: what a group is follows from its records alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from penstock.engine.coordination.schemas import Entry, Kind


class Remembering(Protocol):
    """What a group remembers."""

    @property
    def group_id(self) -> str: ...

    @property
    def member_kinds(self) -> tuple[Kind, ...]:
        """The records there are of each member, in the order in which they are taken back: so that whoever reads up
        to there never finds a partition with a stranger."""
        ...

    def apply(self, entry: Entry) -> None: ...


class Step:
    __slots__ = ("_state", "entries")

    def __init__(self, state: Remembering) -> None:
        self._state = state
        self.entries: list[Entry] = []

    def write(self, kind: Kind, value: Any, *of: str) -> None:
        """Args:
        of: the member or the regular expression it is about, if it is not about the group.
        """
        entry = Entry(kind, (self._state.group_id, *of), value)
        self._state.apply(entry)
        self.entries.append(entry)

    def remove_member(self, member_id: str) -> None:
        for kind in self._state.member_kinds:
            self.write(kind, None, member_id)


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """As a record says it: without a value, what was there is taken back."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def entry_of(kind: Kind, group_id: str, value: Any) -> Iterable[Entry]:
    return () if value is None else (Entry(kind, (group_id,), value),)


def entries_of(
    kind: Kind, group_id: str, table: Mapping[str, Any], make: Callable[[Any], Any] = lambda value: value
) -> Iterator[Entry]:
    return (Entry(kind, (group_id, key), make(value)) for key, value in table.items())
