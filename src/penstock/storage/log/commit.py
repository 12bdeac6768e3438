"""Group commit: one sync round at a time for every log that asked; appends gather for the next round meanwhile.

A round covers exactly what was appended before it began. It names new segment files, syncs all dirty files in one call
of the disk port, and only then tells each log how far it is durable. A failed sync is never retried: the kernel may
have dropped the pages and called them clean, so the broker stops.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.observe.stats import Stats
from penstock.ports.clock import Clock
from penstock.ports.disk import Disk, File


@dataclass(slots=True)
class CommitJob:
    """What one log brings to a round."""

    end_offset: int
    position: int
    files: list[File]
    renames: list[tuple[str, str]]
    directory: str


class Committable(Protocol):
    commit_wanted: bool

    def begin_commit(self) -> CommitJob: ...

    def finish_commit(self, job: CommitJob) -> None: ...


class Committer:
    """Runs the rounds. `request` is cheap and may be called for every append."""

    def __init__(self, disk: Disk, clock: Clock, stats: Stats, fail: Callable[[BaseException], None]) -> None:
        self._disk = disk
        self._clock = clock
        self._stats = stats
        self._fail = fail
        self._wanted: list[Committable] = []
        self._wake = asyncio.Event()
        self._round_done: list[asyncio.Future[None]] = []
        self._failed: BaseException | None = None
        self.rounds = 0
        """How many have been: while it stands, no log is durable any further."""

    def request(self, log: Committable) -> None:
        """Have `log` synced in the next round."""
        if not log.commit_wanted:
            log.commit_wanted = True
            self._wanted.append(log)
            self._wake.set()

    async def commit(self, log: Committable) -> None:
        """Return when everything `log` holds now is durable."""
        if self._failed is not None:
            raise self._failed
        self.request(log)
        done = asyncio.get_running_loop().create_future()
        self._round_done.append(done)
        await done

    async def run(self) -> None:
        while self._failed is None:
            await self._wake.wait()
            self._wake.clear()
            await self._round()  # what it held, such as logs that are closed since, goes with it

    async def _round(self) -> None:
        logs, self._wanted = self._wanted, []
        waiting, self._round_done = self._round_done, []
        jobs = []
        for log in logs:
            log.commit_wanted = False
            jobs.append(log.begin_commit())
        started = self._clock.monotonic()
        try:
            await self._disk.run_first(_sync, self._disk, jobs)
        except OSError as error:
            self._stop(error, waiting)
            return
        self._stats.sync_latency.observe(self._clock.monotonic() - started)
        self._stats.sync_files += sum(len(job.files) for job in jobs)
        for log, job in zip(logs, jobs, strict=True):
            log.finish_commit(job)
        self.rounds += 1
        for done in waiting:
            if not done.done():
                done.set_result(None)

    def _stop(self, error: OSError, waiting: list["asyncio.Future[None]"]) -> None:
        self._failed = error
        for done in [*waiting, *self._round_done]:
            if not done.done():
                done.set_exception(error)
        self._fail(error)


def _sync(disk: Disk, jobs: list[CommitJob]) -> None:
    for job in jobs:
        for source, target in job.renames:
            disk.rename(source, target)
        if job.renames:
            disk.sync_dir(job.directory)
    files = [file for job in jobs for file in job.files]
    if files:
        disk.sync_files(files)
