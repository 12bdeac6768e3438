"""What every thread of the machine did when, out of a trace of the kernel's scheduler, and what a request waited for.

`perf` notes each change of thread on each core, and who woke whom. A request is followed backwards, from the thread
that saw its end: while that thread ran or waited for a core, the request did; before that it was woken, and what the
request did until then is what its waker did. So each instant of a request is counted once, whatever else went on.
"""

import os
import re
import signal
import subprocess
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

State = Literal["runs", "waits", "blocked", "asleep"]
EVENTS = ("sched_switch", "sched_waking", "sched_wakeup", "sched_wakeup_new", "sched_migrate_task")
_STATES: tuple[State, ...] = ("runs", "waits", "blocked", "asleep")
_RUNS, _WAITS, _BLOCKED, _ASLEEP = range(4)
_IDLE = 0  # the thread of a core that has nothing to do
_NOBODY = -1
_MOST_STEPS = 1_000
_BUFFER = "32M"  # of each core: perf is not to wake up during a phase
_END_S = 120.0
_SWITCH = re.compile(r"prev_pid=(\d+) prev_prio=\d+ prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+) ")
_WOKEN = re.compile(r" pid=(\d+) prio=-?\d+ target_cpu=(\d+)")
_MOVED = re.compile(r" pid=(\d+) prio=-?\d+ orig_cpu=\d+ dest_cpu=(\d+)")


class TraceError(Exception):
    """The scheduler cannot be traced here, or the trace cannot be read."""


class Piece(NamedTuple):
    """What one thread did for one stretch of a request's time."""

    thread: int
    state: State
    begin_ns: int
    end_ns: int
    core: int
    """On which it ran, or which it waited for."""


class _Thread:
    """Its states in order of time, on which core, and who woke it, for a wait that began with that."""

    __slots__ = ("begins", "cores", "states", "wakers")

    def __init__(self) -> None:
        self.begins = array("q")
        self.states = array("b")
        self.cores = array("i")
        self.wakers = array("q")

    def add(self, at_ns: int, state: int, core: int, waker: int = _NOBODY) -> None:
        self.begins.append(at_ns)
        self.states.append(state)
        self.cores.append(core)
        self.wakers.append(waker)

    @property
    def state(self) -> int:
        return self.states[-1] if self.states else _NOBODY


class Trace:
    """Every thread's states, and what each core did."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._threads: dict[int, _Thread] = defaultdict(_Thread)
        self._cores: dict[int, tuple[array[int], array[int]]] = defaultdict(lambda: (array("q"), array("q")))
        self._called_by: dict[int, int] = {}

    def read(self, lines: Iterable[str]) -> None:
        """Take what `perf script -F tid,cpu,time,event,trace --ns` prints, in order of time."""
        for line in lines:
            words = line.split(None, 4)
            if len(words) < 5:
                continue
            current, core, at, event, rest = words
            seconds, _, fraction = at.rstrip(":").partition(".")
            at_ns = int(seconds) * 1_000_000_000 + int(fraction)
            self._note(event.rstrip(":").partition(":")[2], at_ns, int(core[1:-1]), int(current), rest)

    def _note(self, event: str, at_ns: int, core: int, current: int, rest: str) -> None:
        if event == "sched_switch":
            found = _SWITCH.search(rest + " ")
            if found:
                self._switch(at_ns, core, int(found[1]), found[2], int(found[4]), found[3])
        elif event == "sched_migrate_task":
            found = _MOVED.search(rest)
            if found:
                thread = self._threads[int(found[1])]
                if thread.state == _WAITS:
                    thread.add(at_ns, _WAITS, int(found[2]), _NOBODY)
        else:
            found = _WOKEN.search(rest)
            if found:
                self._wake(at_ns, int(found[1]), int(found[2]), current, event)

    def _switch(self, at_ns: int, core: int, before: int, left: str, after: int, name: str) -> None:
        times, who = self._cores[core]
        times.append(at_ns)
        who.append(after)
        if before != _IDLE:
            state = _WAITS if left.startswith("R") else _BLOCKED if left.startswith("D") else _ASLEEP
            self._threads[before].add(at_ns, state, core)
        if after != _IDLE:
            self._threads[after].add(at_ns, _RUNS, core)
            self.names[after] = name

    def _wake(self, at_ns: int, woken: int, core: int, current: int, event: str) -> None:
        """A thread may be called (`waking`) while it is still on its way to sleep: then `wakeup` finds it asleep."""
        thread = self._threads[woken]
        if event == "sched_waking":
            self._called_by[woken] = current
        if thread.state in (_ASLEEP, _BLOCKED):
            thread.add(at_ns, _WAITS, core, self._called_by.get(woken, current))
        elif thread.state == _WAITS and event == "sched_wakeup":
            thread.cores[-1] = core

    def path(self, thread: int, begin_ns: int, end_ns: int, leads_to: Callable[[int], bool]) -> Iterator[Piece]:
        """What a request that `thread` saw the end of did, backwards.

        Args:
            leads_to: whether a waker did the request's work; others, such as whoever an interrupt came upon, did not.
        """
        at_ns = end_ns
        for _ in range(_MOST_STEPS):
            found = self._threads.get(thread)
            index = bisect_left(found.begins, at_ns) - 1 if found is not None else -1
            if found is None or index < 0:
                yield Piece(thread, "asleep", begin_ns, at_ns, _NOBODY)
                return
            began_ns = max(begin_ns, found.begins[index])
            yield Piece(thread, _STATES[found.states[index]], began_ns, at_ns, found.cores[index])
            at_ns = began_ns
            if at_ns <= begin_ns:
                return
            waker = found.wakers[index]
            was_asleep = index > 0 and found.states[index - 1] == _ASLEEP
            if waker != _NOBODY and was_asleep and leads_to(waker):
                thread = waker

    def held(self, core: int, begin_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
        """Which threads a core ran during a span, and for how long; 0 is none."""
        times, who = self._cores[core]
        index = max(0, bisect_right(times, begin_ns) - 1)
        while index < len(times) and times[index] < end_ns:
            until_ns = times[index + 1] if index + 1 < len(times) else end_ns
            took_ns = min(end_ns, until_ns) - max(begin_ns, times[index])
            if took_ns > 0:
                yield who[index], took_ns
            index += 1

    def ran_ns(self, begin_ns: int, end_ns: int) -> dict[int, int]:
        """How long each thread had a core during a span."""
        total: dict[int, int] = defaultdict(int)
        for core in self._cores:
            for thread, took_ns in self.held(core, begin_ns, end_ns):
                total[thread] += took_ns
        return total


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Trace the scheduler into a file; it should not be on the disk that is measured.

    Raises:
        TraceError: perf is not there or may not.
    """
    events = [word for event in EVENTS for word in ("-e", f"sched:{event}")]
    orders, to_perf = os.pipe()
    from_perf, answers = os.pipe()
    command = ["perf", "record", "-a", "-k", "CLOCK_MONOTONIC", "-m", _BUFFER, "-o", str(path), *events]
    command += ["-D", "-1", "--control", f"fd:{orders},{answers}"]
    said = path.with_suffix(".stderr")
    try:
        with said.open("w") as errors:
            process = subprocess.Popen(command, stdout=errors, stderr=errors, pass_fds=(orders, answers))
    except FileNotFoundError:
        raise TraceError("there is no perf here: install linux-perf") from None
    finally:
        os.close(orders)
        os.close(answers)
    try:
        os.write(to_perf, b"enable\n")
        if not os.read(from_perf, 16).startswith(b"ack"):
            process.wait()
            raise TraceError(f"perf cannot trace the scheduler, it may need root: {said.read_text().strip()}")
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(_END_S)
        os.close(to_perf)
        os.close(from_perf)
    if "lost" in said.read_text().lower():
        raise TraceError(f"perf did not keep up: {said.read_text().strip()}")


def load(path: Path) -> Trace:
    trace = Trace()
    command = ["perf", "script", "-i", str(path), "--ns", "-F", "tid,cpu,time,event,trace"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        trace.read(process.stdout)
    if process.returncode:
        raise TraceError(f"perf cannot read {path}")
    return trace
