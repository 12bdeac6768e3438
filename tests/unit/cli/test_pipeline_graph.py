"""`penstock pipeline graph`: by file and by name, as text and as SVG."""

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock.cli import main as root
from penstock.cli.main import main
from penstock.pipelines.home import Home, Identity
from penstock.pipelines.home.status import SourceStatus, State, Status

FILE = """\
name: shop
sources: {orders: {topic: orders}}
sinks: {lake: {parquet: ./lake}}
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(root.COMMANDS, "pipeline", "")
    monkeypatch.setenv("PENSTOCK_PIPELINES", str(tmp_path / "home"))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shop.yaml"
    path.write_text(FILE)
    return path


def save(file: Path, state: State, pid: int = 0) -> None:
    status = Status(
        "shop", state, file=str(file), pid=pid, rows=7, rows_per_s=2.0, sources={"orders": SourceStatus(7, 2.0, 3)}
    )
    home = Path(os.environ["PENSTOCK_PIPELINES"])
    Home(home).pipeline("shop").save_status(status)


def test_a_file_that_has_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "graph", "shop.yaml"]) == 0
    assert capsys.readouterr().out == (
        "shop\n\n"
        "┌──────────────┐   ┌────────────────┐\n"
        "│ orders       │   │ lake           │\n"
        "│ topic orders ├──►│ parquet ./lake │\n"
        "└──────────────┘   └────────────────┘\n"
    )


@pytest.mark.parametrize("word", ["shop", "shop.yaml"])
def test_numbers_of_the_last_status(word: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(file, State.STOPPED)
    assert main(["pipeline", "graph", word]) == 0
    out = capsys.readouterr().out
    assert out.startswith("shop  stopped  7 rows")
    assert "lag" not in out  # nobody looks any more


def test_lag_of_what_is_at_work(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(file, State.RUNNING)
    with Home(Path(os.environ["PENSTOCK_PIPELINES"])).pipeline("shop").locked("run"):
        assert main(["pipeline", "graph", "shop"]) == 0
    assert "lag 3" in capsys.readouterr().out


def test_a_file_whose_name_another_has(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(file, State.STOPPED)
    Home(Path(os.environ["PENSTOCK_PIPELINES"])).pipeline("shop").save_identity(Identity({}, str(file), 1))
    other = tmp_path / "copy.yaml"
    other.write_text(FILE)
    assert main(["pipeline", "graph", str(other)]) == 0
    assert "7 rows" not in capsys.readouterr().out


def test_a_process_that_is_gone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(file, State.RUNNING, pid=2**22 + 1)  # beyond what Linux gives out
    assert main(["pipeline", "graph", "shop"]) == 0
    assert capsys.readouterr().out.startswith("shop  died  7 rows")


def test_svg(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "graph", "shop.yaml", "--svg", "shop.svg"]) == 0
    assert capsys.readouterr() == ("", "wrote shop.svg\n")
    assert ElementTree.parse(tmp_path / "shop.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shop.svg", "shop.yaml"]
    assert main(["pipeline", "graph", "shop.yaml", "--svg", "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "shop.svg").read_text()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["shp"], 1, "no pipeline 'shp' in"),
        (["none.yaml"], 2, "none.yaml:1: the file cannot be read: No such file or directory"),
        (["shop.yaml", "--svg", "-", "--watch"], 2, "--watch with --svg needs a file to write again and again"),
        (["shop.yaml", "--svg", "no/where.svg"], 2, "no/where.svg cannot be written: No such file or directory"),
    ],
)
def test_errors(words: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "graph", *words]) == code
    err = capsys.readouterr().err
    assert err.startswith("penstock: ")
    assert text in err
    assert err.count("\n") == 1
