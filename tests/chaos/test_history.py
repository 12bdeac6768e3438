"""The history checker: a clean history passes, and each kind of broken promise is reported by its name."""

from collections.abc import Sequence

import pytest

from tests.chaos.history import History, Kind, Outcome, PartitionLog, Record, Send, Violation, report


def log_of(*values: str, start: int = 0, end: int | None = None, partition: int = 0) -> dict[int, PartitionLog]:
    records = [Record(partition, start + index, value) for index, value in enumerate(values)]
    return {partition: PartitionLog(start, start + len(values) if end is None else end, records)}


def history_of(*sends: tuple[str, Outcome, int | None]) -> History:
    history = History()
    for sequence, (value, outcome, offset) in enumerate(sends):
        history.sent(Send("p", sequence, 0, value))
        if outcome is not Outcome.UNKNOWN:
            history.settled(value, outcome, offset)
    return history


OK, FAIL, UNKNOWN = Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN
ABC = (("a", OK, 0), ("b", OK, 1), ("c", OK, 2))


def kinds(violations: Sequence[Violation]) -> set[Kind]:
    return {violation.kind for violation in violations}


def test_a_clean_history_has_no_violation() -> None:
    history = history_of(*ABC)
    history.seen["r"] = [Record(0, 0, "a"), Record(0, 1, "b")]
    assert history.check(log_of("a", "b", "c")) == []
    assert history.acked == 3


def test_an_unknown_send_may_be_there_or_not() -> None:
    history = history_of(("a", OK, 0), ("b", UNKNOWN, None))
    assert history.check(log_of("a")) == []
    assert history.check(log_of("a", "b")) == []


def test_an_ack_without_an_offset_is_kept_anywhere() -> None:
    assert history_of(("a", OK, None), ("b", OK, 1)).check(log_of("a", "b")) == []


def test_a_failed_send_that_is_absent_is_fine() -> None:
    assert history_of(("a", FAIL, None)).check(log_of()) == []


def test_what_retention_removed_is_not_lost() -> None:
    history = history_of(*ABC)
    history.seen["r"] = [Record(0, 0, "a")]
    assert history.check(log_of("c", start=2), trimmed=True) == []
    assert kinds(history.check(log_of("c", start=2))) == {Kind.LOST, Kind.GAP}


@pytest.mark.parametrize(
    ("sends", "log", "expected"),
    [
        pytest.param(ABC, log_of("a", "b"), {Kind.LOST}, id="acked tail gone"),
        pytest.param(ABC, log_of(), {Kind.LOST}, id="everything gone"),
        pytest.param(ABC, {}, {Kind.LOST}, id="partition gone"),
        pytest.param((("a", OK, None),), log_of(), {Kind.LOST}, id="acked somewhere, gone"),
        pytest.param((("a", OK, 1), ("b", OK, 0)), log_of("a", "b"), {Kind.MOVED}, id="acked at another offset"),
        pytest.param((("a", OK, 0), ("b", OK, 0)), log_of("a", "b"), {Kind.DOUBLE_ACK, Kind.MOVED}, id="double ack"),
        pytest.param(ABC, log_of("a", "b", "c", "b"), {Kind.DUPLICATE}, id="written twice"),
        pytest.param((("a", FAIL, None),), log_of("a"), {Kind.ABORTED_READ}, id="refused but there"),
        pytest.param((("a", OK, 0),), log_of("a", "z"), {Kind.PHANTOM}, id="never sent"),
        pytest.param((("a", UNKNOWN, None), ("b", UNKNOWN, None)), log_of("b", "a"), {Kind.REORDERED}, id="order"),
        pytest.param((("a", OK, 0),), log_of("a", end=3), {Kind.GAP}, id="records end before the log"),
        pytest.param(
            (("a", OK, 0), ("c", OK, 2)),
            {0: PartitionLog(0, 3, [Record(0, 0, "a"), Record(0, 2, "c")])},
            {Kind.GAP},
            id="hole in the middle",
        ),
    ],
)
def test_a_broken_promise_is_named(
    sends: Sequence[tuple[str, Outcome, int | None]], log: dict[int, PartitionLog], expected: set[Kind]
) -> None:
    assert kinds(history_of(*sends).check(log)) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param([Record(0, 3, "d")], {Kind.VANISHED}, id="gone"),
        pytest.param([Record(0, 1, "x")], {Kind.VANISHED}, id="another value"),
        pytest.param([Record(0, 0, "a"), Record(0, 2, "c")], {Kind.SKIPPED}, id="skipped"),
        pytest.param([Record(0, 1, "b"), Record(0, 0, "a")], {Kind.SKIPPED}, id="went back"),
    ],
)
def test_a_reader_that_saw_something_else_is_named(seen: list[Record], expected: set[Kind]) -> None:
    history = history_of(*ABC)
    history.seen["r"] = seen
    assert kinds(history.check(log_of("a", "b", "c"))) == expected


def test_a_value_in_the_wrong_partition_is_lost_and_a_phantom() -> None:
    log = {**log_of(), **log_of("a", partition=1)}
    assert kinds(history_of(("a", OK, 0)).check(log)) == {Kind.LOST, Kind.PHANTOM}


def test_two_producers_may_interleave() -> None:
    history = History()
    for producer in ("p", "q"):
        for sequence in range(2):
            history.sent(Send(producer, sequence, 0, f"{producer}{sequence}"))
    assert history.check(log_of("q0", "p0", "p1", "q1")) == []


def test_client_errors_are_violations() -> None:
    history = history_of(*ABC)
    history.errors.append(Violation(Kind.PRODUCER_FATAL, -1, "out of order"))
    assert kinds(history.check(log_of("a", "b", "c"))) == {Kind.PRODUCER_FATAL}


def test_a_value_is_sent_once() -> None:
    with pytest.raises(ValueError, match="sent twice"):
        history_of(("a", OK, 0), ("a", OK, 1))


def test_the_report_counts_by_kind() -> None:
    text = report(history_of(*ABC).check(log_of()))
    assert text.startswith("3 violations: lost 3")
    assert "a acked at 0" in text
