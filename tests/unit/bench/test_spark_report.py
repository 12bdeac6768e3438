"""The page of the Spark benchmark."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import spark_report
from bench.spark_queries import GROUPS, READS, STREAMS, WRITES
from scripts.sentences import mended


def result(*rounds: dict[str, float], row: str = "read-100") -> dict[str, Any]:
    """Each round has figures of one row by subject."""
    return {
        "command": "the command",
        "machine": {"cores": 2, "revision": "abc"},
        "sealed_percent": {"100 B": 83.3},
        "rounds": [{subject: {row: value} for subject, value in each.items()} for each in rounds],
    }


def test_columns_are_the_ways_that_are_measured() -> None:
    columns = {theme.rows[0].name.partition("-")[0]: set(theme.subjects) for theme in spark_report.THEMES}
    both = set(STREAMS)
    assert columns == {"read": set(READS), "write": set(WRITES), "parquet": both, "copy": both, "json": both}
    assert set(columns) == set(GROUPS)


def test_bars() -> None:
    wanted = {row.name: [bar.text() for bar in row.bars] for row in spark_report.ROWS}
    assert wanted == {
        "read-100": ["≥ 3 x connector", "≥ 1.8 x tuned connector"],
        "read-1k": ["≥ 1.5 x connector"],
        "write-100": ["≥ 1 x connector"],
        "write-1k": ["≥ 1 x connector"],
        "parquet-100": ["≥ 1 x connector"],
        "parquet-1k": ["≥ 1 x connector"],
        "copy": [],
        "json": [],
    }


def test_ratios_are_within_a_round_and_each_bar_has_its_own() -> None:
    found = result(
        {"penstock": 30, "connector": 10, "tuned": 20},
        {"penstock": 80, "connector": 20, "tuned": 50},
        {"penstock": 20, "connector": 10, "tuned": 10},
    )
    (line,) = [line for line in spark_report.tables(found).splitlines() if line.startswith("| 100 B | k rows/s")]
    assert "30 (20 to 80) | 10 (10 to 20) | 20 (10 to 50)" in line
    assert "3 (2 to 4) | 1.6 (1.5 to 2)" in line
    assert line.endswith("≥ 3 x connector: pass; ≥ 1.8 x tuned connector: **miss** |")
    assert [row.name for row in spark_report.missed(found)] == ["read-100"]


@pytest.mark.parametrize(("ours", "lost"), [(9.0, True), (10.0, False)])
def test_losses_of_rows_without_a_bar(ours: float, lost: bool) -> None:
    found = result({"penstock": ours, "connector": 10.0}, row="copy")
    assert spark_report.missed(found) == []
    told = "- stream from a topic to a topic, 100 B: 0.9 x connector. No reason" in spark_report.losses(found)
    assert told is lost


def test_a_missed_bar_is_a_loss_although_ahead() -> None:
    found = result({"penstock": 20, "connector": 10, "tuned": 10})
    assert spark_report.losses(found).splitlines() == [
        "- batch read, 100 B: 2 x connector, **bar missed**. No reason is known yet."
    ]


def test_a_faster_tuned_connector_is_a_loss_although_no_bar_asks() -> None:
    found = result({"penstock": 20, "connector": 10, "tuned": 40}, row="read-1k")
    assert spark_report.losses(found) == "- batch read, 1 KB: 0.5 x tuned connector. No reason is known yet."


def test_page_tells_command_machine_and_what_was_sealed() -> None:
    page = spark_report.page(result({"penstock": 40, "connector": 10, "tuned": 20}))
    assert "```\nthe command\n```" in page
    assert "| revision | abc |" in page
    assert "83 % (100 B) of the bytes" in page
    assert "None in this run." in page
    assert "## Batch write" not in page  # no figures


def test_page_is_written_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = result({"penstock": 40, "connector": 10})
    source = tmp_path / "result.json"
    source.write_text(json.dumps(found))
    monkeypatch.setattr(sys, "argv", ["spark_report", str(source)])
    monkeypatch.setattr(spark_report.save, "__defaults__", (tmp_path,))
    spark_report.main()
    assert (tmp_path / "benchmarks-spark.md").read_text() == mended(spark_report.page(found))
