"""The page of the cluster's benchmark: points of a distribution, bars, and what is said of losses."""

from pathlib import Path
from typing import Any

import pytest
from bench.cluster_report import PAGE, gap_table, losses, missed, point, save, tables


def result(*, produce: float = 2.0, planned: float = 0.4, killed: float = 1.0, follower: float = 1.0) -> dict[str, Any]:
    one = {
        "penstock": {"cache-produce": produce, "synced-produce": 2.0, "cache-cpu": 1.0},
        "kafka": {"cache-produce": 1.0, "synced-produce": 1.0, "cache-cpu": 2.0},
    }
    gaps = {
        "planned": {"penstock": [0.1, planned], "kafka": [0.5]},
        "killed": {"penstock": [killed] * 30, "kafka": [9.0] * 10},
        "follower": {"penstock": [follower] * 10, "kafka": [9.0] * 10},
    }
    return {"command": "bench", "machine": {"cores": 2}, "rounds": [one, one, one], "gaps": gaps}


@pytest.mark.parametrize(("share", "value"), [(0.5, 15), (0.99, 30), (1.0, 30), (0.01, 1)])
def test_a_point_is_the_least_value_that_so_many_are_not_above(share: float, value: int) -> None:
    assert point(range(30, 0, -1), share) == value


def test_all_bars_hold() -> None:
    assert missed(result()) == []
    assert losses(result()) == "None in this run."


@pytest.mark.parametrize(
    ("figures", "title"),
    [
        ({"produce": 0.9}, "page cache"),
        ({"planned": 1.1}, "planned hand-over, the longest"),
        ({"killed": 3.1}, "after a kill of the leader, half of them"),
        ({"killed": 5.1}, "after a kill of the leader, 99 %"),
        ({"follower": 5.1}, "after a kill of a follower, 99 %"),
    ],
)
def test_each_bar_is_missed_by_its_own_figure(figures: dict[str, float], title: str) -> None:
    bad = result(**figures)
    assert any(title in each for each in missed(bad))
    assert "**bar missed**" in losses(bad)
    assert "**miss**" in tables(bad)


def test_one_long_gap_in_thirty_is_the_99th_percentile() -> None:
    bad = result()
    bad["gaps"]["killed"]["penstock"][7] = 6.0
    assert missed(bad) == ["Gap after a kill of the leader, 99 %"]


def test_a_run_of_one_broker_has_no_ratio() -> None:
    alone = result()
    del alone["gaps"]["killed"]["kafka"]
    assert "30 times" in gap_table(alone, "killed")
    assert "Kafka" not in gap_table(alone, "killed")


def test_what_was_not_measured_has_no_table() -> None:
    partial = result() | {"rounds": [], "gaps": {"killed": {"penstock": [1.0]}}}
    assert tables(partial).count("## ") == 1


def test_the_page_has_everything(tmp_path: Path) -> None:
    save(result(), tmp_path)
    text = (tmp_path / PAGE).read_text()
    for part in (
        "## Produce",
        "## CPU",
        "## Gap of a planned hand-over",
        "## Gap after a kill of the leader",
        "| cores | 2 |",
    ):
        assert part in text
