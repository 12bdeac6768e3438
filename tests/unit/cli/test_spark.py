"""`penstock spark`: what it says and how it ends; no Spark is started."""

import json
import sys
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.spark.setup import installation, warm
from penstock.spark.setup.installation import Java, Pyspark, SetupError
from penstock.spark.setup.warm import Warmth


@pytest.fixture(autouse=True)
def _small_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "spark"
    (home / "python" / "lib").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(installation, "find_java", lambda: Java(tmp_path / "jdk", "17.0.15"))
    monkeypatch.setattr(installation, "find_pyspark", lambda: Pyspark(home, "4.3.0"))


@pytest.fixture
def rehearsals(monkeypatch: pytest.MonkeyPatch) -> list[Warmth]:
    """The rehearsals that were asked for; each leaves an archive."""
    seen: list[Warmth] = []

    def rehearse(warmth: Warmth, _java: Java) -> None:
        seen.append(warmth)
        (warmth.directory / "classes-4.jsa").write_bytes(b"four")

    monkeypatch.setattr(warm, "rehearse", rehearse)
    return seen


def test_warm_once(rehearsals: list[Warmth], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "warm"]) == 0
    (made,) = rehearsals
    assert capsys.readouterr().out == f"Spark 4.3.0 on Java 17.0.15 is warm: {made.directory} (4 B)\n"
    assert main(["spark", "warm", "-o", "json"]) == 0
    assert len(rehearsals) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["home"] == str(made.home)
    assert facts["archive"] == str(made.archive())


def test_remove(rehearsals: list[Warmth], capsys: pytest.CaptureFixture[str]) -> None:
    main(["spark", "warm"])
    capsys.readouterr()
    assert main(["spark", "warm", "--remove"]) == 0
    assert capsys.readouterr().out == f"removed 4 B from {warm.cache_directory()}\n"
    assert not rehearsals[0].directory.exists()


def test_warm_without_java(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def find_java() -> Java:
        raise SetupError("Spark needs Java 17 or newer: there is none")

    monkeypatch.setattr(installation, "find_java", find_java)
    assert main(["spark", "warm"]) == 2
    assert capsys.readouterr().err == "penstock: Spark needs Java 17 or newer: there is none\n"


def test_check(rehearsals: list[Warmth], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["ok", "java"], ["ok", "pyspark"], ["ok", "source"], ["--", "warm"]]
    assert "penstock spark warm" in lines[-1]
    main(["spark", "warm"])
    capsys.readouterr()
    assert main(["spark", "check"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"ok  warm    {rehearsals[0].directory}"


@pytest.mark.parametrize("version", ["4.1.3", "4.4.0", "3.5.6"])
def test_check_of_another_pyspark(
    version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(installation, "find_pyspark", lambda: Pyspark(tmp_path, version))
    assert main(["spark", "check", "-o", "json"]) == 1
    (found,) = [each for each in json.loads(capsys.readouterr().out) if each["name"] == "pyspark"]
    assert not found["fine"]
    assert f"{version} is not one of 4.2 and 4.3" in found["text"]


def test_check_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyarrow" else sys)
    assert main(["spark", "check"]) == 1
    assert (
        "no  source  pyarrow not installed; install it with: pip install 'penstock-mq[spark]'"
        in capsys.readouterr().out
    )
