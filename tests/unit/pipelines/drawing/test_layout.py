"""Boxes do not lie on each other, lines go to the right, and what can be straight is."""

from graphlib import CycleError
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.pipelines.drawing.samples import CROSSED, REVENUE

from penstock.pipelines.drawing.figure import LETTERS, Edge, Figure, Node, Role, make_figure
from penstock.pipelines.drawing.layout import Bend, Cell, Extent, arrange, count_crossings, place_rows


@st.composite
def figures(draw: st.DrawFn) -> Figure:
    """Any pipeline: steps read what is above them, sinks read sources and steps."""
    sources = [f"s{number}" for number in range(draw(st.integers(1, 4)))]
    steps = [f"t{number}" for number in range(draw(st.integers(0, 6)))]
    sinks = [f"w{number}" for number in range(draw(st.integers(1, 4)))]
    edges = []
    for at, step in enumerate(steps):
        inputs = draw(st.lists(st.sampled_from(sources + steps[:at]), min_size=1, max_size=3, unique=True))
        edges += [Edge(each, step) for each in inputs]
    edges += [Edge(draw(st.sampled_from(sources + steps)), sink) for sink in sinks]
    aside = draw(st.lists(st.sampled_from(sources + steps), max_size=4, unique=True))
    roles = {
        **dict.fromkeys(sources, Role.SOURCE),
        **dict.fromkeys(steps, Role.STEP),
        **dict.fromkeys(sinks, Role.SINK),
    }
    if aside:
        roles[LETTERS] = Role.LETTERS
        edges += [Edge(each, LETTERS, aside=True) for each in aside]
    return Figure("any", tuple(Node(key, role, key, "SQL") for key, role in roles.items()), tuple(edges))


def extent(cell: Cell) -> Extent:
    return Extent(2, 0) if isinstance(cell, Bend) else Extent(4 + 2 * (len(cell) % 3), 2)


@given(figures())
@settings(max_examples=150, deadline=None)
def test_columns(figure: Figure) -> None:
    columns = arrange(figure)
    column_of = {cell: number for number, column in enumerate(columns.cells) for cell in column}
    assert sum(map(len, columns.cells)) == len(column_of)  # each cell once
    assert {cell for cell in column_of if isinstance(cell, str)} == {node.key for node in figure.nodes}
    assert all(column_of[hop.end] == column_of[hop.start] + 1 for hop in columns.hops)
    last = len(columns.cells) - 1
    for node in figure.nodes:
        if node.role is Role.SOURCE:
            assert column_of[node.key] == 0
        elif node.role is not Role.STEP:
            assert column_of[node.key] == last
    assert_every_line_is_there(figure, columns.hops)


def assert_every_line_is_there(figure: Figure, hops: object) -> None:
    after: dict[tuple[Cell, bool], set[Cell]] = {}
    for hop in hops:  # type: ignore[attr-defined]
        after.setdefault((hop.start, hop.aside), set()).add(hop.end)
    for start in {edge.start for edge in figure.edges}:
        for aside in (False, True):
            reached: set[Cell] = set()
            ahead: set[Cell] = {start}
            while ahead:
                ahead = set().union(*(after.get((cell, aside), set()) for cell in ahead))
                reached |= {cell for cell in ahead if isinstance(cell, str)}
                ahead = {cell for cell in ahead if isinstance(cell, Bend)}
            assert reached == {edge.end for edge in figure.edges if edge.start == start and edge.aside == aside}


@given(figures(), st.sampled_from([1, 2]))
@settings(max_examples=150, deadline=None)
def test_nothing_lies_on_anything(figure: Figure, grid: int) -> None:
    columns = arrange(figure)
    tops = place_rows(columns, extent, grid=grid)
    assert min(tops.values()) == 0
    assert all(top % grid == 0 for top in tops.values())
    for column in columns.cells:
        for above, below in pairwise(column):
            assert tops[above] + extent(above).height <= tops[below]


@given(figures())
@settings(max_examples=100, deadline=None)
def test_dead_letters_stand_below_all(figure: Figure) -> None:
    for column in arrange(figure).cells:
        low = [(cell.bundle if isinstance(cell, Bend) else cell) == LETTERS for cell in column]
        assert low == sorted(low)


def test_crossings_are_undone() -> None:
    roles = {"a": Role.SOURCE, "b": Role.SOURCE, "c": Role.SINK, "d": Role.SINK}
    nodes = tuple(Node(key, role, key, "") for key, role in roles.items())
    columns = arrange(Figure("x", nodes, (Edge("a", "d"), Edge("b", "c"))))
    assert count_crossings(columns.cells, columns.hops) == 0
    assert count_crossings([["a", "b"], ["c", "d"]], columns.hops) == 1


def test_the_only_lines_between_boxes_are_straight() -> None:
    for spec, pairs in (
        (REVENUE, [("source orders", "step clean"), ("step hourly", "sink lake")]),
        (CROSSED, [("step c", "sink e"), ("step d", "sink f")]),
    ):
        tops = place_rows(arrange(make_figure(spec)), extent, grid=2)
        for start, end in pairs:
            assert tops[start] == tops[end]


def test_rows_do_not_go_round() -> None:
    nodes = tuple(Node(key, Role.STEP, key, "") for key in "ab")
    with pytest.raises(CycleError):
        arrange(Figure("x", nodes, (Edge("a", "b"), Edge("b", "a"))))


def test_nothing_to_draw() -> None:
    columns = arrange(Figure("x", (), ()))
    assert columns.cells == ()
    assert place_rows(columns, extent) == {}
