"""Parts as processes: the longest first, as many at a time as there are cores, and the first failure ends all.

Most parts wait now and then, for a time-out or for a JVM to start; while that leaves the machine idle, one more runs.

What a part costs is the CPU time of all its processes; see `reaper`. Neighbours on the machine make a part take longer,
and hardly cost it more; so only the CPU time is held against the budget.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .idle import Idleness
from .parts import Part

HUNG = 10.0
"""A part that takes so many times its budget by the clock will never end."""
_MOST_CORES = 2.0
"""What parts may want together, as a multiple of the cores there are, when the machine is idle all the same."""
_REAPER = str(Path(__file__).with_name("reaper.py"))
_GRACE_S = 20.0
"""Tests that are asked to end stop the brokers they have started."""
_LEFT_S = 10.0
"""For what a part leaves behind."""


@dataclass(frozen=True, slots=True)
class Ended:
    part: Part
    code: int
    wall_s: float
    cpu_s: float
    log: Path

    @property
    def failed(self) -> bool:
        return self.code != 0 or self.hung

    @property
    def hung(self) -> bool:
        return self.wall_s > HUNG * self.part.budget_s

    @property
    def too_dear(self) -> bool:
        return self.cpu_s > self.part.budget_s


class Job:
    """A part that runs."""

    def __init__(self, part: Part, log: Path, environment: Mapping[str, str]) -> None:
        self.part, self._log = part, log
        self._began = time.monotonic()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-S", _REAPER, str(_LEFT_S), *part.words(log.with_suffix(".xml"))],
                env={**environment, **part.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.handle = os.pidfd_open(self._process.pid)

    @property
    def hung(self) -> bool:
        return time.monotonic() - self._began > HUNG * self.part.budget_s

    def wait(self) -> Ended:
        """Returns when the process has ended, and kills what it has left behind in its group."""
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        os.close(self.handle)
        self.tell(signal.SIGKILL)
        wall_s, cpu_s = time.monotonic() - self._began, usage.ru_utime + usage.ru_stime
        return Ended(self.part, self._process.returncode, wall_s, cpu_s, self._log)

    def tell(self, what: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, what)


def run(parts: Sequence[Part], logs: Path, cores: float, tell: Callable[[Ended], None], *, go_on: bool) -> list[Ended]:
    """Runs all parts; `tell` hears of each when it ends.

    Args:
        cores: parts that run at the same time want no more than that together, unless the machine is idle; one always
            runs.
        go_on: also after a failure. Otherwise parts that were ended because of it are not told of.
    """
    # Some hundred processes would each compile all they import.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # A shell's background job ignores it, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    names, awaited = {part.name for part in parts}, {part.after for part in parts}
    waiting = sorted(parts, key=lambda part: (part.name not in awaited, -part.budget_s))
    running: list[Job] = []
    ended: list[Ended] = []
    idleness = Idleness()
    try:
        while waiting or running:
            unfinished, most = names - {each.part.name for each in ended}, cores
            if idleness.is_idle():
                most *= _MOST_CORES
            while (part := _next(waiting, running, unfinished, most)) is not None:
                waiting.remove(part)
                running.append(Job(part, logs / f"{part.slug}.log", environment))
                idleness.begin()
                most = cores
            for job in _finished(running):
                running.remove(job)
                ended.append(job.wait())
                tell(ended[-1])
            end([job for job in running if job.hung])
            if not go_on and any(each.failed for each in ended):
                break
    finally:
        end(running)
        for job in running:
            job.wait()
    return ended


def _next(waiting: Iterable[Part], running: Sequence[Job], unfinished: set[str], cores: float) -> Part | None:
    free = cores - sum(job.part.cores for job in running)
    ready = (part for part in waiting if part.after not in unfinished)
    return next((part for part in ready if part.cores <= free or not running), None)


def _finished(running: Sequence[Job]) -> list[Job]:
    """The ones that have ended; waits a second for the first of them."""
    ready, _, _ = select.select([job.handle for job in running], [], [], 1.0)
    return [job for job in running if job.handle in ready]


def end(jobs: Sequence[Job]) -> None:
    """As from the keyboard first, so that tests end what they have started; one of them may swallow it."""
    for job in jobs:
        job.tell(signal.SIGINT)
    deadline, left = time.monotonic() + _GRACE_S, list(jobs)
    while left and time.monotonic() < deadline:
        ended = _finished(left)
        left = [job for job in left if job not in ended]
    for job in left:
        job.tell(signal.SIGKILL)
