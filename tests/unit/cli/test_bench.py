"""`penstock bench`: its arithmetic, its eye for lost and doubled records, and that it leaves nothing behind."""

import io
import json
import operator
import os
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.bench import runs as bench
from penstock.cli.bench.figures import (
    HEAD,
    MARK,
    Audit,
    Check,
    Work,
    percentile,
    stream_of,
    summarise_ms,
    summarise_work,
)
from penstock.cli.bench.load import LatencyLoad, Measured, Values, consume, measure_latency, produce
from penstock.cli.bench.processes import Parent, run_processes
from penstock.cli.bench.topic import Target
from penstock.cli.connection import Server
from penstock.cli.failure import CommandError
from penstock.testing import EmbeddedBroker

from .conftest import Run

DEADLINE_S = 60
RUN = b"\1\2\3\4"
MINE = stream_of(RUN, 0)
SMALL = ("--records", "60", "--size", "64", "--partitions", "3")


def admin(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def topics(broker: EmbeddedBroker) -> set[str]:
    """Without the broker's own, which come with the first group."""
    return {name for name in admin(broker).list_topics(timeout=DEADLINE_S).topics if not name.startswith("__")}


def make_topic(broker: EmbeddedBroker, name: str, partitions: int = 3) -> str:
    client = admin(broker)  # its answers die with it
    client.create_topics([NewTopic(name, partitions, 1)])[name].result(DEADLINE_S)
    return name


class TestFigures:
    def test_percentiles_are_values_that_were_measured(self) -> None:
        thousand = [float(number) for number in range(1, 1001)]
        assert [percentile(thousand, rank) for rank in (500, 950, 990, 999, 1000)] == [500, 950, 990, 999, 1000]
        assert percentile([7.0], 500) == percentile([7.0], 999) == 7.0
        assert percentile([1.0, 2.0, 3.0], 500) == 2.0
        assert percentile(range(1, 41_001), 999) == 40_959

    def test_latencies_in_milliseconds_whatever_their_order(self) -> None:
        found = summarise_ms([0.004, 0.001, 0.002, 0.003])
        assert found == {"samples": 4, "p50": 2.0, "p95": 4.0, "p99": 4.0, "p99_9": 4.0, "max": 4.0}
        assert summarise_ms([]) is None

    def test_rates_span_all_processes(self) -> None:
        early, late = Work(1000, 1_000_000, 10.0, 12.0, 1.5), Work(3000, 3_000_000, 11.0, 14.0, 2.5)
        assert summarise_work([early, late]) == {
            "processes": 2,
            "records": 4000,
            "bytes": 4_000_000,
            "seconds": 4.0,
            "records_per_s": 1000.0,
            "mb_per_s": 1.0,
            "client_cpu_s": 4.0,
            "client_cpu_percent": 100.0,
        }


class TestAudit:
    @pytest.mark.parametrize(
        ("places", "expected"),
        [
            ([0, 1, 2, 3], Check()),
            ([0, 3], Check(lost=2)),
            ([1, 2, 3], Check(lost=1)),
            ([0, 1], Check(lost=2)),
            ([], Check(lost=4)),
            ([0, 1, 1, 2, 3], Check(doubled=1)),
            ([0, 1, 2, 3, 0, 1], Check(doubled=2)),
            ([0, 2, 1, 3], Check(out_of_order=1)),
            ([0, 3, 1, 2, 2], Check(out_of_order=2, doubled=1)),
            ([3, 1], Check(lost=2, out_of_order=1)),
        ],
    )
    def test_places(self, places: list[int], expected: Check) -> None:
        audit = Audit(MARK + RUN)
        for place in places:
            audit.stray(MINE, place)
        assert audit.finish({MINE: 4}) == expected

    def test_streams_apart(self) -> None:
        audit = Audit(MARK + RUN)
        for place in range(3):
            audit.stray(MINE, place)
            audit.stray(stream_of(RUN, 1), place)
        audit.stray(stream_of(b"else", 0), 9)
        audit.stray(b"whatever", 9)
        assert audit.finish({MINE: 3, stream_of(RUN, 1): 3}) == Check(foreign=2)

    def test_a_log_cut_at_its_start_has_lost_nothing(self) -> None:
        audit = Audit(MARK, whole=False)
        for place in (7, 8, 10):
            audit.stray(MINE, place)
        assert audit.finish() == Check(lost=1)

    def test_problems_are_named_and_foreign_records_are_none(self) -> None:
        assert Check(foreign=3).problems() == []
        assert Check(1, 2000, 3).problems() == ["1 record lost", "2,000 records doubled", "3 records out of order"]


class TestValues:
    def target(self, **changes: Any) -> Target:
        return replace(Target(Server("", ""), "t", (0, 1, 2), 1024, 0, RUN), **changes)

    def test_places_count_per_partition(self) -> None:
        values = Values(self.target(), 5)
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for _ in range(7):
            partition, records = values.chunk(4)
            for record in records:
                stream, place = HEAD.unpack_from(record["value"])
                assert stream == stream_of(RUN, 5)
                assert len(record["value"]) == 1024
                seen[partition].append(place)
        assert {at: len(places) for at, places in seen.items()} == values.sent == {0: 12, 1: 8, 2: 8}
        assert all(places == list(range(len(places))) for places in seen.values())

    def test_every_key_has_one_partition_and_its_share(self) -> None:
        values = Values(self.target(keys=10), 0)
        chunks = [values.chunk(1) for _ in range(50)]
        pairs = [(partition, record["key"]) for partition, records in chunks for record in records]
        assert len(set(pairs)) == 10
        assert set(Counter(key for _partition, key in pairs).values()) == {5}

    @pytest.mark.parametrize("size", [16, 17, 3 << 20])
    def test_any_size(self, size: int) -> None:
        values = Values(self.target(size_bytes=size), 0)
        assert {len(record["value"]) for _ in range(4) for record in values.chunk(2)[1]} == {size}

    def test_compressors_find_half(self) -> None:
        values = Values(self.target(), 0)
        batch = b"".join(record["value"] for record in values.chunk(500)[1])
        assert 0.4 < len(zlib.compress(batch)) / len(batch) < 0.7


LATENCY = {"samples", "p50", "p95", "p99", "p99_9", "max"}
WORK = {
    "processes",
    "records",
    "bytes",
    "seconds",
    "records_per_s",
    "mb_per_s",
    "client_cpu_s",
    "client_cpu_percent",
}
CHECK = {"lost": 0, "doubled": 0, "out_of_order": 0, "foreign": 0}


def test_a_whole_run(run: Run, broker: EmbeddedBroker) -> None:
    result = run("bench", *SMALL, "--rate", "500", "-o", "json")
    assert (result.code, result.err) == (0, "")
    found = json.loads(result.out)
    assert set(found) == {
        *("server", "topic", "what", "partitions", "record_bytes", "acks", "compression", "keys"),
        *("produce", "consume", "latency", "ok", "problems"),
    }
    assert (found["ok"], found["problems"], found["partitions"]) == (True, [], 3)
    produced, consumed, measured = found["produce"], found["consume"], found["latency"]
    assert set(produced) == WORK | {"warm_up_records", "ack_latency_ms", "errors"}
    assert (produced["records"], produced["bytes"], produced["warm_up_records"]) == (60, 60 * 64, 3)
    assert (consumed["records"], consumed["complete"], consumed["check"]) == (63, True, CHECK)
    assert set(consumed) == WORK | {"complete", "check"}
    assert (measured["records"], measured["errors"], measured["check"]) == (60, 0, CHECK)
    assert set(measured) == WORK | {
        *("warm_up_records", "target_records_per_s", "behind_schedule_ms"),
        *("ack_latency_ms", "end_to_end_latency_ms", "errors", "check"),
    }
    for latency in (produced["ack_latency_ms"], measured["ack_latency_ms"], measured["end_to_end_latency_ms"]):
        assert set(latency) == LATENCY
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["p99_9"] <= latency["max"]
    assert measured["ack_latency_ms"]["samples"] == measured["end_to_end_latency_ms"]["samples"] == 60
    assert found["topic"].startswith("penstock-bench-")
    assert found["topic"] not in topics(broker)


@pytest.mark.parametrize(
    ("records", "seconds", "alone", "expected"),
    [
        (None, None, True, 500),
        (None, 2.0, False, 200),
        (50, None, False, 50),
        (50, 2.0, True, 50),
        (900, 2.0, True, 200),
        (900, None, True, 900),
        (900, None, False, 500),
    ],
)
def test_how_long_latency_is_measured(records: int | None, seconds: float | None, alone: bool, expected: int) -> None:
    plan = bench.Plan(Server("", ""), records, seconds, 1024, "all", "none", 0, 1, 1, 100.0, 1, None)
    assert plan.latency_records(alone=alone) == expected


def test_processes_keys_and_compression(run: Run) -> None:
    words = ("--keys", "7", "--producers", "3", "--consumers", "2", "--compression", "lz4", "--acks", "1")
    result = run("bench", "consume", *SMALL, *words)
    assert (result.code, result.err) == (0, "")
    heading, row, verdict = result.out.splitlines()
    assert heading.split()[:3] == ["RECORDS", "RECORDS/S", "MB/S"]
    assert row.split()[:2] == ["consume", "69"]
    assert verdict == "checked: 69 records came back, each once and in order"


def test_a_schedule_that_cannot_be_kept_is_told(run: Run) -> None:
    result = run("bench", "latency", "--records", "2000", "--size", "64", "--rate", "10000000")
    assert result.code == 0
    assert result.out.splitlines()[-1].startswith("the schedule of 10,000,000 records/s was not kept: ")


class StallingParent(Parent):
    """Holds the sender up for a moment, as a garbage collection or a full queue would."""

    def __init__(self, at: int = -1, stall_s: float = 0.0) -> None:
        self._at, self._stall_s = at, stall_s

    def wait_go(self) -> None:
        pass

    def tell(self, done: int, now_s: float) -> None:
        if done == self._at:
            time.sleep(self._stall_s)


def measure(broker: EmbeddedBroker, topic: str, parent: Parent, *, rate: float, records: int, **fetch: int) -> Measured:
    """A latency run inside this process, on a topic with one partition."""
    target = Target(Server(broker.bootstrap, "a test"), make_topic(broker, topic, 1), (0,), 64, 0)
    producer = {"linger.ms": 0}
    consumer = {"auto.offset.reset": "earliest"} | {name.replace("_", "."): value for name, value in fetch.items()}
    before_s = sys.getswitchinterval()
    try:
        return measure_latency(LatencyLoad(target, producer, consumer, 0, rate, records, {0: 0}), parent)
    finally:
        sys.setswitchinterval(before_s)


def test_a_stall_counts_for_every_record_it_held_up(broker: EmbeddedBroker, topic: str) -> None:
    stalled = StallingParent(20, stall_s=0.2)
    measured = measure(broker, topic, stalled, rate=1000, records=300)
    # Records 21 to 120 were due in the first half of the stall.
    for latencies in (measured.ack_s, measured.end_to_end_s):
        assert len(latencies) == 300
        assert sum(latency > 0.1 for latency in latencies) >= 95


def test_a_record_is_waited_for_until_it_is_read(broker: EmbeddedBroker, topic: str) -> None:
    held_back = {"fetch_min_bytes": 100_000, "fetch_wait_max_ms": 300}
    measured = measure(broker, topic, StallingParent(), rate=1_000_000, records=200, **held_back)
    assert (len(measured.ack_s), len(measured.end_to_end_s), measured.check) == (200, 200, Check())


def test_seconds_end_a_run(run: Run) -> None:
    result = run("bench", "produce", "--seconds", "0.1", "--size", "4096", "--partitions", "1", "-o", "json")
    produced = json.loads(result.out)["produce"]
    assert result.code == 0
    assert produced["records"] > 0
    assert produced["seconds"] >= 0.1


def test_a_kept_topic_and_an_existing_one_stay(run: Run, broker: EmbeddedBroker, topic: str) -> None:
    kept = json.loads(run("bench", "produce", *SMALL, "--keep", "-o", "json").out)["topic"]
    assert run("bench", "consume", "--topic", kept).out.splitlines()[-1].startswith("checked: 63 records")
    make_topic(broker, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"somebody else's", partition=0)
    producer.produce(topic, b"", partition=1)
    producer.produce(topic, None, partition=1)
    assert producer.flush(DEADLINE_S) == 0
    assert run("bench", "all", "--topic", topic, "--records", "30", "--rate", "1000").code == 0
    result = run("bench", "consume", "--topic", topic, "--records", "1000", "-o", "json")
    assert result.code == 0
    consumed = json.loads(result.out)["consume"]
    assert (consumed["records"], consumed["check"]) == (69, CHECK | {"foreign": 3})
    part = json.loads(run("bench", "consume", "--topic", topic, "--records", "10", "-o", "json").out)["consume"]
    assert (part["records"], part["complete"], part["check"]["lost"]) == (10, False, 0)
    assert {kept, topic} <= topics(broker)


Meddle = Callable[[Target], None]


@pytest.fixture
def before_reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[Meddle], None]:
    """Something happens to the topic between writing and reading."""

    def arrange(meddle: Meddle) -> None:
        def meddled(job: Any, loads: Any, watch: Any) -> list[Any]:
            if job is consume:
                meddle(loads[0].target)
            return run_processes(job, loads, watch)

        monkeypatch.setattr(bench, "run_processes", meddled)

    return arrange


def copy_record(broker: EmbeddedBroker, topic: str, partition: int, offset: int) -> None:
    """Append a record once more, as a producer does that repeats itself."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "copy", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, offset)])
    message = consumer.poll(DEADLINE_S)
    consumer.close()
    assert message is not None and message.error() is None
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, message.value(), partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def test_lost_records_are_an_error(run: Run, broker: EmbeddedBroker, before_reading: Callable[[Meddle], None]) -> None:
    def lose(target: Target) -> None:
        client, cut = admin(broker), TopicPartition(target.topic, 1, 4)
        client.delete_records([cut])[cut].result(DEADLINE_S)

    before_reading(lose)
    result = run("bench", "consume", *SMALL, "-o", "json")
    assert result.code == 1
    found = json.loads(result.out)
    assert found["consume"]["check"] == CHECK | {"lost": 4}
    assert (found["ok"], found["problems"]) == (False, ["4 records lost"])
    assert result.err == f"penstock: topic {found['topic']}: 4 records lost\n"
    assert found["topic"] not in topics(broker)


def test_a_doubled_record_is_an_error(run: Run, broker: EmbeddedBroker, topic: str) -> None:
    make_topic(broker, topic)
    assert run("bench", "produce", "--topic", topic, "--records", "60", "--size", "64").code == 0
    copy_record(broker, topic, 2, 5)
    result = run("bench", "consume", "--topic", topic)
    assert result.code == 1
    assert result.err == f"penstock: topic {topic}: 1 record doubled\n"
    assert "checked" not in result.out


def test_a_record_too_many_is_an_error(run: Run, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def repeating(job: Any, loads: Any, watch: Any) -> list[Any]:
        results = run_processes(job, loads, watch)
        if job is produce:
            copy_record(broker, loads[0].target.topic, 0, 0)
        return results

    monkeypatch.setattr(bench, "run_processes", repeating)
    result = run("bench", "consume", *SMALL)
    assert result.code == 1
    assert "1 record stored beyond those sent; 1 record doubled" in result.err


def test_a_record_that_was_never_stored_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(job: Any, loads: Any, watch: Any) -> list[Any]:
        results = run_processes(job, loads, watch)
        if job is produce:
            results[0].sent[0] += 1
        return results

    monkeypatch.setattr(bench, "run_processes", forgetful)
    monkeypatch.setattr("penstock.cli.bench.topic._SETTLE_S", 0.0)
    result = run("bench", "consume", *SMALL)
    assert result.code == 1
    assert "1 of 64 records not stored; 1 record lost" in result.err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--topic", "no-such-topic"), 1, "no topic 'no-such-topic'"),
        (("--topic", "any", "--partitions", "3"), 2, "any stays as it is"),
        (("--size", "15"), 2, "--size"),
        (("--topic-config", "retention"), 2, "'retention' is no KEY=VALUE"),
        (("--topic-config", "no.such=1"), 1, "no.such"),
        (("--partitions", "2", "--consumers", "3"), 2, "a partition has one reader"),
        (("--records", "1", "--size", "20000000"), 1, "a record of 20,000,000 bytes is refused"),
        (("latency", "--records", "1", "--size", "20000000"), 1, "a record of 20,000,000 bytes is refused"),
        (("-X", "queue.buffering.max.messages=5", "--records", "100"), 1, "Queue full"),
        (("--server", "127.0.0.1:1"), 3, "no server at 127.0.0.1:1"),
        (("-X", "no.such=1"), 2, "no.such"),
        (("-X", "queue.buffering.max.kbytes=never"), 2, "queue.buffering.max.kbytes"),
    ],
)
def test_mistakes(run: Run, broker: EmbeddedBroker, words: tuple[str, ...], code: int, text: str) -> None:
    result = run("bench", *words)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("penstock: ")
    assert text in result.err
    assert len(result.err.splitlines()) == 1
    assert "no-such-topic" not in topics(broker)


def test_an_empty_topic_has_nothing_to_read(run: Run, broker: EmbeddedBroker, topic: str) -> None:
    result = run("bench", "consume", "--topic", make_topic(broker, topic))
    assert (result.code, result.err) == (1, f"penstock: topic {topic} has no records to read\n")


def test_a_process_that_breaks_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="process 1 of 1 ended without a result"):
        run_processes(operator.getitem, [{}], lambda done: None)
    assert "KeyError" in capfd.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_run_and_the_topic(broker: EmbeddedBroker, number: signal.Signals, code: int) -> None:
    before = topics(broker)
    words = ["bench", "latency", "--rate", "100", "--seconds", "600", "--server", broker.bootstrap]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        wait_for(lambda: any(has_records(broker, name) for name in topics(broker) - before))
        if number is signal.SIGTERM:
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)  # as a terminal does: the run's own processes get it too
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (code, "", "")
    assert topics(broker) <= before


def has_records(broker: EmbeddedBroker, topic: str) -> bool:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "look", "enable.auto.commit": False})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)[1] > 3
    finally:
        consumer.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the run did not begin in time"


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    for screen, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", screen)
        with bench._progress("produce", 2000, None) as watch:
            watch(500)
            watch(1500)
        assert ("1,500/2,000 records" in screen.getvalue()) is shown
        assert bool(screen.getvalue()) is shown
