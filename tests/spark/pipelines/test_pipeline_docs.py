"""The tutorial can be followed: its files are written, its commands typed, and what it shows of their answers is there.

Lines are run one after the other. What starts Spark in the foreground gets the session that the tests share; the
background driver is a process with its own.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.cli.main import COMMANDS, main
from penstock.pipelines.home.status import SinkStatus, SourceStatus, State, Status, StepStatus
from penstock.pipelines.http import PipelineCollector
from penstock.pipelines.spec import load
from penstock.testing import embedded_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[3] / "docs"
TUTORIAL = DOCS / "pipelines-tutorial.md"
PAGES = (TUTORIAL, DOCS / "pipelines.md")
DEADLINE_S = 300
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    name: str
    text: str


def read_blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text())]


class Shared:
    """The tests' session, which nobody stops."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        pass


class Reader:
    """Somebody who types what stands in a page."""

    def __init__(self, folder: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._environment = environment
        self._capsys = capsys
        self.answer = ""

    def follow(self, block: Block) -> None:
        match block:
            case Block("sh", "runnable" | "fails"):
                lines = block.text.splitlines()
                codes, answers = zip(*map(self._type, lines), strict=True)
                self.answer = "\n".join(answers)
                failed = block.name == "fails"
                assert (codes[-1] != 0) is failed and not any(codes[:-1]), f"{block.text}{codes}\n{self.answer}"
                assert "Traceback" not in self.answer
            case Block("text"):
                for line in block.text.splitlines():
                    wanted = ".*".join(map(re.escape, line.strip().split("…")))
                    assert re.search(wanted, self.answer), f"{line}\nis not in\n{self.answer}"
            case Block("python", ""):
                # A process of its own: one that ends badly has done its work, and shows a user that it failed.
                words = [sys.executable, "-c", block.text]
                subprocess.run(words, cwd=self._folder, env=self._environment, timeout=DEADLINE_S, check=True)
            case Block("sh"):
                pass
            case _:
                assert block.name, block
                (self._folder / block.name).write_text(block.text)

    def _type(self, line: str) -> tuple[int, str]:
        if line.startswith(("penstock pipeline check ", "penstock pipeline run ")):
            self._capsys.readouterr()
            code = main(shlex.split(line, comments=True)[1:])
            return code, "".join(self._capsys.readouterr())
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode, done.stdout


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A broker, a home, and `penstock` on the path."""
    command = tmp_path / "bin" / "penstock"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m penstock.cli.main "$@"\n')
    command.chmod(0o755)
    with embedded_broker(topic_defaults={"flush": "os"}) as broker:
        yield {
            **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "PENSTOCK_SERVER": broker.bootstrap,
            "PENSTOCK_PIPELINES": str(tmp_path / "home"),
        }


def test_the_tutorial_can_be_followed(
    tmp_path: Path,
    spark: "SparkSession",
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("PENSTOCK_SERVER", "PENSTOCK_PIPELINES"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setattr("penstock.pipelines.run.sessions.open_session", lambda master, conf: Shared(spark))
    reader = Reader(folder, environment, capsys)
    try:
        for block in read_blocks(TUTORIAL):
            reader.follow(block)
    finally:
        subprocess.run(["penstock", "pipeline", "stop", "--driver"], env=environment, timeout=DEADLINE_S, check=False)
    assert "incubator" not in (tmp_path / "home" / "driver.log").read_text()
    assert (folder / "revenue.svg").read_text() == (DOCS / "pictures" / "revenue.svg").read_text(), (
        "the picture is not what the command draws; copy the new one"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_and_pages_that_are_named_are_there(page: Path) -> None:
    named = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert named
    assert [each for each in named if not (page.parent / each).exists()] == []


def test_every_command_stands_in_the_manual() -> None:
    from penstock.cli.pipeline import COMMANDS as PIPELINE_COMMANDS

    assert "pipeline" in COMMANDS
    text = (DOCS / "pipelines.md").read_text()
    assert [each for each in PIPELINE_COMMANDS if f"`penstock pipeline {each}" not in text] == []


def test_the_manual_s_pipelines_can_be_read(tmp_path: Path) -> None:
    """Both of them are the same pipeline, but for a step."""
    written = {block.language: block.text for block in read_blocks(DOCS / "pipelines.md")}
    read = []
    for language, name in (("yaml", "pipeline.yaml"), ("python", "pipeline.py")):
        (tmp_path / name).write_text(written[language])
        read.append(load(tmp_path / name))
    yaml, program = read
    assert (yaml.name, yaml.every_s, yaml.sources[0].options) == (
        program.name,
        program.every_s,
        program.sources[0].options,
    )
    assert [step.name for step in yaml.steps] == ["paid"]
    assert [(step.name, step.inputs) for step in program.steps] == [("paid", ("orders",)), ("large", ("paid",))]
    assert (yaml.sinks[0].source, program.sinks[0].source) == ("paid", "large")


def test_every_metric_stands_in_the_manual() -> None:
    status = Status(
        "revenue",
        State.RUNNING,
        sources={"orders": SourceStatus(lag=0)},
        steps={"paid": StepStatus(failed={"costs something": 1})},
        sinks={"lake": SinkStatus("delta")},
    )
    given = {
        sample.name: set(sample.labels)
        for metric in PipelineCollector(lambda: [status]).collect()
        for sample in metric.samples
    }
    rows = re.findall(r"^\| `(penstock_pipeline_\w+)` \| ([^|]+) \|", (DOCS / "pipelines.md").read_text(), re.MULTILINE)
    assert {name: set(labels.split(", ")) for name, labels in rows} == given


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_are_shown_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.findall(r"penstock (pipeline \w+)((?: [^`\n|]*)?)", page.read_text())
    assert shown
    for command, rest in shown:
        assert main([*command.split(), "--help"]) == 0
        told = capsys.readouterr().out
        for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest):
            assert re.search(rf"(?<![\w-]){re.escape(option)}\b", told), f"penstock {command} has no {option}"
