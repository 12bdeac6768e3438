"""docs/tls.md: its settings start a broker, and what it shows can be typed, from the first line to the last."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.peers.broker import Broker, wait_until

GUIDE = Path(__file__).parents[3] / "docs" / "tls.md"
DEADLINE_S = 120
_BLOCK = re.compile(r"^```(sh runnable|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_READY = re.compile(r"^ready .*\bkafka=(\S+)", re.MULTILINE)
_ADDRESS = "127.0.0.1:9092"


class Reader:
    """Types what the page says, in a directory and a home of its own."""

    def __init__(self, place: Path) -> None:
        self._place = place
        command = place / "bin" / "penstock"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m penstock.cli.main "$@"\n')
        command.chmod(0o755)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        self._env = {**clean, "HOME": str(place), "PATH": f"{command.parent}{os.pathsep}{clean['PATH']}"}
        self.broker: Broker | None = None

    def start(self, settings: str) -> None:
        """As the page has it, but for the ports."""
        before = self.stop()
        assert _ADDRESS in settings
        told, log = self._place / "told", self._place / "log"
        (self._place / "penstock.yaml").write_text(settings.replace(_ADDRESS, "127.0.0.1:0"))
        words = ["penstock", "serve", "--config", "penstock.yaml", "--http", "127.0.0.1:0"]
        with told.open("wb") as out, log.open("ab") as err:
            process = subprocess.Popen(words, cwd=self._place, env=self._env, stdout=out, stderr=err)
        wait_until(lambda: _READY.search(told.read_text()) is not None, process, "penstock", log)
        found = _READY.search(told.read_text())
        assert found
        self.broker = Broker("penstock", process, found[1], 0.0, log)
        contexts = self._place / ".penstock" / "config.yaml"
        if before is not None and contexts.exists():  # a reader's broker would have its port still
            contexts.write_text(contexts.read_text().replace(before.bootstrap, found[1]))

    def type(self, line: str) -> None:
        address = self.broker.bootstrap if self.broker is not None else _ADDRESS
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line.replace(_ADDRESS, address)],
            cwd=self._place,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr

    def stop(self) -> Broker | None:
        """The broker that was running."""
        stopped, self.broker = self.broker, None
        if stopped is not None:
            assert stopped.stop() == 0
        return stopped


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_everything_can_be_typed(reader: Reader) -> None:
    found = _BLOCK.findall(GUIDE.read_text())
    assert sum(kind == "yaml" for kind, _ in found) == 3
    for kind, text in found:
        if kind == "yaml":
            reader.start(text)
            continue
        for line in text.splitlines():
            reader.type(line)
