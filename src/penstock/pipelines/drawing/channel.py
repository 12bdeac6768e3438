"""How lines run between two columns of boxes, on a grid of characters: out to a track of their own, along it, and in.

Everything that leaves one port shares a track; everything that enters one box meets in its row. Two lines must not lie
on each other in a row. Where a port's row is also the row some other lines enter by, the port's track has to be the
nearer one; where that goes round in a circle, `route` says so, and the caller moves ports to rows where nothing enters.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Port(Generic[T]):
    """Where lines leave: the row, and the rows they enter by."""

    name: T
    row: int
    enters: tuple[int, ...]

    @property
    def is_straight(self) -> bool:
        return self.enters == (self.row,)


def route(ports: Sequence[Port[T]]) -> dict[T, int] | None:
    """The number of each bent port's track, from the left; None where no order of tracks keeps lines apart."""
    bent = sorted((port for port in ports if not port.is_straight), key=_rank)
    nearer: dict[T, list[T]] = {port.name: [] for port in bent}  # tracks that must be to the left
    for port in bent:
        for other in ports:
            if other is not port and port.row in other.enters:
                nearer[other.name].append(port.name)
    try:
        order = list(TopologicalSorter(nearer).static_order())
    except CycleError:
        return None
    return _share(order, {port.name: port for port in bent}, nearer)


def _rank(port: Port[T]) -> int:
    """Fewest crossings: of lines that lead down the lowest turns first, of those that lead up the highest."""
    return -port.row if sum(port.enters) > port.row * len(port.enters) else port.row


def _share(order: Iterable[T], ports: Mapping[T, Port[T]], nearer: Mapping[T, Sequence[T]]) -> dict[T, int]:
    """Lets ports share a track where their lines do not touch."""
    tracks: list[list[tuple[int, int]]] = []
    found: dict[T, int] = {}
    for name in order:
        rows = (ports[name].row, *ports[name].enters)
        top, bottom = min(rows), max(rows)
        least = max((found[each] + 1 for each in nearer[name]), default=0)
        for number in range(least, len(tracks)):
            if all(bottom < above or below < top for above, below in tracks[number]):
                break
        else:
            number = max(len(tracks), least)
            tracks += [[] for _ in range(number + 1 - len(tracks))]
        tracks[number].append((top, bottom))
        found[name] = number
    return found
