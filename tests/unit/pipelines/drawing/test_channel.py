"""Lines between two columns: each port has a track, and none lies on another's row."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipelines.drawing.channel import Port, route


def test_straight_lines_need_no_track() -> None:
    assert route([Port("a", 2, (2,)), Port("b", 6, (6,))]) == {}


def test_one_that_enters_where_another_leaves_turns_behind_it() -> None:
    tracks = route([Port("a", 2, (6,)), Port("b", 6, (10,))])
    assert tracks is not None
    assert tracks["b"] < tracks["a"]


def test_two_that_enter_where_the_other_leaves_cannot_be_kept_apart() -> None:
    assert route([Port("a", 2, (6,)), Port("b", 6, (2,))]) is None


def test_lines_that_do_not_touch_share_a_track() -> None:
    assert route([Port("a", 2, (4,)), Port("b", 8, (10,))]) == {"a": 0, "b": 0}


Ports = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True), min_size=1, max_size=5)


@given(Ports)
@settings(max_examples=200, deadline=None)
def test_odd_rows_out_and_even_rows_in_always_work(targets: list[list[int]]) -> None:
    ports = [Port(at, 4 * at + 1, tuple(4 * each for each in rows)) for at, rows in enumerate(targets)]
    assert route(ports) is not None


@given(Ports)
@settings(max_examples=300, deadline=None)
def test_no_two_lines_lie_on_each_other(targets: list[list[int]]) -> None:
    """By drawing them: a row's piece from a port to its track meets no piece that leads into a box by other ports."""
    ports = [Port(at, 2 * at, tuple(2 * each for each in rows)) for at, rows in enumerate(targets)]
    tracks = route(ports)
    if tracks is None:
        return
    for port, other in product(ports, ports):
        if port is other or port.is_straight:
            continue
        if port.row in other.enters:
            assert tracks[other.name] > tracks[port.name]
        spans = [(min(each.row, *each.enters), max(each.row, *each.enters)) for each in (port, other)]
        if not other.is_straight and tracks[port.name] == tracks[other.name]:
            assert spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]
