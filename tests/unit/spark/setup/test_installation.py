"""Finding Java and pyspark, and what is said when they are missing."""

from pathlib import Path

import pytest

from penstock.spark.setup.installation import SetupError, find_java, find_pyspark


def make_java(home: Path, release: str | None = None, says: str = "") -> Path:
    """A home with a `java` that answers -version; `release` is the text of the file of that name."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    command.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


@pytest.mark.parametrize(
    ("release", "says", "version"),
    [
        ('IMPLEMENTOR="X"\nJAVA_VERSION="17.0.15"\n', "", "17.0.15"),
        ('JAVA_VERSION="21"\n', "", "21"),
        ('JAVA_VERSION="25-ea"\n', "", "25-ea"),
        (None, 'openjdk version "17.0.9" 2023-10-17', "17.0.9"),
    ],
)
def test_version(tmp_path: Path, release: str | None, says: str, version: str) -> None:
    home = make_java(tmp_path / "jdk", release, says)
    assert find_java({"JAVA_HOME": str(home), "PATH": "/nothing"}) == (home, version)


def test_path_is_followed_to_the_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", 'JAVA_VERSION="17.0.15"')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home.resolve()


def test_old_java_home_gives_way_to_the_path(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", 'JAVA_VERSION="1.8.0_412"')
    new = make_java(tmp_path / "new", 'JAVA_VERSION="17.0.15"')
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert find_java(environment).home == new.resolve()


def test_no_java_says_what_was_found_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"Java 17 or newer: JAVA_HOME is not set and there is no java on the PATH"):
        find_java({"PATH": "/nothing"})
    old = make_java(tmp_path / "old", 'JAVA_VERSION="1.8.0_412"')
    with pytest.raises(SetupError) as raised:
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(old / "bin")})
    text = str(raised.value)
    assert "JAVA_HOME is /nowhere, where no Java can be run; the java on the PATH is" in text
    assert "Java 8.0_412" in text
    assert "apt-get install openjdk-17-jre-headless" in text
    assert "\n" not in text


def test_spark_home(tmp_path: Path) -> None:
    import pyspark

    assert find_pyspark({}) == (Path(pyspark.__file__).parent, pyspark.__version__)
    with pytest.raises(SetupError, match="holds no Spark; unset SPARK_HOME"):
        find_pyspark({"SPARK_HOME": str(tmp_path)})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    assert find_pyspark({"SPARK_HOME": str(tmp_path)}).home == tmp_path


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(SetupError, match=r"pyspark is not installed; .*pip install 'penstock-mq\[spark\]'"):
        find_pyspark({})
