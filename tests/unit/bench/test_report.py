"""The page and the plots of a result."""

from pathlib import Path
from typing import Any

import pytest
from bench import report
from bench.groups import NAMES, ROWS


def result(**penstock: float) -> dict[str, Any]:
    kafka = {"base-produce": 100.0, "slow-default-p50": 1.0}
    return {
        "command": "the command",
        "machine": {"cores": 2},
        "scale": {"warm_passes": 6},
        "rounds": [{"penstock": penstock, "kafka": kafka, "floor": {"base-cpu": 0.5}}],
    }


def test_names_of_rows_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len(set(NAMES)) == len(NAMES)


def test_lost_rows_stand_in_their_table_and_in_the_list_with_their_reason() -> None:
    page = report.page(result(**{"base-produce": 120.0, "slow-default-p50": 3.0}))
    tables, _, rest = page.partition("## Where Penstock loses")
    losses = rest.partition("## Machine")[0]
    assert "≥ 1.5 x Kafka: **miss**" in tables
    assert "produce p50, 2,000/s, acks=all, defaults | ms | 3 | 1" in tables
    assert "1.2 x Kafka, **bar missed**" in losses
    assert "3 x Kafka. Penstock waits for the disk" in losses
    assert losses.count("\n- ") == 2


def test_won_rows_are_not_in_the_list() -> None:
    page = report.page(result(**{"base-produce": 200.0}))
    assert "≥ 1.5 x Kafka: pass" in page
    assert "None in this run." in page


def test_missed_names_the_rows() -> None:
    assert [row.name for row in report.missed(result(**{"base-produce": 120.0, "ready": 2.0}))] == [
        "ready",
        "base-produce",
    ]


def test_only_tables_with_floor_figures_have_its_column() -> None:
    made = report.tables(result(**{"base-cpu": 0.7, "slow-default-p50": 3.0}))
    cpu, _, latency = made.partition("## Latency")
    assert "C floor" in cpu
    assert "C floor" not in latency


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_plots_are_the_same_every_time(tmp_path: Path) -> None:
    found = result(**{"base-produce": 200.0, "base-cpu": 0.7, "slow-default-p50": 3.0})
    report.save(found, tmp_path / "a")
    report.save(found, tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a" / "pictures").iterdir())
    assert names == ["benchmarks-cpu.svg", "benchmarks-latency.svg", "benchmarks-throughput.svg"]
    for name in names:
        assert (tmp_path / "a" / "pictures" / name).read_bytes() == (tmp_path / "b" / "pictures" / name).read_bytes()
        assert f"pictures/{name}" in (tmp_path / "a" / "benchmarks.md").read_text()


def test_a_partial_run_takes_the_place_of_its_rows() -> None:
    whole = {
        "command": "all",
        "machine": {"revision": "a"},
        "rounds": [{"kafka": {"x": 1.0, "y": 2.0}, "penstock": {"y": 3.0}}, {"kafka": {"x": 5.0}}],
    }
    part: dict[str, Any] = {
        "command": "some",
        "machine": {"revision": "b"},
        "rounds": [{"kafka": {"x": 7.0}, "penstock": {"x": 8.0}}],
    }
    part["rounds"][0]["floor"] = {"y": 9.0}
    combined = report.combine([whole, part])
    assert combined["rounds"] == [{"kafka": {"x": 7.0, "y": 2.0}, "penstock": {"x": 8.0, "y": 3.0}}, {"kafka": {}}]
    assert combined["command"] == "all  # at a\nsome  # at b"
    assert report.combine([whole])["rounds"] == whole["rounds"]


def test_a_rate_of_reading_has_the_brokers_cpu_below_it() -> None:
    names = [row.name for row in ROWS]
    for rate in (
        name for name in names if name.endswith("-consume") and "-cpu-" not in name and name != "tool-consume"
    ):
        assert names[names.index(rate) + 1] == rate.replace("-consume", "-cpu-consume")
    assert names[names.index("tool-consume") + 1] == "tool-cpu"
    for rate in (name for name in names if name[-1].isdigit() and "-fetch" in name):
        at = names.index(rate)
        assert names[at + 1 : at + 3] == [f"{rate}-cpu", f"{rate}-reader"]


def test_what_a_reader_needs_is_no_loss() -> None:
    found = result(**{"base-fetch1-cpu": 1.0, "base-fetch1-reader": 1.0})
    found["rounds"][0]["kafka"] |= {"base-fetch1-cpu": 2.0, "base-fetch1-reader": 0.5}
    assert "reader's own CPU | CPU-s/GB | 1 | 0.5 | 2 |" in report.tables(found)
    assert report.losses(found) == "None in this run."
    found["rounds"][0]["kafka"]["base-fetch1-cpu"] = 0.5
    assert "1 connection: broker's CPU: 2 x Kafka" in report.losses(found)


def test_the_page_says_how_long_it_took_when_all_parts_know() -> None:
    parts = [result() | {"took_s": took_s, "machine": {"revision": "a"}} for took_s in (600, 240)]
    assert "This took 14 minutes." in report.page(report.combine(parts))
    del parts[1]["took_s"]
    assert "This took" not in report.page(report.combine(parts))


def test_the_page_of_a_brief_run_says_what_is_not_there_and_why() -> None:
    found = result(**{"base-produce": 120.0})
    assert "brief" not in report.page(found)
    found["scale"]["brief"] = True
    (said,) = [line for line in report.page(found).splitlines() if "a brief one" in line]
    assert "1 KB, 6 partitions, acks=all, page cache: a single broker does for acks=all" in said
    assert "the group `widest`: no bar hangs on it" in said
