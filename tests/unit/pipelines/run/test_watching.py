from collections import Counter
from dataclasses import replace
from typing import Any

from penstock.pipelines.home.status import State, Status
from penstock.pipelines.model import DeadLetters, SinkSpec, Source, Spec, Step
from penstock.pipelines.run.counters import Counters
from penstock.pipelines.run.watching import Rate, Watch, read_source

SPEC = Spec(
    "p",
    (Source("orders", "topic", {"topic": ("orders",)}), Source("shops", "files", {"static": True})),
    (),
    (SinkSpec("lake", "delta", "orders", {}),),
    DeadLetters("drop"),
    "here:1",
)


def offsets(*numbers: int) -> dict[str, Any]:
    return {"orders": {str(at): number for at, number in enumerate(numbers)}, "#ids": {"orders": "uuid"}}


def progress(batch: int, start: Any, end: Any, latest: Any, rows: int = 1, second: int = 0) -> dict[str, Any]:
    source = {"startOffset": start, "endOffset": end, "latestOffset": latest, "numInputRows": rows}
    return {
        "id": "q",
        "batchId": batch,
        "timestamp": f"2026-11-16T08:00:{batch + second:02d}.000Z",
        "numInputRows": rows,
        "durationMs": {"triggerExecution": 1500},
        "eventTime": {},
        "sources": [source],
    }


def test_rows_and_lag_are_read_off_the_offsets() -> None:
    told = progress(0, offsets(0, 5), offsets(10, 7), offsets(30, 7))["sources"][0]
    assert read_source(told) == (12, 20)


def test_a_batch_from_the_end_has_no_rows() -> None:
    told = progress(0, offsets(-1, -1), offsets(1000, 7), offsets(1000, 9))["sources"][0]
    assert read_source(told) == (0, 2)


def test_the_first_batch_counts_from_nothing_and_files_by_their_rows() -> None:
    assert read_source({"startOffset": None, "endOffset": offsets(4), "latestOffset": None}) == (4, None)
    assert read_source({"endOffset": {"logOffset": 3}, "numInputRows": 9}) == (9, None)
    assert read_source({"endOffset": '{"orders": {"0": 3}}', "startOffset": '{"orders": {"0": 1}}'}) == (2, None)


def test_progress_that_comes_twice_counts_once() -> None:
    watch = Watch(SPEC, Status("p", State.STARTING), Counters())
    for told in (progress(0, offsets(0), offsets(10), offsets(12)), progress(1, offsets(10), offsets(12), offsets(12))):
        watch.progress(told)
        watch.progress(told)
    status = watch.now(State.RUNNING)
    assert (status.rows, status.batch, status.lag, status.batch_s, status.query) == (12, 1, 0, 1.5, "q")


def test_an_idle_query_tells_its_lag() -> None:
    watch = Watch(SPEC, Status("p", State.STARTING), Counters())
    events = [
        progress(0, offsets(0), offsets(10), offsets(10)),
        progress(1, offsets(10), offsets(10), offsets(25), rows=0, second=1),
        progress(1, offsets(10), offsets(25), offsets(25), second=5),
    ]
    seen = []
    for count in range(1, 4):
        for event in events[:count]:  # Spark tells the last ones again and again
            watch.progress(event)
        status = watch.now(State.RUNNING)
        seen.append((status.rows, status.lag, status.batch))
    assert seen == [(10, 0, 0), (10, 15, 0), (25, 0, 1)]


def test_lag_is_unknown_while_brokers_are_away() -> None:
    watch = Watch(SPEC, Status("p", State.STARTING), Counters())
    watch.progress(progress(0, offsets(0), offsets(10), offsets(10)))
    assert watch.now(State.RUNNING).lag == 0
    watch.missed("orders", "source orders: no broker answers")
    for event in (None, progress(1, offsets(10), offsets(10), offsets(10), rows=0)):
        if event is not None:
            watch.progress(event)  # what Spark had heard before does not make it known
        status = watch.now(State.RUNNING)
        assert (status.state, status.reason) == (State.WAITING, "source orders: no broker answers")
        assert (status.lag, status.sources["orders"].lag) == (None, None)
        assert status.rows == 10
    watch.heard("orders", {("orders", "0"): 14})
    status = watch.now(State.RUNNING)
    assert (status.state, status.reason, status.lag) == (State.RUNNING, "", 4)


def test_patience_begins_when_brokers_go_away() -> None:
    watch = Watch(SPEC, Status("p", State.STARTING), Counters())
    watch.missed("orders", "gone")
    began = watch.missed_s
    assert began > 0
    watch.missed("orders", "gone still")
    assert watch.missed_s == began
    watch.heard("orders", {})
    assert watch.missed_s == began  # the query may fail of it yet
    watch.missed("orders", "gone again")
    assert watch.missed_s > began


def test_lag_before_the_first_batch_is_from_the_beginning() -> None:
    watch = Watch(SPEC, Status("p", State.STARTING), Counters())
    assert watch.now(State.RUNNING).lag is None
    watch.began = {"orders": {"orders": {"0": 4}}}
    watch.heard("orders", {("orders", "0"): 14})
    assert watch.now(State.RUNNING).lag == 10


def test_a_sum_with_an_unknown_lag_is_unknown() -> None:
    two = replace(SPEC, sources=(*SPEC.sources, Source("refunds", "topic", {"topic": ("refunds",)})))
    watch = Watch(two, Status("p", State.STARTING), Counters())
    watch.began = {name: {name: {"0": 0}} for name in ("orders", "refunds")}
    watch.heard("orders", {("orders", "0"): 3})
    assert watch.now(State.RUNNING).lag is None
    watch.heard("refunds", {("refunds", "0"): 2})
    assert watch.now(State.RUNNING).lag == 5


def test_rows_of_steps_are_known_or_not_told() -> None:
    steps = (Step("paid", ("orders",), "SELECT"), Step("named", ("paid",), "SELECT"))
    spec = replace(SPEC, steps=steps, sinks=(SinkSpec("lake", "delta", "named", {}),))
    watch = Watch(spec, Status("p", State.STARTING), Counters(sinks=Counter(lake=3), rejected=Counter(lake=1)))
    watch.progress(progress(0, offsets(0), offsets(10), offsets(10)))
    rows = {name: each.rows for name, each in watch.now(State.RUNNING).steps.items()}
    assert rows == {"orders": 10, "shops": None, "paid": None, "named": 4}


def test_trouble_is_waiting_until_it_is_over() -> None:
    watch = Watch(SPEC, Status("p", State.STARTING), Counters(sinks=Counter(lake=3), dead_letters=1))
    watch.trouble("lake", "no room")
    status = watch.now(State.RUNNING)
    assert (status.state, status.reason, status.sinks["lake"].trouble) == (State.WAITING, "no room", "no room")
    assert (status.sinks["lake"].rows, status.dead_letters) == (3, 1)
    watch.trouble("lake", "")
    assert watch.now(State.RUNNING).state is State.RUNNING


def test_a_rate_is_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.add(0, 0.0) == 0
    assert rate.add(100, 10.0) == 10
    for second in range(11, 60):
        last = rate.add(100, float(second))
    assert last == 0
