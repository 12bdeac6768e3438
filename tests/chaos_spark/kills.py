"""Which process of a Spark job dies at which moment.

A moment is named by what the job has just written to the log of its marks, so a slow machine meets the same ones: a
task has claimed its turn, has done its part, the driver has sealed the batch, has marked it. From there a few
milliseconds lead into, or past, what comes next.
"""

import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

WORKERS, WORKER, DRIVER, JVM, GHOSTS = "workers", "worker", "driver", "jvm", "ghosts"
PHASES = {"claim": 3, "done": 3, "seal": 1, "mark": 1}
"""What is written in a batch, and how often."""


class Kill(NamedTuple):
    kind: str
    """workers: all Python workers; worker: one; driver: everything; jvm: the JVM alone, the rest ends by itself;
    ghosts: the workers are stopped, all else is killed, and they go on when the next driver is at work."""
    batches: int
    """How many are committed before, since the last kill was got over."""
    phase: str
    nth: int
    delay_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.delay_s * 1000:.0f} ms after {self.phase} {self.nth} of batch {self.batches}"


def plan(seed: int, count: int) -> Iterator[Kill]:
    """The first spares the driver, whose start takes long; so do most of the others."""
    coin = random.Random(seed)
    for number in range(count):
        kinds = [*[WORKERS] * 4, WORKER, DRIVER, JVM, GHOSTS] if number else [WORKERS]
        phase = coin.choice([*PHASES, "mark"])
        yield Kill(
            coin.choice(kinds),
            coin.randint(1, 2),
            phase,
            coin.randint(1, PHASES[phase]),
            coin.choice([0.0, coin.uniform(0, 0.03), coin.uniform(0, 0.3)]),
        )


class Processes:
    """A driver and all it has started."""

    def __init__(self, driver: psutil.Process) -> None:
        self._driver = driver

    def kill(self, kind: str, coin: random.Random) -> tuple[int, list[psutil.Process]]:
        """Returns how many processes it was, and those that are stopped and to be continued."""
        everything = [self._driver, *self._driver.children(recursive=True)]
        daemons = [each for each in everything if _runs(each, "pyspark.daemon")]
        workers = [each for each in daemons if each.ppid() in {other.pid for other in daemons}]
        match kind:
            case "workers":
                chosen = workers
            case "worker":
                chosen = [coin.choice(workers)] if workers else []
            case "jvm":
                chosen = [each for each in everything if _runs(each, "org.apache.spark.deploy.SparkSubmit")]
            case "ghosts":
                _signal(workers, signal.SIGSTOP)
                _signal([each for each in everything if each not in workers], signal.SIGKILL)
                return len(everything) - len(workers), workers
            case _:
                chosen = everything
        _signal(chosen, signal.SIGKILL)
        return len(chosen), []


def resume(stopped: list[psutil.Process]) -> None:
    _signal(stopped, signal.SIGCONT)


def end(processes: list[psutil.Process]) -> None:
    """Whatever is left of them."""
    _signal(processes, signal.SIGKILL)


def family(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def _runs(process: psutil.Process, what: str) -> bool:
    try:
        return any(what in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
