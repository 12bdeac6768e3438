"""Options of a run, what makes it complete, and which round measures what."""

from pathlib import Path

import pytest
from bench.cells import BASE, CELLS, PACES
from bench.groups import NAMES, OWN
from bench.run import complete, parse
from bench.scale import Scale


def test_everything_by_default_is_complete() -> None:
    options = parse([])
    assert options.only == list(NAMES)
    assert options.brokers == ["penstock", "kafka"]
    assert complete(options)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--quick"],
        ["--rounds", "2"],
        ["--share", "0.5"],
        ["--warm-passes", "2"],
        ["--brokers", "penstock"],
        ["--only", "start,latency"],
        ["--output", "elsewhere.json"],
    ],
)
def test_anything_less_is_not(arguments: list[str]) -> None:
    assert not complete(parse(arguments))


def test_quick_is_one_small_round() -> None:
    options = parse(["--quick", "--output", "x.json"])
    assert (options.rounds, options.latency_seconds, options.output) == (1, 2, Path("x.json"))
    assert options.share < 0.2


@pytest.mark.parametrize("arguments", [["--only", "start,speed"], ["--brokers", "nats"], ["--rounds", "0"]])
def test_nonsense_is_refused_by_name(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    said = capsys.readouterr().err.splitlines()[-1]
    assert arguments[1].split(",")[-1] in said


def test_rounds_between_leave_out_what_has_no_bar() -> None:
    every, bars = Scale(1.0, 6, 6), Scale(1.0, 6, 6, bars_only=True)
    assert all(map(every.includes, CELLS)) and all(map(every.includes, PACES))
    assert {each.name for each in (*CELLS, *PACES) if bars.includes(each)} == {
        *("base", "default", "keyed"),
        *("slow", "fast"),
    }


def test_own_groups_come_round() -> None:
    assert [number for number in range(5) if OWN["opening"].is_due(number)] == [0, 2, 4]
    assert [number for number in range(5) if OWN["widest"].is_due(number)] == [0]


@pytest.mark.parametrize(
    ("share", "full", "taken"), [(1.0, 1000, 1000), (0.05, 1000, 100), (0.05, 6, 6), (2.0, 1000, 1000)]
)
def test_partitions_of_a_small_run(share: float, full: int, taken: int) -> None:
    assert Scale(share, 6, 6).partitions(full) == taken


def test_cells() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert BASE.records(1.0) == 1000 * 1_000_000 // 1024
    assert BASE.records(0.0) == BASE.partitions


def test_a_brief_run_is_complete_without_what_repeats() -> None:
    options = parse(["--brief"])
    assert complete(options)
    assert set(NAMES) - set(options.only) == {"widest"}
    assert not complete(parse(["--brief", "--only", "start"]))
    assert not complete(parse(["--only", ",".join(options.only)]))
    brief = Scale(1.0, 6, 6, brief=True)
    left_out = {cell.name for cell in CELLS if not brief.includes(cell)}
    assert left_out == {"base-all", "one-synced", "small-default", "java-default"}
    assert all(map(brief.includes, PACES))


def test_a_brief_run_leaves_out_no_bar() -> None:
    assert [cell.name for cell in CELLS if cell.repeats and cell.bars] == []
    assert [row.name for group in OWN.values() if group.repeats for row in group.rows if row.bars] == []


def test_a_brief_run_opens_many_partitions_once() -> None:
    assert [number for number in range(5) if OWN["opening"].is_due(number, brief=True)] == [0]
    assert [number for number in range(5) if OWN["groups"].is_due(number, brief=True)] == [0, 3]
