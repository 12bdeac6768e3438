"""Medians of ratios, bars and losses."""

import pytest
from bench.figures import figures, is_lost, ratios, short, spread, verdicts
from bench.rows import Row, at_least, at_most


def result(*rounds: tuple[float | None, float | None, float | None]) -> dict[str, object]:
    """Rounds of (Penstock, Kafka, floor) for the row `r`; None is no figure."""
    names = ("penstock", "kafka", "floor")
    return {
        "rounds": [
            {name: {} if value is None else {"r": value} for name, value in zip(names, each, strict=True)}
            for each in rounds
        ]
    }


def row(*bars: object, more_is_better: bool = False) -> Row:
    return Row("r", "Theme", "title", "s", bars, more_is_better)  # type: ignore[arg-type]


def test_ratios_are_within_a_round() -> None:
    found = result((10, 5, None), (90, 30, None), (None, 7, None))
    assert figures(found, "kafka", "r") == [5, 30, 7]
    assert ratios(found, "r") == [2, 3]


def test_median_of_ratios_is_not_ratio_of_medians() -> None:
    found = result((1, 10, None), (10, 1, None), (12, 10, None))
    (verdict,) = verdicts(found, row(at_most(1.1)))
    assert verdict.value == pytest.approx(1.2)
    assert not verdict.holds


@pytest.mark.parametrize(
    ("bar", "text", "good", "bad"),
    [
        (at_least(1.5), "≥ 1.5 x Kafka", 1.5, 1.49),
        (at_most(2.0, "floor"), "≤ 2 x floor", 2.0, 2.01),
        (at_most(100.0, "nothing"), "≤ 100", 0.0, 101.0),
    ],
)
def test_bar(bar: object, text: str, good: float, bad: float) -> None:
    assert bar.text() == text  # type: ignore[attr-defined]
    assert bar.holds(good) and not bar.holds(bad)  # type: ignore[attr-defined]


def test_each_bar_has_its_own_measure() -> None:
    found = verdicts(result((4, 10, 1)), row(at_most(0.5), at_most(2.0, "floor"), at_most(5.0, "nothing")))
    assert [(each.value, each.holds) for each in found] == [(0.4, True), (4.0, False), (4.0, True)]


def test_no_figures_no_verdict() -> None:
    assert verdicts(result((None, 1, 1)), row(at_most(1.0), at_most(1.0, "floor"))) == []


@pytest.mark.parametrize(("ours", "more_is_better", "lost"), [(2, True, False), (2, False, True), (1, True, False)])
def test_lost_is_where_kafka_is_ahead(ours: float, more_is_better: bool, lost: bool) -> None:
    assert is_lost(result((ours, 1, None)), row(more_is_better=more_is_better)) is lost


def test_a_missed_bar_is_lost_though_kafka_is_behind() -> None:
    assert is_lost(result((1.2, 1, None)), row(at_least(1.3), more_is_better=True))


def test_spread() -> None:
    assert spread([]) == ""
    assert spread([1.23456]) == "1.23"
    assert spread([1, 1234.5, 3]) == "3 (1 to 1,234)"
    assert short(-2.345) == "-2.35"
