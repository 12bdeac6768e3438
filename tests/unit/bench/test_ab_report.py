"""The section of the page with one commit beside another."""

import json
from pathlib import Path
from typing import Any

import pytest
from bench import ab_report, report
from bench.ab import keep, parse
from bench.ab_report import HEADING, KAFKA, name_of, renewed, section, table
from bench.trees import NO_COMMIT, Tree


def result(new_cpu: float = 1.5, old: str = "main (aaaaaaaaa, 30 compiled modules)") -> dict[str, Any]:
    rounds = [{"old": {"cpu": 0.98}, "new": {"cpu": new_cpu}, "again": {"cpu": 1.02}}] * 7
    return {
        "command": f"python -m bench.ab main HEAD --save # {new_cpu}",
        "machine": {"date": "2026-01-02 03:04 UTC", "cores": 2, "cpu": "some CPU", "busy before": "1 %"},
        "rounds": 7,
        "sides": {"old": old, "new": "HEAD (bbbbbbbbb, 31 compiled modules)"},
        "revisions": {"old": "kafka" if old == KAFKA else "aaaaaaaaa", "new": "bbbbbbbbb"},
        "cases": {"1kb": {"title": "1 KB, 6 partitions", "rounds": rounds}},
    }


def put(directory: Path, stamp: str, **changes: Any) -> None:
    found = result(**changes)
    (directory / name_of(found, stamp)).write_text(json.dumps(found))


def test_a_difference_stands_out_and_noise_does_not() -> None:
    assert "| 1 KB, 6 partitions | 1 | 1.5 | 1.500 | 1.041 (1.041 to 1.041) | 0.001 | **slower than noise** |" in table(
        result()
    )
    assert "| 1 | 1 | 1.000 | 1.041 (1.041 to 1.041) | 1.000 | within noise |" in table(result(1.0))


def test_beside_kafka_new_ran_twice() -> None:
    rows = table(result(0.5, old=KAFKA))
    # Kafka once at 0.98, this commit at 0.5 and again at 1.02
    assert "| 0.98 | 0.76 | 0.776 | 2.040 (2.040 to 2.040) |" in rows


def test_the_newest_result_comes_first_with_its_commits_and_its_command(tmp_path: Path) -> None:
    put(tmp_path, "2026-01-01-0000", new_cpu=1.5)
    put(tmp_path, "2026-01-02-0000", new_cpu=0.5, old=KAFKA)
    text = section(tmp_path)
    assert text.startswith(HEADING)
    newest, oldest = text.index("### bbbbbbbbb beside kafka"), text.index("### bbbbbbbbb beside aaaaaaaaa")
    assert newest < oldest
    assert newest < text.index("--save # 0.5") < oldest < text.index("--save # 1.5")
    assert "- OLD: main (aaaaaaaaa, 30 compiled modules)\n- NEW: HEAD (bbbbbbbbb, 31 compiled modules)" in text
    assert "7 rounds, 2026-01-02 03:04 UTC, on 2 cores (some CPU)" in text


def test_without_results_there_is_no_section(tmp_path: Path) -> None:
    assert section(tmp_path) == ""
    assert renewed("# Page\n\nText.\n", "") == "# Page\n\nText.\n"


def test_only_the_section_is_renewed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## Machine\n\n| a | b |\n")
    put(tmp_path, "2026-01-01-0000", new_cpu=1.5)
    ab_report.save(page, tmp_path)
    first = page.read_text()
    assert first.startswith("# Page\n\n## Machine\n\n| a | b |\n\n" + HEADING)
    put(tmp_path, "2026-01-02-0000", new_cpu=2.5)
    ab_report.save(page, tmp_path)
    assert page.read_text().count(HEADING) == 1
    assert "2.500" in page.read_text()
    for path in tmp_path.glob("*-0000-*.json"):
        path.unlink()
    ab_report.save(page, tmp_path)
    assert page.read_text() == "# Page\n\n## Machine\n\n| a | b |\n"


def test_the_whole_page_keeps_the_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "2026-01-01-0000", new_cpu=1.5)
    monkeypatch.setattr(ab_report, "section", lambda: section(tmp_path))
    monkeypatch.setattr(report, "page", lambda _result: "# Benchmarks\n")
    monkeypatch.setattr(report.plots, "save_all", lambda *_: None)
    report.save({}, tmp_path / "docs")
    assert HEADING in (tmp_path / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize("less", [["--rounds", "4"], ["--gb", "1"], ["--records", "100"]])
def test_only_a_whole_run_is_kept(less: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["main", "HEAD", "--save"]).save
    with pytest.raises(SystemExit):
        parse(["main", "HEAD", "--save", *less])
    assert "--save keeps only runs" in capsys.readouterr().err


def test_a_run_is_kept_where_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Path] = []
    monkeypatch.setattr(ab_report, "RESULTS", tmp_path / "ab")
    monkeypatch.setattr(ab_report, "save", lambda: saved.extend((tmp_path / "ab").iterdir()))
    keep(result(), parse(["main", "HEAD"]))
    assert list(tmp_path.iterdir()) == []
    keep(result(), parse(["main", "HEAD", "--json", str(tmp_path / "x.json")]))
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    keep(result(), parse(["main", "HEAD", "--save"]))
    (kept,) = saved
    assert kept.name.endswith("-aaaaaaaaa-bbbbbbbbb.json")
    assert json.loads(kept.read_text()) == result()


@pytest.mark.parametrize(("revision", "whole"), [("abc", True), ("abc+", False), (NO_COMMIT, False), ("", False)])
def test_only_a_commit_can_be_measured_again(revision: str, whole: bool) -> None:
    assert Tree("x", Path(), revision, 0).is_commit is whole
