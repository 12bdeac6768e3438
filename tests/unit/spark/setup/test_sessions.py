"""A session's settings, and the environment its JVM is started in; no JVM is."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark.setup import sessions
from penstock.spark.setup.installation import SetupError
from penstock.spark.setup.sessions import session, settings
from penstock.spark.setup.warm import Warmth

JVM = "spark.driver.extraJavaOptions"


@pytest.mark.parametrize(
    ("master", "partitions"),
    [
        ("local", "1"),
        ("local[3]", "3"),
        ("local[4, 2]", "4"),
        ("local[*]", str(len(os.sched_getaffinity(0)))),
        ("spark://host:7077", None),
        ("yarn", None),
        ("local-cluster[2,1,1024]", None),
    ],
)
def test_shuffle_partitions_follow_the_threads(master: str, partitions: str | None) -> None:
    made = settings(master, {})
    assert made.get("spark.sql.shuffle.partitions") == partitions
    assert made.get("spark.driver.bindAddress") == (None if partitions is None else "127.0.0.1")


def test_the_caller_wins() -> None:
    made = settings("local[2]", {"spark.ui.enabled": True, "spark.sql.shuffle.partitions": 7, "spark.mine": "x"})
    assert made["spark.ui.enabled"] == "true"
    assert made["spark.sql.shuffle.partitions"] == "7"
    assert made["spark.mine"] == "x"
    assert made["spark.sql.session.timeZone"] == "UTC"


def test_jvm_options_are_added_to_ours_and_come_last(tmp_path: Path) -> None:
    archive = tmp_path / "classes-3.jsa"
    archive.write_bytes(b"jsa")
    options = settings("local", {JVM: "-Dmine=1"}, Warmth(tmp_path))[JVM].split()
    assert options[0].startswith("-Dlog4j2.configurationFile=file:///")
    assert Path(options[0].partition("file://")[2]).is_file()
    assert f"-XX:SharedArchiveFile={archive}" in options
    assert options[-1] == "-Dmine=1"


@pytest.mark.parametrize(("limit", "memory"), [("max\n", None), ("4294967296\n", "1024m"), ("8589934592\n", "2048m")])
def test_driver_memory_is_a_quarter_of_the_limit(
    limit: str, memory: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 24}.__getitem__)
    monkeypatch.setattr(Path, "read_text", lambda _self: limit)
    assert settings("local", {})["spark.driver.memory"] == (memory or "8192m")


class Builder:
    """Takes a session builder's place and notes what there is when the JVM would start."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.environment: dict[str, str] = {}

    def appName(self, name: str) -> "Builder":  # noqa: N802 - Spark's name
        return self.config("app", name)

    def master(self, master: str) -> "Builder":
        return self.config("master", master)

    def config(self, name: str, value: str) -> "Builder":
        self.settings[name] = value
        return self

    def getOrCreate(self) -> "Builder":  # noqa: N802 - Spark's name
        self.environment = dict(os.environ)
        return self


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "JAVA_HOME", "SPARK_HOME"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(SparkSession, "builder", Builder())
    return session


def test_workers_run_this_python(launched: Any) -> None:
    environment = launched("mine", "local[2]").environment
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_executors_elsewhere_choose_their_python_and_get_no_cache(
    launched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sessions, "find_warmth", lambda *_: Warmth(tmp_path))
    environment = launched("mine", "spark://host:7077").environment
    assert "PYSPARK_PYTHON" not in environment
    assert "SPARK_HOME" not in environment


def test_a_python_somebody_chose_stays(launched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert launched("mine", "local").environment["PYSPARK_PYTHON"] == "/opt/python"


def test_launching_leaves_the_environment_as_it_was(
    launched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sessions, "find_warmth", lambda *_: Warmth(tmp_path))
    environment = launched("mine", "local").environment
    assert environment["SPARK_HOME"] == str(tmp_path / "home")
    assert Path(environment["JAVA_HOME"], "bin", "java").exists()
    assert not {"SPARK_HOME", "JAVA_HOME"} & set(os.environ)


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SetupError, match=r"pip install 'penstock-mq\[spark\]'"):
        session()
