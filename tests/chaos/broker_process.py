"""`penstock serve` as a process: started, killed and started again on the same data directory and port."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import yaml

from tests.chaos.load import wait_until
from tests.peers.ports import free_port

START_TIMEOUT_S = 30.0
# Nothing is left running when the test process itself is killed.
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


class BrokerExitedError(Exception):
    """The process ended before it was ready."""

    def __init__(self, returncode: int, output: str) -> None:
        super().__init__(f"exit code {returncode} before ready\n{output}")
        self.returncode = returncode
        self.output = output


class BrokerProcess:
    """Not started by the constructor. Use as a context manager, so that nothing is left running."""

    program = str(Path(sys.executable).with_name("penstock"))

    def __init__(
        self,
        data_dir: Path,
        work_dir: Path,
        *,
        config: Mapping[str, Any] | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.data_dir = data_dir
        self.wrapper = list(wrapper)
        self.starts = 0
        self._work_dir = work_dir
        self._port = free_port()
        self._config = work_dir / "broker.yaml"
        self._config.write_text(yaml.safe_dump(dict(config or {})))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "BrokerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        """The broker's own, also when a wrapper such as strace started it."""
        if not self.wrapper:
            return self.process.pid
        children = psutil.Process(self.process.pid).children()
        if not children:
            raise BrokerExitedError(self.process.wait(), self.output())
        return int(children[0].pid)

    @property
    def _output(self) -> Path:
        """A file for each start: what was printed before a failure is still there when it is looked into."""
        return self._work_dir / f"broker-{self.starts}.out"

    def output(self) -> str:
        """What this run printed, on both streams; the last 8 KiB."""
        return self._output.read_bytes()[-8192:].decode(errors="replace")

    def launch(self) -> None:
        """Start the process and return at once."""
        assert self._process is None or self._process.poll() is not None, "still running"
        command = [*DIES_WITH_US, *self.wrapper, *DIES_WITH_US, self.program, "serve"]
        command += ["--data-dir", str(self.data_dir), "--kafka", self.bootstrap]
        command += ["--http", "127.0.0.1:0", "--config", str(self._config)]
        self.starts += 1
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _ready(self) -> bool:
        if self.process.poll() is not None:
            raise BrokerExitedError(self.process.returncode, self.output())
        # Whole lines only: the last one may be half written.
        return any(
            line.startswith(b"ready ") and line.endswith(b"\n")
            for line in self._output.read_bytes().splitlines(keepends=True)
        )

    @property
    def http(self) -> str:
        """Where a broker that is ready tells of its health, HOST:PORT."""
        ready = next(line for line in self._output.read_text().splitlines() if line.startswith("ready "))
        return ready.split("http=")[1].split()[0]

    def health(self) -> dict[str, Any]:
        """What `/health` says of a broker that is ready."""
        with urllib.request.urlopen(f"http://{self.http}/health", timeout=10) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def start(self) -> None:
        """Start and wait until ready. Raises `BrokerExitedError` when it ends instead."""
        self.launch()
        wait_until(self._ready, START_TIMEOUT_S, "the broker is ready")

    def kill(self) -> None:
        """kill -9 of the broker and whatever it or a wrapper started."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, timeout: float = 15) -> int:
        """SIGTERM; the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(timeout)

    def wait(self, timeout: float = 30) -> int:
        """Wait until it ends by itself; the exit code."""
        return self.process.wait(timeout)


def directory_fingerprint(path: Path, *, without: frozenset[str] = frozenset()) -> dict[str, bytes | None]:
    """Every name below `path` with its bytes; None for a directory."""
    return {
        str(entry.relative_to(path)): entry.read_bytes() if entry.is_file() else None
        for entry in sorted(path.rglob("*"))
        if entry.name not in without
    }
