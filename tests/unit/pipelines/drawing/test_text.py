"""Figures in characters: as they look, and that they keep to the width."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.pipelines.drawing.samples import CROSSED, REVENUE, delta, make_spec, make_status, topic
from tests.unit.pipelines.drawing.test_layout import figures

from penstock.pipelines.drawing.figure import Fact, Figure, Mood, Node, Role, make_figure
from penstock.pipelines.drawing.text import can_draw, draw

PLAIN = """\
revenue
Revenue by hour

┌────────────────────────────┐     ┌───────────────┐                                          ┌────────────────────┐
│ orders                     │     │ clean         │                                          │ raw                │
│ topic orders               ├────►│ SQL           ├───┬─────────────────────────────────────►│ topic orders.clean │
│                            ├╌┐   │ 1 expectation ├╌╌╌│╌┐                                    └────────────────────┘
└────────────────────────────┘ ╎   └───────────────┘   │ ╎   ┌──────────────────────────┐     ┌────────────────────┐
                               ╎                       │ ╎   │ hourly                   │     │ lake               │
┌────────────────────────────┐ ╎                     ┌─┴─╎──►│ Python revenue.py:hourly ├────►│ delta ./lake       │
│ customers                  │ ╎                     │   ╎   └──────────────────────────┘     └────────────────────┘
│ csv customers.csv (static) ├─╎─────────────────────┘ ┌╌┴╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┐   ┌────────────────────┐
└────────────────────────────┘ ╎                       ╎                                  ╎   │ dead letters       │
                               └╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┘                                  └╌╌►│ topic revenue.dead │
                                                                                              └────────────────────┘"""
RUNNING = """\
revenue  running  1,500 rows/s  123k rows  lag 30  batch 42 in 820 ms
Revenue by hour

                                                                                            ┌─────────────────────────┐
                                                                                            │ raw                     │
                                                                                        ┌──►│ topic orders.clean      │
                                                                                        │   │ 0.5 rows/s              │
┌─────────────────────────┐     ┌─────────────────┐                                     │   │ 9 rows                  │
│ orders                  │     │ clean           │                                     │   │ 1 rejected              │
│ topic orders            ├────►│ SQL             ├───┬─────────────────────────────────┘   │ no broker answers at h… │
│ 1,500 rows/s            ├╌┐   │ 123k rows       ├╌┐ │                                     └─────────────────────────┘
│ 123k rows               │ ╎   │ 2 not: positive │ ╎ │     ┌─────────────────────────┐     ┌─────────────────────────┐
│ lag 30                  │ ╎   └─────────────────┘ ╎ │     │ hourly                  │     │ lake                    │
│ 1 not decoded           │ ╎                       ╎ └─┬──►│ Python revenue.py:hour… ├────►│ delta ./lake            │
└─────────────────────────┘ ╎                       ╎   │   └─────────────────────────┘     │ 0.1 rows/s              │
┌─────────────────────────┐ ╎                       └╌┬╌│╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┐   │ 24 rows                 │
│ customers               │ ╎                         ╎ │                               ╎   └─────────────────────────┘
│ csv customers.csv (sta… ├─╎─────────────────────────╎─┘                               ╎   ┌─────────────────────────┐
└─────────────────────────┘ ╎                         ╎                                 ╎   │ dead letters            │
                            └╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌┘                                 └╌╌►│ topic revenue.dead      │
                                                                                            │ 3 rows                  │
                                                                                            └─────────────────────────┘"""
CROSSING = """\
p

┌─────────┐       ┌─────┐   ┌───────────┐
│ a       ├─┐     │ c   │   │ e         │
│ topic a │ ├─┬──►│ SQL ├──►│ delta ./e │
└─────────┘ │ │   └─────┘   └───────────┘
┌─────────┐ │ │   ┌─────┐   ┌───────────┐
│ b       ├─│─┤   │ d   │   │ f         │
│ topic b │ └─┴──►│ SQL ├──►│ delta ./f │
└─────────┘       └─────┘   └───────────┘"""
ASCII = """\
p

+---------+       +-----+   +-----------+
| a       +-+     | c   |   | e         |
| topic a | +-+-->| SQL +-->| delta ./e |
+---------+ | |   +-----+   +-----------+
+---------+ | |   +-----+   +-----------+
| b       +-|-+   | d   |   | f         |
| topic b | +-+-->| SQL +-->| delta ./f |
+---------+       +-----+   +-----------+"""
LISTED = """\
revenue  running  1,500 rows/s  123k rows  lag 30
batch 42 in 820 ms
Revenue by hour

sources
  orders     topic orders
    1,500 rows/s  123k rows  lag 30  1 not decoded
  customers  csv customers.csv (static)
steps
  clean      SQL
    from orders  123k rows  2 not: positive
  hourly     Python revenue.py:hourly
    from clean, customers
sinks
  raw        topic orders.clean
    from clean  0.5 rows/s  9 rows  1 rejected
    no broker answers at h:1
  lake       delta ./lake
    from hourly  0.1 rows/s  24 rows
dead letters
  topic revenue.dead
    from orders, clean  3 rows"""


def test_a_pipeline() -> None:
    assert draw(make_figure(REVENUE), width=120) == PLAIN


def test_a_pipeline_at_work() -> None:
    assert draw(make_figure(REVENUE, make_status()), width=120) == RUNNING


def test_lines_that_cross_leave_by_rows_of_their_own() -> None:
    assert draw(make_figure(CROSSED), width=120) == CROSSING


def test_where_the_encoding_has_no_lines() -> None:
    assert draw(make_figure(CROSSED), width=120, unicode=False) == ASCII


def test_ascii_throughout() -> None:
    assert draw(make_figure(REVENUE, make_status()), width=100, unicode=False).isascii()
    spec = make_spec((topic("größe"),), (), (delta("c", "größe"),))
    assert draw(make_figure(spec), width=100, unicode=False).isascii()


def test_a_list_where_boxes_do_not_fit() -> None:
    assert draw(make_figure(REVENUE, make_status()), width=60) == LISTED


@given(figures(), st.integers(30, 160), st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_width_is_kept_and_nothing_left_out(figure: Figure, width: int, unicode: bool) -> None:
    drawn = draw(figure, width=width, unicode=unicode)
    assert max(map(len, drawn.splitlines())) <= width
    for node in figure.nodes:
        assert re.search(rf"(?<![a-z0-9]){re.escape(node.name)}(?![a-z0-9])", drawn)


def test_colours_change_nothing_else() -> None:
    figure = make_figure(REVENUE, make_status())
    for width in (60, 120):
        coloured = draw(figure, width=width, colour=True)
        assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == draw(figure, width=width)
        assert "\x1b[31mno broker" in coloured


def test_wide_characters_take_two_columns() -> None:
    nodes = (Node("a", Role.SOURCE, "注文", "topic 注文", (Fact("x", Mood.GOOD),)),)
    lines = draw(Figure("wide", nodes, ()), width=40).splitlines()[2:]
    assert lines[1:4] == ["│ 注文       │", "│ topic 注文 │", "│ x          │"]
    assert len(lines[0]) == 14


@pytest.mark.parametrize(
    ("encoding", "can"), [("utf-8", True), ("ascii", False), ("latin-1", False), (None, False), ("klingon", False)]
)
def test_encodings(encoding: str | None, can: bool) -> None:
    assert can_draw(encoding) is can
