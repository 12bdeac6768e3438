"""`penstock pipeline start, list, status, stop, logs, reset`: what they say and how they end. Runs need no Spark."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import pytest
import yaml

from penstock.cli import pipeline_driver, pipeline_start
from penstock.cli.failure import report
from penstock.cli.pipeline_status import format_span
from penstock.pipelines.driver.presence import Presence
from penstock.pipelines.errors import Finding, SpecError
from penstock.pipelines.home import (
    Home,
    Identity,
    SinkStatus,
    SourceStatus,
    State,
    Status,
    StepStatus,
    Wanted,
    Wish,
)
from penstock.pipelines.home.status import now_ms

FAKE = Path(__file__).parent.parent / "pipelines" / "driver" / "fake_driver.py"
DEADLINE_S = 60

group = click.Group("pipeline", commands=list(pipeline_driver.COMMANDS))


class Answer(NamedTuple):
    code: int
    out: str
    err: str


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Site:
    """A home, pipelines' files, and the commands."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.home = Home(path / "home")
        self.presence = Presence(self.home)
        self._capsys = capsys

    def call(self, *words: str) -> Answer:
        self._capsys.readouterr()
        try:
            with group.make_context("pipeline", list(words)) as context:
                code = group.invoke(context) or 0
        except click.exceptions.Exit as ended:
            code = ended.exit_code
        except Exception as error:  # noqa: BLE001 - as the command line does
            code = report(error)
        return Answer(code, *self._capsys.readouterr())

    def ask(self, *words: str) -> Any:
        answer = self.call(*words, "-o", "json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    def file(self, name: str, behaviour: str = "runs") -> str:
        path = self.path / f"{name}.yaml"
        path.write_text(behaviour)
        return str(path)

    def status(self, name: str) -> Status:
        found = self.home.pipeline(name).load_status()
        assert found is not None
        return found

    def end(self) -> None:
        for name in self.home.names():
            for word in ("go", "done"):
                (self.home.path / name / word).touch()
        holder = self.presence.holder()
        if holder is not None:
            os.kill(holder.pid, signal.SIGTERM)
            wait(lambda: self.presence.holder() is None)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    def read_spec(file: Path) -> SimpleNamespace:
        if not file.exists():
            raise SpecError([Finding(None, f"{file}: no such file")])
        if file.read_text() == "mistakes":
            raise SpecError([Finding(None, f"{file}:3: no such step"), Finding(None, f"{file}:9: no such sink")])
        return SimpleNamespace(name=file.stem)

    monkeypatch.setenv("PENSTOCK_PIPELINES", str(tmp_path / "home"))
    monkeypatch.setattr("penstock.pipelines.driver.presence.PROGRAM", [str(FAKE)])
    monkeypatch.setattr("penstock.cli.pipeline_home.read_spec", read_spec)
    monkeypatch.setattr(pipeline_start, "read_spec", read_spec)
    made = Site(tmp_path, capsys)
    yield made
    made.end()


@contextmanager
def foreground(site: Site, name: str) -> "Iterator[subprocess.Popen[str]]":
    """Another process that runs a pipeline."""
    code = (
        "import os, sys; from pathlib import Path; from penstock.pipelines.home import *\n"
        "from penstock.pipelines.home.status import now_ms\n"
        "directory = Home(Path(sys.argv[1])).pipeline(sys.argv[2])\n"
        "with directory.locked('penstock pipeline run'):\n"
        "    directory.save_status(Status(directory.name, State.RUNNING, pid=os.getpid(), updated_ms=now_ms()))\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(site.home.path), name]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_start_look_and_stop(site: Site) -> None:
    file = site.file("revenue")
    started = site.call("start", file)
    assert (started.code, started.err) == (0, "")
    driver = site.presence.find()
    assert driver is not None
    assert started.out.splitlines() == [
        "revenue is running",
        f"driver: process {driver.pid} on local[*], http://{driver.http}/health and /metrics",
        "see also: penstock pipeline status revenue --watch",
    ]
    (row,) = site.ask("list")
    assert (row["pipeline"], row["state"], row["wanted"]) == ("revenue", "running", "running")
    assert site.ask("status", "revenue")["pid"] == driver.pid
    assert site.ask("status", file)["pipeline"] == "revenue"  # the file will do for the name
    stopped = site.call("stop", "revenue")
    assert stopped == Answer(0, "revenue: stopped\n", "")
    assert site.status("revenue").state is State.STOPPED
    assert site.presence.find() == driver
    assert site.call("stop", "revenue").out == "revenue: was stopped\n"
    assert site.call("stop", "--driver").out == "the driver: ended\n"
    wait(lambda: site.presence.holder() is None)  # its record goes first, its lock with the process
    assert site.call("stop", "--driver").out == "the driver: is not up\n"


def test_two_share_a_driver(site: Site) -> None:
    first = site.ask("start", site.file("a"))
    second = site.ask("start", site.file("b"))
    assert first["driver"] == second["driver"]
    assert (second["pipeline"], second["state"]) == ("b", "running")
    done = site.ask("stop", "--all", "--driver")
    assert done == [
        {"name": "a", "result": "stopped"},
        {"name": "b", "result": "stopped"},
        {"name": "the driver", "result": "ended"},
    ]
    assert site.call("stop", "--all").err == "no pipelines run\n"


def test_start_of_what_fails(site: Site) -> None:
    answer = site.call("start", site.file("revenue", "refuse"))
    assert answer == Answer(
        1,
        "",
        "penstock: pipeline revenue failed: sink lake has no column at; see also: penstock pipeline logs revenue\n",
    )
    assert "error    sink lake has no column at" in site.call("logs", "revenue").out
    site.file("revenue")
    assert site.call("start", str(site.path / "revenue.yaml")).code == 0  # said anew, it is tried anew


def test_start_of_a_file_that_is_wrong(site: Site) -> None:
    assert site.call("start", "nothing.yaml").err == "penstock: nothing.yaml: no such file\n"
    file = site.file("revenue", "mistakes")
    answer = site.call("start", file)
    assert (answer.code, answer.err.splitlines()) == (
        2,
        [
            f"{file}:3: no such step",
            f"{file}:9: no such sink",
            "penstock: 2 mistakes in the pipeline's file, see above",
        ],
    )
    assert not site.home.path.exists()


def test_start_again(site: Site) -> None:
    file = site.file("revenue")
    site.call("start", file)
    assert site.call("start", file).out.startswith("revenue runs already; to take up a changed file, stop it first\n")
    (site.path / "elsewhere").mkdir()
    other = site.path / "elsewhere" / "revenue.yaml"
    other.write_text("runs")
    answer = site.call("start", str(other))
    assert answer.code == 1
    assert f"revenue runs from {file} already" in answer.err


def test_start_once_and_without_waiting(site: Site) -> None:
    file = site.file("revenue")
    assert site.call("start", file, "--once").code == 0
    wait(lambda: site.status("revenue").state is State.FINISHED)
    answer = site.call("start", file, "--no-wait")
    assert answer.out.startswith("revenue is asked for\n")
    wait(lambda: site.status("revenue").state is State.RUNNING)


def test_start_that_takes_too_long(site: Site) -> None:
    answer = site.call("start", site.file("revenue", "slow"), "--timeout", "0.5")
    assert answer.code == 1
    assert "pipeline revenue does not run after 0.5 s; it is still being tried" in answer.err
    wait(lambda: site.ask("list")[0]["state"] == "starting")


def test_a_driver_on_another_master(site: Site) -> None:
    file = site.file("revenue")
    site.call("start", file)
    answer = site.call("start", file, "--master", "spark://x:7077")
    assert answer.code == 2
    assert "the driver is up on local[*] already; leave it out, or end the driver first" in answer.err
    answer = site.call("start", file, "--http", "127.0.0.1:1")
    assert answer.code == 2
    assert "--http 127.0.0.1:1: the driver is up at 127.0.0.1:" in answer.err
    assert site.call("start", file, "--master", "local[*]", "--http", "127.0.0.1:0").code == 0


def test_a_driver_that_does_not_come_up(site: Site) -> None:
    answer = site.call("start", site.file("revenue"), "--master", "nowhere")
    assert answer.code == 1
    assert "Spark at 'nowhere' does not start" in answer.err
    answer = site.call("start", site.file("revenue"), "--http", "127.0.0.1:99999")
    assert answer.code == 2
    assert "the driver ended with code 2" in answer.err
    assert "is no HOST:PORT" in answer.err
    assert "is no HOST:PORT" in site.call("logs", "--driver").out


def test_a_pipeline_that_died(site: Site) -> None:
    site.call("start", site.file("revenue"))
    driver = site.presence.holder()
    assert driver is not None
    os.kill(driver.pid, signal.SIGKILL)
    wait(lambda: site.presence.holder() is None)
    told = site.call("status", "revenue").out
    assert "state         died\n" in told
    assert f"process {driver.pid} ended while the pipeline was running" in told
    assert f"'penstock pipeline start {site.path}/revenue.yaml' goes on from there" in told
    assert site.ask("list")[0]["state"] == "died"
    assert site.call("start", str(site.path / "revenue.yaml")).code == 0
    assert site.ask("status", "revenue")["state"] == "running"


def test_a_pipeline_that_is_begun_has_not_died(site: Site) -> None:
    """Between the driver's word and the run's lock nobody holds it."""
    starting = Status("revenue", State.STARTING, pid=os.getpid())
    site.home.pipeline("revenue").save_status(starting)
    assert site.ask("status", "revenue")["state"] == "died"
    with site.presence.held():
        assert site.ask("status", "revenue")["state"] == "starting"
        site.home.pipeline("revenue").save_status(replace(starting, pid=1))
        assert site.ask("status", "revenue")["state"] == "died"


def test_a_pipeline_that_ends_while_it_is_looked_at(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = site.home.pipeline("revenue")
    directory.save_status(Status("revenue", State.RUNNING))

    def holder(_: object) -> None:
        directory.save_status(Status("revenue", State.STOPPED))

    monkeypatch.setattr("penstock.pipelines.home.directory.PipelineDirectory.holder", holder)
    assert site.ask("status", "revenue")["state"] == "stopped"


def test_stop_of_a_pipeline_that_died(site: Site) -> None:
    directory = site.home.pipeline("revenue")
    directory.save_status(Status("revenue", State.RUNNING, pid=os.getpid(), batches=7))
    directory.save_wanted(Wanted("/a.yaml", Wish.RUNNING))
    assert site.call("stop", "revenue") == Answer(0, "revenue: its process had died; stopped\n", "")
    left = site.status("revenue")
    assert (left.state, left.batches) == (State.STOPPED, 7)
    wanted = directory.load_wanted()
    assert wanted is not None and wanted.state is Wish.STOPPED


def test_a_pipeline_somebody_runs_in_a_terminal(site: Site) -> None:
    with foreground(site, "revenue") as process:
        for words in (["start", site.file("revenue")], ["stop", "revenue"]):
            answer = site.call(*words)
            assert answer.code == 1
            assert f"revenue is at work in process {process.pid} (penstock pipeline run), not in the" in answer.err
        answer = site.call("stop", "--all")
        assert (answer.code, answer.out) == (0, "")
        assert f"process {process.pid}" in answer.err
        assert site.ask("status", "revenue")["state"] == "running"
        assert f"at work in process {process.pid}" in site.call("reset", "revenue", "--yes").err


def test_stop_waits_for_the_micro_batch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.call("start", site.file("revenue", "lingers"))
    answer = site.call("stop", "revenue", "--timeout", "0.5")
    assert answer.code == 1
    assert "pipeline revenue is stopping still, after 0.5 s: it finishes its micro-batch first" in answer.err
    sleep = time.sleep

    def finish(seconds: float) -> None:
        (site.home.path / "revenue" / "done").touch()
        sleep(seconds)

    monkeypatch.setattr("penstock.cli.pipeline_stop.time.sleep", finish)
    assert site.call("stop", "revenue").out == "revenue: stopped\n"


def test_the_driver_s_end_keeps_what_is_wanted(site: Site) -> None:
    for name in ("a", "b"):
        site.call("start", site.file(name))
    assert site.call("stop", "--driver").out == "the driver: ended\n"
    assert [each["state"] for each in site.ask("list")] == ["stopped", "stopped"]
    site.call("start", str(site.path / "a.yaml"))
    wait(lambda: [each["state"] for each in site.ask("list")] == ["running", "running"])


FULL = Status(
    "revenue",
    State.WAITING,
    "sink lake is away",
    pid=4711,
    master="local[*]",
    file="/a/revenue.yaml",
    batch=41,
    batch_s=0.256,
    rows=1234567,
    rows_per_s=1500.4,
    lag=98765,
    dead_letters=3,
    restarts=2,
    watermark="2026-05-01T12:00:00Z",
    sources={"orders": SourceStatus(1234567, 1500.4, 98765), "customers": SourceStatus(40)},
    steps={"clean": StepStatus(1234560, {"has id": 2000, "positive": 5}), "hourly": StepStatus(12)},
    sinks={"lake": SinkStatus("delta", 1234550, 1500.0, 10, "no route to host")},
)


def test_status_in_full(site: Site) -> None:
    directory = site.home.pipeline("revenue")
    with directory.locked("run"):
        directory.save_status(Status.from_json(FULL.to_json() | {"updated_ms": now_ms() - 65_000}))
        lines = [line.rstrip() for line in site.call("status", "revenue").out.splitlines()]
    assert lines == [
        "revenue",
        "  state         waiting",
        "  reason        sink lake is away",
        "  updated       1 min ago",
        "  process       4711",
        "  master        local[*]",
        "  file          /a/revenue.yaml",
        "  batch         41 in 0.26 s",
        "  rows          1,234,567",
        "  rate          1,500 rows/s",
        "  lag           98,765 rows",
        "  dead letters  3",
        "  restarts      2",
        "  watermark     2026-05-01T12:00:00Z",
        "",
        "SOURCE          ROWS  ROWS/S     LAG  TROUBLE",
        "orders     1,234,567   1,500  98,765",
        "customers         40       0       -",
        "",
        "STEP         ROWS  BROKEN EXPECTATIONS",
        "clean   1,234,560  has id: 2,000, positive: 5",
        "hourly         12",
        "",
        "SINK  KIND        ROWS  ROWS/S  REJECTED  TROUBLE",
        "lake  delta  1,234,550   1,500        10  no route to host",
    ]


def test_status_for_scripts(site: Site) -> None:
    directory = site.home.pipeline("revenue")
    with directory.locked("run"):
        directory.save_status(Status.from_json(FULL.to_json() | {"updated_ms": now_ms()}))
        facts = site.ask("status", "revenue")
        assert yaml.safe_load(site.call("status", "revenue", "-o", "yaml").out)["sinks"] == facts["sinks"]
    assert facts["sources"]["orders"] == {"rows": 1234567, "rows_per_s": 1500.4, "lag": 98765, "trouble": ""}
    assert 0 <= facts["silent_s"] < DEADLINE_S


def test_lag_that_nobody_knows(site: Site) -> None:
    """While a source's brokers are away, and when nobody looks any more."""
    directory = site.home.pipeline("revenue")
    away = replace(FULL, lag=None, sources={"orders": SourceStatus(7, 0.0, None, "no broker")}, updated_ms=now_ms())
    with directory.locked("run"):
        directory.save_status(away)
        lines = [" ".join(line.split()) for line in site.call("status", "revenue").out.splitlines()]
        assert "lag unknown" in lines
        assert "orders 7 0 unknown no broker" in lines
        assert "unknown" in site.call("list").out
    directory.save_status(replace(FULL, state=State.FINISHED, updated_ms=now_ms()))
    facts = site.ask("status", "revenue")
    assert (facts["lag"], facts["sources"]["orders"]["lag"]) == (None, None)
    assert site.ask("list")[0]["lag"] is None


def test_a_name_that_another_file_has(site: Site) -> None:
    taken, mine = site.file("revenue"), site.path / "mine" / "revenue.yaml"
    mine.parent.mkdir()
    mine.write_text("runs")
    site.home.pipeline("revenue").save_identity(Identity({}, taken, 1))
    answer = site.call("start", str(mine))
    assert answer.code != 0
    assert f"is the state of {taken}" in answer.err
    assert site.home.pipeline("revenue").load_wanted() is None


def test_status_again_and_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = site.home.pipeline("revenue")
    directory.save_status(Status("revenue", State.STOPPED, batches=1))
    looks = []

    def sleep(_: float) -> None:
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt
        if len(looks) == 2:
            directory.save_status(Status("revenue", State.STOPPED, batches=2))

    monkeypatch.setattr("penstock.cli.watch.time.sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        site.call("status", "revenue", "--watch", "-o", "json")
    told = [json.loads(line)["batches"] for line in site._capsys.readouterr().out.splitlines()]
    assert told == [1, 1, 2]


def test_names_nobody_knows(site: Site) -> None:
    assert "no pipeline 'x' in" in (answer := site.call("status", "x")).err
    assert answer.code == 1
    assert "there is none yet" in answer.err
    site.home.pipeline("revenue").save_status(FULL)
    assert "did you mean revenue?" in site.call("logs", "revenu").err
    file = site.file("other")
    assert f"pipeline other of {file} has not been run" in site.call("reset", file, "--yes").err


def test_a_damaged_pipeline_is_a_line_of_the_list(site: Site) -> None:
    site.home.pipeline("good").save_status(Status("good", State.STOPPED, updated_ms=now_ms()))
    site.home.pipeline("bad").save_status(FULL)
    (site.home.path / "bad" / "status.json").write_text("{}")
    bad, good = site.ask("list")
    assert (bad["state"], good["state"]) == ("unknown", "stopped")
    assert "bad" in site.call("list").out
    answer = site.call("status", "bad")
    assert answer.code == 1
    assert "status.json is damaged" in answer.err
    assert "remove it" in answer.err


def test_an_empty_list(site: Site) -> None:
    assert site.call("list") == Answer(0, "", "no pipelines; 'penstock pipeline start FILE' starts one\n")
    assert site.ask("list") == []


def test_another_home(site: Site, tmp_path: Path) -> None:
    Home(tmp_path / "other").pipeline("x").save_status(Status("x", State.STOPPED))
    assert [each["pipeline"] for each in site.ask("list", "--home", str(tmp_path / "other"))] == ["x"]


def test_logs(site: Site) -> None:
    events = site.home.pipeline("revenue").events
    for number in range(30):
        events.write("info", "batch", f"batch {number}", rows=number)
    events.write("error", "failed", "bad \x1b[2J row")
    lines = site.call("logs", "revenue").out.splitlines()
    assert len(lines) == 20
    assert lines[0].endswith("  info     batch 11  rows=11")
    assert lines[-1].endswith("  error    bad \\x1b[2J row")
    (last,) = [json.loads(line) for line in site.call("logs", "revenue", "-n", "1", "-o", "json").out.splitlines()]
    assert (last["event"], last["text"]) == ("failed", "bad \x1b[2J row")
    assert len(list(yaml.safe_load_all(site.call("logs", "revenue", "-n", "2", "-o", "yaml").out))) == 2


@pytest.mark.parametrize("words", [["logs", "a", "-f", "-n", "1"], ["logs", "--driver", "-f", "-n", "1"]])
def test_logs_as_they_come(site: Site, words: list[str]) -> None:
    site.home.pipeline("a").events.write("info", "x", "first")
    site.presence.log.write_text("zeroth\nfirst\n")
    code = "from penstock.cli.pipeline_driver import logs; import sys; logs.main(sys.argv[2:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, env=os.environ | {}
    )
    try:
        assert process.stdout is not None
        assert "first" in process.stdout.readline()
        site.home.pipeline("a").events.write("info", "x", "second")
        with site.presence.log.open("a") as file:
            file.write("second\n")
        assert "second" in process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["logs"], "either NAME or --driver"),
        (["logs", "a", "--driver"], "either NAME or --driver"),
        (["logs", "--driver", "-o", "json"], "plain text"),
        (["stop"], "either NAME... or --all"),
        (["stop", "a", "--all"], "either NAME... or --all"),
        (["reset", "a"], "say --yes"),
    ],
)
def test_wrong_usage(site: Site, words: list[str], told: str) -> None:
    site.home.pipeline("a").save_status(Status("a", State.STOPPED))
    answer = site.call(*words)
    assert answer.code == 2
    assert told in answer.err


def test_no_driver_has_been_there(site: Site) -> None:
    assert "no driver has been up here" in site.call("logs", "--driver").err


def test_reset(site: Site) -> None:
    directory = site.home.pipeline("revenue")
    directory.checkpoint.mkdir(parents=True)
    directory.save_identity(Identity({}, "/a", 1))
    assert site.ask("reset", "revenue", "--yes") == {
        "pipeline": "revenue",
        "moved_to": str(directory.path / "previous-1"),
    }
    assert (directory.path / "previous-1" / "checkpoint").is_dir()
    assert site.call("reset", "revenue", "--yes").out == "revenue has no state to reset\n"
    assert "nobody has run it yet" in site.call("status", "revenue").out
    assert "its state was moved to" in site.call("logs", "revenue").out


@pytest.mark.parametrize("agreed", [True, False])
def test_reset_asks(site: Site, agreed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    site.home.pipeline("revenue").checkpoint.mkdir(parents=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda *_, **__: agreed)
    answer = site.call("reset", "revenue")
    assert "sinks keep what they have" in answer.err
    assert "reads the sources from where their 'from' says" in answer.err
    assert answer.code == (0 if agreed else 1)
    assert site.home.pipeline("revenue").checkpoint.exists() is not agreed


@pytest.mark.parametrize("name", ["start", "list", "status", "stop", "logs", "reset"])
def test_help(site: Site, name: str) -> None:
    answer = site.call(name, "--help")
    assert answer.code == 0
    assert f"  penstock pipeline {name}" in answer.out
    assert "--home DIR" in answer.out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (3599, "59 min"), (12_000, "3 h 20 min"), (180_000, "2 d 2 h")],
)
def test_spans(seconds: float, text: str) -> None:
    assert format_span(seconds) == text
