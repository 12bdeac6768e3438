"""Runs without Spark, and a driver of them when called as a program. What a run does is said by its pipeline's file:

runs       until it is stopped, or until there is a file `die` in its directory: then it fails with what that says
lingers    the same, but ends only when there is a file `done`
slow       starts only when there is a file `go`
refuse     cannot start       bug  a fault in the program       wrong  the file is wrong

An engine dies when there is a file `engine-dies` in the working directory; that it had time enough to live is said by
$FAKE_SHORTEST_LIFE_S.
"""

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from penstock.pipelines.driver import process
from penstock.pipelines.errors import Finding, PipelineError, SpecError
from penstock.pipelines.home import PipelineDirectory, State, Status, Wanted
from penstock.pipelines.home.status import now_ms

LOOK_EVERY_S = 0.01


class FakeRun:
    def __init__(self, wanted: Wanted, directory: PipelineDirectory) -> None:
        if not Path(wanted.file).is_file():
            raise PipelineError(f"{wanted.file} is gone")
        self.behaviour = Path(wanted.file).read_text().strip()
        if self.behaviour == "wrong":
            raise SpecError([Finding(None, "line 3: no such step")])
        self.status = Status(directory.name, State.STARTING)
        self.error: PipelineError | None = None
        self._wanted = wanted
        self._directory = directory
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._lock = directory.locked("fake run")

    def start(self) -> None:
        self._lock.__enter__()
        try:
            if self.behaviour == "refuse":
                raise PipelineError("sink lake has no column at")
            if self.behaviour == "bug":
                raise RuntimeError("oops")
            while self.behaviour == "slow" and not self._there("go"):
                time.sleep(LOOK_EVERY_S)
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        last = self._directory.load_status()
        self.status = replace(last, batches=last.batches) if last else self.status
        threading.Thread(target=self._work, daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._ended.wait(timeout_s)

    def _work(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            reason = self._read("die")
            if reason:  # a file is empty for a moment before it says something
                self.error = PipelineError(reason)
                break
            self._say(State.RUNNING)
            if self._wanted.once:
                break
        while self.behaviour == "lingers" and not self._there("done"):
            self._say(State.STOPPING)
            time.sleep(LOOK_EVERY_S)
        if self.error is not None:
            self._say(State.FAILED, str(self.error))
        else:
            self._say(State.STOPPED if self._stop.is_set() else State.FINISHED)
        self._lock.__exit__(None, None, None)
        self._ended.set()

    def _say(self, state: State, reason: str = "") -> None:
        batches = self.status.batches + (state is State.RUNNING)
        self.status = replace(self.status, state=state, reason=reason, batches=batches, updated_ms=now_ms())
        self._directory.save_status(self.status)

    def _read(self, name: str) -> str:
        return (self._directory.path / name).read_text() if self._there(name) else ""

    def _there(self, name: str) -> bool:
        return (self._directory.path / name).exists()


class FakeEngine:
    def __init__(self, master: str) -> None:
        if master == "nowhere":
            raise PipelineError("Spark at 'nowhere' does not start")

    def make_run(self, wanted: Wanted, directory: PipelineDirectory) -> FakeRun:
        return FakeRun(wanted, directory)

    def is_alive(self) -> bool:
        return not Path("engine-dies").exists()

    def close(self) -> None:
        print("engine closed", flush=True)


if __name__ == "__main__":
    process._SHORTEST_LIFE_S = float(os.environ.get("FAKE_SHORTEST_LIFE_S", "60"))  # type: ignore[misc]
    sys.exit(process.main(sys.argv[1:], FakeEngine))
