"""Processes that work for a bench run, each with a Python of its own, so that its lock is no limit.

Over a pipe a process says READY when it is connected, then, after the parent's GO, how many records it has done, and in
the end its result or its failure. It never sees what a terminal sends to every process, such as Ctrl+C: the parent
does, and ends the others.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from penstock.cli.failure import CommandError

READY = "ready"
GO = "go"
REPORT_S = 0.2


class Parent:
    """A process's end of the pipe."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe
        self._next_s = 0.0

    def wait_go(self) -> None:
        self._pipe.send(READY)
        self._pipe.recv()

    def tell(self, done: int, now_s: float) -> None:
        if now_s >= self._next_s:
            self._next_s = now_s + REPORT_S
            self._pipe.send(done)


Job = Callable[[Any, Parent], Any]


def run_processes(job: Job, loads: Sequence[Any], watch: Callable[[int], None]) -> list[Any]:
    """Run a process for each load, all from the same moment; `watch` hears how many records are done by now.

    Raises:
        CommandError: one of them failed; the others are ended.
    """
    spawn = get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: list[Connection[Any, Any]] = []
    try:
        with _interrupts_held():
            for load in loads:
                mine, theirs = spawn.Pipe()
                process = spawn.Process(target=_work, args=(job, load, theirs), daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(mine)
        return _gather(pipes, watch)
    finally:
        for started in processes:
            started.terminate()
        for started in processes:
            started.join()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process started in here sees neither Ctrl+C nor the terminal's end: it inherits the mask."""
    resource_tracker.ensure_running()  # its own start, which the first process would cause, undoes the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _gather(pipes: "list[Connection[Any, Any]]", watch: Callable[[int], None]) -> list[Any]:
    done = [0] * len(pipes)
    results: dict[int, Any] = {}
    waiting = {pipe: number for number, pipe in enumerate(pipes)}
    ready = 0
    while waiting:
        for pipe in wait(list(waiting), timeout=REPORT_S):
            assert isinstance(pipe, Connection)
            number = waiting[pipe]
            try:
                said = pipe.recv()
            except EOFError:
                raise CommandError(f"process {number + 1} of {len(pipes)} ended without a result") from None
            if said == READY:
                ready += 1
                if ready == len(pipes):
                    for each in pipes:
                        each.send(GO)
            elif isinstance(said, int):
                done[number] = said
            elif isinstance(said, _Failure):
                raise CommandError(said.text, code=said.code)
            else:
                results[number] = said
                del waiting[pipe]
        if ready == len(pipes):
            watch(sum(done))
    return [results[number] for number in range(len(pipes))]


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str
    code: int


def _work(job: Job, load: Any, pipe: "Connection[Any, Any]") -> None:
    from confluent_kafka import KafkaException

    try:
        result = job(load, Parent(pipe))
    except CommandError as error:
        result = _Failure(str(error), error.code)
    except KafkaException as error:
        explained = load.target.server.explain(error.args[0])
        result = _Failure(str(explained), explained.code)
    except (BrokenPipeError, EOFError):
        os._exit(1)  # the parent has gone: nobody is left to work for
    pipe.send(result)
    pipe.close()
