"""A pass in a process of its own: the same outcome, its errors, and its end when nobody wants it any more."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.simulated_broker import virtual
from tests.unit.storage.compaction.sealed_log import SealedLog, load, save

from penstock.storage.compaction import worker as compaction_worker
from penstock.storage.compaction.job import CompactionError
from penstock.storage.compaction.process import CompactionProcess, InlineCompaction
from penstock.storage.compaction.swap import finish_swap, prepare_swap
from penstock.storage.local_disk import LocalDisk
from penstock.testing.faulty_disk import FaultyDisk

DEADLINE_S = 60
SLOW = 10  # bytes a second: the first pause is longer than any test waits
_PARENT = """
import asyncio, sys
from penstock.storage.compaction.job import Job
from penstock.storage.compaction.process import CompactionProcess
asyncio.run(CompactionProcess().run(Job.decode(sys.stdin.buffer.read())))
"""


def written(disk: LocalDisk | FaultyDisk, directory: str = "log") -> SealedLog:
    log = SealedLog(disk, directory)
    for number in range(40):
        log.write((b"%d" % (number % 7), b"v" * 500))
        if number % 10 == 9:
            log.seal()
    return log


@pytest.fixture
def log(tmp_path: Path) -> SealedLog:
    return written(LocalDisk(), str(tmp_path))


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0.01)


def workers(parent: int) -> list[int]:
    """Processes of ours that compact, by the command line the kernel knows."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"penstock.storage.compaction.worker" in words and str(parent).encode() in words:
                found.append(int(entry.name))
    return found


@pytest.fixture
def process() -> Iterator[CompactionProcess]:
    made = CompactionProcess()
    yield made
    made.close()
    wait_until(lambda: not workers(os.getpid()))


async def test_a_process_does_what_is_done_inline(log: SealedLog, process: CompactionProcess) -> None:
    result = await process.run(log.job())
    assert result == log.clean()
    assert prepare_swap(log.disk, log.directory, result)
    finish_swap(log.disk, log.directory)
    log.take(result)
    assert [row[0] for row in log.rows()] == list(range(33, 40))


def test_the_worker_yields_its_core_during_a_pass(log: SealedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    yields = 0

    def sched_yield() -> None:
        nonlocal yields
        yields += 1

    monkeypatch.setattr(os, "sched_yield", sched_yield)
    assert "result" in compaction_worker._answer(log.job(), lambda: None)
    assert yields > 2 * 40  # every batch is opened twice


async def test_one_process_works_off_many_jobs_and_rests_then(log: SealedLog) -> None:
    process = CompactionProcess(rest_after_s=0.2)
    first = await process.run(log.job())
    started = workers(os.getpid())
    assert len(started) == 1
    assert await process.run(log.job()) == first
    assert workers(os.getpid()) == started
    await until(lambda: not workers(os.getpid()))
    assert await process.run(log.job()) == first
    process.close()


@virtual
async def test_inline_on_a_simulated_disk() -> None:
    log = written(FaultyDisk())
    result = await InlineCompaction(log.disk).run(log.job(bytes_per_second=1))
    assert result.records_kept == 7


async def test_damage_comes_back_as_what_it_is(log: SealedLog, process: CompactionProcess) -> None:
    path = log.sources[2].path
    data = bytearray(load(log.disk, path))
    data[100] ^= 1
    save(log.disk, path, bytes(data))
    with pytest.raises(CompactionError, match=rf"{path} cannot be compacted, byte 0"):
        await process.run(log.job())


async def test_an_error_of_the_disk_keeps_its_number(
    log: SealedLog, process: CompactionProcess, tmp_path: Path
) -> None:
    (tmp_path / f"{0:020d}.cleaned").mkdir()
    with pytest.raises(IsADirectoryError) as raised:
        await process.run(log.job())
    assert raised.value.errno == errno.EISDIR and raised.value.filename.endswith(".cleaned")


async def test_a_worker_that_breaks_says_why(
    log: SealedLog, process: CompactionProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.storage.compaction.job.Job.encode", lambda self: b"no job")
    with pytest.raises(CompactionError, match=r"(?s)ended with 1: .*JSONDecodeError"):
        await process.run(log.job())


async def test_a_worker_that_is_killed_is_named(log: SealedLog, process: CompactionProcess) -> None:
    running = asyncio.create_task(process.run(log.job(bytes_per_second=SLOW)))
    await until(lambda: workers(os.getpid()))
    for worker in workers(os.getpid()):
        os.kill(worker, signal.SIGKILL)
    with pytest.raises(CompactionError, match="ended with -9"):
        await running


async def test_cancelling_ends_the_process(log: SealedLog, process: CompactionProcess) -> None:
    before = log.files()
    running = asyncio.create_task(process.run(log.job(bytes_per_second=SLOW)))
    await until(lambda: workers(os.getpid()))
    running.cancel()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not workers(os.getpid())
    assert log.files() == before


def test_a_worker_does_not_outlive_its_parent(log: SealedLog) -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdin=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        parent.stdin.write(log.job(bytes_per_second=SLOW).encode())
        parent.stdin.close()
        try:
            wait_until(lambda: workers(parent.pid))
            wait_until(lambda: all(_is_niced(worker) for worker in workers(parent.pid)))
        finally:
            parent.kill()
    wait_until(lambda: not workers(parent.pid))


def _is_niced(process: int) -> bool:
    try:
        return os.getpriority(os.PRIO_PROCESS, process) == 19
    except ProcessLookupError:
        return False


def test_a_worker_of_somebody_else_does_nothing(log: SealedLog, process: CompactionProcess) -> None:
    before = log.files()
    command = [sys.executable, "-m", "penstock.storage.compaction.worker", "1"]
    done = subprocess.run(command, input=log.job().encode(), capture_output=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 1 and b"process 1 is gone" in done.stderr and not done.stdout
    assert log.files() == before


def test_the_worker_imports_no_more_than_it_needs() -> None:
    script = "import sys, penstock.storage.compaction.worker\nprint(*sorted(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()
    rooms = {name.split(".")[1] for name in found if name.startswith("penstock.")}
    assert rooms == {"errors", "ports", "records", "storage"}
    assert not {"penstock.storage.log.log", "penstock.storage.log.recovery", "confluent_kafka", "uvloop"} & set(found)
    assert len(found) < 350
