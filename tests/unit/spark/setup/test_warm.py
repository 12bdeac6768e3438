"""The prepared copy of pyspark, on a small one: what is in it, whom it fits, what it never does."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.spark.setup import warm
from penstock.spark.setup.installation import Java, Pyspark, SetupError
from penstock.spark.setup.warm import Warmth, find_warmth, prepare

SOURCE = """\
def fail():
    raise ValueError("boom")
"""


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def java(tmp_path: Path) -> Java:
    return Java(tmp_path / "jdk", "17.0.15")


@pytest.fixture
def pyspark(tmp_path: Path) -> Pyspark:
    home = tmp_path / "installed"
    (home / "python" / "lib").mkdir(parents=True)
    (home / "jars").mkdir()
    (home / "jars" / "one.jar").touch()
    (home / "RELEASE").write_text("small")
    with zipfile.ZipFile(home / "python" / "lib" / "pyspark.zip", "w") as made:
        made.writestr("small/__init__.py", SOURCE)
        made.writestr("small/notes.txt", "kept")
    return Pyspark(home, "4.3.0")


def test_python_runs_the_bytecode_and_tracebacks_show_the_source(pyspark: Pyspark, java: Java) -> None:
    home = prepare(pyspark, java).home
    modules = home / "python" / "lib" / "pyspark.zip"
    # As Spark's workers tell of an exception.
    script = (
        "import small, traceback\nprint(small.__file__)\ntry: small.fail()\nexcept ValueError: traceback.print_exc()"
    )
    environment = {**os.environ, "PYTHONPATH": str(modules)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"{modules}/small/__init__.pyc\n"
    assert f'File "{modules}/small/__init__.py", line 2, in fail' in done.stderr
    assert 'raise ValueError("boom")' in done.stderr


def test_everything_else_is_the_installed_one(pyspark: Pyspark, java: Java) -> None:
    home = prepare(pyspark, java).home
    assert (home / "jars" / "one.jar").resolve() == pyspark.home.resolve() / "jars" / "one.jar"
    assert (home / "RELEASE").read_text() == "small"
    with zipfile.ZipFile(home / "python" / "lib" / "pyspark.zip") as made:
        assert made.read("small/notes.txt") == b"kept"


def test_the_installation_is_not_touched(pyspark: Pyspark, java: Java) -> None:
    before = {each: each.stat().st_mtime_ns for each in pyspark.home.rglob("*")}
    prepare(pyspark, java)
    assert {each: each.stat().st_mtime_ns for each in pyspark.home.rglob("*")} == before


def test_progress_adds_up(pyspark: Pyspark, java: Java) -> None:
    told: list[int] = []
    prepare(pyspark, java, told.append)
    assert sum(told) == warm.source_bytes(pyspark) == len(SOURCE)


def test_only_what_was_made_for_these_versions_is_found(pyspark: Pyspark, java: Java) -> None:
    assert find_warmth(pyspark, java) is None
    made = prepare(pyspark, java)
    assert find_warmth(pyspark, java) == made
    assert find_warmth(pyspark._replace(version="4.3.1"), java) is None
    assert find_warmth(pyspark, java._replace(version="17.0.16")) is None
    # The same version installed anew.
    os.utime(pyspark.home / "python" / "lib" / "pyspark.zip", (1, 1))
    assert find_warmth(pyspark, java) is None


def test_again_is_nothing_new(pyspark: Pyspark, java: Java) -> None:
    first = prepare(pyspark, java)
    inode = first.home.stat().st_ino
    assert prepare(pyspark, java).home.stat().st_ino == inode
    assert [each.name for each in first.directory.iterdir()] == ["home"]


def test_failure_leaves_nothing_that_could_be_used(pyspark: Pyspark, java: Java) -> None:
    def fail(_size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(pyspark, java, fail)
    assert find_warmth(pyspark, java) is None
    assert [each for each in warm.cache_directory().rglob("*") if each.is_file()] == []


def test_a_cache_others_may_write_is_not_used(pyspark: Pyspark, java: Java) -> None:
    made = prepare(pyspark, java)
    made.directory.chmod(0o777)
    assert find_warmth(pyspark, java) is None
    with pytest.raises(SetupError, match="can be written by others"):
        prepare(pyspark, java)


def test_an_archive_cut_short_is_not_used(tmp_path: Path) -> None:
    whole = tmp_path / "classes-3.jsa"
    whole.write_bytes(b"jsa")
    assert Warmth(tmp_path).archive() == whole
    assert f"-XX:SharedArchiveFile={whole}" in Warmth(tmp_path).jvm_options()
    whole.write_bytes(b"js")
    assert Warmth(tmp_path).archive() is None
    assert Warmth(tmp_path).jvm_options() == []


def test_no_home_directory_is_no_reason_to_fail(pyspark: Pyspark, java: Java, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert find_warmth(pyspark, java) is None


def test_a_rehearsal_that_fails_says_why_and_leaves_nothing(
    pyspark: Pyspark, java: Java, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = prepare(pyspark, java)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho half > $3\necho no such luck >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(SetupError, match="no such luck"):
        warm.rehearse(made, java)
    assert [each.name for each in made.directory.iterdir()] == ["home"]


def test_remove(pyspark: Pyspark, java: Java) -> None:
    assert warm.remove() == 0
    made = prepare(pyspark, java)
    size = made.size_bytes()
    assert size > 0
    assert warm.remove() == size
    assert find_warmth(pyspark, java) is None
    assert (pyspark.home / "jars" / "one.jar").exists()
