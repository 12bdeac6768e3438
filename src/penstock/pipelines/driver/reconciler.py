"""What is wanted against what runs: a look at every wanted.json, and a thread for each pipeline that shall run.

A run that has ended, however it did, stays ended until its wish is saved anew; a fault in one pipeline's files or code
is that pipeline's status and nobody else's. What a wish was saved for is told by `asked_ns`.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from penstock.observe.logs import get_logger
from penstock.pipelines.driver.engine import Run
from penstock.pipelines.errors import Busy, PipelineError
from penstock.pipelines.home import Home, PipelineDirectory, State, Status, Wanted, Wish
from penstock.pipelines.home.status import now_ms

_LOOK_EVERY_S: Final = 0.1
_COMMAND: Final = "the background driver"

MakeRun = Callable[[Wanted, PipelineDirectory], Run]

_log = get_logger("pipelines.driver")


class Reconciler:
    """Call `look` again and again.

    Args:
        master: for the status of pipelines whose run cannot say it yet.
        after_crash: the driver before this one died. Then all that is wanted is started, also what had failed: its
            failure may have been the driver's own.
    """

    def __init__(self, home: Home, make_run: MakeRun, *, master: str = "", after_crash: bool = False) -> None:
        self._home = home
        self._make_run = make_run
        self._master = master
        self._after_crash = after_crash
        self._works: dict[str, _Work] = {}
        self._seen: dict[str, tuple[tuple[int, int, int], Wanted | None]] = {}

    def look(self) -> None:
        """Start and stop what has to be, without waiting for any of it."""
        for name in self._home.names():
            try:
                self._reconcile(name)
            except Exception as error:  # noqa: BLE001 - one pipeline's files must not end the others
                _log.exception("a pipeline cannot be looked after", error=error, pipeline=name)

    def stop(self) -> None:
        """Ask every run to stop; what is wanted stays."""
        for work in self._works.values():
            work.stop()

    def at_work(self) -> list[str]:
        return [name for name, work in self._works.items() if work.is_alive]

    def statuses(self) -> list[Status]:
        """Of every pipeline that this driver has had to do with."""
        return [work.status for _, work in sorted(self._works.items())]

    def _reconcile(self, name: str) -> None:
        directory = self._home.pipeline(name)
        wanted = self._load_wanted(directory)
        if wanted is None:
            return
        work = self._works.get(name)
        if work is not None and work.is_alive:
            other = (wanted.file, wanted.once) != (work.wanted.file, work.wanted.once)
            if wanted.state is Wish.STOPPED or other:
                work.stop()
            elif not work.is_stopping:
                work.wanted = wanted
        elif wanted.state is Wish.RUNNING and self._is_due(directory, wanted, work):
            self._works[name] = _Work(directory, wanted, self._make_run, self._master)

    def _is_due(self, directory: PipelineDirectory, wanted: Wanted, work: "_Work | None") -> bool:
        if work is not None:
            return work.wanted.asked_ns != wanted.asked_ns
        with suppress(PipelineError):
            last = directory.load_status()
            if last is None or last.updated_ms < wanted.asked_ms:
                return True
            return not (last.state is State.FINISHED or (last.state is State.FAILED and not self._after_crash))
        return True

    def _load_wanted(self, directory: PipelineDirectory) -> Wanted | None:
        """None where there is none, or a broken one: that is told once, and a run that is at work goes on."""
        try:
            found = os.stat(directory.path / "wanted.json")
        except FileNotFoundError:
            return None
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        seen = self._seen.get(directory.name)
        if seen is not None and seen[0] == stamp:
            return seen[1]
        wanted: Wanted | None = None
        try:
            wanted = directory.load_wanted()
        except (PipelineError, OSError) as error:
            work = self._works.get(directory.name)
            if work is not None and work.is_alive:
                directory.events.write("error", "wanted", f"{error}; what runs goes on")
            else:
                _fail(directory, Wanted("", Wish.RUNNING), self._master, str(error))
        self._seen[directory.name] = stamp, wanted
        return wanted


def refuse_wanted(home: Home, master: str, reason: str) -> None:
    """Say of all that is wanted that it cannot be."""
    for name in home.names():
        directory = home.pipeline(name)
        with suppress(PipelineError, OSError):
            wanted = directory.load_wanted()
            if wanted is not None and wanted.state is Wish.RUNNING:
                _fail(directory, wanted, master, reason)


class _Work:
    """One pipeline from its start to its end, in a thread."""

    def __init__(self, directory: PipelineDirectory, wanted: Wanted, make_run: MakeRun, master: str) -> None:
        self.wanted = wanted
        self._directory = directory
        self._make_run = make_run
        self._master = master
        self._stopping = threading.Event()
        self._run: Run | None = None
        self._said: Status = _begin(directory, wanted, master)
        self._thread = threading.Thread(target=self._work, name=f"pipeline {directory.name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def status(self) -> Status:
        run = self._run
        return self._said if run is None else run.status

    def stop(self) -> None:
        self._stopping.set()

    def _work(self) -> None:
        name = self._directory.name
        try:
            self._run_it()
        except Exception as error:  # noqa: BLE001 - the border of one pipeline: the others go on
            self._fail(error)
        else:
            _log.info("pipeline ended", pipeline=name, state=self.status.state.value, reason=self.status.reason)

    def _run_it(self) -> None:
        _log.info("pipeline starts", pipeline=self._directory.name, file=self.wanted.file)
        run = self._make_run(self.wanted, self._directory)
        if self._stopping.is_set():
            self._said = replace(self._said, state=State.STOPPED, updated_ms=now_ms())
            _save(self._directory, self._said)
            return
        self._run = run
        run.start()
        asked = False
        while not run.wait(_LOOK_EVERY_S):
            if self._stopping.is_set() and not asked:
                asked = True
                run.stop()

    def _fail(self, error: Exception) -> None:
        known = isinstance(error, PipelineError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        if self._run is None or self._run.status.state is not State.FAILED:  # else the run has said so itself
            self._run = None
            self._said = _fail(self._directory, self.wanted, self._master, reason)
        _log.error("pipeline failed", pipeline=self._directory.name, reason=reason)
        if not known:
            _log.exception("that was nothing foreseen", error=error, pipeline=self._directory.name)


def _begin(directory: PipelineDirectory, wanted: Wanted, master: str) -> Status:
    return _say(directory, wanted, master, State.STARTING, "")


def _fail(directory: PipelineDirectory, wanted: Wanted, master: str, reason: str) -> Status:
    with suppress(OSError):
        directory.events.write("error", "failed", reason, file=wanted.file)
    return _say(directory, wanted, master, State.FAILED, reason)


def _say(directory: PipelineDirectory, wanted: Wanted, master: str, state: State, reason: str) -> Status:
    """Save a status for a pipeline that has no run to do it, with the counts there were."""
    last = None
    with suppress(PipelineError, OSError):
        last = directory.load_status()
    now = now_ms()
    status = replace(
        last.without_lag() if last else Status(directory.name, state),
        state=state,
        reason=reason,
        pid=os.getpid(),
        master=master,
        file=wanted.file or (last.file if last else ""),
        started_ms=now if state is State.STARTING or last is None else last.started_ms,
        updated_ms=now,
        rows_per_s=0.0,
    )
    _save(directory, status)
    return status


def _save(directory: PipelineDirectory, status: Status) -> None:
    """Unless somebody else runs it, whose status it is, or the disk does not take it: the driver goes on without."""
    try:
        with directory.locked(_COMMAND):
            directory.save_status(status)
    except Busy:
        pass
    except OSError as error:
        _log.error("a status cannot be saved", pipeline=status.pipeline, reason=error)
