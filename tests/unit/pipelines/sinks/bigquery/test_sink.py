"""The driver's side: what is checked before the first row, and every place where it may die."""

import datetime
import math
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.auth.exceptions import DefaultCredentialsError
from pyspark.sql.pandas.types import to_arrow_schema
from tests.peers.bigquery import BigQuery

from penstock.pipelines.errors import SinkError, SinkUnavailable
from penstock.pipelines.model import SinkSpec
from penstock.pipelines.sinks import bigquery
from penstock.pipelines.sinks.bigquery import sink as driver
from penstock.pipelines.sinks.bigquery.access import Access, parse_table
from penstock.pipelines.sinks.bigquery.intents import Intents
from penstock.pipelines.sinks.contract import BatchId, Context
from penstock.spark.formats.ddl import parse_schema

from .frames import FIRST, QUERY, TABLE, Frame, Letters, batch_of, orders

MakeSink = Callable[..., Any]  # a BigQuerySink; a Frame stands in for its DataFrame
METHODS = ("storage_write", "insert_all")


class Died(BaseException):
    """The driver's process ends here."""


def ids(server: BigQuery) -> list[int]:
    return sorted(row["id"] for row in server.tables[TABLE].rows)


def die(*_: object, **__: object) -> None:
    raise Died


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    monkeypatch.setattr(owner, name, die)


def behind(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    honest = getattr(owner, name)

    def do(*arguments: Any, **more: Any) -> None:
        honest(*arguments, **more)
        raise Died

    monkeypatch.setattr(owner, name, do)


DEATHS: dict[str, tuple[Callable[..., None], Any, str, bool]] = {
    "before the tasks": (before, driver, "write_parts", False),
    "behind the tasks": (behind, driver, "write_parts", False),
    "before the note": (before, Intents, "open", False),
    "behind the note": (behind, Intents, "open", True),
    "before the commit": (before, driver, "commit", True),
    "behind the commit": (behind, driver, "commit", True),
    "before it is noted as done": (before, Intents, "finish", True),
    "behind that": (behind, Intents, "finish", True),
}


@pytest.mark.parametrize("point", DEATHS)
def test_a_batch_is_there_once_wherever_the_driver_dies(
    server: BigQuery, sink: MakeSink, letters: Letters, point: str
) -> None:
    how, owner, name, written = DEATHS[point]
    server.refuse = lambda row: "no threes" if row["id"] == 3 else None
    with pytest.MonkeyPatch.context() as patch:
        how(patch, owner, name)
        with pytest.raises(Died):
            sink().write(orders(1, 2, 3), FIRST, letters.take)
    again = sink()
    assert again.is_written(FIRST) is written
    if not written:
        again.write(orders(2, 1, 3), FIRST, letters.take)
    assert again.is_written(FIRST)
    assert sink().is_written(FIRST)
    assert ids(server) == [1, 2]
    assert letters.reasons
    following = BatchId(QUERY, 1)
    assert not again.is_written(following)
    again.write(orders(4), following, letters.take)
    assert ids(server) == [1, 2, 4]


@pytest.mark.parametrize("in_status", [False, True], ids=["in the answer", "in the status"])
def test_a_commit_whose_answer_is_lost_is_recognised(
    server: BigQuery, sink: MakeSink, letters: Letters, in_status: bool
) -> None:
    server.errors_in_status = in_status
    server.fail("BatchCommitWriteStreams", 1, after=True)
    assert sink().write(orders(1), FIRST, letters.take) == 1
    assert server.requests["BatchCommitWriteStreams"] == 2
    assert ids(server) == [1]


def test_a_commit_that_nobody_answers_is_not_written_again_by_the_next_call(
    server: BigQuery, sink: MakeSink, letters: Letters
) -> None:
    server.fail("BatchCommitWriteStreams", 2, after=True)
    made = sink(retries=1)
    with pytest.raises(SinkUnavailable):
        made.write(orders(1, 2), FIRST, letters.take)
    assert made.write(orders(1, 2), FIRST, letters.take) == 2
    assert ids(server) == [1, 2]
    assert server.requests["CreateWriteStream"] == 1


def test_a_commit_that_was_refused_is_made_up_for_when_asked(
    server: BigQuery, sink: MakeSink, letters: Letters
) -> None:
    server.fail("BatchCommitWriteStreams", 1, status="UNAVAILABLE")
    made = sink(retries=0)
    with pytest.raises(SinkUnavailable):
        made.write(orders(1), FIRST, letters.take)
    assert ids(server) == []
    assert made.is_written(FIRST)
    assert ids(server) == [1]


@pytest.mark.parametrize("in_status", [False, True], ids=["in the answer", "in the status"])
def test_streams_that_are_gone_were_not_written(
    server: BigQuery, sink: MakeSink, letters: Letters, in_status: bool
) -> None:
    server.errors_in_status = in_status
    with pytest.MonkeyPatch.context() as patch:
        before(patch, driver, "commit")
        with pytest.raises(Died):
            sink().write(orders(1), FIRST, letters.take)
    server.forget_streams()
    again = sink()
    assert not again.is_written(FIRST)
    assert again.write(orders(1), FIRST, letters.take) == 1
    assert ids(server) == [1]


@pytest.mark.parametrize(("unsure", "written"), [("stop", None), ("write", False), ("skip", True)])
def test_streams_that_may_have_been_forgotten_after_a_commit(
    server: BigQuery,
    sink: MakeSink,
    letters: Letters,
    monkeypatch: pytest.MonkeyPatch,
    unsure: str,
    written: bool | None,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        behind(patch, driver, "commit")
        with pytest.raises(Died):
            sink().write(orders(1), FIRST, letters.take)
    server.forget_streams()
    monkeypatch.setattr(driver, "KEPT_S", -1.0)
    again = sink(unsure=unsure)
    if written is None:
        with pytest.raises(SinkError, match=r"nobody knows whether batch 0 .* its 1 rows .*unsure: write"):
            again.is_written(FIRST)
    else:
        assert again.is_written(FIRST) is written


def test_streams_of_which_some_are_committed_stop_the_pipeline(
    server: BigQuery, sink: MakeSink, letters: Letters
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        before(patch, driver, "commit")
        rows = Frame("id BIGINT, name STRING", [batch_of(1)], [batch_of(2)])
        with pytest.raises(Died):
            sink().write(rows, FIRST, letters.take)
    server.streams[max(server.streams)].committed = datetime.datetime.now(datetime.UTC)
    del server.streams[min(server.streams)]
    with pytest.raises(SinkError, match="STREAM_ALREADY_COMMITTED"):
        sink().is_written(FIRST)


def test_a_batch_before_the_last_is_refused(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    made = sink()
    made.write(orders(1), BatchId(QUERY, 5), letters.take)
    with pytest.raises(SinkError, match=r"batch 4 .* comes after batch 5"):
        made.is_written(BatchId(QUERY, 4))
    assert not made.is_written(BatchId("another", 4))


def test_a_damaged_note_stops_the_pipeline(server: BigQuery, sink: MakeSink, letters: Letters, tmp_path: Path) -> None:
    made = sink()
    made.write(orders(1), FIRST, letters.take)
    (note,) = (tmp_path / "state").iterdir()
    note.write_bytes(note.read_bytes().replace(b'"batch":0', b'"batch":1'))
    with pytest.raises(SinkError, match="checksum"):
        made.is_written(FIRST)


EVERY = (
    "flag BOOLEAN, tiny TINYINT, small SMALLINT, number INT, big BIGINT, single FLOAT, wide DOUBLE, "
    "money DECIMAL(20,3), huge DECIMAL(38,18), text STRING, raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "many ARRAY<STRING>, named MAP<STRING, BIGINT>, inside STRUCT<a: INT, at: TIMESTAMP, list: ARRAY<DOUBLE>>"
)
FULL: dict[str, Any] = {
    "flag": True,
    "tiny": -128,
    "small": 32767,
    "number": -(2**31),
    "big": 2**63 - 1,
    "single": 1.5,
    "wide": 0.1,
    "money": Decimal("-12345678901234567.891"),
    "huge": Decimal("12345678901234567890.123456789012345678"),
    "text": "Größe \U0001f600",
    "raw": b"\x00\xff",
    "day": datetime.date(2026, 11, 16),
    "at": datetime.datetime(2026, 11, 16, 23, 59, 59, 999999, datetime.UTC),
    "local": datetime.datetime(1969, 12, 31, 0, 0, 0, 1),
    "many": ["a", ""],
    "named": [("x", 1), ("y", None)],
    "inside": {"a": 1, "at": datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC), "list": [0.5]},
}
EMPTY = dict.fromkeys(FULL) | {"many": [], "named": []}


@pytest.mark.parametrize("method", METHODS)
def test_every_type_arrives_in_a_table_made_for_it(
    server: BigQuery, sink: MakeSink, letters: Letters, method: str
) -> None:
    columns = parse_schema(EVERY)
    batch = pa.RecordBatch.from_pylist([FULL, dict.fromkeys(FULL)], to_arrow_schema(columns, timezone="Europe/Berlin"))
    made = sink("shop.sales.everything", method=method, create=True)
    made.probe()
    made.prepare(columns)
    assert made.write(Frame(EVERY, [batch]), FIRST, letters.take) == 2
    pairs = [{"key": "x", "value": 1}, {"key": "y", "value": None}]
    assert server.tables["shop.sales.everything"].rows == [FULL | {"named": pairs}, EMPTY]
    assert letters == []


@pytest.mark.parametrize("method", METHODS)
def test_numbers_that_are_none(server: BigQuery, sink: MakeSink, letters: Letters, method: str) -> None:
    values = pa.array([math.nan, math.inf, -math.inf, None, 1.0])
    frame = Frame("x DOUBLE", [pa.record_batch({"x": values})])
    sink("shop.sales.numbers", method=method, create=True).write(frame, FIRST, letters.take)
    got = [row["x"] for row in server.tables["shop.sales.numbers"].rows]
    assert math.isnan(got[0])
    assert got[1:] == [math.inf, -math.inf, None, 1.0]


@pytest.mark.parametrize("method", METHODS)
def test_integers_go_into_numeric_fields(server: BigQuery, sink: MakeSink, letters: Letters, method: str) -> None:
    table = server.add_table("shop.sales.exact", {"name": "x", "type": "NUMERIC"}, {"name": "y", "type": "BIGNUMERIC"})
    batch = pa.record_batch({"x": pa.array([2**63 - 1]), "y": pa.array([-5], pa.int32())})
    sink("shop.sales.exact", method=method).write(Frame("x BIGINT, y INT", [batch]), FIRST, letters.take)
    assert table.rows == [{"x": Decimal(2**63 - 1), "y": Decimal(-5)}]


@pytest.mark.parametrize("method", METHODS)
def test_null_inside_an_array_is_rejected_before_it_is_sent(
    server: BigQuery, sink: MakeSink, letters: Letters, method: str
) -> None:
    batch = pa.record_batch({"x": pa.array([["a"], ["b", None]])})
    made = sink("shop.sales.lists", method=method, create=True)
    assert made.write(Frame("x ARRAY<STRING>", [batch]), FIRST, letters.take) == 1
    assert server.tables["shop.sales.lists"].rows == [{"x": ["a"]}]
    assert [(each.row, each.reason) for each in letters] == [
        (b'{"x":["b",null]}', "field x: an array in BigQuery holds no null")
    ]


@pytest.mark.parametrize("method", METHODS)
def test_a_mapping_at_work(server: BigQuery, sink: MakeSink, letters: Letters, method: str) -> None:
    inner = {"name": "address", "type": "RECORD", "fields": [{"name": "city", "type": "STRING"}]}
    table = server.add_table(
        "shop.sales.mapped", {"name": "id", "type": "INT64"}, {"name": "customer", "type": "STRUCT", "fields": [inner]}
    )
    made = sink(
        "shop.sales.mapped",
        method=method,
        mapping={"id": "order.id", "customer.address.city": "town"},
        defaults={"customer.address.city": "?"},
    )
    batch = pa.record_batch({"order": pa.array([{"id": 1}, {"id": 2}]), "town": pa.array(["Rome", None])})
    assert made.write(Frame("`order` STRUCT<id: BIGINT>, town STRING", [batch]), FIRST, letters.take) == 2
    assert table.rows == [
        {"id": 1, "customer": {"address": {"city": "Rome"}}},
        {"id": 2, "customer": {"address": {"city": "?"}}},
    ]


def test_a_missing_table_is_told_and_not_made(server: BigQuery, sink: MakeSink) -> None:
    made = sink("shop.sales.nowhere")
    for call in (made.probe, lambda: made.prepare(parse_schema("id INT"))):
        with pytest.raises(SinkError, match=r"no table shop\.sales\.nowhere.*create: true") as caught:
            call()
        assert not caught.value.retriable
    assert "tables.insert" not in server.requests


def test_probing_makes_nothing(server: BigQuery, sink: MakeSink) -> None:
    sink("shop.sales.new", create=True).probe()
    assert "shop.sales.new" not in server.tables


def test_a_missing_dataset_is_told(server: BigQuery, sink: MakeSink) -> None:
    with pytest.raises(SinkError, match=r"making table shop\.nowhere\.t failed.*dataset must be there"):
        sink("shop.nowhere.t", create=True).prepare(parse_schema("id INT"))


def test_a_table_made_just_now_may_not_be_known_everywhere(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    server.fail("CreateWriteStream", 1, status="NOT_FOUND")
    made = sink("shop.sales.new", create=True)
    with pytest.raises(SinkUnavailable):
        made.write(orders(1), FIRST, letters.take)
    assert made.write(orders(1), FIRST, letters.take) == 1


def test_what_does_not_fit_is_told_before_the_first_row(server: BigQuery, sink: MakeSink) -> None:
    with pytest.raises(SinkError, match=r"sink warehouse: column id is string.*field id is INTEGER"):
        sink().prepare(parse_schema("id STRING, name STRING"))


@pytest.mark.parametrize("times", [2, 99])
def test_a_server_in_trouble_is_asked_again(server: BigQuery, sink: MakeSink, times: int) -> None:
    server.fail("tables.get", times, status=503)
    if times == 2:
        sink().probe()
    else:
        with pytest.raises(SinkUnavailable, match="reading table"):
            sink().probe()


@pytest.mark.parametrize("method", METHODS)
def test_a_server_that_is_not_there_is_unavailable(
    server: BigQuery, sink: MakeSink, letters: Letters, method: str
) -> None:
    made = sink(method=method, retries=1, timeout=5.0)
    made.prepare(orders(1).schema)
    server.__exit__()
    made.close()
    for call in (made.probe, lambda: made.write(orders(1), FIRST, letters.take)):
        with pytest.raises(SinkUnavailable, match="sink warehouse"):
            call()


def test_no_permission_is_told(server: BigQuery, sink: MakeSink) -> None:
    server.fail("tables.get", 1, status=403, reason="accessDenied")
    with pytest.raises(SinkError, match="Data Editor") as caught:
        sink().probe()
    assert not caught.value.retriable


def test_streams_are_bounded_by_the_key(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    rows = orders(1)
    sink(streams=3).write(rows, FIRST, letters.take)
    assert rows.coalesced == 3


def test_a_closed_sink_opens_again(server: BigQuery, sink: MakeSink, letters: Letters) -> None:
    made = sink()
    made.write(orders(1), FIRST, letters.take)
    made.close()
    made.close()
    made.probe()
    assert made.write(orders(2), BatchId(QUERY, 1), letters.take) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bigquery": "dataset.table"}, "project.dataset.table"),
        ({"bigquery": "p..t"}, "project.dataset.table"),
        ({"bigquery": "p.d.t", "retry_from": 5.0, "retry_to": 1.0}, "retry_to"),
        ({"bigquery": "p.d.t", "mapping": ["a"]}, "mapping is"),
        ({"bigquery": "p.d.t", "endpoint": "localhost:9050"}, "endpoint is 'localhost:9050'"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    context = Context("revenue", "", {}, tmp_path, tmp_path)
    with pytest.raises(SinkError, match=words):
        bigquery.open_sink(SinkSpec("warehouse", "bigquery", "orders", options), context)


def test_a_project_of_a_domain(tmp_path: Path) -> None:
    assert parse_table("example.com:shop.sales.orders", "warehouse") == ("example.com:shop", "sales", "orders")


def test_credentials_that_are_none_are_told(sink: MakeSink, tmp_path: Path) -> None:
    (tmp_path / "account.json").write_text("{}")
    made = sink(endpoint="https://bigquery.example", credentials="account.json")
    with pytest.raises(SinkError, match=r"account\.json.*service account"):
        made.probe()


@pytest.mark.parametrize("method", METHODS)
def test_an_account_that_is_missing_only_in_the_tasks_is_told(
    sink: MakeSink, letters: Letters, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    made = sink(method=method)
    made.prepare(orders(1).schema)

    def no_account(_: Access) -> None:
        raise DefaultCredentialsError("no credentials were found")

    monkeypatch.setattr(Access, "open_grpc", no_account)
    monkeypatch.setattr(Access, "open_rest", no_account)
    with pytest.raises(SinkError, match=r"sink warehouse: opening table .*gcloud auth"):
        made.write(orders(1), FIRST, letters.take)


def test_the_kind_says_what_it_was_tested_against_and_has_its_own_name_first() -> None:
    assert bigquery.KEYS[0].name == "bigquery"
    assert "stand-in" in bigquery.ABOUT
    assert "about a minute" in bigquery.ABOUT


def test_importing_the_kind_imports_no_client() -> None:
    heavy = ("google.cloud", "grpc", "requests", "pyarrow", "pyspark")
    check = f"import sys, penstock.pipelines.sinks.bigquery; print([each for each in {heavy} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
