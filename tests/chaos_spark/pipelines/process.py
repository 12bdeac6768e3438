"""A pipeline as the command line runs it, and what it leaves in its home: how far it has come."""

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from tests.chaos_spark.kills import Processes, end, family
from tests.peers import penstock

from .destinations import Look, changes_of, names_in

_DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
_LAST_WORDS_S = 90.0
_TASKS = ("local[2]", "local[2,2]")
"""A failed task fails the job, or may be tried once more: every other start."""


class PipelineHome:
    """What is seen from outside."""

    def __init__(self, home: Path, name: str) -> None:
        self.path = home / name

    def phases(self) -> Mapping[str, Look]:
        checkpoint = self.path / "checkpoint"
        return {
            "planned": names_in(checkpoint / "offsets"),
            "counted": changes_of(self.path / "counters.json"),
            "committed": names_in(checkpoint / "commits"),
        }

    @property
    def query(self) -> str:
        with suppress(FileNotFoundError, ValueError):
            return str(json.loads((self.path / "checkpoint" / "metadata").read_text())["id"])
        return ""

    def counters(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.path / "counters.json").read_bytes())["body"]
        return body

    def committed(self) -> int:
        """The last micro-batch that Spark knows to be written, or -1."""
        with suppress(FileNotFoundError):
            names = os.listdir(self.path / "checkpoint" / "commits")
            return max((int(name) for name in names if name.isdecimal()), default=-1)
        return -1

    def position(self) -> int:
        """How many records are in committed micro-batches."""
        batch = self.committed()
        if batch < 0:
            return 0
        *_, offsets = (self.path / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
        return sum(count for topic, parts in json.loads(offsets).items() if topic == "fed" for count in parts.values())

    def restarts(self) -> list[str]:
        """Why the query was begun again within a process, in the run's own words."""
        return [each["text"] for each in self.events() if each["event"] == "restart"]

    def events(self) -> list[dict[str, Any]]:
        try:
            lines = (self.path / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]


class PipelineProcess:
    """`penstock pipeline run`; started again and again."""

    def __init__(self, file: Path, home: Path) -> None:
        self._file, self._home = file, home
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: set[psutil.Process] = set()
        self.starts = 0

    def start(self) -> None:
        master = _TASKS[self.starts % 2]
        self.starts += 1
        command = [*penstock.command(), "pipeline", "run", str(self._file), "--home", str(self._home)]
        with self._output().open("wb") as out:
            self._process = subprocess.Popen(
                [*_DIES_WITH_US, *command, "--master", master, "--conf", "spark.driver.memory=1g"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self, kind: str, coin: random.Random) -> tuple[int, list[psutil.Process]]:
        """As `Processes.kill`."""
        return Processes(self._remember()).kill(kind, coin)

    def wait(self) -> int | None:
        """Its exit code; None: it does not end, and was killed."""
        assert self._process is not None
        try:
            return self._process.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            self.end()
            return None

    def stop(self) -> int | None:
        """As a person does; the same as `wait` then."""
        self._remember().send_signal(signal.SIGTERM)
        return self.wait()

    def end(self) -> None:
        """Whatever is left of it, without a word."""
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                self._remember()
            end([each for each in self._seen if each.is_running()])
            self._process.wait()

    def tail(self) -> str:
        return self._output().read_text(errors="replace")[-3000:]

    def _remember(self) -> psutil.Process:
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        self._seen.update(family(driver))
        return driver

    def _output(self) -> Path:
        return self._file.with_name(f"run-{self.starts}.out")
