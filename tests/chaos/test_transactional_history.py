"""The transactional checker: a clean history passes, and each kind of broken promise is called by its name."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.history import Outcome, PartitionLog, Record
from tests.chaos.transactional_history import Copy, History, Kind, Place, Value, Violation, report

IN, OUT = ("in", 0), ("out", 0)
COPY = Copy("g", "in", "out")
Line = Mapping[str, Any]


def log_of(values: Mapping[int, str], end: int | None = None) -> PartitionLog:
    records = [Record(0, offset, value) for offset, value in values.items()]
    return PartitionLog(0, max(values, default=-1) + 1 if end is None else end, records)


def kinds(violations: Sequence[Violation]) -> set[Kind]:
    return {violation.kind for violation in violations}


def history_of(*lines: Line) -> History:
    history = History()
    for line in lines:
        history.note(line)
    return history


def sends(attempt: str, *values: str, at: float = 0, place: Place = OUT) -> Line:
    return {"op": "sends", "at": at, "attempt": attempt, "rows": [(*place, value) for value in values]}


def consumed(attempt: str, first: int, following: int, at: float = 0) -> Line:
    return {"op": "consumed", "at": at, "attempt": attempt, "group": "g", "rows": [(*IN, first, following)]}


def committing(attempt: str, at: float = 0) -> Line:
    return {"op": "committing", "at": at, "attempt": attempt}


def ended(attempt: str, outcome: str = "ok", at: float = 0) -> Line:
    return {"op": "ended", "at": at, "attempt": attempt, "outcome": outcome}


def step(kind: str, *rows: Sequence[Any], at: float = 0, reader: str = "r", group: str = "g") -> Line:
    return {"op": "step", "at": at, "reader": reader, "group": group, "kind": kind, "rows": rows}


def polled(*records: tuple[int, str], at: float = 0, place: Place = IN, reader: str = "r") -> Line:
    return step("polled", *((*place, offset, value) for offset, value in records), at=at, reader=reader)


ASSIGNED = step("assigned", IN)
INPUT = (sends("-", "p/0/1@-", "p/1/2@-", "p/0/3@-", place=IN), {"op": "acked", "values": ["p/0/1@-", "p/1/2@-"]})
INPUT_LOG = {IN: log_of({0: "p/0/1@-", 1: "p/1/2@-", 2: "p/0/3@-"})}


def copied(attempt: str, first: int, following: int, *sources: str, at: float = 0) -> tuple[Line, ...]:
    """A transaction of a copier that committed."""
    values = [f"{source}@{attempt}" for source in sources]
    return (
        sends(attempt, *values, at=at),
        consumed(attempt, first, following, at=at),
        committing(attempt, at=at + 1),
        ended(attempt, at=at + 2),
    )


def test_a_clean_history_has_no_violation() -> None:
    """Copied in two transactions, one aborted between them and done again, one begun and left by a kill."""
    history = history_of(
        *INPUT,
        step("assigned", IN, at=1),
        polled((0, "p/0/1@-"), (1, "p/1/2@-"), at=2),
        *copied("c.0.1", 0, 2, "p/0/1", "p/1/2", at=3),
        polled((2, "p/0/3@-"), at=6),
        sends("c.0.2", "p/0/3@c.0.2", at=7),
        consumed("c.0.2", 2, 3, at=7),
        ended("c.0.2", "fail", at=8),
        step("sought", (*IN, 2), at=9),
        polled((2, "p/0/3@-"), at=10),
        sends("c.0.3", "p/0/3@c.0.3", at=10),
        step("assigned", IN, at=12, reader="s"),
        polled((2, "p/0/3@-"), at=13, reader="s"),
        *copied("c.1.1", 2, 3, "p/0/3", at=14),
        {"op": "look", "began": 17, "at": 18, "group": "g", "rows": [(*IN, 3)]},
        step("assigned", OUT, at=17, reader="w", group="watch"),
        step("polled", (*OUT, 0, "p/0/1@c.0.1"), (*OUT, 1, "p/1/2@c.0.1"), at=18, reader="w", group="watch"),
        step("polled", (*OUT, 5, "p/0/3@c.1.1"), at=19, reader="w", group="watch"),
        {"op": "committed", "at": 20, "group": "watch", "rows": [(*OUT, 6)]},
    )
    logs = INPUT_LOG | {OUT: log_of({0: "p/0/1@c.0.1", 1: "p/1/2@c.0.1", 5: "p/0/3@c.1.1"}, end=7)}
    assert history.check(logs, [COPY], {"out": "watch"}) == []


@pytest.mark.parametrize("seen", [{}, {0: "p/0/1@t", 1: "p/0/2@t"}])
def test_a_commit_nobody_heard_of_is_there_wholly_or_not_at_all(seen: dict[int, str]) -> None:
    history = history_of(sends("t", "p/0/1@t", "p/0/2@t"), committing("t"))
    assert history.attempts["t"].outcome is Outcome.UNKNOWN
    assert history.check({OUT: log_of(seen)}) == []


@pytest.mark.parametrize(
    ("lines", "seen", "expected"),
    [
        pytest.param(INPUT, {IN: {0: "p/0/1@-"}}, Kind.LOST, id="acked, gone"),
        pytest.param((sends("t", "p/0/1@t"), committing("t"), ended("t")), {}, Kind.LOST, id="committed, gone"),
        pytest.param(
            (sends("t", "p/0/1@t", "p/0/2@t"), committing("t"), ended("t")),
            {OUT: {0: "p/0/1@t"}},
            Kind.TORN,
            id="half of a commit",
        ),
        pytest.param(
            (sends("t", "p/0/1@t", "p/0/2@t"), committing("t")),
            {OUT: {0: "p/0/2@t"}},
            Kind.TORN,
            id="half of an unknown one",
        ),
        pytest.param(
            (sends("t", "p/0/1@t"), ended("t", "fail")), {OUT: {0: "p/0/1@t"}}, Kind.ABORTED_READ, id="aborted, there"
        ),
        pytest.param((sends("t", "p/0/1@t"),), {OUT: {0: "p/0/1@t"}}, Kind.ABORTED_READ, id="never committed, there"),
        pytest.param((), {OUT: {0: "p/0/1@t"}}, Kind.PHANTOM, id="never sent"),
        pytest.param(
            (*copied("a", 0, 1, "p/0/1"), *copied("b", 1, 2, "p/0/1")),
            {OUT: {0: "p/0/1@a", 2: "p/0/1@b"}},
            Kind.DUPLICATE,
            id="copied twice",
        ),
        pytest.param(
            (*copied("a", 0, 1, "p/0/1"), *copied("b", 1, 2, "p/0/2")),
            {OUT: {0: "p/0/2@b", 2: "p/0/1@a"}},
            Kind.REORDERED,
            id="other order",
        ),
    ],
)
def test_a_broken_promise_in_the_log_is_named(
    lines: Sequence[Line], seen: Mapping[Place, Mapping[int, str]], expected: Kind
) -> None:
    logs = {place: log_of(values) for place, values in seen.items()}
    assert kinds(history_of(*lines).check(logs)) == {expected}


def test_keys_and_producers_have_orders_of_their_own() -> None:
    history = history_of(*copied("t", 0, 3, "p/0/2", "p/1/1", "q/0/1"))
    assert history.check({OUT: log_of({0: "p/0/2@t", 1: "p/1/1@t", 2: "q/0/1@t"})}) == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param((ASSIGNED, polled((0, "p/0/1@-"), (2, "p/0/3@-"))), Kind.SKIPPED, id="past a record"),
        pytest.param((ASSIGNED, polled((1, "p/1/2@-")), polled((0, "p/0/1@-"))), Kind.WENT_BACK, id="back"),
        pytest.param((ASSIGNED, polled((1, "p/1/2@-")), polled((1, "p/1/2@-"))), Kind.WENT_BACK, id="again"),
        pytest.param(
            (ASSIGNED, step("sought", (*IN, 1)), polled((2, "p/0/3@-"))), Kind.SKIPPED, id="past, after a seek"
        ),
        pytest.param((ASSIGNED, polled((1, "p/0/9@-"))), Kind.VANISHED, id="another value"),
        pytest.param((ASSIGNED, polled((7, "p/0/9@-"))), Kind.VANISHED, id="gone"),
        pytest.param((sends("t", "p/0/9@t", place=IN), polled((7, "p/0/9@t"))), Kind.ABORTED_READ, id="aborted"),
    ],
)
def test_a_reader_led_astray_is_named(steps: Sequence[Line], expected: Kind) -> None:
    assert kinds(history_of(*INPUT, *steps).check(INPUT_LOG)) == {expected}


def test_another_assignment_may_begin_elsewhere() -> None:
    given = polled((1, "p/1/2@-"), (2, "p/0/3@-"))
    assert history_of(*INPUT, ASSIGNED, given, step("lost", IN), ASSIGNED, given).check(INPUT_LOG) == []


@pytest.mark.parametrize(("at", "expected"), [(4.9, {Kind.EARLY_READ}), (5.1, set())])
def test_a_value_is_not_read_before_its_commit_is_asked_for(at: float, expected: set[Kind]) -> None:
    history = history_of(
        sends("t", "p/0/1@t", place=IN), polled((0, "p/0/1@t"), at=at), committing("t", at=5), ended("t", at=6)
    )
    assert kinds(history.check({IN: log_of({0: "p/0/1@t"})})) == expected


COMMITTED = {"op": "committed", "at": 5, "group": "g", "rows": [(*IN, 2)]}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            [{"op": "look", "began": 6, "at": 7, "group": "g", "rows": [(*IN, 1)]}], {Kind.OFFSETS_BACK}, id="look"
        ),
        pytest.param(
            [{"op": "look", "began": 4, "at": 7, "group": "g", "rows": [(*IN, 1)]}], set(), id="look under way"
        ),
        pytest.param(
            [{"op": "look", "began": 6, "at": 7, "group": "h", "rows": [(*IN, 1)]}], set(), id="another group"
        ),
        pytest.param([step("assigned", IN, at=6), polled((1, "p/1/2@-"), at=7)], {Kind.OFFSETS_BACK}, id="member"),
        pytest.param([step("assigned", IN, at=4), polled((1, "p/1/2@-"), at=7)], set(), id="assigned before"),
        pytest.param([step("assigned", IN, at=6), polled((2, "p/0/3@-"), at=7)], set(), id="member goes on"),
        pytest.param(
            [
                {"op": "look", "began": 6, "at": 7, "group": "g", "rows": [(*IN, 3)]},
                {"op": "look", "began": 8, "at": 9, "group": "g", "rows": [(*IN, 2)]},
            ],
            {Kind.OFFSETS_BACK},
            id="seen, then lower",
        ),
    ],
)
def test_committed_offsets_do_not_go_back(lines: Sequence[Line], expected: set[Kind]) -> None:
    assert kinds(history_of(*INPUT, COMMITTED, *lines).check(INPUT_LOG)) == expected


def test_a_transactions_offsets_count_from_its_ack() -> None:
    look = {"op": "look", "began": 6, "at": 7, "group": "g", "rows": [(*IN, 0)]}
    history = history_of(*INPUT, *copied("c", 0, 1, "p/0/1", at=3), look)
    assert kinds(history.check(INPUT_LOG | {OUT: log_of({0: "p/0/1@c"})})) == {Kind.OFFSETS_BACK}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        pytest.param((0, 2, "p/1/2"), {Kind.CONSUMED_TWICE, Kind.NOT_COPIED}, id="again"),
        pytest.param((2, 3, "p/0/3"), {Kind.UNCONSUMED, Kind.NOT_COPIED}, id="one left out"),
        pytest.param((1, 2, "p/1/2"), {Kind.NOT_COPIED}, id="the last one not yet"),
    ],
)
def test_offsets_of_copiers_follow_each_other(second: tuple[int, int, str], expected: set[Kind]) -> None:
    history = history_of(*INPUT, *copied("a", 0, 1, "p/0/1"), *copied("b", *second))
    logs = INPUT_LOG | {OUT: log_of({0: "p/0/1@a", 1: f"{second[2]}@b"})}
    assert kinds(history.check(logs, [COPY])) == expected


def test_a_commit_nobody_heard_of_has_consumed_if_its_records_are_there() -> None:
    unknown = (sends("b", "p/1/2@b"), consumed("b", 0, 2), committing("b"))
    history = history_of(*INPUT, *copied("a", 0, 1, "p/0/1"), *unknown)
    logs = INPUT_LOG | {OUT: log_of({0: "p/0/1@a", 1: "p/1/2@b"})}
    assert Kind.CONSUMED_TWICE in kinds(history.check(logs, [COPY]))
    assert kinds(history.check(INPUT_LOG | {OUT: log_of({0: "p/0/1@a"})}, [COPY])) == {Kind.NOT_COPIED}


def test_a_record_no_watcher_was_given_is_named() -> None:
    other = step("polled", (*IN, 2, "p/0/3@-"), reader="s", group="h")
    history = history_of(*INPUT, ASSIGNED, polled((0, "p/0/1@-"), (1, "p/1/2@-")), other)
    assert kinds(history.check(INPUT_LOG, watched={"in": "g"})) == {Kind.UNREAD}


def test_a_client_that_cannot_go_on_is_a_violation_unless_it_has_a_successor() -> None:
    fatal = {"op": "fatal", "at": 1, "client": "c.0", "error": "fenced"}
    assert kinds(history_of(fatal).check({})) == {Kind.CLIENT_FATAL}
    assert history_of(fatal, {"op": "succeeded", "at": 1, "client": "c.0"}).check({}) == []


def test_a_file_whose_last_line_is_torn_is_read_up_to_it(tmp_path: Path) -> None:
    whole = "".join(json.dumps(line) + "\n" for line in (sends("t", "p/0/1@t"), committing("t")))
    (tmp_path / "c.jsonl").write_text(whole + json.dumps(ended("t"))[:-5])
    history = History.load(tmp_path.glob("*.jsonl"))
    assert history.attempts["t"].outcome is Outcome.UNKNOWN


def test_a_value_is_written_as_it_is_read() -> None:
    assert str(Value.parse("p1/7/123@p1.0.4")) == "p1/7/123@p1.0.4"
    assert Value.parse("p1/7/123@-").source == "p1/7/123"


def test_the_report_counts_by_kind() -> None:
    violations = [Violation(Kind.LOST, "a"), Violation(Kind.TORN, "b"), Violation(Kind.LOST, "c")]
    assert report(violations).splitlines() == ["3 violations: lost 2, torn 1", "  lost: a", "  torn: b", "  lost: c"]
    assert len(report(violations, limit=2).splitlines()) == 3
