"""docs/security.md: everything it shows can be typed, one line after the other; only the ports are others."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.testing.held_port import HeldPort

GUIDE = Path(__file__).parents[3] / "docs" / "security.md"
DEADLINE_S = 60
_FENCE = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Line(NamedTuple):
    text: str
    is_refused: bool


def read_lines() -> Iterator[Line]:
    for language, mark, body in _FENCE.findall(GUIDE.read_text()):
        if language == "sh":
            assert mark in ("runnable", "refused"), body
            yield from (Line(text, mark == "refused") for text in body.splitlines())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    command = tmp_path / "bin" / "penstock"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m penstock.cli.main "$@"\n')
    command.chmod(0o755)
    ((_, _, settings),) = [each for each in _FENCE.findall(GUIDE.read_text()) if each[0] == "yaml"]
    (tmp_path / "broker.yaml").write_text(settings)
    return tmp_path


def test_all_of_it(place: Path) -> None:
    ports = {"127.0.0.1:9092": HeldPort(), "127.0.0.1:8080": HeldPort()}

    def moved(text: str) -> str:
        for shown, port in ports.items():
            text = text.replace(shown, f"127.0.0.1:{port.number}")
        return text

    settings = place / "broker.yaml"
    settings.write_text(moved(settings.read_text()))
    env = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    env |= {"HOME": str(place), "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    lines = list(read_lines())
    assert sum(line.is_refused for line in lines) >= 3
    server = None
    try:
        for line in lines:
            if line.text.startswith("penstock serve"):
                for port in ports.values():
                    port.release()
                server = subprocess.Popen(
                    shlex.split(line.text), cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
                assert server.stdout is not None and server.stdout.readline().startswith(b"ready ")
                continue
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", moved(line.text)],
                cwd=place,
                env=env,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert (done.returncode != 0) == line.is_refused, f"{line.text}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
            if line.is_refused:
                assert done.stderr.splitlines()[-1].startswith("penstock: "), f"{line.text}\n{done.stderr}"
    finally:
        if server is not None:
            server.terminate()
            server.wait(DEADLINE_S)
            assert server.stdout is not None
            server.stdout.close()
    assert server is not None
