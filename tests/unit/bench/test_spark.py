"""What a run of the Spark benchmark consists of, and what it counts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.spark import complete, parse, run_rounds, sealed_percent
from bench.spark_clock import Seen, Timing, Watch, is_below, parse_stat, processes
from bench.spark_queries import GROUPS, LOADS, READS, Figures, Group, Workbench, WrongRows, expect, put, turned


def test_everything_by_default_is_complete() -> None:
    options = parse([])
    assert options.only == list(GROUPS)
    assert complete(options)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rounds", "2"],
        ["--scale", "0.5"],
        ["--scale", "2.0"],
        ["--only", "read,write"],
        ["--output", "elsewhere.json"],
    ],
)
def test_anything_less_is_not(arguments: list[str]) -> None:
    assert not complete(parse(arguments))


@pytest.mark.parametrize("arguments", [["--only", "read,speed"], ["--rounds", "0"], ["--scale", "-1.0"]])
def test_nonsense_is_refused_by_name(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    said = capsys.readouterr().err.splitlines()[-1]
    assert arguments[1].split(",")[-1] in said


def test_every_way_begins_a_round_once() -> None:
    orders = [[name for name, _ in turned(READS, number)] for number in range(len(READS))]
    assert {order[0] for order in orders} == set(READS)
    assert all(set(order) == set(READS) for order in orders)


def test_small_runs_have_a_row_for_each_partition() -> None:
    tiny = workbench(1e-9)
    assert [load.records for load in tiny.loads()] == [4, 4]
    assert workbench(1.0).loads() == list(LOADS)


def workbench(scale: float) -> Workbench:
    return Workbench(None, None, Path(), scale)  # type: ignore[arg-type]  # nothing is asked of broker and session


def test_rounds_come_after_preparing_and_one_run_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def group(name: str, every: int = 1) -> Group:
        def measure(bench: Workbench, number: int) -> Figures:
            done.append(f"{name} {number}")
            return {"penstock": {name: float(len(done))}}

        return Group(measure, lambda bench: done.append(f"prepare {name}"), every)

    monkeypatch.setattr("bench.spark.GROUPS", {"a": group("a"), "b": group("b", every=3), "c": group("c")})
    found = run_rounds(workbench(1.0), ["b", "a"], 2)
    assert done == ["prepare a", "a 0", "prepare b", "b 0", "a 0", "b 0", "a 1"]
    assert found == [{"penstock": {"a": 5.0, "b": 6.0}}, {"penstock": {"a": 7.0}}]


def test_figures_of_a_query() -> None:
    figures: Figures = {}
    put(figures, "penstock", "r", 1_000_000, Timing(seconds=2.0, spark_cpu_s=3.0, broker_cpu_s=0.5))
    assert figures == {"penstock": {"r": 500.0, "r-cpu": 3.0, "r-broker": 0.5}}


def test_other_rows_end_the_run() -> None:
    expect("rows", (1, 2), (1, 2))
    with pytest.raises(WrongRows, match=r"rows by x: \(1, 2\), but it should be \(1, 3\)"):
        expect("rows by x", (1, 2), (1, 3))


def test_sealed_segments_have_an_index(tmp_path: Path) -> None:
    for partition, name, size, sealed in (("0", "00", 300, True), ("0", "30", 100, False), ("1", "00", 400, True)):
        directory = tmp_path / "logs" / "orders" / partition
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.log").write_bytes(bytes(size))
        if sealed:
            (directory / f"{name}.index").touch()
    assert sealed_percent(tmp_path, "orders") == 87.5
    assert sealed_percent(tmp_path, "bills") == 0.0


_BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
_AND_WAIT = f"{_BURN}print(flush=True)\ninput()"


def burn_and_wait() -> "subprocess.Popen[bytes]":
    """A child that has spent its time and waits."""
    child = subprocess.Popen([sys.executable, "-c", _AND_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_watch_sees_real_processes() -> None:
    with Watch(os.getpid()) as watch, burn_and_wait() as child:
        watch.sample()
        child.kill()
    assert watch.cpu_s() >= 0.25


def test_a_process_left_out_does_not_count() -> None:
    with burn_and_wait() as child:
        found = {each.pid: each for each in processes()}
        child.kill()
    assert is_below(child.pid, os.getpid(), None, found)
    assert not is_below(child.pid, os.getpid(), child.pid, found)
    assert not is_below(os.getppid(), os.getpid(), None, found)


def test_time_of_the_ended_and_of_the_orphaned_stays() -> None:
    looks = [
        [Seen(1, 0, 0, 50.0), Seen(9, 5, 1, 10.0)],
        [Seen(1, 0, 0, 51.0), Seen(9, 5, 1, 12.0), Seen(10, 6, 9, 3.0), Seen(20, 6, 9, 2.0)],
        # 9 has ended, 10 has another parent, the number 20 another process
        [Seen(1, 0, 0, 52.0), Seen(10, 6, 0, 4.0), Seen(20, 8, 0, 70.0), Seen(30, 8, 0, 99.0)],
    ]
    rest = iter(looks)
    watch = Watch(1, look=lambda: next(rest, looks[-1]))
    with watch:
        watch.sample()
    assert watch.cpu_s() == 2.0 + 2.0 + 4.0 + 2.0


def test_stat_of_a_program_with_an_odd_name() -> None:
    text = b"42 (a) b (c) S 7 " + b" ".join(b"%d" % number for number in range(5, 53))
    assert parse_stat(text) == Seen(42, started=22, parent=7, cpu_s=(14 + 15) / os.sysconf("SC_CLK_TCK"))
