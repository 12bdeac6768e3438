"""What a running pipeline shows: a display on a terminal, lines elsewhere."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.pipeline_view import LINE_EVERY_S, Lines, Screen, format_line, open_view
from penstock.pipelines.home.status import SinkStatus, SourceStatus, State, Status, StepStatus

STARTING = Status("revenue", State.STARTING, "checking", rows=1000)
RUNNING = Status(
    "revenue",
    State.RUNNING,
    batch=7,
    batches=8,
    batch_s=0.5,
    rows=1200,
    rows_per_s=400.0,
    lag=200,
    dead_letters=3,
    sources={"orders": SourceStatus(1200, 400.0, 200)},
    steps={"clean": StepStatus(0, {"positive": 2, "": 1, "held": 0})},
    sinks={"lake": SinkStatus("delta", 90, 30.0, 4, "no room\x07")},
)


@pytest.fixture
def screen() -> Iterator[Screen]:
    opened = Screen("revenue", once=True, file=io.StringIO())
    yield opened
    opened.close()


def see(screen: Screen) -> str:
    """What is on the screen."""
    console = Console(file=io.StringIO(), width=100, highlight=False)
    console.print(screen.draw())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_phases_before_the_first_batch(screen: Screen) -> None:
    screen.phase("starting Spark")
    assert "revenue  starting" in see(screen)
    assert "starting Spark" in see(screen)
    screen.update(STARTING)
    assert "checking" in see(screen)
    screen.update(replace(STARTING, state=State.RUNNING, reason=""))
    assert "waiting for the first batch" in see(screen)


def test_numbers_of_a_batch(screen: Screen) -> None:
    screen.update(STARTING)
    screen.update(RUNNING)
    seen = see(screen)
    assert "1,200 rows  400 rows/s  lag 200  batch 7 in 500 ms  3 dead letters" in seen
    lines = [" ".join(line.split()) for line in seen.splitlines()]
    assert "source orders 400 rows/s 1,200 rows lag 200" in lines
    assert "sink lake 30 rows/s 90 rows 4 rejected no room\\x07" in lines
    assert "expect clean 2 rows not: positive" in lines
    assert "expect clean 1 row not decoded" in lines
    assert "held" not in seen


def test_the_bar_is_of_this_run(screen: Screen) -> None:
    """200 of 400 rows: the thousand of runs before do not count."""
    screen.update(STARTING)
    screen.update(RUNNING)
    assert "50%" in see(screen)


def test_no_bar_where_there_is_no_end() -> None:
    opened = Screen("revenue", once=False, file=io.StringIO())
    opened.update(RUNNING)
    assert "%" not in see(opened)
    opened.close()


def test_trouble_is_said(screen: Screen) -> None:
    screen.update(replace(RUNNING, state=State.WAITING, reason="sink lake: no room"))
    assert "waiting" in see(screen)
    assert "sink lake: no room" in see(screen)


def test_others_write_into_a_file_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard error is a file here; programs begun meanwhile inherit another one, and the display keeps its own."""
    log, own = tmp_path / "spark.log", tmp_path / "stderr"
    with open(own, "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        opened = Screen("revenue", once=True)
        with opened.keep_apart(log):
            subprocess.run([sys.executable, "-c", "print('noise')"], stdout=stderr, check=True)
            opened.tell("still here")
        os.write(stderr.fileno(), b"after\n")
        opened.close()
    assert log.read_text() == "noise\n"
    assert "still here" in own.read_text()
    assert "after" in own.read_text()
    assert "noise" not in own.read_text()


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (STARTING, "revenue starting: checking"),
        (replace(STARTING, state=State.RUNNING, reason=""), "revenue running: waiting for the first batch"),
        (
            RUNNING,
            "revenue running: 1,200 rows, 400 rows/s, lag 200, batch 7 in 500 ms, 3 dead letters",
        ),
        (
            replace(RUNNING, state=State.WAITING, reason="broker away", lag=None, dead_letters=0),
            "revenue waiting: 1,200 rows, 400 rows/s, batch 7 in 500 ms; broker away",
        ),
    ],
)
def test_lines(status: Status, line: str) -> None:
    assert format_line(status) == line


def test_a_line_now_and_then_and_at_every_change(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    view = Lines("revenue", clock=lambda: now[0])
    view.phase("starting Spark")
    view.tick()
    view.update(RUNNING)
    view.tick()
    view.update(replace(RUNNING, rows=1300))
    now[0] = LINE_EVERY_S - 1
    view.tick()
    view.update(replace(RUNNING, state=State.WAITING, reason="away"))
    view.tick()
    now[0] += LINE_EVERY_S
    view.tick()
    told = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert told[0] == "revenue: starting Spark"
    assert [line.split(":")[0] for line in told[1:]] == ["revenue running", "revenue waiting", "revenue waiting"]


def test_lines_where_there_is_no_terminal() -> None:
    with open_view("revenue", once=False) as view:
        assert isinstance(view, Lines)
