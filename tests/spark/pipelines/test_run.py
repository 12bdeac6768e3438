"""Pipelines at work: what reaches the sinks, what does not, and what happens when something goes wrong."""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from penstock.pipelines.check import check_analysed
from penstock.pipelines.errors import (
    Busy,
    Changed,
    ExpectationFailed,
    PipelineError,
    SinkError,
    SinkUnavailable,
    SpecError,
)
from penstock.pipelines.home.status import State
from penstock.pipelines.run import counters as totals
from penstock.pipelines.sinks.contract import BatchId
from penstock.pipelines.spec import load
from tests.chaos_spark.kills import WORKERS, Processes
from tests.spark.publisher import Publisher

from .conftest import Pipeline
from .memory_sink import Memory, raising


def order(number: int, **changes: Any) -> bytes:
    row = {"id": number, "shop": f"s{number % 3}", "amount": number % 10, "at": f"2026-11-16T08:{number % 60:02d}:00Z"}
    return json.dumps(row | changes).encode()


def test_rows_go_through_a_step_into_sinks(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders, copies = new_topic("orders", partitions=2), new_topic("copies")
    publisher.send(orders, [order(each) for each in range(50)])
    publisher.send(orders, [order(each) for each in range(50, 80)], partition=1)
    pipeline.write(
        """
        name: copy
        $source
        steps:
          large: {sql: "SELECT id, shop, amount FROM orders WHERE amount >= 5"}
        sinks:
          here: {memory: here}
          records: {topic: ${copies}, key: shop, value: id, headers: {amount: amount}}
        """,
        copies=copies,
        orders=orders,
    )
    status = pipeline.run()
    expected = [each for each in range(80) if each % 10 >= 5]
    assert sorted(row["id"] for row in memory.rows()) == expected
    assert memory.columns == ["id", "shop", "amount"]
    records = pipeline.records(copies)
    assert sorted(int(each.value or b"") for each in records) == expected
    first = next(each for each in records if each.value == b"5")
    assert (first.key, first.headers) == (b"s2", (("amount", b"5"),))
    assert (status.state, status.rows, status.lag) == (State.FINISHED, 80, 0)
    assert {name: each.rows for name, each in status.sinks.items()} == {"here": 40, "records": 40}

    publisher.send(orders, [order(8)])
    assert pipeline.run().rows == 81
    assert len(memory.rows()) == len(pipeline.records(copies)) == 41


def test_many_records_with_bad_ones(
    pipeline: Pipeline, publisher: Publisher, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    count = int(os.environ.get("RECORDS", "250000"))
    orders, dead = new_topic("orders", partitions=2), new_topic("dead", partitions=2)
    bad = {each: b'{"id": %d, "shop":' % each if each % 200 == 0 else order(each, amount=-each)
           for each in range(count) if each % 100 == 0}  # fmt: skip
    for partition in (0, 1):
        publisher.send(
            orders, (bad.get(each) or order(each) for each in range(partition, count, 2)), partition=partition
        )
    pipeline.write(
        """
        name: many
        limit: $limit
        $source
        steps:
          checked:
            sql: SELECT id, amount, _origin FROM orders
            expect:
              positive: amount >= 0
        sinks:
          lake: {parquet: lake}
        dead_letters: {topic: $dead}
        """,
        dead=dead,
        orders=orders,
        limit=str(count * 3 // 10),
    )
    status = pipeline.run()
    good = pipeline.spark.read.parquet(str(tmp_path / "lake"))
    row = good.selectExpr("count(*) AS rows", "count(DISTINCT id) AS ids", "sum(id) AS total").first()
    assert row is not None
    expected = [each for each in range(count) if each % 100]
    assert (row.rows, row.ids, row.total) == (len(expected), len(expected), sum(expected))

    letters = pipeline.records(dead)
    assert len(letters) == len(bad)
    reasons: Counter[str] = Counter()
    for letter in letters:
        said = dict(letter.headers)
        reasons["undecoded" if said["penstock.reason"].startswith(b"not decoded") else "broken"] += 1
        assert said["penstock.pipeline"] == b"many"
        assert said["penstock.topic"] == orders.encode()
        number = 2 * int(said["penstock.offset"]) + int(said["penstock.partition"])
        if said["penstock.step"] == b"orders":
            assert letter.value == bad.pop(number)
        else:
            assert (said["penstock.step"], said["penstock.reason"]) == (b"checked", b"does not hold: positive")
            assert json.loads(letter.value or b"") == {"id": number, "amount": -number}
            bad.pop(number)
    assert not bad, f"{len(bad)} bad records have no dead letter"
    assert status.rows == count
    assert status.sinks["lake"].rows == len(expected)
    assert status.dead_letters == len(letters) == count - len(expected)
    assert status.steps["orders"].failed == {"": reasons["undecoded"]}
    assert status.steps["checked"].failed == {"positive": reasons["broken"]}
    assert status.batches >= 3


def test_expectations_warn_drop_and_quarantine(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(each) for each in range(30)])
    pipeline.write(
        """
        name: quality
        $source
            expect:
              - {name: not nine, that: amount < 9, otherwise: drop}
        steps:
          all: {sql: SELECT * FROM orders, expect: [{name: small, that: amount < 5, otherwise: warn},
                 {name: known shop, that: "shop IN ('s0', 's1')", otherwise: quarantine},
                 {name: even, that: id % 2 = 0}]}
        sinks:
          here: {memory: here}
        dead_letters: {file: letters}
        """,
        orders=orders,
    )
    status = pipeline.run()
    passed = [each for each in range(30) if each % 10 < 9]
    good = [each for each in passed if each % 3 < 2 and each % 2 == 0]
    assert sorted(row["id"] for row in memory.rows()) == good
    assert status.steps["orders"].failed == {"not nine": 3}
    assert status.steps["all"].failed == {
        "small": sum(each % 10 >= 5 for each in passed),
        "known shop": sum(each % 3 == 2 for each in passed),
        "even": sum(each % 2 for each in passed),
    }
    letters = [
        json.loads(line)
        for path in (pipeline.folder / "letters").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert status.dead_letters == len(letters) == len(passed) - len(good)
    both = next(each for each in letters if json.loads(each["value"])["id"] == 5)
    assert both["reason"] == "does not hold: small, known shop, even"
    assert (both["topic"], both["offset"]) == (orders, "5")
    assert "_origin" not in memory.columns


def test_an_expectation_that_fails_stops_before_anything_is_written(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(each) for each in range(9)] + [order(9, amount=-1)])
    pipeline.write(
        """
        name: strict
        $source
            expect: [{name: positive, that: amount >= 0, otherwise: fail}]
        sinks: {here: {memory: here}}
        dead_letters: log
        """,
        orders=orders,
    )
    with pytest.raises(ExpectationFailed, match=rf"'positive' of orders .* 1 rows .*topic {orders}, .*offset 9"):
        pipeline.run()
    assert memory.writes == []
    status = pipeline.directory.load_status()
    assert status is not None and status.state is State.FAILED


def test_state_and_rows_before_it_in_one_query(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders, rows = new_topic("orders"), new_topic("rows")
    publisher.send(orders, [order(each) for each in range(60)] + [b"no json", order(1, amount=-5)])
    pipeline.write(
        """
        name: hourly
        mode: update
        $source
            watermark: {column: at, delay: 1 hour}
            expect: {positive: amount >= 0}
        steps:
          totals:
            sql: |
              SELECT window.start AS hour, shop, sum(amount) AS total
              FROM orders GROUP BY window(at, '1 hour'), shop
          large: {sql: SELECT * FROM totals, expect: [{name: not s2, that: shop != 's2', otherwise: drop}]}
        sinks:
          here: {from: large, memory: here}
          rows: {from: orders, topic: $rows}
        dead_letters: {file: letters}
        """,
        rows=rows,
        orders=orders,
    )
    status = pipeline.run()
    sums = Counter({f"s{shop}": sum(n % 10 for n in range(60) if n % 3 == shop) for shop in (0, 1)})
    assert {row["shop"]: row["total"] for row in memory.rows()} == sums
    assert len(pipeline.records(rows)) == 60
    assert status.stateful
    assert status.dead_letters == 2
    assert status.steps["large"].failed == {"not s2": 1}

    publisher.send(orders, [order(3, amount=100)])
    pipeline.run()
    assert memory.rows()[-1]["total"] == sums["s0"] + 100, "state was not kept between runs"


def test_issues_before_state_reach_the_dead_letters_when_no_sink_has_the_rows(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(each) for each in range(6)] + [b"no json", order(1, amount=-5)])
    pipeline.write(
        """
        name: counts
        mode: update
        $source
        steps:
          good: {sql: SELECT * FROM orders, expect: {positive: amount >= 0}}
          counts: {sql: "SELECT shop, count(*) AS orders FROM good GROUP BY shop"}
        sinks: {here: {memory: here}}
        dead_letters: {file: letters}
        """,
        orders=orders,
    )
    status = pipeline.run()
    assert {row["shop"]: row["orders"] for row in memory.rows()} == {"s0": 2, "s1": 2, "s2": 2}
    assert (status.dead_letters, status.rows) == (2, 8)


CRASHES = ["before", "after", "counters"]


@pytest.mark.parametrize("point", CRASHES)
def test_a_batch_that_is_repeated_is_written_and_counted_once(
    point: str,
    pipeline: Pipeline,
    memory: Memory,
    publisher: Publisher,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders, copies = new_topic("orders"), new_topic("copies")
    publisher.send(orders, [order(each) for each in range(20)] + [b"bad"])
    pipeline.write(
        """
        name: repeat
        $source
        sinks:
          copies: {topic: ${copies}, value: id}
          here: {memory: here}
        dead_letters: {topic: ${copies}.dead}
        """,
        copies=copies,
        orders=orders,
    )
    real = totals.save

    def crash(_: object = None, __: object = None) -> None:
        monkeypatch.setattr(totals, "save", real)
        raise PipelineError("crash")

    if point == "counters":
        monkeypatch.setattr(totals, "save", crash)
    else:
        memory.faults[point] = [crash]
    with pytest.raises(PipelineError, match="crash"):
        pipeline.run()
    status = pipeline.run()
    assert len(memory.rows()) == 20
    assert sorted(int(each.value or b"") for each in pipeline.records(copies)) == list(range(20))
    assert len(pipeline.records(f"{copies}.dead")) == 1
    assert {name: each.rows for name, each in status.sinks.items()} == {"copies": 20, "here": 20}
    assert (status.dead_letters, status.batches) == (1, 1)


def test_a_sink_that_is_away_is_waited_for(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(each) for each in range(5)])
    memory.faults["before"] = [raising(SinkUnavailable("sink here: nobody is in"))]
    memory.faults["after"] = [raising(SinkUnavailable("sink here: the answer was lost"))]
    pipeline.write(
        """
        name: away
        $source
        sinks: {here: {memory: here}}
        """,
        orders=orders,
    )
    status = pipeline.run()
    assert len(memory.rows()) == 5
    assert (status.sinks["here"].rows, status.restarts) == (5, 0)
    waiting = [each for each in pipeline.seen if each.state is State.WAITING]
    assert {each.reason for each in waiting} == {"sink here: nobody is in", "sink here: the answer was lost"}
    assert status.sinks["here"].trouble == ""


def test_patience_ends(pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(1)])
    memory.faults["before"] = [raising(SinkUnavailable("sink here: nobody is in"))] * 3
    pipeline.write(
        """
        name: impatient
        patience: 0s
        $source
        sinks: {here: {memory: here}}
        """,
        orders=orders,
    )
    with pytest.raises(SinkUnavailable, match="nobody is in"):
        pipeline.run()
    assert len(memory.writes) == 1


def test_rows_a_sink_refuses_are_dead_letters(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders, dead = new_topic("orders"), new_topic("dead")
    publisher.send(orders, [order(each) for each in range(10)])
    memory.refuses = lambda row: "it is seven" if row["id"] == 7 else ""
    memory.faults["after"] = [raising(SinkUnavailable("sink here: the answer was lost"))]
    pipeline.write(
        """
        name: refused
        $source
        sinks: {here: {memory: here}}
        dead_letters: {topic: $dead}
        """,
        dead=dead,
        orders=orders,
    )
    status = pipeline.run()
    (letter,) = pipeline.records(dead)
    said = dict(letter.headers)
    assert (said["penstock.step"], said["penstock.reason"]) == (b"sink here", b"it is seven")
    assert (status.sinks["here"].rows, status.sinks["here"].rejected, status.dead_letters) == (9, 1, 1)


def test_a_worker_that_is_killed_costs_nothing(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(each) for each in range(50)])

    def kill_workers(_: BatchId) -> None:
        Processes(psutil.Process()).kill(WORKERS, random.Random(0))

    memory.faults["before"] = [kill_workers]
    pipeline.write(
        """
        name: killed
        $source
        sinks: {here: {memory: here}}
        """,
        orders=orders,
    )
    pipeline.run()
    assert sorted(row["id"] for row in memory.rows()) == list(range(50))


def test_issues_are_counted_although_a_task_died(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    """A task of the shuffle that counts them; it must be run again, not only asked again."""
    orders, once = new_topic("orders"), pipeline.folder / "died"
    publisher.send(orders, [order(each) for each in range(20)])
    (pipeline.folder / "steps.py").write_text(
        f"""
import os

def dies_once(batches):
    for batch in batches:
        try:
            os.close(os.open({str(once)!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            yield batch
        else:
            os._exit(1)

def copied(orders):
    return orders.mapInArrow(dies_once, orders.schema)
"""
    )
    pipeline.write(
        """
        name: counted-again
        patience: 30s
        $source
        steps:
          copied: {python: "steps.py:copied", expect: {small: {that: id < 15, otherwise: drop}}}
        sinks: {here: {memory: here, from: copied}}
        """,
        orders=orders,
    )
    status = pipeline.run()
    assert once.exists()
    assert sorted(row["id"] for row in memory.rows()) == list(range(15))
    assert status.steps["copied"].failed == {"small": 5}
    assert status.restarts == 0


def test_stop_lets_the_batch_at_work_end(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(each) for each in range(5)])
    pipeline.write(
        """
        name: stopped
        every: 0
        $source
        sinks: {here: {memory: here}}
        """,
        orders=orders,
    )
    with pipeline.running() as (run, wait):
        memory.faults["before"] = [lambda _: run.stop()]
        wait(lambda: run.wait(0))
    assert run.status.state is State.STOPPED
    assert len(memory.rows()) == run.status.sinks["here"].rows == 5
    assert pipeline.run().sinks["here"].rows == 5


def test_a_changed_step_needs_a_reset(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(each) for each in range(4)])
    text = """
        name: changing
        $source
        steps: {some: {sql: SELECT id FROM orders WHERE id < 2}}
        sinks: {here: {memory: here}}
        """
    pipeline.write(text, orders=orders).run()
    pipeline.write(text.replace("id < 2", "id  <  2  -- two"), orders=orders).run()
    pipeline.write(text.replace("id < 2", "id < 3"), orders=orders)
    with pytest.raises(Changed, match=r"step some changed.*penstock pipeline reset changing"):
        pipeline.run()
    pipeline.directory.reset()
    status = pipeline.run()
    assert len(memory.rows()) == 2 + 3
    assert status.sinks["here"].rows == 3, "counts begin anew"


def test_two_runs_at_once(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    pipeline.write(
        """
        name: single
        $source
        sinks: {here: {memory: here}}
        """,
        orders=orders,
    )
    with pipeline.running(), pytest.raises(Busy, match=f"single is at work in process {os.getpid()}"):
        pipeline.run()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("amount * 2", "amout * 2"), "amout.*cannot be resolved.*amount"),
        (("WHERE id >", "WHERE id > > "), "step doubled: .*[Ss]yntax error"),
        (("positive: amount", "positive: amuont"), "expectation 'positive' of doubled: .*amuont"),
        (("positive: amount > 0", "positive: amount + 1"), "is bigint, but must be true or false"),
        (("FROM orders", "FROM orders JOIN nobody"), "nobody.*cannot be found"),
    ],
)
def test_mistakes_are_told_with_their_line(
    change: tuple[str, str], told: str, pipeline: Pipeline, memory: Memory, new_topic: Callable[..., str]
) -> None:
    text = """
        name: wrong
        $source
        steps:
          doubled:
            sql: |
              SELECT amount * 2 AS amount
              FROM orders WHERE id > 3
            expect: {positive: amount > 0}
        sinks: {here: {memory: here}}
        """
    assert change[0] in text
    pipeline.write(text.replace(*change), orders=new_topic("orders"))
    lines = pipeline.file.read_text().splitlines()
    with pytest.raises(SpecError, match=told) as caught:
        pipeline.run()
    (finding,) = caught.value.findings
    assert finding.place is not None
    assert change[1].split()[-1] in lines[finding.place.line - 1], finding


def test_a_query_that_spark_cannot_stream_is_refused(
    pipeline: Pipeline, memory: Memory, new_topic: Callable[..., str]
) -> None:
    pipeline.write(
        """
        name: sorted
        $source
        steps: {sorted: {sql: "SELECT id, row_number() OVER (PARTITION BY shop ORDER BY id) AS n FROM orders"}}
        sinks: {here: {memory: here}}
        """,
        orders=new_topic("orders"),
    )
    with pytest.raises(PipelineError, match="Window function is not supported"):
        pipeline.run()
    assert memory.writes == []


JOIN = """
name: joined
$source
    $watermark
  paid:
    topic: $orders
    format: json
    schema: "id BIGINT, paid_at TIMESTAMP"
    $paid_watermark
steps:
  pairs:
    sql: SELECT o.id FROM orders o $kind JOIN paid p ON o.id = p.id $times
sinks:
  here: {memory: here}
dead_letters: drop
"""
MARK, PAID_MARK = (f"watermark: {{column: {column}, delay: 10 minutes}}" for column in ("at", "paid_at"))
TIMES = "AND p.paid_at BETWEEN o.at AND o.at + INTERVAL 1 HOUR"


def test_joins_of_streams_are_judged_before_they_run(
    pipeline: Pipeline, memory: Memory, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")

    def check(kind: str, watermark: str, paid_watermark: str, times: str) -> list[str]:
        names = {"kind": kind, "watermark": watermark, "paid_watermark": paid_watermark, "times": times}
        pipeline.write(JOIN, orders=orders, **names)
        return [each.text for each in check_analysed(load(pipeline.file), pipeline.spark)]

    assert check("", MARK, PAID_MARK, TIMES) == []
    assert check("LEFT", MARK, PAID_MARK, TIMES) == []
    (found,) = check("", MARK, "", TIMES)
    assert found.startswith("step pairs: it joins two streams, and p has no watermark: Spark keeps all their rows")
    (found,) = check("LEFT", "", "", TIMES)
    assert "o and p have no watermark: Spark refuses such an outer join" in found
    (found,) = check("", MARK, PAID_MARK, "")
    assert "its condition does not compare their times" in found


def test_what_spark_refuses_to_stream_is_found_before_it_runs(
    pipeline: Pipeline, memory: Memory, new_topic: Callable[..., str]
) -> None:
    pipeline.write(
        """
        name: counted
        $source
        steps:
          counts: {sql: "SELECT shop, count(*) AS n FROM orders GROUP BY shop"}
        sinks:
          here: {memory: here}
        dead_letters: drop
        """,
        orders=new_topic("orders"),
    )
    (found,) = check_analysed(load(pipeline.file), pipeline.spark)
    assert found.text.startswith("step counts: Spark does not stream it: ")
    assert "watermark" in found.text
    pipeline.file.write_text(pipeline.file.read_text() + "mode: update\n")
    assert check_analysed(load(pipeline.file), pipeline.spark) == []


def test_a_sink_whose_mark_is_ahead_refuses(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(1)])
    pipeline.write(
        """
        name: ahead
        $source
        sinks: {here: {memory: here}}
        """,
        orders=orders,
    )
    query = pipeline.run().query
    memory.batches[BatchId(query, 7)] = []
    publisher.send(orders, [order(2)])
    with pytest.raises(SinkError, match="comes after batch 7 was written"):
        pipeline.run()


def test_files_that_stream_and_files_to_join_with(pipeline: Pipeline, memory: Memory) -> None:
    (pipeline.folder / "in").mkdir()
    (pipeline.folder / "shops.csv").write_text("shop,city\ns0,Ulm\ns1,Bern\n")
    (pipeline.folder / "in" / "1.json").write_bytes(b"\n".join([order(0), order(1), order(2), b"{no json"]))
    pipeline.write(
        """
        name: files
        sources:
          orders: {files: in, format: json, schema: "id BIGINT, shop STRING"}
          shops: {files: shops.csv, format: csv, schema: "shop STRING, city STRING", static: true,
                  options: {header: "true"}}
        steps:
          located: {sql: 'SELECT id, city FROM orders JOIN shops USING (shop)'}
        sinks: {here: {memory: here}}
        dead_letters: {file: letters}
        """,
    )
    status = pipeline.run()
    assert sorted((row["id"], row["city"]) for row in memory.rows()) == [(0, "Ulm"), (1, "Bern")]
    (letter,) = [json.loads(line) for path in (pipeline.folder / "letters").iterdir() for line in path.open()]
    assert letter["value"] == "{no json" and letter["file"].endswith("in/1.json")
    (pipeline.folder / "in" / "2.json").write_bytes(order(3))
    (pipeline.folder / "shops.csv").write_text("shop,city\ns0,Rom\n")
    assert pipeline.run().sinks["here"].rows == 3
    assert memory.rows()[-1] == {"id": 3, "city": "Rom"}, "files to join with are read anew"
    assert status.dead_letters == 1


@pytest.mark.parametrize(
    "query",
    [
        "WITH all_of_them AS (SELECT * FROM orders) SELECT shop, count(*) AS n FROM all_of_them GROUP BY shop",
        "SELECT shop, count(*) AS n FROM (SELECT * FROM orders) GROUP BY shop",
    ],
)
def test_a_query_counts_over_all_batches_however_it_is_written(
    query: str, pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    pipeline.write(
        """
        name: counting
        mode: update
        $source
        steps: {counts: {sql: "$query"}}
        sinks: {here: {memory: here}}
        dead_letters: drop
        """,
        orders=orders,
        query=query,
    )
    for number in (1, 2):
        publisher.send(orders, [order(0)])
        pipeline.run()
        assert [row["n"] for row in memory.rows()] == list(range(1, number + 1))


def test_a_step_that_does_not_use_an_input_with_state(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    (pipeline.folder / "steps.py").write_text("def counted(rows, unused):\n    return rows.groupBy('shop').count()\n")
    pipeline.write(
        """
        name: unused
        mode: update
        $source
        steps:
          totals: {sql: "SELECT shop, sum(amount) AS total FROM orders GROUP BY shop"}
          counted: {python: "steps.py:counted", inputs: [orders, totals]}
        sinks: {here: {memory: here}}
        dead_letters: drop
        """,
        orders=orders,
    )
    for number in (1, 2):
        publisher.send(orders, [order(0)])
        pipeline.run()
        assert memory.rows()[-1]["count"] == number


def test_a_sink_and_the_dead_letters_do_not_take_each_other_for_themselves(
    pipeline: Pipeline, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders, copies, dead = new_topic("orders"), new_topic("copies"), new_topic("dead")
    publisher.send(orders, [order(1), b"bad"])
    pipeline.write(
        """
        name: names
        $source
        sinks: {dead-letters: {topic: $copies, value: id}}
        dead_letters: {topic: $dead}
        """,
        orders=orders,
        copies=copies,
        dead=dead,
    )
    pipeline.run()
    assert [each.value for each in pipeline.records(copies)] == [b"1"]
    assert [each.value for each in pipeline.records(dead)] == [b"bad"]


def test_a_checkpoint_that_is_gone_is_not_begun_anew(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(1)])
    pipeline.write(
        """
        name: gone
        $source
        sinks: {here: {memory: here}}
        """,
        orders=orders,
    )
    pipeline.run()
    pipeline.directory.checkpoint.rename(pipeline.folder / "elsewhere")
    with pytest.raises(PipelineError, match=r"checkpoint .* is gone .*penstock pipeline reset gone"):
        pipeline.run()
    (pipeline.folder / "elsewhere").rename(pipeline.directory.checkpoint)
    pipeline.run()
    assert len(memory.rows()) == 1


def test_options_that_a_source_has_keys_for_are_refused(
    pipeline: Pipeline, memory: Memory, new_topic: Callable[..., str]
) -> None:
    pipeline.write(
        """
        name: options
        $source
            options: {startingOffsets: latest}
        sinks: {here: {memory: here}}
        """,
        orders=new_topic("orders"),
    )
    with pytest.raises(SpecError, match="option startingOffsets is settled by its own keys"):
        pipeline.run()


def test_a_first_start_that_failed_does_not_bind(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [order(1)])
    text = """
        name: second
        $source
            from: latest
        steps: {some: {sql: SELECT nothing FROM orders}}
        sinks: {here: {memory: here}}
        """
    with pytest.raises(SpecError):
        pipeline.write(text, orders=orders).run()
    pipeline.write(text.replace("latest", "earliest").replace("nothing", "id"), orders=orders).run()
    assert memory.rows() == [{"id": 1}]
