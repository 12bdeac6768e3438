"""One side against the other: ratios, noise, verdicts, options; which sources are run."""

import sys
from pathlib import Path

import pytest
from bench.ab import CASES, CODECS, PACE_S, PACES, figure_of, parse, share_of
from bench.comparison import CHANCE, ROUNDS_TO_JUDGE, Comparison, compare
from bench.trees import TreeError, open_tree


def test_a_round_compares_with_the_mean_of_both_runs() -> None:
    found = Comparison(old=[1.0, 2.0, 1.0], new=[2.0, 3.0, 1.0], again=[3.0, 2.0, 1.0])
    assert found.ratios == [1.0, 1.5, 1.0]
    assert found.ratio == 1.0
    assert found.noise == [3.0, 1.0, 1.0]


def test_beside_kafka_new_runs_twice() -> None:
    found = Comparison(old=[4.0], new=[1.0], again=[3.0], new_twice=True)
    assert found.ratios == [0.5]
    assert found.noise == [3.0]


def of_seven(*outside: int) -> Comparison:
    """Rounds in which NEW is above (1), below (-1) or between (0) its two OLDs."""
    middle = {1: 1.2, -1: 0.8, 0: 1.0}
    return Comparison([0.9] * len(outside), [middle[each] for each in outside], [1.1] * len(outside))


@pytest.mark.parametrize(
    ("outside", "verdict"),
    [
        ((1, 1, 1, 1, 1, 1, 1), "slower than noise"),
        ((1, 1, 1, 0, 1, 1, 1), "slower than noise"),
        ((1, 1, 1, 0, 1, 0, 1), "within noise"),
        ((1, 1, 1, -1, 1, 1, 1), "within noise"),
        ((0, 0, 0, 0, 0, 0, 0), "within noise"),
        ((-1, -1, -1, -1, 0, -1, -1), "faster than noise"),
        ((1, 1, 1, 1), "too few rounds"),
        ((-1, -1, -1), "too few rounds"),
        ((1, 1, 0, 1), "within noise"),
        ((0,), "within noise"),
    ],
)
def test_verdict(outside: tuple[int, ...], verdict: str) -> None:
    assert of_seven(*outside).verdict == verdict


def test_chance_counts_every_outcome() -> None:
    assert of_seven(1).chance == pytest.approx(2 / 3)
    assert of_seven(0).chance == 1.0
    assert of_seven(1, 1).chance == pytest.approx(2 / 9)
    assert of_seven(1, 0).chance == pytest.approx(6 / 9)
    assert of_seven(*[1] * (ROUNDS_TO_JUDGE - 1)).chance >= CHANCE > of_seven(*[1] * ROUNDS_TO_JUDGE).chance


def test_one_wild_run_decides_nothing() -> None:
    calm = [1.0] * 6
    assert Comparison([0.99, *calm], [50.0, *calm], [1.01, *calm]).verdict == "within noise"
    slower = [1.03] * 6
    assert Comparison([50.0, *calm], [1.03, *slower], [1.0, *calm]).verdict == "slower than noise"


def test_beside_kafka_less_is_faster() -> None:
    new, kafka = [1.0] * 7, [2.0] * 7
    assert Comparison(kafka, new, [1.1] * 7, new_twice=True).verdict == "faster than noise"
    assert Comparison(new, kafka, [2.1] * 7, new_twice=True).verdict == "slower than noise"


def test_figures_of_rounds_become_a_line() -> None:
    found = [{"old": {"cpu": 1.0}, "new": {"cpu": 2.2}, "again": {"cpu": 1.2}}] * 7
    words = compare(found, new_twice=False).line("1kb").split()
    assert words[:4] == ["1kb", "1.100", "2.200", "2.000"]
    assert words[-3:] == ["slower", "than", "noise"]


@pytest.mark.parametrize("records", [6, 8, 15, 1000, 390_625])
@pytest.mark.parametrize("cell", CASES.values(), ids=CASES)
def test_records_are_taken_exactly(records: int, cell) -> None:
    assert cell.records(share_of(cell, None, records)) == records


def test_gigabytes() -> None:
    cell = CASES["1kb"]
    assert cell.records(share_of(cell, 1.024, None)) == 1_000_000
    assert share_of(cell, None, None) == 1.0


def test_paces_are_compared_by_their_p99() -> None:
    pace = PACES["p99"]
    assert (figure_of(pace), figure_of(CASES["1kb"])) == ("p99", "cpu")
    assert share_of(pace, None, pace.rate * PACE_S // 2) == 0.5
    side = {"p99": 2.0, "cpu": 7.0}
    assert compare([{"old": side, "new": side, "again": side}], False, figure_of(pace)).old == [2.0]


def test_cases_of_a_run() -> None:
    assert parse(["main", "HEAD"]).cases == [*CASES, *PACES]
    assert parse(["--kafka", "HEAD"]).cases == CODECS == ["gzip", "snappy", "lz4", "zstd"]
    assert parse(["main", "HEAD", "--case", "lz4", "1kb", "--case", "lz4"]).cases == ["lz4", "1kb"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["main"], "OLD and NEW"),
        (["--kafka", "main", "HEAD"], "NEW"),
        (["--case", "1kb", "main", "HEAD"], "before --case"),
        (["main", "HEAD", "--rounds", "0"], "--rounds is 0"),
        (["main", "HEAD", "--gb", "-1"], "--gb is -1"),
    ],
)
def test_nonsense_is_refused_by_name(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert word in capsys.readouterr().err.splitlines()[-1]


def package(root: Path) -> Path:
    for place in ("penstock", "penstock/cli"):
        (root / "src" / place).mkdir(parents=True)
        (root / "src" / place / "__init__.py").touch()
    (root / "src/penstock/cli/main.py").touch()
    return root


def test_a_checkout_is_compiled_and_run_with_its_own_sources(tmp_path: Path) -> None:
    root = package(tmp_path / "tree")
    (root / "hatch_build.py").write_text("open('src/penstock/hot.so', 'w')")
    tree = open_tree(str(root), tmp_path / "unused")
    assert (tree.root, tree.compiled) == (root, 1)
    assert tree.launcher[-3:] == [sys.executable, "-m", "penstock.cli.main"]
    assert f"PYTHONPATH={root}/src" in tree.launcher
    assert not (tmp_path / "unused").exists()


def test_a_build_that_fails_is_told(tmp_path: Path) -> None:
    root = package(tmp_path / "tree")
    (root / "hatch_build.py").write_text("raise SystemExit('no compiler')")
    with pytest.raises(TreeError, match=r"hatch_build.py failed(.|\n)*no compiler"):
        open_tree(str(root), tmp_path)


def test_neither_checkout_nor_commit(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="no-such-ref is neither a checkout"):
        open_tree("no-such-ref", tmp_path)
