"""What stands in the boxes, and which lines there are."""

from pathlib import Path

import pytest
from tests.unit.pipelines.drawing.samples import REVENUE, delta, make_spec, make_status, sql, topic

from penstock.pipelines.drawing.figure import (
    LETTERS,
    Edge,
    Fact,
    Mood,
    Node,
    describe_sink,
    describe_source,
    make_figure,
)
from penstock.pipelines.home.status import State, StepStatus
from penstock.pipelines.model import Action, Expectation, SinkSpec, Source, Step


def node(key: str, **more: object) -> Node:
    return next(each for each in make_figure(REVENUE, make_status(**more)).nodes if each.key == key)  # type: ignore[arg-type]


def test_lines_go_where_rows_go() -> None:
    assert set(make_figure(REVENUE).edges) == {
        Edge("source orders", "step clean"),
        Edge("step clean", "step hourly"),
        Edge("source customers", "step hourly"),
        Edge("step clean", "sink raw"),
        Edge("step hourly", "sink lake"),
        Edge("source orders", LETTERS, aside=True),
        Edge("step clean", LETTERS, aside=True),
    }


def test_an_input_that_is_named_twice_is_one_line() -> None:
    drawn = make_figure(make_spec((topic("a"),), (sql("b", "a", "a"),), (delta("c", "b"),)))
    assert drawn.edges == (Edge("source a", "step b"), Edge("step b", "sink c"))


def test_dead_letters_are_drawn_where_there_can_be_some() -> None:
    raw = make_spec((topic("a"),), (), (delta("c", "a"),))
    assert LETTERS not in {each.key for each in make_figure(raw).nodes}
    assert LETTERS in {each.key for each in make_figure(raw, make_status(dead_letters=1)).nodes}
    dropped = make_spec((topic("a", format="json"),), (), (delta("c", "a"),), "drop")
    assert LETTERS not in {each.key for each in make_figure(dropped).nodes}
    warned = Expectation("x", "y", Action.WARN)
    assert len(make_figure(make_spec((topic("a"),), (sql("b", "a", expect=(warned,)),), (delta("c", "b"),))).nodes) == 3


def test_numbers_of_a_status() -> None:
    assert [fact.text for fact in node("source orders").facts] == [
        "1,500 rows/s",
        "123k rows",
        "lag 30",
        "1 not decoded",
    ]
    assert node("step clean").facts == (Fact("123k rows"), Fact("2 not: positive", Mood.WARN))
    raw = node("sink raw")
    assert raw.facts[2:] == (Fact("1 rejected", Mood.WARN), Fact("no broker answers at h:1", Mood.BAD))
    assert raw.mood is Mood.BAD
    assert node("sink lake").mood is Mood.PLAIN
    assert node(LETTERS).facts == (Fact("3 rows", Mood.WARN),)


def test_expectations_that_hold_are_good_news() -> None:
    assert node("step clean", steps={"clean": StepStatus(0, {})}).facts == (Fact("1 expectation held", Mood.GOOD),)


@pytest.mark.parametrize("state", [State.STOPPED, State.FAILED, State.FINISHED])
def test_what_stands_still_has_no_rate(state: State) -> None:
    drawn = make_figure(REVENUE, make_status(state))
    texts = [fact.text for each in drawn.nodes for fact in each.facts] + [fact.text for fact in drawn.facts]
    assert not [text for text in texts if "rows/s" in text]
    assert "123k rows" in texts


def test_a_state_known_better_than_by_the_status() -> None:
    drawn = make_figure(REVENUE, make_status(), state="died")
    assert (drawn.state, drawn.mood) == ("died", Mood.BAD)
    assert make_figure(REVENUE, None, state="new").state == ""


def test_control_characters_reach_no_terminal() -> None:
    spec = make_spec((topic("a\x1b[2J"),), (), (delta("c", "a\x1b[2J"),))
    assert make_figure(spec, make_status(reason="one\ntwo\x07")).facts[0].text == "one two\N{REPLACEMENT CHARACTER}"
    assert "\x1b" not in make_figure(spec).nodes[0].name


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": ["a"]}, "topic a"),
        ({"topic": "a"}, "topic a"),
        ({"topic": ["a", "b"]}, "topics a, b"),
        ({"pattern": "^o"}, "topics like ^o"),
    ],
)
def test_topics(options: dict[str, object], text: str) -> None:
    assert describe_source(Source("x", "topic", options)) == text


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        ("delta", {"delta": "./lake"}, "delta ./lake"),
        ("delta", {"delta": "/work/here/lake"}, "delta ./lake"),
        (
            "jdbc",
            {"jdbc": "jdbc:postgresql://me:secret@db:5432/shop?password=secret", "table": "orders"},
            "jdbc postgresql://db:5432/shop orders",
        ),
        ("topic", {"topic": "out"}, "topic out"),
    ],
)
def test_sinks_without_secrets(kind: str, options: dict[str, object], text: str) -> None:
    assert describe_sink(SinkSpec("x", kind, "y", options), Path("/work/here")) == text


def test_a_function_of_a_program_is_named() -> None:
    def enrich() -> None: ...

    drawn = make_figure(make_spec((topic("a"),), (Step("b", ("a",), function=enrich),), (delta("c", "b"),)))
    assert drawn.nodes[1].kind == "Python enrich"
