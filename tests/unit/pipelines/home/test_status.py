"""A status as JSON and back, also of an earlier or later release."""

import json

import pytest

from penstock.pipelines.home import SinkStatus, SourceStatus, State, Status, StepStatus

FULL = Status(
    "revenue",
    State.WAITING,
    "lake is away",
    pid=7,
    batch=3,
    lag=12,
    sources={"orders": SourceStatus(10, 2.5, None)},
    steps={"clean": StepStatus(9, {"positive": 1})},
    sinks={"lake": SinkStatus("delta", 9, 2.0, 1, "is away")},
)


def test_there_and_back() -> None:
    assert Status.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL


def test_fields_that_are_missing_or_unknown() -> None:
    body = {"pipeline": "a", "state": "running", "colour": "red", "sinks": {"x": {"kind": "jdbc", "colour": "red"}}}
    assert Status.from_json(body) == Status("a", State.RUNNING, sinks={"x": SinkStatus("jdbc")})


@pytest.mark.parametrize("body", [{}, {"pipeline": "a", "state": "flying"}, {"state": "running"}])
def test_what_is_no_status(body: dict[str, str]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Status.from_json(body)


def test_which_states_are_the_end() -> None:
    assert {state for state in State if state.has_ended} == {State.STOPPED, State.FINISHED, State.FAILED}
