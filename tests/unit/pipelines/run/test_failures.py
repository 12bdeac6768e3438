import pytest

from penstock.pipelines.errors import PipelineError, SinkError, SinkUnavailable
from penstock.pipelines.run.failures import TaskFailed, last_raised, translate

TRACEBACK = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
{line}
"""


@pytest.mark.parametrize(
    ("line", "kind", "told"),
    [
        ("penstock.pipelines.errors.SinkUnavailable: no room in /lake", SinkUnavailable, "sink lake: no room in /lake"),
        ("penstock.client.errors.Unreachable: no broker answers at a:1", SinkUnavailable, "no broker answers at a:1"),
        ("penstock.pipelines.errors.SinkError: column x", SinkError, "sink lake: column x"),
        ("penstock.spark.errors.OptionError: kafka.acks", SinkError, "kafka.acks"),
        ("penstock.pipelines.errors.ExpectationFailed: expectation 'a' of b", SinkError, "expectation 'a' of b"),
        ("ValueError: 7", TaskFailed, "sink lake: 7"),
    ],
)
def test_errors_of_workers(line: str, kind: type[PipelineError], told: str) -> None:
    found = translate(RuntimeError(TRACEBACK.format(line=line)), "sink lake")
    assert type(found) is kind
    assert told in str(found)


def test_a_worker_that_died_is_tried_again() -> None:
    text = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times\nDriver stacktrace:\n\tat org.apache"
    assert translate(RuntimeError(text)).retriable


def test_a_worker_that_died_is_named() -> None:
    text = (
        "An error occurred while calling o989.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to "
        "stage failure\n\tat x\nCaused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    )
    assert str(translate(RuntimeError(text))) == "a task failed: Python worker exited unexpectedly (crashed)"
    assert str(translate(RuntimeError(text.partition("Caused by")[0]))) == "Job aborted due to stage failure"


def test_a_run_that_was_shut_out_is_not_tried_again() -> None:
    text = TRACEBACK.format(line="penstock.spark.errors.SourceError: id 'x': another run of this query has begun, or")
    assert not translate(RuntimeError(text)).retriable


@pytest.mark.parametrize(
    "condition", ["DIVIDE_BY_ZERO", "CAST_INVALID_INPUT", "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE", "UNRESOLVED_COLUMN"]
)
def test_mistakes_in_a_query_are_not_tried_again(condition: str) -> None:
    found = translate(RuntimeError(f"[{condition}] the value is wrong"))
    assert not found.retriable
    assert str(found) == "the value is wrong"


def test_our_own_errors_stay_what_they_are() -> None:
    error = SinkUnavailable("away")
    assert translate(error, "sink x") is error


def test_the_innermost_error_is_told() -> None:
    text = "Traceback:\nKeyError: 'a'\n\nDuring handling\n\npkg.errors.SinkError: the real one\n\n\tat java"
    assert last_raised(text) == ("SinkError", "the real one")
