"""`penstock config`: every problem at once, and where each value comes from."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.engine.topic_config import SETTINGS as TOPIC_SETTINGS
from penstock.server.config_table import SETTINGS


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str) -> str:
    Path("penstock.yaml").write_text(text)
    return "penstock.yaml"


def answer(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["config", *words, "-o", "json"]) == code
    return json.loads(capsys.readouterr().out)


def test_sound_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("node: {id: 2}\ndefaults: {topic: {flush: os}}\n")
    assert answer(capsys, "check", file) == {"file": file, "sound": True, "problems": []}
    monkeypatch.setenv("PENSTOCK_GREETING", "hello")
    assert main(["config", "check"]) == 0
    told = capsys.readouterr()
    assert "sound" in told.out and "PENSTOCK_GREETING" in told.err


def test_all_problems_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(
        """
node: {id: x}
listners: {kafka: "127.0.0.1:1"}
listeners: {http: "0.0.0.0:80"}
logging: {level: "${NOT_SET}"}
defaults: {topic: {retention.ms: soon, flsh: os}}
data_dir: penstock.yaml
"""
    )
    monkeypatch.setenv("PENSTOCK_LIMITS__MAX_CONNECTIONS", "0")
    problems = answer(capsys, "check", file, code=2)["problems"]
    keys: tuple[str, ...] = ("logging.level", "node.id", "listners", "limits.max_connections", "listeners.http")
    keys += ("defaults.topic.retention.ms", "defaults.topic.flsh", "data_dir")
    assert len(problems) == len(keys)
    for key in keys:
        told = next(problem for problem in problems if problem.startswith(key))
        assert "penstock.yaml" in told or "PENSTOCK_LIMITS__MAX_CONNECTIONS" in told or "0.0.0.0:80" in told
    assert main(["config", "check", file]) == 2
    assert "8 problems" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["a: [", "- 1", "a: 1\na: 2\n"])
def test_a_file_that_is_no_settings(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(answer(capsys, "check", write(text), code=2)["problems"]) == 1
    assert main(["config", "check", "missing.yaml"]) == 2


def test_show_names_the_source_of_every_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("node: {id: 2}\nlogging: {level: debug}\ndefaults: {topic: {flush: os}}\n")
    monkeypatch.setenv("PENSTOCK_NODE__ID", "3")
    words = ("show", "--config", file, "--set", "topics.auto_create=no")
    rows = {row["key"]: row for row in answer(capsys, *words)}
    assert set(rows) == {setting.key for setting in SETTINGS} | {"defaults.topic.flush"}
    assert {(key, row["value"], row["origin"]) for key, row in rows.items() if row["origin"] != "default"} == {
        ("node.id", 3, "env"),
        ("logging.level", "debug", "file"),
        ("defaults.topic.flush", "os", "file"),
        ("topics.auto_create", False, "flag"),
    }
    assert rows["node.id"]["source"] == "PENSTOCK_NODE__ID"
    assert rows["listeners.kafka"]["value"] == "127.0.0.1:9092"
    assert len(answer(capsys, *words, "--changed")) == 4
    assert main(["config", *words]) == 0
    assert "where Kafka clients connect" in capsys.readouterr().out


def test_show_refuses_what_serve_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--set", "node.id=x"]) == 2
    assert "node.id" in capsys.readouterr().err


def test_topic_settings(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in answer(capsys, "show", "--topic-settings", "--set", "defaults.topic.flush=os")}
    assert set(rows) == set(TOPIC_SETTINGS)
    assert (rows["flush"]["default"], rows["flush"]["source"]) == ("os", "--set")
    assert rows["retention.ms"]["default"] == TOPIC_SETTINGS["retention.ms"].default
