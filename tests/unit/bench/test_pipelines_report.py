"""The page of the pipelines' benchmark."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import pipelines_report
from bench.pipelines_queries import SINKS, WAYS
from scripts.sentences import mended


def result(*rounds: dict[str, float], row: str = "copy") -> dict[str, Any]:
    """Each round has figures of one row by subject."""
    return {
        "command": "the command",
        "machine": {"cores": 2, "revision": "abc"},
        "session_s": 4.25,
        "rounds": [{subject: {row: value} for subject, value in each.items()} for each in rounds],
    }


def test_columns_are_the_ways_that_are_measured() -> None:
    columns = {theme.title: set(theme.subjects) for theme in pipelines_report.THEMES}
    assert columns["Backlog from topic to topic"] == columns["Small micro-batches"] == set(WAYS)
    (sinks,) = [theme for theme in pipelines_report.THEMES if theme.title == "Backlog to other sinks"]
    assert [row.name for row in sinks.rows] == list(SINKS)


def test_bars() -> None:
    wanted = {row.name: row.limit for theme in pipelines_report.THEMES for row in theme.rows if row.limit}
    assert wanted == dict.fromkeys(("warm-running", "warm-written", "command-returned", "command-written"), 3.0)


def test_ratios_are_within_a_round() -> None:
    found = result(
        {"penstock": 30, "plain": 10, "connector": 60},
        {"penstock": 80, "plain": 20, "connector": 80},
        {"penstock": 20, "plain": 10, "connector": 10},
    )
    (line,) = [line for line in pipelines_report.tables(found).splitlines() if "| k rows/s |" in line]
    assert line.endswith("| 30 (20 to 80) | 10 (10 to 20) | 60 (10 to 80) | 3 (2 to 4) | 1 (0.5 to 2) |")


@pytest.mark.parametrize(("seconds", "told"), [(3.0, "≤ 3 s: passed"), (3.1, "≤ 3 s: **missed**")])
def test_a_start_is_judged_by_its_median(seconds: float, told: str) -> None:
    found = result({"penstock": 1.0}, {"penstock": seconds}, {"penstock": 9.0}, row="warm-written")
    assert f"| {told} |" in pipelines_report.tables(found)
    lost = seconds > 3.0
    assert [row.name for row in pipelines_report.missed(found)] == (["warm-written"] if lost else [])
    assert ("s, **bar missed**. After `running`" in pipelines_report.losses(found)) is lost


@pytest.mark.parametrize(("ours", "lost"), [(9.0, True), (10.0, False)])
def test_a_faster_program_is_a_loss(ours: float, lost: bool) -> None:
    found = result({"penstock": ours, "plain": 10.0}, row="small")
    told = "- Small micro-batches, 20 rows each: 0.9 x plain program. The parts" in pipelines_report.losses(found)
    assert told is lost


def test_page_tells_command_machine_and_session() -> None:
    page = pipelines_report.page(result({"penstock": 40, "plain": 10, "connector": 20}))
    assert "```\nthe command\n```" in page
    assert "| revision | abc |" in page
    assert "took 4.2 s to start" in page
    assert "None in this run." in page
    assert "## Latency" not in page  # no figures


def test_page_is_written_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = result({"penstock": 40, "plain": 10})
    source = tmp_path / "result.json"
    source.write_text(json.dumps(found))
    monkeypatch.setattr(sys, "argv", ["pipelines_report", str(source)])
    monkeypatch.setattr(pipelines_report.save, "__defaults__", (tmp_path,))
    pipelines_report.main()
    assert (tmp_path / "benchmarks-pipelines.md").read_text() == mended(pipelines_report.page(found))
