"""Where the boxes of a figure go: columns by the longest way from a source, rows so that few lines cross and most are
straight. Pure; the unit is the caller's, characters or pixels.

A line that skips columns bends once in each of them, so it keeps a place between the boxes there. Lines of one bundle
(all that leave a box, or all that lead aside) share their bends.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.pipelines.drawing.figure import Figure, Role

_SWEEPS: Final = 8
_ASIDE, _ALONE = 0.05, 200.0
"""What a line that leads aside, and the only one between two boxes, counts against others in being straight."""


class Bend(NamedTuple):
    """Where a bundle of lines passes a column."""

    bundle: str
    column: int


Cell = str | Bend
"""A box, by its key, or a bend."""


class Hop(NamedTuple):
    """A piece of a line, from one column to the next."""

    start: Cell
    end: Cell
    aside: bool


@dataclass(frozen=True, slots=True)
class Columns:
    """
    Attributes:
        cells: of each column, from top to bottom.
        hops: each once.
    """

    cells: tuple[tuple[Cell, ...], ...]
    hops: tuple[Hop, ...]

    def hops_from(self, column: int) -> list[Hop]:
        here = set(self.cells[column])
        return [hop for hop in self.hops if hop.start in here]


class Extent(NamedTuple):
    """How high a cell is, with the space below it; lines meet it `anchor` below its top."""

    height: int
    anchor: int


def arrange(figure: Figure) -> Columns:
    """Columns and the order in each. Raises `graphlib.CycleError` where rows would go round."""
    column_of = _find_columns(figure)
    hops: dict[Hop, None] = {}
    low = {node.key for node in figure.nodes if node.role is Role.LETTERS}
    cells: list[list[Cell]] = [[] for _ in range(max(column_of.values(), default=-1) + 1)]
    for node in figure.nodes:
        cells[column_of[node.key]].append(node.key)
    for edge in figure.edges:
        bundle = edge.end if edge.aside else edge.start
        way: list[Cell] = [Bend(bundle, at) for at in range(column_of[edge.start] + 1, column_of[edge.end])]
        for start, end in pairwise([edge.start, *way, edge.end]):
            hops[Hop(start, end, edge.aside)] = None
            if isinstance(end, Bend) and end not in cells[end.column]:
                cells[end.column].append(end)
    return Columns(_order(cells, list(hops), low), tuple(hops))


def _find_columns(figure: Figure) -> dict[str, int]:
    """By the longest way; where rows end, the last column."""
    before: dict[str, set[str]] = {node.key: set() for node in figure.nodes}
    for edge in figure.edges:
        before[edge.end].add(edge.start)
    found: dict[str, int] = {}
    for key in TopologicalSorter(before).static_order():
        found[key] = max((found[each] + 1 for each in before[key]), default=0)
    last = max(found.values(), default=0)
    ends = [node.key for node in figure.nodes if node.role in (Role.SINK, Role.LETTERS)]
    return found | dict.fromkeys(ends, last)


def _order(cells: list[list[Cell]], hops: list[Hop], low: set[str]) -> tuple[tuple[Cell, ...], ...]:
    """Sorts columns by the mean place of neighbours, to and fro; keeps the order with the fewest crossings."""
    before, after = _neighbours(hops)
    current = [sorted(column, key=lambda cell: _is_low(cell, low)) for column in cells]
    best, fewest = current, count_crossings(current, hops)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        numbers = range(1, len(current)) if forward else range(len(current) - 2, -1, -1)
        current = [list(column) for column in current]
        for number in numbers:
            beside = current[number - 1 if forward else number + 1]
            current[number] = _sort_by(current[number], beside, before if forward else after, low)
        crossings = count_crossings(current, hops)
        if crossings < fewest:
            best, fewest = current, crossings
    return tuple(tuple(column) for column in best)


def _neighbours(hops: Sequence[Hop]) -> tuple[dict[Cell, list[Cell]], dict[Cell, list[Cell]]]:
    before: dict[Cell, list[Cell]] = {}
    after: dict[Cell, list[Cell]] = {}
    for hop in hops:
        before.setdefault(hop.end, []).append(hop.start)
        after.setdefault(hop.start, []).append(hop.end)
    return before, after


def _sort_by(
    column: list[Cell], beside: list[Cell], neighbours: Mapping[Cell, list[Cell]], low: set[str]
) -> list[Cell]:
    place = {cell: at for at, cell in enumerate(beside)}

    def rank(at: int) -> tuple[bool, float]:
        known = [place[cell] for cell in neighbours.get(column[at], ()) if cell in place]
        return _is_low(column[at], low), sum(known) / len(known) if known else float(at)

    return [column[at] for at in sorted(range(len(column)), key=rank)]


def _is_low(cell: Cell, low: set[str]) -> bool:
    return (cell.bundle if isinstance(cell, Bend) else cell) in low


def count_crossings(columns: Sequence[Sequence[Cell]], hops: Sequence[Hop]) -> int:
    place = {cell: (number, at) for number, column in enumerate(columns) for at, cell in enumerate(column)}
    by_column: dict[int, list[tuple[int, int]]] = {}
    for hop in hops:
        by_column.setdefault(place[hop.start][0], []).append((place[hop.start][1], place[hop.end][1]))
    return sum(
        (one[0] - other[0]) * (one[1] - other[1]) < 0
        for pairs in by_column.values()
        for at, one in enumerate(pairs)
        for other in pairs[:at]
    )


def place_rows(columns: Columns, extent: Callable[[Cell], Extent], *, grid: int = 1) -> dict[Cell, int]:
    """The top of every cell, a multiple of `grid`: none over another, and lines as straight as that allows.

    Heights must be multiples of `grid`.
    """
    sizes = {cell: extent(cell) for column in columns.cells for cell in column}
    tops: dict[Cell, float] = {}
    for column in columns.cells:
        _settle(column, {}, sizes, tops, grid)
    for sweep in range(_SWEEPS + 1):
        forward = sweep % 2 == 0
        for column in columns.cells if forward else reversed(columns.cells):
            _settle(column, _find_wishes(columns.hops, forward, sizes, tops), sizes, tops, grid)
    highest = min(tops.values(), default=0)
    return {cell: round(top - highest) for cell, top in tops.items()}


class _Wish(NamedTuple):
    top: float
    weight: float


def _find_wishes(
    hops: Sequence[Hop], forward: bool, sizes: Mapping[Cell, Extent], tops: Mapping[Cell, float]
) -> dict[Cell, _Wish]:
    """Where cells had straight lines to those before them, or behind them. Lines that lead aside hardly count, and most
    those between two boxes that have no other line there."""
    outs, ins = Counter(hop.start for hop in hops if not hop.aside), Counter(hop.end for hop in hops if not hop.aside)
    sums: dict[Cell, tuple[float, float]] = {}
    for hop in hops:
        cell, other = (hop.end, hop.start) if forward else (hop.start, hop.end)
        alone = outs[hop.start] == ins[hop.end] == 1 and not isinstance(hop.start, Bend)
        weight = _ASIDE if hop.aside else _ALONE if alone else 1.0
        total, weights = sums.get(cell, (0.0, 0.0))
        sums[cell] = total + weight * (tops[other] + sizes[other].anchor), weights + weight
    return {cell: _Wish(total / weights - sizes[cell].anchor, weights) for cell, (total, weights) in sums.items()}


def _settle(
    column: Sequence[Cell],
    wishes: Mapping[Cell, _Wish],
    sizes: Mapping[Cell, Extent],
    tops: dict[Cell, float],
    grid: int,
) -> None:
    """Each cell as near to where it wishes to be as the others allow: least squares, by pooling neighbours that are in
    each other's way. Those without a wish stay where they are, if nobody pushes."""
    blocks: list[tuple[float, float, int]] = []  # mean wish as if no cell had a height, its weight, how many share it
    offset = 0
    for cell in column:
        wish = wishes.get(cell, _Wish(tops.get(cell, float(offset)), _ASIDE))
        blocks.append((wish.top - offset, wish.weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (upper, above, some), (lower, below, more) = blocks[-2:]
            blocks[-2:] = [((upper * above + lower * below) / (above + below), above + below, some + more)]
        offset += sizes[cell].height
    means = [mean for mean, _, count in blocks for _ in range(count)]
    offset = 0
    for cell, mean in zip(column, means, strict=True):
        tops[cell] = round(mean / grid) * grid + offset
        offset += sizes[cell].height
