"""The guide to queues, and the pages for who comes from elsewhere: all they show can be typed, line after line."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing import embedded_broker

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("queues", "coming-from-sqs", "coming-from-rabbitmq", "coming-from-celery")
DEADLINE_S = 120
_FILE = re.compile(r"^```python (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```sh runnable\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_everything_runs(page: str, tmp_path: Path) -> None:
    place = tmp_path / "reader"
    command = place / "bin" / "penstock"
    command.parent.mkdir(parents=True)
    python = command.with_name("python")
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m penstock.cli.main "$@"\n')
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    for each in (command, python):
        each.chmod(0o755)
    for name, text in _FILE.findall((DOCS / f"{page}.md").read_text()):
        (place / name).write_text(text)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
    lines = [line for block in _BLOCK.findall((DOCS / f"{page}.md").read_text()) for line in block.splitlines()]
    assert len(lines) > 8
    with embedded_broker(tmp_path / "data", partitions=1) as broker:
        env = {
            **clean,
            "HOME": str(place),
            "PATH": f"{command.parent}{os.pathsep}{clean['PATH']}",
            "PENSTOCK_SERVER": broker.bootstrap,
        }
        for line in lines:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", line],
                cwd=place,
                env=env,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            assert "Traceback" not in done.stderr
