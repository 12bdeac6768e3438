"""A job given away: to a process of its own on a real disk, or to the disk's own threads on a simulated one.

Opening a log's records takes minutes of pure Python; in the broker's process every one of them would be taken from the
event loop.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

import orjson

from penstock.ports.disk import Disk
from penstock.storage.compaction.job import CompactionError, Job, Result

_WORKER = "penstock.storage.compaction.worker"
_SHOWN_CHARACTERS = 500


class Compactor(Protocol):
    async def run(self, job: Job) -> Result:
        """Work off a job.

        Cancelled, it stops and leaves its files behind: `swap.drop_leftovers` before the next pass.

        Raises:
            CompactionError: a segment cannot be compacted, or the worker died; the log is untouched.
            OSError: from the disk, as the operating system gave it.
        """
        ...


class CompactionProcess:
    """Jobs in a process beside the broker, on the real disk: one after the other, so that it is started but once.

    Starting one stops the event loop for milliseconds, so it stays for a while after its last job. A cancelled `run`
    kills it. It is started and asked by a thread of its own: the kernel ends the process when that thread is gone.
    """

    def __init__(self, rest_after_s: float = 60.0) -> None:
        self._rest_after_s = rest_after_s
        self._thread = ThreadPoolExecutor(1, "compaction")
        self._process: subprocess.Popen[bytes] | None = None
        self._resting: asyncio.TimerHandle | None = None

    async def run(self, job: Job) -> Result:
        loop = asyncio.get_running_loop()
        if self._resting is not None:
            self._resting.cancel()
        asked = loop.run_in_executor(self._thread, self._ask, job)
        try:
            answer = await asyncio.shield(asked)
        except asyncio.CancelledError:
            while not asked.done():  # it may not have been started yet
                self._kill()
                await asyncio.wait({asked}, timeout=0.05)
            asked.exception()
            raise
        self._resting = loop.call_later(self._rest_after_s, self._kill)
        return _result_of(orjson.loads(answer))

    def close(self) -> None:
        """End the process, if there is one."""
        if self._resting is not None:
            self._resting.cancel()
        self._kill()
        self._thread.shutdown(wait=False)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._thread.submit(self._process.wait)

    def _ask(self, job: Job) -> bytes:
        """Runs in the thread."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = _start()
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with suppress(BrokenPipeError):
            process.stdin.write(job.encode() + b"\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        if answer.endswith(b"\n"):
            return answer
        self._process = None
        said = process.stderr.read().decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
        code = process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                pipe.close()
        raise CompactionError(f"compaction of {job.directory}: its process ended with {code}: {said}")


def _start() -> "subprocess.Popen[bytes]":
    # -P: the broker's working directory is nobody's to import from.
    command = (sys.executable, "-P", "-m", _WORKER, str(os.getpid()))
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: S603 - our own words


class InlineCompaction:
    """Each job through the disk itself, at full speed, for disks that only this process has.

    Args:
        proceed: called again and again; raises to give up.
    """

    def __init__(self, disk: Disk, proceed: Callable[[], None] = lambda: None) -> None:
        self._disk = disk
        self._proceed = proceed

    async def run(self, job: Job) -> Result:
        from penstock.storage.compaction.cleaning import clean  # which a broker with processes never needs

        return await self._disk.run(
            clean, self._disk, job, monotonic=lambda: 0.0, pause=lambda _: None, proceed=self._proceed
        )


def _result_of(answer: dict[str, object]) -> Result:
    match answer:
        case {"result": dict(fields)}:
            return Result.from_fields(fields)
        case {"disk": [int(code), str(text), path]}:
            raise OSError(code, text, path)
        case _:
            raise CompactionError(str(answer.get("given_up", answer)))
