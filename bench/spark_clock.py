"""Wall time of a query and the CPU time of everybody who worked for it.

Spark's Python daemon lets its workers go without waiting for them, and with them goes their CPU time: neither they nor
their parent has it any more. So the processes are looked at while the query runs, and what each was last seen with
counts. A worker's last moments may be missing.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench.subject import Subject

_EVERY_S = 0.2
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Timing(NamedTuple):
    """`spark_cpu_s` is of this process and all it started but the broker: the JVM and Python's workers."""

    seconds: float
    spark_cpu_s: float
    broker_cpu_s: float


class Seen(NamedTuple):
    """A process: its number and start, which together name it for ever, its parent and its CPU time."""

    pid: int
    started: int
    parent: int
    cpu_s: float


def timed(query: Callable[[], None], subject: Subject) -> Timing:
    with Watch(os.getpid(), but=subject.broker.pid) as watch:
        broker_s = subject.cpu_s()
        begun = time.perf_counter()
        query()
        seconds = time.perf_counter() - begun
        broker_s = subject.cpu_s() - broker_s
    return Timing(seconds, watch.cpu_s(), broker_s)


class Watch:
    """Adds up the CPU time of a process and all below it, from entering to leaving, without the tree of `but`."""

    def __init__(self, root: int, but: int | None = None, look: Callable[[], Iterable[Seen]] | None = None) -> None:
        self._root = root
        self._but = but
        self._look = look or processes
        self._first: dict[tuple[int, int], float] = {}
        self._last: dict[tuple[int, int], float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __enter__(self) -> "Watch":
        self.sample()
        self._first = dict(self._last)  # whoever comes later began with nothing
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.sample()

    def cpu_s(self) -> float:
        return sum(self._last.values()) - sum(self._first.values())

    def sample(self) -> None:
        found = {each.pid: each for each in self._look()}
        for each in found.values():
            name = (each.pid, each.started)
            # One whose parent has ended is somebody else's child by now, but still known.
            if name in self._last or is_below(each.pid, self._root, self._but, found):
                self._last[name] = each.cpu_s

    def _go_on(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.sample()


def is_below(pid: int, root: int, but: int | None, found: Mapping[int, Seen]) -> bool:
    """Whether a process is `root` or was started by it, or by those it started, and not through `but`."""
    while pid in found and pid != but:
        if pid == root:
            return True
        pid = found[pid].parent
    return False


def processes() -> list[Seen]:
    """All processes of the machine."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):  # it has ended
                found.append(parse_stat(Path("/proc", name, "stat").read_bytes()))
    return found


def parse_stat(text: bytes) -> Seen:
    """The one line of /proc/PID/stat (proc_pid_stat(5)); the program's name may hold blanks and brackets."""
    head, _, rest = text.rpartition(b")")
    fields = rest.split()
    spent = int(fields[11]) + int(fields[12])
    return Seen(int(head.split(b" ", 1)[0]), int(fields[19]), int(fields[1]), spent / _TICKS_A_SECOND)
