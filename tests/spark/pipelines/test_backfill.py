"""Older rows beside a pipeline that runs on: none is missing, none is there twice."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.pipelines.backfill import Backfill, Plan, plan_backfill
from penstock.pipelines.errors import PipelineError
from penstock.pipelines.spec import load
from tests.conformance.records import Record
from tests.spark.publisher import Publisher

from .conftest import DEADLINE_S, Pipeline
from .memory_sink import Memory
from .test_run import order

DAY_MS = 86_400_000
NOON_MS = 1_794_700_800_000


def at(number: int, time_ms: int) -> Record:
    return Record(order(number), timestamp_ms=time_ms)


def backfill(pipeline: Pipeline, from_ms: int, to_ms: int | None, *, again: bool = False) -> Plan:
    spec = load(pipeline.file)
    plan = plan_backfill(spec, pipeline.directory, from_ms=from_ms, to_ms=to_ms, again=again)
    work = Backfill(spec, pipeline.directory, plan, pipeline.spark)
    work.start()
    assert work.wait(DEADLINE_S), work.status
    if work.error is not None:
        raise work.error
    return plan


@contextmanager
def live_writes(publisher: Publisher, topic: str, first: int) -> Iterator[list[int]]:
    """Rows that keep coming in both partitions; hands out the numbers written so far."""
    written: list[int] = []
    over = threading.Event()

    def write() -> None:
        number = first
        while not over.wait(0.05):
            publisher.send(topic, [Record(order(each)) for each in (number, number + 1)], partition=number // 2 % 2)
            written.extend((number, number + 1))
            number += 2

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()


def test_a_day_is_filled_in_while_rows_flow(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders, copies = new_topic("orders", partitions=2), new_topic("copies")
    before, day, later = range(100), range(100, 400), range(400, 450)
    for numbers, time_ms in ((before, NOON_MS - DAY_MS), (day, NOON_MS), (later, NOON_MS + DAY_MS)):
        for partition in (0, 1):
            publisher.send(
                orders, [at(each, time_ms) for each in numbers if each % 2 == partition], partition=partition
            )
    pipeline.write(
        """
        name: filled
        every: 0
        limit: 200
        $source
            from: latest
        sinks:
          here: {memory: here}
          copies: {topic: $copies, value: id}
        dead_letters: drop
        """,
        orders=orders,
        copies=copies,
    )

    def there() -> list[int]:
        return [row["id"] for row in memory.rows()]

    with pipeline.running() as (_, wait):
        whole = plan_backfill(load(pipeline.file), pipeline.directory, from_ms=0, to_ms=None, reserve=False)
        assert whole.rows == 450, "an answer that keeps nobody from anything"
        with live_writes(publisher, orders, 1000) as written:
            wait(lambda: len(there()) > 5)
            plan = backfill(pipeline, NOON_MS - 1000, NOON_MS + 1000)
            assert plan.rows == len(day)
            assert len([each for each in there() if each in day]) == len(day), "the day, once"
            seen = len(written)
            wait(lambda: len([each for each in there() if each >= 1000]) > seen)
            everything = backfill(pipeline, 0, None)
            assert everything.rows == len(before) + len(later), "without the day, and without what came live"
        wait(lambda: len(there()) == 450 + len(written))
    expected = [*range(450), *written]
    assert sorted(there()) == sorted(expected)
    assert sorted(int(each.value or b"") for each in pipeline.records(copies)) == sorted(expected)
    assert plan_backfill(load(pipeline.file), pipeline.directory, from_ms=NOON_MS - 999, to_ms=NOON_MS).rows == 0
    assert backfill(pipeline, NOON_MS - 1000, NOON_MS + 1000).done == 1, "asked for again, it has nothing to do"
    assert sorted(there()) == sorted(expected)

    backfill(pipeline, NOON_MS - 1000, NOON_MS + 1000, again=True)
    assert len(there()) == len(expected) + len(day)


def test_what_a_backfill_cannot_do(
    pipeline: Pipeline, memory: Memory, publisher: Publisher, new_topic: Callable[..., str]
) -> None:
    orders = new_topic("orders")
    publisher.send(orders, [at(each, NOON_MS) for each in range(10)])
    text = """
        name: never
        mode: update
        $source
            from: latest
        steps: {counts: {sql: "SELECT shop, count(*) AS n FROM orders GROUP BY shop"}}
        sinks: {here: {memory: here}}
        """
    pipeline.write(text, orders=orders)
    with pytest.raises(PipelineError, match="never has not begun yet"):
        backfill(pipeline, 0, None)
    pipeline.run()
    with pytest.raises(PipelineError, match="step counts keeps state"):
        backfill(pipeline, 0, None)
    assert memory.rows() == []
