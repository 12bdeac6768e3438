"""Rows by the Storage Write API, against the stand-in, with trouble on the way."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.peers.bigquery import BigQuery

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.bigquery import streams

from .frames import FIRST, TABLE, Frame, Letters, batch_of, orders

MakeSink = Callable[..., Any]  # a BigQuerySink; a Frame stands in for its DataFrame


def ids(server: BigQuery) -> list[int]:
    return sorted(row["id"] for row in server.tables[TABLE].rows)


def test_rows_of_all_tasks_are_there_at_once_and_not_before(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    seen: list[int] = []
    server.gate["BatchCommitWriteStreams"] = lambda: seen.append(len(server.tables[TABLE].rows))
    rows = Frame("id BIGINT, name STRING", [batch_of(1, 2)], [], [batch_of(3)])
    assert sink().write(rows, FIRST, letters.take) == 3
    assert seen == [0]
    assert ids(server) == [1, 2, 3]
    assert server.requests["CreateWriteStream"] == 2  # none for the task without rows
    assert server.requests["BatchCommitWriteStreams"] == 1


def test_no_rows_no_stream_and_no_commit(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    made = sink()
    assert made.write(Frame("id BIGINT, name STRING", []), FIRST, letters.take) == 0
    assert "CreateWriteStream" not in server.requests
    assert "BatchCommitWriteStreams" not in server.requests
    assert made.is_written(FIRST)


def test_requests_hold_what_the_keys_say(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    rows = Frame("id BIGINT, name STRING", [batch_of(*range(25)), batch_of(*range(25, 30))])
    sink(batch_rows=10).write(rows, FIRST, letters.take)
    assert server.requests["AppendRows"] == 3
    assert ids(server) == list(range(30))


def test_small_batches_are_gathered(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    rows = Frame("id BIGINT, name STRING", [batch_of(number) for number in range(20)])
    sink(batch_rows=10).write(rows, FIRST, letters.take)
    assert server.requests["AppendRows"] == 2


def test_time_sends_what_has_gathered(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    arrived = threading.Event()
    server.gate["AppendRows"] = arrived.set

    def slow() -> Any:
        yield batch_of(1)
        assert arrived.wait(20), "the first row waited for the second"
        yield batch_of(2)

    rows = Frame("id BIGINT, name STRING", [])
    rows.partitions = (slow(),)
    sink(batch_wait=0.0).write(rows, FIRST, letters.take)
    assert ids(server) == [1, 2]


def test_bytes_are_bounded_and_a_row_beyond_them_is_rejected(
    server: BigQuery, sink: MakeSink, letters: Letters
) -> None:
    rows = Frame(
        "id BIGINT, name STRING",
        [batch_of(*range(8), name="x" * 1000), batch_of(8, name="y" * 9000), batch_of(9)],
    )
    assert sink(batch_bytes=4096).write(rows, FIRST, letters.take) == 9
    assert max(server.sizes["AppendRows"]) < 4096 + 1024
    assert ids(server) == [*range(8), 9]
    assert len(letters) == 1
    assert b'"id":8' in letters[0].row
    assert "a request may hold 4,096" in letters[0].reason


def test_the_services_own_limit_holds_whatever_the_key_says(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    rows = Frame("id BIGINT, name STRING", [batch_of(*range(6), name="x" * 4_000_000)])
    assert sink(batch_bytes=1 << 30).write(rows, FIRST, letters.take) == 6
    assert max(server.sizes["AppendRows"]) < 10_000_000
    assert ids(server) == list(range(6))


def watch(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """How many appends were ahead of their answers after each step, and when each connection was opened."""
    ahead, opened = [0], []

    class Watched(streams._Connection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(ahead[-1])

        def send(self, request: Any) -> None:
            super().send(request)
            ahead.append(ahead[-1] + 1)

        def receive(self) -> Any:
            answer = super().receive()
            ahead.append(ahead[-1] - 1)
            return answer

    monkeypatch.setattr(streams, "_Connection", Watched)
    return ahead, opened


@pytest.mark.parametrize("at_once", [1, 3])
def test_appends_go_ahead_of_their_answers_up_to_the_limit(
    server: BigQuery, sink: MakeSink, letters: Letters, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    ahead, _ = watch(monkeypatch)
    sink(batch_rows=10, at_once=at_once).write(orders(*range(100)), FIRST, letters.take)
    assert (max(ahead), ahead[-1]) == (at_once, 0)
    assert server.requests["AppendRows"] == 10
    assert ids(server) == list(range(100))


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", "ABORTED"])
@pytest.mark.parametrize("inside", [False, True], ids=["call", "answer"])
def test_trouble_that_passes_is_tried_again(
    server: BigQuery, sink: MakeSink, letters: Letters, code: str, inside: bool
) -> None:
    server.fail("AppendRows", 2, status=code, inside=inside)
    assert sink(batch_rows=10).write(orders(*range(50)), FIRST, letters.take) == 50
    assert ids(server) == list(range(50))


@pytest.mark.parametrize("kind", ["CreateWriteStream", "FinalizeWriteStream", "BatchCommitWriteStreams"])
@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer lost"])
def test_every_call_is_tried_again(server: BigQuery, sink: MakeSink, letters: Letters, kind: str, after: bool) -> None:
    server.fail(kind, 2, status="UNAVAILABLE", after=after)
    assert sink().write(orders(1, 2), FIRST, letters.take) == 2
    assert ids(server) == [1, 2]
    assert server.requests[kind] == 3


def test_an_append_whose_answer_is_lost_is_not_there_twice(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    server.fail("AppendRows", 3, after=True)
    assert sink(batch_rows=10).write(orders(*range(50)), FIRST, letters.take) == 50
    assert ids(server) == list(range(50))


def test_trouble_that_does_not_pass_leaves_nothing(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    server.fail("AppendRows", 99, status="UNAVAILABLE")
    made = sink(retries=2)
    with pytest.raises(SinkUnavailable, match=r"sink warehouse: writing to table shop.sales.orders failed \(3 times\)"):
        made.write(orders(1), FIRST, letters.take)
    assert server.requests["AppendRows"] == 3
    assert ids(server) == []
    assert not made.is_written(FIRST)


def test_retries_are_counted_anew_after_every_success(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    def fail_two_of_three() -> None:
        if server.requests["AppendRows"] % 3:
            server.fail("AppendRows", 1, status="UNAVAILABLE")

    server.gate["AppendRows"] = fail_two_of_three
    assert sink(retries=2, batch_rows=1, at_once=1).write(orders(*range(5)), FIRST, letters.take) == 5
    assert ids(server) == list(range(5))


def test_rows_that_are_refused_go_to_the_letters_and_the_others_on(
    server: BigQuery, sink: MakeSink, letters: Letters
) -> None:
    server.refuse = lambda row: f"no thirteens: {row['id']}" if row["id"] % 13 == 0 else None
    assert sink(batch_rows=10).write(orders(*range(100)), FIRST, letters.take) == 92
    assert ids(server) == [each for each in range(100) if each % 13]
    assert sorted(letters.reasons) == sorted(f"no thirteens: {each}" for each in range(0, 100, 13))
    assert all(each.row == b'{"id":%d,"name":"n"}' % int(each.reason.split()[-1]) for each in letters)


def test_nothing_is_sent_again_while_an_append_behind_the_refused_one_may_still_arrive(
    server: BigQuery, sink: MakeSink, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, opened = watch(monkeypatch)
    server.refuse = lambda row: "odd" if row["id"] in (5, 55) else None
    sink(batch_rows=10).write(orders(*range(100)), FIRST, letters.take)
    assert opened == [0, 0, 0]


def test_refused_rows_and_lost_answers_together(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    server.refuse = lambda row: "odd" if row["id"] % 7 == 0 else None
    server.fail("AppendRows", 2, after=True)
    server.fail("AppendRows", 1, status="INTERNAL", inside=True)
    assert sink(batch_rows=10).write(orders(*range(100)), FIRST, letters.take) == 85
    assert ids(server) == [each for each in range(100) if each % 7]
    assert len(letters) == 15


def test_when_every_row_is_refused_nothing_is_committed(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    server.refuse = lambda row: "no"
    made = sink()
    assert made.write(orders(1, 2), FIRST, letters.take) == 0
    assert len(letters) == 2
    assert "BatchCommitWriteStreams" not in server.requests
    assert made.is_written(FIRST)


def test_null_in_a_required_field_is_refused(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    assert sink().write(orders(1, None), FIRST, letters.take) == 1
    assert letters.reasons == ["field id is required"]


def test_a_stream_that_holds_more_than_was_sent_is_not_committed(
    server: BigQuery, sink: MakeSink, letters: Letters
) -> None:
    def meddle() -> None:
        next(iter(server.streams.values())).rows.append({"id": 99, "name": "?"})

    server.gate["FinalizeWriteStream"] = meddle
    with pytest.raises(SinkUnavailable, match="holds 2 rows where 1 were written"):
        sink().write(orders(1), FIRST, letters.take)
    assert ids(server) == []


def test_a_gap_in_the_stream_has_the_batch_written_again(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    server.fail("AppendRows", 1, status="OUT_OF_RANGE", inside=True)
    with pytest.raises(SinkUnavailable, match="written again"):
        sink().write(orders(1), FIRST, letters.take)


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(
    server: BigQuery, sink: MakeSink, letters: Letters
) -> None:
    hold = threading.Event()
    server.gate["AppendRows"] = lambda: hold.wait(20)
    try:
        with pytest.raises(SinkUnavailable, match="no answer within 2 s"):
            sink(timeout=2.0, retries=0).write(orders(1), FIRST, letters.take)
    finally:
        hold.set()


@pytest.mark.parametrize(("code", "words"), [("PERMISSION_DENIED", "Data Editor"), ("NOT_FOUND", "create: true")])
def test_what_stays_is_told(server: BigQuery, sink: MakeSink, letters: Letters, code: str, words: str) -> None:
    server.fail("CreateWriteStream", 1, status=code)
    with pytest.raises(SinkError, match=words) as caught:
        sink().write(orders(1), FIRST, letters.take)
    assert not caught.value.retriable
    assert server.requests["CreateWriteStream"] == 1


def test_a_failed_task_outweighs_those_that_succeeded(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    server.fail("CreateWriteStream", 1, status="PERMISSION_DENIED")
    rows = Frame("id BIGINT, name STRING", [batch_of(1)], [batch_of(2)])
    with pytest.raises(SinkError):
        sink().write(rows, FIRST, letters.take)
    assert ids(server) == []


def test_trouble_that_stays_is_told_before_trouble_that_passes(
    server: BigQuery, sink: MakeSink, letters: Letters
) -> None:
    server.fail("CreateWriteStream", 1, status="UNAVAILABLE")
    server.fail("CreateWriteStream", 1, status="PERMISSION_DENIED")
    rows = Frame("id BIGINT, name STRING", [batch_of(1)], [batch_of(2)])
    with pytest.raises(SinkError, match="Data Editor") as caught:
        sink(retries=0).write(rows, FIRST, letters.take)
    assert not caught.value.retriable
