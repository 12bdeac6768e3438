"""The dashboards: readable, bound to nobody's machine, and every panel shows something of a running cluster."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.monitoring.conftest import DASHBOARDS
from tests.monitoring.expressions import names_in
from tests.monitoring.prometheus import Prometheus

BOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in DASHBOARDS}
_VARIABLES = {"$__rate_interval": "1m", "$job": "penstock", "$instance": ".*"}


def _panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (panel for panel in board["panels"] if panel["type"] != "row")


def _expressions(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Titles of panels, and what they ask for."""
    for panel in _panels(board):
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in _VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression


def test_there_are_three() -> None:
    assert set(BOARDS) == {"overview", "groups", "cluster"}
    assert len({board["uid"] for board in BOARDS.values()}) == 3


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_bound_to_no_place(name: str) -> None:
    board = BOARDS[name]
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert {"job", "instance"} <= set(variables)
    for panel in _panels(board):
        for source in (panel, *panel["targets"]):
            assert source["datasource"]["uid"] == "${datasource}", panel["title"]
        for target in panel["targets"]:
            assert "$job" in target["expr"], f"{panel['title']}: {target['expr']}"
    assert "localhost" not in json.dumps(board) and "127.0.0.1" not in json.dumps(board)


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_readable(name: str) -> None:
    board = BOARDS[name]
    assert board["panels"][0]["type"] == "row"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["title"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
    for panel in _panels(board):
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


@pytest.mark.parametrize("name", ["overview", "cluster"])
def test_only_one_controller_is_green(name: str) -> None:
    (panel,) = [panel for panel in _panels(BOARDS[name]) if panel["title"] == "Controllers"]
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]

    def colour(controllers: int) -> str:
        return [str(each["color"]) for each in steps if each["value"] is None or each["value"] <= controllers][-1]

    assert [colour(controllers) for controllers in range(4)] == ["red", "green", "red", "red"]


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_shows_something(name: str, prometheus: Prometheus) -> None:
    """What is asked for is there, under these names and labels; alerts may be none."""
    for title, expression in _expressions(BOARDS[name]):
        if names_in(expression) == {"ALERTS"}:
            prometheus.query(expression)
            continue
        prometheus.until(
            lambda expression=expression: bool(prometheus.query(expression)),  # type: ignore[misc]
            f"panel {title!r} of {name} shows something: {expression}",
        )


@pytest.mark.parametrize("name", BOARDS)
def test_every_metric_of_a_dashboard_is_known(name: str, prometheus: Prometheus) -> None:
    """Also those that `or` would hide."""
    wanted = {metric for _, expression in _expressions(BOARDS[name]) for metric in names_in(expression)} - {"ALERTS"}
    assert len(wanted) > 5
    prometheus.until(
        lambda: wanted <= prometheus.names(), f"all of them are scraped; missing: {wanted - prometheus.names()}"
    )
