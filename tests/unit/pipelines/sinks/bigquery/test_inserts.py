"""Rows by insertAll, against the stand-in, with trouble on the way."""

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.peers.bigquery import BigQuery

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.sinks.bigquery.fields import Field
from penstock.pipelines.sinks.bigquery.inserts import RowMaker
from penstock.pipelines.sinks.bigquery.projection import Rows

from .frames import FIRST, TABLE, Frame, Letters, batch_of, orders

MakeSink = Callable[..., Any]  # a BigQuerySink; a Frame stands in for its DataFrame
FIELDS = (Field("id", "INTEGER"), Field("name", "STRING"))


@pytest.fixture
def inserting(sink: MakeSink) -> MakeSink:
    return lambda **options: sink(method="insert_all", **options)


def ids(server: BigQuery) -> list[int]:
    return sorted(row["id"] for row in server.tables[TABLE].rows)


def insert_ids(prefix: str, *batches: pa.RecordBatch) -> list[str]:
    maker = RowMaker(FIELDS, prefix)
    return [row.insert_id for batch in batches for row in maker.make(Rows(batch, batch))]


def test_ids_do_not_depend_on_the_order_or_the_cut_of_the_rows() -> None:
    one = insert_ids("q/1/s/0", batch_of(1, 2, 3, 2))
    other = insert_ids("q/1/s/0", batch_of(2), batch_of(3, 1), batch_of(2))
    assert sorted(one) == sorted(other)


def test_equal_rows_have_ids_of_their_own() -> None:
    made = insert_ids("q/1/s/0", batch_of(2, 2, 2))
    assert len(set(made)) == 3
    assert all(len(each) <= 128 for each in made)


@pytest.mark.parametrize("prefix", ["p/1/s/0", "q/2/s/0", "q/1/t/0", "q/1/s/1"])
def test_ids_belong_to_query_batch_sink_and_task(prefix: str) -> None:
    assert not set(insert_ids("q/1/s/0", batch_of(1, 2))) & set(insert_ids(prefix, batch_of(1, 2)))


def test_rows_are_in_the_table(server: BigQuery, inserting: MakeSink, letters: Letters) -> None:
    made = inserting(batch_rows=10)
    assert made.write(orders(*range(25)), FIRST, letters.take) == 25
    assert server.requests["insertAll"] == 3
    assert ids(server) == list(range(25))
    assert made.is_written(FIRST)
    assert "CreateWriteStream" not in server.requests


def test_a_repeated_batch_is_recognised_by_its_ids(
    server: BigQuery, inserting: MakeSink, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = inserting()
    with monkeypatch.context() as patch:
        patch.setattr(
            "penstock.pipelines.sinks.bigquery.intents.Intents.open", lambda *_: (_ for _ in ()).throw(SystemExit)
        )
        with pytest.raises(SystemExit):
            made.write(orders(1, 2, 2), FIRST, letters.take)
    again = inserting()
    assert not again.is_written(FIRST)
    again.write(orders(2, 1, 2), FIRST, letters.take)
    assert ids(server) == [1, 2, 2]


def test_requests_under_way_are_bounded(server: BigQuery, inserting: MakeSink, letters: Letters) -> None:
    together = threading.Barrier(3)
    server.gate["insertAll"] = lambda: together.wait(20)
    inserting(batch_rows=1, at_once=3).write(orders(*range(9)), FIRST, letters.take)
    assert server.peak["insertAll"] == 3
    assert ids(server) == list(range(9))


def test_time_sends_what_has_gathered(server: BigQuery, inserting: MakeSink, letters: Letters) -> None:
    arrived = threading.Event()
    server.gate["insertAll"] = arrived.set

    def slow() -> Any:
        yield batch_of(1)
        assert arrived.wait(20), "the first row waited for the second"
        yield batch_of(2)

    rows = Frame("id BIGINT, name STRING", [])
    rows.partitions = (slow(),)
    inserting(batch_wait=0.0).write(rows, FIRST, letters.take)
    assert ids(server) == [1, 2]


def test_the_end_waits_for_what_is_under_way(server: BigQuery, inserting: MakeSink, letters: Letters) -> None:
    arrived, go = threading.Event(), threading.Event()

    def wait() -> None:
        arrived.set()
        go.wait(20)

    server.gate["insertAll"] = wait
    done: list[int] = []
    writing = threading.Thread(target=lambda: done.append(inserting().write(orders(1), FIRST, letters.take)))
    writing.start()
    assert arrived.wait(20)
    assert not done
    go.set()
    writing.join(20)
    assert done == [1]
    assert ids(server) == [1]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(429, "rateLimitExceeded"), (500, "internalError"), (502, "badGateway"), (503, "backendError"), (504, "timeout")],
)
def test_trouble_that_passes_is_tried_again(
    server: BigQuery, inserting: MakeSink, letters: Letters, status: int, reason: str
) -> None:
    server.fail("insertAll", 3, status=status, reason=reason)
    assert inserting().write(orders(1, 2), FIRST, letters.take) == 2
    assert server.requests["insertAll"] == 4


def test_a_quota_that_is_used_up_passes(server: BigQuery, inserting: MakeSink, letters: Letters) -> None:
    server.fail("insertAll", 1, status=403, reason="quotaExceeded")
    assert inserting().write(orders(1), FIRST, letters.take) == 1


@pytest.mark.parametrize("how", [{"drop": True}, {"after": True}], ids=["cut", "done and cut"])
def test_a_cut_connection_is_tried_again_and_counts_once(
    server: BigQuery, inserting: MakeSink, letters: Letters, how: dict[str, Any]
) -> None:
    server.fail("insertAll", 2, **how)
    assert inserting().write(orders(1, 2), FIRST, letters.take) == 2
    assert ids(server) == [1, 2]


def test_after_the_last_retry_the_sink_is_unavailable(server: BigQuery, inserting: MakeSink, letters: Letters) -> None:
    server.fail("insertAll", 99, status=503)
    made = inserting(retries=3)
    with pytest.raises(SinkUnavailable, match=r"sink warehouse: inserting .* failed \(4 times\)"):
        made.write(orders(1), FIRST, letters.take)
    assert server.requests["insertAll"] == 4
    assert not made.is_written(FIRST)


def test_no_permission_is_told_at_once(server: BigQuery, inserting: MakeSink, letters: Letters) -> None:
    server.fail("insertAll", 1, status=403, reason="accessDenied")
    with pytest.raises(SinkError, match="Data Editor") as caught:
        inserting().write(orders(1), FIRST, letters.take)
    assert not caught.value.retriable


def test_refused_rows_go_to_the_letters_and_the_others_are_written(
    server: BigQuery, inserting: MakeSink, letters: Letters
) -> None:
    server.refuse = lambda row: "no thirteens" if row["id"] % 13 == 0 else None
    assert inserting(batch_rows=10).write(orders(*range(40)), FIRST, letters.take) == 36
    assert ids(server) == [each for each in range(40) if each % 13]
    assert sorted(each.row for each in letters) == sorted(b'{"id":%d,"name":"n"}' % each for each in (0, 13, 26, 39))
    assert set(letters.reasons) == {"no thirteens"}


@pytest.mark.parametrize("reason", ["stopped", "backendError"])
def test_rows_that_were_only_held_up_are_sent_again(
    server: BigQuery, inserting: MakeSink, letters: Letters, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    honest, troubled = server.insert_all, [2]

    def held_up(name: str, body: dict[str, Any], size: int) -> tuple[int, dict[str, Any]]:
        if troubled[0]:
            troubled[0] -= 1
            errors = [{"index": at, "errors": [{"reason": reason}]} for at in range(len(body["rows"]))]
            return 200, {"insertErrors": errors}
        return honest(name, body, size)

    monkeypatch.setattr(server, "insert_all", held_up)
    assert inserting().write(orders(1, 2), FIRST, letters.take) == 2
    assert ids(server) == [1, 2]
    assert letters == []


def test_rows_that_are_held_up_for_ever_make_the_sink_unavailable(
    server: BigQuery, inserting: MakeSink, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"insertErrors": [{"index": 0, "errors": [{"reason": "timeout"}]}]}
    monkeypatch.setattr(server, "insert_all", lambda *_: (200, errors))
    with pytest.raises(SinkUnavailable, match="for 1 rows"):
        inserting(retries=2).write(orders(1), FIRST, letters.take)


def test_a_request_keeps_below_the_services_limit(server: BigQuery, inserting: MakeSink, letters: Letters) -> None:
    # Each of these letters takes six bytes in the client's JSON.
    rows = Frame("id BIGINT, name STRING", [batch_of(*range(8), name="ä" * 400_000)])
    assert inserting(batch_bytes=1 << 30).write(rows, FIRST, letters.take) == 8
    assert max(server.sizes["insertAll"]) <= 10_000_000
    assert len(server.sizes["insertAll"]) == 2


def test_sizes_are_those_of_the_request(server: BigQuery, inserting: MakeSink, letters: Letters) -> None:
    inserting(batch_bytes=4096, batch_rows=10_000).write(orders(*range(500)), FIRST, letters.take)
    assert max(server.sizes["insertAll"]) <= 4096 + 256
    assert max(server.sizes["insertAll"]) > 3000


def test_a_row_beyond_the_limit_is_rejected(server: BigQuery, inserting: MakeSink, letters: Letters) -> None:
    rows = Frame("id BIGINT, name STRING", [batch_of(1), batch_of(2, name="x" * 5000), batch_of(3)])
    assert inserting(batch_bytes=4096).write(rows, FIRST, letters.take) == 2
    assert ids(server) == [1, 3]
    assert "a request may hold 4,096" in letters[0].reason
    assert b'"id":2' in letters[0].row
