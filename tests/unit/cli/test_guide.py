"""docs/cli.md: what it shows can be typed."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from confluent_kafka import Producer

from penstock.cli.main import COMMANDS, main
from penstock.testing import embedded_broker

GUIDE = Path(__file__).parents[3] / "docs" / "cli.md"
DEADLINE_S = 120
_BLOCK = re.compile(r"^```sh( runnable)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    line: str
    runnable: bool


def read_examples() -> Iterator[Example]:
    for marked, lines in _BLOCK.findall(GUIDE.read_text()):
        yield from (Example(line, bool(marked)) for line in lines.splitlines())


def test_every_command_has_an_example() -> None:
    shown = {word for example in read_examples() for word in re.findall(r"penstock (\w+)", example.line)}
    assert shown == set(COMMANDS)


@pytest.mark.parametrize("line", [example.line for example in read_examples() if not example.runnable])
def test_what_cannot_be_run_here_has_its_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    _start, _penstock, typed = line.rpartition("penstock ")
    words = shlex.split(typed, comments=True)
    named = words[:2] if isinstance(import_module(f"penstock.cli.{words[0]}").command, click.Group) else words[:1]
    assert main([*[word for word in named if not word.startswith("-")], "--help"]) == 0
    told = capsys.readouterr().out
    for option in (word for word in words if word.startswith("-") and not word[1:].isdecimal()):
        assert re.search(rf"(?<![\w-]){re.escape(option)}\b", told), f"{words[0]} has no {option}"


def fill(directory: Path) -> None:
    """A data directory whose broker is stopped, with the topic that the guide looks at."""
    with embedded_broker(directory, partitions=1) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(5):
            producer.produce("orders", b"%d" % number)
        assert producer.flush(DEADLINE_S) == 0


def test_everything_else_runs(tmp_path: Path) -> None:
    """One line after the other, as a reader would type them; the default address is an embedded broker's."""
    fill(tmp_path / "data")
    command = tmp_path / "bin" / "penstock"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m penstock.cli.main "$@"\n')
    command.chmod(0o755)
    lines = [example.line for example in read_examples() if example.runnable]
    assert lines
    with embedded_broker(topic_defaults={"flush": "os"}) as broker:
        env = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        env |= {
            "HOME": str(tmp_path),
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "PENSTOCK_SERVER": broker.bootstrap,
        }
        for line in lines:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", line.replace("127.0.0.1:9092", broker.bootstrap)],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
